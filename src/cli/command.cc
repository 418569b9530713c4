#include "cli/command.h"

#include <unistd.h>

#include <atomic>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/mapped_file.h"
#include "base/switches.h"
#include "base/thread_pool.h"
#include "hub/hub.h"
#include "sample/params.h"

namespace argent::cli {
namespace {

std::atomic<int> interrupts = 0, fatal_interrupts = 2;  // the handler may run in any thread
static_assert(std::atomic<int>::is_always_lock_free);

void on_interrupt(int) {
  if (++interrupts >= fatal_interrupts) _exit(130);
}

// The type called `name`, which is all of the flag's value or half of it.
Result<KvType> kv_type(std::string_view flag, std::string_view value, std::string_view name) {
  for (size_t i = 0; i < kKvTypeNames.size(); ++i)
    if (name == kKvTypeNames[i]) return KvType(i);
  return fail(Code::invalid, "{} {}: wanted f16, bf16, f32 or q8_0{}", flag, value,
              flag == "--cache-type" ? ", or two of them as K,V" : "");
}

// As EngineOptions has it.
Result<std::optional<uint32_t>> gpu_layers_of(const std::string& text) {
  if (text == "auto") return std::optional<uint32_t>();
  if (text == "all") return std::optional(EngineOptions::kAllLayers);
  uint32_t n = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, n);
  if (error != std::errc() || rest != end || n == EngineOptions::kAllLayers)
    return fail(Code::invalid, "--gpu-layers {}: wanted a number of layers, all or auto", text);
  return std::optional(n);
}

Status check_weights(const std::string& weights) {
  if (weights == "auto" || weights == "resident" || weights == "mapped") return {};
  return fail(Code::invalid, "--weights {}: wanted auto, resident or mapped", weights);
}

}  // namespace

void ModelOptions::add(CLI::App& app, bool computes) {
  app.add_option("-m,--model", model, "model: a GGUF file, or the name of one in the models folder");
  app.add_option("--device", device,
                 "cpu, cuda or cuda:N (NVIDIA GPUs; `argent devices` lists them), metal (Apple GPUs), metal-emu "
                 "(Metal's kernels in an emulator: slow), reference (slow and plain), null (computes nothing)");
  app.add_option("--isa", isa,
                 "CPU instruction set: baseline, avx2, avxvnni, avx512; on Arm baseline, neon, i8mm (default: the best "
                 "of this machine)");
  app.add_option("-t,--threads", threads, "threads (default: what affinity and cgroup leave)")
      ->check(CLI::Range(1u, 1024u));
  app.add_option("-c,--ctx", ctx, "context: positions of a sequence (default: the model's, at most 8192)")
      ->check(CLI::Range(1u, 1u << 30));
  if (computes) {
    app.add_option(
           "--gpu-layers,--n-gpu-layers", gpu_layers,
           "layers on the device, the last ones with the head; the others run on the CPU: a number (all where the "
           "model has fewer), all, or auto, which is as many as fit into a GPU's memory (also -ngl)")
        ->capture_default_str();
    app.add_option("--cache-type", cache_type, "KV cache: f16, bf16, f32 or q8_0, or two of them as K,V")
        ->capture_default_str();
    app.add_option("--cache-type-k", cache_type_k, "K cache alone (also -ctk)");
    app.add_option("--cache-type-v", cache_type_v, "V cache alone (also -ctv)");
  }
  app.add_option("--weights", weights,
                 "resident: a copy in the device's own layout, the fastest; mapped: where they lie in the file, which "
                 "loads at once and shares memory with other processes; auto: resident if it fits")
      ->capture_default_str();
  app.add_flag("--json", json, "print JSON");
}

Status ModelOptions::check_names() const {
  ARGENT_TRY(check_weights(weights));
  if (device.empty() && isa.empty()) return {};
  BackendOptions one_thread;
  one_thread.isa = isa, one_thread.n_threads = 1;
  ARGENT_LET(const std::unique_ptr<Backend> made, make_backend(device.empty() ? "cpu" : device, one_thread));
  return {};
}

