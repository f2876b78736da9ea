#include "repack/model_card.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <system_error>
#include <vector>

#include "base/ascii.h"
#include "base/mapped_file.h"

namespace nibble::repack {
namespace {

namespace fs = std::filesystem;

using FrontMatter = std::map<std::string, std::string, std::less<>>;

std::string_view Trim(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// The plain "key: value" lines of the YAML between the card's first two "---" lines; lists and
// nested values are not needed and left out.
FrontMatter ReadFrontMatter(const fs::path& card) {
  FrontMatter fields;
  const Result<std::string> text = ReadTextFile(card);
  if (!text.has_value() || !text->starts_with("---")) return fields;
  std::string_view rest = *text;
  bool is_first = true;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (Trim(line) == "---" && !is_first) return fields;
    is_first = false;
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || line.front() == ' ' || line.front() == '-') continue;
    const std::string_view value = Trim(line.substr(colon + 1));
    if (!value.empty()) fields.emplace(line.substr(0, colon), value);
  }
  return {};  // never closed: not front matter
}

// "owner/name" with the characters of a Hugging Face repository.
bool IsRepositoryId(std::string_view name) {
  const bool has_one_slash = std::ranges::count(name, '/') == 1;
  return has_one_slash && name.front() != '/' && name.back() != '/' && name.front() != '.' &&
         std::ranges::all_of(name, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || IsAsciiDigit(c) || c == '/' ||
                  c == '.' || c == '_' || c == '-';
         });
}

struct Names {
  std::string model;       // for the title
  std::string repository;  // of the source on Hugging Face; "" if it is not known
};

// From the cache's path (models--OWNER--NAME/snapshots/REVISION), the config, or the directory.
Names SourceNames(const fs::path& source, const Json& config) {
  std::error_code error;
  fs::path dir = fs::absolute(source, error).lexically_normal();
  if (!dir.has_filename()) dir = dir.parent_path();
  Names names{.model = dir.filename().string(), .repository = ""};
  constexpr std::string_view kCached = "models--";
  const std::string cached = dir.parent_path().parent_path().filename().string();
  if (dir.parent_path().filename() == "snapshots" && cached.starts_with(kCached)) {
    const std::string id = cached.substr(kCached.size());
    const size_t owner_bytes = std::min(id.find("--"), id.size());
    names.repository = fmt::format("{}/{}", id.substr(0, owner_bytes),
                                   id.substr(std::min(owner_bytes + 2, id.size())));
  } else if (config.contains("_name_or_path") && config["_name_or_path"].is_string()) {
    names.repository = config["_name_or_path"].get<std::string>();
  }
  if (!IsRepositoryId(names.repository)) names.repository.clear();
  if (!names.repository.empty()) {
    names.model = names.repository.substr(names.repository.find('/') + 1);
  }
  return names;
}

bool HasInt8(const RepackReport& report) {
  return report.options.format == Format::kW8A8 || report.options.format == Format::kW8A8Emb4;
}

bool HasPackedTables(const RepackReport& report) {
  return report.options.format == Format::kQ4W4A16Emb4 ||
         report.options.format == Format::kW8A8Emb4;
}

std::string FrontMatterText(const FrontMatter& source, const Names& names, const Json& config,
                            const RepackReport& report) {
  std::string text = "---\n";
  for (const char* key : {"license", "license_name", "license_link"}) {
    if (const auto found = source.find(key); found != source.end()) {
      text += fmt::format("{}: {}\n", key, found->second);
    }
  }
  if (!names.repository.empty()) {
    text += fmt::format("base_model: {}\nbase_model_relation: quantized\n", names.repository);
  }
  const bool hears = config.contains("audio_config") && !config["audio_config"].is_null();
  std::string pipeline = "text-generation";
  if (report.options.keep_towers) {
    const auto found = source.find("pipeline_tag");
    pipeline = found != source.end() ? found->second : hears ? "any-to-any" : "image-text-to-text";
  }
  text += fmt::format("library_name: vllm\npipeline_tag: {}\ntags:\n", pipeline);
  for (const char* tag :
       {"gemma4", "qat", "compressed-tensors", HasInt8(report) ? "int8" : "int4", "nibble"}) {
    text += fmt::format("- {}\n", tag);
  }
  return text + "---\n";
}

std::string GigaBytes(uint64_t n_bytes) {
  const auto value = static_cast<double>(n_bytes);
  return n_bytes >= 1'000'000'000 ? fmt::format("{:.2f} GB", value / 1e9)
                                  : fmt::format("{:.2f} MB", value / 1e6);
}

