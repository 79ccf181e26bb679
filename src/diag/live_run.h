// LiveRun: another run of the same tokens, computed in step with ours on a thread of its own. A tensor is
// handed over when it arises and waits until it is asked for, so two runs are compared in the memory of one.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "diag/subject.h"
#include "diag/tensor_source.h"

namespace dsv4::diag {

// Serves one comparison of one prefill with logits of all rows, whose graph is the same.
class LiveRun final : public TensorSource {
 public:
  // Starts the run. `other` has a backend context of its own and outlives this object, as do the tokens.
  LiveRun(Subject other, std::span<const int32_t> tokens);
  // Stops it where it is.
  ~LiveRun() override;
  LiveRun(const LiveRun&) = delete;
  LiveRun& operator=(const LiveRun&) = delete;

  bool Has(int, std::string_view) const override { return true; }
  // Internal when the other run's next tensor is another one.
  Result<std::vector<float>> Rows(int layer, std::string_view name, int64_t first_row, int64_t num_rows,
                                  int64_t width) override;
  bool rounds_to_bf16() const override;

 private:
  struct Tensor {
    int layer = -1;
    std::string name;
    int64_t num_rows = 0;
    std::vector<float> values;
  };
  class Producer;

  void Run(std::span<const int32_t> tokens);
  bool Stopped();

  Subject other_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Tensor> ready_;  // Guarded by mutex_, as what follows.
  bool stop_ = false;
  bool done_ = false;
  Status status_;  // Status of the run, once it is done.
  std::thread thread_;
};

}  // namespace dsv4::diag
