#include "repack/verify_int4.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/float16.h"
#include "base/instruction_set.h"
#include "repack/verify_batch.h"
#include "repack/verify_group.h"

namespace nibble::repack {
namespace {

constexpr int64_t kGroup = kLevelGroup;
constexpr int64_t kSourceBytes = kGroup * 2;  // of a group, as the next
constexpr int64_t kCodeBytes = kGroup / 2;
constexpr int64_t kBlockGroups = 4096;  // summed by one thread, in order

// One group's bytes.
struct GroupBytes {
  std::span<const std::byte, kSourceBytes> source;
  std::span<const std::byte, kCodeBytes> codes;
  const std::byte* scale = nullptr;
};

GroupBytes GroupAt(const Int4Matrix& matrix, int64_t group) {
  const int64_t scale_idx = group * kGroup / matrix.group_size;
  return {matrix.source.subspan(group * kSourceBytes).first<kSourceBytes>(),
          matrix.codes.subspan(group * kCodeBytes).first<kCodeBytes>(),
          matrix.scales.data() + scale_idx * SizeBytes(matrix.scale_dtype)};
}

float ScaleOf(const GroupBytes& group, DType dtype) {
  if (dtype == DType::kF32) {
    float scale = 0;
    std::memcpy(&scale, group.scale, sizeof scale);
    return scale;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, group.scale, sizeof bits);
  return dtype == DType::kF16 ? Fp16ToFloat(bits) : Bf16ToFloat(bits);
}

// A group as numbers.
struct Numbers {
  std::array<float, kGroup> source;
  std::array<float, kGroup> read;     // bf16(code * scale)
  std::array<int8_t, kGroup> levels;  // code, mirrored where the scale is negative
};

Numbers Read(const GroupBytes& group, float scale) {
  Numbers numbers;
  for (size_t i = 0; i < kGroup; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, group.source.data() + i * sizeof bits, sizeof bits);
    const int byte = std::to_integer<int>(group.codes[i / 2]);
    const int code = (i % 2 == 0 ? byte & 15 : byte >> 4) - 8;
    numbers.source[i] = Bf16ToFloat(bits);
    numbers.read[i] = RoundToBf16(static_cast<float>(code) * scale);
    numbers.levels[i] = static_cast<int8_t>(scale < 0 ? -code : code);
  }
  return numbers;
}

// The proof of a group whose scale verify_group.h does not know.
GroupProof ProveByReading(const GroupBytes& group, const Numbers& numbers) {
  GroupProof proof;
  for (size_t i = 0; i < kGroup; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, group.source.data() + i * sizeof bits, sizeof bits);
    if (numbers.read[i] != numbers.source[i]) continue;
    const bool is_identical = FloatToBf16(numbers.read[i]) == bits;
    ++(is_identical ? proof.n_bit_identical : proof.n_zero_sign_lost);
  }
  proof.is_right = proof.n_bit_identical + proof.n_zero_sign_lost == kGroup;
  proof.has_right_codes = CountMovedLevels(group.source, numbers.levels) == 0;
  return proof;
}

// The sum of squares of a group that is read back as it was.
double Energy(const GroupBytes& group) {
  std::array<float, 4> sums{};
  for (size_t i = 0; i < kGroup; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, group.source.data() + i * sizeof bits, sizeof bits);
    const float value = Bf16ToFloat(bits);
    sums[i % 4] += value * value;
  }
  return static_cast<double>(sums[0]) + sums[1] + sums[2] + sums[3];
}

void AddGroup(const Int4Matrix& matrix, int64_t index, Int4Proof* sum) {
  const GroupBytes group = GroupAt(matrix, index);
  const float scale = ScaleOf(group, matrix.scale_dtype);
  const GroupProof proof =
      matrix.is_provable() ? ProveGroup(group.source, group.codes, group.scale, matrix.scale_dtype)
                           : ProveByReading(group, Read(group, scale));
  ProofCounts& counts = sum->counts;
  ++counts.n_groups;
  counts.n_values += kGroup;
  counts.n_right_groups += proof.is_right ? 1 : 0;
  counts.n_wrong_codes += proof.has_right_codes ? 0 : 1;
  counts.n_negative_scales += scale < 0 ? 1 : 0;
  counts.n_bit_identical += static_cast<uint64_t>(proof.n_bit_identical);
  counts.n_zero_sign_lost += static_cast<uint64_t>(proof.n_zero_sign_lost);
  counts.worst_ulp = std::max(counts.worst_ulp, proof.worst_ulp);
  if (!proof.is_right && !sum->first_wrong.has_value()) sum->first_wrong = index;

  Measurement& measured = sum->measured;
  if (proof.n_bit_identical + proof.n_zero_sign_lost == kGroup) {
    measured.n_values += kGroup;
    measured.sum_squares += Energy(group);
    measured.n_levels += kGroup;
    return;
  }
  const Numbers numbers = Read(group, scale);
  for (size_t i = 0; i < kGroup; ++i) measured.AddValue(numbers.source[i], numbers.read[i]);
  const std::optional<int> n_moved =
      proof.has_right_codes ? 0 : CountMovedLevels(group.source, numbers.levels);
  if (!n_moved.has_value()) return;
  measured.n_levels += kGroup;
  measured.n_moved += static_cast<uint64_t>(*n_moved);
}

