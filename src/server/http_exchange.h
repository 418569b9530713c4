// One request's answer on its way from whoever writes it (any thread) to its connection (the thread of the server).
#pragma once

#include <mutex>

#include "server/http.h"

namespace argent::server {

class Exchange {
 public:
  // The connection. poke() is called on any thread, under the lock of the exchange, when the connection has taken
  // everything there was and there is more now: many small writes cost one poke. Nothing is thrown.
  struct Sink {
    virtual void poke() noexcept = 0;

   protected:
    ~Sink() = default;
  };

  Exchange(Sink* sink, size_t stream_bytes) : sink_(sink), stream_bytes_(stream_bytes) {}

  // What the writer calls; see Reply.
  void send(int status, std::string body, std::string_view content_type, Headers headers);
  void begin(int status, std::string_view content_type, Headers headers);
  void write(std::string bytes);
  void end();
  void on_gone(std::function<void()> call);
  void on_pressure(std::function<void(bool)> call);
  bool gone() const;
  void dropped(bool out_of_memory = false);  // no answer, or no rest of it, will come

  // What the connection calls, on its thread.
  struct Piece {
    bool head = false;    // status, content_type and headers are set: nothing has been taken before
    bool whole = false;   // bytes is all of the body, known with the head
    bool last = false;    // nothing comes behind bytes
    bool failed = false;  // dropped: before a head, or in the middle
    bool out_of_memory = false;
    int status = 0;  // 0: there is no answer
    std::string content_type;
    Headers headers;
    std::string bytes;
  };
  bool take(Piece& piece);     // false: there is nothing new, a poke will come
  void written(size_t bytes);  // of a piece's, and a client took them
  void tell_pressure();        // if it has changed
  void leave(bool gone);       // no poke comes after it; calls on_gone if the answer was not complete

 private:
  enum class State { fresh, begun, complete, dropped };

  void poke();  // under the lock
  void finish(State state, std::unique_lock<std::mutex>& lock);

  mutable std::mutex mutex_;
  Sink* sink_;
  const size_t stream_bytes_;
  State state_ = State::fresh;
  bool whole_ = false, head_taken_ = false, last_taken_ = false, gone_ = false, out_of_memory_ = false;
  bool idle_ = true;                          // the connection waits for a poke
  bool told_full_ = false, telling_ = false;  // what on_pressure was told; a poke to tell it is under way
  int status_ = 0;
  std::string content_type_;
  Headers headers_;
  std::string pending_;
  size_t in_flight_ = 0;  // bytes taken and not written
  std::function<void()> gone_call_;
  std::shared_ptr<std::function<void(bool)>> pressure_call_;
};

// Answers nobody gave are noticed here.
std::shared_ptr<Reply> make_reply(std::shared_ptr<Exchange> exchange);

}  // namespace argent::server
