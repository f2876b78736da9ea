// Flags of the commands that run a model in this process, and what they open.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <string_view>

#include "base/thread_pool.h"
#include "engine/engine.h"
#include "kernels/kernels.h"
#include "model/weights.h"

namespace nibble::cli {

struct EngineFlags {
  std::string model;
  int n_threads = AvailableCores();
  std::string cache_directory;  // empty: none
  engine::EngineOptions options;
};

// The flags' values.
std::string_view Name(model::Activations activations);
std::string_view Name(kernels::KvFormat format);

// MODEL, --threads, --activations, --kv, --cache, --prefill-chunk.
void AddEngineFlags(CLI::App* command, EngineFlags* flags);

// A model that is ready to run. Members are destroyed in the reverse order, the engine first.
struct OpenedModel {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<model::Weights> weights;
  const kernels::KernelTable* kernels = nullptr;
  double load_s = 0;
  std::unique_ptr<engine::Engine> engine;
};

Result<OpenedModel> OpenModel(const EngineFlags& flags);

}  // namespace nibble::cli
