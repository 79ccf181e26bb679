// Profile of a run's ops: time and cost by op and shape.
#include "diag/op_profile.h"

#include <algorithm>
#include <chrono>
#include <cstddef>

namespace dsv4::diag {

OpTime& OpTime::operator+=(const OpTime& other) {
  calls += other.calls;
  seconds += other.seconds;
  cost += other.cost;
  return *this;
}

Status OpProfile::Wait() {
  if (context_.stream() == nullptr) return {};
  if (!waited_for_) {
    DSV4_ASSIGN_OR_RETURN_STATUS(waited_for_, context_.memory().Allocate(1));
  }
  std::byte byte;
  return context_.memory().CopyToHost(&byte, waited_for_.data(), 1, context_.stream());
}

template <typename Args>
Status OpProfile::Measure(const char* op, const InnerOp<Args>& inner, const Args& args) {
  DSV4_RETURN_IF_ERROR(Wait());
  const auto begin = std::chrono::steady_clock::now();
  DSV4_RETURN_IF_ERROR(inner(args));
  DSV4_RETURN_IF_ERROR(Wait());
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  DSV4_ASSIGN_OR_RETURN_STATUS(const OpCost cost, CostOf(context_, args));
  OpTime& sum = TimeOf(op, DetailOf(args));
  ++sum.calls;
  sum.seconds += time.count();
  sum.cost += cost;
  return {};
}

OpTime& OpProfile::TimeOf(const std::string& op, const std::string& detail) {
  const auto found =
      std::ranges::find_if(ops_, [&](const OpTime& o) { return o.op == op && o.detail == detail; });
  return found != ops_.end() ? *found : ops_.emplace_back(OpTime{.op = op, .detail = detail, .cost = {}});
}

void OpProfile::Record(const std::string& what, const std::string& detail, double seconds) {
  OpTime& sum = TimeOf(what, detail);
  ++sum.calls;
  sum.seconds += seconds;
}

OpHooks OpProfile::Hooks() {
  OpHooks hooks;
#define DSV4_MEASURE_OP(name, Op)                                                       \
  hooks.name = [this](const InnerOp<ops::Op##Args>& inner, const ops::Op##Args& args) { \
    return Measure<ops::Op##Args>(#name, inner, args);                                  \
  };
  DSV4_FOR_EVERY_OP(DSV4_MEASURE_OP)
#undef DSV4_MEASURE_OP
  return hooks;
}

OpCost OpProfile::total_cost() const {
  OpCost total;
  for (const OpTime& op : ops_) total += op.cost;
  return total;
}

}  // namespace dsv4::diag