Result<EngineOptions> ModelOptions::engine_options() const {
  EngineOptions o;
  o.device = device.empty() ? switch_text(Switch::device) : device;
  o.backend.isa = isa.empty() ? switch_text(Switch::isa) : isa;
  ARGENT_LET(o.backend.n_threads, switch_u32(Switch::threads, 1024));
  if (threads) o.backend.n_threads = threads;
  if (const uint32_t usable = usable_threads(); o.backend.n_threads > usable) {
    to_stderr("argent: {} threads were asked for, {} can run at once here: {} do\n", o.backend.n_threads, usable,
              usable);
    o.backend.n_threads = usable;
  }
  ARGENT_LET(o.backend.pin, switch_bool(Switch::pin));
  ARGENT_LET(o.fuse, switch_bool(Switch::fuse));
  ARGENT_LET(o.prefix_cache, switch_bool(Switch::prefix_cache));
  ARGENT_LET(o.gpu_layers, gpu_layers_of(gpu_layers));
  o.n_ctx = ctx;
  ARGENT_TRY(check_weights(weights));
  if (weights != "auto") o.weights = weights == "resident" ? WeightStorage::resident : WeightStorage::mapped;
  const size_t comma = cache_type.find(',');
  ARGENT_LET(o.backend.kv_k, kv_type("--cache-type", cache_type, std::string_view(cache_type).substr(0, comma)));
  ARGENT_LET(o.backend.kv_v, kv_type("--cache-type", cache_type,
                                     comma == std::string::npos ? cache_type : cache_type.substr(comma + 1)));
  if (!cache_type_k.empty()) {
    ARGENT_LET(o.backend.kv_k, kv_type("--cache-type-k", cache_type_k, cache_type_k));
  }
  if (!cache_type_v.empty()) {
    ARGENT_LET(o.backend.kv_v, kv_type("--cache-type-v", cache_type_v, cache_type_v));
  }
  if (activations == "f32")
    o.backend.activations = ActivationMode::f32;
  else if (activations != "native")
    return fail(Code::invalid, "--activations {}: wanted native or f32", activations);
  return o;
}

std::string cache_text(const BackendOptions& o) {
  return o.kv_k == o.kv_v ? std::string(name_of(o.kv_k)) : fmt::format("{},{}", name_of(o.kv_k), name_of(o.kv_v));
}

void Positionals::add(CLI::App& app, bool takes_text) {
  app.add_option(takes_text ? "TEXT" : "MODEL", words, takes_text ? "[MODEL] TEXT" : "[MODEL]")
      ->type_name("")
      ->expected(0, takes_text ? 2 : 1);
}

Status Positionals::settle(std::string& model, std::string* text, bool* has_text, bool text_elsewhere) const {
  const bool named = !model.empty(), wants_text = text && !text_elsewhere;
  const size_t most = (named ? 0 : 1) + (wants_text ? 1 : 0);
  if (words.size() > most)
    return fail(Code::invalid, "too many arguments: {} given, at most {} wanted here{}", words.size(), most,
                named ? " beside -m" : "");
  if (words.size() == 2) {
    model = words[0], *text = words[1], *has_text = true;
  } else if (words.size() == 1) {
    if (wants_text)
      *text = words[0], *has_text = true;
    else
      model = words[0];
  }
  return {};
}

Result<std::string> Positionals::settle_text(std::string& model, bool from_stdin) const {
  std::string text;
  bool has_text = false;
  ARGENT_TRY(settle(model, &text, &has_text, from_stdin));
  if (from_stdin) return read_stdin();
  if (!has_text) return fail(Code::invalid, "no text: give TEXT, or --stdin");
  return text;
}

void SamplingOptions::add(CLI::App& app) {
  const auto option = [&](const std::string& flag, const std::string& name, const std::string& help) {
    app.add_option_function<std::string>(
           flag, [this, name](const std::string& text) { given.emplace_back(name, text); }, help)
        ->group("Sampling");
  };
  option("--temp,--temperature", "temperature", "0 is the likeliest token always");
  option("--top-k", "top_k", "the k likeliest tokens only; 0 = all");
  option("--top-p", "top_p", "the likeliest tokens that make up this share");
  option("--min-p", "min_p", "tokens at least this likely, relative to the likeliest");
  option("--presence-penalty", "presence_penalty", "taken off the logits of tokens generated before");
  option("--frequency-penalty", "frequency_penalty", "the same, once for each time");
  option("--repeat-penalty", "repeat_penalty", "divides the logits of recent tokens; 1 = off");
  option("--repeat-last-n", "repeat_last_n", "how many recent tokens the penalty looks at");
  option("--seed", "seed", "the same seed draws the same text");
}

Result<SampleParams> SamplingOptions::settle(const SampleParams& defaults) const {
  SampleParams params = defaults;
  for (const auto& [name, text] : given) ARGENT_TRY(sample::set(params, name, text));
  ARGENT_TRY(sample::check(params));
  return params;
}

