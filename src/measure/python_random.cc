#include "measure/python_random.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace nibble::measure {

PythonRandom::PythonRandom(uint64_t seed) {
  const uint32_t n = kStateWords;
  state_[0] = 19650218u;
  for (uint32_t i = 1; i < n; ++i) {
    state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
  }
  const uint32_t key[] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  const uint32_t n_key = key[1] == 0 ? 1 : 2;
  uint32_t i = 1;
  const auto advance = [&] {
    if (++i == n) {
      state_[0] = state_[n - 1];
      i = 1;
    }
  };
  const auto mixed = [&] { return state_[i - 1] ^ (state_[i - 1] >> 30); };
  for (uint32_t k = 0; k < n; ++k) {
    const uint32_t j = k % n_key;
    state_[i] = (state_[i] ^ (mixed() * 1664525u)) + key[j] + j;
    advance();
  }
  for (uint32_t k = 0; k < n - 1; ++k) {
    state_[i] = (state_[i] ^ (mixed() * 1566083941u)) - i;
    advance();
  }
  state_[0] = 0x80000000u;
}

void PythonRandom::Regenerate() {
  constexpr int kDistance = 397;
  for (int i = 0; i < kStateWords; ++i) {
    const uint32_t y = (state_[i] & 0x80000000u) | (state_[(i + 1) % kStateWords] & 0x7fffffffu);
    state_[i] =
        state_[(i + kDistance) % kStateWords] ^ (y >> 1) ^ ((y & 1u) != 0 ? 0x9908b0dfu : 0u);
  }
  next_ = 0;
}

uint32_t PythonRandom::GetRandBits(int n_bits) {
  CHECK(n_bits >= 1 && n_bits <= 32);
  if (next_ == kStateWords) Regenerate();
  uint32_t y = state_[next_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680u;
  y ^= (y << 15) & 0xefc60000u;
  y ^= y >> 18;
  return y >> (32 - n_bits);
}

uint32_t PythonRandom::RandBelow(uint32_t n) {
  CHECK(n >= 1);
  const int n_bits = static_cast<int>(std::bit_width(n));
  uint32_t value = GetRandBits(n_bits);
  while (value >= n) value = GetRandBits(n_bits);
  return value;
}

int PythonRandom::RandInt(int first, int last) {
  CHECK(first <= last);
  return first + static_cast<int>(RandBelow(static_cast<uint32_t>(last - first) + 1));
}

}  // namespace nibble::measure
