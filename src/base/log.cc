#include "base/log.h"

#include <cstdlib>
#include <memory>

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

}  // namespace

void InitLog(absl::string_view process_name) {
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

void CheckFailed(const char* condition, const char* file, int line) {
  LogLine(LogLevel::kError, absl::StrCat("broken invariant: ", condition, " at ", file, ":", line));
  std::abort();
}

}  // namespace landbridge
