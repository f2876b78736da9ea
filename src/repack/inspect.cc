#include "repack/inspect.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "base/instruction_set.h"
#include "base/mapped_file.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf_file.h"
#include "gemma/config.h"
#include "gemma/tensors.h"
#include "repack/gguf_inspect.h"
#include "repack/pack_rows.h"

namespace nibble::repack {
namespace {

using checkpoint::Checkpoint;
using checkpoint::Tensor;

constexpr int64_t kSliceBytes = int64_t{32} << 20;  // between two looks at progress

Json Member(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) ? object.at(key) : Json();
}

std::vector<PartAnatomy> Parts(const Checkpoint& checkpoint) {
  using gemma::Part;
  std::vector<PartAnatomy> parts;
  for (const Part part :
       {Part::kBody, Part::kPle, Part::kVocabulary, Part::kAudio, Part::kVision}) {
    parts.push_back({.part = std::string(gemma::Name(part)), .bytes_by_dtype = {}});
  }
  parts.push_back({.part = "other", .bytes_by_dtype = {}});
  for (const Tensor& tensor : checkpoint.tensors()) {
    const std::optional<Part> part = gemma::PartOf(tensor.info.name);
    PartAnatomy& anatomy = part.has_value() ? parts[static_cast<size_t>(*part)] : parts.back();
    ++anatomy.n_tensors;
    anatomy.n_bytes += tensor.info.size_bytes;
    anatomy.bytes_by_dtype[std::string(Name(tensor.info.dtype))] += tensor.info.size_bytes;
  }
  std::erase_if(parts, [](const PartAnatomy& part) { return part.n_tensors == 0; });
  return parts;
}

// Whether a tensor called so stands for one of `expected` (canonical names): itself, a packed part
// of it, or a part of one expert of a bank.
bool IsPlaced(std::string_view name, const std::set<std::string, std::less<>>& expected) {
  if (expected.contains(name)) return true;
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return false;
  std::string module(name.substr(0, dot));
  constexpr std::string_view kExperts = ".experts.";
  if (const size_t at = module.find(kExperts); at != std::string::npos) {
    const size_t bank = module.find('.', at + kExperts.size());
    if (bank == std::string::npos) return false;
    const bool is_down = module.substr(bank + 1) == "down_proj";
    module = fmt::format("{}.{}", module.substr(0, at + kExperts.size() - 1),
                         is_down ? "down_proj" : "gate_up_proj");
  }
  // A layer whose V is K may ship a v_proj all the same.
  std::string key = module;
  if (constexpr std::string_view kV = ".v_proj"; key.ends_with(kV)) {
    key.replace(key.size() - kV.size(), kV.size(), ".k_proj");
  }
  return expected.contains(module + ".weight") || expected.contains(module) ||
         expected.contains(key + ".weight") || module == "lm_head";
}

// Towers are taken by the beginning of their names. Without a config of Gemma 4, so is everything.
std::vector<UnknownTensor> FindUnknown(const Checkpoint& checkpoint,
                                       const Result<gemma::Config>& config) {
  std::set<std::string, std::less<>> expected;
  if (config.has_value()) {
    for (gemma::TensorSpec& spec : gemma::ExpectedTensors(*config)) {
      expected.insert(std::move(spec.name));
    }
  }
  std::vector<UnknownTensor> unknown;
  for (const Tensor& tensor : checkpoint.tensors()) {
    const std::optional<std::string> name = gemma::TextName(tensor.info.name);
    const bool is_known = !name.has_value() ? gemma::PartOf(tensor.info.name).has_value()
                                            : expected.empty() || IsPlaced(*name, expected) ||
                                                  gemma::IsIgnoredLeftover(*config, *name);
    if (!is_known) unknown.push_back({tensor.info.name, tensor.info.size_bytes});
  }
  return unknown;
}

const Tensor* FindTable(const Checkpoint& checkpoint, const std::string& suffix) {
  const Tensor* table = checkpoint.Find("model.embed_tokens" + suffix);
  return table != nullptr ? table : checkpoint.Find("model.language_model.embed_tokens" + suffix);
}

std::optional<std::string> DuplicateHead(const Checkpoint& checkpoint) {
  for (const std::string suffix : {".weight", ".weight_packed"}) {
    const Tensor* head = checkpoint.Find("lm_head" + suffix);
    const Tensor* table = FindTable(checkpoint, suffix);
    if (head == nullptr || table == nullptr || head->bytes.size() != table->bytes.size()) continue;
    if (!FirstDifference(head->bytes, table->bytes).has_value()) return head->info.name;
  }
  return std::nullopt;
}

std::string FormatOf(const Checkpoint& checkpoint, const Json& quantization) {
  const auto has = [&checkpoint](auto is_such) {
    return std::ranges::any_of(checkpoint.tensors(), is_such);
  };
  const bool has_int4 =
      has([](const Tensor& tensor) { return tensor.info.name.ends_with(".weight_packed"); });
  const bool has_int8 = has([](const Tensor& tensor) { return tensor.info.dtype == DType::kI8; });
  if (!has_int4 && !has_int8) {
    const bool is_bf16 =
        !has([](const Tensor& tensor) { return tensor.info.dtype != DType::kBF16; });
    return is_bf16 ? "bf16" : "plain, mixed dtypes";
  }
  const Json groups = Member(quantization, "config_groups");
  const auto is_ours = [](const Json& group) {
    const Json weights = Member(group, "weights");
    return (Member(weights, "num_bits") == 4 && Member(weights, "group_size") == kGridGroup) ||
           (Member(weights, "num_bits") == 8 && Member(weights, "strategy") == "channel");
  };
  if (!groups.is_object() || !std::ranges::all_of(groups, is_ours)) {
    return "packed, of another format";
  }
  const bool has_tables = FindTable(checkpoint, ".weight_packed") != nullptr;
  return fmt::format("{}{}", has_int8 ? "w8a8" : "q4w4a16", has_tables ? "emb4" : "");
}

std::string Basis(bool has_config, const Json& quantization) {
  if (Member(quantization, "quant_method").is_string()) {
    return fmt::format("config.json names the quantisation method {}",
                       Member(quantization, "quant_method").dump());
  }
  return fmt::format(
      "{}; whether this is a QAT export is judged from the weights alone (do they lie on the "
      "grid?)",
      !has_config              ? "no config.json"
      : quantization.is_null() ? "config.json says nothing of quantisation"
                               : "config.json has a quantization_config without a method");
}

// Matrices that QAT quantises, told by name and shape, as a single file has no config.
bool IsOnGridByIntent(const Tensor& tensor) {
  const std::string& name = tensor.info.name;
  if (tensor.info.dtype != DType::kBF16 || tensor.info.shape.size() < 2) return false;
  if (tensor.info.size_bytes == 0 || tensor.info.shape.back() % kGridGroup != 0) return false;
  return gemma::TextName(name).has_value() && name.find(".router.") == std::string::npos;
}

// Searches all matrices: with bf16 scales, which have the range for every group, and with fp16
// ones.
void SurveyGrid(const Checkpoint& checkpoint, int n_threads, const ProgressFn& progress,
                Anatomy* anatomy) {
  std::vector<Matrix> matrices;
  uint64_t total_bytes = 0;
  for (const Tensor& tensor : checkpoint.tensors()) {
    if (!IsOnGridByIntent(tensor)) continue;
    matrices.push_back(AsMatrix(tensor));
    total_bytes += tensor.info.size_bytes;
  }
  ThreadPool pool(n_threads);
  uint64_t done_bytes = 0;
  for (const Matrix& matrix : matrices) {
    TensorGrid grid{.name = matrix.tensor->info.name, .counts = {}};
    const int64_t row_bytes = matrix.n_columns * SizeBytes(DType::kBF16);
    const int64_t slice_rows = std::max<int64_t>(1, kSliceBytes / row_bytes);
    for (int64_t row = 0; row < matrix.n_rows; row += slice_rows) {
      const int64_t row_end = std::min(row + slice_rows, matrix.n_rows);
      const PackedRows bf16 = PackRows(matrix, row, row_end, DType::kBF16, false, {}, {}, pool);
      const PackedRows fp16 = PackRows(matrix, row, row_end, DType::kF16, false, {}, {}, pool);
      grid.counts.Merge(bf16.counts);
      grid.n_exact_groups_fp16 += fp16.counts.n_exact_groups;
      if (bf16.first_fault.has_value() && !anatomy->first_fault.has_value()) {
        anatomy->first_fault = Describe(matrix, *bf16.first_fault, DType::kBF16);
      }
      const auto slice = matrix.tensor->bytes.subspan(
          static_cast<size_t>(row * row_bytes), static_cast<size_t>((row_end - row) * row_bytes));
      ReleasePages(slice);
      done_bytes += slice.size();
      if (progress) progress(done_bytes, total_bytes);
    }
    anatomy->totals.Merge(grid.counts);
    anatomy->n_exact_groups_fp16 += grid.n_exact_groups_fp16;
    anatomy->tensors.push_back(std::move(grid));
  }
  anatomy->has_grid = true;
}

}  // namespace

