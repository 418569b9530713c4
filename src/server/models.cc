#include "server/models.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/system_memory.h"
#include "hub/hub.h"

namespace argent::server {
namespace {

std::string name_of(const std::string& path) {
  std::string name = std::filesystem::path(path).filename().string();
  if (name.ends_with(".gguf")) name.resize(name.size() - 5);
  return name;
}

// The pooling that a file asks for, where it does: 1 mean, 3 last (GGUF's <arch>.pooling_type).
std::optional<GenerationRequest::Pooling> pooling_of(const gguf::File& file) {
  const gguf::Value* arch = file.find("general.architecture");
  if (!arch) return std::nullopt;
  const gguf::Value* type = file.find(std::string(arch->as_string().value_or("")) + ".pooling_type");
  const auto value = type ? type->as_uint() : std::nullopt;
  if (value == 1u) return GenerationRequest::Pooling::mean;
  if (value == 3u) return GenerationRequest::Pooling::last;
  return std::nullopt;
}

bool has_token(const Tokenizer* tokenizer, std::string_view text) { return tokenizer && tokenizer->find(text); }

}  // namespace

Models::Models(ModelsOptions options) : options_(std::move(options)) {
  watcher_ = std::thread([this] { watch(); });
}

Models::~Models() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  watcher_.join();
}

Models::Slot& Models::slot_of_path(const std::string& path) {
  for (auto& [name, slot] : slots_)
    if (slot.entry.path == path) return slot;
  std::string name = name_of(path);
  for (int i = 2; slots_.contains(name); ++i) name = fmt::format("{}-{}", name_of(path), i);
  Slot& slot = slots_[name];
  slot.entry.name = name;
  slot.entry.path = path;
  struct stat st = {};
  if (::stat(path.c_str(), &st) == 0) slot.entry.created = st.st_mtime, slot.entry.bytes = uint64_t(st.st_size);
  slot.entry.pinned = std::find(options_.pinned.begin(), options_.pinned.end(), name) != options_.pinned.end();
  return slot;
}

// Files that came, and slots whose files went.
void Models::scan() {
  for (const std::string& file : list_models()) slot_of_path(models_folder() + "/" + file);
  for (const std::string& folder : options_.folders) {
    std::error_code error;
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error))
      if (entry.path().extension() == ".gguf") paths.push_back(entry.path().string());
    std::sort(paths.begin(), paths.end());
    for (const std::string& path : paths)
      if (path.find("-of-") == std::string::npos || path.find("-00001-of-") != std::string::npos) slot_of_path(path);
  }
  std::erase_if(slots_, [&](const auto& s) {
    struct stat st = {};
    return s.second.entry.state == Entry::State::unloaded && s.first != first_ &&
           ::stat(s.second.entry.path.c_str(), &st) != 0;
  });
}

Result<std::string> Models::resolve(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (name.empty() || (!options_.alias.empty() && name == options_.alias)) {
    if (first_.empty()) return fail(Code::out_of_memory, "the model is not loaded yet");
    return first_;
  }
  const std::string plain = name.ends_with(".gguf") ? name.substr(0, name.size() - 5) : name;
  for (int pass = 0; pass < 2; ++pass) {
    if (slots_.contains(plain)) return plain;
    std::string tagless = plain;
    if (tagless.ends_with(":latest")) tagless.resize(tagless.size() - 7);
    if (slots_.contains(tagless)) return tagless;
    if (pass == 0) scan();
  }
  std::vector<std::string> names;
  for (const auto& [known, slot] : slots_) names.push_back(known);
  return fail(Code::not_found, "no model is called '{}'; there are {}", name.substr(0, 100), fmt::join(names, ", "));
}

