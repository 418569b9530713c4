#include "server/metrics_text.h"

namespace argent::server {
namespace {

std::string escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out;
}

class Writer {
 public:
  explicit Writer(std::vector<std::shared_ptr<LoadedModel>> models) : models_(std::move(models)) {}

  template <class F>
  void value(std::string_view name, std::string_view type, std::string_view help, F get) {
    head(name, type, help);
    for (const auto& m : models_)
      text_ +=
          fmt::format("argent_{}{{model=\"{}\"}} {}\n", name, escaped(m->name), double(get(m->service->metrics())));
  }
  template <class F>
  void histogram(std::string_view name, std::string_view help, F get) {
    head(name, "histogram", help);
    for (const auto& m : models_) {
      const auto& h = get(m->service->metrics());
      uint64_t sum = 0;
      for (size_t i = 0; i < h.bounds().size(); ++i)
        text_ += fmt::format("argent_{}_bucket{{model=\"{}\",le=\"{}\"}} {}\n", name, escaped(m->name), h.bounds()[i],
                             sum += h.count(i));
      sum += h.count(h.bounds().size());
      text_ += fmt::format(
          "argent_{0}_bucket{{model=\"{1}\",le=\"+Inf\"}} {2}\nargent_{0}_sum{{model=\"{1}\"}} "
          "{3}\nargent_{0}_count{{model=\"{1}\"}} {2}\n",
          name, escaped(m->name), sum, h.sum());
    }
  }
  std::string take() { return std::move(text_); }

 private:
  void head(std::string_view name, std::string_view type, std::string_view help) {
    text_ += fmt::format("# HELP argent_{0} {2}\n# TYPE argent_{0} {1}\n", name, type, help);
  }
  std::vector<std::shared_ptr<LoadedModel>> models_;
  std::string text_;
};

}  // namespace

std::string metrics_text(Models& models) {
  Writer w(models.loaded());
  using M = ServiceMetrics;
  w.value("requests_total", "counter", "Requests taken", [](M& m) { return m.requests.load(); });
  w.value("requests_finished_total", "counter", "Requests that ended well", [](M& m) { return m.finished.load(); });
  w.value("requests_cancelled_total", "counter", "Requests whose client went or that were cancelled",
          [](M& m) { return m.cancelled.load(); });
  w.value("requests_failed_total", "counter", "Requests that ended with an error",
          [](M& m) { return m.failed.load(); });
  w.value("requests_rejected_total", "counter", "Requests that found the queue full",
          [](M& m) { return m.rejected.load(); });
  w.value("requests_queued", "gauge", "Requests that wait", [](M& m) { return m.queued.load(); });
  w.value("answers_running", "gauge", "Answers that are computed", [](M& m) { return m.running.load(); });
  w.value("prompt_tokens_total", "counter", "Tokens of prompts", [](M& m) { return m.prompt_tokens.load(); });
  w.value("cached_tokens_total", "counter", "Tokens of prompts that were found computed",
          [](M& m) { return m.reused_tokens.load(); });
  w.value("generated_tokens_total", "counter", "Tokens generated", [](M& m) { return m.generated_tokens.load(); });
  w.value("drafted_tokens_total", "counter", "Tokens drafted by speculation",
          [](M& m) { return m.drafted_tokens.load(); });
  w.value("accepted_tokens_total", "counter", "Drafted tokens that were right",
          [](M& m) { return m.accepted_tokens.load(); });
  w.value("steps_total", "counter", "Steps of the engine", [](M& m) { return m.steps.load(); });
  w.value("step_seconds_total", "counter", "Time of all steps", [](M& m) { return m.step_nanoseconds.load() * 1e-9; });
  w.value("host_seconds_total", "counter", "Of it, outside the backend",
          [](M& m) { return m.host_nanoseconds.load() * 1e-9; });
  w.value("preemptions_total", "counter", "Sequences that gave their KV blocks to others",
          [](M& m) { return m.preemptions.load(); });
  w.value("kv_blocks", "gauge", "Blocks of the KV cache", [](M& m) { return m.kv_blocks.load(); });
  w.value("kv_blocks_used", "gauge", "Of them, in use by requests", [](M& m) { return m.kv_used.load(); });
  w.value("kv_blocks_cached", "gauge", "Of them, kept for prompts to come", [](M& m) { return m.kv_cached.load(); });
  w.value("kv_host_bytes", "gauge", "Evicted blocks kept in host memory", [](M& m) { return m.kv_host_bytes.load(); });
  w.value("kv_disk_bytes", "gauge", "Evicted blocks kept on disk", [](M& m) { return m.kv_disk_bytes.load(); });
  w.value("kv_host_restored_tokens_total", "counter", "Prompt tokens whose blocks came back from host memory",
          [](M& m) { return m.host_restored_tokens.load(); });
  w.value("kv_disk_restored_tokens_total", "counter", "Prompt tokens whose blocks came back from disk",
          [](M& m) { return m.disk_restored_tokens.load(); });
  w.histogram(
      "queue_seconds", "From a request's arrival to its start", [](M & m) -> auto& { return m.queue_seconds; });
  w.histogram(
      "time_to_first_token_seconds", "From a request's arrival to its first token",
      [](M & m) -> auto& { return m.first_token_seconds; });
  w.histogram(
      "inter_token_seconds", "Between tokens of an answer", [](M & m) -> auto& { return m.token_seconds; });
  w.histogram(
      "request_seconds", "From a request's arrival to its end", [](M & m) -> auto& { return m.request_seconds; });
  return w.take();
}

}  // namespace argent::server
