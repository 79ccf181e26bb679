#include "apps/terminal/terminal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace dsv4::apps {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;
volatile std::sig_atomic_t g_at_prompt = 0;
volatile std::sig_atomic_t g_resized = 0;
volatile std::sig_atomic_t g_continued = 0;
int g_wake[2] = {-1, -1};  // A pipe that handlers write to.

// Of the TypeAheadScope that lives, for handlers: a terminal keeps its modes when a process ends.
volatile std::sig_atomic_t g_type_ahead = 0;
termios g_before = {};
termios g_during = {};
constexpr std::string_view kPasteOn = "\x1b[?2004h";
constexpr std::string_view kPasteOff = "\x1b[?2004l";

constexpr int64_t kMinBarWidth = 5;
constexpr int64_t kMaxBarWidth = 30;

void OpenWakeFile() {
  if (g_wake[0] < 0 && ::pipe2(g_wake, O_CLOEXEC | O_NONBLOCK) != 0) g_wake[0] = g_wake[1] = -1;
}

void Wake() {
  const int error = errno;
  if (g_wake[1] >= 0) static_cast<void>(!::write(g_wake[1], "", 1));
  errno = error;
}

void WriteToTerminal(std::string_view text) {
  static_cast<void>(!::write(StdoutIsTerminal() ? STDOUT_FILENO : STDERR_FILENO, text.data(), text.size()));
}

void HandleInterrupt(int signal) {
  if (g_interrupted != 0 && g_at_prompt == 0) {
    RestoreTerminal();
    std::signal(signal, SIG_DFL);
    std::raise(signal);
    return;
  }
  g_interrupted = 1;
  Wake();
}

void HandleEnd(int signal) {
  RestoreTerminal();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void HandleResize(int) {
  g_resized = 1;
  Wake();
}

// Shells set the terminal as they like it while a job is stopped. A job that goes on in the background leaves it so.
void HandleContinue(int) {
  const int error = errno;
  if (::tcgetpgrp(STDIN_FILENO) == ::getpgrp()) {
    ::tcsetattr(STDIN_FILENO, TCSANOW, &g_during);
    WriteToTerminal(kPasteOn);
  }
  errno = error;
  g_continued = 1;
  Wake();
}

void Handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigaction(signal, &action, nullptr);
}

}  // namespace

void RestoreTerminal() {
  if (g_type_ahead == 0) return;
  ::tcsetattr(STDIN_FILENO, TCSANOW, &g_before);
  WriteToTerminal(kPasteOff);
}

bool StdoutIsTerminal() { return isatty(STDOUT_FILENO) == 1; }
bool StderrIsTerminal() { return isatty(STDERR_FILENO) == 1; }
bool StdinIsTerminal() { return isatty(STDIN_FILENO) == 1; }

bool TerminalCanMoveCursor() {
  const char* term = std::getenv("TERM");
  return term != nullptr && *term != '\0' && std::string_view(term) != "dumb";
}

int TerminalColumns(int file) {
  winsize size = {};
  return ::ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

Style::Style(bool enabled) {
  const char* no_color = std::getenv("NO_COLOR");
  if (!enabled || !TerminalCanMoveCursor() || (no_color != nullptr && *no_color != '\0')) return;
  dim = "\x1b[2m";
  bold = "\x1b[1m";
  reset = "\x1b[0m";
}

void ProgressBar::Update(int64_t done, int64_t total, std::string_view text) {
  if (!StderrIsTerminal() || !TerminalCanMoveCursor() || total <= 0) return;
  const std::string counts = text.empty() ? fmt::format("{}/{}", done, total) : std::string(text);
  // A bar that wraps is no longer overwritten: it has the room that the words leave in one line, and the words are cut last.
  const int64_t room =
      TerminalColumns(STDERR_FILENO) - static_cast<int64_t>(label_.size() + counts.size()) - 5;
  std::string line = fmt::format("{} {}", label_, counts);
  if (room >= kMinBarWidth) {
    const int64_t width = std::min<int64_t>(room, kMaxBarWidth);
    const int64_t filled =
        std::clamp<int64_t>(static_cast<int64_t>(static_cast<double>(done) / static_cast<double>(total) *
                                                 static_cast<double>(width)),
                            0, width);
    line = fmt::format("{} [{:#<{}}{:.<{}}] {}", label_, "", filled, "", width - filled, counts);
  }
  line.resize(std::min<size_t>(line.size(), static_cast<size_t>(TerminalColumns(STDERR_FILENO) - 1)));
  fmt::print(stderr, "\r\x1b[2K{}", line);
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
  OpenWakeFile();
  Handle(SIGINT, HandleInterrupt);
}

InterruptScope::~InterruptScope() { std::signal(SIGINT, SIG_DFL); }

bool InterruptScope::Take() {
  const bool interrupted = g_interrupted != 0;
  g_interrupted = 0;
  return interrupted;
}

void InterruptScope::SetAtPrompt(bool at_prompt) { g_at_prompt = at_prompt ? 1 : 0; }

TypeAheadScope::TypeAheadScope() {
  if (!StdinIsTerminal() || !TerminalCanMoveCursor() || !(StdoutIsTerminal() || StderrIsTerminal()) ||
      ::tcgetattr(STDIN_FILENO, &g_before) != 0) {
    return;
  }
  OpenWakeFile();
  g_during = g_before;
  g_during.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  g_during.c_cc[VMIN] = 1;
  g_during.c_cc[VTIME] = 0;
  if (::tcsetattr(STDIN_FILENO, TCSANOW, &g_during) != 0) return;
  g_type_ahead = 1;
  for (const int signal : {SIGTERM, SIGHUP, SIGQUIT}) Handle(signal, HandleEnd);
  Handle(SIGWINCH, HandleResize);
  Handle(SIGCONT, HandleContinue);
  WriteToTerminal(kPasteOn);
}

TypeAheadScope::~TypeAheadScope() {
  if (g_type_ahead == 0) return;
  for (const int signal : {SIGTERM, SIGHUP, SIGQUIT, SIGWINCH, SIGCONT}) std::signal(signal, SIG_DFL);
  RestoreTerminal();
  g_type_ahead = 0;
}

SignalsSeen TakeSignals() {
  std::array<char, 64> bytes;
  while (g_wake[0] >= 0 && ::read(g_wake[0], bytes.data(), bytes.size()) > 0) {
  }
  const SignalsSeen seen = {.resized = g_resized != 0, .continued = g_continued != 0};
  g_resized = 0;
  g_continued = 0;
  return seen;
}

int SignalWakeFile() { return g_wake[0]; }

}  // namespace dsv4::apps
