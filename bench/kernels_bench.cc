// How fast each instruction set's kernels run on this machine, beside the rate at which it reads
// memory: what decides whether a change to a kernel is kept. Built with -DNIBBLE_BENCH=ON;
//   build/release/kernels_bench --benchmark_filter='matmul_int8/avx512'
// "reads" is bytes of weights (or KV) per second, "share" that over the memory's bandwidth, "MAC"
// multiply-adds per second. Weights are larger than any cache, as in decoding.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/choose_kernels.h"
#include "kernels/packed_weight.h"
#include "measure/speed.h"

namespace nibble::kernels {
namespace {

// E2B's MLP, as often as makes a model: more than any cache holds.
constexpr int64_t kColumns = 1536;
constexpr int64_t kRows = 12288;
constexpr int kMatrices = 50;

ThreadPool& Pool() {
  static ThreadPool pool(AvailableCores());
  return pool;
}

TileStore& Store() {
  static TileStore store(Pool());
  return store;
}

double Bandwidth() {
  static const double bytes_per_s = [] {
    measure::MemoryProbe probe(Pool());
    double best = 0;
    for (int pass = 0; pass < 4; ++pass) best = std::max(best, probe.Read());
    return best;
  }();
  return bytes_per_s;
}

template <typename T>
std::vector<T> Random(int64_t n) {
  std::mt19937_64 random(1);
  std::vector<T> values(static_cast<size_t>(n));
  for (T& value : values) value = static_cast<T>(random());
  return values;
}

std::vector<float> RandomFloats(int64_t n) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = normal(random);
  return values;
}

std::span<const std::byte> Bytes(const auto& values) { return std::as_bytes(std::span(values)); }

using Matrices = std::vector<PackedWeight>;

const Matrices& Int4() {
  static const Matrices matrices = [] {
    const std::vector<uint16_t> scales(kRows * kColumns / 32, 0x2c00);
    const std::vector<uint64_t> codes = Random<uint64_t>(kRows * kColumns / 16);
    Matrices made;
    for (int i = 0; i < kMatrices; ++i) {
      made.push_back(PackedWeight::FromInt4(Bytes(codes), Bytes(scales), DType::kF16, kRows,
                                            kColumns, Store()));
    }
    return made;
  }();
  return matrices;
}

const Matrices& Int8Channel() {
  static const Matrices matrices = [] {
    const std::vector<float> scales(kRows, 0.01f);
    const std::vector<uint64_t> codes = Random<uint64_t>(kRows * kColumns / 8);
    Matrices made;
    for (int i = 0; i < kMatrices; ++i) {
      made.push_back(PackedWeight::FromInt8Channel(Bytes(codes), Bytes(scales), DType::kF32, kRows,
                                                   kColumns, Store()));
    }
    return made;
  }();
  return matrices;
}

// multiply(w, tile_begin, tile_end) over all of them, on all threads.
void MultiplyAll(benchmark::State& state, const Matrices& matrices, const auto& multiply) {
  for (auto _ : state) {
    for (const PackedWeight& matrix : matrices) {
      const WeightView& w = matrix.view();
      Pool().ParallelFor(w.n_tiles, [&](int64_t begin, int64_t end) { multiply(w, begin, end); });
    }
  }
}

void Report(benchmark::State& state, int64_t bytes, int64_t n_products) {
  const auto n = static_cast<double>(state.iterations());
  using benchmark::Counter;
  state.counters["reads"] = Counter(n * static_cast<double>(bytes), Counter::kIsRate);
  state.counters["share"] = Counter(n * static_cast<double>(bytes) / Bandwidth(), Counter::kIsRate);
  state.counters["MAC"] = Counter(n * static_cast<double>(n_products), Counter::kIsRate);
}

void Matmul(benchmark::State& state, const KernelTable* kernels) {
  const int64_t n_tokens = state.range(0);
  const std::vector<float> x = RandomFloats(n_tokens * kColumns);
  std::vector<float> y(n_tokens * kRows);
  MultiplyAll(state, Int4(), [&](const WeightView& w, int64_t begin, int64_t end) {
    kernels->matmul(w, begin, end, x.data(), n_tokens, y.data());
  });
  Report(state, kMatrices * Int4()[0].size_bytes(), kMatrices * n_tokens * kRows * kColumns);
}

template <typename T, typename Quantize, typename Multiply>
void MatmulRounded(benchmark::State& state, Quantize quantize, Multiply multiply) {
  const int64_t n_tokens = state.range(0);
  const std::vector<float> x = RandomFloats(n_tokens * kColumns);
  std::vector<T> values(x.size());
  std::vector<float> scales(x.size() / kBlockK);
  std::vector<int32_t> offsets(scales.size());
  const RoundedRows<T> rows = {values.data(), scales.data(), offsets.data()};
  quantize(x.data(), n_tokens, kColumns, rows);
  std::vector<float> y(n_tokens * kRows);
  MultiplyAll(state, Int4(), [&](const WeightView& w, int64_t begin, int64_t end) {
    multiply(w, begin, end, rows, n_tokens, y.data());
  });
  Report(state, kMatrices * Int4()[0].size_bytes(), kMatrices * n_tokens * kRows * kColumns);
}

void MatmulInt8(benchmark::State& state, const KernelTable* kernels) {
  MatmulRounded<int8_t>(state, kernels->quantize_int8, kernels->matmul_int8);
}

void MatmulInt16(benchmark::State& state, const KernelTable* kernels) {
  MatmulRounded<int16_t>(state, kernels->quantize_int16, kernels->matmul_int16);
}

void MatmulInt8Channel(benchmark::State& state, const KernelTable* kernels) {
  const int64_t n_tokens = state.range(0);
  const std::vector<float> x = RandomFloats(n_tokens * kColumns);
  std::vector<int8_t> codes(x.size());
  std::vector<float> scales(n_tokens);
  kernels->quantize_rows(x.data(), n_tokens, kColumns, codes.data(), scales.data());
  std::vector<float> y(n_tokens * kRows);
  MultiplyAll(state, Int8Channel(), [&](const WeightView& w, int64_t begin, int64_t end) {
    kernels->matmul_int8_channel(w, begin, end, codes.data(), scales.data(), n_tokens, y.data());
  });
  Report(state, kMatrices * Int8Channel()[0].size_bytes(), kMatrices * n_tokens * kRows * kColumns);
}

// E2B's full layers: eight heads of 512 over one KV head, on one thread.
void Attention(benchmark::State& state, const KernelTable* kernels, KvFormat format) {
  constexpr int64_t kQueries = 8;
  constexpr int64_t kHeadDim = 512;
  const int64_t n_tokens = state.range(0);
  const int64_t n_pages = n_tokens / kPageTokens;
  const int64_t side_bytes = kPageTokens * kHeadDim * (format == KvFormat::kBf16 ? 2 : 1) + 64;
  std::vector<std::byte> memory(n_pages * 2 * side_bytes + 64);
  std::byte* const first = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64);
  std::vector<const std::byte*> pages;
  for (int64_t i = 0; i < n_pages; ++i) pages.push_back(first + i * 2 * side_bytes);
  const std::vector<float> q = RandomFloats(kQueries * kHeadDim);
  std::vector<float> scores(kQueries * n_tokens);
  std::vector<float> out(kQueries * kHeadDim);
  for (auto _ : state) {
    kernels->attention({.q = q.data(),
                        .n_queries = kQueries,
                        .head_dim = kHeadDim,
                        .kv_format = format,
                        .pages = pages.data(),
                        .v_offset = side_bytes,
                        .end = n_tokens,
                        .scores = scores.data(),
                        .out = out.data()});
  }
  Report(state, n_pages * 2 * side_bytes, 2 * kQueries * kHeadDim * n_tokens);
}

