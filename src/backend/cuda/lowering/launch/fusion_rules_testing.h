// Ops that are described, and memory that is not there, for tests of the rules.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

#include "backend/cuda/lowering/device_limits.h"
#include "backend/cuda/lowering/launch/fusion_rules.h"

namespace dsv4::backend::cuda {

class Room final : public DeviceRoom {
 public:
  bool pair = true;
  bool joint = true;
  bool cluster = true;
  bool cluster_over_ranks = true;
  size_t bytes = DeviceLimits().shared_bytes;
  size_t shared_bytes() const override { return bytes; }
  bool HoldsPair(const LinearWork& /*groups*/, const LinearWork& /*linear*/) const override { return pair; }
  bool HoldsExpertsAndLinear(const JointExpertsWork& /*experts*/,
                             const LinearWork& /*linear*/) const override {
    return joint;
  }
  bool HoldsHcCluster(int64_t /*dim*/, bool over_ranks) const override {
    return over_ranks ? cluster_over_ranks : cluster;
  }
};

// Memory is named by letters, 16 MB each: nothing reads it.
inline void* At(char name, int64_t offset = 0) {
  return reinterpret_cast<void*>((uintptr_t{1} << 24) * static_cast<uintptr_t>(name) +  // NOLINT
                                 static_cast<uintptr_t>(offset));
}
template <typename T>
T* As(char name, int64_t offset = 0) {
  return static_cast<T*>(At(name, offset));
}
inline Access Bytes(const void* data, int64_t num_bytes, Division division = Division::kNone) {
  return {{data, static_cast<size_t>(num_bytes)}, division};
}

struct FusionCase {
  const char* what;
  std::vector<RecordedOp> before;
  RecordedOp next;
  std::optional<FusionRule> wanted;
  bool launched = false;
};

inline std::optional<FusionRule> RuleOf(const FusionCase& c, const Room& room) {
  OpGroup group;
  group.ops = c.before;
  group.launched = c.launched;
  const std::optional<Fusion> fusion = FindFusion(group, c.next, room);
  return fusion.has_value() ? std::optional(fusion->rule) : std::nullopt;
}
inline void Expect(const std::vector<FusionCase>& cases, const Room& room = {}) {
  for (const FusionCase& c : cases) EXPECT_EQ(RuleOf(c, room), c.wanted) << c.what;
}

}  // namespace dsv4::backend::cuda
