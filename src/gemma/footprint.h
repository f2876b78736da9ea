// What a model takes in memory: bytes of its weights in each format that nibble writes, and bytes
// of K and V per token.
//
// Weights are counted tensor by tensor, from the config's expected tensors or from a file's own.
// K and V exist for the layers that own them alone (config.h): a full layer keeps every token, a
// sliding one only what its window and the step in progress can see, where the engine gives the
// rest back, and every token where it does not.
// Tested by footprint_test.cc, and by tests/interop/test_plan.py against published figures.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf.h"
#include "gemma/config.h"
#include "gemma/tensors.h"

namespace nibble::gemma {

enum class WeightFormat {
  kBF16,
  kQ4W4A16,      // linears in int4: 32 codes in 16 bytes and a 2-byte scale
  kQ4W4A16Emb4,  // tables too, the tied one a second time as the head
  kW8A8,         // linears in int8, a scale of 4 bytes per row
  kW8A8Emb4,     // linears in int8, tables and head in int4
  kGguf,         // Q4_0 throughout: 18 bytes per 32
};
inline constexpr std::array kWeightFormats = {WeightFormat::kBF16,        WeightFormat::kQ4W4A16,
                                              WeightFormat::kQ4W4A16Emb4, WeightFormat::kW8A8,
                                              WeightFormat::kW8A8Emb4,    WeightFormat::kGguf};
std::string_view Name(WeightFormat format);

struct WeightBytes {
  uint64_t n_bytes = 0;       // as the file stores them, scales included
  uint64_t n_int4_bytes = 0;  // of these, codes of 4 bits
  // Of these, tables of which rows are looked up and nothing else: nibble leaves them in the file.
  // A token table without a head of its own is one too, and stays.
  uint64_t n_lookup_bytes = 0;

  // In an engine that keeps such a code in a byte.
  uint64_t n_widened_bytes() const { return n_bytes + n_int4_bytes; }
  void Add(const WeightBytes& other) {
    n_bytes += other.n_bytes;
    n_int4_bytes += other.n_int4_bytes;
    n_lookup_bytes += other.n_lookup_bytes;
  }
};

// The text model's weights, written in `format`.
WeightBytes TextWeightBytes(const Config& config, WeightFormat format);

// A checkpoint's tensors as they are, towers included; those of a GGUF file.
WeightBytes StoredBytes(const checkpoint::Checkpoint& checkpoint);
WeightBytes StoredBytes(const checkpoint::GgufHeader& file);
// Of these, the towers'.
uint64_t StoredTowerBytes(const checkpoint::Checkpoint& checkpoint);
// Whether its linears are bf16 and not codes and scales.
bool IsUnpacked(const checkpoint::Checkpoint& checkpoint);

// What nibble's forward pass holds beside weights, K and V in a step of so many tokens: about the
// float32 rows that are alive at once in the widest layer, and one row of logits.
uint64_t StepBytes(const Config& config, int64_t n_tokens);

struct KvFootprint {
  uint64_t full_bytes_per_token = 0;     // all full layers that own K and V
  uint64_t sliding_bytes_per_token = 0;  // all sliding ones
  int64_t window_tokens = 0;             // that a sliding layer keeps of one sequence at most

  // Of one sequence of n_tokens in an engine that gives slid-out tokens back.
  uint64_t WindowedBytes(int64_t n_tokens) const;
  // In one that keeps them.
  uint64_t FullLengthBytes(int64_t n_tokens) const;
};

// value_bytes: of one value of K or V: 2 for bf16, 1 for int8 (their scales are not counted).
KvFootprint KvOf(const Config& config, int value_bytes);

}  // namespace nibble::gemma
