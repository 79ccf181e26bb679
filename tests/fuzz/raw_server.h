// A server of a fuzz target that says what it is told, one answer a connection, whatever it is asked.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "base/check.h"

namespace dsv4::testing {

class RawServer {
 public:
  RawServer() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    DSV4_CHECK(::bind(listener_, any, size) == 0 && ::listen(listener_, 64) == 0);
    DSV4_CHECK(::getsockname(listener_, any, &size) == 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~RawServer() {
    (void)::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  RawServer(const RawServer&) = delete;
  RawServer& operator=(const RawServer&) = delete;

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

  // The answers to the next connections: the parts of `text` between lines of "%%%%". Further ones get none.
  void Say(std::string_view text) {
    constexpr std::string_view kBetween = "\n%%%%\n";
    const std::lock_guard lock(mutex_);
    answers_.clear();
    for (;;) {
      const size_t end = text.find(kBetween);
      answers_.emplace_back(text.substr(0, end));
      if (end == std::string_view::npos) return;
      text.remove_prefix(end + kBetween.size());
    }
  }

 private:
  void Run() {
    for (int client; (client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
      std::string answer;
      {
        const std::lock_guard lock(mutex_);
        if (!answers_.empty()) {
          answer = std::move(answers_.front());
          answers_.pop_front();
        }
      }
      char asked[16384];
      (void)::recv(client, asked, sizeof asked, 0);
      (void)::send(client, answer.data(), answer.size(), MSG_NOSIGNAL);
      (void)::shutdown(client, SHUT_WR);
      while (::recv(client, asked, sizeof asked, 0) > 0) {
      }
      ::close(client);
    }
  }

  int listener_;
  int port_ = 0;
  std::mutex mutex_;
  std::deque<std::string> answers_;
  std::thread thread_;
};

}  // namespace dsv4::testing
