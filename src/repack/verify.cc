#include "repack/verify.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "base/dtype.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "gemma/config.h"
#include "gemma/tensors.h"
#include "repack/verify_config.h"
#include "repack/verify_group.h"

namespace nibble::repack {
namespace {

using checkpoint::Checkpoint;
using checkpoint::Tensor;

constexpr int64_t kGroup = 32;
constexpr int64_t kSliceBytes = int64_t{64} << 20;  // of source, between two looks at progress
constexpr std::string_view kWeight = ".weight";

// The three tensors of a packed module.
struct Packed {
  const Tensor* codes;
  const Tensor* scales;
  const Tensor* shape;
};

class Verifier {
 public:
  Verifier(const Checkpoint& source, const Checkpoint& output, const gemma::Config& source_config,
           bool is_text_only, int n_threads, const ProgressFn& progress)
      : source_(source),
        output_(output),
        source_config_(source_config),
        is_text_only_(is_text_only),
        pool_(n_threads),
        progress_(progress) {}

  VerifyReport Run() {
    for (const Tensor& tensor : source_.tensors()) {
      report_.tensors.push_back(Check(tensor));
      report_.totals.Merge(report_.tensors.back().counts);
    }
    CheckPackedHead();
    for (const Tensor& tensor : output_.tensors()) {
      if (!seen_.contains(tensor.info.name)) {
        Fault("{}: tensor {} comes from no source tensor", tensor.shard,
              QuoteForMessage(tensor.info.name));
      }
    }
    return std::move(report_);
  }

