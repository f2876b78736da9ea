// The engine in this process as a target. Tested by tests/interop/test_eval.py against
// `nibble generate`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "measure/target.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace nibble::measure {

class EngineTarget : public Target {
 public:
  // References must outlive the target.
  EngineTarget(engine::Engine& engine, const text::Tokenizer& tokenizer, text::ChatOptions chat,
               std::vector<int32_t> stop_ids)
      : engine_(engine), tokenizer_(tokenizer), chat_(chat), stop_ids_(std::move(stop_ids)) {}

  void AskAll(std::span<const Query> queries, int concurrency, const OnReply& on_reply) override;

 private:
  struct Pending;

  Result<std::vector<int32_t>> PromptIds(const Query& query) const;
  Status Submit(Pending& pending);
  // An event of the query's request; true: it was the last one.
  Result<bool> Take(Pending& pending, const engine::Event& event) const;
  Status TakePrompt(Pending& pending, const engine::Event& event) const;
  void ReadCalls(Reply* reply) const;
  Result<Reply> Finish(Pending pending) const;
  Result<Step> ToStep(int32_t token_id, double logprob,
                      std::span<const engine::TokenLogprob> top) const;

  engine::Engine& engine_;
  const text::Tokenizer& tokenizer_;
  text::ChatOptions chat_;
  std::vector<int32_t> stop_ids_;
};

}  // namespace nibble::measure
