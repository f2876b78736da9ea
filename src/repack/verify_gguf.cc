#include "repack/verify_gguf.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/float16.h"
#include "base/instruction_set.h"
#include "base/mapped_file.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_file.h"
#include "formats/q6_k.h"
#include "gemma/config.h"
#include "gemma/gguf_towers.h"
#include "gemma/tensors.h"
#include "repack/verify_gguf_config.h"
#include "repack/verify_gguf_towers.h"

namespace nibble::repack {
namespace {

using checkpoint::Checkpoint;
using checkpoint::GgmlType;
using checkpoint::GgufFile;
using checkpoint::GgufTensor;
using checkpoint::Tensor;

constexpr int64_t kBlockValues = 32;
constexpr size_t kBlockBytes = 18;  // fp16 scale, 16 bytes of codes

// The name that llama.cpp's converter gives a tensor: parts of names, put together.
std::optional<std::string> NameInGguf(const std::string& name) {
  static const std::map<std::string, std::string, std::less<>> kParts = {
      {"embed_tokens", "token_embd"},
      {"embed_tokens_per_layer", "per_layer_token_embd"},
      {"per_layer_model_projection", "per_layer_model_proj"},
      {"per_layer_projection_norm", "per_layer_proj_norm"},
      {"norm", "output_norm"},
      {"lm_head", "output"},
      {"input_layernorm", "attn_norm"},
      {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},
      {"self_attn.o_proj", "attn_output"},
      {"self_attn.q_norm", "attn_q_norm"},
      {"self_attn.k_norm", "attn_k_norm"},
      {"post_attention_layernorm", "post_attention_norm"},
      {"pre_feedforward_layernorm", "ffn_norm"},
      {"pre_feedforward_layernorm_2", "pre_ffw_norm_2"},
      {"post_feedforward_layernorm", "post_ffw_norm"},
      {"post_feedforward_layernorm_1", "post_ffw_norm_1"},
      {"post_feedforward_layernorm_2", "post_ffw_norm_2"},
      {"mlp.gate_proj", "ffn_gate"},
      {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},
      {"router.proj", "ffn_gate_inp"},
      {"per_layer_input_gate", "inp_gate"},
      {"per_layer_projection", "proj"},
      {"post_per_layer_input_norm", "post_norm"},
      {"layer_scalar", "layer_output_scale"},
      {"experts.gate_up_proj", "ffn_gate_up_exps"},
      {"experts.down_proj", "ffn_down_exps"},
  };
  constexpr std::string_view kLayers = "model.layers.";
  std::string prefix;
  std::string rest = name;
  if (name.starts_with(kLayers)) {
    const size_t dot = name.find('.', kLayers.size());
    if (dot == std::string::npos) return std::nullopt;
    prefix = fmt::format("blk.{}.", name.substr(kLayers.size(), dot - kLayers.size()));
    rest = name.substr(dot + 1);
  } else if (name.starts_with("model.")) {
    rest = name.substr(std::string_view("model.").size());
  }
  if (rest == "router.scale") return prefix + "ffn_gate_inp.scale";
  if (rest == "router.per_expert_scale") return prefix + "ffn_down_exps.scale";
  if (rest.ends_with(".weight")) rest.resize(rest.size() - std::string_view(".weight").size());
  const auto found = kParts.find(rest);
  if (found == kParts.end()) return std::nullopt;
  return prefix + found->second + ".weight";
}

float Value(std::span<const std::byte> bytes, DType dtype, int64_t index) {
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, &bytes[static_cast<size_t>(index) * sizeof value], sizeof value);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, &bytes[static_cast<size_t>(index) * sizeof bits], sizeof bits);
  return dtype == DType::kF16 ? Fp16ToFloat(bits) : Bf16ToFloat(bits);
}

// A slice of a Q4_0 tensor as codes in order and scales.
struct Unpacked {
  std::vector<std::byte> codes;   // nibbles, low first
  std::vector<std::byte> scales;  // fp16
};

// Eight nibbles that stand in a byte each, side by side.
uint32_t JoinNibbles(uint64_t bytes) {
  bytes = (bytes | bytes >> 4) & 0x00ff00ff00ff00ff;
  bytes = (bytes | bytes >> 8) & 0x0000ffff0000ffff;
  return static_cast<uint32_t>(bytes | bytes >> 16);
}

