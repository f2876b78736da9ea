// Differential: every instruction set that this machine runs gives the scalar kernels' bytes, over
// shapes with tails and values of any size that stays finite.
//
// An input is the op's number, its sizes, and the seed of its values; values are drawn, so that a
// few bytes reach all shapes.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <vector>

#include "base/float16.h"
#include "base/thread_pool.h"
#include "kernels/choose_kernels.h"
#include "kernels/packed_weight.h"

namespace nibble::kernels {
namespace {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data, size) {}

  // 0 .. limit - 1
  int64_t Below(int64_t limit) {
    int64_t value = 0;
    for (int i = 0; i < 2 && !data_.empty(); ++i, data_ = data_.subspan(1)) {
      value = value << 8 | data_[0];
    }
    return value % limit;
  }
  void Seed() { random_.seed(static_cast<uint32_t>(Below(1 << 16))); }

  // Normal values, and among them zeros, tiny and large ones.
  float Float() {
    const uint32_t kind = random_() % 32;
    const float value = std::normal_distribution<float>()(random_);
    if (kind == 0) return 0.0f;
    if (kind == 1) return -0.0f;
    if (kind == 2) return value * 0x1p-140f;
    if (kind == 3) return value * 3000;
    return value;
  }
  std::vector<float> Floats(int64_t n) {
    std::vector<float> values(static_cast<size_t>(n));
    for (float& value : values) value = Float();
    return values;
  }
  std::vector<uint8_t> Bytes(int64_t n) {
    std::vector<uint8_t> values(static_cast<size_t>(n));
    for (uint8_t& value : values) value = static_cast<uint8_t>(random_());
    return values;
  }
  std::vector<std::byte> Scales(int64_t n, DType dtype) {
    std::vector<std::byte> bytes;
    for (int64_t i = 0; i < n; ++i) {
      const float value = Float() * 0x1p-6f;
      const uint16_t half = dtype == DType::kBF16 ? FloatToBf16(value) : FloatToFp16(value);
      const auto* source = dtype == DType::kF32 ? reinterpret_cast<const std::byte*>(&value)
                                                : reinterpret_cast<const std::byte*>(&half);
      bytes.insert(bytes.end(), source, source + SizeBytes(dtype));
    }
    return bytes;
  }

 private:
  std::span<const uint8_t> data_;
  std::mt19937 random_;
};

std::span<const std::byte> AsBytes(const auto& values) { return std::as_bytes(std::span(values)); }

// run(kernels) -> the bytes that an op wrote.
using Run = std::function<std::vector<std::byte>(const KernelTable&)>;

std::vector<std::byte> Copy(const auto& values) {
  const auto bytes = AsBytes(values);
  return {bytes.begin(), bytes.end()};
}

PackedWeight RandomWeight(Input& input, TileStore& store, int64_t n, int64_t n_blocks) {
  const int64_t k = n_blocks * 32;
  const DType dtypes[] = {DType::kF16, DType::kBF16, DType::kF32};
  const DType scale_dtype = dtypes[input.Below(3)];
  switch (input.Below(3)) {
    case 0: {
      std::vector<uint16_t> bits;
      for (const float value : input.Floats(n * k)) bits.push_back(FloatToBf16(value));
      return PackedWeight::FromBf16(AsBytes(bits), n, k, store);
    }
    case 1:
      return PackedWeight::FromFloat32(AsBytes(input.Floats(n * k)), n, k, store);
    default:
      return PackedWeight::FromInt4(AsBytes(input.Bytes(n * k / 2)),
                                    input.Scales(n * n_blocks, scale_dtype), scale_dtype, n, k,
                                    store);
  }
}

