#include "base/log.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "base/status.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace landbridge {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

spdlog::logger& Logger() {
  static spdlog::logger* logger = [] {
    auto* made = new spdlog::logger("landbridge", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%L%$ %n] %v");
    made->flush_on(spdlog::level::debug);
    return made;
  }();
  return *logger;
}

std::string& ProcessName() {
  static std::string* name = new std::string("this process");
  return *name;
}

}  // namespace

void InitLog(absl::string_view process_name) {
  ProcessName() = std::string(process_name);
  Logger().set_pattern("%Y-%m-%d %H:%M:%S.%e %L " + std::string(process_name) + "] %v");
  if (const char* level = std::getenv("LANDBRIDGE_LOG_LEVEL")) {
    absl::string_view text = level;
    if (text == "debug") SetLogLevel(LogLevel::kDebug);
    if (text == "info") SetLogLevel(LogLevel::kInfo);
    if (text == "warning") SetLogLevel(LogLevel::kWarning);
    if (text == "error") SetLogLevel(LogLevel::kError);
  }
}

void SetLogLevel(LogLevel level) { Logger().set_level(ToSpdlog(level)); }
bool LogEnabled(LogLevel level) { return Logger().should_log(ToSpdlog(level)); }
void LogLine(LogLevel level, absl::string_view text) {
  Logger().log(ToSpdlog(level), spdlog::string_view_t(text.data(), text.size()));
}

std::string LogPlace() {
  struct stat by_number, by_path;
  char path[PATH_MAX];
  const ssize_t size = ::readlink("/proc/self/fd/2", path, sizeof(path) - 1);
  if (size > 0 && ::fstat(STDERR_FILENO, &by_number) == 0 && S_ISREG(by_number.st_mode)) {
    path[size] = '\0';
    // A file that was removed or replaced since is no help to anybody; and texts for clients may not hold some words.
    const bool still_there = ::stat(path, &by_path) == 0 && by_path.st_ino == by_number.st_ino;
    if (still_there && FilterForeignText(path) == path) return path;
  }
  return absl::StrCat("the standard error of ", ProcessName(), " (pid ", ::getpid(), ")");
}

void CheckFailed(const char* condition, const char* file, int line) {
  LogLine(LogLevel::kError, absl::StrCat("broken invariant: ", condition, " at ", file, ":", line));
  std::abort();
}

}  // namespace landbridge