// Byte i of a block holds values i and i + 16; values 2j and 2j + 1 are to share one.
void UnpackBlocks(std::span<const std::byte> blocks, ThreadPool& pool, Unpacked* unpacked) {
  constexpr uint64_t kLowNibbles = 0x0f0f0f0f0f0f0f0f;
  const size_t n_blocks = blocks.size() / kBlockBytes;
  unpacked->codes.resize(n_blocks * kBlockValues / 2);
  unpacked->scales.resize(n_blocks * sizeof(uint16_t));
  pool.ParallelFor(static_cast<int64_t>(n_blocks), [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const std::byte* block = &blocks[i * kBlockBytes];
      std::memcpy(&unpacked->scales[i * 2], block, 2);
      std::array<uint64_t, 2> bytes;
      std::memcpy(bytes.data(), block + 2, sizeof bytes);
      const std::array<uint32_t, 4> codes = {
          JoinNibbles(bytes[0] & kLowNibbles), JoinNibbles(bytes[1] & kLowNibbles),
          JoinNibbles(bytes[0] >> 4 & kLowNibbles), JoinNibbles(bytes[1] >> 4 & kLowNibbles)};
      std::memcpy(&unpacked->codes[i * sizeof codes], codes.data(), sizeof codes);
    }
  });
}

// Rows of a tensor on both sides.
struct Rows {
  std::span<const std::byte> source;
  std::span<const std::byte> written;
  int64_t first = 0;
};

class GgufVerifier {
 public:
  GgufVerifier(const Checkpoint& source, const gemma::Config& config, const GgufFile& output,
               int n_threads, const ProgressFn& progress)
      : source_(source), config_(config), output_(output), pool_(n_threads), progress_(progress) {}

  GgufVerifyReport Run() {
    for (const Tensor& tensor : source_.tensors()) {
      GgufVerifiedTensor found{
          .source = tensor.info.name, .found_as = "", .counts = {}, .measured = {}};
      const uint64_t done_before = done_bytes_;
      Check(tensor, &found);
      report_.totals.Merge(found.counts);
      if (found.found_as == "Q4_0") report_.q4_0.Merge(found.measured);
      if (found.found_as == "Q6_K") report_.q6_k.Merge(found.measured);
      report_.tensors.push_back(std::move(found));
      Advance(done_before + tensor.info.size_bytes - done_bytes_);
    }
    for (const GgufTensor& tensor : output_.header().tensors) {
      if (seen_.contains(tensor.name) || tensor.name == "rope_freqs.weight") continue;
      Fault("{}: comes from no source tensor", QuoteForMessage(tensor.name));
    }
    for (std::string& fault : GgufConfigFaults(output_, config_)) {
      report_.faults.push_back(std::move(fault));
    }
    return std::move(report_);
  }

