// The trained model in models/tiny as a GGUF file: export, proof, anatomy.
#include "repack/gguf_export.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "base/mapped_file.h"
#include "checkpoint/gguf_file.h"
#include "repack/inspect.h"
#include "repack/verify_gguf.h"

namespace nibble::repack {
namespace {

namespace fs = std::filesystem;
using checkpoint::GgmlType;
using checkpoint::GgufFile;

class GgufExportTest : public testing::Test {
 protected:
  GgufExportTest() : dir_(fs::path(testing::TempDir()) / "nibble_gguf_export_test") {
    fs::remove_all(dir_);
    fs::create_directories(dir_);
    options_.format = Format::kGguf;
    options_.n_threads = 2;
  }
  ~GgufExportTest() override { fs::remove_all(dir_); }

  GgufReport Export(GgufTables tables = GgufTables::kQ40) {
    auto written = ExportGguf(source_, out_, options_, tables, {}, {});
    EXPECT_TRUE(written.has_value()) << written.error().message;
    if (!written.has_value()) return {};
    towers_ = std::move(written->towers);
    return std::move(written->text);
  }

  // Changes one byte of a tensor in the file.
  void Damage(const std::string& tensor, uint64_t offset_bytes) {
    DamageIn(out_, tensor, offset_bytes);
  }

  static void DamageIn(const fs::path& path, const std::string& tensor, uint64_t offset_bytes) {
    uint64_t at = 0;
    {
      const GgufFile file = GgufFile::Open(path).value();
      at = file.header().data_begin_bytes + file.header().FindTensor(tensor)->offset_bytes;
    }
    std::fstream stream(path, std::ios::binary | std::ios::in | std::ios::out);
    stream.seekg(static_cast<std::streamoff>(at + offset_bytes));
    const int byte = stream.get();
    stream.seekp(static_cast<std::streamoff>(at + offset_bytes));
    stream.put(static_cast<char>(byte ^ 0x10));
  }

  std::vector<std::string> Faults() {
    const auto report = VerifyGguf(source_, out_, 2, {});
    EXPECT_TRUE(report.has_value()) << report.error().message;
    return report->faults;
  }

