#include "base/dtype.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(DTypeTest, NamesAndSizesAreThoseOfSafetensors) {
  const struct {
    const char* name;
    int64_t size_bytes;
  } kCases[] = {{"BOOL", 1}, {"U8", 1},   {"I8", 1},  {"I16", 2}, {"U16", 2},
                {"F16", 2},  {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},
                {"F64", 8},  {"I64", 8},  {"U64", 8}};
  for (const auto& [name, size_bytes] : kCases) {
    const std::optional<DType> dtype = ParseDType(name);
    ASSERT_TRUE(dtype.has_value()) << name;
    EXPECT_EQ(Name(*dtype), name);
    EXPECT_EQ(SizeBytes(*dtype), size_bytes) << name;
  }
  for (const char* name : {"", "bf16", "F8_E4M3", "F4", "BF16 "}) {
    EXPECT_FALSE(ParseDType(name).has_value()) << name;
  }
}

}  // namespace
}  // namespace nibble
