// argent inspect: what a model file holds. It reads the file only, so it answers for any GGUF file.
#include <algorithm>
#include <map>

#include "base/json.h"
#include "cli/command.h"
#include "engine/chat_format.h"
#include "hub/hub.h"
#include "models/model.h"

namespace argent::cli {
namespace {

using gguf::Entry;
using gguf::Value;

constexpr uint64_t kShownElements = 8;  // of an array
constexpr size_t kShownBytes = 100;     // of a string
constexpr uint64_t kSmallArray = 1024;  // printed whole in JSON

// Text of a file for a terminal: no control characters, invalid UTF-8 as U+FFFD, cut after `max` bytes.
std::string printable(std::string_view text, size_t max) {
  std::string bytes(text.substr(0, max)), valid;
  const bool cut = text.size() > max;
  take_complete_utf8(bytes, valid);
  std::string out;
  for (char c : valid) {
    if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\r')
      out += "\\r";
    else if (uint8_t(c) < 0x20 || c == 0x7f)
      out += fmt::format("\\x{:02x}", uint8_t(c));
    else
      out += c;
  }
  return cut ? out + "…" : out;
}

std::string scalar_text(const Value& value) {
  if (const auto s = value.as_string()) return printable(*s, kShownBytes);
  if (const auto b = value.as_bool()) return *b ? "true" : "false";
  if (is_integer(value.type())) {
    if (const auto u = value.as_uint()) return fmt::format("{}", *u);
    return fmt::format("{}", value.as_int().value_or(0));
  }
  return fmt::format("{}", float(value.as_float().value_or(0)));
}

std::string element_text(const Value& value, uint64_t i) {
  if (value.element_type() == gguf::Type::string) return "'" + printable(value.string_at(i), 40) + "'";
  if (value.element_type() == gguf::Type::boolean) return value.int_at(i) ? "true" : "false";
  if (gguf::is_integer(value.element_type())) return fmt::format("{}", value.int_at(i));
  return fmt::format("{}", float(value.float_at(i)));
}

std::string value_text(const Value& value) {
  if (!value.is_array()) return scalar_text(value);
  std::string out;
  for (uint64_t i = 0; i < std::min(value.size(), kShownElements); ++i)
    out += fmt::format("{}{}", i ? ", " : "", element_text(value, i));
  return fmt::format("[{}{}]", out, value.size() > kShownElements ? fmt::format(", … {} in all", value.size()) : "");
}

Json value_json(const Value& value) {
  if (!value.is_array()) {
    if (const auto s = value.as_string()) return *s;
    if (const auto b = value.as_bool()) return *b;
    if (const auto u = gguf::is_integer(value.type()) ? value.as_uint() : std::nullopt) return *u;
    if (const auto i = gguf::is_integer(value.type()) ? value.as_int() : std::nullopt) return *i;
    return value.as_float().value_or(0);
  }
  Json out = Json::array();
  for (uint64_t i = 0; i < value.size(); ++i) {
    if (value.element_type() == gguf::Type::string)
      out.push_back(value.string_at(i));
    else if (value.element_type() == gguf::Type::boolean)
      out.push_back(value.int_at(i) != 0);
    else if (gguf::is_integer(value.element_type()))
      out.push_back(value.int_at(i));
    else
      out.push_back(value.float_at(i));
  }
  return out;
}

struct FormatShare {
  uint64_t tensors = 0, elements = 0, bytes = 0;
};

// Facts as they come out of the file; empty optionals are not there.
struct Facts {
  std::string arch, name;
  std::vector<std::pair<std::string, uint64_t>> sizes;  // name, number
  std::optional<uint64_t> n_ctx;
  uint64_t n_params = 0, tensor_bytes = 0, file_bytes = 0;
  std::vector<std::pair<std::string, FormatShare>> formats;  // largest first
  std::string unsupported;                                   // why it does not run; empty: it does
  struct Kv {
    uint64_t per_1k = 0;  // bytes of the first 1,024 positions that layers without a window take, f16
    uint64_t per_1k_window = 0;
    uint32_t window = 0;
  };
  std::optional<Kv> kv;
  std::string template_source;
};

Facts gather(const gguf::File& file) {
  Facts facts;
  const auto text = [&](std::string_view key) {
    const Value* value = file.find(key);
    return std::string(value ? value->as_string().value_or("") : "");
  };
  facts.arch = text("general.architecture");
  facts.name = text("general.name");
  static constexpr std::pair<std::string_view, std::string_view> kSizes[] = {
      {"block_count", "layers"},
      {"embedding_length", "embedding"},
      {"feed_forward_length", "feed forward"},
      {"attention.head_count", "heads"},
      {"attention.head_count_kv", "KV heads"},
      {"attention.key_length", "head size"},
      {"attention.sliding_window", "sliding window"},
      {"expert_count", "experts"},
      {"expert_used_count", "experts used"},
      {"vocab_size", "vocabulary"}};
  for (const auto& [key, name] : kSizes)
    if (const Value* value = file.find(facts.arch + "." + std::string(key)); value && value->as_uint())
      facts.sizes.emplace_back(name, *value->as_uint());
  if (const Value* n_ctx = file.find(facts.arch + ".context_length")) facts.n_ctx = n_ctx->as_uint();

  std::map<std::string, FormatShare> shares;
  for (const gguf::Tensor& tensor : file.tensors()) {
    FormatShare& share = shares[std::string(tensor.format->name)];
    ++share.tensors;
    share.elements += tensor.n_elements;
    share.bytes += tensor.n_bytes;
    facts.n_params += tensor.n_elements;
  }
  facts.formats.assign(shares.begin(), shares.end());
  std::stable_sort(facts.formats.begin(), facts.formats.end(),
                   [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  facts.tensor_bytes = file.tensor_bytes();
  for (const gguf::Shard& shard : file.shards()) facts.file_bytes += shard.bytes.size();

  if (const Result<Model> model = build_model(file)) {
    Facts::Kv kv;
    for (const KvSpec& layer : model->kv.layers) {
      const uint64_t bytes = uint64_t(layer.n_head_kv) * (layer.d_head + layer.d_value) * 2 * 1024;
      (layer.window ? kv.per_1k_window : kv.per_1k) += bytes;
      kv.window = std::max(kv.window, layer.window);
    }
    facts.kv = kv;
  } else {
    facts.unsupported = model.error().message;
  }
  if (facts.unsupported.empty())
    if (const auto tokenizer = Tokenizer::load(file); !tokenizer) facts.unsupported = tokenizer.error().message;
  facts.template_source = chat_format_source(file, "");
  return facts;
}

struct InspectCommand {
  ModelOptions model;
  Positionals positionals;
  bool keys = false, tensors = false, chat_template = false;

  Status run();
  std::string text(const gguf::File& file, const Facts& facts) const;
  Json json(const gguf::File& file, const Facts& facts) const;
};

std::string count_text(uint64_t n) {
  if (n >= 1'000'000'000) return fmt::format("{:.2f} billion", double(n) / 1e9);
  if (n >= 1'000'000) return fmt::format("{:.1f} million", double(n) / 1e6);
  return fmt::format("{}", n);
}

std::string tokenizer_text(const gguf::File& file) {
  const Value* tokens = file.find("tokenizer.ggml.tokens");
  const Value* kind = file.find("tokenizer.ggml.model");
  if (!kind || !kind->as_string()) return "none";
  std::string out = printable(*kind->as_string(), 64);
  if (const Value* pre = file.find("tokenizer.ggml.pre"); pre && pre->as_string())
    out += " / " + printable(*pre->as_string(), 64);
  if (!tokens) return out;
  out += fmt::format(", {} tokens", tokens->size());
  for (const auto& [name, key] :
       {std::pair{"BOS", "tokenizer.ggml.bos_token_id"}, std::pair{"EOS", "tokenizer.ggml.eos_token_id"},
        std::pair{"EOT", "tokenizer.ggml.eot_token_id"}})
    if (const Value* id = file.find(key); id && id->as_uint())
      out += fmt::format(", {} {} '{}'", name, *id->as_uint(), printable(tokens->string_at(*id->as_uint()), 40));
  if (const auto tokenizer = Tokenizer::load(file); tokenizer && *tokenizer)
    out += (*tokenizer)->add_bos() ? ", begins with BOS" : ", no BOS in front";
  return out;
}

std::string InspectCommand::text(const gguf::File& file, const Facts& facts) const {
  std::string out;
  const auto line = [&](std::string_view name, std::string_view value) {
    out += fmt::format("{:<15} {}\n", name, value);
  };
  line("file", file.shards().size() == 1 ? file.path()
                                         : fmt::format("{} ({} shards)", file.shards()[0].path, file.shards().size()));
  line("format", fmt::format("GGUF {}, {} keys, {} tensors, {:.1f} MB", file.version(), file.entries().size(),
                             file.tensors().size(), double(facts.file_bytes) / 1e6));
  if (!facts.name.empty()) line("name", printable(facts.name, kShownBytes));
  line("architecture", facts.arch.empty() ? "none" : printable(facts.arch, kShownBytes));
  line("runs", facts.unsupported.empty() ? "yes" : "no: " + facts.unsupported);
  line("parameters", fmt::format("{} ({:.2f} bits each)", count_text(facts.n_params),
                                 facts.n_params ? 8.0 * double(facts.tensor_bytes) / double(facts.n_params) : 0));
  std::string sizes;
  for (const auto& [name, number] : facts.sizes)
    sizes += fmt::format("{}{} {}", sizes.empty() ? "" : ", ", name, number);
  if (!sizes.empty()) line("sizes", sizes);
  if (facts.n_ctx) line("context", fmt::format("{} positions", *facts.n_ctx));
  std::string formats;
  for (const auto& [name, share] : facts.formats)
    formats += fmt::format(
        "{}{} {:.1f} MB ({:.0f} %, {} tensors)", formats.empty() ? "" : ", ", name, double(share.bytes) / 1e6,
        facts.tensor_bytes ? 100 * double(share.bytes) / double(facts.tensor_bytes) : 0, share.tensors);
  if (!formats.empty()) line("weights", formats);
  if (facts.kv) {
    std::string kv = fmt::format("{:.2f} MB for 1,024 positions at f16", double(facts.kv->per_1k) / 1e6);
    if (facts.kv->window)
      kv += fmt::format(", and {:.2f} MB in the layers that keep {} positions",
                        double(facts.kv->per_1k_window) * facts.kv->window / 1024 / 1e6, facts.kv->window);
    line("KV cache", kv);
  }
  line("tokenizer", tokenizer_text(file));
  line("chat template", facts.template_source.empty()     ? "none"
                        : facts.template_source == "file" ? "in the file"
                                                          : facts.template_source);
  if (keys) {
    out += "\n";
    size_t width = 0;
    for (const Entry& entry : file.entries()) width = std::max(width, std::min<size_t>(entry.key.size(), 48));
    for (const Entry& entry : file.entries())
      out += fmt::format("{:<{}} {:<12} {}\n", printable(entry.key, kShownBytes), width, entry.value.type_name(),
                         value_text(entry.value));
  }
  if (tensors) {
    out += "\n";
    for (const gguf::Tensor& tensor : file.tensors()) {
      std::string dims;
      for (uint32_t i = 0; i < tensor.n_dims; ++i) dims += fmt::format("{}{}", i ? " x " : "", tensor.dims[i]);
      out += fmt::format("{:<40} {:<8} {:<24} {:>12} bytes\n", printable(tensor.name, kShownBytes), tensor.format->name,
                         dims, tensor.n_bytes);
    }
  }
  return out;
}

Json InspectCommand::json(const gguf::File& file, const Facts& facts) const {
  Json out = {{"file", file.path()},
              {"shards", file.shards().size()},
              {"gguf_version", file.version()},
              {"file_bytes", facts.file_bytes},
              {"architecture", facts.arch},
              {"name", facts.name},
              {"supported", facts.unsupported.empty()}};
  if (!facts.unsupported.empty()) out["unsupported"] = facts.unsupported;
  out["parameters"] = facts.n_params;
  out["tensor_bytes"] = facts.tensor_bytes;
  out["n_keys"] = file.entries().size();
  out["n_tensors"] = file.tensors().size();
  Json sizes = Json::object();
  for (const auto& [name, number] : facts.sizes) {
    std::string key = name;
    std::replace(key.begin(), key.end(), ' ', '_');
    sizes[key] = number;
  }
  out["sizes"] = sizes;
  out["context"] = facts.n_ctx ? Json(*facts.n_ctx) : Json();
  Json formats = Json::array();
  for (const auto& [name, share] : facts.formats)
    formats.push_back(
        {{"format", name}, {"tensors", share.tensors}, {"elements", share.elements}, {"bytes", share.bytes}});
  out["formats"] = formats;
  if (facts.kv)
    out["kv"] = {{"bytes_per_1024_positions", facts.kv->per_1k},
                 {"window", facts.kv->window},
                 {"window_bytes_per_1024_positions", facts.kv->per_1k_window}};
  Json tokenizer = Json::object();
  if (const Value* kind = file.find("tokenizer.ggml.model")) tokenizer["model"] = value_json(*kind);
  if (const Value* pre = file.find("tokenizer.ggml.pre")) tokenizer["pre"] = value_json(*pre);
  if (const Value* tokens = file.find("tokenizer.ggml.tokens")) tokenizer["n_vocab"] = tokens->size();
  if (const auto loaded = Tokenizer::load(file); loaded && *loaded) {
    tokenizer["add_bos"] = (*loaded)->add_bos();
    tokenizer["bos"] = (*loaded)->bos() ? Json(*(*loaded)->bos()) : Json();
    tokenizer["end_ids"] = std::vector<int32_t>((*loaded)->end_ids().begin(), (*loaded)->end_ids().end());
  }
  out["tokenizer"] = tokenizer;
  out["chat_template"] = facts.template_source.empty() ? Json() : Json(facts.template_source);
  if (keys) {
    Json all = Json::object();
    for (const Entry& entry : file.entries()) {
      Json row = {{"type", entry.value.type_name()}};
      if (!entry.value.is_array() || entry.value.size() <= kSmallArray) row["value"] = value_json(entry.value);
      all[std::string(entry.key)] = std::move(row);
    }
    out["keys"] = all;
  }
  if (tensors) {
    Json all = Json::array();
    for (const gguf::Tensor& tensor : file.tensors())
      all.push_back({{"name", tensor.name},
                     {"format", tensor.format->name},
                     {"dims", std::vector<uint64_t>(tensor.dims.begin(), tensor.dims.begin() + tensor.n_dims)},
                     {"bytes", tensor.n_bytes},
                     {"offset", tensor.offset},
                     {"shard", tensor.shard}});
    out["tensors"] = all;
  }
  return out;
}

Status InspectCommand::run() {
  ARGENT_TRY(positionals.settle(model.model, nullptr, nullptr, false));
  ARGENT_TRY(model.check_names());
  ARGENT_LET(const std::string path, find_model(model.model));
  ARGENT_LET(const gguf::File file, gguf::File::open(path));
  if (chat_template) {
    const Value* source = file.find("tokenizer.chat_template");
    if (!source || !source->as_string()) return fail(Code::not_found, "{} has no chat template", path);
    return write_stdout(*source->as_string());
  }
  const Facts facts = gather(file);
  if (!model.json) return write_stdout(text(file, facts));
  return write_stdout(json(file, facts).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace

void add_inspect(CLI::App& root) {
  auto command = std::make_shared<InspectCommand>();
  CLI::App* app = add_command(
      root, "inspect", "show what a model file holds",
      "Reads the file only, whatever its architecture: sizes, formats by bytes, tokenizer, chat template, and what a\n"
      "thousand positions of context cost.\n\n"
      "Examples:\n"
      "  argent inspect model.gguf\n"
      "  argent inspect model.gguf --keys --tensors\n"
      "  argent inspect model.gguf --chat-template > template.jinja\n"
      "  argent inspect model-00002-of-00003.gguf --json",
      [command] { return command->run(); });
  command->positionals.add(*app, false);
  command->model.add(*app, false);
  app->add_flag("--keys", command->keys, "all keys with their values");
  app->add_flag("--tensors", command->tensors, "all tensors");
  app->add_flag("--chat-template", command->chat_template, "the file's chat template alone, byte for byte");
}

}  // namespace argent::cli
