// Proof that two ops may share a launch: ranges that ops read and write, and how blocks divide them.
#include "backend/cuda/lowering/launch/accesses.h"

#include <algorithm>

#include "base/check.h"

namespace dsv4::backend::cuda {
namespace {

bool Collide(const Access& a, const Access& b) {
  if (!Overlap(a.range, b.range)) return false;
  return a.division == Division::kNone || a.division != b.division || a.range.data != b.range.data;
}

bool AnyCollide(const AccessList& a, const AccessList& b) {
  return std::ranges::any_of(a, [&](const Access& x) {
    return std::ranges::any_of(b, [&](const Access& y) { return Collide(x, y); });
  });
}

}  // namespace

void AccessList::Add(const Access& access) {
  if (access.range.data == nullptr || access.range.num_bytes == 0) return;
  DSV4_CHECK(size_ < kMost) << "an op with more than " << kMost << " operands";
  accesses_[size_++] = access;
}

bool MayShareLaunch(const OpAccesses& first, const OpAccesses& next) {
  return !AnyCollide(first.writes, next.reads) && !AnyCollide(first.writes, next.writes) &&
         !AnyCollide(first.reads, next.writes);
}

bool WritesWhatItReads(const OpAccesses& op) { return AnyCollide(op.writes, op.reads); }

}  // namespace dsv4::backend::cuda
