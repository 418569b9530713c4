// argent complete: the model goes on with a text; no chat template.
#include "cli/command.h"
#include "cli/generate.h"
#include "cli/profile.h"

namespace argent::cli {
namespace {

struct CompleteOptions {
  ModelOptions model;
  Positionals words;
  SamplingOptions sampling;
  uint32_t n = 128;
  bool from_stdin = false, no_special = false, no_bos = false, ignore_end = false, quiet = false;
  ProfileOptions profile;
};

Status run(CompleteOptions& o) {
  ARGENT_LET(const std::string text, o.words.settle_text(o.model.model, o.from_stdin));
  SampleParams defaults{.temperature = 0.8f};
  defaults.seed = random_seed();
  ARGENT_LET(const SampleParams params, o.sampling.settle(defaults));
  ARGENT_LET(std::unique_ptr<Engine> engine, open_engine(o.model));
  const Tokenizer* tokenizer = engine->tokenizer();
  if (!tokenizer) return fail(Code::unsupported, "{}: the file has no tokenizer; argent logits takes token ids", engine->file().path());
  const std::vector<int32_t> prompt = tokenizer->encode(text, {.add_bos = !o.no_bos, .parse_special = !o.no_special});
  if (prompt.empty()) return fail(Code::invalid, "the text is empty, and this model has no token that begins one");
  Profiler profiler;
  ARGENT_TRY(profiler.start(*engine, o.profile));
  const GenerateOptions options{.max_tokens = o.n, .ignore_end = o.ignore_end};
  const auto sink = [&](std::string_view piece) { return o.model.json ? Status() : write_stdout(piece); };
  ARGENT_LET(const Generation g, generate(*engine, engine->open_sequence(), prompt, params, options, sink));
  if (o.model.json) {
    Json object = {{"text", g.text}};
    add_statistics(object, g);
    if (profiler.on()) object["profile"] = profiler.json();
    ARGENT_TRY(write_stdout(object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"));
  } else if (stdout_is_terminal()) {
    ARGENT_TRY(write_stdout("\n"));
  }
  if (!o.quiet) to_stderr("{}\n", statistics_line(g));
  if (!o.model.json) profiler.print();
  ARGENT_TRY(profiler.finish());
  if (g.stop == Stop::interrupted) return fail(Code::cancelled, "stopped");
  return {};
}

}  // namespace

void add_complete(CLI::App& root) {
  auto o = std::make_shared<CompleteOptions>();
  CLI::App* app = add_command(root, "complete", "go on with a text, without a chat template",
                              "  argent complete \"The capital of France is\" -n 16 --temp 0\n"
                              "  argent complete MODEL --stdin < story.txt\n"
                              "Standard output is the continuation alone.",
                              [o] { return run(*o); });
  o->words.add(*app, true);
  o->model.add(*app, true);
  o->sampling.add(*app);
  app->add_option("-n,--max-tokens", o->n, "most tokens to generate; 0: until the context is full")->capture_default_str();
  app->add_flag("--stdin", o->from_stdin, "take the text from standard input");
  app->add_flag("--no-special", o->no_special, "take the text of control tokens as plain text");
  app->add_flag("--no-bos", o->no_bos, "leave out the token that begins a text");
  app->add_flag("--ignore-end", o->ignore_end, "go on when the model ends its text");
  app->add_flag("-q,--quiet", o->quiet, "no statistics on stderr");
  o->profile.add(*app);
  app->add_option("--activations", o->model.activations, "native or f32")->capture_default_str();
}

}  // namespace argent::cli
