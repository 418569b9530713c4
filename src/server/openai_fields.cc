#include <charconv>
#include <cmath>

#include "chat/chat.h"
#include "chat/json_input.h"
#include "server/openai.h"

namespace argent::server::openai {
namespace {

// Whether a tool may be called so: what grammars and all of the models' forms can carry.
bool is_tool_name(std::string_view name) {
  return !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.';
  });
}

std::optional<float> read_float(Fields& fields, std::string_view name, double least, double most) {
  const std::optional<double> value = fields.number(name, least, most);
  return value ? std::optional(float(*value)) : std::nullopt;
}

// path: of the array, for the error.
std::vector<int32_t> ids_of(Fields& fields, std::string_view name, const Json& array, std::string_view path) {
  std::vector<int32_t> ids;
  for (const Json& each : array) {
    if (!each.is_number_integer() || each < 0 || each > INT32_MAX) {
      fields.fail_at(name, fmt::format("{}[{}] wants a token id", path, ids.size()));
      return {};
    }
    ids.push_back(each.get<int32_t>());
  }
  return ids;
}

void read_bias(Fields& fields, GenerationRequest& generation) {
  const Json* biases = fields.object("logit_bias");
  if (!biases) return;
  for (const auto& [id, value] : biases->items()) {
    int32_t token = -1;
    const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), token);
    if (error != std::errc() || end != id.data() + id.size() || token < 0)
      return fields.fail_at("logit_bias",
                            fmt::format("logit_bias has the key '{}', wants token ids", id.substr(0, 40)));
    if (!value.is_number() || !(std::fabs(value.get<double>()) <= 100))
      return fields.fail_at("logit_bias", fmt::format("logit_bias of token {} wants a number from -100 to 100", token));
    generation.bias.push_back({token, value.get<float>()});
  }
}

void constrain(Fields& fields, std::string_view name, Constraint constraint, Parsed& parsed) {
  if (const std::string& other = parsed.call.constraint.field; !other.empty())
    return fields.fail_at(name, fmt::format("{} and {} both constrain the answer", other, name));
  constraint.field = name;
  parsed.call.constraint = std::move(constraint);
}

// A schema as an object, or as its text; true and false are schemas too.
void read_schema(Fields& fields, std::string_view name, Parsed& parsed) {
  const Json* schema = fields.find(name);
  if (!schema) return;
  if (!schema->is_object() && !schema->is_string())
    return fields.fail_at(name, fmt::format("{} wants a JSON schema", name));
  std::string text = schema->is_string() ? schema->get<std::string>() : to_text(*schema);
  constrain(fields, name, {Constraint::Kind::json_schema, std::move(text), {}}, parsed);
}

void read_pattern(Fields& fields, std::string_view name, Constraint::Kind kind, Parsed& parsed) {
  if (std::optional<std::string> text = fields.text(name))
    constrain(fields, name, {kind, std::move(*text), {}}, parsed);
}

// `inner` has the field `name`, which is `path` of the body.
void read_choice(Fields& fields, Fields& inner, std::string_view name, std::string_view path, Parsed& parsed) {
  const Json* choices = inner.array(name);
  if (!choices) return;
  if (choices->empty()) return inner.fail_at(name, fmt::format("{} is empty", path));
  if (auto texts = inner.texts(name, 4096))
    constrain(fields, path, {Constraint::Kind::choice, {}, std::move(*texts)}, parsed);
}

// What vLLM has in place of the guided_* fields.
void read_structured_outputs(Fields& fields, const Json& outputs, Parsed& parsed) {
  Fields inner(outputs, "structured_outputs.");
  const Json* schema = inner.find("json");
  if (schema && !schema->is_object() && !schema->is_string())
    inner.fail_at("json", "structured_outputs.json wants a JSON schema");
  const auto regex = inner.text("regex"), grammar = inner.text("grammar");
  const bool any_object = inner.flag("json_object").value_or(false);
  using Kind = Constraint::Kind;
  const auto add = [&](const char* path, Constraint c) { constrain(fields, path, std::move(c), parsed); };
  if (schema)
    add("structured_outputs.json",
        {Kind::json_schema, schema->is_string() ? schema->get<std::string>() : to_text(*schema), {}});
  if (regex) add("structured_outputs.regex", {Kind::regex, *regex, {}});
  if (grammar) add("structured_outputs.grammar", {Kind::gbnf, *grammar, {}});
  if (any_object) add("structured_outputs.json_object", {Kind::json_object, {}, {}});
  read_choice(fields, inner, "choice", "structured_outputs.choice", parsed);
  absorb(fields, inner);
}

