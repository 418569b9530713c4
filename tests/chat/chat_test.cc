// Conversations to prompts: what requests may contain, what formats find out, the built-in forms.
#include "chat/chat.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "chat/render.h"

namespace argent::testing {
namespace {

const std::map<std::string, std::string> kTokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};

ChatFormat format_of(const std::string& source) {
  auto format = ChatFormat::from_source(source, "t", kTokens);
  EXPECT_TRUE(format) << format.error().message;
  return *std::move(format);
}

std::string prompt(const ChatFormat& format, const char* messages, const char* tools = "null", bool generate = true) {
  ChatRequest request;
  request.messages = Json::parse(messages);
  request.tools = Json::parse(tools);
  request.add_generation_prompt = generate;
  auto rendered = format.render(request);
  return rendered ? rendered->text : "error: " + rendered.error().message;
}

std::string builtin(const char* name, const char* messages, const char* tools = "null") {
  auto format = ChatFormat::builtin(name, kTokens);
  EXPECT_TRUE(format) << format.error().message;
  return prompt(*format, messages, tools);
}

std::string normal(const char* messages, const MessageForm& form = {}) {
  auto out = normalize_messages(Json::parse(messages), form);
  return out ? out->dump() : "error: " + out.error().message;
}

// --- messages

TEST(Messages, Content) {
  EXPECT_EQ(normal(R"([{"role":"user","content":"a"}])"), R"([{"role":"user","content":"a"}])");
  EXPECT_EQ(normal(R"([{"role":"user","content":null},{"role":"user"}])"),
            R"([{"role":"user","content":""},{"role":"user","content":""}])");
  EXPECT_EQ(normal(R"([{"role":"user","content":[{"type":"text","text":"a"},"b"]}])"),
            R"([{"role":"user","content":"a\nb"}])");
  EXPECT_EQ(normal(R"([{"role":"user","content":[]}])"), R"([{"role":"user","content":""}])");
  MessageForm typed;
  typed.typed_content = true;
  EXPECT_EQ(normal(R"([{"role":"user","content":"a"}])", typed),
            R"([{"role":"user","content":[{"type":"text","text":"a"}]}])");
  EXPECT_EQ(normal(R"([{"role":"user","name":"n","content":"a","extra":{"k":[1]}}])"),
            R"([{"role":"user","name":"n","content":"a","extra":{"k":[1]}}])");
}

TEST(Messages, MalformedOnesAreNamed) {
  EXPECT_EQ(normal("{}"), "error: messages: expected an array, got object");
  EXPECT_EQ(normal("[1]"), "error: messages[0]: expected an object, got number");
  EXPECT_EQ(normal("[{}]"), "error: messages[0]: the message has no role");
  EXPECT_EQ(normal(R"([{"role":"user"},{"role":7}])"), "error: messages[1].role: expected a string, got number");
  EXPECT_EQ(normal(R"([{"role":"user","content":{"a":1}}])"),
            "error: messages[0].content: expected a string, null or an array of text parts, got object");
  EXPECT_EQ(normal(R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url"}]}])"),
            "error: messages[0].content[1]: parts of type 'image_url' are not supported, only 'text'");
  EXPECT_EQ(normal(R"([{"role":"user","content":[{"type":"text"}]}])"),
            "error: messages[0].content[0]: the part has no text");
  EXPECT_EQ(normal(R"([{"role":"user","content":[{"text":"a"}]}])"),
            "error: messages[0].content[0]: the part has no type");
  EXPECT_EQ(normal(R"([{"role":"assistant","tool_calls":{}}])"),
            "error: messages[0].tool_calls: expected an array, got object");
  EXPECT_EQ(normal(R"([{"role":"assistant","tool_calls":[{"function":{}}]}])"),
            "error: messages[0].tool_calls[0].function: the function has no name");
}

TEST(Messages, Arguments) {
  auto with = [](const std::string& arguments, bool as_object = true) {
    MessageForm form;
    form.arguments_as_object = as_object;
    Json call = {{"function", {{"name", "f"}}}};
    if (!arguments.empty()) call["function"]["arguments"] = Json::parse(arguments);
    Json messages = Json::array({{{"role", "assistant"}, {"tool_calls", Json::array({call})}}});
    auto out = normalize_messages(messages, form);
    return out ? (*out)[0]["tool_calls"][0]["function"]["arguments"].dump() : "error: " + out.error().message;
  };
  EXPECT_EQ(with(R"("{\"city\":\"Zürich\",\"a\":1}")"), R"({"city":"Zürich","a":1})");  // the order of keys stays
  EXPECT_EQ(with(R"("{")"), R"("{")");                                                  // no JSON: literal text
  EXPECT_EQ(with(R"("[1]")"), R"("[1]")");
  EXPECT_EQ(with(R"("")"), "{}");
  EXPECT_EQ(with("null"), "{}");
  EXPECT_EQ(with(""), "{}");
  EXPECT_EQ(with(R"({"a":{"b":1}})"), R"({"a":{"b":1}})");
  EXPECT_EQ(with(R"({"a":1})", false), R"("{\"a\":1}")");
  EXPECT_EQ(with(R"("{\"a\": 1}")", false), R"("{\"a\": 1}")");
  std::string deep = "\"{\\\"a\\\":" + std::string(100000, '[') + "\"";
  EXPECT_EQ(with(deep), deep);
}

TEST(Messages, TooDeep) {
  Json deep = Json::array();
  for (int i = 0; i < 100; ++i) deep = Json::array({std::move(deep)});
  auto out = normalize_messages(Json::array({{{"role", "user"}, {"content", "a"}, {"x", deep}}}));
  ASSERT_FALSE(out);
  EXPECT_EQ(out.error().message, "messages: nested more than 64 deep");
}

// --- formats

constexpr const char* kTurns = R"([{"role":"system","content":"S"},{"role":"user","content":"U"},
                                   {"role":"assistant","content":"A"},{"role":"user","content":"V"}])";
constexpr const char* kTool =
    R"([{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{}}}}])";
constexpr const char* kCall =
    R"([{"role":"user","content":"U"},
        {"role":"assistant","content":null,"tool_calls":[{"id":"i","type":"function","function":{"name":"f","arguments":"{\"k\": \"é\"}"}}]},
        {"role":"tool","tool_call_id":"i","content":"R"}])";

TEST(Builtin, ChatML) {
  EXPECT_EQ(builtin("chatml", kTurns),
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n"
            "<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n");
  std::string tools = builtin("chatml", kCall, kTool);
  EXPECT_NE(tools.find("<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\""), std::string::npos) << tools;
  EXPECT_NE(tools.find("<|im_start|>assistant\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"k\": "
                       "\"é\"}}\n</tool_call><|im_end|>\n"
                       "<|im_start|>user\n<tool_response>\nR\n</tool_response><|im_end|>\n<|im_start|>assistant\n"),
            std::string::npos)
      << tools;
}

TEST(Builtin, Llama3) {
  EXPECT_EQ(builtin("llama3", kTurns),
            "<s><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nU<"
            "|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nV<"
            "|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_NE(builtin("llama3", kCall, kTool)
                .find("{\"name\": \"f\", \"parameters\": {\"k\": \"é\"}}<|eot_id|>"
                      "<|start_header_id|>ipython<|end_header_id|>\n\nR<|eot_id|>"),
            std::string::npos);
}

TEST(Builtin, Gemma) {
  EXPECT_EQ(builtin("gemma", kTurns),
            "<s><start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n<start_of_turn>user\nV<"
            "end_of_turn>\n"
            "<start_of_turn>model\n");
  EXPECT_NE(builtin("gemma", R"([{"role":"user","content":"a"},{"role":"user","content":"b"}])")
                .find("Conversation roles must alternate"),
            std::string::npos);
}

TEST(Builtin, Mistral) {
  EXPECT_EQ(builtin("mistral", kTurns), "<s>[INST] U[/INST] A</s>[INST] S\n\nV[/INST]");
  EXPECT_EQ(builtin("mistral", kCall, kTool),
            "<s>[AVAILABLE_TOOLS] [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"d\", "
            "\"parameters\": "
            "{\"type\": \"object\", \"properties\": {}}}}][/AVAILABLE_TOOLS][INST] U[/INST]"
            "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"k\": \"é\"}, \"id\": \"i\"}]</s>"
            "[TOOL_RESULTS] {\"content\": \"R\", \"call_id\": \"i\"}[/TOOL_RESULTS]");
}

TEST(Builtin, Names) {
  auto none = ChatFormat::builtin("vicuna", {});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::not_found);
  EXPECT_EQ(none.error().message, "no built-in chat template 'vicuna'; there are chatml, llama3, gemma, mistral");
  auto detect = [](std::initializer_list<std::string_view> tokens, std::string_view architecture = "x") {
    auto has = [&](std::string_view t) { return std::find(tokens.begin(), tokens.end(), t) != tokens.end(); };
    return ChatFormat::detect_builtin(has, architecture).value_or("none");
  };
  EXPECT_EQ(detect({"<|im_start|>", "<|im_end|>"}), "chatml");
  EXPECT_EQ(detect({"<|im_start|>"}), "none");
  EXPECT_EQ(detect({"<|start_header_id|>", "<|eot_id|>"}), "llama3");
  EXPECT_EQ(detect({"<start_of_turn>", "<end_of_turn>"}, "gemma3"), "gemma");
  EXPECT_EQ(detect({"<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>"}, "gemma3"), "gemma");
  EXPECT_EQ(detect({"[INST]", "[/INST]"}), "mistral");
  EXPECT_EQ(detect({}), "none");
}

TEST(ChatFormat, CapabilitiesOfTheBuiltins) {
  struct Row {
    const char* name;
    bool tools, calls, results, alternation, prompt;
  };
  for (const Row& row :
       {Row{"chatml", true, true, true, false, true}, Row{"llama3", true, true, true, false, true},
        Row{"gemma", false, false, false, true, true}, Row{"mistral", true, true, true, true, false}}) {
    auto format = ChatFormat::builtin(row.name, kTokens);
    ASSERT_TRUE(format) << format.error().message;
    const ChatCapabilities& c = format->capabilities();
    EXPECT_TRUE(c.system_role) << row.name;
    EXPECT_EQ(c.tools, row.tools) << row.name;
    EXPECT_EQ(c.tool_calls, row.calls) << row.name;
    EXPECT_EQ(c.tool_results, row.results) << row.name;
    EXPECT_EQ(c.needs_alternation, row.alternation) << row.name;
    EXPECT_EQ(c.generation_prompt, row.prompt) << row.name;
    EXPECT_FALSE(c.form.typed_content) << row.name;
  }
}

TEST(ChatFormat, FindsTheFormOfContent) {
  ChatFormat typed = format_of(
      "{% for m in messages %}{{ m.role }}:{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% "
      "endfor %};{% endfor %}");
  EXPECT_TRUE(typed.capabilities().form.typed_content);
  EXPECT_EQ(prompt(typed, R"([{"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"b"}]}])"),
            "user:a;user:b;");
  ChatFormat plain = format_of("{% for m in messages %}{{ m['content'] + '.' }}{% endfor %}");
  EXPECT_FALSE(plain.capabilities().form.typed_content);
  EXPECT_EQ(prompt(plain, R"([{"role":"user","content":[{"type":"text","text":"b"},{"type":"text","text":"c"}]}])"),
            "b\nc.");
}

