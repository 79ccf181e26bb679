// DeferredReply: hands a reply from a worker to a connection.
#include "server/api/deferred_reply.h"

#include <utility>

namespace dsv4::server {

void ReplyPromise::Set(std::unique_ptr<Reply> reply) {
  std::function<void()> wake;
  {
    const std::lock_guard lock(mutex_);
    if (abandoned_) return;
    reply_ = std::move(reply);
    wake = std::move(wake_);  // A copy would take memory.
  }
  if (wake) wake();
}

bool ReplyPromise::abandoned() const {
  const std::lock_guard lock(mutex_);
  return abandoned_;
}

DeferredReply::~DeferredReply() {
  const std::lock_guard lock(promise_->mutex_);
  promise_->abandoned_ = true;
  promise_->wake_ = {};
}

void DeferredReply::Advance(ReplyOutput& out) {
  if (inner_ == nullptr) {
    {
      const std::lock_guard lock(promise_->mutex_);
      inner_ = std::move(promise_->reply_);
    }
    if (inner_ == nullptr) return;
    inner_->OnProgress(wake_);
  }
  inner_->Advance(out);
}

void DeferredReply::OnProgress(std::function<void()> wake) {
  wake_ = wake;
  const std::lock_guard lock(promise_->mutex_);
  promise_->wake_ = std::move(wake);
}

}  // namespace dsv4::server
