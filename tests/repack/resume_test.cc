#include "repack/resume.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>

namespace nibble::repack {
namespace {

TEST(ResumeTest, CountsComeBackToTheLastBit) {
  std::array<PackCounts, 2> counts;
  counts[0].grid = {.n_groups = 1,
                    .n_exact_groups = 2,
                    .n_nearest_groups = 3,
                    .n_off_grid_groups = 4,
                    .n_not_finite_groups = 5,
                    .n_zero_groups = 6,
                    .n_negative_scales = 7,
                    .n_values = uint64_t{1} << 60,
                    .n_inexact_values = 9,
                    .n_zero_sign_lost = 10,
                    .worst_ulp = 11,
                    .n_by_peak_code = {1, 2, 3}};
  counts[1].rounding = {.n_values = 3,
                        .sum_squares = 1.0 / 3,
                        .sum_squared_error = 0.1,
                        .sum_error = 1e-300,
                        .max_error = 12345.678901234567};
  std::array<PackCounts, 2> back;
  ASSERT_TRUE(CountsFromJson(*ParseJson(CountsToJson(counts).dump(), ""), back).has_value());
  EXPECT_EQ(CountsToJson(back), CountsToJson(counts));
  EXPECT_EQ(back[0].grid.n_values, uint64_t{1} << 60);
  EXPECT_EQ(back[0].grid.n_by_peak_code, counts[0].grid.n_by_peak_code);
  EXPECT_EQ(back[1].rounding.sum_squares, 1.0 / 3);
  EXPECT_EQ(back[1].rounding.sum_error, 1e-300);
  EXPECT_EQ(back[1].rounding.max_error, 12345.678901234567);
}

TEST(ResumeTest, CountsThatAreNotCountsAreErrors) {
  std::array<PackCounts, 1> counts;
  for (const char* text : {"[]", "null", "[1]", "[[[1],[2]]]", R"([["a","b"]])"}) {
    EXPECT_FALSE(CountsFromJson(*ParseJson(text, ""), counts).has_value()) << text;
  }
}

TEST(ResumeTest, OptionsThatShapeTheOutputCountAndOthersDoNot) {
  const auto source =
      checkpoint::Checkpoint::Open(std::filesystem::path(NIBBLE_SOURCE_DIR) / "models/tiny");
  ASSERT_TRUE(source.has_value()) << source.error().message;
  const auto made = [&](const Options& options) { return *WhatIsMade(*source, "c0ffee", options); };
  const Json plain = made({});
  EXPECT_EQ(made({.n_threads = 7, .max_memory_bytes = 1, .resume = true}), plain);
  EXPECT_NE(made({.format = Format::kQ4W4A16Emb4}), plain);
  EXPECT_NE(made({.scale_dtype = DType::kBF16}), plain);
  EXPECT_NE(made({.rounding = Rounding::kMinMax}), plain);
  EXPECT_NE(made({.keep_towers = true}), plain);
  EXPECT_NE(made({.allow_off_grid = true}), plain);
  EXPECT_NE(made({.max_shard_bytes = 1}), plain);
  EXPECT_EQ(plain["source"]["shards"].size(), source->files().size());
}

}  // namespace
}  // namespace nibble::repack
