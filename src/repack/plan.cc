#include "repack/plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "repack/grid.h"

namespace nibble::repack {
namespace {

using checkpoint::Checkpoint;
using checkpoint::Tensor;
using checkpoint::TensorInfo;
using gemma::Role;

constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kHead = "lm_head.weight";
constexpr std::string_view kTable = "model.embed_tokens.weight";

std::string WithoutWeight(std::string_view name) {
  CHECK(name.ends_with(kWeight));
  return std::string(name.substr(0, name.size() - kWeight.size()));
}

TensorInfo Info(std::string name, DType dtype, std::vector<int64_t> shape) {
  TensorInfo info{.name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
  int64_t n_elements = 1;
  for (const int64_t extent : info.shape) n_elements *= extent;
  info.size_bytes = static_cast<uint64_t>(n_elements * SizeBytes(dtype));
  return info;
}

class Planner {
 public:
  Planner(const Checkpoint& source, const gemma::Config& config, const Options& options)
      : source_(source), config_(config), options_(options) {}

  Result<Plan> Make() {
    for (gemma::TensorSpec& spec : gemma::ExpectedTensors(config_)) {
      expected_.emplace(spec.name, std::move(spec));
    }
    for (const Tensor& tensor : source_.tensors()) NIBBLE_RETURN_IF_ERROR(AddTensor(tensor));
    for (const auto& [name, spec] : expected_) {
      if (!found_.contains(name)) {
        return Fail("{}: tensor {} is missing", source_.path().string(), name);
      }
    }
    return std::move(plan_);
  }

 private:
  Status AddTensor(const Tensor& tensor) {
    const std::string& name = tensor.info.name;
    const std::optional<gemma::Part> part = gemma::PartOf(name);
    if (!part.has_value()) {
      return Fail("{}: tensor {} is not part of any Gemma 4 layout that nibble knows", tensor.shard,
                  Outline(tensor));
    }
    const std::optional<std::string> text_name = gemma::TextName(name);
    if (!text_name.has_value()) {
      AddTower(tensor, *part);
      return {};
    }
    const auto spec = expected_.find(*text_name);
    if (spec != expected_.end()) return AddExpected(tensor, *part, spec->second);
    if (gemma::IsIgnoredLeftover(config_, *text_name)) {
      plan_.tensors.push_back({&tensor, Action::kDropLeftover, *part, ""});
      return {};
    }
    if (*text_name == kHead) return AddDuplicateHead(tensor, *part);
    if (const auto spec_of_v = ExplicitV(*text_name); spec_of_v.has_value()) {
      return AddExpected(tensor, *part, *spec_of_v);
    }
    return Fail("{}: tensor {} has no place in the model that config.json describes", tensor.shard,
                Outline(tensor));
  }

  // What a tensor without a place would leave unpacked.
  std::string Outline(const Tensor& tensor) const {
    return fmt::format("{} [{}] ({:.3g} % of the bytes)", QuoteForMessage(tensor.info.name),
                       fmt::join(tensor.info.shape, ", "),
                       100.0 * static_cast<double>(tensor.info.size_bytes) /
                           static_cast<double>(source_.size_bytes()));
  }

  // A v_proj shipped by a layer whose V is K all the same: kept, a linear of k_proj's shape.
  std::optional<gemma::TensorSpec> ExplicitV(std::string_view text_name) const {
    constexpr std::string_view kV = ".self_attn.v_proj.weight";
    if (!text_name.ends_with(kV)) return std::nullopt;
    const std::string layer(text_name.substr(0, text_name.size() - kV.size()));
    const auto k_proj = expected_.find(layer + ".self_attn.k_proj.weight");
    if (k_proj == expected_.end()) return std::nullopt;
    gemma::TensorSpec spec = k_proj->second;
    spec.name = text_name;
    return spec;
  }

  void AddTower(const Tensor& tensor, gemma::Part part) {
    if (!options_.keep_towers) {
      plan_.tensors.push_back({&tensor, Action::kDropTower, part, ""});
      return;
    }
    const std::string& name = tensor.info.name;
    plan_.tensors.push_back({&tensor, Action::kCopy, part, name});
    const size_t begin = name.find('.') + 1;  // after "model."
    const std::string tower = name.substr(begin, name.find('.', begin) - begin);
    if (std::ranges::find(plan_.kept_towers, tower) == plan_.kept_towers.end()) {
      plan_.kept_towers.push_back(tower);
    }
  }

  Status AddExpected(const Tensor& tensor, gemma::Part part, const gemma::TensorSpec& spec) {
    const std::string& name = tensor.info.name;
    if (!found_.insert(spec.name).second) {
      return Fail("{}: tensor {} stands for {}, which was there before", tensor.shard, name,
                  spec.name);
    }
    if (tensor.info.shape != spec.shape) {
      return Fail("{}: tensor {}: expected shape [{}] by config.json, found [{}]", tensor.shard,
                  name, fmt::join(spec.shape, ", "), fmt::join(tensor.info.shape, ", "));
    }
    const std::string output = options_.keep_towers ? name : spec.name;
    const std::optional<Encoding> encoding = EncodingOf(spec.role);
    if (!encoding.has_value()) {
      plan_.tensors.push_back({&tensor, Action::kCopy, part, output});
      return {};
    }
    if (tensor.info.dtype != DType::kBF16) {
      return Fail("{}: tensor {}: expected BF16, found {}", tensor.shard, name,
                  Name(tensor.info.dtype));
    }
    if (*encoding == Encoding::kInt4Group32 && spec.shape.back() % GroupsOf(spec.name) != 0) {
      return AddUnpackable(tensor, part, spec, output);
    }
    if (options_.format == Format::kGguf) {
      AddPacked(tensor, part, *encoding, output, 0, tensor.info.n_elements() / spec.shape.back());
      return {};
    }
    if (spec.role == Role::kExpertBank) {
      AddExperts(tensor, part, *encoding, output);
      return {};
    }
    AddPacked(tensor, part, *encoding, WithoutWeight(output), 0, spec.shape[0]);
    if (spec.role == Role::kTokenEmbedding && config_.tie_word_embeddings) {
      AddPacked(tensor, part, *encoding, WithoutWeight(kHead), 0, spec.shape[0]);
    }
    return {};
  }

  void AddPacked(const Tensor& tensor, gemma::Part part, Encoding encoding, std::string module,
                 int64_t row_begin, int64_t n_rows) {
    plan_.tensors.push_back({.source = &tensor,
                             .action = Action::kPack,
                             .part = part,
                             .output = std::move(module),
                             .encoding = encoding,
                             .row_begin = row_begin,
                             .n_rows = n_rows});
  }

  // A bank [E, rows, K] becomes linears per expert, as loaders name them: ".experts.gate_up_proj"
  // holds the gate's rows and then the up projection's.
  void AddExperts(const Tensor& tensor, gemma::Part part, Encoding encoding,
                  std::string_view bank) {
    const size_t dot = bank.rfind('.');
    const std::string_view experts = bank.substr(0, dot);
    std::vector<std::string_view> projections = {"gate_proj", "up_proj"};
    if (bank.substr(dot + 1) == "down_proj") projections = {"down_proj"};
    const int64_t n_rows = tensor.info.shape[1] / std::ssize(projections);
    int64_t row = 0;
    for (int64_t expert = 0; expert < tensor.info.shape[0]; ++expert) {
      for (const std::string_view projection : projections) {
        AddPacked(tensor, part, encoding, fmt::format("{}.{}.{}", experts, expert, projection), row,
                  n_rows);
        row += n_rows;
      }
    }
  }

  // What K has to be a multiple of.
  int64_t GroupsOf(std::string_view name) const {
    const bool is_split = name.ends_with(".o_proj.weight") || name.ends_with(".down_proj.weight") ||
                          name.ends_with(".experts.down_proj");
    return kGridGroup * (is_split ? int64_t{options_.tensor_parallel} : 1);
  }

  Status AddUnpackable(const Tensor& tensor, gemma::Part part, const gemma::TensorSpec& spec,
                       const std::string& output) {
    if (spec.role != Role::kLinear && options_.format != Format::kGguf) {
      return Fail(
          "{}: tensor {}: rows of {} values do not divide into groups of {} on {} device(s)",
          tensor.shard, tensor.info.name, spec.shape.back(), kGridGroup, options_.tensor_parallel);
    }
    plan_.tensors.push_back({&tensor, Action::kCopy, part, output});
    plan_.unpacked_linears.push_back(output.substr(0, output.rfind(kWeight)));
    return {};
  }

  // A head although config.json ties it: nothing reads it, so it may only repeat the table.
  Status AddDuplicateHead(const Tensor& tensor, gemma::Part part) {
    for (const Tensor& table : source_.tensors()) {
      if (gemma::TextName(table.info.name) != kTable) continue;
      if (table.bytes.size() != tensor.bytes.size() ||
          FirstDifference(table.bytes, tensor.bytes).has_value()) {
        return Fail("{}: tensor {} differs from {}, but config.json ties them", tensor.shard,
                    tensor.info.name, table.info.name);
      }
    }
    plan_.tensors.push_back({&tensor, Action::kDropDuplicateHead, part, ""});
    return {};
  }

  // Nothing: the tensor stays as it is.
  std::optional<Encoding> EncodingOf(Role role) const {
    const Format format = options_.format;
    const bool is_w8a8 = format == Format::kW8A8 || format == Format::kW8A8Emb4;
    switch (role) {
      case Role::kLinear:
      case Role::kExpertBank:
        return is_w8a8 ? Encoding::kInt8Channel : Encoding::kInt4Group32;
      case Role::kTokenEmbedding:
      case Role::kPleEmbedding:
      case Role::kLmHead:
        if (format == Format::kQ4W4A16 || format == Format::kW8A8) return std::nullopt;
        return Encoding::kInt4Group32;
      case Role::kPlain:
        return std::nullopt;
    }
    CHECK(false);
  }

  const Checkpoint& source_;
  const gemma::Config& config_;
  const Options& options_;
  std::map<std::string, gemma::TensorSpec, std::less<>> expected_;
  std::set<std::string> found_;
  Plan plan_;
};

}  // namespace

std::string_view Name(Format format) {
  switch (format) {
    case Format::kQ4W4A16:
      return "q4w4a16";
    case Format::kQ4W4A16Emb4:
      return "q4w4a16emb4";
    case Format::kW8A8:
      return "w8a8";
    case Format::kW8A8Emb4:
      return "w8a8emb4";
    case Format::kGguf:
      return "gguf";
  }
  CHECK(false);
}

std::string_view Name(Encoding encoding) {
  return encoding == Encoding::kInt4Group32 ? "int4 in groups of 32" : "int8 per channel";
}

std::string_view Name(Action action) {
  switch (action) {
    case Action::kPack:
      return "packed";
    case Action::kCopy:
      return "copied";
    case Action::kDropTower:
      return "dropped: tower";
    case Action::kDropLeftover:
      return "dropped: K/V of a KV-shared layer";
    case Action::kDropDuplicateHead:
      return "dropped: head identical to embed_tokens";
  }
  CHECK(false);
}

uint64_t PlannedTensor::source_bytes() const {
  if (action != Action::kPack) return source->info.size_bytes;
  return static_cast<uint64_t>(n_rows * n_columns() * SizeBytes(source->info.dtype));
}

std::vector<TensorInfo> PlannedTensor::OutputTensors(DType scale_dtype) const {
  if (action == Action::kCopy) return {Info(output, source->info.dtype, source->info.shape)};
  if (action != Action::kPack) return {};
  const int64_t k = n_columns();
  if (encoding == Encoding::kInt8Channel) {
    return {Info(output + ".weight", DType::kI8, {n_rows, k}),
            Info(output + ".weight_scale", DType::kF32, {n_rows, 1})};
  }
  return {Info(output + ".weight_packed", DType::kI32, {n_rows, k / 8}),
          Info(output + ".weight_scale", scale_dtype, {n_rows, k / kGridGroup}),
          Info(output + ".weight_shape", DType::kI64, {2})};
}

Result<Plan> MakePlan(const Checkpoint& source, const gemma::Config& config,
                      const Options& options) {
  return Planner(source, config, options).Make();
}

std::vector<size_t> SplitShards(const Plan& plan, DType scale_dtype, uint64_t max_bytes) {
  std::vector<size_t> ends;
  uint64_t shard_bytes = 0;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    uint64_t tensor_bytes = 0;
    for (const TensorInfo& info : plan.tensors[i].OutputTensors(scale_dtype)) {
      tensor_bytes += info.size_bytes;
    }
    if (shard_bytes > 0 && shard_bytes + tensor_bytes > max_bytes) {
      ends.push_back(i);
      shard_bytes = 0;
    }
    shard_bytes += tensor_bytes;
  }
  ends.push_back(plan.tensors.size());
  return ends;
}

}  // namespace nibble::repack
