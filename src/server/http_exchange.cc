#include "server/http_exchange.h"

#include <algorithm>

#include "base/memory_reserve.h"

namespace argent::server {

namespace {

// Calls into routes: what they throw is theirs, and ends here.
template <class Call, class... Args>
void guarded(const Call& call, Args... args) {
  try {
    if (call) call(args...);
  } catch (...) {
  }
}

class ExchangeReply : public Reply {
 public:
  explicit ExchangeReply(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  // Who could not even say why he had no answer had no memory.
  ~ExchangeReply() override { exchange_->dropped(memory_reserve_is_gone()); }
  void send(int status, std::string body, std::string_view content_type, Headers headers) override {
    exchange_->send(status, std::move(body), content_type, std::move(headers));
  }
  void begin(int status, std::string_view content_type, Headers headers) override {
    exchange_->begin(status, content_type, std::move(headers));
  }
  void write(std::string bytes) override { exchange_->write(std::move(bytes)); }
  void end() override { exchange_->end(); }
  void on_gone(std::function<void()> call) override { exchange_->on_gone(std::move(call)); }
  void on_pressure(std::function<void(bool)> call) override { exchange_->on_pressure(std::move(call)); }
  bool gone() const override { return exchange_->gone(); }

 private:
  const std::shared_ptr<Exchange> exchange_;
};

}  // namespace

std::shared_ptr<Reply> make_reply(std::shared_ptr<Exchange> exchange) {
  return std::make_shared<ExchangeReply>(std::move(exchange));
}

void Exchange::poke() {
  if (!idle_ || !sink_) return;
  idle_ = false;
  sink_->poke();
}

// The callbacks are dropped outside the lock: they may hold the last reference to anything, this exchange too.
void Exchange::finish(State state, std::unique_lock<std::mutex>& lock) {
  state_ = state;
  const auto gone_call = std::move(gone_call_);
  const auto pressure_call = std::move(pressure_call_);
  gone_call_ = nullptr;
  pressure_call_ = nullptr;
  poke();
  lock.unlock();
}

void Exchange::send(int status, std::string body, std::string_view content_type, Headers headers) {
  std::unique_lock lock(mutex_);
  if (state_ != State::fresh || gone_) return;
  if (status < 200 || status > 599) return finish(State::dropped, lock);
  status_ = status;
  content_type_ = content_type;
  headers_ = std::move(headers);
  pending_ = std::move(body);
  whole_ = true;
  finish(State::complete, lock);
}

void Exchange::begin(int status, std::string_view content_type, Headers headers) {
  std::unique_lock lock(mutex_);
  if (state_ != State::fresh || gone_) return;
  if (status < 200 || status > 599) return finish(State::dropped, lock);
  status_ = status;
  content_type_ = content_type;
  headers_ = std::move(headers);
  state_ = State::begun;
  poke();
}

void Exchange::write(std::string bytes) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::begun || gone_ || bytes.empty()) return;
  if (pending_.empty())
    pending_ = std::move(bytes);
  else
    pending_ += bytes;
  if (!told_full_ && !telling_ && pending_.size() + in_flight_ > stream_bytes_) {
    telling_ = true;
    idle_ = true;  // the connection is writing and would not look up
  }
  poke();
}

void Exchange::end() {
  std::unique_lock lock(mutex_);
  if (state_ == State::begun && !gone_) finish(State::complete, lock);
}

void Exchange::dropped(bool out_of_memory) {
  std::unique_lock lock(mutex_);
  if (state_ != State::fresh && state_ != State::begun) return;
  out_of_memory_ = out_of_memory;
  finish(State::dropped, lock);
}

bool Exchange::gone() const {
  const std::lock_guard lock(mutex_);
  return gone_;
}

void Exchange::on_gone(std::function<void()> call) {
  std::unique_lock lock(mutex_);
  if (state_ == State::complete || state_ == State::dropped) return;
  if (!gone_) {
    std::swap(gone_call_, call);  // an older one is dropped outside the lock
    lock.unlock();
    return;
  }
  lock.unlock();
  guarded(call);
}

void Exchange::on_pressure(std::function<void(bool)> call) {
  auto shared = std::make_shared<std::function<void(bool)>>(std::move(call));
  std::unique_lock lock(mutex_);
  if (state_ == State::complete || state_ == State::dropped || gone_) return;
  pressure_call_.swap(shared);
  const bool full = told_full_;
  const auto now = pressure_call_;
  lock.unlock();
  if (full) guarded(*now, true);
}

bool Exchange::take(Piece& piece) {
  const std::lock_guard lock(mutex_);
  const bool ended = state_ == State::complete || state_ == State::dropped;
  const bool head = !head_taken_ && state_ != State::fresh;
  if (gone_ || last_taken_ || (!head && pending_.empty() && !ended)) {
    idle_ = true;
    return false;
  }
  piece = {};
  if (head) {
    piece.head = true;
    piece.status = status_;
    piece.content_type = std::move(content_type_);
    piece.headers = std::move(headers_);
    head_taken_ = true;
  }
  piece.whole = whole_;
  piece.last = last_taken_ = ended;
  piece.failed = state_ == State::dropped;
  piece.out_of_memory = out_of_memory_;
  piece.bytes = std::move(pending_);
  pending_.clear();
  in_flight_ += piece.bytes.size();
  return true;
}

void Exchange::written(size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    in_flight_ -= std::min(in_flight_, bytes);
    if (!told_full_) return;
  }
  tell_pressure();
}

void Exchange::tell_pressure() {
  std::unique_lock lock(mutex_);
  telling_ = false;
  const size_t waiting = pending_.size() + in_flight_;
  const bool full = waiting > (told_full_ ? stream_bytes_ / 2 : stream_bytes_);
  if (full == told_full_ || gone_) return;
  told_full_ = full;
  const auto call = pressure_call_;
  lock.unlock();
  if (call) guarded(*call, full);
}

void Exchange::leave(bool gone) {
  std::unique_lock lock(mutex_);
  sink_ = nullptr;
  const bool tell = gone && !gone_ && (state_ == State::fresh || state_ == State::begun);
  gone_ |= gone;
  std::string pending;
  pending.swap(pending_);
  const auto gone_call = std::move(gone_call_);
  const auto pressure_call = std::move(pressure_call_);
  gone_call_ = nullptr;
  pressure_call_ = nullptr;
  lock.unlock();
  if (tell) guarded(gone_call);
}

}  // namespace argent::server
