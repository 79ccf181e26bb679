// Child processes for ranks 1 to N - 1 of this machine, watched and ended with rank 0.
#include "comm/local_ranks.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>

namespace dsv4::comm {
namespace {

constexpr std::chrono::seconds kGrace(5);

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> Environment(int rank, int size, int port) {
  std::vector<std::string> environment = {fmt::format("RANK={}", rank),
                                          fmt::format("WORLD_SIZE={}", size),
                                          fmt::format("LOCAL_RANK={}", rank),
                                          fmt::format("LOCAL_WORLD_SIZE={}", size),
                                          "MASTER_ADDR=127.0.0.1",
                                          fmt::format("MASTER_PORT={}", port)};
  const size_t num_ours = environment.size();
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    bool ours = false;
    for (size_t i = 0; i < num_ours; ++i) {
      const std::string& other = environment[i];
      ours |= text.starts_with(std::string_view(other).substr(0, other.find('=') + 1));
    }
    if (!ours) environment.emplace_back(text);
  }
  return environment;
}

// In the child: only what may be called after fork.
[[noreturn]] void Become(pid_t parent, char* const* arguments, char* const* environment) {
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  // An interrupt from the terminal goes to all; rank 0 decides what it means.
  (void)::signal(SIGINT, SIG_IGN);
  const int nothing = ::open("/dev/null", O_RDWR);
  if (nothing >= 0) {
    (void)::dup2(nothing, STDIN_FILENO);
    (void)::dup2(nothing, STDOUT_FILENO);
  }
  ::execve("/proc/self/exe", arguments, environment);
  ::_exit(127);
}

std::string HowItEnded(int state) {
  if (WIFSIGNALED(state)) return fmt::format("killed by signal {}", WTERMSIG(state));
  return fmt::format("with exit code {}", WEXITSTATUS(state));
}

}  // namespace

Result<std::unique_ptr<LocalRanks>> LocalRanks::Start(int size, int port,
                                                      const std::vector<std::string>& arguments) {
  std::unique_ptr<LocalRanks> ranks(new LocalRanks());
  const pid_t parent = ::getpid();
  for (int rank = 1; rank < size; ++rank) {
    std::vector<std::string> own_arguments = arguments;
    std::vector<std::string> environment = Environment(rank, size, port);
    const std::vector<char*> argument_pointers = Pointers(own_arguments);
    const std::vector<char*> environment_pointers = Pointers(environment);
    const pid_t process = ::fork();
    if (process == 0) Become(parent, argument_pointers.data(), environment_pointers.data());
    if (process < 0) {
      return Error(ResourceExhausted(fmt::format("rank {}: no process: {}", rank, std::strerror(errno))));
    }
    ranks->processes_.push_back(process);
  }
  return ranks;
}

Status LocalRanks::Check() {
  for (size_t i = 0; i < processes_.size(); ++i) {
    int state = 0;
    if (processes_[i] == 0 || ::waitpid(processes_[i], &state, WNOHANG) != processes_[i]) continue;
    const pid_t process = std::exchange(processes_[i], 0);
    return {StatusCode::kUnavailable, fmt::format("rank {} of {} (process {}) ended {}", i + 1,
                                                  processes_.size() + 1, process, HowItEnded(state))};
  }
  return {};
}

LocalRanks::~LocalRanks() {
  const auto end = std::chrono::steady_clock::now() + kGrace;
  for (const pid_t process : processes_) {
    if (process == 0) continue;
    while (::waitpid(process, nullptr, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > end) (void)::kill(process, SIGKILL);
      ::usleep(2000);
    }
  }
}

}  // namespace dsv4::comm
