// Interfaces that are being written.
#include "server/api.h"

namespace argent::server {

void add_responses_routes(const ApiContext&) {}

}  // namespace argent::server
