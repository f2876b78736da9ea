// The forward pass against itself: cutting, skipping, paging, packing and threads change no bit.
// Against transformers: tests/interop/test_logits.py.
#include "model/forward.h"

#include <gtest/gtest.h>

#include <cstring>

#include "random_model.h"

namespace nibble::model {
namespace {

struct Precision {
  Activations activations = Activations::kF32;
  kernels::KvFormat kv_format = kernels::KvFormat::kF32;
  const char* kernels = nullptr;
};

// A model that runs one sequence.
class Runner {
 public:
  explicit Runner(const Weights& weights, int n_threads = 1, bool keep_slid_out = false,
                  const Precision& precision = {})
      : pool_(n_threads),
        cache_(weights.config, {.format = precision.kv_format, .keep_slid_out = keep_slid_out}),
        forward_(weights, cache_,
                 {.kernels = **kernels::ChooseKernels(precision.kernels),
                  .pool = pool_,
                  .activations = precision.activations}),
        sequence_(cache_) {}

  std::vector<float> Step(std::span<const int32_t> tokens, int n_logits = 1) {
    const StepSequence step{.tokens = tokens, .kv = &sequence_, .n_logits = n_logits};
    const std::span<const float> logits = forward_.Step({&step, 1});
    return {logits.begin(), logits.end()};
  }

  Forward& forward() { return forward_; }
  const KvSequence& sequence() const { return sequence_; }
  KvCache& cache() { return cache_; }

 private:
  ThreadPool pool_;
  KvCache cache_;
  Forward forward_;
  KvSequence sequence_;
};

class ForwardTest : public ::testing::Test {
 protected:
  ForwardTest()
      : config_(TestConfig()),
        weights_(*Bind(config_, RandomTensors(config_))),
        prompt_(RandomPrompt(config_, 90)) {}  // 90: more than three windows of 24

  gemma::Config config_;
  Weights weights_;
  std::vector<int32_t> prompt_;
};

TEST_F(ForwardTest, LogitsVary) {
  const std::vector<float> logits = Runner(weights_).Step(prompt_);
  ASSERT_EQ(logits.size(), 96u);
  const auto [least, most] = std::ranges::minmax(logits);
  EXPECT_GT(most - least, 2.0f);
  EXPECT_LE(most, 30.0f);
}

TEST_F(ForwardTest, UnwantedRowsNeedNoSharedLayers) {
  ASSERT_EQ(config_.first_shared_layer(), 4);
  for (const int n_logits : {1, 3, 90}) {
    Runner running_all(weights_);
    running_all.forward().set_skip_unwanted_rows(false);
    EXPECT_EQ(Runner(weights_).Step(prompt_, n_logits), running_all.Step(prompt_, n_logits))
        << n_logits;
  }
}

TEST_F(ForwardTest, LastLogitsAreThoseOfAllPositions) {
  const std::vector<float> all = Runner(weights_).Step(prompt_, 90);
  const std::vector<float> last = Runner(weights_).Step(prompt_, 1);
  EXPECT_EQ(std::vector<float>(all.end() - 96, all.end()), last);
}

TEST_F(ForwardTest, PiecesChangeNothing) {
  const std::vector<float> whole = Runner(weights_).Step(prompt_);
  for (const size_t piece : {1, 7, 16, 40}) {
    Runner runner(weights_);
    std::vector<float> logits;
    for (size_t begin = 0; begin < prompt_.size(); begin += piece) {
      const size_t n = std::min(piece, prompt_.size() - begin);
      const bool is_last = begin + n == prompt_.size();
      logits = runner.Step(std::span(prompt_).subspan(begin, n), is_last ? 1 : 0);
      EXPECT_EQ(logits.size(), is_last ? 96u : 0u);
    }
    EXPECT_EQ(logits, whole) << piece;
  }
}

TEST_F(ForwardTest, DroppedPagesWereNotNeeded) {
  Runner dropping(weights_);
  Runner keeping(weights_, 1, /*keep_slid_out=*/true);
  for (const int32_t& token : prompt_) {
    EXPECT_EQ(dropping.Step({&token, 1}), keeping.Step({&token, 1}));
  }
  EXPECT_LT(dropping.cache().pool().n_used(PageKind::kSliding),
            keeping.cache().pool().n_used(PageKind::kSliding));
}

// The donors' K and V are the same whether the shared layers ran (for one row, for all) or not.
TEST_F(ForwardTest, SharedLayersWriteNoKv) {
  std::vector<std::vector<float>> contents;
  for (const int n_logits : {0, 1, 90}) {
    Runner runner(weights_, 1, /*keep_slid_out=*/true);
    runner.Step(prompt_, n_logits);
    std::vector<float>& content = contents.emplace_back();
    for (const PageKind kind : {PageKind::kSliding, PageKind::kFull}) {
      const int64_t n = runner.cache().pool().page_bytes(kind) / 4;
      for (const std::byte* page : runner.sequence().pages(kind).pages) {
        const auto* values = reinterpret_cast<const float*>(page);
        content.insert(content.end(), values, values + n);
      }
    }
  }
  EXPECT_EQ(contents[0], contents[1]);
  EXPECT_EQ(contents[0], contents[2]);
}

TEST_F(ForwardTest, ThreadsChangeNothing) {
  EXPECT_EQ(Runner(weights_, 3).Step(prompt_, 90), Runner(weights_, 1).Step(prompt_, 90));
}

// In every precision, whatever computes it and however the prompt is cut: the same logits.
TEST_F(ForwardTest, PiecesThreadsAndInstructionSetsChangeNothingInAnyPrecision) {
  const auto packed =
      Bind(config_, RandomTensors(config_, 1, [](const gemma::TensorSpec&) { return true; }));
  ASSERT_TRUE(packed.has_value()) << packed.error().message;
  for (const Activations activations :
       {Activations::kF32, Activations::kInt16, Activations::kInt8}) {
    for (const auto kv_format : {kernels::KvFormat::kBf16, kernels::KvFormat::kInt8}) {
      const auto run = [&](const char* kernels, int n_threads, size_t piece) {
        Runner runner(*packed, n_threads, false, {activations, kv_format, kernels});
        std::vector<float> logits;
        for (size_t begin = 0; begin < prompt_.size(); begin += piece) {
          logits = runner.Step(
              std::span(prompt_).subspan(begin, std::min(piece, prompt_.size() - begin)));
        }
        return logits;
      };
      const std::vector<float> expected = run("scalar", 1, 90);
      for (const kernels::KernelTable* table : kernels::AvailableKernels()) {
        EXPECT_EQ(run(table->name, 3, 90), expected) << table->name;
        EXPECT_EQ(run(table->name, 2, 7), expected) << table->name;
        EXPECT_EQ(run(table->name, 1, 1), expected) << table->name;
      }
    }
  }
}

// Scales are powers of two, so that even the order of roundings is the same.
TEST_F(ForwardTest, PackedLinearsAndTablesHoldTheSameNumbers) {
  const std::vector<float> plain = Runner(weights_).Step(prompt_);
  const auto only = [&](std::string_view part) {
    return RandomTensors(config_, 1, [part](const gemma::TensorSpec& spec) {
      return spec.name.find(part) != std::string::npos;
    });
  };
  for (const char* part : {"", "per_layer_model_projection", "embed_tokens_per_layer",
                           "embed_tokens.weight", "self_attn", "mlp"}) {
    const auto packed = Bind(config_, only(part));
    ASSERT_TRUE(packed.has_value()) << packed.error().message;
    EXPECT_EQ(Runner(*packed).Step(prompt_), plain) << part;
  }
}

}  // namespace
}  // namespace nibble::model
