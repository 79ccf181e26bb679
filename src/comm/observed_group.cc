// Communicator that times each exchange of another one and tells an observer.
#include "comm/observed_group.h"

#include <chrono>
#include <utility>

namespace dsv4::comm {
namespace {

class ObservedGroup final : public Communicator {
 public:
  ObservedGroup(std::shared_ptr<Communicator> inner, std::shared_ptr<const ExchangeHooks> hooks)
      : inner_(std::move(inner)), hooks_(std::move(hooks)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  Status Barrier(Wait wait) override {
    return Look("barrier", 0, [&] { return inner_->Barrier(wait); });
  }
  Status Broadcast(std::span<std::byte> data, int root, Wait wait) override {
    return Look("broadcast", data.size(), [&] { return inner_->Broadcast(data, root, wait); });
  }
  Status AllGather(std::span<const std::byte> mine, int64_t num_rows, std::span<const int64_t> row_bytes,
                   std::span<std::byte> all) override {
    return Look("all-gather", all.size(), [&] { return inner_->AllGather(mine, num_rows, row_bytes, all); });
  }
  Status AllToAll(std::span<const std::byte> mine, int64_t num_rows, std::span<const int64_t> row_bytes,
                  std::span<std::byte> parts) override {
    return Look("all-to-all", mine.size(),
                [&] { return inner_->AllToAll(mine, num_rows, row_bytes, parts); });
  }
  Status AllReduceSum(std::span<float> values) override {
    return Look("all-reduce", values.size_bytes(), [&] { return inner_->AllReduceSum(values); });
  }
  Status ReduceScatterSum(std::span<const float> values, std::span<const int64_t> counts,
                          std::span<float> mine) override {
    return Look("reduce-scatter", values.size_bytes(),
                [&] { return inner_->ReduceScatterSum(values, counts, mine); });
  }
  Status Send(std::span<const std::byte> data, int to) override {
    return Look("send", data.size(), [&] { return inner_->Send(data, to); });
  }
  Status Recv(std::span<std::byte> data, int from) override {
    return Look("receive", data.size(), [&] { return inner_->Recv(data, from); });
  }

  Status Check() override { return inner_->Check(); }
  void Fail(const Status& why) override { inner_->Fail(why); }
  Result<std::unique_ptr<Communicator>> Split(int colour) override {
    DSV4_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> part, inner_->Split(colour));
    return Observe(std::move(part), hooks_);
  }

 private:
  template <typename Call>
  Status Look(const char* what, size_t num_bytes, const Call& call) {
    if (!hooks_->seen) return call();
    if (hooks_->settle) DSV4_RETURN_IF_ERROR(hooks_->settle());
    const auto begin = std::chrono::steady_clock::now();
    DSV4_RETURN_IF_ERROR(call());
    if (hooks_->settle) DSV4_RETURN_IF_ERROR(hooks_->settle());
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    hooks_->seen({what, inner_->size(), static_cast<int64_t>(num_bytes), time.count()});
    return {};
  }

  std::shared_ptr<Communicator> inner_;
  std::shared_ptr<const ExchangeHooks> hooks_;
};

}  // namespace

std::unique_ptr<Communicator> Observe(std::shared_ptr<Communicator> group,
                                      std::shared_ptr<const ExchangeHooks> hooks) {
  return std::make_unique<ObservedGroup>(std::move(group), std::move(hooks));
}

}  // namespace dsv4::comm
