// A hash map from pairs of token ids to a number, for half a million merges: open addressing, one
// cache line a lookup in most cases.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace nibble::text {

class PairMap {
 public:
  static constexpr uint32_t kNone = 0xffffffffu;

  // Room for `n_pairs` pairs at half load.
  explicit PairMap(size_t n_pairs) : slots_(std::bit_ceil(2 * n_pairs + 2)) {}

  // A pair that is there already gets the new value. At most `n_pairs` different pairs. value !=
  // kNone.
  void Set(int32_t left, int32_t right, uint32_t value) {
    Slot& slot = slots_[SlotOf(left, right)];
    slot = {left, right, value};
  }

  // kNone if the pair is not there.
  uint32_t Find(int32_t left, int32_t right) const { return slots_[SlotOf(left, right)].value; }

 private:
  struct Slot {
    int32_t left = 0;
    int32_t right = 0;
    uint32_t value = kNone;  // kNone: the slot is free
  };

  size_t SlotOf(int32_t left, int32_t right) const {
    const size_t mask = slots_.size() - 1;
    const uint64_t key =
        (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
    // Fibonacci hashing: the golden ratio's bits spread neighbouring ids; the top half is mixed
    // best.
    size_t i = static_cast<size_t>((key * 0x9e3779b97f4a7c15u) >> 32) & mask;
    while (slots_[i].value != kNone && (slots_[i].left != left || slots_[i].right != right)) {
      i = (i + 1) & mask;
    }
    return i;
  }

  std::vector<Slot> slots_;
};

}  // namespace nibble::text
