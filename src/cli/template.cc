// argent template: messages to the prompt that the model gets.
#include "engine/chat_format.h"
#include "cli/command.h"
#include "chat/json_input.h"
#include "hub/hub.h"

namespace argent::cli {
namespace {

struct TemplateCommand {
  ModelOptions model;
  Positionals positionals;
  std::string chat_template, messages, tools;
  std::vector<std::string> variables;
  bool no_generation_prompt = false;

  Status run();
};

Result<Json> read_json(const std::string& path, const std::string& flag) {
  ARGENT_LET(const std::string text, path == "-" ? read_stdin() : read_file(path));
  return parse_json(text, flag + " " + path);
}

Status TemplateCommand::run() {
  ARGENT_TRY(positionals.settle(model.model, nullptr, nullptr, false));
  ARGENT_TRY(model.check_names());
  if (messages.empty()) return fail(Code::invalid, "--messages FILE.json is missing");
  ChatRequest request;
  ARGENT_LET(request.messages, read_json(messages, "--messages"));
  if (request.messages.is_object() && request.messages.contains("messages"))
    request.messages = Json(request.messages["messages"]);
  if (!tools.empty()) {
    ARGENT_LET(request.tools, read_json(tools, "--tools"));
  }
  ARGENT_LET(request.variables, parse_variables(variables));
  request.add_generation_prompt = !no_generation_prompt;

  const auto format = [&]() -> Result<ChatFormat> {
    if (!chat_template.empty() && model.model.empty()) return ChatFormat::from_flag(chat_template, {}, {}, request);
    ARGENT_LET(const std::string path, find_model(model.model));
    ARGENT_LET(const gguf::File file, gguf::File::open(path));
    return load_chat_format(file, chat_template, request);
  }();
  if (!format) return format.error();
  ARGENT_LET(const Rendered rendered, format->render(request));
  if (!model.json) return write_stdout(rendered.text);
  Json spans = Json::array();
  for (const Span& span : rendered.spans)
    spans.push_back({{"begin", span.begin}, {"end", span.end}, {"from_template", span.from_template}});
  return write_stdout(
      Json{{"prompt", rendered.text}, {"spans", spans}}.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace

void add_template(CLI::App& root) {
  auto command = std::make_shared<TemplateCommand>();
  CLI::App* app = add_command(
      root, "template", "render messages with a chat template",
      "stdout is the prompt, byte for byte as transformers renders it. The template is the model's own, or the one of\n"
      "--chat-template; with that and without a model no file is read, and variables such as bos_token come from "
      "--var.\n"
      "FILE.json is OpenAI's array: [{\"role\": \"user\", \"content\": \"Hello\"}, ...]; - reads it from stdin.\n\n"
      "Examples:\n"
      "  echo '[{\"role\":\"user\",\"content\":\"Hi\"}]' | argent template --messages -\n"
      "  argent template model.gguf --messages chat.json --tools tools.json\n"
      "  argent template --chat-template my.jinja --messages chat.json --var bos_token='\"<s>\"' --var "
      "enable_thinking=false",
      [command] { return command->run(); });
  command->positionals.add(*app, false);
  command->model.add(*app, false);
  app->add_option("--chat-template", command->chat_template, "a template file, or chatml, llama3, gemma, mistral");
  app->add_option("--messages", command->messages, "JSON file of the messages; - is stdin");
  app->add_option("--tools", command->tools, "JSON file of the tools");
  app->add_flag("--no-generation-prompt", command->no_generation_prompt, "leave the beginning of the answer out");
  app->add_option("--var", command->variables, "a variable of the template: NAME=JSON, repeatable")
      ->allow_extra_args(false);
}

}  // namespace argent::cli