Result<std::shared_ptr<LoadedModel>> Models::open(const std::string& name, const std::string& path) {
  ARGENT_LET(std::unique_ptr<Engine> engine, Engine::open(path, options_.engine));
  ARGENT_TRY(engine->load([&](const Progress& p) {
    const std::lock_guard lock(mutex_);
    slots_[name].entry.progress = p.total ? double(p.done) / double(p.total) : 1;
    return !stopping_ && !cancelled_;
  }));
  auto model = std::make_shared<LoadedModel>();
  model->name = name;
  model->path = path;
  model->defaults = options_.defaults;
  model->fixed_seed = options_.fixed_seed;
  if (auto chat = load_chat_format(engine->file(), options_.chat_template))
    model->chat = *std::move(chat);
  else if (!options_.chat_template.empty())
    return chat.error();
  else
    model->no_chat = chat.error().message;
  const Tokenizer* tokenizer = engine->tokenizer();
  if (model->chat)
    model->output = detect_output_form(model->chat->chat_template().source(),
                                       [&](std::string_view text) { return has_token(tokenizer, text); });
  const auto own = pooling_of(engine->file());
  model->pooling = options_.pooling ? *options_.pooling : own ? *own : GenerationRequest::Pooling::mean;
  model->service = Service::start(std::move(engine), options_.service);
  return model;
}

// What open() plans for is checked beforehand; this is for what it does not plan.
Result<std::shared_ptr<LoadedModel>> Models::try_open(const std::string& name, const std::string& path) {
  try {
    return open(name, path);
  } catch (const std::bad_alloc&) {
  } catch (const std::system_error&) {  // no thread can be made
  }
  return fail(Code::out_of_memory, "{}: memory ran out while it was loaded; {} are free", path,
              bytes_text(available_memory()));
}

