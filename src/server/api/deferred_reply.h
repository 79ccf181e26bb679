// DeferredReply: a reply whose work is still to be done, on a thread that may take its time.
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "server/http/http.h"

namespace dsv4::server {

// The state that the worker and the connection share.
class ReplyPromise {
 public:
  // Once.
  void Set(std::unique_ptr<Reply> reply);
  // Whether the client has left: then the work need not be done.
  bool abandoned() const;

 private:
  friend class DeferredReply;
  mutable std::mutex mutex_;
  std::unique_ptr<Reply> reply_;
  std::function<void()> wake_;
  bool abandoned_ = false;
};

class DeferredReply final : public Reply {
 public:
  DeferredReply() : promise_(std::make_shared<ReplyPromise>()) {}
  ~DeferredReply() override;
  const std::shared_ptr<ReplyPromise>& promise() const { return promise_; }
  void Advance(ReplyOutput& out) override;
  bool IsTraced() const override { return inner_ != nullptr && inner_->IsTraced(); }
  void OnProgress(std::function<void()> wake) override;
  bool HoldsRequest() const override { return inner_ == nullptr; }
  void Cut(ReplyOutput& out) override {
    if (inner_ != nullptr) inner_->Cut(out);
  }
  std::string_view KeepAlive() const override { return inner_ ? inner_->KeepAlive() : std::string_view(); }

 private:
  std::shared_ptr<ReplyPromise> promise_;
  std::function<void()> wake_;
  std::unique_ptr<Reply> inner_;
};

}  // namespace dsv4::server
