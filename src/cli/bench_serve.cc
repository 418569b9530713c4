// argent bench serve: load on a server of OpenAI's interface, ours or another, and what its clients see of it.
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "base/json.h"
#include "cli/command.h"
#include "cli/load_prompts.h"
#include "server/http_reader.h"
#include "server/load.h"

namespace argent::cli {
namespace {

constexpr uint32_t kMostClients = 1024;
using Clock = server::HttpClient::Clock;

struct BenchServeOptions {
  std::string url, model, api_key, cacert, format = "text";
  uint32_t n_clients = 0, n_requests = 0;  // 0: by the rule of the help
  uint32_t n_prompt = 128, n_new = 64, n_shared = 0, n_warmup = 1, n_ids = 0;
  double rate = 0, timeout = 600, temperature = 0;
  uint64_t seed = 1;
  bool chat = false, insecure = false, json = false;
};

double cpu_seconds() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + 1e-6 * double(t.tv_usec); };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// Sends one completion after another, and writes down when what came.
class Load {
 public:
  Load(server::HttpClient& client, const Endpoint& endpoint, const BenchServeOptions& options)
      : client_(client), endpoint_(endpoint), options_(options) {}

  // dues: seconds at which the prompts are to be sent; none: each client sends the next as soon as its last has ended.
  // Requests that nothing was sent of when Ctrl-C came have no record.
  std::vector<server::LoadRecord> run(const std::vector<std::string>& prompts, const std::vector<double>& dues) {
    prompts_ = &prompts;
    flights_ = std::vector<Flight>(prompts.size());
    n_sent_ = n_ended_ = n_events_ = 0;
    open_ = !dues.empty();
    waiting_.clear();
    start_ = Clock::now();
    if (open_)
      for (size_t i = 0; i < dues.size(); ++i)
        client_.at(start_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(dues[i])),
                   [this, i, due = dues[i]] { arrive(i, due); });
    else
      for (size_t i = 0; i < std::min<size_t>(options_.n_clients, prompts.size()); ++i) send(n_sent_, 0);
    watch();
    client_.run();
    if (stderr_is_terminal()) to_stderr("\r\033[K");
    std::vector<server::LoadRecord> records;
    for (Flight& flight : flights_)
      if (flight.sent) records.push_back(std::move(flight.record));
    return records;
  }
  uint64_t n_events() const { return n_events_; }

 private:
  struct Flight {
    server::LoadRecord record;
    server::EventReader events;
    std::string refusal;  // the body of an answer that is no stream
    int status = 0;
    bool sent = false, streams = false, done = false;
  };

  double now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  void watch() {
    if (interrupted()) return client_.stop();
    if (stderr_is_terminal()) to_stderr("\r{} of {} requests", n_ended_, prompts_->size()), std::fflush(stderr);
    if (n_ended_ < prompts_->size()) client_.at(Clock::now() + std::chrono::milliseconds(100), [this] { watch(); });
  }

  void arrive(size_t i, double due) {
    if (n_sent_ - n_ended_ < options_.n_clients)
      send(i, due);
    else
      waiting_.emplace_back(i, due);
  }

  void send(size_t i, double due) {
    ++n_sent_;
    Flight& f = flights_[i];
    f.sent = true;
    f.record.due = due;
    server::ClientRequest request = endpoint_.completion((*prompts_)[i], options_.n_new, options_.seed + i, true);
    request.on_head = [&f](int status, std::string_view type) {
      f.status = status;
      f.streams = status == 200 && type.substr(0, type.find_first_of("; ")) == "text/event-stream";
    };
    request.on_body = [this, &f](std::string_view piece) { return take(f, piece); };
    request.on_end = [this, &f](server::Ending ending, const std::string& what) { end(f, ending, what); };
    client_.send(std::move(request));
  }

