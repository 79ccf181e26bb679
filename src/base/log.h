// Log messages, which go to standard error (base/error_output.h). Libraries log; only apps print.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dsv4 {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError, kOff };

// "debug", "info", "warning", "error", "off"; false when the name is unknown (nothing changes then).
bool SetLogLevel(std::string_view name);
void SetLogLevel(LogLevel level);
void Log(LogLevel level, const std::string& message);

inline void LogDebug(const std::string& message) { Log(LogLevel::kDebug, message); }
inline void LogInfo(const std::string& message) { Log(LogLevel::kInfo, message); }
inline void LogWarning(const std::string& message) { Log(LogLevel::kWarning, message); }
inline void LogError(const std::string& message) { Log(LogLevel::kError, message); }

}  // namespace dsv4
