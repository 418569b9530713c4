// What Ollama's routes share: models as it describes them, and its errors.
#pragma once

#include "server/adapters.h"

namespace argent::server::ollama {

void send_error(Reply& reply, const Error& error);

// A request's "model", else its "name".
std::string model_name(Fields& fields);

// /api/tags, /api/show, /api/ps, /api/version, and refusals of what changes the models of a machine.
void add_model_routes(const ApiContext& api);

}  // namespace argent::server::ollama
