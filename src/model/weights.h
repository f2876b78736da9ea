// A checkpoint's tensors bound to the places where the forward pass uses them.
//
// Every linear is copied once into the kernels' order (kernels/packed_weight.h), bf16 or int4 as
// the file has it. Embedding tables stay in the mapped file, where rows are read as they are
// needed: the per-layer table, the largest part of a small model, costs no memory that was not
// touched. Plain tensors (norms, scalars, router scales) become floats.
//
// Accepted per linear and per table: X.weight in BF16, or compressed-tensors' X.weight_packed,
// X.weight_scale and (optional) X.weight_shape; in the multimodal or the text-only spelling. Towers
// and the K/V of KV-shared layers are ignored, as is a stored lm_head of a tied model; a missing or
// mismatched tensor, or one that the architecture does not know, is an error with its name, what
// was expected and what was found. Tested by weights_test.cc and tests/interop/test_logits.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "gemma/config.h"
#include "kernels/kernels.h"
#include "kernels/packed_weight.h"

namespace nibble::model {

enum class TableFormat { kBf16, kInt4, kF16, kF32, kQ40, kQ6K };

// An embedding table in the mapped file.
struct Table {
  int64_t n_rows = 0;
  int64_t width = 0;
  TableFormat format = TableFormat::kBf16;
  std::span<const std::byte> rows = {};    // int4: codes [n_rows, width / 2]; else [n_rows, width]
  std::span<const std::byte> scales = {};  // int4: [n_rows, width / 32] of scale_dtype
  DType scale_dtype = DType::kBF16;

  // out[i] = row[i] * scale.
  void Gather(const kernels::KernelTable& kernels, int64_t row, float scale, float* out) const;
  // Lets go of the pages that gathering brought in, which are many: with one page that is touched,
  // a system maps its neighbours in the file's cache. For the end of a step, when no row is read.
  void ReleaseRows() const;
};

struct LayerWeights {
  std::vector<float> input_layernorm;             // [D]
  kernels::PackedWeight q_proj;                   // [H * C, D]
  kernels::PackedWeight k_proj;                   // [J * C, D]; only in layers that own KV
  kernels::PackedWeight v_proj;                   // [J * C, D]; likewise, and not if k_eq_v
  kernels::PackedWeight o_proj;                   // [D, H * C]
  std::vector<float> q_norm;                      // [C]
  std::vector<float> k_norm;                      // [C]; only in layers that own KV
  std::vector<float> post_attention_layernorm;    // [D]
  std::vector<float> pre_feedforward_layernorm;   // [D]
  kernels::PackedWeight gate_proj;                // [F, D]
  kernels::PackedWeight up_proj;                  // [F, D]
  kernels::PackedWeight down_proj;                // [D, F]
  std::vector<float> post_feedforward_layernorm;  // [D]
  float layer_scalar = 1;

  // P > 0
  kernels::PackedWeight per_layer_input_gate;    // [P, D]
  kernels::PackedWeight per_layer_projection;    // [D, P]
  std::vector<float> post_per_layer_input_norm;  // [D]

  // E > 0
  kernels::PackedWeight router_proj;                  // [E, D]
  std::vector<float> router_scale;                    // [D]
  std::vector<float> per_expert_scale;                // [E]
  std::vector<kernels::PackedWeight> expert_gate_up;  // E x [2 * moe_width, D], gate first
  std::vector<kernels::PackedWeight> expert_down;     // E x [D, moe_width]
  std::vector<float> pre_feedforward_layernorm_2;     // [D]
  std::vector<float> post_feedforward_layernorm_1;    // [D]
  std::vector<float> post_feedforward_layernorm_2;    // [D]
};

struct Weights {
  gemma::Config config;
  std::shared_ptr<const void> files;  // keeps the tables' file mapped
  Table embed_tokens = {};            // [V, D]
  std::vector<LayerWeights> layers = {};
  std::vector<float> norm = {};        // [D]
  kernels::PackedWeight lm_head = {};  // [V, D]; a copy of embed_tokens in tied models

  // P > 0
  Table embed_tokens_per_layer = {};                      // [ple_vocab_size, L * P]
  kernels::PackedWeight per_layer_model_projection = {};  // [L * P, D]
  std::vector<float> per_layer_projection_norm = {};      // [P]

  // Ids that have an embedding: 0 .. n - 1.
  int64_t n_token_ids() const;
  // Of the matrices that one decoded token multiplies with.
  int64_t BytesPerToken() const;
};

// Opens a model directory (config.json and safetensors) or a GGUF file (weights_gguf.h). With a
// cache directory, the tiled matrices are kept there in a file of this model, and when it is there
// already it is mapped instead of copying them. Errors: those of the files; a cache that is not
// whole or cannot be written.
Result<Weights> LoadWeights(const std::filesystem::path& path, ThreadPool& pool,
                            const std::filesystem::path& cache_directory = {});

// The same from a config and a checkpoint already open, tiled into `store`.
Result<Weights> BindWeights(gemma::Config config, checkpoint::Checkpoint checkpoint,
                            kernels::TileStore& store);

}  // namespace nibble::model
