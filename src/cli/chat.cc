// argent chat: a conversation. At a terminal with an editor and a history, else a line a message, for scripts.
#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/switches.h"
#include "cli/command.h"
#include "cli/conversation.h"
#include "chat/json_input.h"
#include "cli/line_editor.h"
#include "gguf/output_file.h"
#include "sample/params.h"

namespace argent::cli {
namespace {

constexpr std::string_view kHelp =
    "  /system TEXT       instructions for the model; without TEXT they are taken away\n"
    "  /clear             begin anew; the instructions stay\n"
    "  /undo              take the last message and its answer back\n"
    "  /regenerate        another answer to the last message\n"
    "  /edit [N] [TEXT]   change your N-th message (the last) and go on from there\n"
    "  /history           the messages so far, numbered\n"
    "  /save FILE         write the conversation as JSON; /save! replaces a file\n"
    "  /load FILE         go on with a saved conversation\n"
    "  /set NAME VALUE    temperature, top_k, top_p, min_p, repeat_penalty, repeat_last_n, seed, max_tokens\n"
    "  /set               their values\n"
    "  /stats             tokens and times so far\n"
    "  /quit              leave, as Ctrl-D does\n"
    "A \\ at the end of a line or Alt-Enter goes on in a new line; \"\"\" opens and closes a block of lines; // begins "
    "a\n"
    "message with a slash. Up and down bring earlier messages back. Ctrl-C stops an answer, twice at the prompt "
    "leaves.\n";

std::string history_path() {
  std::string folder = environment("XDG_STATE_HOME");
  if (folder.empty()) {
    const std::string home = environment("HOME");
    if (home.empty()) return "";
    folder = home + "/.local/state";
  }
  return folder + "/argent/chat_history";
}

// The first word of a text, and what follows the space behind it.
std::pair<std::string_view, std::string_view> first_word(std::string_view text) {
  const size_t space = text.find_first_of(" \t\n");
  if (space == std::string_view::npos) return {text, {}};
  const size_t next = text.find_first_not_of(" \t", space);
  return {text.substr(0, space), next == std::string_view::npos ? std::string_view() : text.substr(next)};
}

std::optional<uint32_t> number(std::string_view text) {
  uint32_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  return !text.empty() && error == std::errc() && end == text.data() + text.size() ? std::optional(n) : std::nullopt;
}

struct ChatCommand {
  ModelOptions model;
  Positionals positionals;
  SamplingOptions sampling;
  ChatOptions chat;
  bool no_history = false;

  Status run();
};

class Session {
 public:
  Session(const ChatCommand& command, Conversation conversation, const SampleParams& params, Profiler& profiler)
      : command_(command),
        profiler_(profiler),
        conversation_(std::move(conversation)),
        params_(params),
        max_tokens_(command.chat.max_tokens),
        editor_(command.no_history ? "" : history_path()),
        colour_(stderr_is_terminal() && environment("NO_COLOR").empty() && environment("TERM") != "dumb") {}

  Status run();

 private:
  // An error of a turn or a command is told and the conversation goes on; what comes back ends the program.
  Status turn(std::string text);
  Status answer();
  Status command(std::string_view line);
  Status edit(std::string_view rest);
  Status save(const std::string& path, bool force);
  Status load(const std::string& path);
  Status set(std::string_view rest);
  void show_history() const;
  void show_stats() const;
  // Ends the messages before the last of the user's; false: there is none.
  bool take_back();
  std::optional<size_t> last_user() const;
  void tell(std::string_view text) const { to_stderr("{}\n", text); }
  void tell(const Error& error) {
    to_stderr("argent: {}\n", one_line(error.message));
    failed_ = failed_ ? failed_ : std::optional(error.code);
  }

