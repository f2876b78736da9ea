#include "repack/pack_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <mutex>
#include <tuple>

#include "base/check.h"
#include "base/float16.h"
#include "base/instruction_set.h"
#include "formats/int4_group32.h"
#include "repack/grid_batch.h"
#include "repack/grid_dispatch.h"

namespace nibble::repack {
namespace {

constexpr int64_t kSourceBytes = kGridGroup * sizeof(uint16_t);  // of a group, as the next two
constexpr int64_t kPackedBytes = formats::kGroupPackedBytes;
constexpr int64_t kScaleBytes = sizeof(uint16_t);
constexpr int64_t kBatchGroups = 512;  // source and results stay in the first-level cache

using GroupBits = std::array<uint16_t, kGridGroup>;

// Copied, as a tensor in a file need not be aligned.
GroupBits ReadGroup(const std::byte* source) {
  GroupBits bits;
  std::memcpy(bits.data(), source, sizeof bits);
  return bits;
}

// The plain way, for one group of a batch.
Outcome PackGroup(const GridBatch& batch, int64_t index, bool round_off_grid, GridCounts* counts) {
  const GroupBits bits = ReadGroup(batch.source + index * kSourceBytes);
  const DType scale_dtype = batch.is_fp16 ? DType::kF16 : DType::kBF16;
  GridGroup group = RecoverGroup(bits, scale_dtype);
  if (group.outcome == Outcome::kOffGrid && round_off_grid) group = RoundGroup(bits, scale_dtype);
  counts->Add(group);
  formats::PackGroup(group.codes, std::span<std::byte, kPackedBytes>(
                                      batch.packed + index * kPackedBytes, kPackedBytes));
  std::memcpy(batch.scales + index * kScaleBytes, &group.scale_bits, kScaleBytes);
  return group.outcome;
}

void NoteFault(const Fault& fault, std::optional<Fault>* first) {
  if (!first->has_value() ||
      std::tie(fault.row, fault.group_idx) < std::tie((*first)->row, (*first)->group_idx)) {
    *first = fault;
  }
}

}  // namespace

Matrix AsMatrix(const checkpoint::Tensor& tensor) {
  CHECK(tensor.info.dtype == DType::kBF16 && !tensor.info.shape.empty());
  const int64_t n_columns = tensor.info.shape.back();
  CHECK(n_columns > 0 && n_columns % kGridGroup == 0);
  return {&tensor, tensor.info.n_elements() / n_columns, n_columns};
}

PackedRows PackRows(const Matrix& matrix, int64_t row_begin, int64_t row_end, DType scale_dtype,
                    bool round_off_grid, std::span<std::byte> packed, std::span<std::byte> scales,
                    ThreadPool& pool) {
  const int64_t groups_per_row = matrix.groups_per_row();
  const int64_t first_group = row_begin * groups_per_row;
  const int64_t n_groups = row_end * groups_per_row - first_group;
  const bool is_stored = !packed.empty();
  if (is_stored) {
    CHECK(std::ssize(packed) == n_groups * kPackedBytes);
    CHECK(std::ssize(scales) == n_groups * kScaleBytes);
  }
  const InstructionSet set = ChosenInstructionSet().value_or(InstructionSet::kScalar);
  PackedRows result;
  std::mutex mutex;
  pool.ParallelFor(n_groups, [&](int64_t begin, int64_t end) {
    PackedRows part;
    std::array<uint32_t, kBatchGroups> left_over;
    std::array<std::byte, kBatchGroups * kPackedBytes> unused_packed;
    std::array<std::byte, kBatchGroups * kScaleBytes> unused_scales;
    for (int64_t first = begin; first < end; first += kBatchGroups) {
      const GridBatch batch = {
          .source = matrix.tensor->bytes.data() + (first_group + first) * kSourceBytes,
          .n_groups = std::min(kBatchGroups, end - first),
          .is_fp16 = scale_dtype == DType::kF16,
          .packed = is_stored ? &packed[first * kPackedBytes] : unused_packed.data(),
          .scales = is_stored ? &scales[first * kScaleBytes] : unused_scales.data()};
      GridSums sums;
      const int64_t n_left_over = RecoverBatch(set, batch, left_over.data(), &sums);
      part.counts.Add(sums);
      for (const uint32_t i : std::span(left_over).first(n_left_over)) {
        const Outcome outcome = PackGroup(batch, i, round_off_grid, &part.counts);
        if (outcome == Outcome::kZero || outcome == Outcome::kExact ||
            outcome == Outcome::kNearest || (outcome == Outcome::kOffGrid && round_off_grid)) {
          continue;
        }
        const int64_t group = first_group + first + i;
        NoteFault({group / groups_per_row, group % groups_per_row, outcome}, &part.first_fault);
      }
    }
    const std::lock_guard lock(mutex);
    result.counts.Merge(part.counts);
    if (part.first_fault.has_value()) NoteFault(*part.first_fault, &result.first_fault);
  });
  return result;
}

std::string Describe(const Matrix& matrix, const Fault& fault, DType scale_dtype) {
  const int64_t group = fault.row * matrix.groups_per_row() + fault.group_idx;
  const GroupBits bits = ReadGroup(matrix.tensor->bytes.data() + group * kSourceBytes);
  const int64_t first_column = fault.group_idx * kGridGroup;
  const std::string place =
      fmt::format("tensor {} row {} group {} (columns {} to {})", matrix.tensor->info.name,
                  fault.row, fault.group_idx, first_column, first_column + kGridGroup - 1);
  if (fault.outcome == Outcome::kNotFinite) {
    const uint8_t column = RecoverGroup(bits, scale_dtype).column;
    return fmt::format("{}: column {} holds {}, expected finite values", place,
                       first_column + column, Bf16ToFloat(bits[column]));
  }
  const GridGroup rounded = RoundGroup(bits, scale_dtype);
  if (fault.outcome == Outcome::kScaleOutOfRange || rounded.outcome == Outcome::kScaleOutOfRange) {
    return fmt::format("{}: its scale is out of the range of {}{}", place, Name(scale_dtype),
                       scale_dtype == DType::kF16 ? " (bf16 scales reach further)" : "");
  }
  const float scale = ScaleToFloat(rounded.scale_bits, scale_dtype);
  const float found = Bf16ToFloat(bits[rounded.column]);
  const float nearest = static_cast<float>(rounded.codes[rounded.column]) * scale;
  return fmt::format(
      "{}: off the 4-bit grid, no scale explains its values; column {} holds {}, the nearest grid "
      "value is {} ({} bf16 steps away, {:.3f} of a grid step)",
      place, first_column + rounded.column, found, RoundToBf16(nearest), rounded.worst_ulp,
      std::fabs((found - nearest) / scale));
}

}  // namespace nibble::repack
