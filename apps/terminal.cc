#include "apps/terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>

namespace dsv4::apps {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;

void HandleInterrupt(int signal) {
  if (g_interrupted != 0) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
    return;
  }
  g_interrupted = 1;
}

}  // namespace

bool StdoutIsTerminal() { return isatty(STDOUT_FILENO) == 1; }
bool StderrIsTerminal() { return isatty(STDERR_FILENO) == 1; }
bool StdinIsTerminal() { return isatty(STDIN_FILENO) == 1; }

Style::Style(bool enabled) {
  if (!enabled) return;
  dim = "\x1b[2m";
  bold = "\x1b[1m";
  reset = "\x1b[0m";
}

void ProgressBar::Update(int64_t done, int64_t total, std::string_view text) {
  if (!StderrIsTerminal() || total <= 0) return;
  constexpr int64_t kWidth = 30;
  const int64_t filled = std::clamp<int64_t>(
      static_cast<int64_t>(static_cast<double>(done) / static_cast<double>(total) * kWidth), 0, kWidth);
  fmt::print(stderr, "\r\x1b[2K{} [{:#<{}}{:.<{}}] {}", label_, "", filled, "", kWidth - filled,
             text.empty() ? fmt::format("{}/{}", done, total) : std::string(text));
  std::fflush(stderr);
  visible_ = true;
}

void ProgressBar::Clear() {
  if (!visible_) return;
  fmt::print(stderr, "\r\x1b[2K");
  std::fflush(stderr);
  visible_ = false;
}

InterruptScope::InterruptScope() {
  g_interrupted = 0;
  struct sigaction action = {};
  action.sa_handler = HandleInterrupt;
  sigaction(SIGINT, &action, nullptr);
}

InterruptScope::~InterruptScope() { std::signal(SIGINT, SIG_DFL); }

bool InterruptScope::Take() {
  const bool interrupted = g_interrupted != 0;
  g_interrupted = 0;
  return interrupted;
}

}  // namespace dsv4::apps
