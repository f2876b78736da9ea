#include "measure/ask.h"

#include <unordered_map>
#include <utility>

namespace nibble::measure {

Result<std::vector<Answer>> AskAll(engine::Engine& engine, const text::Tokenizer& tokenizer,
                                   const text::ChatOptions& chat, std::span<const int32_t> stop_ids,
                                   std::span<const Question> questions,
                                   const std::function<void(size_t n_done)>& on_answered) {
  std::vector<Answer> answers;
  std::unordered_map<engine::RequestId, size_t> answer_of_request;
  for (const Question& question : questions) {
    const Json messages = Json::array({{{"role", "user"}, {"content", question.prompt}}});
    NIBBLE_ASSIGN_OR_RETURN(const std::string prompt, text::RenderChat(messages, nullptr, chat));
    Answer answer{.question = question,
                  .prompt_ids = tokenizer.Encode(prompt, /*add_bos=*/false),
                  .token_ids = {},
                  .text = {}};
    engine::Request request;
    request.prompt_ids = answer.prompt_ids;
    request.max_tokens = kMaxAnswerTokens;
    request.stop_ids.assign(stop_ids.begin(), stop_ids.end());
    NIBBLE_ASSIGN_OR_RETURN(const engine::RequestId id, engine.Submit(std::move(request)));
    answer_of_request[id] = answers.size();
    answers.push_back(std::move(answer));
  }
  size_t n_done = 0;
  while (!engine.idle()) {
    for (const engine::Event& event : engine.Step()) {
      Answer& answer = answers[answer_of_request.at(event.request_id)];
      answer.token_ids.push_back(event.token_id);
      if (event.finish == engine::FinishReason::kNone) continue;
      answer.is_stopped = event.finish == engine::FinishReason::kStop;
      NIBBLE_ASSIGN_OR_RETURN(answer.text, tokenizer.Decode(answer.token_ids, true));
      answer.is_correct = IsCorrect(answer.question, answer.text);
      on_answered(++n_done);
    }
  }
  return answers;
}

Json ToJson(const Answer& answer) {
  return {{"id", answer.question.id},
          {"kind", Name(answer.question.kind)},
          {"prompt", answer.question.prompt},
          {"expected", answer.question.expected},
          {"answer", answer.text},
          {"correct", answer.is_correct},
          {"finish_reason", answer.is_stopped ? "stop" : "length"},
          {"prompt_ids", answer.prompt_ids},
          {"token_ids", answer.token_ids}};
}

Json Summarize(std::span<const Answer> answers) {
  Json kinds = Json::object();
  for (const Kind kind : kKinds) kinds[Name(kind)] = {{"correct", 0}, {"total", 0}};
  int n_correct = 0;
  for (const Answer& answer : answers) {
    Json& counts = kinds[Name(answer.question.kind)];
    counts["total"] = counts["total"].get<int>() + 1;
    if (!answer.is_correct) continue;
    counts["correct"] = counts["correct"].get<int>() + 1;
    ++n_correct;
  }
  return {{"correct", n_correct},
          {"total", answers.size()},
          {"accuracy", static_cast<double>(n_correct) / static_cast<double>(answers.size())},
          {"kinds", std::move(kinds)}};
}

}  // namespace nibble::measure
