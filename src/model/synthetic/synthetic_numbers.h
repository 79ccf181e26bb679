// The random bytes of synthetic tensors, at the speed of copying memory. A tensor's bytes are a function of
// the seed, its name and its fill. They do not depend on other tensors, on threads or on their address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <tuple>
#include <vector>

#include "model/synthetic/synthetic_tensors.h"

namespace dsv4::model {

// Normal numbers encoded once for every dtype and standard deviation that a set of tensors needs. Immutable
// after construction, so threads may share it.
class CodeTables {
 public:
  explicit CodeTables(std::span<const SyntheticTensor> tensors);

  // The table of a SyntheticFill::kNormal tensor among those of the constructor.
  std::span<const std::byte> For(const SyntheticTensor& tensor) const;

 private:
  std::map<std::tuple<DType, bool, float>, std::vector<std::byte>> tables_;
};

// One tensor's bytes, in pieces from first to last.
class TensorBytes {
 public:
  // All arguments outlive this object.
  TensorBytes(const CodeTables& tables, uint64_t seed, const SyntheticTensor& tensor);

  // Size of the next piece, at most 1 MiB; 0 at the end.
  int64_t next_size() const;
  // Writes it to the next_size() bytes of `piece`.
  void Next(std::span<std::byte> piece);

 private:
  const SyntheticTensor& tensor_;
  std::span<const std::byte> table_;  // SyntheticFill::kNormal only.
  std::mt19937_64 random_;
  int64_t remaining_;
};

}  // namespace dsv4::model
