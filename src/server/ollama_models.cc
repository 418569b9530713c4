// Ollama's view of the models: lists, details, and no changes.
#include <openssl/evp.h>

#include <cctype>
#include <filesystem>

#include "server/ollama.h"

namespace argent::server::ollama {
namespace {

using Entry = ModelHost::Entry;

std::string text_of(const gguf::File& file, std::string_view key) {
  const gguf::Value* value = file.find(key);
  return value ? std::string(value->as_string().value_or("")) : std::string();
}

// "134.5M", "8.0B".
std::string size_name(uint64_t n) {
  if (n >= 1'000'000'000) return fmt::format("{:.1f}B", double(n) / 1e9);
  if (n >= 1'000'000) return fmt::format("{:.1f}M", double(n) / 1e6);
  return fmt::format("{}K", n / 1000);
}

// The format that most of the file's bytes are in.
std::string format_name(const gguf::File& file) {
  std::map<std::string_view, uint64_t> bytes;
  for (const gguf::Tensor& tensor : file.tensors()) bytes[tensor.format->name] += tensor.n_bytes;
  std::pair<std::string_view, uint64_t> most{"unknown", 0};
  for (const auto& each : bytes)
    if (each.second > most.second) most = each;
  return std::string(most.first);
}

Json details(const gguf::File& file) {
  uint64_t n_params = 0;
  for (const gguf::Tensor& tensor : file.tensors()) n_params += tensor.n_elements;
  const std::string arch = text_of(file, "general.architecture");
  return {{"parent_model", ""},
          {"format", "gguf"},
          {"family", arch},
          {"families", Json::array({arch})},
          {"parameter_size", size_name(n_params)},
          {"quantization_level", format_name(file)}};
}

// Stands for the file in lists: a hash of its path, size and time, since reading gigabytes for one would be absurd.
std::string digest_of(const Entry& e) {
  const std::string text = fmt::format("{}\n{}\n{}", e.path, e.bytes, e.created);
  unsigned char hash[EVP_MAX_MD_SIZE];
  unsigned int n = 0;
  EVP_Digest(text.data(), text.size(), hash, &n, EVP_sha256(), nullptr);
  return fmt::format("{:02x}", fmt::join(hash, hash + n, ""));
}

// Details of files, kept by path while the file stays the same: a header is up to 30 MB.
class Descriptions {
 public:
  Json of(const Entry& e) {
    const std::lock_guard lock(mutex_);
    Known& known = known_[e.path];
    if (known.details.is_null() || known.bytes != e.bytes || known.created != e.created) {
      const auto file = gguf::File::open(e.path);
      known = {e.bytes, e.created, file ? details(*file) : Json::object()};
    }
    return known.details;
  }

 private:
  struct Known {
    uint64_t bytes = 0;
    int64_t created = 0;
    Json details;
  };
  std::mutex mutex_;
  std::map<std::string, Known> known_;
};

Json entry_json(const Entry& e, Descriptions& descriptions) {
  return {{"name", e.name},
          {"model", e.name},
          {"modified_at", utc_time(std::chrono::system_clock::from_time_t(std::time_t(e.created)))},
          {"size", e.bytes},
          {"digest", digest_of(e)},
          {"details", descriptions.of(e)}};
}

// Keys of the file; arrays as null, as Ollama gives them, unless all is wanted.
Json value_json(const gguf::Value& value, bool verbose) {
  using gguf::Type;
  if (value.is_array()) {
    if (!verbose) return nullptr;
    Json out = Json::array();
    const Type element = value.element_type();
    for (uint64_t i = 0; i < value.size(); ++i) {
      if (element == Type::string)
        out.push_back(std::string(value.string_at(i)));
      else if (gguf::is_float(element))
        out.push_back(value.float_at(i));
      else if (element == Type::boolean)
        out.push_back(value.int_at(i) != 0);
      else
        out.push_back(value.int_at(i));
    }
    return out;
  }
  if (const auto v = value.as_bool()) return *v;
  if (const auto v = value.as_string()) return std::string(*v);
  if (gguf::is_float(value.type())) return *value.as_float();
  if (const auto v = value.as_uint()) return *v;
  return value.as_int().value_or(0);
}

Json capabilities(const LoadedModel& model) {
  Json out = Json::array({"completion"});
  if (model.chat && model.chat->capabilities().tools) out.push_back("tools");
  if (const Tokenizer* t = model.service->tokenizer(); t && t->fim().prefix && t->fim().suffix && t->fim().middle)
    out.push_back("insert");
  if (!model.output.think_begin.empty()) out.push_back("thinking");
  return out;
}

Status show(const ApiContext& api, const Request& request, const std::shared_ptr<Reply>& reply,
            Descriptions& descriptions) {
  ARGENT_LET(const Json body, parse_body(request));
  Fields fields(body);
  const std::string name = model_name(fields);
  const bool verbose = fields.flag("verbose").value_or(false);
  ARGENT_TRY(fields.finish());
  ARGENT_LET(const std::shared_ptr<LoadedModel> model, api.host->get(name));
  const gguf::File& file = model->service->file();
  Json info = Json::object();
  for (const gguf::Entry& e : file.entries())
    if (e.key != "tokenizer.chat_template") info[std::string(e.key)] = value_json(e.value, verbose);
  if (!info.contains("general.parameter_count")) info["general.parameter_count"] = model->service->model().n_params;
  Entry entry;
  entry.path = model->path;
  entry.created = model->created;
  std::error_code ignored;
  entry.bytes = std::filesystem::file_size(model->path, ignored);
  reply->send(200, to_text({{"license", text_of(file, "general.license")},
                            {"modelfile", "FROM " + model->path + "\n"},
                            {"parameters", ""},
                            {"template", model->chat ? model->chat->chat_template().source() : std::string()},
                            {"details", descriptions.of(entry)},
                            {"model_info", std::move(info)},
                            {"capabilities", capabilities(*model)},
                            {"modified_at", utc_time(std::chrono::system_clock::from_time_t(model->created))}}));
  return {};
}

}  // namespace

void send_error(Reply& reply, const Error& error) { reply.send(status_of(error), to_text({{"error", error.message}})); }

std::string model_name(Fields& fields) {
  const auto model = fields.text("model"), name = fields.text("name");
  if (!model && !name) fields.fail_at("model", "model is missing");
  return model ? *model : name.value_or("");
}

void add_model_routes(const ApiContext& api) {
  const auto descriptions = std::make_shared<Descriptions>();
  api.server->route("GET", "/api/tags", [api, descriptions](Request, std::shared_ptr<Reply> reply) {
    Json models = Json::array();
    for (const Entry& e : api.host->list()) models.push_back(entry_json(e, *descriptions));
    reply->send(200, to_text({{"models", std::move(models)}}));
  });
  api.server->route("GET", "/api/ps", [api, descriptions](Request, std::shared_ptr<Reply> reply) {
    Json models = Json::array();
    for (const Entry& e : api.host->list()) {
      if (e.state != Entry::State::loaded) continue;
      Json model = entry_json(e, *descriptions);
      model.erase("modified_at");
      model["expires_at"] = "9999-12-31T23:59:59Z";  // --ttl says when, not the request
      model["size_vram"] = 0;
      model["context_length"] = e.n_ctx;
      models.push_back(std::move(model));
    }
    reply->send(200, to_text({{"models", std::move(models)}}));
  });
  api.server->route("POST", "/api/show", [api, descriptions](Request request, std::shared_ptr<Reply> reply) {
    if (const Status status = show(api, request, reply, *descriptions); !status) send_error(*reply, status.error());
  });
  api.server->route("GET", "/api/version", [](Request, std::shared_ptr<Reply> reply) {
    reply->send(200, to_text({{"version", ARGENT_VERSION}}));
  });
  const auto refuse = [](Request request, std::shared_ptr<Reply> reply) {
    reply->send(501, to_text({{"error", fmt::format("{} is not supported: put GGUF files into a folder of the server's "
                                                    "models (argent serve --models FOLDER)",
                                                    request.path)}}));
  };
  for (std::string_view path : {"/api/pull", "/api/push", "/api/create", "/api/copy"})
    api.server->route("POST", path, refuse);
  api.server->route("DELETE", "/api/delete", refuse);
}

}  // namespace argent::server::ollama
