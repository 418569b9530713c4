// argent tokenize: text to ids.

#include "base/json.h"
#include "cli/command.h"
#include "hub/hub.h"

namespace argent::cli {
namespace {

struct TokenizeOptions {
  ModelOptions model;
  Positionals words;
  bool ids = false, no_special = false, no_bos = false, from_stdin = false;
};

Status run(TokenizeOptions& o) {
  ARGENT_TRY(o.model.check_names());
  ARGENT_LET(const std::string text, o.words.settle_text(o.model.model, o.from_stdin));
  ARGENT_LET(const std::string path, find_model(o.model.model));
  ARGENT_LET(const gguf::File file, gguf::File::open(path));
  ARGENT_LET(const std::shared_ptr<const Tokenizer> tokenizer, Tokenizer::load(file));
  if (!tokenizer) return fail(Code::unsupported, "{}: the file has no tokenizer; it takes token ids only", path);
  const std::vector<int32_t> ids = tokenizer->encode(text, {.add_bos = !o.no_bos, .parse_special = !o.no_special});
  std::string out;
  if (o.model.json) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (int32_t id : ids) rows.push_back({{"id", id}, {"text", tokenizer->text(id)}});
    out = rows.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  } else if (o.ids) {
    for (int32_t id : ids) out += (out.empty() ? "" : " ") + std::to_string(id);
    out += "\n";
  } else {
    for (int32_t id : ids) out += fmt::format("{:>8}  {}\n", id, tokenizer->text(id));
  }
  return write_stdout(out);
}

}  // namespace

void add_tokenize(CLI::App& root) {
  auto o = std::make_shared<TokenizeOptions>();
  CLI::App* app = add_command(root, "tokenize", "show how a model cuts text into tokens",
                              "  argent tokenize \"Hello world\"              ids and texts, a line each\n"
                              "  argent tokenize MODEL \"Hello\" --ids         the ids on one line\n"
                              "  argent tokenize MODEL --stdin < notes.txt   raw bytes from standard input",
                              [o] { return run(*o); });
  o->words.add(*app, true);
  o->model.add(*app, false);
  app->add_flag("--ids", o->ids, "print the ids on one line");
  app->add_flag("--no-special", o->no_special, "take the text of control tokens as plain text");
  app->add_flag("--no-bos", o->no_bos, "leave out the token that begins a text");
  app->add_flag("--stdin", o->from_stdin, "tokenize the bytes of standard input");
}

}  // namespace argent::cli