  const ChatCommand& command_;
  Profiler& profiler_;
  Conversation conversation_;
  SampleParams params_;
  uint32_t max_tokens_;
  LineEditor editor_;
  const bool colour_;
  bool leaves_ = false;
  std::optional<Code> failed_;  // the first error of a script becomes its exit code
  uint64_t n_answers_ = 0, n_prompt_ = 0, n_reused_ = 0, n_answered_ = 0;
  double prompt_seconds_ = 0, decode_seconds_ = 0;
  uint64_t n_decode_ = 0;
};

Status Session::run() {
  Engine& engine = conversation_.engine();
  if (editor_.interactive())
    tell(fmt::format("{}, {} positions of context, {}. /help lists the commands, Ctrl-D leaves.",
                     engine.model().name.empty() ? engine.file().path() : terminal_text(engine.model().name),
                     engine.n_ctx(), engine.backend().caps().description));
  bool warned = false;
  while (!leaves_) {
    if (editor_.interactive() && !warned) clear_interrupt();  // one that came too late for an answer
    ARGENT_LET(const LineEditor::Line line, editor_.read("> "));
    if (line.end == LineEditor::End::eof) break;
    if (line.end == LineEditor::End::interrupt) {
      if (!editor_.interactive()) return Error{Code::cancelled, ""};
      if (warned && line.text.empty()) break;
      warned = line.text.empty();
      clear_interrupt();
      if (warned) tell("Ctrl-C again or Ctrl-D leaves.");
      continue;
    }
    warned = false;
    if (line.text.find_first_not_of(" \t\n") == std::string::npos) continue;
    editor_.remember(line.text);
    clear_interrupt();
    if (line.text[0] == '/' && !line.text.starts_with("//")) {
      ARGENT_TRY(command(line.text));
    } else {
      ARGENT_TRY(turn(line.text[0] == '/' ? line.text.substr(1) : line.text));
    }
  }
  if (failed_ && !editor_.interactive()) return Error{*failed_, ""};
  return {};
}

Status Session::turn(std::string text) {
  const size_t before = conversation_.n_messages();
  conversation_.add_user(std::move(text));
  ARGENT_TRY(answer());
  if (conversation_.n_messages() == before + 1) conversation_.keep(before);  // no answer: as if it had not been said
  return {};
}

Status Session::answer() {
  const bool json = command_.model.json, terminal = stdout_is_terminal();
  Status written;
  const auto sink = [&](std::string_view piece) {
    if (json) return Status();
    return written = write_stdout(terminal ? terminal_text(piece) : std::string(piece));
  };
  const Result<Generation> result = conversation_.answer(params_, max_tokens_, sink);
  clear_interrupt();
  if (!written) return written;
  if (!result) {
    Error error = result.error();
    if (const auto n = conversation_.n_tokens(); n && *n >= conversation_.engine().n_ctx())
      error.message += "; /undo or /clear makes room, --ctx N gives more";
    tell(error);
    return {};
  }
  const Generation& g = *result;
  ++n_answers_;
  n_prompt_ += g.n_prompt, n_reused_ += g.n_reused, n_answered_ += g.tokens.size(), n_decode_ += g.n_decode;
  prompt_seconds_ += g.prompt_seconds, decode_seconds_ += g.decode_seconds;
  if (json) {
    Json object = {{"answer", g.text}};
    add_statistics(object, g);
    if (profiler_.on()) object["profile"] = profiler_.json();
    ARGENT_TRY(write_stdout(object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"));
  } else {
    ARGENT_TRY(write_stdout("\n"));
  }
  if (g.stop == Stop::interrupted) tell("[stopped]");
  if (g.stop == Stop::context)
    tell(
        fmt::format("argent: the context of {} positions is full and the answer cut off; /undo or /clear makes room, "
                    "--ctx N gives more",
                    conversation_.engine().n_ctx()));
  if (!command_.chat.quiet) tell(colour_ ? "\033[2m" + statistics_line(g) + "\033[0m" : statistics_line(g));
  if (!json) profiler_.print();
  profiler_.clear();  // each answer has its own
  return {};
}

std::optional<size_t> Session::last_user() const {
  for (size_t i = conversation_.n_messages(); i-- > 0;)
    if (conversation_.role(i) == "user") return i;
  return std::nullopt;
}

bool Session::take_back() {
  const auto last = last_user();
  if (last) conversation_.keep(*last);
  return last.has_value();
}

Status Session::command(std::string_view line) {
  const auto [name, rest] = first_word(line);
  if (name == "/quit" || name == "/exit") {
    leaves_ = true;
  } else if (name == "/help" || name == "/?") {
    to_stderr("{}", kHelp);
  } else if (name == "/system") {
    if (const Status status = conversation_.set_system(std::string(rest)); !status) tell(status.error());
  } else if (name == "/clear") {
    conversation_.keep(conversation_.n_messages() > 0 && conversation_.role(0) == "system" ? 1 : 0);
  } else if (name == "/undo") {
    if (!take_back()) tell(fail(Code::invalid, "nothing to take back"));
  } else if (name == "/regenerate") {
    const auto last = last_user();
    if (!last) {
      tell(fail(Code::invalid, "nothing has been said"));
      return {};
    }
    const Json before = conversation_.messages();
    conversation_.keep(*last + 1);
    ++params_.sample_index;
    ARGENT_TRY(answer());
    if (conversation_.n_messages() == *last + 1)
      if (const Status status = conversation_.set_messages(before); !status) return status;
  } else if (name == "/edit") {
    return edit(rest);
  } else if (name == "/history") {
    show_history();
  } else if (name == "/save" || name == "/save!") {
    if (const Status status = save(std::string(rest), name == "/save!"); !status) tell(status.error());
  } else if (name == "/load") {
    if (const Status status = load(std::string(rest)); !status) tell(status.error());
  } else if (name == "/set") {
    if (const Status status = set(rest); !status) tell(status.error());
  } else if (name == "/stats") {
    show_stats();
  } else {
    tell(fail(Code::invalid, "{}: no such command; /help lists them, // begins a message with a slash",
              terminal_text(name)));
  }
  return {};
}

Status Session::edit(std::string_view rest) {
  std::vector<size_t> mine;
  for (size_t i = 0; i < conversation_.n_messages(); ++i)
    if (conversation_.role(i) == "user") mine.push_back(i);
  const auto [word, after] = first_word(rest);
  const auto n = number(word);
  if (mine.empty() || (n && (*n == 0 || *n > mine.size()))) {
    tell(fail(Code::invalid, "there are {} messages to edit", mine.size()));
    return {};
  }
  const size_t index = n ? mine[*n - 1] : mine.back();
  std::string text(n ? after : rest);
  if (text.empty()) {
    ARGENT_LET(const LineEditor::Line line, editor_.read("> ", conversation_.text(index)));
    if (line.end != LineEditor::End::line || line.text.empty()) {
      tell("nothing changed");
      return {};
    }
    text = line.text;
    editor_.remember(text);
  }
  const Json before = conversation_.messages();
  conversation_.keep(index);
  conversation_.add_user(std::move(text));
  ARGENT_TRY(answer());
  if (conversation_.n_messages() == index + 1) return conversation_.set_messages(before);
  return {};
}

Status Session::save(const std::string& path, bool force) {
  if (path.empty()) return fail(Code::invalid, "/save FILE: the name of a file is missing");
  std::error_code error;
  if (!force && std::filesystem::exists(path, error))
    return fail(Code::invalid, "{} exists; /save! {} replaces it", path, path);
  const Json object = {{"model", conversation_.engine().file().path()},
                       {"messages", conversation_.messages()},
                       {"sampling",
                        {{"temperature", params_.temperature},
                         {"top_k", params_.top_k},
                         {"top_p", params_.top_p},
                         {"min_p", params_.min_p},
                         {"repeat_penalty", params_.repeat_penalty},
                         {"repeat_last_n", params_.repeat_last_n}}}};
  const std::string text = object.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  ARGENT_LET(gguf::OutputFile file, gguf::OutputFile::create(path));
  ARGENT_TRY(file.write({reinterpret_cast<const uint8_t*>(text.data()), text.size()}));
  ARGENT_TRY(file.close());
  ARGENT_TRY(file.rename());
  tell(fmt::format("{} messages in {}", conversation_.n_messages(), path));
  return {};
}

Status Session::load(const std::string& path) {
  if (path.empty()) return fail(Code::invalid, "/load FILE: the name of a file is missing");
  ARGENT_LET(const std::string text, read_file(path));
  ARGENT_LET(const Json object, parse_json(text, path));
  Json messages = object.is_object() && object.contains("messages") ? Json(object["messages"]) : object;
  if (!messages.is_array())
    return fail(Code::invalid, "{}: wanted an array of messages, or an object that has one as 'messages'", path);
  ARGENT_TRY(conversation_.set_messages(std::move(messages)));
  SampleParams params = params_;
  if (object.is_object() && object.contains("sampling") && object["sampling"].is_object())
    for (const auto& [name, value] : object["sampling"].items()) ARGENT_TRY(sample::set(params, name, value.dump()));
  ARGENT_TRY(sample::check(params));
  params_ = params;
  tell(fmt::format("{} messages from {}", conversation_.n_messages(), path));
  return {};
}

Status Session::set(std::string_view rest) {
  const auto [word, value] = first_word(rest);
  std::string name(word);
  std::replace(name.begin(), name.end(), '-', '_');
  if (name == "temp") name = "temperature";
  if (name.empty()) {
    tell(fmt::format(
        "temperature {}, top_k {}, top_p {}, min_p {}, repeat_penalty {}, repeat_last_n {}, seed {}, max_tokens {}",
        params_.temperature, params_.top_k, params_.top_p, params_.min_p, params_.repeat_penalty, params_.repeat_last_n,
        params_.seed, max_tokens_));
    return {};
  }
  if (name == "max_tokens") {
    const auto n = number(value);
    if (!n)
      return fail(Code::invalid, "max_tokens '{}': wanted a number; 0 is no limit", terminal_text(value.substr(0, 64)));
    max_tokens_ = *n;
    return {};
  }
  SampleParams params = params_;
  ARGENT_TRY(sample::set(params, name, value));
  ARGENT_TRY(sample::check(params));
  if (name == "seed") params.sample_index = 0;
  params_ = params;
  return {};
}

void Session::show_history() const {
  size_t n = 0;
  for (size_t i = 0; i < conversation_.n_messages(); ++i) {
    const std::string_view role = conversation_.role(i);
    to_stderr("{:>4} {}: {}\n", role == "user" ? fmt::format("{}", ++n) : "", terminal_text(role),
               terminal_text(conversation_.text(i)));
  }
}

void Session::show_stats() const {
  const Engine& engine = conversation_.engine();
  const auto used = conversation_.n_tokens();
  to_stderr("{} answers; prompts {} tokens, {} of them reused, {:.2f} s; answers {} tokens, {:.2f} s",
             n_answers_, n_prompt_, n_reused_, prompt_seconds_, n_answered_, decode_seconds_);
  if (decode_seconds_ > 0) to_stderr(", {:.1f} tokens/s", double(n_decode_) / decode_seconds_);
  if (used) to_stderr("; context {} of {}", *used, engine.n_ctx());
  to_stderr("; {} steps, {} plans\n", engine.counters().steps, engine.counters().plans_built);
}

Status ChatCommand::run() {
  ARGENT_TRY(positionals.settle(model.model, nullptr, nullptr, false));
  SampleParams defaults{.temperature = 0.8f};
  defaults.seed = random_seed();
  ARGENT_LET(const SampleParams params, sampling.settle(defaults));
  ARGENT_LET(const std::unique_ptr<Engine> engine, open_engine(model));
  ARGENT_LET(Conversation conversation, Conversation::start(*engine, chat));
  Profiler profiler;
  ARGENT_TRY(profiler.start(*engine, chat.profile));
  watch_interrupt(3);  // a second Ctrl-C in haste does not end the conversation
  Session session(*this, std::move(conversation), params, profiler);
  const Status status = session.run();
  const Status written = profiler.finish();
  return status ? written : status;
}

}  // namespace

void add_chat(CLI::App& root) {
  auto command = std::make_shared<ChatCommand>();
  CLI::App* app = add_command(root, "chat", "talk with a model",
                              "Only what is new is computed in each turn. Where stdin is no terminal each line is a "
                              "message, and stdout has the\n"
                              "answers, each with a line break; with --json, each as one line of JSON.\n\n"
                              "In the conversation:\n" +
                                  std::string(kHelp) +
                                  "\nExamples:\n"
                                  "  argent chat\n"
                                  "  argent chat model.gguf --system \"Answer in one sentence.\" --ctx 4096\n"
                                  "  printf 'Hello\\nAnd again?\\n' | argent chat --temp 0 -q",
                              [command] { return command->run(); });
  command->positionals.add(*app, false);
  command->model.add(*app, true);
  command->chat.add(*app);
  app->add_flag("--no-history", command->no_history, "keep no history of what is typed");
  app->add_option("--activations", command->model.activations, "native (int8, as the kernels) or f32")
      ->capture_default_str();
  command->sampling.add(*app);
}

}  // namespace argent::cli
