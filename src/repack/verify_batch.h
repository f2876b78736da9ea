// The usual cases of a proof, many groups at a time: every value is read back bit for bit, or all
// are within one bf16 step and the stored scale is the nearest one (rule 2 of verify_group.h).
//
// What is found identical needs no more proof. For the others each value and its code admit an
// interval of scales, and these are intersected as verify_group.h does, but in float32: times 840,
// ends have 16 significant bits and scales 19, so that the products are exact, and an end that does
// not belong to its interval is moved inwards by one unit in the last place, less than any two
// different ones lie apart. What is neither, or has a scale that is 0, NaN or near the ends of its
// range, is left to ProveGroup, and so is everything where no vector instructions are at hand.
// Plain types only, as this is included where code is compiled for newer CPUs.
// Tested by verify_batch_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>

namespace nibble {
enum class InstructionSet : uint8_t;
}

namespace nibble::repack {

// Consecutive groups of 32.
struct ProofBatch {
  const std::byte* source = nullptr;  // 64 bytes a group: bf16
  const std::byte* packed = nullptr;  // 16 bytes a group: nibbles, code + 8, low first
  const std::byte* scales = nullptr;  // 2 bytes a group
  bool is_fp16 = false;               // scales are F16, else BF16
  int64_t n_groups = 0;
};

// Over the groups that were proven right.
struct ProofSums {
  uint64_t n_groups = 0;
  uint64_t n_negative_scales = 0;
  uint64_t n_bit_identical = 0;  // values, as the next
  uint64_t n_zero_sign_lost = 0;
  uint32_t worst_ulp = 0;
  double sum_squares = 0;  // of the source's values
  double sum_squared_error = 0;
  float max_error = 0;
};

// Writes the indices of groups left to ProveGroup to `left_over` (room for n_groups; ascending),
// adds the others to `sums`, returns how many are left over. `set` is one that this machine has.
int64_t ProveBatch(InstructionSet set, const ProofBatch& batch, uint32_t* left_over,
                   ProofSums* sums);

int64_t ProveBatchAvx2(const ProofBatch& batch, uint32_t* left_over, ProofSums* sums);
int64_t ProveBatchAvx512(const ProofBatch& batch, uint32_t* left_over, ProofSums* sums);

}  // namespace nibble::repack
