#include "server/http/http.h"

namespace dsv4::server {
namespace {

class CompleteReply final : public Reply {
 public:
  CompleteReply(HttpHead head, std::string body) : head_(std::move(head)), body_(std::move(body)) {}
  void Advance(ReplyOutput& out) override {
    out.head = std::move(head_);
    out.body += body_;
    out.done = true;
  }
  void OnProgress(std::function<void()>) override {}

 private:
  HttpHead head_;
  std::string body_;
};

}  // namespace

std::string_view HttpRequest::Header(std::string_view lower_case_name) const {
  const auto header = headers.find(std::string(lower_case_name));
  return header == headers.end() ? std::string_view() : header->second;
}

std::unique_ptr<Reply> MakeReply(HttpHead head, std::string body) {
  return std::make_unique<CompleteReply>(std::move(head), std::move(body));
}

}  // namespace dsv4::server