// {"type": "function", "function": {"name"}} at `path`, or flat: its name, which is that of a tool.
std::string read_tool_reference(Fields& fields, const Json& json, const std::string& path, bool flat,
                                const Call& call) {
  Fields named(json, path + ".");
  named.word("type", {"function"});
  std::optional<std::string> name;
  if (flat) {
    name = named.text("name");
  } else if (const Json* function = named.object("function")) {
    Fields inner(*function, path + ".function.");
    name = inner.text("name");
    absorb(fields, inner);
  }
  if (!name) named.fail_at(flat ? "name" : "function.name", path + " wants the name of a tool");
  absorb(fields, named);
  for (const Json& tool : call.tools)
    if (name && tool["function"]["name"] == *name) return *name;
  fields.fail_at(path, fmt::format("{} is '{}', which is none of the tools", path, name.value_or("").substr(0, 60)));
  return "";
}

// Some of the tools: {"type": "allowed_tools", "allowed_tools": {"mode", "tools"}}, or flat.
void read_allowed_tools(Fields& fields, const Json& choice, bool flat, Call& call) {
  const std::string path = flat ? "tool_choice" : "tool_choice.allowed_tools";
  const auto read = [&](Fields& f) {
    if (f.word("mode", {"auto", "required"}) == "required") call.tool_choice = Call::ToolChoice::required;
    const Json* tools = f.array("tools");
    if (!tools || tools->empty()) return f.fail_at("tools", path + ".tools wants at least one of the tools");
    for (size_t i = 0; i < tools->size(); ++i)
      call.callable.insert(read_tool_reference(fields, (*tools)[i], fmt::format("{}.tools[{}]", path, i), flat, call));
  };
  Fields outer(choice, "tool_choice.");
  outer.text("type");
  if (flat) {
    read(outer);
  } else if (const Json* object = outer.object("allowed_tools")) {
    Fields inner(*object, path + ".");
    read(inner);
    absorb(fields, inner);
  } else {
    outer.fail_at("allowed_tools", path + " is missing");
  }
  absorb(fields, outer);
}

void read_tool_choice(Fields& fields, bool flat, Call& call) {
  const Json* choice = fields.find("tool_choice");
  if (!choice) return;
  using Choice = Call::ToolChoice;
  if (choice->is_object()) {
    if (choice->value("type", Json()) == "allowed_tools") return read_allowed_tools(fields, *choice, flat, call);
    call.tool_choice = Choice::required;
    call.callable.insert(read_tool_reference(fields, *choice, "tool_choice", flat, call));
    return;
  }
  const std::optional<std::string> word = fields.word("tool_choice", {"auto", "none", "required"});
  if (!word) return;
  call.tool_choice = *word == "none" ? Choice::none : *word == "required" ? Choice::required : Choice::automatic;
  if (call.tool_choice == Choice::required && call.tools.empty())
    fields.fail_at("tool_choice", "tool_choice is required, but there are no tools");
}

}  // namespace

Result<Json> read_body(const server::Request& request) { return parse_json(request.body, "the body", kMaxBodyDepth); }

void absorb(Fields& body, Fields& inner) {
  if (const Status status = inner.finish(); !status) body.fail_at(inner.error_field(), status.error().message);
}

