#include "repack/pack_rounded.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/float16.h"
#include "formats/int4_group32.h"
#include "formats/int8_channel.h"

namespace nibble::repack {
namespace {

using checkpoint::Tensor;

constexpr float kMinMaxDivisor = 7.5f;  // half the distance between the codes -8 and 7

// A row's fault: the column and what is wrong there.
using RowFault = std::optional<std::pair<int64_t, std::string>>;

// Row `row` as floats.
RowFault ReadRow(const Tensor& source, int64_t row, std::span<float> values) {
  const std::byte* bytes = source.bytes.data() + row * std::ssize(values) * SizeBytes(DType::kBF16);
  uint16_t largest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits = 0;  // copied, as a tensor in a file need not be aligned
    std::memcpy(&bits, bytes + i * sizeof bits, sizeof bits);
    largest = std::max(largest, static_cast<uint16_t>(bits & 0x7fff));
    values[i] = Bf16ToFloat(bits);
  }
  constexpr uint16_t kInfinity = 0x7f80;
  if (largest < kInfinity) return std::nullopt;
  const auto at = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  return std::pair(at - values.begin(), fmt::format("holds {}, expected finite values", *at));
}

// pack(i, values, read): packs row row_begin + i and fills in what the reader makes of it.
template <typename PackRow>
Status PackEachRow(const Tensor& source, int64_t row_begin, int64_t row_end, ThreadPool& pool,
                   RoundingError* sum, const PackRow& pack) {
  CHECK(source.info.dtype == DType::kBF16);
  const int64_t n_columns = source.info.shape.back();
  std::vector<RoundingError> errors(static_cast<size_t>(row_end - row_begin));
  std::mutex mutex;
  int64_t first_bad_row = row_end;
  std::string fault;
  pool.ParallelFor(row_end - row_begin, [&](int64_t begin, int64_t end) {
    std::vector<float> values(static_cast<size_t>(n_columns));
    std::vector<float> read(static_cast<size_t>(n_columns));
    for (int64_t i = begin; i < end; ++i) {
      RowFault bad = ReadRow(source, row_begin + i, values);
      if (!bad.has_value()) bad = pack(i, std::as_const(values), read);
      if (bad.has_value()) {
        const std::lock_guard lock(mutex);
        if (row_begin + i >= first_bad_row) return;
        first_bad_row = row_begin + i;
        fault = fmt::format("{}: tensor {} row {}: column {} {}", source.shard, source.info.name,
                            first_bad_row, bad->first, bad->second);
        return;
      }
      errors[i] = Compare(values, read);
    }
  });
  if (!fault.empty()) return Fail("{}", fault);
  for (const RoundingError& error : errors) sum->Add(error);
  return {};
}

struct StoredScale {
  uint16_t bits = 0;
  float value = 0;
};

StoredScale Store(float scale, DType dtype) {
  const uint16_t bits = dtype == DType::kF16 ? FloatToFp16(scale) : FloatToBf16(scale);
  return {bits, dtype == DType::kF16 ? Fp16ToFloat(bits) : Bf16ToFloat(bits)};
}

float LargestMagnitude(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

}  // namespace

Status PackInt8Rows(const Tensor& source, int64_t row_begin, int64_t row_end,
                    std::span<std::byte> codes, std::span<std::byte> scales, ThreadPool& pool,
                    RoundingError* sum) {
  const int64_t n_columns = source.info.shape.back();
  CHECK(std::ssize(codes) == (row_end - row_begin) * n_columns);
  CHECK(std::ssize(scales) == (row_end - row_begin) * SizeBytes(DType::kF32));
  const auto pack = [&](int64_t i, std::span<const float> values, std::span<float> read) {
    const std::span row_codes(reinterpret_cast<int8_t*>(codes.data()) + i * n_columns,
                              static_cast<size_t>(n_columns));
    const float scale = formats::Int8ChannelScale(values, DType::kF32);
    formats::QuantizeInt8Channel(values, scale, row_codes);
    std::memcpy(&scales[i * sizeof scale], &scale, sizeof scale);
    for (size_t k = 0; k < values.size(); ++k) read[k] = static_cast<float>(row_codes[k]) * scale;
    return RowFault();
  };
  return PackEachRow(source, row_begin, row_end, pool, sum, pack);
}

Status PackMinMaxRows(const Tensor& source, int64_t row_begin, int64_t row_end, DType scale_dtype,
                      std::span<std::byte> codes, std::span<std::byte> scales, ThreadPool& pool,
                      RoundingError* sum) {
  using formats::kGroupPackedBytes;
  using formats::kGroupSize;
  const int64_t n_columns = source.info.shape.back();
  const int64_t groups_per_row = n_columns / kGroupSize;
  CHECK(n_columns % kGroupSize == 0);
  CHECK(std::ssize(codes) == (row_end - row_begin) * n_columns / 2);
  CHECK(std::ssize(scales) == (row_end - row_begin) * groups_per_row * SizeBytes(scale_dtype));
  const auto pack = [&](int64_t i, std::span<const float> values,
                        std::span<float> read) -> RowFault {
    for (int64_t group = 0; group < groups_per_row; ++group) {
      const auto group_values = values.subspan(group * kGroupSize, kGroupSize);
      const float largest = LargestMagnitude(group_values);
      const StoredScale scale = Store(largest == 0 ? 1.0f : largest / kMinMaxDivisor, scale_dtype);
      if (scale.value == 0 || !std::isfinite(scale.value)) {
        return std::pair(
            group * kGroupSize,
            fmt::format("begins a group whose scale is out of the range of {}", Name(scale_dtype)));
      }
      std::array<int8_t, kGroupSize> group_codes;
      for (size_t k = 0; k < group_codes.size(); ++k) {
        const float code = std::clamp(std::nearbyint(group_values[k] / scale.value), -8.0f, 7.0f);
        group_codes[k] = static_cast<int8_t>(code);
        read[group * kGroupSize + k] = RoundToBf16(code * scale.value);
      }
      const int64_t at = i * groups_per_row + group;
      formats::PackGroup(group_codes,
                         codes.subspan(at * kGroupPackedBytes).first<kGroupPackedBytes>());
      std::memcpy(&scales[at * sizeof scale.bits], &scale.bits, sizeof scale.bits);
    }
    return std::nullopt;
  };
  return PackEachRow(source, row_begin, row_end, pool, sum, pack);
}

}  // namespace nibble::repack