  bool take(Flight& f, std::string_view piece) {
    if (!f.streams) {
      f.refusal += piece.substr(0, 4096 - std::min<size_t>(4096, f.refusal.size()));
      return true;
    }
    const double at = now();
    const auto more = f.events.take(piece, [&](std::string_view type, std::string_view data) {
      ++n_events_;
      return event(f.record, f.done, at, type, data);
    });
    if (!more) f.record.error = "wrong event", f.record.detail = more.error().message;
    return more && *more;
  }

  // False: the answer is of no use any more.
  static bool event(server::LoadRecord& record, bool& done, double at, std::string_view type, std::string_view data) {
    if (done) return true;
    if (data == "[DONE]") return done = true;
    const auto read = server::read_completion(data);
    if (!read) return record.error = "wrong event", record.detail = read.error().message, false;
    if (!read->error.empty() || type == "error")
      return record.error = "error of the server", record.detail = read->error, false;
    if (read->usage) record.usage = read->usage;
    if (!read->token) return true;
    if (record.n_events++ == 0)
      record.first = at;
    else
      record.gaps.push_back(at - record.last);
    record.last = at;
    return true;
  }

  void end(Flight& f, server::Ending ending, const std::string& what) {
    ++n_ended_;
    server::LoadRecord& r = f.record;
    r.end = now();
    static constexpr const char* kKinds[] = {"", "no connection", "connection lost", "not HTTP", "timeout", "stopped"};
    if (r.error.empty() && ending != server::Ending::whole) {
      r.error = kKinds[int(ending)], r.detail = what;
    } else if (r.error.empty() && f.status != 200) {
      const auto read = server::read_completion(f.refusal);
      r.error = fmt::format("HTTP {}", f.status);
      r.detail = read && !read->error.empty() ? read->error : f.refusal.substr(0, 200);
    } else if (r.error.empty() && !f.streams) {
      r.error = "no stream", r.detail = f.refusal.substr(0, 200);
    } else if (r.error.empty() && !f.done) {
      r.error = "cut off", r.detail = "the stream ended without [DONE]";
    } else if (r.error.empty() && r.n_events == 0) {
      if (r.usage && r.usage->generated > 0)
        r.first = r.last = r.end;  // tokens, none of which has a text
      else
        r.error = "no tokens";
    }
    if (ending == server::Ending::stopped) return;
    if (open_ && !waiting_.empty()) {
      const auto [i, due] = waiting_.front();
      waiting_.pop_front();
      send(i, due);
    } else if (!open_ && n_sent_ < prompts_->size()) {
      send(n_sent_, r.end);
    }
  }

  server::HttpClient& client_;
  const Endpoint& endpoint_;
  const BenchServeOptions& options_;
  const std::vector<std::string>* prompts_ = nullptr;
  std::vector<Flight> flights_;
  std::deque<std::pair<size_t, double>> waiting_;  // for one of the clients
  size_t n_sent_ = 0, n_ended_ = 0;
  uint64_t n_events_ = 0;
  bool open_ = false;
  Clock::time_point start_;
};

Result<std::string> first_model(server::HttpClient& client, const Endpoint& endpoint) {
  server::ClientRequest request = endpoint.post(endpoint.v1 + "/models", "");
  request.method = "GET";
  ARGENT_LET(const server::Fetched answer, server::fetch(client, std::move(request)));
  const auto json = nlohmann::json::parse(answer.body, nullptr, false);
  const auto data = json.is_object() ? json.find("data") : json.end();
  if (answer.status == 200 && data != json.end() && data->is_array() && !data->empty() && (*data)[0].is_object())
    if (const auto id = (*data)[0].find("id"); id != (*data)[0].end() && id->is_string()) return id->get<std::string>();
  return fail(Code::invalid, "--model is needed: {}/models answers {} and names none", endpoint.v1, answer.status);
}