 private:
  template <typename... Args>
  void Fault(fmt::format_string<Args...> format, Args&&... args) {
    report_.faults.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  void Check(const Tensor& tensor, GgufVerifiedTensor* found) {
    const std::optional<std::string> text_name = gemma::TextName(tensor.info.name);
    if (!text_name.has_value()) {
      found->found_as = "left out: tower";
      return;
    }
    const auto name = NameInGguf(*text_name);
    const GgufTensor* const written = name ? output_.header().FindTensor(*name) : nullptr;
    if (written == nullptr) {
      CheckAbsent(tensor, *text_name, found);
      return;
    }
    seen_.insert(written->name);
    found->found_as = checkpoint::InfoOf(written->type).name;
    if (!std::ranges::equal(written->dims.rbegin(), written->dims.rend(), tensor.info.shape.begin(),
                            tensor.info.shape.end())) {
      Fault("{}: expected dimensions of {} reversed, found [{}]", written->name, tensor.info.name,
            fmt::join(written->dims, ", "));
      return;
    }
    CheckValues(tensor, *written, found);
  }

  // What the file may lack: K/V that nothing reads, and a head that repeats the table.
  void CheckAbsent(const Tensor& tensor, const std::string& text_name, GgufVerifiedTensor* found) {
    if (gemma::IsIgnoredLeftover(config_, text_name)) {
      found->found_as = "left out: K/V of a KV-shared layer";
      return;
    }
    if (text_name == "lm_head.weight" && config_.tie_word_embeddings) {
      found->found_as = "left out: head of a tied model";
      const auto is_table = [](const Tensor& other) {
        return gemma::TextName(other.info.name) == "model.embed_tokens.weight";
      };
      const auto table = std::ranges::find_if(source_.tensors(), is_table);
      if (table == source_.tensors().end() || table->bytes.size() != tensor.bytes.size() ||
          FirstDifference(table->bytes, tensor.bytes).has_value()) {
        Fault("{}: differs from embed_tokens, and the file has no head", tensor.info.name);
      }
      return;
    }
    found->found_as = "missing";
    Fault("{}: missing in the file", tensor.info.name);
  }

  void CheckValues(const Tensor& tensor, const GgufTensor& written, GgufVerifiedTensor* found) {
    const DType dtype = tensor.info.dtype;
    if (dtype != DType::kBF16 && dtype != DType::kF16 && dtype != DType::kF32) {
      Fault("{}: a source of {} has no floating-point values", written.name, Name(dtype));
      return;
    }
    switch (written.type) {
      case GgmlType::kQ40:
        Prove(tensor, written, found);
        return;
      case GgmlType::kQ6K:
        Measure(tensor, written, found);
        return;
      case GgmlType::kBF16:
      case GgmlType::kF16:
      case GgmlType::kF32:
        Compare(tensor, written);
        return;
      default:
        Fault("{}: type {} cannot be verified", written.name, found->found_as);
    }
  }

  void Prove(const Tensor& tensor, const GgufTensor& written, GgufVerifiedTensor* found) {
    if (tensor.info.dtype != DType::kBF16) {
      Fault("{}: Q4_0 of a source that is {}, expected BF16", written.name,
            Name(tensor.info.dtype));
      return;
    }
    std::optional<std::string> first_fault;
    ForSlices(tensor, written, [&](const Rows& rows) {
      UnpackBlocks(rows.written, pool_, &unpacked_);
      const Int4Matrix slice = {.source = rows.source,
                                .codes = unpacked_.codes,
                                .scales = unpacked_.scales,
                                .scale_dtype = DType::kF16,
                                .n_columns = tensor.info.shape.back(),
                                .first_row = rows.first};
      const Int4Proof proof = ProveInt4(slice, pool_);
      found->counts.Merge(proof.counts);
      found->measured.Merge(proof.measured);
      if (!proof.first_wrong.has_value() || first_fault.has_value()) return;
      first_fault = DescribeInt4Fault(slice, *proof.first_wrong);
    });
    const uint64_t n_wrong = found->counts.n_groups - found->counts.n_right_groups;
    if (n_wrong > 0)
      Fault("{}: {} groups are wrong, first {}", written.name, n_wrong, *first_fault);
  }

  // A slice of rows after the other, so that little of either file is resident.
  template <typename Check>
  void ForSlices(const Tensor& tensor, const GgufTensor& written, Check check) {
    const int64_t n_rows = tensor.info.n_elements() / tensor.info.shape.back();
    const auto part = [n_rows](std::span<const std::byte> bytes, int64_t begin, int64_t end) {
      const int64_t row_bytes = std::ssize(bytes) / n_rows;
      return bytes.subspan(begin * row_bytes, (end - begin) * row_bytes);
    };
    const int64_t slice_rows =
        std::max<int64_t>(1, kProofSliceBytes * n_rows / std::ssize(tensor.bytes));
    for (int64_t row = 0; row < n_rows; row += slice_rows) {
      const int64_t row_end = std::min(row + slice_rows, n_rows);
      const Rows rows = {.source = part(tensor.bytes, row, row_end),
                         .written = part(output_.Bytes(written), row, row_end),
                         .first = row};
      check(rows);
      ReleasePages(rows.source);
      ReleasePages(rows.written);
      Advance(rows.source.size());
    }
  }

  void Measure(const Tensor& tensor, const GgufTensor& written, GgufVerifiedTensor* found) {
    constexpr int64_t kSize = formats::kQ6KBlockSize;
    constexpr size_t kBytes = formats::kQ6KBlockBytes;
    constexpr int64_t kPartBlocks = 256;  // measured by one thread, in order
    ForSlices(tensor, written, [&](const Rows& rows) {
      const int64_t n_blocks = std::ssize(rows.written) / static_cast<int64_t>(kBytes);
      std::vector<Measurement> parts(
          static_cast<size_t>((n_blocks + kPartBlocks - 1) / kPartBlocks));
      pool_.ParallelFor(std::ssize(parts), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin * kPartBlocks; i < std::min(end * kPartBlocks, n_blocks); ++i) {
          std::array<float, kSize> values;
          formats::DequantizeQ6KBlock(
              rows.written.subspan(static_cast<size_t>(i) * kBytes).first<kBytes>(), values);
          for (int64_t k = 0; k < kSize; ++k) {
            parts[i / kPartBlocks].AddValue(Value(rows.source, tensor.info.dtype, i * kSize + k),
                                            values[k]);
          }
        }
      });
      for (const Measurement& measured : parts) found->measured.Merge(measured);
    });
  }

  // Values stored as floats are the source's.
  void Compare(const Tensor& tensor, const GgufTensor& written) {
    const std::span<const std::byte> bytes = output_.Bytes(written);
    const DType dtype = written.type == GgmlType::kF32   ? DType::kF32
                        : written.type == GgmlType::kF16 ? DType::kF16
                                                         : DType::kBF16;
    const auto fault = [&](int64_t i) {
      Fault("{}: value {}: expected {}, found {}", written.name, i,
            Value(tensor.bytes, tensor.info.dtype, i), Value(bytes, dtype, i));
    };
    if (dtype == tensor.info.dtype) {
      const std::optional<size_t> at = FirstDifference(tensor.bytes, bytes);
      if (at.has_value()) fault(static_cast<int64_t>(*at) / SizeBytes(dtype));
      return;
    }
    for (int64_t i = 0; i < tensor.info.n_elements(); ++i) {
      const float expected = Value(tensor.bytes, tensor.info.dtype, i);
      if (std::bit_cast<uint32_t>(Value(bytes, dtype, i)) != std::bit_cast<uint32_t>(expected)) {
        return fault(i);
      }
    }
  }

  void Advance(uint64_t n_bytes) {
    done_bytes_ += n_bytes;
    if (progress_) progress_(done_bytes_, source_.size_bytes());
  }

  const Checkpoint& source_;
  const gemma::Config& config_;
  const GgufFile& output_;
  ThreadPool pool_;
  const ProgressFn& progress_;
  uint64_t done_bytes_ = 0;
  std::set<std::string> seen_;
  Unpacked unpacked_;  // the slice in work
  GgufVerifyReport report_;
};