TEST(ChatFormat, FindsTheFormOfArguments) {
  constexpr const char* kHead =
      "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function.name }}(";
  constexpr const char* kTail = "){% endfor %}{% endfor %}";
  ChatFormat object = format_of(std::string(kHead) + "{{ c.function.arguments | tojson }}" + kTail);
  EXPECT_TRUE(object.capabilities().form.arguments_as_object);
  EXPECT_EQ(prompt(object, kCall), "Uf({\"k\": \"é\"})R");
  ChatFormat string = format_of(std::string(kHead) + "{{ '<' + c.function.arguments + '>' }}" + kTail);
  EXPECT_FALSE(string.capabilities().form.arguments_as_object);
  EXPECT_EQ(prompt(string, kCall), "Uf(<{\"k\": \"é\"}>)R");
  ChatFormat printed = format_of(std::string(kHead) + "{{ c.function.arguments }}" + kTail);
  EXPECT_FALSE(printed.capabilities().form.arguments_as_object);
  ChatFormat items = format_of(std::string(kHead) +
                               "{% for k, v in c.function.arguments | items %}{{ k }}={{ v }}{% endfor %}" + kTail);
  EXPECT_TRUE(items.capabilities().form.arguments_as_object);
  EXPECT_EQ(prompt(items, kCall), "Uf(k=é)R");
  // Malformed history: the template's own error or literal text, never a crash.
  constexpr const char* kBroken =
      R"([{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":"{"}}]}])";
  EXPECT_EQ(prompt(object, kBroken), "f(\"{\")");
  EXPECT_NE(prompt(items, kBroken).find("error: t:1:"), std::string::npos);
}