 private:
  template <typename... Args>
  void Fault(fmt::format_string<Args...> format, Args&&... args) {
    report_.faults.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  const Tensor* FindOutput(const std::string& name) {
    const Tensor* tensor = output_.Find(name);
    if (tensor != nullptr) seen_.insert(name);
    return tensor;
  }

  VerifiedTensor Check(const Tensor& tensor) {
    const std::string& name = tensor.info.name;
    VerifiedTensor result{.source = name, .found_as = "", .counts = {}};
    const std::optional<std::string> text_name = gemma::TextName(name);
    const std::string output_name = is_text_only_ && text_name.has_value() ? *text_name : name;
    const bool is_weight = output_name.ends_with(kWeight);
    const std::string module = output_name.substr(0, output_name.size() - (is_weight ? 7 : 0));
    if (is_weight && output_.Find(module + ".weight_packed") != nullptr) {
      result.found_as = "packed";
      CheckPacked(tensor, module, &result.counts);
      if (output_.Find(output_name) != nullptr) {
        FindOutput(output_name);
        Fault("tensor {} stands in the output both packed and plain", output_name);
      }
    } else if (const Tensor* copy = FindOutput(output_name)) {
      result.found_as = "copied";
      CheckCopy(tensor, *copy);
    } else {
      result.found_as = WhyAbsent(tensor, text_name);
      if (result.found_as == "missing")
        Fault("{}: tensor {} is missing", output_.path().string(), output_name);
    }
    Advance(tensor.info.size_bytes - advanced_in_tensor_);
    advanced_in_tensor_ = 0;
    return result;
  }

  std::string WhyAbsent(const Tensor& tensor, const std::optional<std::string>& text_name) const {
    if (!text_name.has_value()) {
      const bool is_tower = gemma::PartOf(tensor.info.name).has_value();
      return is_text_only_ && is_tower ? "dropped: tower" : "missing";
    }
    if (gemma::IsIgnoredLeftover(source_config_, *text_name)) {
      return "dropped: K/V of a KV-shared layer";
    }
    if (*text_name == "lm_head.weight" && source_config_.tie_word_embeddings) {
      const Tensor* table = SourceTable();
      if (table != nullptr && std::ranges::equal(table->bytes, tensor.bytes)) {
        return "dropped: head identical to embed_tokens";
      }
    }
    return "missing";
  }

  const Tensor* SourceTable() const {
    const auto is_table = [](const Tensor& tensor) {
      return gemma::TextName(tensor.info.name) == "model.embed_tokens.weight";
    };
    const auto found = std::ranges::find_if(source_.tensors(), is_table);
    return found == source_.tensors().end() ? nullptr : &*found;
  }

  void CheckCopy(const Tensor& tensor, const Tensor& copy) {
    const std::string& name = copy.info.name;
    if (copy.info.dtype != tensor.info.dtype || copy.info.shape != tensor.info.shape) {
      return Fault("tensor {}: expected {} [{}], found {} [{}]", name, Name(tensor.info.dtype),
                   fmt::join(tensor.info.shape, ", "), Name(copy.info.dtype),
                   fmt::join(copy.info.shape, ", "));
    }
    const auto [at, unused] = std::ranges::mismatch(tensor.bytes, copy.bytes);
    if (at == tensor.bytes.end()) return;
    const int64_t element = (at - tensor.bytes.begin()) / SizeBytes(tensor.info.dtype);
    const int64_t row_elements = tensor.info.shape.empty() ? 1 : tensor.info.shape.back();
    Fault("tensor {} row {} column {}: not the source's bytes", name, element / row_elements,
          element % row_elements);
  }

  // The module's tensors with the types and shapes that the source implies; else a fault.
  std::optional<Packed> OpenPacked(const Tensor& tensor, const std::string& module) {
    const Packed packed{FindOutput(module + ".weight_packed"), FindOutput(module + ".weight_scale"),
                        FindOutput(module + ".weight_shape")};
    const std::vector<int64_t>& shape = tensor.info.shape;
    if (tensor.info.dtype != DType::kBF16 || shape.size() != 2 || shape[1] % kGroup != 0) {
      Fault("tensor {} is packed, but its source is not a bf16 matrix with rows of whole groups",
            module);
      return std::nullopt;
    }
    if (packed.scales == nullptr || packed.shape == nullptr) {
      Fault("tensor {}.weight_{} is missing", module, packed.scales == nullptr ? "scale" : "shape");
      return std::nullopt;
    }
    const DType scale_dtype = packed.scales->info.dtype;
    const bool fits = packed.codes->info.dtype == DType::kI32 &&
                      packed.codes->info.shape == std::vector{shape[0], shape[1] / 8} &&
                      (scale_dtype == DType::kF16 || scale_dtype == DType::kBF16) &&
                      packed.scales->info.shape == std::vector{shape[0], shape[1] / kGroup} &&
                      packed.shape->info.dtype == DType::kI64 &&
                      std::ranges::equal(packed.shape->bytes, std::as_bytes(std::span(shape)));
    if (fits) return packed;
    Fault(
        "tensor {}: expected codes I32 [{}, {}], scales F16 or BF16 [{}, {}] and the shape {}, {}; "
        "found {} [{}] and {} [{}]",
        module, shape[0], shape[1] / 8, shape[0], shape[1] / kGroup, shape[0], shape[1],
        Name(packed.codes->info.dtype), fmt::join(packed.codes->info.shape, ", "),
        Name(scale_dtype), fmt::join(packed.scales->info.shape, ", "));
    return std::nullopt;
  }

  void CheckPacked(const Tensor& tensor, const std::string& module, ProofCounts* counts) {
    const std::optional<Packed> packed = OpenPacked(tensor, module);
    if (!packed.has_value()) return;
    report_.scale_dtype = Name(packed->scales->info.dtype);
    const int64_t n_groups = tensor.info.n_elements() / kGroup;
    constexpr int64_t kSliceGroups = kSliceBytes / 64;
    std::optional<int64_t> first_wrong;
    for (int64_t begin = 0; begin < n_groups; begin += kSliceGroups) {
      const int64_t end = std::min(begin + kSliceGroups, n_groups);
      ProveGroups(tensor, *packed, begin, end, counts, &first_wrong);
      advanced_in_tensor_ += static_cast<uint64_t>((end - begin) * 64);
      Advance(static_cast<uint64_t>((end - begin) * 64));
    }
    if (first_wrong.has_value()) FaultAt(tensor, *packed, *first_wrong, module);
  }

  void ProveGroups(const Tensor& tensor, const Packed& packed, int64_t first, int64_t last,
                   ProofCounts* counts, std::optional<int64_t>* first_wrong) {
    std::mutex mutex;
    pool_.ParallelFor(last - first, [&](int64_t begin, int64_t end) {
      ProofCounts part;
      std::optional<int64_t> wrong;
      for (int64_t group = first + begin; group < first + end; ++group) {
        const GroupProof proof = std::apply(ProveGroup, GroupBytes(tensor, packed, group));
        ++part.n_groups;
        part.n_values += kGroup;
        part.n_right_groups += proof.is_right ? 1 : 0;
        part.n_wrong_codes += proof.has_right_codes ? 0 : 1;
        part.n_negative_scales += (proof.scale_bits & 0x8000) != 0 ? 1 : 0;
        part.n_bit_identical += static_cast<uint64_t>(proof.n_bit_identical);
        part.n_zero_sign_lost += static_cast<uint64_t>(proof.n_zero_sign_lost);
        part.worst_ulp = std::max(part.worst_ulp, proof.worst_ulp);
        if (!proof.is_right && !wrong.has_value()) wrong = group;
      }
      const std::lock_guard lock(mutex);
      counts->Merge(part);
      if (wrong.has_value()) *first_wrong = std::min(first_wrong->value_or(*wrong), *wrong);
    });
  }

  static std::tuple<std::span<const std::byte, 64>, std::span<const std::byte, 16>,
                    const std::byte*, DType>
  GroupBytes(const Tensor& tensor, const Packed& packed, int64_t group) {
    const auto index = static_cast<size_t>(group);
    return {tensor.bytes.subspan(index * 64).first<64>(),
            packed.codes->bytes.subspan(index * 16).first<16>(),
            packed.scales->bytes.data() + index * 2, packed.scales->info.dtype};
  }

  void FaultAt(const Tensor& tensor, const Packed& packed, int64_t group,
               const std::string& module) {
    const auto bytes = GroupBytes(tensor, packed, group);
    const int64_t groups_per_row = tensor.info.shape[1] / kGroup;
    const int64_t group_idx = group % groups_per_row;
    Fault("tensor {} row {} group {} column {}: {}", module, group / groups_per_row, group_idx,
          group_idx * kGroup + std::apply(ProveGroup, bytes).column,
          std::apply(DescribeFault, bytes));
  }

  // emb4 writes a tied table a second time as lm_head: the same bytes, tensor by tensor.
  void CheckPackedHead() {
    const std::string table =
        is_text_only_ ? "model.embed_tokens" : "model.language_model.embed_tokens";
    for (const std::string suffix : {".weight_packed", ".weight_scale", ".weight_shape"}) {
      if (seen_.contains("lm_head" + suffix)) continue;
      const Tensor* expected = output_.Find(table + suffix);
      const Tensor* head = FindOutput("lm_head" + suffix);
      if (head == nullptr && output_.Find("lm_head.weight_packed") == nullptr) return;
      if (head == nullptr || expected == nullptr ||
          !std::ranges::equal(head->bytes, expected->bytes)) {
        Fault("tensor lm_head{}: not the bytes of {}{}", suffix, table, suffix);
      }
    }
  }

  void Advance(uint64_t n_bytes) {
    done_bytes_ += n_bytes;
    if (progress_) progress_(done_bytes_, source_.size_bytes());
  }

  const Checkpoint& source_;
  const Checkpoint& output_;
  const gemma::Config& source_config_;
  bool is_text_only_;
  ThreadPool pool_;
  const ProgressFn& progress_;
  std::set<std::string> seen_;  // output tensors accounted for
  uint64_t done_bytes_ = 0;
  uint64_t advanced_in_tensor_ = 0;
  VerifyReport report_;
};

Json ToJson(const ProofCounts& counts) {
  return {{"groups", counts.n_groups},
          {"groups_right", counts.n_right_groups},
          {"groups_with_wrong_codes", counts.n_wrong_codes},
          {"negative_scales", counts.n_negative_scales},
          {"values", counts.n_values},
          {"values_bit_identical", counts.n_bit_identical},
          {"zeros_of_other_sign", counts.n_zero_sign_lost},
          {"worst_ulp", counts.worst_ulp}};
}

}  // namespace

void ProofCounts::Merge(const ProofCounts& other) {
  n_groups += other.n_groups;
  n_right_groups += other.n_right_groups;
  n_wrong_codes += other.n_wrong_codes;
  n_negative_scales += other.n_negative_scales;
  n_values += other.n_values;
  n_bit_identical += other.n_bit_identical;
  n_zero_sign_lost += other.n_zero_sign_lost;
  worst_ulp = std::max(worst_ulp, other.worst_ulp);
}

Json VerifyReport::ToJson() const {
  Json entries = Json::array();
  std::map<std::string, uint64_t> accounts;
  for (const VerifiedTensor& tensor : tensors) {
    Json entry = {{"source", tensor.source}, {"found_as", tensor.found_as}};
    if (tensor.found_as == "packed") entry["grid"] = repack::ToJson(tensor.counts);
    entries.push_back(std::move(entry));
    ++accounts[tensor.found_as];
  }
  return {{"ok", is_right()},
          {"scale_dtype", scale_dtype},
          {"reader", "value = bf16(float32(code) * float32(scale))"},
          {"totals", repack::ToJson(totals)},
          {"source_tensors", accounts},
          {"faults", faults},
          {"tensors", entries}};
}

Result<VerifyReport> Verify(const std::filesystem::path& source,
                            const std::filesystem::path& output, int n_threads,
                            const ProgressFn& progress) {
  NIBBLE_ASSIGN_OR_RETURN(const gemma::Config source_config, gemma::ReadConfig(source));
  NIBBLE_ASSIGN_OR_RETURN(const gemma::Config output_config, gemma::ReadConfig(output));
  NIBBLE_ASSIGN_OR_RETURN(const Checkpoint source_tensors, Checkpoint::Open(source));
  NIBBLE_ASSIGN_OR_RETURN(const Checkpoint output_tensors, Checkpoint::Open(output));
  const bool is_text_only = output_config.layout == gemma::Layout::kTextOnly;
  Verifier verifier(source_tensors, output_tensors, source_config, is_text_only, n_threads,
                    progress);
  VerifyReport report = verifier.Run();
  if (const Status status = CheckConfig(source_config.json, output_config.json, output_tensors);
      !status.has_value()) {
    report.faults.push_back(
        fmt::format("{}: {}", (output / "config.json").string(), status.error().message));
  }
  return report;
}

}  // namespace nibble::repack