SampleParams Sampling::over(SampleParams p) const {
  if (temperature) p.temperature = *temperature;
  if (top_p) p.top_p = std::max(*top_p, 1e-9f);  // 0: the best token alone
  if (min_p) p.min_p = *min_p;
  if (top_k) p.top_k = *top_k;
  if (repeat_penalty) p.repeat_penalty = *repeat_penalty;
  if (repeat_last_n) p.repeat_last_n = *repeat_last_n;
  if (presence_penalty) p.presence_penalty = *presence_penalty;
  if (frequency_penalty) p.frequency_penalty = *frequency_penalty;
  if (seed) p.seed = *seed;
  return p;
}

Sampling read_sampling(Fields& fields) {
  Sampling s;
  s.temperature = read_float(fields, "temperature", 0, 100);
  if (s.temperature && *s.temperature > 0 && *s.temperature < 1e-4f)
    fields.fail_at("temperature", fmt::format("temperature is {}, wants 0 or 0.0001 to 100", *s.temperature));
  s.top_p = read_float(fields, "top_p", 0, 1);
  s.min_p = read_float(fields, "min_p", 0, 1);
  if (const auto k = fields.whole("top_k", -1, INT32_MAX)) s.top_k = uint32_t(std::max<int64_t>(*k, 0));
  s.repeat_penalty = read_float(fields, "repeat_penalty", 0.01, 100);
  const auto repetition = read_float(fields, "repetition_penalty", 0.01, 100);
  if (repetition && s.repeat_penalty && *repetition != *s.repeat_penalty)
    fields.fail_at("repetition_penalty", "repetition_penalty and repeat_penalty are the same, and differ");
  if (repetition) s.repeat_penalty = repetition;
  if (const auto last = fields.whole("repeat_last_n", -1, UINT32_MAX)) s.repeat_last_n = uint32_t(*last);
  s.presence_penalty = read_float(fields, "presence_penalty", -100, 100);
  s.frequency_penalty = read_float(fields, "frequency_penalty", -100, 100);
  const Json* seed = fields.find("seed");
  if (seed && seed->is_number_unsigned())
    s.seed = seed->get<uint64_t>();
  else if (const auto value = fields.whole("seed", INT64_MIN, INT64_MAX))
    s.seed = uint64_t(*value);
  return s;
}

void read_generation(Fields& fields, GenerationRequest& generation) {
  if (const auto n = fields.whole("n", 1, 128)) generation.n = uint32_t(*n);
  if (const auto least = fields.whole("min_tokens", 0, INT32_MAX)) generation.min_tokens = uint32_t(*least);
  if (generation.max_tokens && generation.min_tokens > generation.max_tokens)
    fields.fail_at("min_tokens", fmt::format("min_tokens is {}, more than the {} tokens at most", generation.min_tokens,
                                             generation.max_tokens));
  if (auto stop = fields.texts("stop", 16)) {
    for (const std::string& text : *stop)
      if (text.empty()) fields.fail_at("stop", "stop has an empty string");
    generation.stop = std::move(*stop);
  }
  if (const Json* ids = fields.array("stop_token_ids"))
    generation.end_ids = ids_of(fields, "stop_token_ids", *ids, "stop_token_ids");
  generation.ignore_end = fields.flag("ignore_eos").value_or(false);
  if (const auto priority = fields.whole("priority", INT32_MIN, INT32_MAX)) generation.priority = int32_t(*priority);
  read_bias(fields, generation);
}

void read_max_tokens(Fields& fields, std::initializer_list<std::string_view> names, GenerationRequest& generation) {
  std::string_view first;
  std::optional<int64_t> most;
  for (std::string_view name : names) {
    const auto value = fields.whole(name, -1, INT32_MAX);
    if (!value) continue;
    if (*value == 0) return fields.fail_at(name, fmt::format("{} is 0, wants 1 or more, or -1 for no bound", name));
    if (most && *most != *value) return fields.fail_at(name, fmt::format("{} and {} differ", first, name));
    first = name, most = value;
  }
  if (most) generation.max_tokens = *most < 0 ? 0 : uint32_t(*most);
}

