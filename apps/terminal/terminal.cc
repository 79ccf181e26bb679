// Terminal state: signals, wake-ups, columns, colours and the progress line.
#include "apps/terminal/terminal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "base/error_output.h"

namespace dsv4::apps {

void WriteToTerminal(std::string_view text) {
  static_cast<void>(!::write(StdoutIsTerminal() ? STDOUT_FILENO : STDERR_FILENO, text.data(), text.size()));
}

namespace {

volatile std::sig_atomic_t g_interrupted = 0;
volatile std::sig_atomic_t g_answering = 1;
std::atomic<int64_t> g_interrupted_at = 0;
static_assert(std::atomic<int64_t>::is_always_lock_free);  // Handlers use it.
volatile std::sig_atomic_t g_drawing = 0;                  // There is a terminal whose cursor moves.
volatile std::sig_atomic_t g_resized = 0;
volatile std::sig_atomic_t g_continued = 0;
int g_wake[2] = {-1, -1};  // A pipe that handlers write to.

// State of the TypeAheadScope that lives, for handlers: a terminal keeps its modes when a process ends.
volatile std::sig_atomic_t g_type_ahead = 0;
termios g_before = {};
termios g_during = {};
constexpr std::string_view kPasteOn = "\x1b[?2004h";
constexpr std::string_view kPasteOff = "\x1b[?2004l";

std::atomic<int> g_bars = 0;  // Bars that are shown.

constexpr int64_t kSecondInterruptNanoseconds = 1'000'000'000;
constexpr int64_t kMinBarWidth = 5;
constexpr int64_t kMaxBarWidth = 30;
constexpr std::chrono::milliseconds kRedrawInterval(100);
constexpr double kEstimateSeconds = 1;  // An estimate of less is a guess.

void OpenWakeFile() {
  if (g_wake[0] < 0 && ::pipe2(g_wake, O_CLOEXEC | O_NONBLOCK) != 0) g_wake[0] = g_wake[1] = -1;
}

void Wake() {
  const int error = errno;
  if (g_wake[1] >= 0) static_cast<void>(!::write(g_wake[1], "", 1));
  errno = error;
}

int64_t Nanoseconds() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Drawings stay, in a line of their own, and what follows looks as ever.
void EndBySignal(int signal) {
  if (g_drawing != 0) WriteToTerminal("\x1b[0m\n");
  RestoreTerminal();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

void HandleInterrupt(int signal) {
  const int64_t now = Nanoseconds();
  if (g_answering == 0) {
    g_interrupted = 1;
  } else if (g_interrupted == 0) {
    g_interrupted = 1;
    g_interrupted_at = now;
    // Work may go on for a while, and the terminal echoes nothing by itself then.
    if (g_type_ahead != 0) WriteToTerminal("^C");
  } else if (now - g_interrupted_at >= kSecondInterruptNanoseconds) {
    return EndBySignal(signal);
  }
  Wake();
}

void HandleEnd(int signal) { EndBySignal(signal); }

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

// Over the line of the cursor on stderr, as much as it has room for.
void WriteLineOver(std::string line) {
  line.resize(std::min<size_t>(line.size(), static_cast<size_t>(TerminalColumns(STDERR_FILENO) - 1)));
  PrintError("\r\x1b[2K{}", line);
}

void Handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigaction(signal, &action, nullptr);
}

}  // namespace

void EndByInterrupt() {
  RestoreTerminal();
  std::signal(SIGINT, SIG_DFL);
  std::raise(SIGINT);
  std::_Exit(128 + SIGINT);  // For a process in which the signal is blocked.
}

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

int TerminalRows(int file) {
  winsize size = {};
  return ::ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 ? size.ws_row : 24;
}

Style::Style(bool enabled) {
  if (!enabled || !TerminalCanMoveCursor()) return;
  const char* no_color = std::getenv("NO_COLOR");
  colours = no_color == nullptr || *no_color == '\0';
  if (colours) dim = "\x1b[2m";
  bold = "\x1b[1m";
  reset = "\x1b[0m";
}

std::string ShortDuration(double seconds) {
  const auto whole = static_cast<int64_t>(std::clamp(seconds, 0.0, 1e9) + 0.5);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

std::string ProgressBar::Left(int64_t done, int64_t total) {
  const auto now = std::chrono::steady_clock::now();
  if (first_ < 0 || done < last_) {
    begin_ = now;
    first_ = done;
  }
  last_ = done;
  const double seconds = std::chrono::duration<double>(now - begin_).count();
  if (done <= first_ || done >= total || seconds < kEstimateSeconds) return {};
  return fmt::format(", {} left", ShortDuration(seconds * static_cast<double>(total - done) /
                                                static_cast<double>(done - first_)));
}

void ProgressBar::Update(int64_t done, int64_t total, std::string_view text) {
  if (!StderrIsTerminal() || !TerminalCanMoveCursor() || total <= 0) return;
  // More often is not seen, and fills recordings of terminals.
  const auto now = std::chrono::steady_clock::now();
  if (visible_ && done < total && done >= last_ && now - drawn_ < kRedrawInterval) return;
  drawn_ = now;
  const std::string counts =
      (text.empty() ? fmt::format("{}/{}", done, total) : std::string(text)) + Left(done, total);
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
  WriteLineOver(line);
  if (!visible_) ++g_bars;
  visible_ = true;
}

void ProgressBar::Clear() {
  Restart();
  Hide();
}

void ProgressBar::Hide() {
  if (!visible_) return;
  WriteLineOver({});
  --g_bars;
  visible_ = false;
}

ElapsedLine::ElapsedLine(std::string label) : label_(std::move(label)) {
  if (!StderrIsTerminal() || !TerminalCanMoveCursor()) return;
  thread_ = std::thread([this] {
    const auto begin = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    while (!ended_.wait_for(lock, std::chrono::seconds(1), [this] { return end_; })) {
      Show(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
  });
}

ElapsedLine::~ElapsedLine() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    end_ = true;
  }
  ended_.notify_all();
  thread_.join();
  if (visible_) WriteLineOver({});
}

void ElapsedLine::Show(double seconds) {
  if (g_bars > 0) return;
  WriteLineOver(fmt::format("{}, {}", label_, ShortDuration(seconds)));
  visible_ = true;
}

InterruptScope::InterruptScope() {
  g_interrupted = 0;
  g_drawing = (StdoutIsTerminal() || StderrIsTerminal()) && TerminalCanMoveCursor() ? 1 : 0;
  OpenWakeFile();
  Handle(SIGINT, HandleInterrupt);
}

InterruptScope::~InterruptScope() { std::signal(SIGINT, SIG_DFL); }

bool InterruptScope::Take() {
  const bool interrupted = g_interrupted != 0;
  g_interrupted = 0;
  return interrupted;
}

void InterruptScope::SetAnswering(bool answering) { g_answering = answering ? 1 : 0; }

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
