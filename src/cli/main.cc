#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <iostream>

#include "base/switches.h"
#include "cli/command.h"
#include "cli/suggest.h"

namespace {

// A standard stream that was closed would lend its number to the next file that is opened, and output meant for it
// would end up there: /dev/null takes the place, opened the wrong way round, so that using it stays an error.
void fill_standard_streams() {
  for (int fd = 0; fd <= 2; fd++)
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd) ::_exit(70);
}

// An empty value is most often an unset variable of a script, never a wish for the default. A system message may be
// empty.
void refuse_empty_values(CLI::App& command) {
  for (CLI::Option* option : command.get_options())
    if (!option->get_positional() && option->get_items_expected_min() > 0 && !option->check_lname("system"))
      option->check(
          [](const std::string& value) { return value.empty() ? std::string("the value is empty") : std::string(); });
  for (CLI::App* inner : command.get_subcommands([](CLI::App*) { return true; })) refuse_empty_values(*inner);
}

// Names of llama.cpp's that CLI11 cannot have: it takes a single dash for a single letter.
void spell_out(int argc, char** argv) {
  static char k[] = "--cache-type-k", v[] = "--cache-type-v", layers[] = "--gpu-layers";
  for (int i = 1; i < argc && std::string_view(argv[i]) != "--"; ++i)
    for (const auto& [name, full] : {std::pair<std::string_view, char*>{"-ctk", k}, {"-ctv", v}, {"-ngl", layers}})
      if (argv[i] == name) argv[i] = full;
}

// What reading a mapping does when its file has become shorter or its disk fails. Nothing else can be told from here.
// Several threads may come here at once; one tells.
void on_bus_error(int) {
  static std::atomic_flag told;
  while (told.test_and_set()) ::pause();
  static constexpr char text[] = "argent: a file in use was cut short, or cannot be read\n";
  if (::write(STDERR_FILENO, text, sizeof text - 1) < 0) ::_exit(5);
  ::_exit(5);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace argent;
  fill_standard_streams();
  CLI::App app("Runs language models from GGUF files on this machine.", "argent");
  app.set_version_flag("--version", "argent " ARGENT_VERSION);
  app.require_subcommand(1);
  app.set_help_all_flag("--help-all", "help of all commands");
  std::string switch_help = "Environment:\n";
  for (const SwitchInfo& s : switches()) switch_help += fmt::format("  {:<22} {}\n", s.variable, s.why);
  app.footer(
      "MODEL is a GGUF file, any of its shards, or the name of one in the models folder; left out, the default model.\n"
      "Answers go to stdout, everything else to stderr. Exit codes: 0 done, 2 wrong input or flag, 3 not supported,\n"
      "4 not found, 5 reading or writing failed, 6 does not fit in memory, 70 a fault of argent, 130 stopped.\n\n" +
      switch_help);
  std::signal(SIGBUS, on_bus_error);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of the write too
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error of the write
  cli::watch_interrupt();
  cli::add_ask(app);
  cli::add_chat(app);
  cli::add_complete(app);
  cli::add_bench(app);
  cli::add_perplexity(app);
  cli::add_inspect(app);
  cli::add_check(app);
  cli::add_devices(app);
  cli::add_serve(app);
  cli::add_tokenize(app);
  cli::add_template(app);
  cli::add_logits(app);
  cli::add_graph(app);
  cli::add_gguf(app);
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) refuse_empty_values(*command);
  spell_out(argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::RuntimeError& e) {
    return e.get_exit_code();
  } catch (const CLI::Success& e) {  // --help, --version
    app.exit(e);
    std::cout.flush();
    return std::cout ? 0 : exit_code(Code::io);
  } catch (const CLI::ParseError& e) {
    const CLI::App* command = &app;  // the innermost that was named
    std::string name;
    while (!command->get_subcommands().empty())
      command = command->get_subcommands()[0], name += command->get_name() + " ";
    std::string meant;
    if (const auto left = command->remaining(); !left.empty()) meant = cli::closest_name(*command, left[0]);
    cli::to_stderr("argent: {}{}; see argent {}--help\n", cli::one_line(e.what()),
                   meant.empty() ? "" : fmt::format(" (did you mean {}?)", meant), name);
    return exit_code(Code::invalid);
  } catch (const std::exception& e) {
    cli::to_stderr("argent: {}\n", cli::one_line(e.what()));
    return exit_code(Code::internal);
  }
  return 0;
}