Json Anatomy::ToJson() const {
  Json part_list = Json::array();
  for (const PartAnatomy& part : parts) {
    part_list.push_back({{"part", part.part},
                         {"tensors", part.n_tensors},
                         {"bytes", part.n_bytes},
                         {"bytes_by_dtype", part.bytes_by_dtype}});
  }
  Json json = {{"architecture", architecture}, {"format", format}, {"bytes", n_bytes},
               {"parts", part_list},           {"basis", basis},   {"duplicate_head", nullptr}};
  json["unknown_tensors"] = Json::array();
  for (const UnknownTensor& tensor : unknown) {
    json["unknown_tensors"].push_back({{"name", tensor.name}, {"bytes", tensor.n_bytes}});
  }
  if (duplicate_head.has_value()) json["duplicate_head"] = *duplicate_head;
  if (!has_grid) return json;
  const auto describe = [](const GridCounts& counts, uint64_t n_exact_fp16) {
    Json entry = counts.ToJson();
    entry["groups_exact_bf16"] = counts.n_exact_groups;
    entry["groups_exact_fp16"] = n_exact_fp16;
    for (const char* key : {"groups_exact", "groups_nearest_scale", "values_bit_identical",
                            "values_inexact", "zeros_of_other_sign", "worst_ulp"}) {
      entry.erase(key);  // of one scale dtype only
    }
    return entry;
  };
  Json grid = describe(totals, n_exact_groups_fp16);
  grid["first_off_grid"] = nullptr;
  if (first_fault.has_value()) grid["first_off_grid"] = *first_fault;
  grid["tensors"] = Json::array();
  for (const TensorGrid& tensor : tensors) {
    Json entry = describe(tensor.counts, tensor.n_exact_groups_fp16);
    entry["name"] = tensor.name;
    grid["tensors"].push_back(std::move(entry));
  }
  json["grid"] = std::move(grid);
  return json;
}

