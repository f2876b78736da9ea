#include "engine/stop_tokens.h"

#include <gtest/gtest.h>

#include "base/atomic_file.h"

namespace nibble::engine {
namespace {

class StopTokensTest : public ::testing::Test {
 protected:
  StopTokensTest() {
    std::string pattern = testing::TempDir() + "nibble_stop_tokens_XXXXXX";
    dir_ = mkdtemp(pattern.data());
  }
  ~StopTokensTest() override { std::filesystem::remove_all(dir_); }

  void Write(const char* name, std::string_view content) {
    ASSERT_TRUE(WriteFile(dir_ / name, content).has_value());
  }

  std::filesystem::path dir_;
};

// Case E8 of the field reports.
TEST_F(StopTokensTest, JoinsBothFiles) {
  Write("generation_config.json", R"({"eos_token_id": [106, 1, 50]})");
  Write("config.json", R"({"eos_token_id": [1, 106], "text_config": {"eos_token_id": 7}})");
  EXPECT_EQ(*ReadStopTokens(dir_), (std::vector<int32_t>{1, 7, 50, 106}));
}

TEST_F(StopTokensTest, MayBeOneOrNone) {
  Write("config.json", R"({"eos_token_id": 1})");
  EXPECT_EQ(*ReadStopTokens(dir_), (std::vector<int32_t>{1}));
  Write("config.json", R"({"eos_token_id": null})");
  EXPECT_TRUE(ReadStopTokens(dir_)->empty());
}

TEST_F(StopTokensTest, NamesWhatIsNoId) {
  Write("generation_config.json", R"({"eos_token_id": [1, "<eos>"]})");
  const auto ids = ReadStopTokens(dir_);
  ASSERT_FALSE(ids.has_value());
  EXPECT_NE(ids.error().message.find("generation_config.json: eos_token_id"), std::string::npos);
}

}  // namespace
}  // namespace nibble::engine
