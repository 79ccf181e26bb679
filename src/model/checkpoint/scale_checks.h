// ScaleChecks: whether the scales of weights are numbers, on all cores. A release has tens of gigabytes of
// them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "formats/weight.h"

namespace dsv4::model {

class ScaleChecks {
 public:
  // Checked by Finish, until which it stays where it is. `name` is that of the weight's tensor.
  void Add(const Weight& weight, const std::string& name);
  // Fault of the first that was added since the last call and is not right (ValidateScaleValues).
  Status Finish();

 private:
  struct Added {
    Weight weight;
    const std::string* name;
  };
  std::vector<Added> added_;
  int64_t num_bytes_ = 0;
  std::unique_ptr<ThreadPool> threads_;  // Null while few were added.
};

}  // namespace dsv4::model
