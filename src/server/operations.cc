// What runs the server asks of it: health, metrics, the models and their states.
#include "server/api.h"
#include "server/fields.h"
#include "server/metrics_text.h"
#include "server/models.h"

namespace argent::server {
namespace {

std::string_view state_name(ModelHost::Entry::State state) {
  using State = ModelHost::Entry::State;
  return state == State::loaded    ? "loaded"
         : state == State::loading ? "loading"
         : state == State::failed  ? "failed"
                                   : "unloaded";
}

Json entry_json(const ModelHost::Entry& e) {
  Json j = {{"id", e.name},
            {"object", "model"},
            {"created", e.created},
            {"owned_by", "argent"},
            {"state", state_name(e.state)},
            {"size", e.bytes}};
  if (e.state == ModelHost::Entry::State::loading) j["progress"] = e.progress;
  if (e.n_ctx) j["context_length"] = e.n_ctx, j["max_model_len"] = e.n_ctx;
  if (e.pinned) j["pinned"] = true;
  if (!e.error.empty()) j["error"] = e.error;
  return j;
}

void send_error(Reply& reply, const Error& error) {
  const int status = status_of(error);
  reply.send(status, to_text({{"error",
                               {{"message", error.message},
                                {"type", status == 404  ? "not_found_error"
                                         : status < 500 ? "invalid_request_error"
                                                        : "server_error"},
                                {"param", nullptr},
                                {"code", nullptr}}}}));
}

// {"model": NAME, "pin": true} of the load and unload routes.
struct ModelRequest {
  std::string name;
  bool pin = false;
};
Result<ModelRequest> model_request(const Request& request) {
  ARGENT_LET(const Json body, parse_json(request.body, "the body", kMaxBodyDepth));
  Fields fields(body);
  ModelRequest out;
  out.name = fields.text("model").value_or("");
  out.pin = fields.flag("pin").value_or(false);
  ARGENT_TRY(fields.finish());
  if (out.name.empty()) return fail(Code::invalid, "model is missing: the name of one of /v1/models");
  return out;
}

}  // namespace

void add_operations_routes(const ApiContext& api) {
  auto* models = static_cast<Models*>(api.host);
  const auto health = [models](Request, std::shared_ptr<Reply> reply) {
    if (models->ready()) return reply->send(200, R"({"status":"ok"})");
    double progress = 0;
    for (const ModelHost::Entry& e : models->list())
      if (e.state == ModelHost::Entry::State::loading) progress = e.progress;
    reply->send(
        503,
        to_text({{"status", "loading model"},
                 {"progress", progress},
                 {"error", {{"message", "the model is loading"}, {"type", "unavailable_error"}, {"code", 503}}}}),
        "application/json", {{"retry-after", "1"}});
  };
  api.server->route("GET", "/health", health);
  api.server->route("GET", "/v1/health", health);
  api.server->route("GET", "/metrics", [models](Request, std::shared_ptr<Reply> reply) {
    reply->send(200, metrics_text(*models), "text/plain; version=0.0.4; charset=utf-8");
  });
  const auto list = [models](Request, std::shared_ptr<Reply> reply) {
    Json data = Json::array();
    for (const ModelHost::Entry& e : models->list()) data.push_back(entry_json(e));
    reply->send(200, to_text({{"object", "list"}, {"data", std::move(data)}}));
  };
  api.server->route("GET", "/v1/models", list);
  api.server->route("GET", "/models", list);
  api.server->route("GET", "/v1/models/{name...}", [models](Request request, std::shared_ptr<Reply> reply) {
    for (const ModelHost::Entry& e : models->list())
      if (e.name == request.parameters[0]) return reply->send(200, to_text(entry_json(e)));
    send_error(*reply, fail(Code::not_found, "no model is called '{}'", request.parameters[0].substr(0, 100)));
  });
  api.server->route("POST", "/models/load", [models](Request request, std::shared_ptr<Reply> reply) {
    const auto wanted = model_request(request);
    if (!wanted) return send_error(*reply, wanted.error());
    if (const Status done = models->load(wanted->name, wanted->pin); !done) return send_error(*reply, done.error());
    reply->send(200, R"({"success":true})");
  });
  api.server->route("POST", "/models/unload", [models](Request request, std::shared_ptr<Reply> reply) {
    const auto wanted = model_request(request);
    if (!wanted) return send_error(*reply, wanted.error());
    if (const Status done = models->unload(wanted->name); !done) return send_error(*reply, done.error());
    reply->send(200, R"({"success":true})");
  });
}

}  // namespace argent::server
