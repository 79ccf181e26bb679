// Any bytes as what a client sends over one connection, in pieces whose length the first byte says. The server answers
// in HTTP or closes, handles no more requests than there are, and has closed when the client has said its last.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>

#include "base/check.h"
#include "folder.h"
#include "server/http/http.h"

namespace dsv4::server {
namespace {

class Served {
 public:
  Served() : path_(folder_.path() + "/socket") {
    auto server = HttpServer::Listen(
        {.unix_socket = path_,
         .num_handler_threads = 1,
         .max_body_bytes = 1 << 20,
         .client_timeout = std::chrono::milliseconds(5000)},
        [this](HttpRequest request) {
          ++num_handled_;
          return MakeReply({}, request.method + " " + request.path);
        },
        [](HttpRequest&) -> std::unique_ptr<Reply> { return nullptr; },
        [](int status, std::string_view message) {
          return std::to_string(status) + " " + std::string(message);
        });
    DSV4_CHECK(server.has_value()) << server.error().ToString();
    server_ = std::move(*server);
    thread_ = std::thread([this] { server_->Run([] {}); });
  }
  ~Served() {
    server_->Shutdown();
    thread_.join();
  }
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;

  int num_handled() const { return num_handled_; }

  std::string Ask(std::string_view said, size_t piece) const {
    const int client = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
    path_.copy(address.sun_path, sizeof address.sun_path - 1);
    DSV4_CHECK(::connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    while (!said.empty()) {
      const ssize_t count = ::send(client, said.data(), std::min(piece, said.size()), MSG_NOSIGNAL);
      if (count <= 0) break;  // It has closed: enough was wrong.
      said.remove_prefix(static_cast<size_t>(count));
    }
    (void)::shutdown(client, SHUT_WR);
    std::string answer;
    char buffer[4096];
    for (ssize_t count; (count = ::recv(client, buffer, sizeof buffer, 0)) > 0;)
      answer.append(buffer, static_cast<size_t>(count));
    ::close(client);
    return answer;
  }

 private:
  testing::Folder folder_;
  std::string path_;
  std::unique_ptr<HttpServer> server_;
  std::atomic<int> num_handled_ = 0;
  std::thread thread_;
};

int Count(std::string_view text, std::string_view what) {
  int count = 0;
  for (size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

// Whether a request of it was handled.
bool Try(std::string_view input) {
  static const Served server;
  if (input.empty()) return false;
  const size_t piece = 1 + static_cast<size_t>(static_cast<uint8_t>(input[0])) * 8;
  input.remove_prefix(1);
  const int before = server.num_handled();
  const std::string answer = server.Ask(input, piece);
  const int handled = server.num_handled() - before;
  DSV4_CHECK(answer.empty() || answer.starts_with("HTTP/1.")) << answer;
  DSV4_CHECK(handled <= Count(input, " HTTP/1.")) << handled;
  DSV4_CHECK(answer.find("500 ") == std::string::npos || handled > 0) << answer;
  return handled > 0;
}

}  // namespace
}  // namespace dsv4::server

extern "C" bool FuzzInputIsAccepted(const uint8_t* data, size_t size) {
  return dsv4::server::Try({reinterpret_cast<const char*>(data), size});
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)FuzzInputIsAccepted(data, size);
  return 0;
}
