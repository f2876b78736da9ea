#include "repack/gguf_tensors.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/float16.h"
#include "formats/int4_group32.h"
#include "formats/q4_0.h"
#include "formats/q6_k.h"
#include "gemma/gguf.h"
#include "repack/pack_rows.h"

namespace nibble::repack {
namespace {

using checkpoint::GgmlType;
using gemma::Role;

bool IsTable(Role role) {
  return role == Role::kTokenEmbedding || role == Role::kPleEmbedding || role == Role::kLmHead;
}

GgmlType TypeOfTable(GgufTables tables) {
  switch (tables) {
    case GgufTables::kQ40:
      return GgmlType::kQ40;
    case GgufTables::kQ6K:
      return GgmlType::kQ6K;
    case GgufTables::kBf16:
      return GgmlType::kBF16;
  }
  CHECK(false);
}

void ChooseType(Role role, GgufTables tables, GgufOutput* output) {
  if (role == Role::kPlain) {
    output->tensor.type = GgmlType::kF32;
    return;
  }
  const GgmlType wanted = IsTable(role) ? TypeOfTable(tables) : GgmlType::kQ40;
  const checkpoint::GgmlTypeInfo info = checkpoint::InfoOf(wanted);
  const int64_t n_columns = output->source->info.shape.back();
  if (n_columns % info.block_size == 0) {
    output->tensor.type = wanted;
    return;
  }
  output->tensor.type = GgmlType::kBF16;
  output->why = fmt::format("rows of {} values do not divide into {}'s blocks of {}", n_columns,
                            info.name, info.block_size);
}

Result<GgufOutput> MakeOutput(const PlannedTensor& planned, const gemma::TensorSpec& spec,
                              GgufTables tables) {
  const std::optional<std::string> name = gemma::GgufName(spec.name);
  CHECK(name.has_value());
  const checkpoint::TensorInfo& info = planned.source->info;
  if (spec.role == Role::kPlain && info.dtype != DType::kBF16 && info.dtype != DType::kF16 &&
      info.dtype != DType::kF32) {
    return Fail("{}: tensor {}: expected BF16, F16 or F32, found {}", planned.source->shard,
                info.name, Name(info.dtype));
  }
  GgufOutput output{.source = planned.source, .part = planned.part, .tensor = {}, .why = ""};
  output.tensor.name = *name;
  output.tensor.dims.assign(info.shape.rbegin(), info.shape.rend());
  ChooseType(spec.role, tables, &output);
  return output;
}

GgufOutput RopeFactors(const gemma::Config& config) {
  GgufOutput output;
  output.tensor.name = gemma::kGgufRopeFactors;
  output.tensor.dims = {std::ssize(gemma::GgufRopeFactors(config))};
  return output;
}

int64_t ColumnsOf(const checkpoint::TensorInfo& info) {
  return info.shape.empty() ? 1 : info.shape.back();
}

// Where in the source the value of the output's row and column stands (gemma/gguf_towers.h).
int64_t SourceIndex(const GgufOutput& output, int64_t row, int64_t column) {
  const checkpoint::TensorInfo& info = output.source->info;
  const int64_t n_columns = ColumnsOf(info);
  switch (output.change) {
    case gemma::TowerChange::kChannelsFirst:
    case gemma::TowerChange::kPatchKernel: {
      const int64_t n_pixels = n_columns / 3;
      return row * n_columns + column % n_pixels * 3 + column / n_pixels;
    }
    case gemma::TowerChange::kAxesFirst: {
      const int64_t n_positions = info.shape[0];
      return (row % n_positions * 2 + row / n_positions) * n_columns + column;
    }
    default:
      return row * n_columns + column;
  }
}

// log(1 + e^x) as torch computes it.
float Softplus(float x) {
  constexpr float kLinearFrom = 20;
  return x > kLinearFrom ? x : static_cast<float>(std::log1p(std::exp(static_cast<double>(x))));
}

void EncodeF32(const GgufOutput& output, int64_t row_begin, int64_t row_end,
               std::span<std::byte> bytes, ThreadPool& pool) {
  const checkpoint::Tensor& source = *output.source;
  const int64_t n_columns = ColumnsOf(source.info);
  pool.ParallelFor(row_end - row_begin, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t column = 0; column < n_columns; ++column) {
        float value = formats::ReadScale(source.bytes, source.info.dtype,
                                         SourceIndex(output, row_begin + row, column));
        if (output.change == gemma::TowerChange::kSoftplus) value = Softplus(value);
        std::memcpy(&bytes[static_cast<size_t>(row * n_columns + column) * sizeof value], &value,
                    sizeof value);
      }
    }
  });
}