Run Matmul(Input& input) {
  static ThreadPool pool(1);
  TileStore store(pool);
  const int64_t n = 1 + input.Below(80);
  const int64_t n_blocks = 1 + input.Below(5);
  const int64_t n_tokens = 1 + input.Below(140);
  input.Seed();
  const PackedWeight weight = RandomWeight(input, store, n, n_blocks);
  const std::vector<float> x = input.Floats(n_tokens * n_blocks * 32);
  return [=](const KernelTable& kernels) {
    const WeightView& w = weight.view();
    std::vector<float> y(static_cast<size_t>(n_tokens * n));
    kernels.matmul(w, 0, w.n_tiles, x.data(), n_tokens, y.data());
    std::vector<std::byte> out = Copy(y);
    if (w.format != WeightFormat::kInt4) return out;
    const auto add_rounded = [&]<typename T>(T, auto quantize, auto matmul) {
      std::vector<T> values(x.size());
      std::vector<float> scales(x.size() / 32);
      std::vector<int32_t> offsets(scales.size());
      const RoundedRows<T> rows = {values.data(), scales.data(), offsets.data()};
      quantize(x.data(), n_tokens, n_blocks * 32, rows);
      matmul(w, 0, w.n_tiles, rows, n_tokens, y.data());
      for (const auto& part : {Copy(values), Copy(scales), Copy(offsets), Copy(y)}) {
        out.insert(out.end(), part.begin(), part.end());
      }
    };
    add_rounded(int8_t{}, kernels.quantize_int8, kernels.matmul_int8);
    add_rounded(int16_t{}, kernels.quantize_int16, kernels.matmul_int16);
    return out;
  };
}

Run Int8Channel(Input& input) {
  static ThreadPool pool(1);
  TileStore store(pool);
  const int64_t n = 1 + input.Below(80);
  const int64_t k = 1 + input.Below(150);
  const int64_t n_tokens = 1 + input.Below(12);
  input.Seed();
  const PackedWeight weight = PackedWeight::FromInt8Channel(
      AsBytes(input.Bytes(n * k)), input.Scales(n, DType::kF32), DType::kF32, n, k, store);
  const std::vector<float> x = input.Floats(n_tokens * k);
  return [=](const KernelTable& kernels) {
    const WeightView& w = weight.view();
    std::vector<int8_t> codes(static_cast<size_t>(n_tokens * w.n_blocks * 32));
    std::vector<float> scales(static_cast<size_t>(n_tokens));
    std::vector<float> y(static_cast<size_t>(n_tokens * n));
    kernels.quantize_rows(x.data(), n_tokens, k, codes.data(), scales.data());
    kernels.matmul_int8_channel(w, 0, w.n_tiles, codes.data(), scales.data(), n_tokens, y.data());
    std::vector<std::byte> out = Copy(codes);
    for (const auto& part : {Copy(scales), Copy(y)})
      out.insert(out.end(), part.begin(), part.end());
    return out;
  };
}

