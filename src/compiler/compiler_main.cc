// landbridge-compiler: one compiler process, started by the compile service (compile_service.h) with a socket as
// standard input and output. Not for people to start.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "compiler/compiler_child.h"
#include "pjrt/client_options.h"

int main(int argc, char** argv) {
  landbridge::CompilerChildOptions options;
  std::vector<std::string> plugin_options;
  int64_t parent = 0;
  for (int i = 1; i < argc; ++i) {
    absl::string_view flag = argv[i];
    bool known = true;
    if (absl::ConsumePrefix(&flag, "--pjrt_plugin=")) {
      options.plugin_path = std::string(flag);
    } else if (absl::ConsumePrefix(&flag, "--plugin_option=")) {
      plugin_options.emplace_back(flag);
    } else if (absl::ConsumePrefix(&flag, "--compile_topology=")) {
      options.target.topology = std::string(flag);
    } else if (absl::ConsumePrefix(&flag, "--compile_target=")) {
      options.target.target = std::string(flag);
    } else if (absl::ConsumePrefix(&flag, "--ffi_library=")) {
      options.ffi_libraries = std::string(flag);
    } else if (absl::ConsumePrefix(&flag, "--memory_limit_bytes=")) {
      known = absl::SimpleAtoi(flag, &options.memory_limit_bytes);
    } else if (absl::ConsumePrefix(&flag, "--parent_pid=")) {
      known = absl::SimpleAtoi(flag, &parent);
    } else if (flag == "--enable_test_faults") {
      options.enable_test_faults = true;
    } else {
      known = false;
    }
    if (!known) {
      std::fprintf(stderr, "landbridge-compiler: bad flag %s; it is started by landbridge-proxy, not by hand\n",
                   argv[i]);
      return 2;
    }
  }
  auto parsed = landbridge::pjrt::ParsePluginOptions(plugin_options);
  if (!parsed.ok()) {
    std::fprintf(stderr, "landbridge-compiler: %s\n", std::string(parsed.status().message()).c_str());
    return 2;
  }
  options.target.plugin_options = *std::move(parsed);
  // No orphans: end with the parent, which may have ended already.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (parent != 0 && ::getppid() != parent) return 0;
  landbridge::InitLog("compiler");

  // Frames get a descriptor of their own; what the plugin prints goes to standard error.
  int frames = ::fcntl(0, F_DUPFD_CLOEXEC, 3);
  int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (frames < 0 || null < 0 || ::dup2(null, 0) < 0 || ::dup2(2, 1) < 0) {
    std::fprintf(stderr, "landbridge-compiler: standard input is no socket\n");
    return 2;
  }
  int code = landbridge::RunCompilerChild(frames, options);
  std::fflush(nullptr);
  ::_exit(code);  // the plugin's threads may still run; nothing needs their destructors
}
