#include "model/step.h"

#include <cmath>

namespace nibble::model {

// The reference computes frequencies and angles in float32, angles of long contexts being thousands
// of radians: the roundings are part of the model, and are repeated here. cos and sin themselves
// are taken in double, so that no libm matters.
RopeTable::RopeTable(const gemma::LayerConfig& layer)
    : theta_(layer.rope_theta), head_dim_(layer.head_dim) {
  for (int j = 0; j < layer.n_rotating_pairs; ++j) {
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(head_dim_);
    const auto power = static_cast<float>(std::pow(theta_, static_cast<double>(exponent)));
    frequencies_.push_back(1.0f / power);
  }
}

bool RopeTable::Fits(const gemma::LayerConfig& layer) const {
  return theta_ == layer.rope_theta && head_dim_ == layer.head_dim &&
         n_pairs() == layer.n_rotating_pairs;
}

void RopeTable::Fill(std::span<const Row> rows) {
  cos_.clear();
  sin_.clear();
  for (const Row& row : rows) {
    for (const float frequency : frequencies_) {
      const float angle = static_cast<float>(row.position) * frequency;
      cos_.push_back(static_cast<float>(std::cos(static_cast<double>(angle))));
      sin_.push_back(static_cast<float>(std::sin(static_cast<double>(angle))));
    }
  }
}

}  // namespace nibble::model
