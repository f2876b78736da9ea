#include "repack/verify_int8.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/float16.h"

namespace nibble::repack {
namespace {

float ReadScale(const Int8Matrix& matrix, int64_t row) {
  const std::byte* at = matrix.scales.data() + row * SizeBytes(matrix.scale_dtype);
  if (matrix.scale_dtype == DType::kF32) {
    float scale = 0;
    std::memcpy(&scale, at, sizeof scale);
    return scale;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return matrix.scale_dtype == DType::kF16 ? Fp16ToFloat(bits) : Bf16ToFloat(bits);
}

float RoundScale(float scale, DType dtype) {
  if (dtype == DType::kF32) return scale;
  return dtype == DType::kF16 ? Fp16ToFloat(FloatToFp16(scale)) : RoundToBf16(scale);
}

std::vector<float> ReadSource(const Int8Matrix& matrix, int64_t row) {
  std::vector<float> values(static_cast<size_t>(matrix.n_columns));
  const std::byte* at = matrix.source.data() + row * matrix.n_columns * 2;
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, at + i * sizeof bits, sizeof bits);
    values[i] = Bf16ToFloat(bits);
  }
  return values;
}

float ExpectedScale(const std::vector<float>& values, DType dtype) {
  const auto by_size = [](float a, float b) { return std::fabs(a) < std::fabs(b); };
  const float largest = std::fabs(*std::ranges::max_element(values, by_size));
  const float scale = RoundScale(largest / 127, dtype);
  return scale > 0 ? scale : 1;
}

int ExpectedCode(float value, float scale) {
  const auto code = static_cast<int64_t>(std::lrint(value / scale));  // half to even, the default
  return static_cast<int>(std::clamp<int64_t>(code, -127, 127));
}

int CodeAt(const Int8Matrix& matrix, int64_t row, size_t column) {
  return std::to_integer<int8_t>(matrix.codes[row * matrix.n_columns + column]);
}

struct Row {
  Measurement measured;
  bool is_right = true;
};

// Eight columns side by side, in loops that compilers make vectors of; each lane has its sums.
struct Lanes {
  static constexpr size_t kCount = 8;
  std::array<double, kCount> squares{};
  std::array<double, kCount> squared_errors{};
  std::array<double, kCount> largest{};
  std::array<int32_t, kCount> n_moved{};

  void Add(const float* values, const std::byte* codes, float stored, float expected) {
    constexpr float kToInteger = 0x1.8p23f;  // added and taken away: rounds half to even
    for (size_t lane = 0; lane < kCount; ++lane) {
      const auto code = static_cast<float>(std::to_integer<int8_t>(codes[lane]));
      const auto value = static_cast<double>(values[lane]);
      const double error = static_cast<double>(code * stored) - value;
      squares[lane] += value * value;
      squared_errors[lane] += error * error;
      largest[lane] = std::max(largest[lane], std::fabs(error));
      const float rounded = (values[lane] / expected + kToInteger) - kToInteger;
      n_moved[lane] += std::clamp(rounded, -127.0f, 127.0f) != code ? 1 : 0;
    }
  }
  void AddTo(Measurement* measured) const {
    for (size_t lane = 0; lane < kCount; ++lane) {
      measured->sum_squares += squares[lane];
      measured->sum_squared_error += squared_errors[lane];
      measured->max_error = std::max(measured->max_error, largest[lane]);
      measured->n_moved += static_cast<uint64_t>(n_moved[lane]);
    }
  }
};

Row CheckRow(const Int8Matrix& matrix, int64_t row) {
  const std::vector<float> values = ReadSource(matrix, row);
  const float stored = ReadScale(matrix, row);
  const float expected = ExpectedScale(values, matrix.scale_dtype);
  Row result{.measured = {.n_levels = values.size()}, .is_right = stored == expected};
  Lanes lanes;
  size_t i = 0;
  for (; i + Lanes::kCount <= values.size(); i += Lanes::kCount) {
    lanes.Add(&values[i], &matrix.codes[row * matrix.n_columns + static_cast<int64_t>(i)], stored,
              expected);
  }
  result.measured.n_values = i;
  lanes.AddTo(&result.measured);
  for (; i < values.size(); ++i) {
    const int code = CodeAt(matrix, row, i);
    result.measured.AddValue(values[i], static_cast<float>(code) * stored);
    result.measured.n_moved += code != ExpectedCode(values[i], expected) ? 1 : 0;
  }
  result.is_right = result.is_right && result.measured.n_moved == 0;
  return result;
}

}  // namespace

Int8Check CheckInt8(const Int8Matrix& matrix, ThreadPool& pool) {
  std::vector<Row> rows(static_cast<size_t>(matrix.n_rows()));
  pool.ParallelFor(std::ssize(rows), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) rows[i] = CheckRow(matrix, i);
  });
  Int8Check check;
  for (int64_t i = 0; i < std::ssize(rows); ++i) {  // in order, so that sums are the same always
    check.measured.Merge(rows[i].measured);
    ++check.n_rows;
    check.n_right_rows += rows[i].is_right ? 1 : 0;
    if (!rows[i].is_right && !check.first_wrong_row.has_value()) check.first_wrong_row = i;
  }
  return check;
}

std::string DescribeInt8Fault(const Int8Matrix& matrix, int64_t row) {
  const std::vector<float> values = ReadSource(matrix, row);
  const float stored = ReadScale(matrix, row);
  const float expected = ExpectedScale(values, matrix.scale_dtype);
  const int64_t place = matrix.first_row + row;
  if (stored != expected) {
    return fmt::format("row {}: scale is {}, expected {} (largest magnitude / 127)", place, stored,
                       expected);
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const int code = CodeAt(matrix, row, i);
    const int expected_code = ExpectedCode(values[i], expected);
    if (code == expected_code) continue;
    return fmt::format("row {} column {}: code is {}, expected {} ({} / {})", place, i, code,
                       expected_code, values[i], expected);
  }
  return fmt::format("row {}", place);
}

}  // namespace nibble::repack