// Groups [first, last), at most kBlockGroups.
void AddBlock(const Int4Matrix& matrix, int64_t first, int64_t last, Int4Proof* sum) {
  const InstructionSet set = matrix.is_provable()
                                 ? ChosenInstructionSet().value_or(InstructionSet::kScalar)
                                 : InstructionSet::kScalar;
  std::array<uint32_t, kBlockGroups> left_over;
  ProofSums proven;
  const int64_t n_left_over = ProveBatch(set,
                                         {.source = matrix.source.data() + first * kSourceBytes,
                                          .packed = matrix.codes.data() + first * kCodeBytes,
                                          .scales = GroupAt(matrix, first).scale,
                                          .is_fp16 = matrix.scale_dtype == DType::kF16,
                                          .n_groups = last - first},
                                         left_over.data(), &proven);
  sum->counts = {.n_groups = proven.n_groups,
                 .n_right_groups = proven.n_groups,
                 .n_negative_scales = proven.n_negative_scales,
                 .n_values = proven.n_groups * kGroup,
                 .n_bit_identical = proven.n_bit_identical,
                 .n_zero_sign_lost = proven.n_zero_sign_lost,
                 .worst_ulp = proven.worst_ulp};
  sum->measured = {.n_values = proven.n_groups * kGroup,
                   .sum_squares = proven.sum_squares,
                   .sum_squared_error = proven.sum_squared_error,
                   .max_error = proven.max_error,
                   .n_levels = proven.n_groups * kGroup};
  for (const uint32_t i : std::span(left_over).first(n_left_over)) AddGroup(matrix, first + i, sum);
}

}  // namespace

void ProofCounts::Merge(const ProofCounts& other) {
  n_groups += other.n_groups;
  n_right_groups += other.n_right_groups;
  n_wrong_codes += other.n_wrong_codes;
  n_negative_scales += other.n_negative_scales;
  n_values += other.n_values;
  n_bit_identical += other.n_bit_identical;
  n_zero_sign_lost += other.n_zero_sign_lost;
  worst_ulp = std::max(worst_ulp, other.worst_ulp);
}

Json ProofCounts::ToJson() const {
  return {{"groups", n_groups},
          {"groups_right", n_right_groups},
          {"groups_with_wrong_codes", n_wrong_codes},
          {"negative_scales", n_negative_scales},
          {"values", n_values},
          {"values_bit_identical", n_bit_identical},
          {"zeros_of_other_sign", n_zero_sign_lost},
          {"worst_ulp", worst_ulp}};
}

Int4Proof ProveInt4(const Int4Matrix& matrix, ThreadPool& pool) {
  const int64_t n_groups = std::ssize(matrix.source) / kSourceBytes;
  std::vector<Int4Proof> blocks(static_cast<size_t>((n_groups + kBlockGroups - 1) / kBlockGroups));
  pool.ParallelFor(std::ssize(blocks), [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kBlockGroups;
      AddBlock(matrix, first, std::min(first + kBlockGroups, n_groups), &blocks[block]);
    }
  });
  Int4Proof proof;
  for (const Int4Proof& block : blocks) {
    proof.counts.Merge(block.counts);
    proof.measured.Merge(block.measured);
    if (!proof.first_wrong.has_value()) proof.first_wrong = block.first_wrong;
  }
  return proof;
}

std::string DescribeInt4Fault(const Int4Matrix& matrix, int64_t index) {
  const int64_t groups_per_row = matrix.n_columns / kGroup;
  const int64_t group_idx = index % groups_per_row;
  const GroupBytes group = GroupAt(matrix, index);
  int column = 0;
  std::string fault;
  if (matrix.is_provable()) {
    column = ProveGroup(group.source, group.codes, group.scale, matrix.scale_dtype).column;
    fault = DescribeFault(group.source, group.codes, group.scale, matrix.scale_dtype);
  } else {
    const float scale = ScaleOf(group, matrix.scale_dtype);
    const Numbers numbers = Read(group, scale);
    while (column + 1 < kGroup && numbers.read[column] == numbers.source[column]) ++column;
    fault = fmt::format("level {} x scale {} reads as {}, expected {}", numbers.levels[column],
                        std::fabs(scale), numbers.read[column], numbers.source[column]);
  }
  return fmt::format("row {} group {} column {}: {}", matrix.first_row + index / groups_per_row,
                     group_idx, group_idx * kGroup + column, fault);
}

}  // namespace nibble::repack
