// Interfaces that are being written.
#include "server/api.h"

namespace argent::server {

void add_responses_routes(const ApiContext&) {}
void add_ollama_routes(const ApiContext&) {}
void add_llama_server_routes(const ApiContext&) {}

}  // namespace argent::server
