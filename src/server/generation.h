// Tokens being generated for one request: submits its choices to the engine, turns what comes into
// a stream or a whole answer, and cancels what is unfinished when its client goes. Tested by
// service_test.cc.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "server/answer_json.h"
#include "server/choice.h"
#include "server/generation_request.h"
#include "server/http_message.h"
#include "server/metrics.h"
#include "server/request_log.h"
#include "server/served_model.h"

namespace nibble::server {

class Generation : public Exchange {
 public:
  // What a generation needs of the server; all outlive it.
  struct Context {
    const ServedModel& model;
    Metrics& metrics;
    const RequestLog& log;
    size_t max_buffered_tokens;  // that the client has not read
  };

  // 429 if the engine has too many requests already.
  static ApiResult<std::unique_ptr<Generation>> Start(GenerationRequest request,
                                                      const Context& context, LogEntry log_entry);
  ~Generation() override;

  void SetWake(std::function<void()> wake) override;
  bool Advance(std::string* body) override;
  HttpResponse TakeResponse() override;

  bool is_stream() const { return request_.stream; }
  const std::string& id() const { return head_.id; }

 private:
  using Clock = std::chrono::steady_clock;

  Generation(GenerationRequest request, const Context& context, LogEntry log_entry);

  std::vector<engine::Request> EngineRequests() const;
  void Take(const Delivery& delivery, std::string* body);
  void Emit(AnswerPiece piece, std::string* body);
  AnswerPiece EchoPiece(int choice_idx, const engine::Event& event) const;
  void SetOffsets(AnswerPiece* piece);
  void End(std::string* body);
  void Cancel();
  Usage TotalUsage() const;
  double SecondsSinceStart() const;

  const GenerationRequest request_;
  const Context context_;
  LogEntry log_entry_;
  AnswerHead head_;
  const Clock::time_point start_ = Clock::now();

  std::shared_ptr<TokenQueue> queue_;
  std::vector<EngineThread::Ticket> tickets_;
  std::vector<Choice> choices_;
  std::vector<AnswerPiece> answers_;  // whole ones; a stream's hold no text
  std::vector<int64_t> n_chars_;      // of each choice's text so far
  std::vector<Clock::time_point> last_token_;
  std::vector<int64_t> n_cached_tokens_;  // of each choice's prompt
  double first_token_s_ = -1;
  size_t n_finished_ = 0;
  bool ended_ = false;
  std::string failure_;
};

}  // namespace nibble::server
