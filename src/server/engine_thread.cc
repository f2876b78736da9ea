#include "server/engine_thread.h"

#include <exception>
#include <string>

namespace nibble::server {
namespace {

class DrivenEngine : public TokenEngine {
 public:
  explicit DrivenEngine(engine::Engine& engine) : engine_(engine) {}
  Result<engine::RequestId> Submit(engine::Request request) override {
    return engine_.Submit(std::move(request));
  }
  void Cancel(engine::RequestId id) override { engine_.Cancel(id); }
  std::vector<engine::Event> Step() override { return engine_.Step(); }
  bool idle() const override { return engine_.idle(); }
  engine::Stats stats() const override { return engine_.stats(); }

 private:
  engine::Engine& engine_;
};

}  // namespace

std::unique_ptr<TokenEngine> DriveEngine(engine::Engine& engine) {
  return std::make_unique<DrivenEngine>(engine);
}

EngineThread::EngineThread(std::unique_ptr<TokenEngine> engine, int max_requests)
    : engine_(std::move(engine)), max_requests_(max_requests), stats_(engine_->stats()) {
  thread_ = std::thread([this] { Run(); });
}

EngineThread::~EngineThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  mailed_.notify_one();
  thread_.join();
}

std::optional<std::vector<EngineThread::Ticket>> EngineThread::Submit(
    std::vector<engine::Request> requests, const std::shared_ptr<TokenQueue>& queue) {
  std::vector<Ticket> tickets;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) {
      queue->Fail(failure_);
      return tickets;
    }
    const int n_new = static_cast<int>(requests.size());
    if (n_new > max_requests_ - n_requests_) return std::nullopt;
    n_requests_ += n_new;
    for (int i = 0; i < n_new; ++i) {
      tickets.push_back(next_ticket_++);
      mail_.submissions.push_back({.ticket = tickets.back(),
                                   .request = std::move(requests[i]),
                                   .queue = queue,
                                   .choice_idx = i});
    }
  }
  mailed_.notify_one();
  return tickets;
}

void EngineThread::Cancel(std::span<const Ticket> tickets) {
  {
    const std::lock_guard lock(mutex_);
    mail_.cancelled.insert(mail_.cancelled.end(), tickets.begin(), tickets.end());
  }
  mailed_.notify_one();
}

int EngineThread::n_requests() const {
  const std::lock_guard lock(mutex_);
  return n_requests_;
}

engine::Stats EngineThread::stats() const {
  const std::lock_guard lock(mutex_);
  engine::Stats stats = stats_;
  stats.n_waiting += static_cast<int64_t>(mail_.submissions.size());
  return stats;
}

std::string EngineThread::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

// An exception (no memory, say) ends the engine, not the server: health says so from then on.
void EngineThread::Run() {
  Mail mail;
  try {
    for (; WaitForMail(&mail); mail = {}) {
      Accept(mail);
      StepAndDeliver();
    }
  } catch (const std::exception& error) {
    FailAll(mail, fmt::format("the engine has stopped: {}", error.what()));
  }
}

bool EngineThread::WaitForMail(Mail* mail) {
  std::unique_lock lock(mutex_);
  mailed_.wait(lock, [&] {
    return stopping_ || !engine_->idle() || !mail_.submissions.empty() || !mail_.cancelled.empty();
  });
  *mail = std::exchange(mail_, {});
  return !stopping_;
}

// A ticket that is cancelled was submitted before, so submissions come first.
void EngineThread::Accept(Mail& mail) {
  for (Submission& submission : mail.submissions) {
    const Result<engine::RequestId> id = engine_->Submit(std::move(submission.request));
    if (!id.has_value()) {
      submission.queue->Fail(id.error().message);
      const std::lock_guard lock(mutex_);
      --n_requests_;
      continue;
    }
    ids_[submission.ticket] = *id;
    live_[*id] = {.ticket = submission.ticket,
                  .queue = std::move(submission.queue),
                  .choice_idx = submission.choice_idx};
  }
  for (const Ticket ticket : mail.cancelled) {
    const auto found = ids_.find(ticket);
    if (found == ids_.end()) continue;
    const engine::RequestId id = found->second;
    engine_->Cancel(id);
    Forget(id);
  }
}

void EngineThread::StepAndDeliver() {
  for (engine::Event& event : engine_->Step()) {
    const engine::RequestId id = event.request_id;
    const bool is_last = event.finish != engine::FinishReason::kNone;
    const Live live = live_.at(id);
    // Before its last token is delivered: who has an answer may ask again at once.
    if (is_last) Forget(id);
    if (!live.queue->Push(live.choice_idx, std::move(event)) && !is_last) {
      engine_->Cancel(id);
      Forget(id);
    }
  }
  const engine::Stats stats = engine_->stats();
  const std::lock_guard lock(mutex_);
  stats_ = stats;
}

void EngineThread::Forget(engine::RequestId id) {
  ids_.erase(live_.at(id).ticket);
  live_.erase(id);
  const std::lock_guard lock(mutex_);
  --n_requests_;
}

void EngineThread::FailAll(Mail& unread, const std::string& message) {
  for (const auto& [id, live] : live_) live.queue->Fail(message);
  for (const Submission& submission : unread.submissions) {
    if (submission.queue) submission.queue->Fail(message);  // else it is live
  }
  const std::lock_guard lock(mutex_);
  failure_ = message;
  for (const Submission& submission : mail_.submissions) submission.queue->Fail(message);
  mail_ = {};
  n_requests_ = 0;
}

}  // namespace nibble::server
