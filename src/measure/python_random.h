// Python's random.Random(seed) for whole-number seeds, because the published question sets are
// defined by it: the Mersenne Twister MT19937 (Matsumoto, Nishimura 1998), seeded by init_by_array
// with the seed's 32-bit words, and randint by rejection as CPython's
// Random._randbelow_with_getrandbits. Tested by python_random_test.cc against values from CPython.
#pragma once

#include <array>
#include <cstdint>

namespace nibble::measure {

class PythonRandom {
 public:
  explicit PythonRandom(uint64_t seed);

  // random.getrandbits(n_bits), 1 to 32 bits.
  uint32_t GetRandBits(int n_bits);
  // A number in [0, n), n >= 1: the index that random.choice takes of a list of n.
  uint32_t RandBelow(uint32_t n);
  // random.randint(first, last), both inclusive.
  int RandInt(int first, int last);

 private:
  static constexpr int kStateWords = 624;

  void Regenerate();

  std::array<uint32_t, kStateWords> state_;
  int next_ = kStateWords;
};

}  // namespace nibble::measure
