// Against CPython 3.11: values printed by random.Random(seed).
#include "measure/python_random.h"

#include <gtest/gtest.h>

#include <vector>

namespace nibble::measure {
namespace {

struct Case {
  uint64_t seed;
  std::vector<uint32_t> bits;     // getrandbits(32), three times
  std::vector<int> two_digits;    // then randint(12, 99), six times
  std::vector<int> three_digits;  // then randint(100, 999), four times
};

TEST(PythonRandom, GivesCPythonsNumbers) {
  const Case cases[] = {
      {0, {3626764237, 1654615998, 3255389356}, {65, 17, 45, 77, 74, 63}, {902, 949, 410, 588}},
      {1, {577090037, 2444712010, 3639700191}, {20, 44, 27, 75, 69, 72}, {767, 488, 907, 314}},
      {20260925,
       {1414846469, 4057274043, 558140030},
       {77, 27, 67, 84, 96, 90},
       {340, 680, 598, 502}},
      {1099511640121,  // two words of seed
       {1332995613, 1500173691, 493462063},
       {12, 80, 29, 38, 29, 97},
       {190, 731, 393, 109}},
  };
  for (const Case& c : cases) {
    PythonRandom random(c.seed);
    for (const uint32_t expected : c.bits) EXPECT_EQ(random.GetRandBits(32), expected) << c.seed;
    for (const int expected : c.two_digits) EXPECT_EQ(random.RandInt(12, 99), expected) << c.seed;
    for (const int expected : c.three_digits) {
      EXPECT_EQ(random.RandInt(100, 999), expected) << c.seed;
    }
  }
}

TEST(PythonRandom, GoesOnBeyondItsFirstState) {
  PythonRandom random(5);
  for (int i = 0; i < 10000; ++i) random.GetRandBits(32);
  EXPECT_EQ(random.GetRandBits(32), 3634993464u);
  EXPECT_EQ(random.GetRandBits(7), 100u);
  EXPECT_EQ(random.GetRandBits(1), 1u);
}

}  // namespace
}  // namespace nibble::measure
