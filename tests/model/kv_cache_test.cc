// Which pages a sequence holds as it grows, and how many bytes that is.
#include "model/kv_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/float16.h"
#include "random_model.h"

namespace nibble::model {
namespace {

// 5 sliding layers to a full one, window 64, of which the last two layers share KV.
gemma::Config FiveToOne(int n_shared) {
  Json types = Json::array();
  for (int i = 1; i <= 12; ++i)
    types.push_back(i % 6 == 0 ? "full_attention" : "sliding_attention");
  const Json overrides = {{"num_hidden_layers", 12},
                          {"layer_types", types},
                          {"sliding_window", 64},
                          {"num_kv_shared_layers", n_shared},
                          {"max_position_embeddings", 8192}};
  return TestConfig(overrides.dump().c_str());
}

std::vector<int32_t> Tokens(int64_t n, int32_t first = 0) {
  std::vector<int32_t> tokens(static_cast<size_t>(n));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Bytes of K and V of a token in the owning layers of a kind.
int64_t TokenBytes(const gemma::Config& config, bool sliding) {
  int64_t bytes = 0;
  for (int i = 0; i < config.n_layers(); ++i) {
    const gemma::LayerConfig& layer = config.layers[i];
    if (config.OwnsKv(i) && layer.is_sliding == sliding) {
      bytes += int64_t{layer.n_kv_heads} * layer.head_dim * 2 * 4;
    }
  }
  return bytes;
}

// Case C11 of the field reports.
TEST(KvCache, SlidingLayersHoldAboutAWindow) {
  const gemma::Config config = FiveToOne(0);
  KvCache cache(config, {.format = kernels::KvFormat::kF32});
  KvSequence sequence(cache);
  constexpr int64_t kStep = 128;
  for (int64_t n = 0; n < 8192; n += kStep) {
    ASSERT_TRUE(sequence.Reserve(kStep));
    // window - 1 tokens before the step's first, and the step, on pages cut anywhere.
    EXPECT_LE(cache.pool().n_used(PageKind::kSliding), (63 + kStep) / 16 + 2);
    sequence.Commit(Tokens(kStep));
    EXPECT_LE(cache.pool().n_used(PageKind::kSliding), 63 / 16 + 2);
  }
  EXPECT_EQ(sequence.n_tokens(), 8192);
  const double formula = static_cast<double>(8192 * TokenBytes(config, /*sliding=*/false) +
                                             64 * TokenBytes(config, /*sliding=*/true));
  EXPECT_NEAR(static_cast<double>(cache.pool().used_bytes()), formula, 0.05 * formula);
}

TEST(KvCache, KeepsEveryPageThatTheNextTokenSees) {
  const gemma::Config config = FiveToOne(0);
  KvCache cache(config, {.format = kernels::KvFormat::kF32});
  KvSequence sequence(cache);
  for (int64_t n = 1; n <= 300; ++n) {
    ASSERT_TRUE(sequence.Reserve(1));
    sequence.Commit(Tokens(1));
    const KvSequence::Pages& pages = sequence.pages(PageKind::kSliding);
    EXPECT_LE(pages.first_page * 16, std::max<int64_t>(0, n - 63));
    EXPECT_GT((pages.first_page + 1) * 16, n - 63);  // and none that it does not
    EXPECT_EQ(sequence.pages(PageKind::kFull).first_page, 0);
  }
}

TEST(KvCache, CountsOnlyLayersThatOwnKv) {
  for (const int n_shared : {0, 6}) {
    const gemma::Config config = FiveToOne(n_shared);
    KvCache cache(config, {.format = kernels::KvFormat::kF32});
    KvSequence sequence(cache);
    ASSERT_TRUE(sequence.Reserve(48));
    EXPECT_EQ(cache.pool().used_bytes(),
              48 * (TokenBytes(config, true) + TokenBytes(config, false)));
    for (int i = 0; i < config.n_layers(); ++i) {
      const int owner = config.layers[i].kv_owner_layer;
      EXPECT_EQ(cache.place(i).k_offset, cache.place(owner).k_offset) << i;
      EXPECT_EQ(cache.place(i).kind, cache.place(owner).kind) << i;
    }
  }
}

TEST(KvCache, TakesBytesByItsFormat) {
  const gemma::Config config = FiveToOne(6);
  const auto bytes_of = [&](kernels::KvFormat format) {
    KvCache cache(config, {.format = format});
    KvSequence sequence(cache);
    EXPECT_TRUE(sequence.Reserve(16));
    return cache.pool().used_bytes();
  };
  const int64_t f32 = bytes_of(kernels::KvFormat::kF32);
  int64_t n_scales = 0;  // of K and of V
  for (int i = 0; i < config.n_layers(); ++i) {
    if (config.OwnsKv(i)) n_scales += int64_t{config.layers[i].n_kv_heads} * 2 * 16;
  }
  EXPECT_EQ(bytes_of(kernels::KvFormat::kBf16), f32 / 2);
  EXPECT_EQ(bytes_of(kernels::KvFormat::kInt8), f32 / 4 + n_scales * 4);
}

TEST(KvCache, StoresRoundedToItsFormat) {
  const gemma::Config config = FiveToOne(0);
  const auto n = static_cast<size_t>(config.layers[0].head_dim);
  std::vector<float> k(n);
  std::vector<float> v(n);
  for (size_t i = 0; i < n; ++i) {
    k[i] = std::sin(static_cast<float>(i)) * 3;
    v[i] = std::cos(static_cast<float>(i));
  }
  for (const auto format :
       {kernels::KvFormat::kF32, kernels::KvFormat::kBf16, kernels::KvFormat::kInt8}) {
    const KvCache cache(config, {.format = format});
    const KvCache::Place& place = cache.place(0);
    std::vector<float> page(static_cast<size_t>(2 * place.head_stride));
    auto* bytes = reinterpret_cast<std::byte*>(page.data());
    cache.Store(place, 0, 16 + 5, bytes, k, v);
    for (size_t i = 0; i < n; ++i) {
      const auto k_at = static_cast<int64_t>(i) * 16 + 5;
      const auto v_at = static_cast<int64_t>(5 * n + i);
      if (format == kernels::KvFormat::kF32) {
        EXPECT_EQ(reinterpret_cast<float*>(bytes + place.k_offset)[k_at], k[i]);
        EXPECT_EQ(reinterpret_cast<float*>(bytes + place.v_offset)[v_at], v[i]);
      } else if (format == kernels::KvFormat::kBf16) {
        EXPECT_EQ(reinterpret_cast<uint16_t*>(bytes + place.k_offset)[k_at], FloatToBf16(k[i]));
        EXPECT_EQ(reinterpret_cast<uint16_t*>(bytes + place.v_offset)[v_at], FloatToBf16(v[i]));
      } else {
        const auto scale = [&](int64_t offset) {
          return reinterpret_cast<float*>(bytes + offset + static_cast<int64_t>(n) * 16)[5];
        };
        EXPECT_NEAR(static_cast<float>(static_cast<int8_t>(bytes[place.k_offset + k_at])) *
                        scale(place.k_offset),
                    k[i], scale(place.k_offset) * 0.501);
        EXPECT_NEAR(static_cast<float>(static_cast<int8_t>(bytes[place.v_offset + v_at])) *
                        scale(place.v_offset),
                    v[i], scale(place.v_offset) * 0.501);
      }
    }
  }
}

TEST(KvCache, GivesPagesBackAndUsesThemAgain) {
  const gemma::Config config = FiveToOne(0);
  KvCache cache(config, {.format = kernels::KvFormat::kF32});
  for (int i = 0; i < 3; ++i) {
    KvSequence sequence(cache);
    ASSERT_TRUE(sequence.Reserve(100));
    EXPECT_GT(cache.pool().used_bytes(), 0);
    KvSequence moved = std::move(sequence);
    moved.Commit(Tokens(100));
  }
  EXPECT_EQ(cache.pool().used_bytes(), 0);
  EXPECT_EQ(cache.pool().n_allocated(PageKind::kFull), 7);
  EXPECT_EQ(cache.pool().n_allocated(PageKind::kSliding), 7);
}

// A sequence of n tokens, read in steps of 32.
KvSequence Read(KvCache& cache, int64_t n, int32_t first = 0) {
  KvSequence sequence(cache);
  const std::vector<int32_t> tokens = Tokens(n, first);
  sequence.TakePrefix(tokens);
  while (sequence.n_tokens() < n) {
    const int64_t n_new = std::min<int64_t>(32, n - sequence.n_tokens());
    EXPECT_TRUE(sequence.Reserve(n_new));
    sequence.Commit(std::span(tokens).subspan(sequence.n_tokens(), n_new));
  }
  return sequence;
}

TEST(PrefixCache, SharesWholePagesOfEqualTokens) {
  const gemma::Config config = FiveToOne(0);
  KvCache cache(config, {.prefix_cache = true});
  const KvSequence first = Read(cache, 100);
  for (const int64_t n : {0, 1, 16, 17, 33, 100, 101}) {
    KvSequence second(cache);
    std::vector<int32_t> tokens = Tokens(n);
    const int64_t n_cached = second.TakePrefix(tokens);
    EXPECT_EQ(n_cached, n == 0 ? 0 : std::min<int64_t>(n - 1, 96) / 16 * 16);
    for (const PageKind kind : kPageKinds) {
      const KvSequence::Pages& a = first.pages(kind);
      const KvSequence::Pages& b = second.pages(kind);
      for (size_t i = 0; i < b.pages.size(); ++i) {
        const auto at = static_cast<int64_t>(i) + b.first_page - a.first_page;
        if (at < 0) continue;  // the first one has let go of it
        EXPECT_EQ(b.pages[i], a.pages[at]);
      }
    }
    if (n < 17) continue;
    tokens[5] += 1;  // another beginning, the rest alike
    KvSequence other(cache);
    EXPECT_EQ(other.TakePrefix(tokens), 0);
  }
}

TEST(PrefixCache, ReachesAsFarAsTheWindowsPagesExist) {
  const gemma::Config config = FiveToOne(0);  // a window of 64: 63 tokens before
  KvCache sizes(config, {});
  const int64_t budget = sizes.pool().Bytes({20, 30});
  KvCache cache(config, {.budget_bytes = budget, .prefix_cache = true});
  Read(cache, 256);  // 16 pages of each kind, all kept
  EXPECT_EQ(cache.pool().n_cached(PageKind::kSliding), 16);
  {
    // Another sequence takes what was not seen for longest: the sliding pages that slid out first.
    KvSequence other(cache);
    int64_t n = 0;
    while (cache.pool().n_cached(PageKind::kSliding) > 8) ASSERT_TRUE(other.Reserve(n += 16));
    EXPECT_EQ(cache.pool().n_cached(PageKind::kFull), 16);
  }
  // Sliding pages 0 to 7 are gone. Behind token 192 one sees 129 and later ones: page 8 on.
  EXPECT_EQ(KvSequence(cache).TakePrefix(Tokens(130)), 0);
  EXPECT_EQ(KvSequence(cache).TakePrefix(Tokens(191)), 0);
  EXPECT_EQ(KvSequence(cache).TakePrefix(Tokens(193)), 192);
  EXPECT_EQ(KvSequence(cache).TakePrefix(Tokens(300)), 256);
}

TEST(PrefixCache, EvictsWhatWasUnusedLongest) {
  const gemma::Config config = FiveToOne(0);
  KvCache sizes(config, {});
  KvCache cache(config, {.budget_bytes = sizes.pool().Bytes({12, 12}), .prefix_cache = true});
  Read(cache, 64, 0);
  Read(cache, 64, 1000);
  Read(cache, 64, 2000);
  KvSequence(cache).TakePrefix(Tokens(65, 0));  // used again
  Read(cache, 64, 3000);                        // in place of the second
  EXPECT_EQ(KvSequence(cache).TakePrefix(Tokens(65, 1000)), 0);
  EXPECT_EQ(KvSequence(cache).TakePrefix(Tokens(65, 0)), 64);
  EXPECT_EQ(KvSequence(cache).TakePrefix(Tokens(65, 2000)), 64);
  EXPECT_EQ(KvSequence(cache).TakePrefix(Tokens(65, 3000)), 64);
}

TEST(PrefixCache, PagesInUseAreNotEvicted) {
  const gemma::Config config = FiveToOne(0);
  KvCache sizes(config, {});
  KvCache cache(config, {.budget_bytes = sizes.pool().Bytes({6, 6}), .prefix_cache = true});
  const KvSequence held = Read(cache, 64);
  KvSequence other(cache);
  EXPECT_TRUE(other.Reserve(32));
  EXPECT_FALSE(other.Reserve(48));
  EXPECT_EQ(other.n_pages(), (ByKind{2, 2}));  // as before
  other.Clear();
  EXPECT_TRUE(other.Reserve(32));
}

}  // namespace
}  // namespace nibble::model
