// A test double of the engine that gives scripted tokens at a given pace, and the tiny model's text
// side around it.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "server/served_model.h"

namespace nibble::server {

inline const std::string kTinyModel = NIBBLE_SOURCE_DIR "/models/tiny";

inline const text::Tokenizer& TinyTokenizer() {
  static const text::Tokenizer tokenizer = text::Tokenizer::Open(kTinyModel).value();
  return tokenizer;
}

inline std::vector<int32_t> Ids(std::string_view text) {
  return TinyTokenizer().Encode(text, false);
}

// What a test sees of the engine from outside.
struct EngineView {
  std::atomic<int> n_live = 0;
  std::atomic<int> n_steps = 0;
  std::atomic<int> throws_at_step = -1;
  std::atomic<bool> is_held = false;
  std::atomic<bool> is_in_held_step = false;
};

// A step that begins while this exists lasts until Release(), whatever time that takes: what a test
// does meanwhile happens while the engine is busy.
class HeldStep {
 public:
  explicit HeldStep(EngineView& view) : view_(view) { view_.is_held = true; }
  ~HeldStep() { Release(); }
  HeldStep(const HeldStep&) = delete;

  bool has_begun() const { return view_.is_in_held_step; }
  void Release() {
    view_.is_held = false;
    view_.is_held.notify_all();
  }

 private:
  EngineView& view_;
};

class ScriptedEngine : public TokenEngine {
 public:
  // The whole answer to a request, its stop token included.
  using Script = std::function<std::vector<int32_t>(const engine::Request&)>;
  struct Options {
    int max_sequences = 16;
    int n_prefill_steps = 0;
    std::chrono::microseconds step_time{0};
  };

  ScriptedEngine(Script script, Options options, std::shared_ptr<EngineView> view)
      : script_(std::move(script)), options_(options), view_(std::move(view)) {}

  Result<engine::RequestId> Submit(engine::Request request) override {
    std::vector<int32_t> answer = script_(request);
    sequences_.push_back({.id = next_id_++,
                          .request = std::move(request),
                          .answer = std::move(answer),
                          .n_prefill_left = options_.n_prefill_steps});
    view_->n_live = static_cast<int>(sequences_.size());
    return sequences_.back().id;
  }

  void Cancel(engine::RequestId id) override {
    std::erase_if(sequences_, [id](const Sequence& sequence) { return sequence.id == id; });
    view_->n_live = static_cast<int>(sequences_.size());
  }

  std::vector<engine::Event> Step() override {
    if (idle()) return {};
    if (view_->n_steps++ == view_->throws_at_step) throw std::runtime_error("out of memory");
    for (; view_->is_held; view_->is_held.wait(true)) view_->is_in_held_step = true;
    view_->is_in_held_step = false;
    if (options_.step_time.count() > 0) std::this_thread::sleep_for(options_.step_time);
    std::vector<engine::Event> events;
    const size_t n_running =
        std::min(sequences_.size(), static_cast<size_t>(options_.max_sequences));
    for (size_t i = 0; i < n_running; ++i) {
      if (sequences_[i].n_prefill_left-- > 0) continue;
      events.push_back(Next(sequences_[i]));
    }
    for (const engine::Event& event : events) {
      if (event.finish != engine::FinishReason::kNone) Cancel(event.request_id);
    }
    return events;
  }

  bool idle() const override { return sequences_.empty(); }

  engine::Stats stats() const override {
    engine::Stats stats;
    const auto n = static_cast<int64_t>(sequences_.size());
    stats.n_running = std::min<int64_t>(n, options_.max_sequences);
    stats.n_waiting = n - stats.n_running;
    return stats;
  }

 private:
  struct Sequence {
    engine::RequestId id = 0;
    engine::Request request;
    std::vector<int32_t> answer;
    int n_prefill_left = 0;
    size_t n_given = 0;
  };

  static engine::Event Next(Sequence& sequence) {
    engine::Event event;
    event.request_id = sequence.id;
    event.token_id = sequence.answer[std::min(sequence.n_given, sequence.answer.size() - 1)];
    event.logprob = -0.5;
    if (sequence.request.n_top_logprobs > 0) event.top = {{.id = event.token_id, .logprob = -0.5}};
    ++sequence.n_given;
    const auto& stops = sequence.request.stop_ids;
    if (std::ranges::find(stops, event.token_id) != stops.end()) {
      event.finish = engine::FinishReason::kStop;
    } else if (sequence.n_given >= static_cast<size_t>(sequence.request.max_tokens)) {
      event.finish = engine::FinishReason::kLength;
    }
    return event;
  }

  const Script script_;
  const Options options_;
  const std::shared_ptr<EngineView> view_;
  std::vector<Sequence> sequences_;
  engine::RequestId next_id_ = 1;
};

// Repeats its last token for ever if that is no stop token.
inline ScriptedEngine::Script Says(std::string_view text) {
  return [ids = Ids(text)](const engine::Request&) { return ids; };
}

inline ServedModel ScriptedModel(ScriptedEngine::Script script,
                                 ScriptedEngine::Options options = {}, int max_requests = 64,
                                 std::shared_ptr<EngineView> view = nullptr) {
  if (view == nullptr) view = std::make_shared<EngineView>();
  ServedModel model{.names = {"tiny", "alias"},
                    .tokenizer = text::Tokenizer::Open(kTinyModel).value()};
  model.stop_ids = {1, 106, 50};
  model.context_tokens = 512;
  model.n_token_ids = TinyTokenizer().vocab_size();
  static const auto vocabulary = std::make_shared<const grammar::Vocabulary>(
      grammar::Vocabulary::Make(TinyTokenizer()).value());
  model.grammars = std::make_unique<GrammarCache>(vocabulary);
  model.engine = std::make_unique<EngineThread>(
      std::make_unique<ScriptedEngine>(std::move(script), options, std::move(view)), max_requests);
  return model;
}

// Waits until it holds; whether it does. The limit is for what never happens, however slow the
// machine.
inline bool Eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(5);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// Ends every answer at once.
inline const ServedModel& SilentModel() {
  static const ServedModel kModel = ScriptedModel(Says("<turn|>"));
  return kModel;
}

}  // namespace nibble::server
