// The one thread that steps an engine, and the mailbox through which all others reach it.
//
// Submissions and cancellations are taken in between two steps, in the order in which they came, so
// work for a client that has gone ends within one step. How many requests there may be is decided
// at the door. Thread-safe. Tested by engine_thread_test.cc.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "server/token_queue.h"

namespace nibble::server {

// What the thread drives: an engine, or in tests a script.
class TokenEngine {
 public:
  virtual ~TokenEngine() = default;
  // As engine::Engine's.
  virtual Result<engine::RequestId> Submit(engine::Request request) = 0;
  virtual void Cancel(engine::RequestId id) = 0;
  virtual std::vector<engine::Event> Step() = 0;
  virtual bool idle() const = 0;
  virtual engine::Stats stats() const = 0;
};

// `engine` must outlive it.
std::unique_ptr<TokenEngine> DriveEngine(engine::Engine& engine);

class EngineThread {
 public:
  using Ticket = uint64_t;

  // At most this many requests at once, those that wait included.
  EngineThread(std::unique_ptr<TokenEngine> engine, int max_requests);
  // Drops what is unfinished.
  ~EngineThread();
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // All of them, numbered as choices of `queue`, or none: there are too many already. A request
  // that the engine refuses fails the queue.
  std::optional<std::vector<Ticket>> Submit(std::vector<engine::Request> requests,
                                            const std::shared_ptr<TokenQueue>& queue);
  // Requests that have finished are ignored. Nothing more of them comes once a step has passed.
  void Cancel(std::span<const Ticket> tickets);

  int max_requests() const { return max_requests_; }
  // Submitted and neither finished nor cancelled.
  int n_requests() const;
  // As of the last step; n_waiting counts those in the mailbox, too.
  engine::Stats stats() const;
  // Why the engine has stopped for good; "" while it works.
  std::string failure() const;

 private:
  struct Submission {
    Ticket ticket = 0;
    engine::Request request;
    std::shared_ptr<TokenQueue> queue;
    int choice_idx = 0;
  };
  struct Live {
    Ticket ticket = 0;
    std::shared_ptr<TokenQueue> queue;
    int choice_idx = 0;
  };
  struct Mail {
    std::vector<Submission> submissions;
    std::vector<Ticket> cancelled;
  };

  void Run();
  bool WaitForMail(Mail* mail);
  void Accept(Mail& mail);
  void StepAndDeliver();
  void Forget(engine::RequestId id);
  void FailAll(Mail& unread, const std::string& message);

  const std::unique_ptr<TokenEngine> engine_;
  const int max_requests_;

  mutable std::mutex mutex_;
  std::condition_variable mailed_;
  Mail mail_;
  bool stopping_ = false;
  int n_requests_ = 0;
  Ticket next_ticket_ = 1;
  engine::Stats stats_;
  std::string failure_;

  // The thread's own.
  std::unordered_map<engine::RequestId, Live> live_;
  std::unordered_map<Ticket, engine::RequestId> ids_;

  std::thread thread_;  // last: it uses all the others
};

}  // namespace nibble::server
