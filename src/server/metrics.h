// Counts and durations since the server began, in Prometheus' text format; names are vLLM's where
// the meaning is the same. Thread-safe. Tested by service_test.cc.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace nibble::server {

struct ServedModel;

class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void Observe(double value);
  // HELP, TYPE, _bucket, _sum, _count. `labels` as in {model_name="x"}, without braces.
  void Write(std::string_view name, std::string_view help, std::string_view labels,
             std::string* text) const;

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;  // of values at most bounds_[i]; the last: of larger ones
  double sum_ = 0;
};

// One request for tokens, when it has ended.
struct RequestRecord {
  int64_t n_prompt_tokens = 0;
  int64_t n_cached_tokens = 0;
  int64_t n_completion_tokens = 0;
  double first_token_s = -1;  // since it came; negative: there was none
  double total_s = 0;
  std::vector<std::string> finish_reasons;  // of each choice: stop, length, tool_calls, abort
};

class Metrics {
 public:
  Metrics();
  void CountRequest(const RequestRecord& record);
  void CountTokenGap(double seconds);  // between two tokens of one answer
  void CountTokens(int64_t n_prompt, int64_t n_generated);
  void CountResponse(int status);

  // `model`: null while there is none.
  std::string Text(const ServedModel* model) const;

 private:
  mutable std::mutex mutex_;
  uint64_t n_prompt_tokens_ = 0;
  uint64_t n_generated_tokens_ = 0;
  std::map<std::string, uint64_t> n_by_finish_;
  std::map<int, uint64_t> n_by_status_;
  Histogram first_token_s_;
  Histogram token_gap_s_;
  Histogram total_s_;
  Histogram prompt_tokens_;
  Histogram generated_tokens_;
};

}  // namespace nibble::server
