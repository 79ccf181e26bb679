// Comparer: the observer behind compare_check.h. Compares every tensor as it arises with the other run's and,
// with shared inputs, replaces it by the other run's numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "diag/hooked_backend.h"
#include "diag/subject.h"
#include "diag/tensor_source.h"
#include "model/graph/observer.h"

namespace dsv4::diag {

// One tensor of both runs.
struct Compared {
  int layer = -1;
  std::string name;
  std::string ops;      // Ops that ran since the tensor before it.
  bool choice = false;  // Choice of experts or entries: compared as sets.
  double bound = 0;     // On the error of a row.
  int64_t num_rows = 0;
  int64_t num_flipped = 0;  // A choice's.
  bool by_table = false;    // A choice that a table makes: it has no near-ties.
  // Choice of the other run in ffn.router.indices, [num_rows, experts per token], and the first row that
  // differs.
  std::vector<float> choices;
  std::vector<float> our_choice;
  std::vector<float> their_choice;
  std::vector<double> row_errors;  // Errors of ffn.routed.
  double worst_error = 0;          // ||ours - theirs|| / ||theirs|| of a row.
  int64_t worst_row = 0;
  int64_t first_bad_row = -1;
  std::set<int64_t> reordered;  // Rows of a choice that list it in another order, or choose otherwise.
  double sum_squared = 0;
  double sum_squared_difference = 0;

  double error() const;  // Error of all rows together.
};

// How the logits of both runs compare.
struct LogitsAgreement {
  int64_t num_rows = 0;
  int64_t num_same_top1 = 0;
  double sum_kl = 0;  // KL(other || ours) in nats.
  double worst_kl = 0;
  // By position.
  std::vector<double> kl;
  std::vector<double> margin;  // Margin of the other run's best token.
  std::vector<double> change;  // The largest |ours - theirs|.
  struct Top1 {
    int64_t position = 0;
    int64_t ours = 0;  // The best token.
    int64_t theirs = 0;
  };
  std::vector<Top1> other_top1;  // Positions where they differ.
};

class Comparer final : public model::Observer {
 public:
  using BoundOf = std::function<double(std::string_view name, DType dtype)>;

  // All outlive this object.
  Comparer(const Subject& subject, TensorSource& other, bool shared_inputs, BoundOf bound_of)
      : subject_(subject), other_(other), shared_inputs_(shared_inputs), bound_of_(std::move(bound_of)) {}

  // Hooks of the backend meanwhile: notes which ops run between two tensors, and reads back what store_rows
  // wrote, which no observer sees.
  OpHooks Hooks();

  void OnTensor(int layer, std::string_view name, const TensorView& tensor) override;

  const Status& status() const { return status_; }
  // In the order of the graph.
  const std::vector<Compared>& compared() const { return compared_; }
  // Tensors that the other run lacks.
  int64_t num_absent() const { return static_cast<int64_t>(absent_.size()); }
  const LogitsAgreement& logits() const { return logits_; }

 private:
  void Trace(std::string_view op);
  Status CheckStored(const ops::StoreRowsArgs& args);
  Status Compare(int layer, std::string_view name, const TensorView& tensor);
  bool CanSubstitute(int layer, std::string_view name) const;
  void CompareRow(Compared& compared, int64_t row, std::span<const float> ours,
                  std::span<const float> theirs) const;
  void CompareLogits(std::span<const float> ours, std::span<const float> theirs);

  const Subject& subject_;
  TensorSource& other_;
  const bool shared_inputs_;
  const BoundOf bound_of_;
  std::map<std::pair<int, std::string>, size_t> index_;  // Into compared_.
  std::vector<Compared> compared_;
  std::set<std::pair<int, std::string>> absent_;
  LogitsAgreement logits_;
  std::pair<int, std::string> last_tensor_ = {-1, ""};
  std::string pending_ops_;
  std::string last_ops_;
  Status status_;
};

}  // namespace dsv4::diag
