// Output for a person: colours only on a terminal, a one-line progress bar, and Ctrl-C as a flag.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace dsv4::apps {

bool StdoutIsTerminal();
bool StderrIsTerminal();
bool StdinIsTerminal();
// TERM is set and not "dumb".
bool TerminalCanMoveCursor();
// Columns of the terminal behind `file`; 80 where it does not say.
int TerminalColumns(int file);
// The same; 24.
int TerminalRows(int file);

// ANSI styles; empty strings when `enabled` is false, so callers write them unconditionally. NO_COLOR takes colours and dimming, nothing else.
struct Style {
  explicit Style(bool enabled);
  std::string_view dim, bold, reset;
  bool colours = false;
};

// "8 s", "2 min 5 s", "1 h 2 min".
std::string ShortDuration(double seconds);

// A bar on stderr that overwrites itself; silent when stderr is no terminal. Gone after Clear or destruction. After a second it says how long the rest will
// take at the pace so far.
class ProgressBar {
 public:
  explicit ProgressBar(std::string label) : label_(std::move(label)) {}
  ~ProgressBar() { Clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  // `text` stands beside the bar, "done/total" when it is empty. A `done` below the last one begins anew.
  void Update(int64_t done, int64_t total, std::string_view text = {});
  void Clear();
  // Makes room for other output; the estimate goes on.
  void Hide();
  // Work behind this goes at another pace than before.
  void Restart() { first_ = last_ = -1; }

 private:
  // ", 8 s left"; empty while too little is known.
  std::string Left(int64_t done, int64_t total);

  std::string label_;
  bool visible_ = false;
  std::chrono::steady_clock::time_point drawn_;
  std::chrono::steady_clock::time_point begin_;  // Beginning of the work that first_ to total are.
  int64_t first_ = -1;                           // -1: nothing has begun.
  int64_t last_ = -1;
};

// For work whose end is not known: from the first second on a line on stderr says what is done and for how long. Silent when stderr is no terminal, and while
// a ProgressBar says more. Gone after destruction.
class ElapsedLine {
 public:
  explicit ElapsedLine(std::string label);
  ~ElapsedLine();
  ElapsedLine(const ElapsedLine&) = delete;
  ElapsedLine& operator=(const ElapsedLine&) = delete;

 private:
  void Show(double seconds);

  std::string label_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;      // Under mutex_.
  bool visible_ = false;  // The thread's, until it has ended.
  std::thread thread_;
};

// While one lives, Ctrl-C sets a flag instead of ending the process. One that comes a second or more later,
// while the flag has not been taken, ends it, except as SetAnswering says. An earlier one counts as the same,
// since people press it twice.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  // True once after Ctrl-C.
  static bool Take();
  // Mode of a chat: while it does not answer, Ctrl-C never ends the process, however often it comes, since
  // nothing runs that could hang.
  static void SetAnswering(bool answering);
};

// Ends the process as an uncaught Ctrl-C does, with the terminal as it was.
[[noreturn]] void EndByInterrupt();

// At once, past the buffers of standard output: to standard output where it is a terminal, else to standard error.
void WriteToTerminal(std::string_view text);

// While one lives, the terminal of standard input hands over bytes as they are typed, without echo. Text that
// is typed while an answer streams waits for the next line, and pasted text keeps its brackets. A signal that
// ends the process restores the terminal first. Nothing happens without a terminal that can move its cursor.
// One at a time.
class TypeAheadScope {
 public:
  TypeAheadScope();
  ~TypeAheadScope();
  TypeAheadScope(const TypeAheadScope&) = delete;
  TypeAheadScope& operator=(const TypeAheadScope&) = delete;
};

// For signal handlers that end the process: the terminal as it was before a TypeAheadScope, if one lives.
void RestoreTerminal();

// Signals that a TypeAheadScope saw since the last call.
struct SignalsSeen {
  bool resized = false;
  bool continued = false;  // The process was stopped (Ctrl-Z) and goes on.
};
SignalsSeen TakeSignals();
// Readable after any signal that an InterruptScope or a TypeAheadScope handles, until TakeSignals; -1 without such a scope. To
// poll beside standard input: signals may reach any thread, so they interrupt nothing.
int SignalWakeFile();

}  // namespace dsv4::apps