// Waits until a model that no name leads to any more has answered all. Requests that had found it before are still let
// in: they hold it until they have begun.
void Models::finish(const std::shared_ptr<LoadedModel>& model) {
  for (int i = 0; i < 200 && model.use_count() > 1; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  model->service->drain(std::chrono::minutes(10));
}

// Lets the longest unused model go that nobody pinned. False: there is none.
bool Models::evict_one(std::unique_lock<std::mutex>& lock) {
  Slot* oldest = nullptr;
  for (auto& [name, slot] : slots_)
    if (slot.model && !slot.entry.pinned && (!oldest || slot.used < oldest->used)) oldest = &slot;
  if (!oldest) return false;
  std::shared_ptr<LoadedModel> model = std::move(oldest->model);
  oldest->model = nullptr;
  oldest->entry.state = Entry::State::unloaded;
  oldest->entry.n_ctx = 0;
  lock.unlock();
  if (options_.log) options_.log(fmt::format("model {} is unloaded to make room", model->name));
  finish(model);
  if (model.use_count() == 1)
    model.reset();  // its memory is wanted now
  else
    retire(std::move(model));
  lock.lock();
  return true;
}

void Models::retire(std::shared_ptr<LoadedModel> model) {
  const std::lock_guard lock(mutex_);
  retired_.push_back(std::move(model));
  changed_.notify_all();
}

Result<std::shared_ptr<LoadedModel>> Models::get(const std::string& name) {
  ARGENT_LET(const std::string known, resolve(name));
  {
    const std::lock_guard lock(mutex_);
    const auto it = slots_.find(known);
    if (it != slots_.end()) it->second.used = Clock::now();
    if (it != slots_.end() && it->second.model) return it->second.model;
  }
  const std::lock_guard one(loading_);
  std::unique_lock lock(mutex_);
  if (!slots_.contains(known)) return fail(Code::not_found, "the file of model {} is gone", known);
  if (slots_[known].model) return slots_[known].model;  // another request has loaded it meanwhile
  slots_[known].entry.state = Entry::State::loading;
  slots_[known].entry.progress = 0;
  const std::string path = slots_[known].entry.path;
  const auto n_loaded = [&] {
    return std::count_if(slots_.begin(), slots_.end(), [](const auto& s) { return bool(s.second.model); });
  };
  while (options_.max_loaded && n_loaded() >= options_.max_loaded && evict_one(lock)) {
  }
  for (;;) {
    lock.unlock();
    const auto start = Clock::now();
    Result<std::shared_ptr<LoadedModel>> model = try_open(known, path);
    lock.lock();
    if (!model && model.error().code == Code::out_of_memory && evict_one(lock)) continue;
    Slot& slot = slots_[known];
    if (!model) {
      slot.entry.state = Entry::State::failed;
      slot.entry.error = model.error().message;
      return model.error();
    }
    slot.model = *model;
    slot.model->created = slot.entry.created;
    slot.used = Clock::now();
    slot.entry.state = Entry::State::loaded;
    slot.entry.error.clear();
    slot.entry.n_ctx = slot.model->service->n_ctx();
    if (options_.log)
      options_.log(fmt::format(
          "model {} is loaded in {:.2f} s: context {}, KV cache {:.1f} MB and {:.1f} MB for what leaves it, weights "
          "{:.1f} MB",
          known, std::chrono::duration<double>(Clock::now() - start).count(), slot.entry.n_ctx,
          slot.model->service->memory().kv_bytes / 1e6, slot.model->service->memory().kv_host_bytes / 1e6,
          slot.model->service->memory().weights_bytes / 1e6));
    if (const std::string layers = slot.model->service->layers_text(); options_.log && !layers.empty())
      options_.log(fmt::format("model {}: {}", known, layers));
    return slot.model;
  }
}

std::vector<ModelHost::Entry> Models::list() {
  const std::lock_guard lock(mutex_);
  scan();
  std::vector<Entry> out;
  for (auto& [name, slot] : slots_) out.push_back(slot.entry);
  std::stable_partition(out.begin(), out.end(), [&](const Entry& e) { return e.name == first_; });
  return out;
}

Status Models::load(const std::string& name, bool pin) {
  ARGENT_LET(const std::string known, resolve(name));
  if (const auto model = get(known); !model) return model.error();
  const std::lock_guard lock(mutex_);
  slots_[known].entry.pinned = slots_[known].entry.pinned || pin;
  return {};
}

Status Models::unload(const std::string& name) {
  ARGENT_LET(const std::string known, resolve(name));
  std::shared_ptr<LoadedModel> model;
  {
    const std::lock_guard lock(mutex_);
    Slot& slot = slots_[known];
    if (!slot.model) return fail(Code::invalid, "model {} is not loaded", known);
    model = std::move(slot.model);
    slot.model = nullptr;
    slot.entry.state = Entry::State::unloaded;
    slot.entry.pinned = false;
    slot.entry.n_ctx = 0;
  }
  retire(std::move(model));
  return {};
}

Status Models::start() {
  {
    ARGENT_LET(const std::string path, find_model(options_.first));
    const std::lock_guard lock(mutex_);
    first_ = slot_of_path(path).entry.name;
  }
  ARGENT_TRY(load("", std::find(options_.pinned.begin(), options_.pinned.end(), first_) != options_.pinned.end()));
  for (const std::string& name : options_.preload) ARGENT_TRY(load(name, false));
  ready_ = true;
  return {};
}

std::vector<std::shared_ptr<LoadedModel>> Models::loaded() {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<LoadedModel>> out;
  for (auto& [name, slot] : slots_)
    if (slot.model) out.push_back(slot.model);
  return out;
}

void Models::cancel() {
  cancelled_ = true;
  for (const auto& model : loaded()) model->service->cancel_all();
}

bool Models::drain(std::chrono::milliseconds patience) {
  const auto end = Clock::now() + patience;
  bool all = true;
  for (const auto& model : loaded())
    all = model->service->drain(std::max(std::chrono::milliseconds(0),
                                         std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()))) &&
          all;
  return all;
}

// Unloads what nobody used for long, and ends models that were let go once their requests are over.
void Models::watch() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (options_.ttl.count() > 0)
      for (auto& [name, slot] : slots_)
        if (slot.model && !slot.entry.pinned && Clock::now() - slot.used > options_.ttl &&
            slot.model->service->metrics().running == 0 && slot.model->service->metrics().queued == 0) {
          if (options_.log)
            options_.log(fmt::format("model {} is unloaded, unused for {} s", name, options_.ttl.count()));
          retired_.push_back(std::move(slot.model));
          slot.model = nullptr;
          slot.entry.state = Entry::State::unloaded;
          slot.entry.n_ctx = 0;
        }
    std::list<std::shared_ptr<LoadedModel>> ending = std::exchange(retired_, {});
    lock.unlock();
    for (const auto& model : ending) finish(model);
    ending.clear();
    lock.lock();
    if (!stopping_ && retired_.empty()) changed_.wait_for(lock, std::chrono::milliseconds(500));
  }
}

}  // namespace argent::server
