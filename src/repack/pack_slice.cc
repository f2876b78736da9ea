#include "repack/pack_slice.h"

#include <array>
#include <string>

#include "base/check.h"
#include "repack/pack_rounded.h"
#include "repack/pack_rows.h"

namespace nibble::repack {
namespace {

Status PackGrid(const PlannedTensor& tensor, int64_t first_row, int64_t last_row,
                const Options& options, std::span<std::byte> codes, std::span<std::byte> scales,
                ThreadPool& pool, GridCounts* counts) {
  const Matrix matrix = AsMatrix(*tensor.source);
  const PackedRows rows = PackRows(matrix, first_row, last_row, options.scale_dtype,
                                   options.allow_off_grid, codes, scales, pool);
  counts->Merge(rows.counts);
  if (!rows.first_fault.has_value()) return {};
  std::string advice;
  if (rows.first_fault->outcome == Outcome::kOffGrid) {
    const bool is_table = tensor.output.find("embed_tokens") != std::string::npos;
    advice = is_table ? fmt::format(
                            "; --format {} leaves the tables in bf16, --allow-offgrid "
                            "rounds them",
                            options.format == Format::kW8A8Emb4 ? "w8a8" : "q4w4a16")
                      : "; --allow-offgrid rounds such groups and counts them";
  }
  return Fail("{}: {}{}", tensor.source->shard,
              Describe(matrix, *rows.first_fault, options.scale_dtype), advice);
}

}  // namespace

void PackCounts::Merge(const PackCounts& other) {
  grid.Merge(other.grid);
  rounding.Add(other.rounding);
}

Status PackSlice(const PlannedTensor& tensor, int64_t row_begin, int64_t row_end,
                 const Options& options, std::span<std::byte> codes, std::span<std::byte> scales,
                 ThreadPool& pool, PackCounts* counts) {
  CHECK(tensor.action == Action::kPack && row_begin >= 0 && row_end <= tensor.n_rows);
  const int64_t first_row = tensor.row_begin + row_begin;
  const int64_t last_row = tensor.row_begin + row_end;
  switch (tensor.encoding) {
    case Encoding::kInt8Channel:
      return PackInt8Rows(*tensor.source, first_row, last_row, codes, scales, pool,
                          &counts->rounding);
    case Encoding::kInt4Group32:
      if (options.rounding == Rounding::kMinMax) {
        return PackMinMaxRows(*tensor.source, first_row, last_row, options.scale_dtype, codes,
                              scales, pool, &counts->rounding);
      }
      return PackGrid(tensor, first_row, last_row, options, codes, scales, pool, &counts->grid);
  }
  CHECK(false);
}

std::vector<std::byte> PackTail(const PlannedTensor& tensor) {
  if (tensor.encoding == Encoding::kInt8Channel) return {};
  const std::array<int64_t, 2> shape = {tensor.n_rows, tensor.n_columns()};
  const auto bytes = std::as_bytes(std::span(shape));
  return {bytes.begin(), bytes.end()};
}

}  // namespace nibble::repack