// Codes and scales as PackRows() writes them, one after the other, become blocks.
Status EncodeQ40(const checkpoint::Tensor& tensor, int64_t row_begin, int64_t row_end,
                 const Options& options, std::span<std::byte> blocks, std::span<std::byte> scratch,
                 ThreadPool& pool, GridCounts* counts) {
  const Matrix matrix = AsMatrix(tensor);
  const int64_t n_groups = (row_end - row_begin) * matrix.groups_per_row();
  const auto packed = scratch.first(static_cast<size_t>(n_groups * formats::kGroupPackedBytes));
  const auto scales =
      scratch.subspan(packed.size(), static_cast<size_t>(n_groups) * sizeof(uint16_t));
  const PackedRows rows = PackRows(matrix, row_begin, row_end, DType::kF16, options.allow_off_grid,
                                   packed, scales, pool);
  if (rows.first_fault.has_value()) {
    return Fail("{}: {}", tensor.shard, Describe(matrix, *rows.first_fault, DType::kF16));
  }
  counts->Merge(rows.counts);
  pool.ParallelFor(n_groups, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::array<int8_t, kGridGroup> codes;
      formats::UnpackGroup(packed.subspan(static_cast<size_t>(i * formats::kGroupPackedBytes))
                               .first<formats::kGroupPackedBytes>(),
                           codes);
      uint16_t scale_bits = 0;
      std::memcpy(&scale_bits, &scales[static_cast<size_t>(i) * sizeof scale_bits],
                  sizeof scale_bits);
      formats::PackQ40Block(codes, scale_bits,
                            blocks.subspan(static_cast<size_t>(i * formats::kQ40BlockBytes))
                                .first<formats::kQ40BlockBytes>());
    }
  });
  return {};
}

Status EncodeQ6K(const checkpoint::Tensor& tensor, int64_t row_begin, int64_t row_end,
                 std::span<std::byte> blocks, ThreadPool& pool) {
  const int64_t blocks_per_row = tensor.info.shape.back() / formats::kQ6KBlockSize;
  const int64_t first_block = row_begin * blocks_per_row;
  const int64_t n_blocks = (row_end - row_begin) * blocks_per_row;
  std::atomic<int64_t> first_fault = std::numeric_limits<int64_t>::max();
  pool.ParallelFor(n_blocks, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::array<float, formats::kQ6KBlockSize> values;
      for (int64_t k = 0; k < formats::kQ6KBlockSize; ++k) {
        values[k] = formats::ReadScale(tensor.bytes, DType::kBF16,
                                       (first_block + i) * formats::kQ6KBlockSize + k);
      }
      const auto block = blocks.subspan(static_cast<size_t>(i * formats::kQ6KBlockBytes))
                             .first<formats::kQ6KBlockBytes>();
      if (formats::QuantizeQ6KBlock(values, block)) continue;
      int64_t first = first_fault;
      while (i < first && !first_fault.compare_exchange_weak(first, i)) {
      }
    }
  });
  if (first_fault == std::numeric_limits<int64_t>::max()) return {};
  return Fail(
      "{}: tensor {} row {} block {}: values that Q6_K cannot hold (not finite, or too large)",
      tensor.shard, tensor.info.name, row_begin + first_fault / blocks_per_row,
      first_fault % blocks_per_row);
}

}  // namespace

Result<std::vector<GgufOutput>> GgufOutputs(const Plan& plan, const gemma::Config& config,
                                            GgufTables tables) {
  std::map<std::string, gemma::TensorSpec> specs;
  for (gemma::TensorSpec& spec : gemma::ExpectedTensors(config)) {
    specs.emplace(spec.name, std::move(spec));
  }
  std::vector<GgufOutput> outputs;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.action != Action::kPack && planned.action != Action::kCopy) continue;
    const auto text_name = gemma::TextName(planned.source->info.name);
    if (!text_name.has_value()) continue;  // a tower's
    NIBBLE_ASSIGN_OR_RETURN(GgufOutput output, MakeOutput(planned, specs.at(*text_name), tables));
    outputs.push_back(std::move(output));
  }
  outputs.push_back(RopeFactors(config));
  for (GgufOutput& output : outputs) {
    const auto size_bytes =
        checkpoint::GgmlSizeBytes(checkpoint::InfoOf(output.tensor.type), output.tensor.dims);
    CHECK(size_bytes.has_value());
    output.tensor.size_bytes = *size_bytes;
  }
  return outputs;
}

int64_t GgufRows(const GgufOutput& output) {
  CHECK(output.source != nullptr);
  const checkpoint::TensorInfo& info = output.source->info;
  return info.n_elements() / ColumnsOf(info);
}

size_t GgufScratchBytes(const GgufOutput& output, int64_t n_rows) {
  if (output.tensor.type != GgmlType::kQ40) return 0;
  const int64_t n_groups = n_rows * output.tensor.dims[0] / kGridGroup;
  return static_cast<size_t>(n_groups) * (formats::kGroupPackedBytes + sizeof(uint16_t));
}

Status EncodeGgufRows(const GgufOutput& output, int64_t row_begin, int64_t row_end,
                      const Options& options, std::span<std::byte> bytes,
                      std::span<std::byte> scratch, ThreadPool& pool, GridCounts* counts) {
  const checkpoint::Tensor& source = *output.source;
  const int64_t n_columns = ColumnsOf(source.info);
  switch (output.tensor.type) {
    case GgmlType::kF32:
      EncodeF32(output, row_begin, row_end, bytes, pool);
      return {};
    case GgmlType::kBF16:
    case GgmlType::kF16:
      std::ranges::copy(
          source.bytes.subspan(static_cast<size_t>(row_begin * n_columns) * sizeof(uint16_t),
                               bytes.size()),
          bytes.begin());
      return {};
    case GgmlType::kQ40:
      return EncodeQ40(source, row_begin, row_end, options, bytes, scratch, pool, counts);
    case GgmlType::kQ6K:
      return EncodeQ6K(source, row_begin, row_end, bytes, pool);
    default:
      CHECK(false);
  }
}

}  // namespace nibble::repack
