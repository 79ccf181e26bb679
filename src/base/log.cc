// Log lines with level, time and colour, filtered by level and written to standard error.
#include "base/log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>

#include "base/error_output.h"
#include "base/log_sink.h"
#include "base/log_times.h"

namespace dsv4 {
namespace {

thread_local const LogSink::Callback* log_sink = nullptr;

std::atomic<LogLevel> g_level = LogLevel::kWarning;
std::atomic<bool> g_times = false;

// "2026-11-25T21:48:09.123+01:00 ", in local time.
std::string Time() {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm local = {};
  ::localtime_r(&seconds, &local);
  const long minutes = std::labs(local.tm_gmtoff) / 60;
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}{}{:02}:{:02} ", local.tm_year + 1900,
                     local.tm_mon + 1, local.tm_mday, local.tm_hour, local.tm_min, local.tm_sec, milliseconds,
                     local.tm_gmtoff < 0 ? '-' : '+', minutes / 60, minutes % 60);
}

bool HasColors() {
  static const bool has = [] {
    const char* const terminal = std::getenv("TERM");
    const char* const no_color = std::getenv("NO_COLOR");
    return ::isatty(STDERR_FILENO) != 0 && terminal != nullptr && std::string_view(terminal) != "dumb" &&
           (no_color == nullptr || *no_color == '\0');
  }();
  return has;
}

struct Level {
  std::string_view name;
  std::string_view color;
};

constexpr std::array<Level, 4> kLevels = {{{"debug", "\033[36m"},
                                           {"info", "\033[32m"},
                                           {"warning", "\033[33m\033[1m"},
                                           {"error", "\033[31m\033[1m"}}};

}  // namespace

bool SetLogLevel(std::string_view name) {
  if (name == "debug")
    SetLogLevel(LogLevel::kDebug);
  else if (name == "info")
    SetLogLevel(LogLevel::kInfo);
  else if (name == "warning")
    SetLogLevel(LogLevel::kWarning);
  else if (name == "error")
    SetLogLevel(LogLevel::kError);
  else if (name == "off")
    SetLogLevel(LogLevel::kOff);
  else
    return false;
  return true;
}

void SetLogTimes(bool on) { g_times = on; }

void SetLogLevel(LogLevel level) { g_level = level; }

void Log(LogLevel level, const std::string& message) {
  if (log_sink == nullptr) {
    if (level < g_level || level == LogLevel::kOff) return;
    const auto& [name, color] = kLevels[static_cast<size_t>(level)];
    const bool colored = HasColors();
    PrintError("{}{}{}{}: {}\n", g_times ? Time() : std::string(), colored ? color : "", name,
               colored ? "\033[m" : "", message);
  } else if (*log_sink) {
    (*log_sink)(level, message);
  }
}

LogSink::LogSink(const Callback& callback) : before_(log_sink) { log_sink = &callback; }

LogSink::~LogSink() { log_sink = before_; }

}  // namespace dsv4
