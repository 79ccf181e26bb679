// Second run of the same tokens on its own thread, whose tensors are handed over one at a time.
#include "diag/live_run.h"

#include <fmt/format.h>

#include <utility>

#include "base/text.h"

namespace dsv4::diag {
namespace {

// The run is at most so many tensors ahead: enough for both sides to compute at the same time.
constexpr size_t kMaxReady = 2;

}  // namespace

// Hands the tensors over, waiting for room.
class LiveRun::Producer final : public model::Observer {
 public:
  explicit Producer(LiveRun& run) : run_(run) {}

  void OnTensor(int layer, std::string_view name, const TensorView& tensor) override {
    if (!status_.ok() || name.starts_with("pass.")) return;
    Result<std::vector<float>> values = ToHostFloats(run_.other_.context(), tensor);
    if (!values) {
      status_ = values.error().WithContext(fmt::format("layer {}, {}", layer, name));
      return;
    }
    std::unique_lock lock(run_.mutex_);
    run_.changed_.wait(lock, [&] { return run_.stop_ || run_.ready_.size() < kMaxReady; });
    if (run_.stop_) return;
    run_.ready_.push_back({layer, std::string(name), tensor.shape[0], std::move(*values)});
    run_.changed_.notify_all();
  }

  const Status& status() const { return status_; }

 private:
  LiveRun& run_;
  Status status_;
};

LiveRun::LiveRun(Subject other, std::span<const int32_t> tokens)
    : other_(other), thread_([this, tokens] { Run(tokens); }) {}

LiveRun::~LiveRun() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool LiveRun::Stopped() {
  const std::lock_guard lock(mutex_);
  return stop_;
}

void LiveRun::Run(std::span<const int32_t> tokens) {
  OpHooks hooks;
#define DSV4_STOP_OP(name, Op)                                                              \
  hooks.name = [this](const InnerOp<ops::Op##Args>& inner, const ops::Op##Args& args) {     \
    return Stopped() ? Status(StatusCode::kCancelled, "the run was stopped") : inner(args); \
  };
  DSV4_FOR_EACH_OP(DSV4_STOP_OP)
#undef DSV4_STOP_OP
  const HookedBackend::Scope scope(other_.backend, std::move(hooks));
  Producer producer(*this);
  const Result<std::vector<float>> run = RunTokens(other_, tokens, {}, model::LogitsRows::kAll, &producer);
  const std::lock_guard lock(mutex_);
  status_ = producer.status().ok() && !run ? run.error() : producer.status();
  done_ = true;
  changed_.notify_all();
}

Result<std::vector<float>> LiveRun::Rows(int layer, std::string_view name, int64_t, int64_t num_rows,
                                         int64_t width) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ || !ready_.empty(); });
  if (ready_.empty()) {
    if (!status_.ok()) return Error(status_.WithContext("the other run"));
    return Error(Internal("the other run ended before this tensor"));
  }
  Tensor tensor = std::move(ready_.front());
  ready_.pop_front();
  changed_.notify_all();
  if (tensor.layer != layer || tensor.name != name) {
    return Error(
        Internal(fmt::format("the other run computed layer {}, {} in its place", tensor.layer, tensor.name)));
  }
  if (tensor.num_rows != num_rows || static_cast<int64_t>(tensor.values.size()) != num_rows * width) {
    return Error(InvalidArgument(fmt::format("the other run has {} of {} in all, this model [{}, {}]",
                                             Counted(tensor.num_rows, "row"),
                                             Counted(tensor.values.size(), "element"), num_rows, width)));
  }
  return std::move(tensor.values);
}

bool LiveRun::rounds_to_bf16() const { return other_.model.options().numerics == model::Numerics::kRelease; }

}  // namespace dsv4::diag
