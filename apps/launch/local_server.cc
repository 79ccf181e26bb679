// Server asked over HTTP or started as a child process.
#include "apps/launch/local_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/json.h"
#include "base/read_file.h"
#include "hub/transfer.h"

namespace dsv4::apps {
namespace {

constexpr size_t kMaxAnswer = size_t{1} << 20;
constexpr size_t kLogShown = 2000;

class Text final : public hub::BodySink {
 public:
  Status Begin(int64_t, int64_t) override { return {}; }
  Status Write(std::string_view bytes) override {
    if (text.size() + bytes.size() > kMaxAnswer) return InvalidArgument("an answer of more than 1 MiB");
    text += bytes;
    return {};
  }
  std::string text;
};

}  // namespace

Result<std::string> ServedModel(const std::string& url, const std::string& key) {
  Text answer;
  DSV4_ASSIGN_OR_RETURN(const auto transfers, hub::Transfers::Make());
  transfers->Start(0, {.url = url + "/v1/models", .token = key, .from = 0, .stall_seconds = 5}, answer);
  std::vector<hub::Transfers::Finished> finished;
  while (finished.empty()) finished = transfers->Run(0.1);
  if (const Status& status = finished[0].outcome.status; !status.ok()) return Error(status.WithContext(url));
  DSV4_ASSIGN_OR_RETURN(const Json models, ParseJson(answer.text, url + "/v1/models"));
  if (!models.is_object() || !models.contains("data") || !models["data"].is_array() ||
      models["data"].empty() || !models["data"][0].is_object() || !models["data"][0].contains("id") ||
      !models["data"][0]["id"].is_string()) {
    return Error(InvalidArgument(fmt::format("{}/v1/models: names no model", url)));
  }
  return models["data"][0]["id"].get<std::string>();
}

Result<LocalServer> LocalServer::Start(int port, const std::vector<std::string>& words,
                                       const std::string& log) {
  std::vector<std::string> line = {
      "dsv4", "serve", "--host", "127.0.0.1", "--port", fmt::format("{}", port), "--alias", "*"};
  line.insert(line.end(), words.begin(), words.end());
  std::vector<char*> arguments;
  for (std::string& word : line) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const int output = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (output < 0) return Error(FailedPrecondition(fmt::format("{}: {}", log, std::strerror(errno))));
  const pid_t parent = getpid();
  const pid_t process = fork();
  if (process == 0) {
    // Ctrl-C is the client's; the server ends with this process, however that ends.
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    execv("/proc/self/exe", arguments.data());
    _exit(127);
  }
  close(output);
  if (process < 0) return Error(ResourceExhausted(fmt::format("fork: {}", std::strerror(errno))));
  return LocalServer(process, log);
}

LocalServer::LocalServer(LocalServer&& other) noexcept
    : process_(std::exchange(other.process_, -1)), log_(std::move(other.log_)) {}

LocalServer::~LocalServer() {
  if (process_ <= 0) return;
  kill(process_, SIGTERM);
  while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Status LocalServer::Check() {
  int ended = 0;
  if (process_ > 0 && waitpid(process_, &ended, WNOHANG) == 0) return {};
  process_ = -1;
  std::string text;
  if (Result<std::string> log = ReadFile(log_)) text = std::move(*log);
  if (text.size() > kLogShown) text.erase(0, text.size() - kLogShown);
  return FailedPrecondition(fmt::format("the server ended before it was ready:\n{}", text));
}

}  // namespace dsv4::apps