Result<Anatomy> Inspect(const std::filesystem::path& path, bool with_grid, int n_threads,
                        const ProgressFn& progress) {
  NIBBLE_RETURN_IF_ERROR(ChosenInstructionSet());
  if (checkpoint::IsGgufPath(path)) {
    if (with_grid) return Fail("{}: only bf16 checkpoints have a grid to search", path.string());
    return InspectGguf(path);
  }
  NIBBLE_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(path));
  std::error_code error;
  const bool has_config = std::filesystem::exists(path / "config.json", error);
  Json config;
  if (has_config) {
    NIBBLE_ASSIGN_OR_RETURN(config, ReadJsonFile(path / "config.json"));
  }
  const Json quantization = Member(config, "quantization_config");
  const Json architectures = Member(config, "architectures");

  Anatomy anatomy;
  if (architectures.is_array() && architectures.size() == 1 && architectures[0].is_string()) {
    anatomy.architecture = architectures[0].get<std::string>();
  }
  anatomy.format = FormatOf(checkpoint, quantization);
  anatomy.parts = Parts(checkpoint);
  anatomy.n_bytes = checkpoint.size_bytes();
  anatomy.unknown = FindUnknown(checkpoint, gemma::ReadConfig(path));
  anatomy.duplicate_head = DuplicateHead(checkpoint);
  anatomy.basis = Basis(has_config, quantization);
  if (with_grid) SurveyGrid(checkpoint, n_threads, progress, &anatomy);
  return anatomy;
}

}  // namespace nibble::repack
