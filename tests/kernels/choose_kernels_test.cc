// What a name, or none, chooses.
#include "kernels/choose_kernels.h"

#include <gtest/gtest.h>

namespace nibble::kernels {
namespace {

TEST(ChooseKernels, TakesTheFastestOrTheOneThatIsNamed) {
  const std::vector<const KernelTable*> tables = AvailableKernels();
  EXPECT_STREQ(tables.front()->name, "scalar");
  EXPECT_EQ(*ChooseKernels(nullptr), tables.back());
  EXPECT_EQ(*ChooseKernels(""), tables.back());
  for (const KernelTable* table : tables) EXPECT_EQ(*ChooseKernels(table->name), table);
}

TEST(ChooseKernels, NamesWhatThereIs) {
  const auto unknown = ChooseKernels("mmx");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_NE(unknown.error().message.find("mmx"), std::string::npos);
  for (const KernelTable* table : AvailableKernels()) {
    EXPECT_NE(unknown.error().message.find(table->name), std::string::npos) << table->name;
  }
}

}  // namespace
}  // namespace nibble::kernels
