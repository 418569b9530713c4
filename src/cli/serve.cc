// argent serve: the HTTP server over one or several models.
#include <atomic>
#include <csignal>
#include <ctime>
#include <fstream>
#include <mutex>
#include <thread>

#include "base/memory_reserve.h"
#include "cli/command.h"
#include "server/models.h"

namespace argent::cli {
namespace {

std::atomic<int> stop_signals = 0;  // the handler may run in any thread
static_assert(std::atomic<int>::is_always_lock_free);

class Serve {
 public:
  Positionals positionals;
  ModelOptions model;
  SamplingOptions sampling;
  std::string host = "127.0.0.1", alias, chat_template, pooling, api_key_file, tls_cert, tls_key, log = "text";
  uint16_t port = 8080;
  uint64_t pool_tokens = 0;
  std::string kv_host_bytes, kv_disk, kv_disk_bytes = "8GiB";
  uint32_t parallel = 16, max_queue = 1024, max_models = 0, ttl = 0, drain_seconds = 30;
  bool deterministic = false;
  std::vector<std::string> folders, api_keys, preload, pinned, allowed_hosts, allowed_origins;

  Status run();

 private:
  Result<server::ServerOptions> server_options();
  void log_request(const server::Request& request, int status, uint64_t bytes, std::chrono::nanoseconds time);
  void log_line(const std::string& line);
};

std::string utc_now() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm tm = {};
  gmtime_r(&seconds, &tm);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  return fmt::format("{}.{:03}Z", text, ms);
}

void Serve::log_line(const std::string& line) {
  if (log == "json")
    to_stderr("{}\n", server::to_text({{"time", utc_now()}, {"message", line}}));
  else if (log == "text")
    to_stderr("{} {}\n", utc_now(), one_line(line));
}

// No text of a request or an answer is ever in it.
void Serve::log_request(const server::Request& r, int status, uint64_t bytes, std::chrono::nanoseconds time) {
  const double ms = std::chrono::duration<double, std::milli>(time).count();
  if (log == "json") {
    Json line = {{"time", utc_now()}, {"request", r.id}, {"method", r.method}, {"path", r.path},
                 {"status", status},  {"bytes", bytes},  {"ms", ms},           {"peer", r.peer}};
    if (!r.header("traceparent").empty()) line["traceparent"] = r.header("traceparent");
    to_stderr("{}\n", server::to_text(line));
  } else if (log == "text") {
    to_stderr("{} #{} {} {} {} {} bytes {:.1f} ms\n", utc_now(), r.id, one_line(r.method),
              one_line(r.path.substr(0, 200)), status, bytes, ms);
  }
}

Result<server::ServerOptions> Serve::server_options() {
  server::ServerOptions o;
  o.host = host;
  o.port = port;
  o.tls_cert = tls_cert;
  o.tls_key = tls_key;
  o.api_keys = api_keys;
  if (!api_key_file.empty()) {
    ARGENT_LET(const std::string text, read_file(api_key_file));
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      std::string key = text.substr(at, end - at);
      while (!key.empty() && (key.back() == '\r' || key.back() == ' ')) key.pop_back();
      if (!key.empty() && key[0] != '#') o.api_keys.push_back(key);
      at = end + 1;
    }
    if (o.api_keys.empty()) return fail(Code::invalid, "--api-key-file {}: no key is in it", api_key_file);
  }
  for (const std::string& key : o.api_keys)
    if (key.empty()) return fail(Code::invalid, "--api-key: an empty key would let everybody in");
  o.allowed_hosts = allowed_hosts;
  o.allowed_origins = allowed_origins;
  o.handler_threads = 16;  // they wait while a model is loaded; the rest of the server must not
  for (const std::string& path : server::page_paths()) o.open_paths.push_back(path);
  o.log = [this](const server::Request& r, int status, uint64_t bytes, std::chrono::nanoseconds time) {
    log_request(r, status, bytes, time);
  };
  o.error = [](int status, std::string_view message, std::string_view path) {
    const std::string type = status == 401   ? "authentication_error"
                             : status == 403 ? "permission_error"
                             : status == 404 ? "not_found_error"
                             : status < 500  ? "invalid_request_error"
                                             : "server_error";
    Json body;
    if (path.starts_with("/v1/messages"))
      body = server::anthropic_error(status, message);
    else if (path.starts_with("/api/"))
      body = {{"error", message}};
    else
      body = {{"error", {{"message", message}, {"type", type}, {"param", nullptr}, {"code", status}}}};
    return std::pair(server::to_text(body), std::string("application/json"));
  };
  return o;
}

