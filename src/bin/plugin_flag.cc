#include "bin/plugin_flag.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "absl/strings/str_split.h"
#include "pjrt/plugin.h"

namespace landbridge {
namespace {

constexpr const char* kAskPython =
    "python3 -c 'import site, sys; print(\"\\n\".join(sys.path + site.getsitepackages()))' 2>/dev/null";

std::string Output(const char* command) {
  std::FILE* pipe = ::popen(command, "r");
  if (pipe == nullptr) return "";
  std::string out;
  char buffer[1024];
  for (size_t n; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) out.append(buffer, n);
  ::pclose(pipe);
  return out;
}

}  // namespace

std::vector<std::string> PluginOptions(const std::vector<std::string>& whole) {
  std::vector<std::string> options;
  for (const std::string& flag : whole) options.push_back(flag.substr(flag.find('=') + 1));
  return options;
}

absl::StatusOr<std::string> FindPlugin(const std::string& flag) {
  if (!flag.empty()) return flag;
  absl::StatusOr<std::string> found = pjrt::DefaultCpuPluginPath();
  if (found.ok() || std::getenv("LANDBRIDGE_PJRT_PLUGIN") != nullptr) return found;
  const std::vector<std::string> folders = absl::StrSplit(Output(kAskPython), '\n', absl::SkipWhitespace());
  return pjrt::DefaultCpuPluginPath(folders);
}

}  // namespace landbridge