// One thread over n floats that stay in a cache.
void Pointwise(benchmark::State& state,
               const std::function<void(const float* x, int64_t n, float* y)>& op) {
  const int64_t n = state.range(0);
  const std::vector<float> x = RandomFloats(n);
  std::vector<float> y = x;
  for (auto _ : state) op(x.data(), n, y.data());
  state.SetItemsProcessed(state.iterations() * n);
}

void Register(const KernelTable& kernels) {
  const auto add = [&](const char* op, const auto& function, const auto&... arguments) {
    return benchmark::RegisterBenchmark(fmt::format("{}/{}", op, kernels.name).c_str(), function,
                                        arguments...)
        ->UseRealTime();
  };
  const std::vector<int64_t> batches = {1, 2, 4, 8, 16, 64, 256};
  add("matmul_int8", MatmulInt8, &kernels)->ArgsProduct({batches});
  add("matmul_int16", MatmulInt16, &kernels)->ArgsProduct({batches});
  add("matmul", Matmul, &kernels)->ArgsProduct({batches});
  add("matmul_int8_channel", MatmulInt8Channel, &kernels)->ArgsProduct({batches});
  add("attention_bf16", Attention, &kernels, KvFormat::kBf16)->Arg(512)->Arg(4096);
  add("attention_int8", Attention, &kernels, KvFormat::kInt8)->Arg(512)->Arg(4096);
  const KernelTable* const table = &kernels;
  add("rms_norm", Pointwise, [table](const float* x, int64_t n, float* y) {
    table->rms_norm(x, x, 1, n, 1e-6f, y);
  })->Arg(kColumns);
  add("gelu_mul", Pointwise, [table](const float* x, int64_t n, float* y) {
    table->gelu_mul(x, x, n, y);
  })->Arg(4 * kColumns);
  add("softcap", Pointwise, [table](const float*, int64_t n, float* y) {
    table->softcap(y, n, 30);
  })->Arg(4 * kColumns);
}

}  // namespace
}  // namespace nibble::kernels

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  for (const nibble::kernels::KernelTable* kernels : nibble::kernels::AvailableKernels()) {
    if (std::string_view(kernels->name) != "scalar") nibble::kernels::Register(*kernels);
  }
  benchmark::RunSpecifiedBenchmarks();
}
