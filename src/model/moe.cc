#include "model/moe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace nibble::model {

void Moe::Route(const LayerWeights& w, const float* residual, int64_t n_tokens) {
  const int64_t hidden = config_.hidden_size;
  const int64_t n_experts = config_.n_experts;
  router_in_.resize(static_cast<size_t>(n_tokens * hidden));
  probabilities_.resize(static_cast<size_t>(n_tokens * n_experts));
  ops_.kernels.rms_norm(residual, w.router_scale.data(), n_tokens, hidden, config_.rms_norm_eps,
                        router_in_.data());
  Scale(static_cast<float>(1.0 / std::sqrt(static_cast<double>(hidden))), n_tokens * hidden,
        router_in_.data());
  input_.Assign(router_in_.data(), n_tokens, hidden);
  ops_.Linear(w.router_proj, input_, probabilities_.data());

  choices_.assign(static_cast<size_t>(n_experts), {});
  std::vector<int> best(static_cast<size_t>(n_experts));
  for (int64_t t = 0; t < n_tokens; ++t) {
    float* p = probabilities_.data() + t * n_experts;
    ops_.kernels.softmax(p, n_experts);
    std::iota(best.begin(), best.end(), 0);
    const auto chosen_end = best.begin() + config_.top_k_experts;
    std::partial_sort(best.begin(), chosen_end, best.end(),
                      [&](int a, int b) { return p[a] > p[b] || (p[a] == p[b] && a < b); });
    float sum = 0;
    for (auto e = best.begin(); e != chosen_end; ++e) sum += p[*e];
    for (auto e = best.begin(); e != chosen_end; ++e) {
      choices_[*e].push_back({.token = t, .weight = p[*e] / sum * w.per_expert_scale[*e]});
    }
  }
}

void Moe::Run(const LayerWeights& w, const float* residual, const float* x, int64_t n_tokens,
              float* out) {
  const int64_t hidden = config_.hidden_size;
  const int64_t width = config_.moe_width;
  Route(w, residual, n_tokens);
  std::fill_n(out, n_tokens * hidden, 0.0f);
  for (size_t expert = 0; expert < choices_.size(); ++expert) {
    const std::vector<Choice>& choices = choices_[expert];
    if (choices.empty()) continue;
    const auto n_chosen = static_cast<int64_t>(choices.size());
    expert_in_.resize(choices.size() * hidden);
    gate_up_.resize(choices.size() * 2 * width);
    inner_.resize(choices.size() * width);
    expert_out_.resize(choices.size() * hidden);
    for (int64_t i = 0; i < n_chosen; ++i) {
      std::copy_n(x + choices[i].token * hidden, hidden, expert_in_.data() + i * hidden);
    }
    input_.Assign(expert_in_.data(), n_chosen, hidden);
    ops_.Linear(w.expert_gate_up[expert], input_, gate_up_.data());
    for (int64_t i = 0; i < n_chosen; ++i) {
      const float* gate = gate_up_.data() + i * 2 * width;
      ops_.kernels.gelu_mul(gate, gate + width, width, inner_.data() + i * width);
    }
    input_.Assign(inner_.data(), n_chosen, width);
    ops_.Linear(w.expert_down[expert], input_, expert_out_.data());
    Scatter(choices, out);
  }
}

void Moe::Scatter(const std::vector<Choice>& choices, float* out) {
  const int64_t hidden = config_.hidden_size;
  for (size_t i = 0; i < choices.size(); ++i) {
    float* row = expert_out_.data() + i * hidden;
    Scale(choices[i].weight, hidden, row);
    Add(row, hidden, out + choices[i].token * hidden);
  }
}

}  // namespace nibble::model
