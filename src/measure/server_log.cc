#include "measure/server_log.h"

#include <cstdlib>
#include <string>

namespace nibble::measure {
namespace {

// The number after `words`, its thousands separated by commas; negative: there is none.
double NumberAfter(std::string_view log, std::string_view words) {
  size_t at = log.find(words);
  if (at == log.npos) return -1;
  std::string digits;
  for (at += words.size(); at < log.size(); ++at) {
    const char c = log[at];
    if (c == ',' || (c == ' ' && digits.empty())) continue;
    if (c != '.' && (c < '0' || c > '9')) break;
    digits += c;
  }
  return digits.empty() ? -1 : std::atof(digits.c_str());
}

}  // namespace

void AddVllmLogFacts(std::string_view log, Json* facts) {
  const double kv_tokens = NumberAfter(log, "KV cache size:");
  if (kv_tokens >= 0) (*facts)["kv_tokens"] = static_cast<int64_t>(kv_tokens);
  const double gib = NumberAfter(log, "Model loading took");
  if (gib >= 0) (*facts)["weight_bytes"] = static_cast<int64_t>(gib * 0x1p30);
}

}  // namespace nibble::measure