Status Serve::run() {
  ARGENT_TRY(positionals.settle(model.model, nullptr, nullptr, false));
  if (model.json) log = "json";
  if (log != "text" && log != "json" && log != "none")
    return fail(Code::invalid, "--log {}: wanted text, json or none", log);
  if (tls_cert.empty() != tls_key.empty()) return fail(Code::invalid, "--tls-cert and --tls-key go together");
  server::ModelsOptions models;
  ARGENT_LET(models.engine, model.engine_options());
  models.engine.n_sequences = parallel;
  models.engine.pool_tokens = pool_tokens;
  models.engine.serves = true;
  models.engine.kv_host_bytes = std::nullopt;
  if (!kv_host_bytes.empty()) {
    ARGENT_LET(models.engine.kv_host_bytes, parse_bytes("--kv-host-bytes", kv_host_bytes));
  }
  models.engine.kv_disk = kv_disk;
  ARGENT_LET(models.engine.kv_disk_bytes, parse_bytes("--kv-disk-bytes", kv_disk_bytes));
  models.engine.program = ARGENT_VERSION;
  models.engine.log = [this](const std::string& line) { log_line(line); };
  models.engine.budget.max_outputs = std::max(64u, parallel);
  ARGENT_LET(models.defaults, sampling.settle(models.defaults));
  models.engine.deterministic = deterministic;
  models.fixed_seed = deterministic || sampling.sets("seed");
  models.service = {.parallel = parallel, .max_queue = max_queue};
  models.first = model.model;
  models.alias = alias;
  models.folders = folders;
  models.chat_template = chat_template;
  if (!pooling.empty()) {
    if (pooling != "mean" && pooling != "last")
      return fail(Code::invalid, "--pooling {}: wanted mean or last", pooling);
    models.pooling = pooling == "mean" ? GenerationRequest::Pooling::mean : GenerationRequest::Pooling::last;
  }
  models.max_loaded = max_models;
  models.ttl = std::chrono::seconds(ttl);
  models.preload = preload;
  models.pinned = pinned;
  models.log = [this](const std::string& line) { log_line(line); };
  ARGENT_LET(server::ServerOptions options, server_options());

  // The thread that compute threads are made of sees no signal: they wake this one.
  std::signal(SIGPIPE, SIG_IGN);
  struct sigaction action = {};
  action.sa_handler = [](int) { ++stop_signals; };
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);

  keep_memory_reserve();
  server::Models host_models(std::move(models));
  ARGENT_LET(const std::unique_ptr<server::Server> http, server::Server::start(std::move(options)));
  const server::ApiContext api{&host_models, http.get()};
  server::add_operations_routes(api);
  server::add_page_routes(api);
  server::add_openai_routes(api);
  server::add_responses_routes(api);
  server::add_anthropic_routes(api);
  server::add_ollama_routes(api);
  server::add_llama_server_routes(api);
  http->open();

  Status loaded;
  std::atomic<bool> done = false;
  std::thread loader([&] {
    loaded = host_models.start();
    done = true;
  });
  while (!done && stop_signals == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  if (done && loaded) {
    log_line(fmt::format("serving at {}", http->address()));
    if (deterministic) log_line("deterministic: the same request gives the same bits, alone and among others");
    while (stop_signals == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    log_line("shutting down: requests that run may finish");
    std::atomic<bool> drained = false;
    std::thread watcher([&] {  // a second signal ends the wait
      while (!drained && stop_signals < 2) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (!drained) host_models.cancel();
    });
    http->drain(std::chrono::seconds(drain_seconds));
    host_models.drain(std::chrono::seconds(1));
    drained = true;
    watcher.join();
  } else if (!done) {
    host_models.cancel();  // stopped while it was loading
  }
  loader.join();
  return loaded || stop_signals == 0 ? loaded : Status();
}

}  // namespace

