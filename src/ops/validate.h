// Common checks of every Validate: checks of operands that keep the first violation as a Status.
//
//   OperandChecker check("rms_norm");
//   check.Operand("x", args.x, {DType::kBF16, DType::kF32}, {kAnyDim, kAnyDim}, Layout::kRows);
//   check.Operand("weight", args.weight, {DType::kF32}, {args.x.shape[1]});
//   return check.status();
//
// Messages say what, which, got, wanted: "op rms_norm: weight: shape [7], want [8]". After the first
// violation the rest is skipped. So a later check may rely on an earlier one only for its meaning, never for
// memory safety. A Shape holds 0 in dims past its rank.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/text.h"
#include "formats/weight.h"
#include "ops/row_store.h"
#include "tensor/tensor.h"

namespace dsv4::ops {

inline constexpr int64_t kAnyDim = -1;

enum class Layout : uint8_t {
  kContiguous,
  kRows,  // Rank 2: the last dim is contiguous and rows do not overlap; gaps between rows are fine.
};

class OperandChecker {
 public:
  explicit OperandChecker(std::string_view op) : op_(op) {}

  // Rank, dims (kAnyDim fits every size), dtype (one of `dtypes`), layout, memory (null only when there are
  // no elements) and device (all operands share one).
  void Operand(std::string_view name, const TensorView& view, std::initializer_list<DType> dtypes,
               const Shape& want, Layout layout = Layout::kContiguous);

  // A stored weight: present, valid, of these dims, on the same device.
  void WeightOperand(std::string_view name, const Weight* weight, int64_t rows, int64_t cols);

  // No byte belongs to both. Column slices of one allocation are recognised as disjoint when their row
  // strides agree.
  void Disjoint(std::string_view name, const TensorView& view, std::string_view other_name,
                const TensorView& other);
  // Either exactly the same elements or no common byte.
  void SameOrDisjoint(std::string_view name, const TensorView& view, std::string_view other_name,
                      const TensorView& other);

  // Cached rows as an op reads or writes them, in any format that unpacks to `dtype`; `min_capacity` and
  // `min_rows` as its contract says.
  void Ring(std::string_view name, const RingRows& ring, int64_t width, DType dtype, int64_t min_capacity);
  void Pages(std::string_view name, const PagedRows& rows, int64_t width, DType dtype, int64_t min_rows);

  // The sequences of a step own consecutive token ranges that together are all tokens, at positions >= 0.
  template <typename Sequence>
  void Sequences(std::span<const Sequence> sequences, int64_t num_tokens) {
    int64_t next = 0;
    for (size_t i = 0; i < sequences.size(); ++i) {
      TokenRange(i, sequences[i].token_begin, sequences[i].num_tokens, sequences[i].first_position, next);
      next += sequences[i].num_tokens;
    }
    Require(next == num_tokens, "sequences", Counted(next, "token") + " in all", std::to_string(num_tokens));
  }

  // A condition of the contract's own: "<name>: <got>, want <want>".
  void Require(bool condition, std::string_view name, std::string_view got, std::string_view want);
  void Require(bool condition, std::string_view name, int64_t got, std::string_view want);
  void Require(bool condition, std::string_view name, float got, std::string_view want);

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

 private:
  void Fail(std::string_view name, std::string_view got, std::string_view want);
  void Format(std::string_view name, const CacheFormat& format, int64_t width, DType dtype);
  void CheckDevice(std::string_view name, Device device);
  void TokenRange(size_t index, int64_t token_begin, int64_t num_tokens, int64_t first_position,
                  int64_t want_begin);

  std::string_view op_;
  Status status_;
  std::optional<Device> device_;
};

}  // namespace dsv4::ops