TEST(ChatFormat, KeepsNullContentForTemplatesThatAskForIt) {
  ChatFormat asks = format_of(
      "{% for m in messages %}{% if m.content is none %}[{{ m.tool_calls[0].function.name }}]{% else %}{{ m.content "
      "}}{% endif %}{% endfor %}");
  EXPECT_TRUE(asks.capabilities().form.null_content);
  EXPECT_EQ(prompt(asks, kCall), "U[f]R");
  ChatFormat adds = format_of(
      "{% for m in messages %}{{ m.role + m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor "
      "%}{% endfor %}");
  EXPECT_FALSE(adds.capabilities().form.null_content);
  EXPECT_EQ(prompt(adds, kCall), "userUassistantftoolR");
}

TEST(ChatFormat, TheTemplatesOwnErrors) {
  ChatFormat strict = format_of(
      "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
      "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must "
      "alternate') }}"
      "{% endif %}{{ m.content }}{% endfor %}");
  EXPECT_FALSE(strict.capabilities().system_role);
  EXPECT_TRUE(strict.capabilities().needs_alternation);
  ChatRequest request;
  for (const auto& [messages, words] : std::map<const char*, const char*>{
           {R"([{"role":"system","content":"a"}])", "System role not supported"},
           {R"([{"role":"user","content":"a"},{"role":"user","content":"b"}])", "Roles must alternate"},
           {R"([{"role":"assistant","content":"a"}])", "Roles must alternate"},
           {"[]", "has no element 0"}}) {
    request.messages = Json::parse(messages);
    auto rendered = strict.render(request);
    ASSERT_FALSE(rendered) << messages;
    EXPECT_EQ(rendered.error().code, Code::invalid);
    EXPECT_EQ(rendered.error().message.find('\n'), std::string::npos);
    EXPECT_NE(rendered.error().message.find(words), std::string::npos) << rendered.error().message;
  }
}

