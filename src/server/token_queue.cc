#include "server/token_queue.h"

#include <utility>

namespace nibble::server {

bool TokenQueue::Push(int choice_idx, engine::Event event) {
  {
    const std::lock_guard lock(mutex_);
    if (deliveries_.size() < max_events_) {
      deliveries_.push_back({choice_idx, std::move(event)});
      if (deliveries_.size() == 1 && wake_) wake_();
      return true;
    }
  }
  Fail(fmt::format("the client does not read: {} tokens wait for it", max_events_));
  return false;
}

void TokenQueue::Fail(std::string message) {
  const std::lock_guard lock(mutex_);
  failure_ = std::move(message);
  if (wake_) wake_();
}

void TokenQueue::SetWake(std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
}

std::vector<Delivery> TokenQueue::Take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(deliveries_, {});
}

std::string TokenQueue::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace nibble::server
