// Tokens on their way from the engine's thread to the one that answers a client. Bounded: a client
// that does not read costs its own answer and nobody else's. Tested by engine_thread_test.cc.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace nibble::server {

struct Delivery {
  int choice_idx = 0;
  engine::Event event;
};

class TokenQueue {
 public:
  explicit TokenQueue(size_t max_events) : max_events_(max_events) {}

  // The engine's side. False: it was full, the event is lost and the queue has failed.
  bool Push(int choice_idx, engine::Event event);
  // Nothing more will come, and why.
  void Fail(std::string message);

  // The reader's side. Called whenever an empty queue gets something, by the engine's thread.
  void SetWake(std::function<void()> wake);
  // Everything that is there, in order.
  std::vector<Delivery> Take();
  // Why nothing more will come after what was taken; "" while all is well.
  std::string failure() const;

 private:
  const size_t max_events_;
  mutable std::mutex mutex_;
  std::function<void()> wake_;
  std::vector<Delivery> deliveries_;
  std::string failure_;
};

}  // namespace nibble::server
