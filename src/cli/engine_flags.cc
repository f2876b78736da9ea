#include "cli/engine_flags.h"

#include <chrono>
#include <cstdlib>
#include <map>

#include "kernels/choose_kernels.h"

namespace nibble::cli {

void AddEngineFlags(CLI::App* command, EngineFlags* flags) {
  command->add_option("MODEL", flags->model, "Model directory or .gguf file")->required();
  command->add_option("--threads", flags->n_threads, "Threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  const std::map<std::string, model::Activations> activations = {
      {"f32", model::Activations::kF32}, {"int8", model::Activations::kInt8}};
  command
      ->add_option("--activations", flags->options.activations,
                   "What 4-bit matrices multiply: f32 (as they are) or int8 (rounded, 32 a scale)")
      ->transform(CLI::CheckedTransformer(activations))
      ->default_str("int8");
  const std::map<std::string, kernels::KvFormat> formats = {{"f32", kernels::KvFormat::kF32},
                                                            {"bf16", kernels::KvFormat::kBf16},
                                                            {"int8", kernels::KvFormat::kInt8}};
  command->add_option("--kv", flags->options.kv_format, "Keys and values: f32, bf16 or int8")
      ->transform(CLI::CheckedTransformer(formats))
      ->default_str("bf16");
  command
      ->add_option("--prefill-chunk", flags->options.prefill_chunk_tokens,
                   "Prompt tokens read in one step")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
}

Result<OpenedModel> OpenModel(const EngineFlags& flags) {
  OpenedModel opened;
  NIBBLE_ASSIGN_OR_RETURN(opened.kernels, kernels::ChooseKernels(std::getenv("NIBBLE_KERNELS")));
  opened.pool = std::make_unique<ThreadPool>(flags.n_threads);
  const auto start = std::chrono::steady_clock::now();
  NIBBLE_ASSIGN_OR_RETURN(model::Weights weights, model::LoadWeights(flags.model, *opened.pool));
  opened.weights = std::make_unique<model::Weights>(std::move(weights));
  opened.load_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  opened.engine = std::make_unique<engine::Engine>(*opened.weights, *opened.kernels, *opened.pool,
                                                   flags.options);
  return opened;
}

}  // namespace nibble::cli