Streaming read_streaming(Fields& fields) {
  Streaming s;
  s.stream = fields.flag("stream").value_or(false);
  const Json* options = fields.object("stream_options");
  if (!options) return s;
  if (!s.stream) fields.fail_at("stream_options", "stream_options is for streams: stream is not true");
  Fields inner(*options, "stream_options.");
  s.include_usage = inner.flag("include_usage").value_or(false);
  inner.ignore({"include_obfuscation"});
  absorb(fields, inner);
  return s;
}

void read_format(Fields& fields, const Json& format, const std::string& path, bool flat, Parsed& parsed) {
  Fields f(format, path + ".");
  const auto type = f.word("type", {"text", "json_object", "json_schema"});
  if (!type) f.fail_at("type", path + ".type is missing");
  const auto read_named = [](Fields& in) {
    in.text("name");
    in.text("description");
    in.flag("strict");  // always: an answer keeps to its schema
    return in.object("schema");
  };
  const Json* schema = nullptr;
  if (type == "json_schema") {
    if (flat) {
      schema = read_named(f);
    } else if (const Json* named = f.object("json_schema")) {
      Fields inner(*named, path + ".json_schema.");
      schema = read_named(inner);
      absorb(fields, inner);
    }
    if (!schema) {
      const std::string_view field = flat ? "schema" : "json_schema.schema";
      f.fail_at(field, fmt::format("{}.{} is missing", path, field));
    }
  } else if (type == "json_object" && !flat) {
    schema = f.object("schema");  // as llama-server has it
  }
  absorb(fields, f);
  if (schema)
    constrain(fields, path, {Constraint::Kind::json_schema, to_text(*schema), {}}, parsed);
  else if (type == "json_object")
    constrain(fields, path, {Constraint::Kind::json_object, {}, {}}, parsed);
}

void read_constraint(Fields& fields, Parsed& parsed) {
  if (const Json* format = fields.object("response_format"))
    read_format(fields, *format, "response_format", false, parsed);
  read_schema(fields, "json_schema", parsed);
  read_schema(fields, "guided_json", parsed);
  read_pattern(fields, "guided_regex", Constraint::Kind::regex, parsed);
  read_pattern(fields, "guided_grammar", Constraint::Kind::gbnf, parsed);
  read_pattern(fields, "grammar", Constraint::Kind::gbnf, parsed);
  read_choice(fields, fields, "guided_choice", "guided_choice", parsed);
  if (const Json* outputs = fields.object("structured_outputs")) read_structured_outputs(fields, *outputs, parsed);
}

