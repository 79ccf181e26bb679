// Communicator of one rank that gets back what it sends, for timing one rank's own work.
#include "comm/loopback_group.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <numeric>

#include "base/check.h"

namespace dsv4::comm {
namespace {

class LoopbackGroup final : public Communicator {
 public:
  explicit LoopbackGroup(int size) : size_(size) {}

  int rank() const override { return 0; }
  int size() const override { return size_; }
  Status Barrier(Wait) override { return Check(); }
  Status Broadcast(std::span<std::byte>, int, Wait) override { return Check(); }
  Status AllGather(std::span<const std::byte> mine, int64_t num_rows, std::span<const int64_t> row_bytes,
                   std::span<std::byte> all) override {
    const int64_t all_row_bytes = Total(row_bytes);
    DSV4_CHECK(static_cast<int64_t>(mine.size()) == row_bytes[0] * num_rows) << mine.size();
    DSV4_CHECK(static_cast<int64_t>(all.size()) == all_row_bytes * num_rows) << all.size();
    DSV4_RETURN_IF_ERROR(Check());
    for (int64_t row = 0; row < num_rows; ++row) {
      std::byte* to = all.data() + row * all_row_bytes;
      for (const int64_t bytes : row_bytes) {
        CopyRow(mine.data() + row * row_bytes[0], row_bytes[0], to, bytes);
        to += bytes;
      }
    }
    return {};
  }
  Status AllToAll(std::span<const std::byte> mine, int64_t num_rows, std::span<const int64_t> row_bytes,
                  std::span<std::byte> parts) override {
    const int64_t all_row_bytes = Total(row_bytes);
    DSV4_CHECK(static_cast<int64_t>(mine.size()) == all_row_bytes * num_rows) << mine.size();
    DSV4_CHECK(static_cast<int64_t>(parts.size()) == size_ * row_bytes[0] * num_rows) << parts.size();
    DSV4_RETURN_IF_ERROR(Check());
    int64_t begin = 0;
    std::byte* to = parts.data();
    for (const int64_t bytes : row_bytes) {
      for (int64_t row = 0; row < num_rows; ++row, to += row_bytes[0])
        CopyRow(mine.data() + row * all_row_bytes + begin, bytes, to, row_bytes[0]);
      begin += bytes;
    }
    return {};
  }
  Status AllReduceSum(std::span<float> values) override {
    DSV4_RETURN_IF_ERROR(Check());
    for (float& value : values) value = SumOf(value);
    return {};
  }
  Status ReduceScatterSum(std::span<const float> values, std::span<const int64_t> counts,
                          std::span<float> mine) override {
    DSV4_CHECK(static_cast<int64_t>(values.size()) == Total(counts)) << values.size();
    DSV4_CHECK(static_cast<int64_t>(mine.size()) == counts[0]) << mine.size();
    DSV4_RETURN_IF_ERROR(Check());
    std::transform(values.begin(), values.begin() + counts[0], mine.begin(),
                   [this](float value) { return SumOf(value); });
    return {};
  }
  Status Send(std::span<const std::byte>, int) override { return DoesNotSend(); }
  Status Recv(std::span<std::byte>, int) override { return DoesNotSend(); }
  Status Check() override {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  void Fail(const Status& why) override {
    const std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = why;
  }
  Result<std::unique_ptr<Communicator>> Split(int) override { return MirrorGroup(size_); }

 private:
  static Status DoesNotSend() { return Unimplemented("a loopback group: exchanges only"); }
  static void CopyRow(const std::byte* from, int64_t from_bytes, std::byte* to, int64_t to_bytes) {
    const auto count = static_cast<size_t>(std::min(from_bytes, to_bytes));
    const size_t rest = static_cast<size_t>(to_bytes) - count;
    if (count > 0) std::memmove(to, from, count);
    if (rest > 0) std::memset(to + count, 0, rest);
  }
  int64_t Total(std::span<const int64_t> counts) const {
    DSV4_CHECK(static_cast<int>(counts.size()) == size_) << counts.size() << " of " << size_;
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  }
  float SumOf(float value) const {
    float sum = value;
    for (int r = 1; r < size_; ++r) sum += value;
    return sum;
  }

  const int size_;
  std::mutex mutex_;
  Status failure_;
};

}  // namespace

std::unique_ptr<Communicator> MirrorGroup(int size) {
  DSV4_CHECK(size >= 1) << size;
  return std::make_unique<LoopbackGroup>(size);
}

bool IsLoopback(const Communicator& group) { return dynamic_cast<const LoopbackGroup*>(&group) != nullptr; }

}  // namespace dsv4::comm