std::string What(const RepackReport& report) {
  const bool rounded = report.options.rounding != Rounding::kNone;
  std::string what;
  if (HasInt8(report)) {
    what =
        "Linears are int8 per output channel (symmetric, scale = absmax / 127), activations int8 "
        "per "
        "token at run time: **approximate**, see the errors below.";
  } else if (rounded) {
    what =
        "Linears are int4 in groups of 32, **rounded** with scale = amax / 7.5: made for "
        "comparisons, "
        "not for use.";
  } else {
    what =
        "Linears are int4 in groups of 32: the codes and scales that quantization-aware training "
        "had left in the bf16 values were recovered, **nothing was rounded a second time**.";
  }
  if (HasPackedTables(report)) {
    what +=
        " Embedding tables are int4 in groups of 32 as well, recovered in the same way; a tied "
        "token "
        "table stands in the file a second time as `lm_head`.";
  } else {
    what += " Embedding tables are bf16 as in the source.";
  }
  what += report.options.keep_towers
              ? " Vision and audio towers are copied byte for byte."
              : fmt::format(" Text only: {} tensors of vision and audio towers are left out.",
                            report.CountOf(Action::kDropTower));
  return what;
}

std::string Sizes(const RepackReport& report) {
  struct Row {
    uint64_t before = 0;
    uint64_t after = 0;
  };
  std::map<gemma::Part, Row> rows;
  Row total;
  const TensorReport* previous = nullptr;
  for (const TensorReport& tensor : report.tensors) {
    const bool is_again = previous != nullptr && previous->source == tensor.source &&
                          previous->row_begin == tensor.row_begin;
    previous = &tensor;
    const uint64_t before = is_again ? 0 : tensor.source_bytes;
    for (Row* row : {&rows[tensor.part], &total}) {
      row->before += before;
      row->after += tensor.output_bytes;
    }
  }
  std::string text = "| part | source | here |\n|---|---:|---:|\n";
  for (const auto& [part, row] : rows) {
    text += fmt::format("| {} | {} | {} |\n", gemma::Name(part), GigaBytes(row.before),
                        row.after == 0 ? "left out" : GigaBytes(row.after));
  }
  return text +
         fmt::format("| total | {} | {} |\n", GigaBytes(total.before), GigaBytes(total.after));
}

std::string Exactness(const RepackReport& report) {
  const GridCounts& grid = report.totals.grid;
  const RoundingError& rounding = report.totals.rounding;
  std::string text;
  if (grid.n_groups > 0) {
    text += fmt::format(
        "- int4: {} groups of 32 with {} scales; {} have a scale that gives all their bf16 values "
        "back, {} the nearest one that can be stored, {} were off the grid and have been rounded.\n"
        "- {} of {} values ({:.4f} %) are bit-identical to the source under the reader's rule "
        "`bf16(float32(code) * float32(scale))`; the worst is {} bf16 steps off.\n",
        grid.n_groups, Name(report.options.scale_dtype), grid.n_exact_groups, grid.n_nearest_groups,
        grid.n_off_grid_groups, grid.n_bit_identical(), grid.n_values,
        100 * static_cast<double>(grid.n_bit_identical()) / static_cast<double>(grid.n_values),
        grid.worst_ulp);
  }
  if (rounding.n_values > 0) {
    text += fmt::format(
        "- {}: relative error {:.3f} % over {} values (largest {:.3g}, mean {:.3g}); the table per "
        "tensor is in `nibble-report.json`.\n",
        HasInt8(report) ? "int8" : "int4, rounded", 100 * rounding.relative_error(),
        rounding.n_values, rounding.max_error, rounding.mean_error());
  }
  return text;
}

std::string Loading(const RepackReport& report, const std::string& repository) {
  const bool is_fp16 = !HasInt8(report) && report.options.scale_dtype == DType::kF16;
  std::string text =
      fmt::format("```\nvllm serve {}{}\n```\n", repository, is_fp16 ? " --dtype float16" : "");
  if (is_fp16) {
    text +=
        "The scales are float16: a float16 run uses them as they are, a bfloat16 run rounds them "
        "first.\n";
  }
  if (HasPackedTables(report)) {
    text += "Packed tables need vLLM 0.32 or newer and a GPU (their lookup is a Triton kernel).\n";
  }
  if (!HasInt8(report)) text += "\n```\nnibble generate . \"What is 12 * 12?\"\n```\n";
  return text;
}

}  // namespace

std::string ModelCard(const fs::path& source, const Json& source_config,
                      const RepackReport& report) {
  const FrontMatter front = ReadFrontMatter(source / "README.md");
  const Names names = SourceNames(source, source_config);
  const std::string_view format = Name(report.options.format);
  const std::string licence =
      front.contains("license") ? "" : "\nThe licence is that of the source model.\n";
  return fmt::format(
      "{}\n# {} in {}\n\n"
      "Made by nibble from the bf16 checkpoint {}. {}\n{}\n"
      "## Sizes\n\n{}\n## How exact\n\n{}\n"
      "`nibble verify SOURCE .` repeats the proof tensor by tensor; `sha256sum -c SHA256SUMS` "
      "checks "
      "the files.\n\n## Loading\n\n{}",
      FrontMatterText(front, names, source_config, report), names.model, format,
      names.repository.empty() ? fmt::format("`{}`", names.model) : names.repository, What(report),
      licence, Sizes(report), Exactness(report), Loading(report, "."));
}

}  // namespace nibble::repack