Status settle(BenchServeOptions& o) {
  if (o.json) o.format = "json";
  if (!std::isfinite(o.rate) || !std::isfinite(o.timeout) || !std::isfinite(o.temperature))  // CLI::Range takes NaN
    return fail(Code::invalid, "--rate, --timeout and --temperature are numbers");
  if (o.chat && o.n_ids) return fail(Code::invalid, "--token-ids: chat takes text only");
  if (o.n_shared > o.n_prompt)
    return fail(Code::invalid, "--shared-prefix {}: a prompt has {} tokens", o.n_shared, o.n_prompt);
  if (!o.n_requests) o.n_requests = o.rate > 0 ? 100 : 4 * std::max(1u, o.n_clients);
  if (!o.n_clients) o.n_clients = o.rate > 0 ? kMostClients : 1;
  rlimit files{};  // a connection takes one; the default of many systems is 1,024
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4 * kMostClients);
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  return {};
}

Status run(BenchServeOptions& o) {
  ARGENT_TRY(settle(o));
  ARGENT_LET(const server::Url url, server::parse_url(o.url));
  Endpoint endpoint{.url = url,
                    .model = o.model,
                    .api_key = o.api_key,
                    .chat = o.chat,
                    .n_ids = o.n_ids,
                    .temperature = o.temperature};
  endpoint.timeout = std::chrono::milliseconds(int64_t(std::ceil(o.timeout * 1e3)));
  endpoint.root = endpoint.url.path;
  if (endpoint.root.ends_with("/v1")) endpoint.root.resize(endpoint.root.size() - 3);
  endpoint.v1 = endpoint.root + "/v1";
  ARGENT_LET(const std::unique_ptr<server::HttpClient> client,
             server::HttpClient::open(endpoint.url, {o.insecure, o.cacert}));
  const auto at_url = [&](const Error& e) { return Error{e.code, fmt::format("{}: {}", o.url, e.message)}; };
  if (endpoint.model.empty()) {
    auto model = first_model(*client, endpoint);
    if (!model) return at_url(model.error());
    endpoint.model = *std::move(model);
  }
  auto maker = PromptMaker::make(*client, endpoint, o.seed, o.n_prompt, o.n_shared);
  if (!maker) return at_url(maker.error());
  std::vector<std::string> warmup, prompts;
  while (prompts.size() < o.n_requests) {
    if (interrupted()) return fail(Code::cancelled, "stopped");
    auto prompt = maker->next();
    if (!prompt) return at_url(prompt.error());
    (warmup.size() < o.n_warmup ? warmup : prompts).push_back(*std::move(prompt));
  }
  Load load(*client, endpoint, o);
  if (!warmup.empty()) load.run(warmup, {});
  Rng arrivals(o.seed);
  const std::vector<double> dues =
      o.rate > 0 ? server::poisson_arrivals(arrivals, o.n_requests, o.rate) : std::vector<double>();
  const double cpu_before = cpu_seconds();
  const std::vector<server::LoadRecord> records = load.run(prompts, dues);
  const double cpu = cpu_seconds() - cpu_before;
  const double cpu_per_1000 = load.n_events() ? 1e3 * cpu / double(load.n_events()) : 0;
  server::LoadSummary summary = server::summarize(records, o.n_new);
  if (o.format == "json") {
    nlohmann::ordered_json json = {{"url", o.url},
                                   {"model", endpoint.model},
                                   {"api", o.chat ? "chat" : "completions"},
                                   {"clients", o.n_clients},
                                   {"rate", o.rate > 0 ? nlohmann::ordered_json(o.rate) : nullptr},
                                   {"prompt_tokens_wanted", o.n_prompt},
                                   {"shared_tokens_wanted", o.n_shared},
                                   {"prompts_fitted", maker->exact()},
                                   {"new_tokens_wanted", o.n_new},
                                   {"seed", o.seed},
                                   {"temperature", o.temperature}};
    json.update(server::load_json(summary));
    json["client"] = {{"events", load.n_events()}, {"cpu_seconds", cpu}, {"cpu_seconds_per_1000_events", cpu_per_1000}};
    ARGENT_TRY(write_stdout(json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"));
  } else {
    std::string text = fmt::format("{} at {}, {}\n", one_line(endpoint.model), one_line(o.url),
                                   o.rate > 0 ? fmt::format("{} requests/s", o.rate)
                                              : fmt::format("{} client{}", o.n_clients, o.n_clients > 1 ? "s" : ""));
    for (auto& [kind, detail] : summary.details) detail = one_line(detail);
    text += server::load_text(summary);
    text += fmt::format("this program: {:.2f} s of CPU, {:.4f} s for 1,000 events\n", cpu, cpu_per_1000);
    ARGENT_TRY(write_stdout(text));
  }
  if (interrupted()) return fail(Code::cancelled, "stopped");
  if (summary.n_done == 0) return fail(Code::io, "{}: no request succeeded", o.url);
  return {};
}

}  // namespace

void add_bench_serve(CLI::App& bench) {
  auto o = std::make_shared<BenchServeOptions>();
  CLI::App* app = add_command(
      bench, "serve", "load on a server of OpenAI's interface",
      "  argent bench serve http://127.0.0.1:8080 --clients 16 --prompt-tokens 512 --new-tokens 128\n"
      "  argent bench serve http://127.0.0.1:8080 --rate 2.5 --requests 200 -o json\n"
      "  argent bench serve http://127.0.0.1:8080 --chat --clients 8 --prompt-tokens 2048 --shared-prefix 1536\n"
      "With --clients each sends its next request when the last has ended; with --rate requests arrive at random "
      "times,\n"
      "whatever the server does, and their times count from then. Prompts are random words, fitted by the server's\n"
      "/tokenize where it has one; the tokens told are those of the server's usage.",
      [o, &bench]() -> Status {
        for (const CLI::Option* option : bench.get_options())
          if (option->count()) return fail(Code::invalid, "{} does not go with bench serve", option->get_name());
        return run(*o);
      });
  app->add_option("URL", o->url, "http:// or https://, of the server or its /v1")->required()->type_name("");
  app->add_option("-m,--model", o->model, "model (default: the first that the server lists)");
  app->add_option("--api-key", o->api_key, "sent as bearer token");
  app->add_flag("--chat", o->chat, "/v1/chat/completions in place of /v1/completions");
  const auto number = [&](const char* flag, uint32_t& to, uint32_t least, uint32_t most, const char* help) {
    return app->add_option(flag, to, help)->check(CLI::Range(least, most));
  };
  number("--clients", o->n_clients, 1, kMostClients, "requests at once (default: 1; with --rate, at most 1024)");
  app->add_option("--rate", o->rate, "requests a second, at random times")->check(CLI::Range(1e-6, 1e6));
  number("--requests", o->n_requests, 1, 1000000, "requests in all (default: 4 a client; with --rate 100)");
  number("--prompt-tokens", o->n_prompt, 1, 1u << 20, "tokens of a prompt")->capture_default_str();
  number("--new-tokens", o->n_new, 1, 1u << 20, "tokens to generate")->capture_default_str();
  number("--shared-prefix", o->n_shared, 0, 1u << 20, "tokens that all prompts begin with")->capture_default_str();
  number("--token-ids", o->n_ids, 1, 1u << 30,
         "prompts are random token ids below this, not words: for models without a tokenizer");
  number("--warmup", o->n_warmup, 0, 10000, "requests before, not measured")->capture_default_str();
  app->add_option("--temperature", o->temperature, "0 is the likeliest token always")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  app->add_option("--seed", o->seed, "of prompts, arrivals and sampling")->capture_default_str();
  app->add_option("--timeout", o->timeout, "seconds for a request")
      ->check(CLI::Range(1e-3, 1e6))
      ->capture_default_str();
  CLI::Option* const cacert =
      app->add_option("--cacert", o->cacert,
                      "PEM file of the authorities (or the certificate) that https takes, in place of the system's");
  app->add_flag("--insecure", o->insecure, "https without looking at the certificate")->excludes(cacert);
  app->add_option("-o,--output", o->format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  app->add_flag("--json", o->json, "the same as -o json");
}

}  // namespace argent::cli
