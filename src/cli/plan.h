// What `nibble plan DIR --device DEVICE` prints and answers, for `nibble inspect DIR --plan
// DEVICE`.
#pragma once

#include <string>

#include "base/result.h"

namespace nibble::cli {

Result<int> PrintPlan(const std::string& dir, const std::string& device);

}  // namespace nibble::cli