Run Attention(Input& input) {
  constexpr KvFormat kFormats[] = {KvFormat::kF32, KvFormat::kBf16, KvFormat::kInt8};
  const KvFormat format = kFormats[input.Below(3)];
  const int64_t head_dim = 16 * (1 + input.Below(8));
  const int64_t n_queries = 1 + input.Below(17);
  const int64_t end = 1 + input.Below(100);
  const int64_t begin = input.Below(end);
  input.Seed();
  const int64_t side_bytes = head_dim * kPageTokens * 4 + 64;
  const int64_t n_pages = (end + kPageTokens - 1) / kPageTokens;
  std::vector<std::byte> memory(static_cast<size_t>(n_pages * 2 * side_bytes));
  for (int64_t side = 0; side < n_pages * 2; ++side) {
    std::byte* const place = memory.data() + side * side_bytes;
    const int64_t n = head_dim * kPageTokens;
    std::vector<std::byte> bytes = Copy(input.Bytes(n));  // int8 codes
    if (format == KvFormat::kF32) bytes = Copy(input.Floats(n));
    if (format == KvFormat::kBf16) bytes = input.Scales(n, DType::kBF16);
    std::memcpy(place, bytes.data(), bytes.size());
    if (format != KvFormat::kInt8) continue;
    const std::vector<std::byte> scales = input.Scales(kPageTokens, DType::kF32);
    std::memcpy(place + n, scales.data(), scales.size());
  }
  const std::vector<float> q = input.Floats(n_queries * head_dim);
  return [=](const KernelTable& kernels) {
    // Pages begin at multiples of 64 bytes.
    std::vector<std::byte> aligned(memory.size() + 64);
    const size_t past = reinterpret_cast<uintptr_t>(aligned.data()) % 64;
    std::byte* const first = aligned.data() + (64 - past) % 64;
    std::memcpy(first, memory.data(), memory.size());
    std::vector<const std::byte*> pages;
    for (int64_t i = 0; i < n_pages; ++i) pages.push_back(first + i * 2 * side_bytes);
    std::vector<float> scores(static_cast<size_t>(n_queries * n_pages * kPageTokens));
    std::vector<float> out(static_cast<size_t>(n_queries * head_dim));
    kernels.attention({.q = q.data(),
                       .n_queries = n_queries,
                       .head_dim = head_dim,
                       .kv_format = format,
                       .pages = pages.data(),
                       .v_offset = side_bytes,
                       .begin = begin,
                       .end = end,
                       .scores = scores.data(),
                       .out = out.data()});
    return Copy(out);
  };
}

Run Pointwise(Input& input) {
  const int64_t n = 1 + input.Below(200);
  const int64_t n_rows = 1 + input.Below(3);
  const int64_t op = input.Below(5);
  input.Seed();
  const std::vector<float> x = input.Floats(n * n_rows);
  const std::vector<float> other = input.Floats(n);
  return [=](const KernelTable& kernels) {
    std::vector<float> y = x;
    if (op == 0) kernels.rms_norm(x.data(), other.data(), n_rows, n, 1e-6f, y.data());
    if (op == 1) kernels.gelu_mul(x.data(), other.data(), n, y.data());
    if (op == 2) kernels.softcap(y.data(), n * n_rows, 30.0f);
    if (op == 3) kernels.softmax(y.data(), n);
    if (op == 4 && n % 2 == 0) {
      kernels.rotate(y.data(), n_rows, n, other.data(), other.data() + n / 2, n / 2);
    }
    return Copy(y);
  };
}

Run Gather(Input& input) {
  const DType dtypes[] = {DType::kF16, DType::kBF16, DType::kF32};
  const DType dtype = dtypes[input.Below(3)];
  const int64_t n_groups = 1 + input.Below(6);
  input.Seed();
  const std::vector<uint8_t> packed = input.Bytes(n_groups * 16);
  const std::vector<std::byte> scales = input.Scales(n_groups, dtype);
  const std::vector<std::byte> row = input.Scales(n_groups * 7, DType::kBF16);
  return [=](const KernelTable& kernels) {
    std::vector<float> y(static_cast<size_t>(n_groups * 39));
    kernels.gather_int4(AsBytes(packed).data(), scales.data(), dtype, n_groups * 32, 3.5f,
                        y.data());
    kernels.gather_bf16(row.data(), n_groups * 7, 3.5f, y.data() + n_groups * 32);
    return Copy(y);
  };
}

}  // namespace
}  // namespace nibble::kernels

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nibble::kernels;
  constexpr Run (*kOps[])(Input&) = {Matmul, Int8Channel, Attention, Pointwise, Gather};
  Input input(data, size);
  const int64_t op = input.Below(std::size(kOps));
  const Run run = kOps[op](input);
  static const std::vector<const KernelTable*> tables = AvailableKernels();
  const std::vector<std::byte> expected = run(*tables.front());  // scalar
  for (const KernelTable* kernels : tables) {
    if (run(*kernels) == expected) continue;
    std::fprintf(stderr, "op %d: %s differs from %s\n", static_cast<int>(op), kernels->name,
                 tables.front()->name);
    std::abort();
  }
  return 0;
}
