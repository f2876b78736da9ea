// Where the forward pass's tensors come from: each kind of file finds them by canonical name
// (gemma/tensors.h) and turns them into what their place holds; which places there are is the same
// for all. Tested by weights_test.cc and weights_gguf_test.cc.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "model/weights.h"

namespace nibble::model {

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // Each is called once for a name that ExpectedTensors has, but for a tied table, which is bound
  // as the head as well. Errors name file and tensor, what was expected and what was found.
  virtual Status BindMatrix(const std::string& name, kernels::PackedWeight& weight) = 0;
  virtual Status BindExperts(const std::string& name, std::vector<kernels::PackedWeight>& bank) = 0;
  virtual Status BindFloats(const std::string& name, std::vector<float>& values) = 0;
  virtual Status BindTable(const std::string& name, Table& table) = 0;

  // Error if the file holds a text tensor that nothing asked for.
  virtual Status CheckNothingLeft() const = 0;
};

// Fills all places of weights->config.
Status BindAll(WeightSource& source, std::string_view where, Weights* weights);

}  // namespace nibble::model