void read_tools(Fields& fields, bool flat, Call& call) {
  const Json* tools = fields.array("tools");
  if (tools && !tools->empty()) {
    call.tools = Json::array();
    for (size_t i = 0; i < tools->size(); ++i) {
      const std::string path = fmt::format("tools[{}].", i);
      Fields tool((*tools)[i], path);
      const auto type = tool.text("type");
      if (!type) tool.fail_at("type", path + "type is missing");
      if (type == "custom")  // a text in a grammar
        tool.fail_at("type", path + "type is 'custom', wants function; texts that keep to a grammar are asked for by " +
                                 "guided_regex, or by grammar in GBNF's syntax (lark is not read)");
      else if (type && *type != "function")
        tool.fail_at("type", fmt::format("{}type is '{}', wants function", path, type->substr(0, 40)));
      Json function = Json::object();
      const auto read_function = [&](Fields& in, const std::string& at) {
        const std::optional<std::string> name = in.text("name");
        if (!name) return in.fail_at("name", at + "name is missing");
        if (!is_tool_name(*name))
          return in.fail_at("name", fmt::format("{}name is '{}', wants letters, digits, '_', '-' and '.', at most 128",
                                                at, name->substr(0, 40)));
        function["name"] = *name;
        function["description"] = in.text("description").value_or("");  // templates take it for granted
        const Json* parameters = in.object("parameters");
        function["parameters"] = parameters ? *parameters : Json{{"type", "object"}, {"properties", Json::object()}};
        const auto strict = in.flag("strict");
        if (strict.value_or(false)) call.strict_tools.insert(*name);
        if (strict && !flat) function["strict"] = *strict;  // templates show it
      };
      if (flat) {
        read_function(tool, path);
      } else if (const Json* inner = tool.object("function")) {
        Fields f(*inner, path + "function.");
        read_function(f, path + "function.");
        absorb(fields, f);
      } else {
        tool.fail_at("function", path + "function is missing");
      }
      absorb(fields, tool);
      if (!fields.status()) return;
      call.tools.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
  }
  read_tool_choice(fields, flat, call);
  call.parallel_tool_calls = fields.flag("parallel_tool_calls").value_or(true);
}

void check_forced_call(Fields& fields, const Parsed& parsed) {
  const Call::ToolChoice choice = parsed.call.tool_choice;
  const std::string& field = parsed.call.constraint.field;
  if (field.empty()) return;
  if (choice != Call::ToolChoice::required) return;
  fields.fail_at(field, fmt::format("{} constrains an answer that tool_choice wants to be a call", field));
}

void read_effort(Fields& fields, std::string_view name, Call& call) {
  const auto effort = fields.word(name, {"none", "minimal", "low", "medium", "high", "xhigh"});
  if (!effort) return;
  call.think = *effort != "none" && *effort != "minimal";
  if (*effort == "low") call.think_budget = 512;
  if (*effort == "medium") call.think_budget = 2048;
  if (!call.variables.contains("reasoning_effort")) call.variables["reasoning_effort"] = *effort;
}

void read_messages(Fields& fields, Call& call) {
  const Json* messages = fields.array("messages");
  if (!messages) return fields.fail_at("messages", "messages is missing");
  if (messages->empty()) return fields.fail_at("messages", "messages is empty");
  if (const auto normal = normalize_messages(*messages); !normal)
    return fields.fail_at(field_of(normal.error(), {{"messages", 0}}), normal.error().message);
  call.messages = *messages;
  for (size_t i = 0; i < messages->size(); ++i) {
    Json& message = (*call.messages)[i];
    const std::string path = fmt::format("messages[{}].", i);
    const std::string role = message["role"].get<std::string>();
    if (role == "developer") {
      message["role"] = "system";
    } else if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
      return fields.fail_at(path + "role",
                            fmt::format("{}role is '{}', wants one of system, developer, user, assistant, tool", path,
                                        role.substr(0, 40)));
    }
    for (const char* name : {"audio", "function_call"})
      if (message.contains(name) && !message[name].is_null())
        return fields.fail_at(path + name, fmt::format("{}{} is not supported", path, name));
  }
}

std::vector<Prompt> read_prompts(Fields& fields, std::string_view name, size_t most) {
  const Json* given = fields.find(name);
  std::vector<Prompt> prompts;
  const auto wrong = [&](std::string message) {
    fields.fail_at(name, fmt::format("{}{}", name, message));
    return std::vector<Prompt>();
  };
  if (!given) return wrong(" is missing");
  if (given->is_string()) return {{given->get<std::string>(), {}}};
  if (!given->is_array()) return wrong(" wants a string, token ids, or an array of either");
  if (given->empty()) return wrong(" is empty");
  if ((*given)[0].is_number()) return {{{}, ids_of(fields, name, *given, name)}};
  if (given->size() > most) return wrong(fmt::format(" has {} entries, at most {} are taken", given->size(), most));
  for (const Json& each : *given) {
    const std::string path = fmt::format("{}[{}]", name, prompts.size());
    if (each.is_string())
      prompts.push_back({each.get<std::string>(), {}});
    else if (each.is_array() && !each.empty())
      prompts.push_back({{}, ids_of(fields, name, each, path)});
    else
      return wrong(fmt::format("[{}] wants a string or token ids", prompts.size()));
  }
  return prompts;
}

std::optional<Refusal> prepare(ModelHost& host, Parsed& parsed, std::shared_ptr<LoadedModel>& model) {
  auto loaded = host.get(parsed.call.model);
  if (!loaded) return Refusal{loaded.error(), loaded.error().code == Code::not_found ? "model" : ""};
  model = *loaded;
  parsed.call.model = model->name;
  parsed.call.generation.sampling = parsed.sampling.over(model->sampling());
  return std::nullopt;
}

}  // namespace argent::server::openai
