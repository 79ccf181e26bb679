#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "base/log_sink.h"
#include "base/log_times.h"

namespace dsv4 {
namespace {

thread_local const LogSink::Callback* log_sink = nullptr;

spdlog::logger& Logger() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto created =
        std::make_shared<spdlog::logger>("dsv4", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    created->set_pattern("%^%l%$: %v");
    created->set_level(spdlog::level::warn);
    return created;
  }();
  return *logger;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}

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

void SetLogTimes(bool on) { Logger().set_pattern(on ? "%Y-%m-%dT%H:%M:%S.%e%z %^%l%$: %v" : "%^%l%$: %v"); }

void SetLogLevel(LogLevel level) { Logger().set_level(ToSpdlog(level)); }

void Log(LogLevel level, const std::string& message) {
  if (log_sink == nullptr) {
    Logger().log(ToSpdlog(level), message);
  } else if (*log_sink) {
    (*log_sink)(level, message);
  }
}

LogSink::LogSink(const Callback& callback) : before_(log_sink) { log_sink = &callback; }

LogSink::~LogSink() { log_sink = before_; }

}  // namespace dsv4
