#include "cli/engine_flags.h"

#include <cstdlib>
#include <initializer_list>
#include <map>

#include "base/stopwatch.h"
#include "cli/choice_option.h"
#include "kernels/choose_kernels.h"

namespace nibble::cli {
namespace {

template <typename T>
std::map<std::string, T> ByName(std::initializer_list<T> values) {
  std::map<std::string, T> by_name;
  for (const T value : values) by_name.emplace(Name(value), value);
  return by_name;
}

}  // namespace

std::string_view Name(model::Activations activations) {
  if (activations == model::Activations::kF32) return "f32";
  return activations == model::Activations::kInt16 ? "int16" : "int8";
}

std::string_view Name(kernels::KvFormat format) {
  if (format == kernels::KvFormat::kF32) return "f32";
  return format == kernels::KvFormat::kBf16 ? "bf16" : "int8";
}

void AddEngineFlags(CLI::App* command, EngineFlags* flags) {
  using enum kernels::KvFormat;
  engine::EngineOptions& options = flags->options;
  command->add_option("MODEL", flags->model, "Model directory or .gguf file")->required();
  command->add_option("--threads", flags->n_threads, "Threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  AddChoice(
      command, "--activations", &options.activations,
      ByName({model::Activations::kF32, model::Activations::kInt16, model::Activations::kInt8}),
      "What 4-bit matrices multiply: f32 (as they are), int16 or int8 (rounded, 32 a scale)")
      ->default_str(std::string(Name(options.activations)));
  AddChoice(command, "--kv", &options.kv_format, ByName({kF32, kBf16, kInt8}), "Keys and values")
      ->default_str(std::string(Name(options.kv_format)));
  command
      ->add_option("--cache", flags->cache_directory,
                   "Directory that keeps the weights as they are computed with: written at the "
                   "first start, mapped at the next ones")
      ->check(CLI::ExistingDirectory);
  command->add_option("--prefill-chunk", options.max_step_tokens, "Prompt tokens read in one step")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
}

Result<OpenedModel> OpenModel(const EngineFlags& flags) {
  OpenedModel opened;
  NIBBLE_ASSIGN_OR_RETURN(opened.kernels, kernels::ChooseKernels(std::getenv("NIBBLE_KERNELS")));
  opened.pool = std::make_unique<ThreadPool>(flags.n_threads);
  const Stopwatch loading;
  NIBBLE_ASSIGN_OR_RETURN(model::Weights weights,
                          model::LoadWeights(flags.model, *opened.pool, flags.cache_directory));
  opened.weights = std::make_unique<model::Weights>(std::move(weights));
  opened.load_s = loading.seconds();
  opened.engine = std::make_unique<engine::Engine>(*opened.weights, *opened.kernels, *opened.pool,
                                                   flags.options);
  return opened;
}

}  // namespace nibble::cli
