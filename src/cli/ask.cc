// argent ask: one question, one answer.
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/command.h"
#include "cli/conversation.h"

namespace argent::cli {
namespace {

struct AskCommand {
  ModelOptions model;
  Positionals positionals;
  SamplingOptions sampling;
  ChatOptions chat;
  std::vector<std::string> files;
  bool from_stdin = false, no_stdin = false;

  Result<std::string> question();
  Status run();
};

// Is somebody piping something in? A terminal and /dev/null are not that.
bool stdin_is_piped() {
  struct stat info {};
  if (::fstat(STDIN_FILENO, &info) != 0) return false;
  return S_ISFIFO(info.st_mode) || S_ISREG(info.st_mode) || S_ISSOCK(info.st_mode);
}

// TEXT, the files and what is piped in, a blank line between them.
Result<std::string> AskCommand::question() {
  std::string text, piped;
  bool has_text = false;
  ARGENT_TRY(positionals.settle(model.model, &text, &has_text, from_stdin));
  std::vector<std::string> parts;
  if (has_text) parts.push_back(text);
  for (const std::string& path : files) {
    ARGENT_LET(std::string content, read_file(path));
    parts.push_back(files.size() > 1 ? path + ":\n" + content : std::move(content));
  }
  if (from_stdin || (!no_stdin && stdin_is_piped())) {
    pollfd waiting{STDIN_FILENO, POLLIN, 0};
    if (!from_stdin && ::poll(&waiting, 1, 2000) == 0)
      to_stderr(
          "argent: waiting for the end of standard input, which is no terminal (--no-stdin leaves it alone)\n");
    ARGENT_LET(piped, read_stdin());
    while (piped.ends_with('\n')) piped.pop_back();
    if (!piped.empty() || from_stdin) parts.push_back(std::move(piped));
  }
  if (parts.empty())
    return fail(Code::invalid, "nothing to ask; argent ask \"TEXT\", -f FILE, or text on standard input");
  return fmt::format("{}", fmt::join(parts, "\n\n"));
}

Status AskCommand::run() {
  ARGENT_LET(std::string text, question());
  SampleParams defaults{.temperature = 0.8f};
  defaults.seed = random_seed();
  ARGENT_LET(const SampleParams params, sampling.settle(defaults));
  ARGENT_LET(const std::unique_ptr<Engine> engine, open_engine(model));
  ARGENT_LET(Conversation conversation, Conversation::start(*engine, chat));
  Profiler profiler;
  ARGENT_TRY(profiler.start(*engine, chat.profile));
  conversation.add_user(std::move(text));
  const bool terminal = stdout_is_terminal();
  const auto sink = [&](std::string_view piece) {
    return model.json ? Status() : write_stdout(terminal ? terminal_text(piece) : std::string(piece));
  };
  ARGENT_LET(const Generation generation, conversation.answer(params, chat.max_tokens, sink));
  if (model.json) {
    Json object = {{"answer", generation.text}, {"model", engine->file().path()}};
    add_statistics(object, generation);
    if (profiler.on()) object["profile"] = profiler.json();
    ARGENT_TRY(write_stdout(object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"));
  } else if (terminal) {
    ARGENT_TRY(write_stdout("\n"));
  }
  if (!chat.quiet) to_stderr("{}\n", statistics_line(generation));
  if (!model.json) profiler.print();
  ARGENT_TRY(profiler.finish());
  if (generation.stop == Stop::context)
    to_stderr("argent: the context of {} positions is full, the answer is cut off; --ctx gives more\n",
              engine->n_ctx());
  if (generation.stop == Stop::interrupted) return fail(Code::cancelled, "stopped");
  return {};
}

}  // namespace

void add_ask(CLI::App& root) {
  auto command = std::make_shared<AskCommand>();
  CLI::App* app =
      add_command(root, "ask", "ask a model one question",
                  "The answer goes to stdout as it comes, statistics to stderr. What is piped in, and the files of -f, "
                  "stand behind TEXT.\n"
                  "A single argument is TEXT, or MODEL with --stdin.\n\n"
                  "Examples:\n"
                  "  argent ask \"Why is the sky blue?\"\n"
                  "  cat notes.txt | argent ask \"Summarise\"\n"
                  "  argent ask model.gguf \"Find the bug\" -f main.c -f util.c --system \"You are terse.\"\n"
                  "  argent ask -m model.gguf \"A name for a cat\" --temp 1.2 --seed 7 -n 16\n"
                  "  argent ask \"Capital of France?\" --temp 0 --json | jq -r .answer",
                  [command] { return command->run(); });
  command->positionals.add(*app, true);
  command->model.add(*app, true);
  command->chat.add(*app);
  app->add_option("-f,--file", command->files, "a file that belongs to the question, repeatable")
      ->allow_extra_args(false);
  app->add_flag("--stdin", command->from_stdin,
                "the question comes from standard input alone: a single argument is MODEL");
  app->add_flag("--no-stdin", command->no_stdin, "leave standard input alone");
  app->add_option("--activations", command->model.activations, "native (int8, as the kernels) or f32")
      ->capture_default_str();
  command->sampling.add(*app);
}

}  // namespace argent::cli