Result<std::unique_ptr<Engine>> open_engine(const ModelOptions& options,
                                            const std::function<void(EngineOptions&)>& adjust, bool load) {
  ARGENT_LET(const std::string path, find_model(options.model));
  ARGENT_LET(EngineOptions engine_options, options.engine_options());
  if (adjust) adjust(engine_options);
  ARGENT_LET(std::unique_ptr<Engine> engine, Engine::open(path, engine_options));
  if (!load) return engine;
  const bool tells_layers = engine->layers_on_cpu() || engine_options.gpu_layers;
  if (const std::string layers = engine->layers_text(); tells_layers && !layers.empty())
    to_stderr("argent: {}\n", layers);
  if (engine->memory().resident_needed_bytes && engine->memory().fits())
    to_stderr(
        "argent: weights are used where they lie in the file, which is slower: with a copy of them {} are wanted, {} "
        "are free\n",
        bytes_text(engine->memory().resident_needed_bytes), bytes_text(engine->memory().devices[0].free_bytes));
  const bool show = stderr_is_terminal() && engine->memory().weights_bytes > (512u << 20);
  const Status status = engine->load([&](const Progress& p) {
    if (show) to_stderr("\r{}: {:.1f} of {:.1f} GB", p.what, p.done / 1e9, p.total / 1e9), std::fflush(stderr);
    return !interrupted();
  });
  if (show) to_stderr("\r\033[K");
  if (!status) return status.error();
  return engine;
}

Status not_the_model(std::string_view option, const std::string& path, const Engine& engine) {
  if (!engine.file().is_shard(path)) return {};
  return fail(Code::invalid, "{} {}: that is the model; it would be overwritten", option, path);
}

CLI::App* add_command(CLI::App& root, const std::string& name, const std::string& summary, const std::string& footer,
                      std::function<Status()> run) {
  CLI::App* app = root.add_subcommand(name, summary);
  app->footer(footer);
  app->callback([run = std::move(run)] {
    if (const Status status = run(); !status) {
      if (!status.error().message.empty()) to_stderr("argent: {}\n", one_line(status.error().message));
      throw CLI::RuntimeError(exit_code(status.error().code));
    }
  });
  return app;
}

std::string one_line(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const uint8_t c = uint8_t(text[i]), next = i + 1 < text.size() ? uint8_t(text[i + 1]) : 0;
    if (c < 0x20 || c == 0x7f)
      out += fmt::format("\\x{:02x}", c);
    else if (c == 0xc2 && next >= 0x80 && next < 0xa0)  // the C1 controls, U+0080 to U+009F
      out += fmt::format("\\x{:02x}", next), ++i;
    else
      out += text[i];
  }
  return out;
}

bool stdout_is_terminal() { return ::isatty(STDOUT_FILENO) == 1; }
bool stderr_is_terminal() { return ::isatty(STDERR_FILENO) == 1; }

Result<std::string> read_stdin() {
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
    if (n == 0) return text;
    if (n < 0 && errno == EINTR && !interrupted()) continue;
    if (n < 0) return fail(Code::io, "cannot read standard input: {}", std::strerror(errno));
    text.append(buffer, size_t(n));
    if (text.size() > (1u << 30)) return fail(Code::invalid, "standard input is longer than 1 GiB");
  }
}

Result<uint64_t> parse_bytes(std::string_view option, std::string_view text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"", 1},      {"b", 1},        {"kb", 1e3},     {"mb", 1e6},     {"gb", 1e9},
      {"tb", 1e12}, {"kib", 0x1p10}, {"mib", 0x1p20}, {"gib", 0x1p30}, {"tib", 0x1p40}};
  double number = -1;
  const char* end = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed).ptr;
  std::string unit(end, text.data() + text.size());
  std::erase(unit, ' ');
  for (char& c : unit) c = char(std::tolower(static_cast<unsigned char>(c)));
  for (const auto& [name, factor] : kUnits)
    if (unit == name && number >= 0 && number * factor < 0x1p63) return uint64_t(number * factor);
  return fail(Code::invalid, "{} {}: wanted a number of bytes, as 512MiB or 8GB", option, text);
}

Result<std::string> read_file(const std::string& path) {
  ARGENT_LET(const MappedFile file, MappedFile::open(path));
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

Status write_stdout(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    return errno == EPIPE ? Error{Code::io, ""}
                          : fail(Code::io, "cannot write to standard output: {}", std::strerror(errno));
  return {};
}

bool interrupted() { return interrupts > 0; }
void clear_interrupt() { interrupts = 0; }
void watch_interrupt(int fatal) {
  fatal_interrupts = fatal;
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  ::sigaction(SIGINT, &action, nullptr);
}

}  // namespace argent::cli
