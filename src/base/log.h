// One log line: time, level, process name, text. Goes to standard error, which the launcher points at a file.
//
// Thread-safety: all functions may be called from any thread.
#pragma once

#include <string>
#include "absl/strings/string_view.h"

#include "absl/strings/str_cat.h"

namespace landbridge {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Names the process in each line; call once at start. Honours LANDBRIDGE_LOG_LEVEL=debug|info|warning|error.
void InitLog(absl::string_view process_name);
void SetLogLevel(LogLevel level);
bool LogEnabled(LogLevel level);
// Where the lines go, for messages: the path of the file, or "the standard error of NAME (pid N)".
std::string LogPlace();
void LogLine(LogLevel level, absl::string_view text);

template <typename... Args>
void LogInfo(const Args&... args) {
  if (LogEnabled(LogLevel::kInfo)) LogLine(LogLevel::kInfo, absl::StrCat(args...));
}
template <typename... Args>
void LogDebug(const Args&... args) {
  if (LogEnabled(LogLevel::kDebug)) LogLine(LogLevel::kDebug, absl::StrCat(args...));
}
template <typename... Args>
void LogWarning(const Args&... args) {
  if (LogEnabled(LogLevel::kWarning)) LogLine(LogLevel::kWarning, absl::StrCat(args...));
}
template <typename... Args>
void LogError(const Args&... args) {
  if (LogEnabled(LogLevel::kError)) LogLine(LogLevel::kError, absl::StrCat(args...));
}

}  // namespace landbridge

// An invariant of our own; never for what a peer sent. Kept in release builds.
#define LB_CHECK(cond)                                                 \
  do {                                                                 \
    if (!(cond)) ::landbridge::CheckFailed(#cond, __FILE__, __LINE__); \
  } while (false)

namespace landbridge {
[[noreturn]] void CheckFailed(const char* condition, const char* file, int line);
}
