#include "repack/pack_rows.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <mutex>
#include <tuple>

#include "base/check.h"
#include "base/float16.h"
#include "formats/int4_group32.h"

namespace nibble::repack {
namespace {

using GroupBits = std::array<uint16_t, kGridGroup>;

// Copied, as a tensor in a file need not be aligned.
GroupBits ReadGroup(const Matrix& matrix, int64_t row, int64_t group_idx) {
  GroupBits bits;
  const int64_t first_value = row * matrix.n_columns + group_idx * kGridGroup;
  std::memcpy(bits.data(), matrix.tensor->bytes.data() + first_value * SizeBytes(DType::kBF16),
              sizeof bits);
  return bits;
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
  const int64_t n_groups = (row_end - row_begin) * groups_per_row;
  const bool is_stored = !packed.empty();
  if (is_stored) {
    CHECK(std::ssize(packed) == n_groups * formats::kGroupPackedBytes);
    CHECK(std::ssize(scales) == n_groups * SizeBytes(scale_dtype));
  }
  PackedRows result;
  std::mutex mutex;
  pool.ParallelFor(n_groups, [&](int64_t begin, int64_t end) {
    PackedRows part;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = row_begin + i / groups_per_row;
      const int64_t group_idx = i % groups_per_row;
      const GroupBits bits = ReadGroup(matrix, row, group_idx);
      GridGroup group = RecoverGroup(bits, scale_dtype);
      if (group.outcome == Outcome::kOffGrid && round_off_grid) {
        group = RoundGroup(bits, scale_dtype);
      } else if (group.outcome == Outcome::kOffGrid) {
        NoteFault({row, group_idx, group.outcome}, &part.first_fault);
      }
      if (group.outcome == Outcome::kNotFinite || group.outcome == Outcome::kScaleOutOfRange) {
        NoteFault({row, group_idx, group.outcome}, &part.first_fault);
      }
      part.counts.Add(group);
      if (!is_stored) continue;
      formats::PackGroup(
          group.codes,
          packed.subspan(i * formats::kGroupPackedBytes).first<formats::kGroupPackedBytes>());
      std::memcpy(&scales[i * sizeof group.scale_bits], &group.scale_bits, sizeof group.scale_bits);
    }
    const std::lock_guard lock(mutex);
    result.counts.Merge(part.counts);
    if (part.first_fault.has_value()) NoteFault(*part.first_fault, &result.first_fault);
  });
  return result;
}

std::string Describe(const Matrix& matrix, const Fault& fault, DType scale_dtype) {
  const GroupBits bits = ReadGroup(matrix, fault.row, fault.group_idx);
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
