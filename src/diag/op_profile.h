// Time and cost of every op of the steps that run while its hooks act. They are added up by op and by the
// shapes that tell its calls apart.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "diag/hooked_backend.h"
#include "diag/op_cost.h"
#include "tensor/tensor.h"

namespace dsv4::diag {

struct OpTime {
  std::string op;      // "linear"
  std::string detail;  // DetailOf
  int64_t calls = 0;
  double seconds = 0;  // Wall time of the calls, until they are done.
  OpCost cost;

  // The same op's.
  OpTime& operator+=(const OpTime& other);
};

class OpProfile {
 public:
  // `context` is that of the bare backend and outlives this object.
  explicit OpProfile(ops::OpContext& context) : context_(context) {}

  // For HookedBackend::Scope; must not outlive this object.
  OpHooks Hooks();

  // Records time beside ops: an exchange between ranks. `what` and `detail` as of OpTime.
  void Record(const std::string& what, const std::string& detail, double seconds);
  // Returns when everything that was queued is done.
  Status Wait();

  // In order of first call.
  const std::vector<OpTime>& ops() const { return ops_; }
  OpCost total_cost() const;

 private:
  template <typename Args>
  Status Measure(const char* op, const InnerOp<Args>& inner, const Args& args);
  OpTime& TimeOf(const std::string& op, const std::string& detail);

  ops::OpContext& context_;
  Buffer waited_for_;  // Buffer for devices with a queue: a few bytes to copy behind it.
  std::vector<OpTime> ops_;
};

}  // namespace dsv4::diag