TEST(ChatFormat, Variables) {
  ChatFormat format = format_of(
      "{{ bos_token }}{{ messages[0].content }}{{ tools is none }}{{ mood | default('-') }}{{ '</s>' if eos_token == "
      "'</s>' }}");
  ChatRequest request;
  request.messages = Json::parse(R"([{"role":"user","content":"<s>"}])");
  request.variables = {{"mood", "<s>"}};
  auto rendered = format.render(request);
  ASSERT_TRUE(rendered) << rendered.error().message;
  EXPECT_EQ(rendered->text, "<s><s>True<s></s>");
  EXPECT_EQ(rendered->spans,
            (std::vector<Span>{{0, 3, true}, {3, 6, false}, {6, 10, true}, {10, 13, false}, {13, 17, true}}));
  for (const char* name : {"messages", "tools", "add_generation_prompt", "bos_token"}) {
    request.variables = {{name, 1}};
    auto taken = format.render(request);
    ASSERT_FALSE(taken);
    EXPECT_EQ(taken.error().message, fmt::format("the template variable '{}' is set by the engine", name));
  }
  request.variables = Json::array();
  EXPECT_FALSE(format.render(request));
  request.variables = Json();
  EXPECT_TRUE(format.render(request));
  request.tools = "x";
  EXPECT_FALSE(format.render(request));
}

