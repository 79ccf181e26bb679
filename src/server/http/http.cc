// Whole replies, headers put around replies, and header look-up.
#include "server/http/http.h"

#include <algorithm>
#include <utility>

namespace dsv4::server {
namespace {

class CompleteReply final : public Reply {
 public:
  CompleteReply(HttpHead head, std::string body) : head_(std::move(head)), body_(std::move(body)) {}
  void Advance(ReplyOutput& out) override {
    out.head = std::move(head_);
    // A long one is not copied: the connections' thread has others to serve.
    if (out.body.empty())
      out.body = std::move(body_);
    else
      out.body += body_;
    out.done = true;
  }
  void OnProgress(std::function<void()>) override {}

 private:
  HttpHead head_;
  std::string body_;
};

class ReplyWithHeader final : public Reply {
 public:
  ReplyWithHeader(std::unique_ptr<Reply> inner, std::string name, std::string value)
      : inner_(std::move(inner)), name_(std::move(name)), value_(std::move(value)) {}
  void Advance(ReplyOutput& out) override {
    inner_->Advance(out);
    Add(out);
  }
  void OnProgress(std::function<void()> wake) override { inner_->OnProgress(std::move(wake)); }
  bool HoldsRequest() const override { return inner_->HoldsRequest(); }
  std::string_view KeepAlive() const override { return inner_->KeepAlive(); }
  // Last words are an answer of their own where nothing was said before.
  void Cut(ReplyOutput& out) override {
    inner_->Cut(out);
    Add(out);
  }
  bool IsTraced() const override { return inner_->IsTraced(); }

 private:
  void Add(ReplyOutput& out) {
    if (!out.head || std::exchange(done_, true)) return;
    auto& headers = out.head->headers;
    const auto same = std::ranges::find(headers, name_, [](const auto& header) { return header.first; });
    if (same == headers.end())
      headers.emplace_back(name_, value_);
    else
      same->second += ", " + value_;  // Some clients read only one line of a name.
  }

  std::unique_ptr<Reply> inner_;
  std::string name_;
  std::string value_;
  bool done_ = false;
};

}  // namespace

std::string_view HttpRequest::Header(std::string_view lower_case_name) const {
  const auto header = headers.find(std::string(lower_case_name));
  return header == headers.end() ? std::string_view() : header->second;
}

std::unique_ptr<Reply> MakeReply(HttpHead head, std::string body) {
  return std::make_unique<CompleteReply>(std::move(head), std::move(body));
}

std::unique_ptr<Reply> WithHeader(std::unique_ptr<Reply> reply, std::string name, std::string value) {
  return std::make_unique<ReplyWithHeader>(std::move(reply), std::move(name), std::move(value));
}

}  // namespace dsv4::server
