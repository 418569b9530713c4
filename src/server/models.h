// Models that are loaded when somebody asks for them, as many as the memory holds.
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <thread>

#include "server/api.h"

namespace argent::server {

struct ModelsOptions {
  EngineOptions engine;
  ServiceOptions service;
  std::string first;                 // name or path of the model that requests without a name get; "" is the default
  std::string alias;                 // another name for it
  std::vector<std::string> folders;  // beside the folder of models
  std::string chat_template;         // --chat-template, for all models
  std::optional<GenerationRequest::Pooling> pooling;
  SampleParams defaults{.temperature = 0.8f};  // of requests that say nothing
  bool fixed_seed = false;                     // the seed too
  uint32_t max_loaded = 0;                     // 0: as many as fit
  std::chrono::seconds ttl{0};                 // a model that nobody used for so long is unloaded; 0: never
  std::vector<std::string> preload, pinned;
  std::function<void(const std::string& line)> log;
};

class Models final : public ModelHost {
 public:
  explicit Models(ModelsOptions options);
  ~Models() override;

  Result<std::shared_ptr<LoadedModel>> get(const std::string& name) override;
  std::vector<Entry> list() override;
  Status load(const std::string& name, bool pin) override;
  Status unload(const std::string& name) override;

  // Loads the first model and those to preload. The first one's error ends it.
  Status start();
  bool ready() const { return ready_; }
  // Ends loading and all requests.
  void cancel();
  // Waits until no request runs anywhere.
  bool drain(std::chrono::milliseconds patience);
  std::vector<std::shared_ptr<LoadedModel>> loaded();

 private:
  using Clock = std::chrono::steady_clock;
  struct Slot {
    Entry entry;
    std::shared_ptr<LoadedModel> model;
    Clock::time_point used;
  };
  Result<std::string> resolve(const std::string& name);  // to a slot's name, which is made where needed
  Slot& slot_of_path(const std::string& path);
  void scan();
  Result<std::shared_ptr<LoadedModel>> open(const std::string& name, const std::string& path);
  Result<std::shared_ptr<LoadedModel>> try_open(const std::string& name, const std::string& path);
  bool evict_one(std::unique_lock<std::mutex>& lock);
  static void finish(const std::shared_ptr<LoadedModel>& model);
  void retire(std::shared_ptr<LoadedModel> model);
  void watch();

  ModelsOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Slot> slots_;
  std::string first_;  // a slot's name
  std::list<std::shared_ptr<LoadedModel>> retired_;
  std::atomic<bool> ready_ = false, cancelled_ = false;
  bool stopping_ = false;
  std::mutex loading_;  // one model at a time
  std::thread watcher_;
};

}  // namespace argent::server
