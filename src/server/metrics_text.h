// The metrics of all loaded models as Prometheus reads them (text format 0.0.4).
#pragma once

#include <string>

#include "server/models.h"

namespace argent::server {

std::string metrics_text(Models& models);

}  // namespace argent::server
