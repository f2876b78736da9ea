// The common case of a proof, many groups at a time: every value is read back, bit for bit.
//
// A group has 16 possible values, one for each code; they are multiplied and rounded once and then
// looked up by nibble. What is found identical needs no more proof (verify_group.h); what is not,
// or has a scale that is 0, infinite or NaN, is left to ProveGroup, and so is everything where no
// vector instructions are at hand. Plain types only, as this is included where code is compiled for
// newer CPUs. Tested by verify_batch_test.cc.
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

// Writes the indices of groups left to ProveGroup to `left_over` (room for n_groups; ascending),
// adds how many of the others have a negative scale, returns how many are left over. `set` is one
// that this machine has.
int64_t LeaveOutIdentical(InstructionSet set, const ProofBatch& batch, uint32_t* left_over,
                          uint64_t* n_negative_scales);

int64_t LeaveOutIdenticalAvx2(const ProofBatch& batch, uint32_t* left_over,
                              uint64_t* n_negative_scales);
int64_t LeaveOutIdenticalAvx512(const ProofBatch& batch, uint32_t* left_over,
                                uint64_t* n_negative_scales);

}  // namespace nibble::repack