void add_serve(CLI::App& root) {
  auto command = std::make_shared<Serve>();
  CLI::App* app = add_command(
      root, "serve", "serve a model over HTTP: OpenAI's interface, Anthropic's, ollama's, and a page to chat",
      "The page is at /, OpenAI's interface at /v1. Other models are loaded when a request names them.\n"
      "Examples:\n"
      "  argent serve                               the default model at http://127.0.0.1:8080\n"
      "  argent serve model.gguf --port 9000        another one\n"
      "  argent serve --models ~/models --ttl 600   every GGUF file there, unloaded after ten minutes without use\n"
      "  argent serve --host 0.0.0.0 --api-key-file keys.txt --tls-cert cert.pem --tls-key key.pem",
      [command] { return command->run(); });
  command->positionals.add(*app, false);
  command->model.add(*app, true);
  command->sampling.add(*app);
  app->add_option("--host", command->host, "address to listen on, or unix:PATH")->capture_default_str();
  app->add_option("--port", command->port, "0: a free one")->capture_default_str();
  app->add_option(
      "--pool-tokens", command->pool_tokens,
      "positions of the KV cache that all requests share (default: as many as fit, up to --parallel times --ctx)");
  app->add_option(
      "--kv-host-bytes", command->kv_host_bytes,
      "host memory for what leaves the KV cache, as 512MiB; 0: none (default: an eighth of what is free, at "
      "most 1GiB)");
  app->add_option("--kv-disk", command->kv_disk,
                  "folder for what leaves that memory; a server that is started again finds its prompts there");
  app->add_option("--kv-disk-bytes", command->kv_disk_bytes, "the most that it takes for each model")
      ->capture_default_str();
  app->add_option("--parallel", command->parallel, "answers computed at once; more requests wait")
      ->check(CLI::Range(1u, 1024u))
      ->capture_default_str();
  app->add_option("--max-queue", command->max_queue, "requests that may wait; more are refused with 503")
      ->capture_default_str();
  app->add_option("--pooling", command->pooling, "of embeddings: mean or last (default: as the file says, else mean)");
  app->add_option("--models", command->folders, "a folder of GGUF files that requests may name; may be repeated");
  app->add_option("--max-models", command->max_models, "models loaded at once (default: as many as fit)");
  app->add_option("--ttl", command->ttl, "seconds after which an unused model is unloaded; 0: never")
      ->capture_default_str();
  app->add_option("--preload", command->preload, "another model to load at the start; may be repeated");
  app->add_option("--pin", command->pinned, "a model that is never unloaded; may be repeated");
  app->add_option("--alias", command->alias, "another name for the model");
  app->add_option("--chat-template", command->chat_template, "a template file, or a built-in name");
  app->add_option("--api-key", command->api_keys, "key that requests must bring; may be repeated");
  app->add_option("--api-key-file", command->api_key_file, "file of keys, one a line");
  app->add_option("--tls-cert", command->tls_cert, "certificate chain, PEM");
  app->add_option("--tls-key", command->tls_key, "its private key, PEM");
  app->add_option("--allow-host", command->allowed_hosts,
                  "name that the Host header may have; may be repeated, * is any");
  app->add_option("--allow-origin", command->allowed_origins,
                  "origin whose pages may use the server; may be repeated, * is any");
  app->add_flag("--deterministic", command->deterministic,
                "the same request gives the same bits, alone or among others, also without a seed of its own; a device "
                "that cannot is refused");
  app->add_option("--log", command->log, "text, json or none: a line a request on stderr, never its text")
      ->capture_default_str();
  app->add_option("--drain", command->drain_seconds, "seconds that requests may take to finish after SIGTERM")
      ->capture_default_str();
}

}  // namespace argent::cli