  const fs::path source_ = fs::path(NIBBLE_SOURCE_DIR) / "models/tiny";
  const fs::path dir_;
  const fs::path out_ = dir_ / "tiny.gguf";
  Options options_;
  std::optional<GgufReport> towers_;  // of the last Export()
};

TEST_F(GgufExportTest, IsProvenToStandForItsSource) {
  const GgufReport report = Export();
  EXPECT_GT(report.totals.n_groups, 1000u);
  EXPECT_EQ(report.totals.n_exact_groups, report.totals.n_groups);
  EXPECT_GT(report.totals.n_negative_scales, report.totals.n_groups / 4);
  const auto proof = VerifyGguf(source_, out_, 2, {});
  ASSERT_TRUE(proof.has_value()) << proof.error().message;
  EXPECT_TRUE(proof->is_right()) << proof->faults.front();
  EXPECT_EQ(proof->totals.n_groups, report.totals.n_groups);
  EXPECT_EQ(proof->totals.n_bit_identical, proof->totals.n_values);
}

TEST_F(GgufExportTest, TheTableOfSizesAddsUpToTheFile) {
  for (const GgufTables tables : {GgufTables::kQ40, GgufTables::kQ6K, GgufTables::kBf16}) {
    fs::remove(out_);
    const GgufReport report = Export(tables);
    uint64_t total_bytes = report.padding_bytes;
    for (const GgufGroup& group : report.Groups()) total_bytes += group.n_bytes;
    EXPECT_EQ(total_bytes + report.header_bytes, fs::file_size(out_));
    EXPECT_EQ(report.file_bytes, fs::file_size(out_));
    EXPECT_EQ(report.header_bytes, GgufFile::Open(out_)->header().data_begin_bytes);
    for (const GgufTensorReport& tensor : report.tensors) {
      if (tensor.output.tensor.type != GgmlType::kQ40) continue;
      EXPECT_EQ(tensor.output.tensor.size_bytes, tensor.counts.n_groups * 18);
      EXPECT_EQ(tensor.source_bytes, tensor.counts.n_groups * 64);
    }
    EXPECT_TRUE(Faults().empty());
  }
}

TEST_F(GgufExportTest, ThreadsDoNotChangeTheBytes) {
  options_.n_threads = 1;
  Export(GgufTables::kQ6K);
  const std::string one = ReadTextFile(out_).value();
  fs::remove(out_);
  options_.n_threads = 3;
  Export(GgufTables::kQ6K);
  EXPECT_EQ(ReadTextFile(out_).value(), one);
}

TEST_F(GgufExportTest, ARowThatDoesNotDivideStaysBf16AndIsNamed) {
  const GgufReport report = Export(GgufTables::kQ6K);
  size_t n_named = 0;
  for (const GgufTensorReport& tensor : report.tensors) {
    const bool is_named = !tensor.output.why.empty();
    n_named += is_named ? 1 : 0;
    if (!tensor.output.tensor.name.ends_with("token_embd.weight")) continue;
    const bool divides = tensor.output.tensor.dims[0] % 256 == 0;
    EXPECT_EQ(tensor.output.tensor.type, divides ? GgmlType::kQ6K : GgmlType::kBF16);
    EXPECT_EQ(is_named, !divides);
  }
  EXPECT_LE(n_named, 2u);
}

TEST_F(GgufExportTest, VerifyFindsWhatIsChanged) {
  Export();
  Damage("blk.1.ffn_up.weight", 18 + 5);  // a code of the second group
  ASSERT_EQ(Faults().size(), 1u);
  EXPECT_TRUE(Faults()[0].starts_with("blk.1.ffn_up.weight: 1 groups are wrong")) << Faults()[0];
  EXPECT_NE(Faults()[0].find("row 0 group 1"), std::string::npos) << Faults()[0];
  Damage("output_norm.weight", 2);
  Damage("rope_freqs.weight", 2);
  const std::vector<std::string> faults = Faults();
  ASSERT_EQ(faults.size(), 3u);
  EXPECT_TRUE(std::ranges::any_of(
      faults, [](const std::string& f) { return f.starts_with("output_norm.weight: value 0"); }));
  EXPECT_TRUE(faults.back().starts_with("rope_freqs.weight: pair 0")) << faults.back();
}

TEST_F(GgufExportTest, OptionsWithoutAPlaceAreRefusedAndNothingIsWritten) {
  options_.scale_dtype = DType::kBF16;
  EXPECT_FALSE(ExportGguf(source_, out_, options_, GgufTables::kQ40, {}, {}).has_value());
  options_.scale_dtype = DType::kF16;
  EXPECT_FALSE(ExportGguf(source_, dir_ / "x", options_, GgufTables::kQ40, {}, {}).has_value());
  options_.dry_run = true;
  Export();
  EXPECT_TRUE(fs::is_empty(dir_));
  options_.dry_run = false;
  Export();
  EXPECT_FALSE(ExportGguf(source_, out_, options_, GgufTables::kQ40, {}, {}).has_value());
}

TEST_F(GgufExportTest, TowersStandInAFileOfTheirOwnAndAreProvenWithTheTextModel) {
  Export();
  const std::string alone = ReadTextFile(out_).value();
  fs::remove(out_);
  options_.keep_towers = true;
  Export();
  EXPECT_EQ(ReadTextFile(out_).value(), alone);
  const fs::path towers = dir_ / "mmproj-tiny-BF16.gguf";
  ASSERT_TRUE(towers_.has_value());
  EXPECT_EQ(towers_->file, towers.string());
  EXPECT_EQ(towers_->file_bytes, fs::file_size(towers));
  for (const fs::path& path : {out_, towers}) {
    const auto proof = VerifyGguf(source_, path, 2, {});
    ASSERT_TRUE(proof.has_value()) << proof.error().message;
    EXPECT_TRUE(proof->is_right()) << proof->faults.front();
    EXPECT_EQ(proof->n_tower_tensors, towers_->tensors.size());
  }
  for (const GgufTensorReport& tensor : towers_->tensors) {
    DamageIn(towers, tensor.output.tensor.name, tensor.output.tensor.size_bytes - 1);
  }
  EXPECT_EQ(Faults().size(), towers_->tensors.size());
}

TEST_F(GgufExportTest, ATowersFileThatSaysSomethingElseIsFound) {
  options_.keep_towers = true;
  Export();
  const fs::path towers = dir_ / "mmproj-tiny-BF16.gguf";
  std::string bytes = ReadTextFile(towers).value();
  const std::string key = "clip.vision.block_count";
  bytes[bytes.find(key) + key.size() + sizeof(uint32_t)] = 9;  // after the value's type
  std::ofstream(towers, std::ios::binary) << bytes;
  ASSERT_EQ(Faults().size(), 1u);
  EXPECT_EQ(Faults()[0], "mmproj-tiny-BF16.gguf: key clip.vision.block_count: expected 2, found 9");
  fs::remove(towers);
  EXPECT_TRUE(Faults().empty());
}

TEST_F(GgufExportTest, InspectListsPartsAndTypes) {
  const GgufReport report = Export();
  const auto anatomy = Inspect(out_, false, 1, {});
  ASSERT_TRUE(anatomy.has_value()) << anatomy.error().message;
  EXPECT_EQ(anatomy->format, "gguf");
  EXPECT_EQ(anatomy->architecture, "gemma4");
  EXPECT_EQ(anatomy->n_bytes, report.file_bytes - report.header_bytes - report.padding_bytes);
  ASSERT_EQ(anatomy->parts.size(), 4u);
  EXPECT_EQ(anatomy->parts[0].part, "body");
  EXPECT_EQ(anatomy->parts[3].part, "other");
  EXPECT_EQ(anatomy->parts[3].n_tensors, 1u);  // the rope factors
  EXPECT_TRUE(anatomy->parts[0].bytes_by_dtype.contains("Q4_0"));
  EXPECT_FALSE(Inspect(out_, true, 1, {}).has_value());
}

}  // namespace
}  // namespace nibble::repack
