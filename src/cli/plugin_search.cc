#include "cli/plugin_search.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "cli/process.h"

namespace landbridge::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kPythonTimeout{20'000};

// Prints the plugin's path, or nothing. find_spec does not import the package.
constexpr char kAskPython[] =
    "import importlib.util as u, os\n"
    "for package, file in (('lammps_jax_pjrt_cpu', 'pjrt_c_api_cpu_plugin.so'),\n"
    "                      ('fastatomstruct_xla_cpu', 'libpjrt_cpu.so')):\n"
    "  spec = u.find_spec(package)\n"
    "  path = spec and os.path.join(list(spec.submodule_search_locations)[0], file)\n"
    "  if path and os.path.exists(path): print('PLUGIN', os.path.realpath(path)); break\n";

std::string EnvironmentOr(const char* name, const char* fallback) {
  const char* value = getenv(name);
  return value != nullptr ? value : fallback;
}

}  // namespace

absl::Status CheckPluginFile(const std::string& path) {
  constexpr char kCure[] = "give --pjrt_plugin (or LANDBRIDGE_PJRT_PLUGIN) the path of a PJRT plugin, a file *.so";
  std::error_code error;
  if (!fs::exists(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat("PJRT plugin ", path, " does not exist; ", kCure));
  }
  if (!fs::is_regular_file(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat("PJRT plugin ", path, " is not a file; ", kCure));
  }
  std::ifstream in(path, std::ios::binary);
  char magic[4] = {};
  if (!in.read(magic, sizeof magic) || std::string(magic, sizeof magic) !=
                                           "\x7f"
                                           "ELF") {
    return absl::InvalidArgumentError(absl::StrCat("PJRT plugin ", path, " is not a shared object; ", kCure));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> FindPlugin(const std::string& flag, const std::string& checkout) {
  std::string chosen = flag.empty() ? EnvironmentOr("LANDBRIDGE_PJRT_PLUGIN", "") : flag;
  if (!chosen.empty()) {
    LB_RETURN_IF_ERROR(CheckPluginFile(chosen));
    return fs::absolute(chosen).string();  // the servers may run in another folder
  }
  std::vector<std::string> pythons;
  const std::string active = EnvironmentOr("VIRTUAL_ENV", "");
  if (!active.empty()) pythons.push_back(absl::StrCat(active, "/bin/python"));
  if (!checkout.empty()) pythons.push_back(absl::StrCat(checkout, "/.venv/bin/python"));
  pythons.push_back("python3");
  std::vector<std::string> asked;
  for (const std::string& python : pythons) {
    if (python.find('/') != std::string::npos && access(python.c_str(), X_OK) != 0) continue;
    asked.push_back(python);
    absl::StatusOr<std::string> answer = CaptureOutput({python, "-c", kAskPython}, kPythonTimeout);
    if (!answer.ok()) continue;
    const size_t start = answer->find("PLUGIN ");
    if (start == std::string::npos) continue;
    std::string path(absl::StripAsciiWhitespace(answer->substr(start + 7)));
    LB_RETURN_IF_ERROR(CheckPluginFile(path));
    return path;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("no PJRT plugin was found. Looked at --pjrt_plugin, LANDBRIDGE_PJRT_PLUGIN and the Python package "
                   "lammps_jax_pjrt_cpu of ",
                   asked.empty() ? "no Python (none is there)" : absl::StrJoin(asked, ", "),
                   ". Run `make build`, or `pip install lammps-jax-pjrt-cpu` there, or name a plugin's path"));
}

}  // namespace landbridge::cli
