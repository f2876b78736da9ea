#include "repack/model_card.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/atomic_file.h"

namespace nibble::repack {
namespace {

namespace fs = std::filesystem;

class ModelCardTest : public testing::Test {
 protected:
  ModelCardTest() : root_(fs::path(testing::TempDir()) / "nibble_model_card_test") {
    fs::remove_all(root_);
    report_.options.format = Format::kQ4W4A16Emb4;
    report_.tensors = {{.source = "t",
                        .action = Action::kPack,
                        .part = gemma::Part::kVocabulary,
                        .output = "t",
                        .shape = {},
                        .source_bytes = 3'200'000'000,
                        .output_bytes = 900'000'000,
                        .counts = {}},
                       {.source = "t",
                        .action = Action::kPack,
                        .part = gemma::Part::kVocabulary,
                        .output = "lm_head",
                        .shape = {},
                        .source_bytes = 3'200'000'000,
                        .output_bytes = 900'000'000,
                        .counts = {}}};
    report_.totals.grid = {
        .n_groups = 50'000'000, .n_exact_groups = 50'000'000, .n_values = 1'600'000'000};
  }
  ~ModelCardTest() override { fs::remove_all(root_); }

  fs::path Source(const std::string& dir, const std::string& card = "") {
    fs::create_directories(root_ / dir);
    EXPECT_TRUE(WriteFile(root_ / dir / "README.md", card).has_value());
    return root_ / dir;
  }
  static std::string Front(const std::string& card) {
    return card.substr(0, card.find("---\n", 4));
  }

  const fs::path root_;
  RepackReport report_;
};

TEST_F(ModelCardTest, TakesLicenceFromTheSourceAndTheNameFromTheCache) {
  const fs::path source = Source("models--google--gemma-4-E2B-it/snapshots/0123abcd",
                                 "---\nlicense: apache-2.0\nlicense_link: https://x.y/z\n"
                                 "tags:\n- a\n  license: wrong\n---\nlicense: no\n");
  const std::string card = ModelCard(source, Json::object(), report_);
  EXPECT_EQ(Front(card),
            "---\nlicense: apache-2.0\nlicense_link: https://x.y/z\n"
            "base_model: google/gemma-4-E2B-it\nbase_model_relation: quantized\n"
            "library_name: vllm\npipeline_tag: text-generation\n"
            "tags:\n- gemma4\n- qat\n- compressed-tensors\n- int4\n- nibble\n");
  EXPECT_NE(card.find("# gemma-4-E2B-it in q4w4a16emb4\n"), std::string::npos) << card;
  EXPECT_NE(card.find("| total | 3.20 GB | 1.80 GB |"), std::string::npos) << card;
  EXPECT_NE(card.find("1600000000 of 1600000000 values (100.0000 %) are bit-identical"),
            std::string::npos)
      << card;
  EXPECT_EQ(card.find(root_.string()), std::string::npos) << "a path of this machine";
}

TEST_F(ModelCardTest, StatesNothingThatIsNotKnown) {
  for (const char* card :
       {"", "no front matter\nlicense: mit\n", "---\nlicense: mit\nnever closed"}) {
    const std::string text = ModelCard(Source("my model", card), Json::object(), report_);
    EXPECT_EQ(Front(text).find("license"), std::string::npos) << text;
    EXPECT_EQ(text.find("base_model"), std::string::npos);
    EXPECT_NE(text.find("# my model in "), std::string::npos);
    EXPECT_NE(text.find("The licence is that of the source model."), std::string::npos);
  }
}

TEST_F(ModelCardTest, TheConfigMayNameTheSource) {
  const fs::path source = Source("weights");
  const auto base = [&](const char* name) {
    const std::string card = ModelCard(source, {{"_name_or_path", name}}, report_);
    return card.find("base_model: ") != std::string::npos;
  };
  EXPECT_TRUE(base("google/gemma-4-E2B-it"));
  for (const char* name :
       {"/data/gemma", "a/b/c", "gemma", "../gemma", "a/b: c", "./x", "x/", ""}) {
    EXPECT_FALSE(base(name)) << name;
  }
}

TEST_F(ModelCardTest, TowersShapeThePipeline) {
  const fs::path source = Source("m");
  report_.options.keep_towers = true;
  const auto has = [&](const Json& config, const char* tag) {
    return ModelCard(source, config, report_).find(fmt::format("pipeline_tag: {}\n", tag)) !=
           std::string::npos;
  };
  EXPECT_TRUE(has({{"audio_config", Json::object()}}, "any-to-any"));
  EXPECT_TRUE(has({{"audio_config", nullptr}}, "image-text-to-text"));
}

TEST_F(ModelCardTest, Int8IsNeverCalledExact) {
  report_.options.format = Format::kW8A8;
  report_.totals.grid = {};
  report_.totals.rounding = {.n_values = 100,
                             .sum_squares = 1,
                             .sum_squared_error = 1e-4,
                             .sum_error = 0.5,
                             .max_error = 0.01};
  const std::string card = ModelCard(Source("m"), Json::object(), report_);
  EXPECT_NE(card.find("**approximate**"), std::string::npos);
  EXPECT_NE(card.find("relative error 1.000 %"), std::string::npos) << card;
  EXPECT_EQ(card.find("nothing was rounded"), std::string::npos);
  EXPECT_EQ(card.find("bit-identical"), std::string::npos);
}

}  // namespace
}  // namespace nibble::repack