void AddTowers(TowersProof proof, const std::filesystem::path& file, GgufVerifyReport* report) {
  for (GgufVerifiedTensor& tensor : report->tensors) {
    const auto found = proof.found_as.find(tensor.source);
    if (found != proof.found_as.end()) tensor.found_as = found->second + ", towers";
  }
  report->towers_file = file.string();
  report->n_tower_tensors = proof.found_as.size();
  std::ranges::move(proof.faults, std::back_inserter(report->faults));
}

}  // namespace

Json GgufVerifyReport::ToJson() const {
  Json json = {{"verified", is_right()},         {"faults", faults},
               {"q4_0", totals.ToJson()},        {"q4_0_measured", q4_0.ToJson()},
               {"q6_k_measured", q6_k.ToJson()}, {"tensors", Json::array()}};
  if (!towers_file.empty()) json["towers"] = {{"file", towers_file}, {"tensors", n_tower_tensors}};
  for (const GgufVerifiedTensor& tensor : tensors) {
    Json entry = {{"source", tensor.source}, {"found_as", tensor.found_as}};
    if (tensor.counts.n_groups > 0) entry["proof"] = tensor.counts.ToJson();
    if (tensor.measured.n_values > 0) entry["measured"] = tensor.measured.ToJson();
    json["tensors"].push_back(std::move(entry));
  }
  return json;
}

Result<GgufVerifyReport> VerifyGguf(const std::filesystem::path& source,
                                    const std::filesystem::path& output, int n_threads,
                                    const ProgressFn& progress) {
  NIBBLE_RETURN_IF_ERROR(ChosenInstructionSet());
  NIBBLE_ASSIGN_OR_RETURN(const gemma::Config config, gemma::ReadConfig(source));
  NIBBLE_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(source));
  NIBBLE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(output));
  if (IsTowersFile(file)) {
    GgufVerifyReport report;
    for (const Tensor& tensor : checkpoint.tensors()) {
      report.tensors.push_back({.source = tensor.info.name,
                                .found_as = "left out: text model",
                                .counts = {},
                                .measured = {}});
    }
    AddTowers(ProveTowers(checkpoint, config, file), output, &report);
    return report;
  }
  GgufVerifyReport report = GgufVerifier(checkpoint, config, file, n_threads, progress).Run();
  const std::filesystem::path towers = gemma::GgufTowersPath(output);
  std::error_code ignored;
  if (std::filesystem::exists(towers, ignored)) {
    NIBBLE_ASSIGN_OR_RETURN(const GgufFile towers_file, GgufFile::Open(towers));
    AddTowers(ProveTowers(checkpoint, config, towers_file), towers, &report);
  }
  return report;
}

}  // namespace nibble::repack