TEST(ChatFormat, LoadErrors) {
  auto syntax = ChatFormat::from_source("{% if %}", "model.gguf", {});
  ASSERT_FALSE(syntax);
  EXPECT_EQ(syntax.error().message, "model.gguf:1:7: expected an expression, got '%}'");
  auto never = ChatFormat::from_source("{{ raise_exception('no') }}", "t", {});
  ASSERT_FALSE(never);
  EXPECT_EQ(never.error().message, "the chat template cannot render a user message: t:1:19: no");
}

TEST(ChatFormat, WhatALoneUserMessageCannotShow) {
  ChatRequest sample;
  sample.messages = {{{"role", "user"}, {"content", "x"}}, {{"role", "assistant"}, {"content", "y"}}};
  sample.variables = {{"bos_token", "<s>"}};
  const std::string needs_variable = "{{ bos_token + messages[0].content }}";
  EXPECT_FALSE(ChatFormat::from_source(needs_variable, "t", {}));
  const auto with_variable = ChatFormat::from_source(needs_variable, "t", {}, {}, sample);
  ASSERT_TRUE(with_variable) << with_variable.error().message;
  EXPECT_EQ(with_variable->render(sample)->text, "<s>x");

  const std::string needs_system = "{{ messages[0].content if messages[0].role == 'system' else raise_exception('no') }}";
  const auto system = ChatFormat::from_source(needs_system, "t", {});
  ASSERT_TRUE(system) << system.error().message;
  EXPECT_TRUE(system->capabilities().system_role);

  const auto second = ChatFormat::from_source("{{ messages[1].content }}", "t", {}, {}, sample);
  ASSERT_TRUE(second) << second.error().message;
  EXPECT_EQ(second->render(sample)->text, "y");
  const auto third = ChatFormat::from_source("{{ messages[2].content }}", "t", {}, {}, sample);
  ASSERT_FALSE(third);
  EXPECT_TRUE(third.error().message.starts_with("t:1:")) << third.error().message;
}

TEST(ChatFormat, Files) {
  std::string path = std::filesystem::temp_directory_path() / fmt::format("argent_chat_test_{}.jinja", ::getpid());
  std::ofstream(path, std::ios::binary) << "\xEF\xBB\xBF{% for m in messages %}\r\n{{ m.content }}\r\n{% endfor %}";
  auto source = load_template_file(path);
  ASSERT_TRUE(source);
  EXPECT_EQ(*source, "{% for m in messages %}\n{{ m.content }}\n{% endfor %}");
  auto format = ChatFormat::from_flag(path, {});
  ASSERT_TRUE(format) << format.error().message;
  // Content keeps its bytes, carriage returns too.
  EXPECT_EQ(prompt(*format, R"([{"role":"user","content":"a\r\nb"}])"), "a\r\nb\n");
  std::filesystem::remove(path);
  auto builtin_form = ChatFormat::from_flag("chatml", {});
  EXPECT_TRUE(builtin_form);
  auto missing = ChatFormat::from_flag("/no/such/file", {});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::not_found);
  EXPECT_NE(missing.error().message.find("or a built-in name: chatml, llama3, gemma, mistral"), std::string::npos);
}

}  // namespace
}  // namespace argent::testing
