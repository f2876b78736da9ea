// make_checkpoint SIZE OUT: a synthetic QAT checkpoint of a published Gemma 4 size, for benches and
// tests that need the real shapes and not the real weights.
//
// Names, shapes, shards and configs are the real ones; values lie on a 4-bit grid as values.h says.
// Every activation stays finite, so the model runs, and says nothing. Memory is bounded (about
// 30 MB), the bytes depend on the options alone, not on the threads.
// Tested by tests/interop/test_make_checkpoint.py.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "base/atomic_file.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "sizes.h"
#include "tensors.h"
#include "write.h"

namespace nibble::make_checkpoint {
namespace {

namespace fs = std::filesystem;

struct Options {
  std::string size;
  fs::path out;
  Cuts cuts;
  std::string scales = "fp16";
  uint64_t seed = 0;
  int n_threads = AvailableCores();
  double shard_gb = 5;
  bool shared_kv = false;
  fs::path tokenizer;
  bool holes = false;
  bool list = false;
};

// What stands beside tokenizer.json in published checkpoints.
constexpr std::array kTokenizerFiles = {"tokenizer.json",        "tokenizer_config.json",
                                        "chat_template.jinja",   "special_tokens_map.json",
                                        "processor_config.json", "preprocessor_config.json"};

Status CopyTokenizer(const fs::path& from, const fs::path& out) {
  std::error_code error;
  const bool is_dir = fs::is_directory(from, error);
  const fs::path json = is_dir ? from / "tokenizer.json" : from;
  if (!fs::exists(json, error)) return Fail("{}: no such tokenizer", json.string());
  fs::copy_file(json, out / "tokenizer.json", error);
  if (error) return Fail("{}: cannot copy: {}", json.string(), error.message());
  if (!is_dir) return {};
  for (const char* name : kTokenizerFiles) {
    if (!fs::exists(from / name, error) || fs::exists(out / name, error)) continue;
    fs::copy_file(from / name, out / name, error);
    if (error) return Fail("{}: cannot copy: {}", (from / name).string(), error.message());
  }
  return {};
}

Status MakeEmptyDir(const fs::path& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) return Fail("{}: cannot create: {}", dir.string(), error.message());
  if (!fs::is_empty(dir, error)) return Fail("{}: is not empty", dir.string());
  return {};
}

// {"config": config.json, "tensors": {name: shape}, "total_bytes": n}
void PrintList(const Json& config, const std::vector<Tensor>& tensors) {
  Json shapes = Json::object();
  int64_t n_values = 0;
  for (const Tensor& tensor : tensors) {
    shapes[tensor.name] = tensor.shape;
    n_values += tensor.n_elements();
  }
  const Json list = {{"config", config}, {"tensors", shapes}, {"total_bytes", 2 * n_values}};
  fmt::print("{}\n", list.dump());
}

Status Run(const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  NIBBLE_ASSIGN_OR_RETURN(const Json json, MakeConfig(options.size, options.cuts));
  NIBBLE_ASSIGN_OR_RETURN(const gemma::Config config, gemma::ParseConfig(json, options.size));
  const std::vector<Tensor> tensors = AllTensors(config, options.shared_kv);
  if (options.list) {
    PrintList(json, tensors);
    return {};
  }
  NIBBLE_RETURN_IF_ERROR(MakeEmptyDir(options.out));
  if (!options.tokenizer.empty()) {
    NIBBLE_RETURN_IF_ERROR(CopyTokenizer(options.tokenizer, options.out));
  }
  const Values values(options.seed, options.scales == "fp16" ? DType::kF16 : DType::kBF16);
  ProgressBar bar("make_checkpoint");
  NIBBLE_ASSIGN_OR_RETURN(
      const Written written,
      WriteShards(options.out, tensors, options.holes ? nullptr : &values,
                  static_cast<uint64_t>(options.shard_gb * 1e9), options.n_threads,
                  [&](uint64_t done, uint64_t total) { bar.Update(done, total); }));
  bar.Finish();
  NIBBLE_RETURN_IF_ERROR(WriteFile(options.out / "config.json", json.dump(2) + "\n"));
  NIBBLE_RETURN_IF_ERROR(
      WriteFile(options.out / "generation_config.json", MakeGenerationConfig().dump(2) + "\n"));
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const auto n_bytes = static_cast<double>(written.file_bytes);
  fmt::print("{}: {} tensors in {} shards, {} bytes, {:.1f} s, {:.0f} MB/s\n", options.out.string(),
             tensors.size(), written.n_shards, written.file_bytes, seconds,
             n_bytes / 1e6 / seconds);
  return {};
}

void AddOptions(CLI::App& app, Options& options) {
  app.add_option("SIZE", options.size)->required()->check(CLI::IsMember(SizeNames()));
  app.add_option("OUT", options.out, "directory to write; new or empty");
  app.add_option("--layers", options.cuts.n_layers, "keep this many layers, in each tower at most");
  app.add_option("--vocab", options.cuts.vocab_size, "keep this many rows of the tables");
  app.add_option("--experts", options.cuts.n_experts, "keep this many experts");
  app.add_flag("--text-only", options.cuts.text_only, "Gemma4ForCausalLM, without towers");
  app.add_flag("--shared-kv", options.shared_kv,
               "with the unused K/V of layers that read other layers', as older exports have");
  app.add_option("--scales", options.scales, "the dtype that the groups' scales fit in")
      ->check(CLI::IsMember({"fp16", "bf16"}))
      ->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  app.add_option("--threads", options.n_threads)->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--shard-gb", options.shard_gb, "largest shard, in 1e9 bytes")
      ->check(CLI::Range(0.001, 1000.0))
      ->capture_default_str();
  app.add_option("--tokenizer", options.tokenizer,
                 "tokenizer.json, or a directory with it and its companions, to copy");
  app.add_flag(
      "--holes", options.holes,
      "zeros that take no disk instead of values: sizes, and memory, of what does not fit");
  app.add_flag("--list", options.list, "print config, tensors and bytes as JSON, write nothing");
}

}  // namespace

int Main(int argc, char** argv) {
  CLI::App app{"make_checkpoint: a synthetic QAT checkpoint of a published Gemma 4 size"};
  Options options;
  AddOptions(app, options);
  try {
    app.parse(argc, argv);
    if (!options.list && options.out.empty()) throw CLI::RequiredError("OUT");
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (const Status status = Run(options); !status.has_value()) {
    fmt::print(stderr, "make_checkpoint: error: {}\n", status.error().message);
    return 2;
  }
  return 0;
}

}  // namespace nibble::make_checkpoint

int main(int argc, char** argv) { return nibble::make_checkpoint::Main(argc, argv); }
