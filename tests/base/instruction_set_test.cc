#include "base/instruction_set.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(InstructionSet, ScalarIsAlwaysThereAndTheLastIsTheDefault) {
  const auto sets = AvailableInstructionSets();
  ASSERT_FALSE(sets.empty());
  EXPECT_EQ(sets.front(), InstructionSet::kScalar);
  EXPECT_EQ(ChooseInstructionSet(nullptr), sets.back());
  EXPECT_EQ(ChooseInstructionSet(""), sets.back());
}

TEST(InstructionSet, IsForcedByName) {
  for (const InstructionSet set : AvailableInstructionSets()) {
    EXPECT_EQ(ChooseInstructionSet(std::string(Name(set)).c_str()), set);
  }
  const auto unknown = ChooseInstructionSet("mmx");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_NE(unknown.error().message.find("NIBBLE_KERNELS=mmx"), std::string::npos);
  EXPECT_NE(unknown.error().message.find("scalar"), std::string::npos);
}

}  // namespace
}  // namespace nibble
