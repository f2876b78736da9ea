// What `nibble plan MODEL --device DEVICE` prints and answers, for `nibble inspect MODEL --plan
// DEVICE`.
#pragma once

#include <string>

#include "base/result.h"

namespace nibble::cli {

Result<int> PrintPlan(const std::string& model, const std::string& device);

}  // namespace nibble::cli
