#include "custom_calls/python_query.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "custom_calls/custom_call_limits.h"
#include "custom_calls/python_process.h"

namespace landbridge {
namespace {

// One line "KEY value" each. Folders that are relative go first: with -c the current one is among them.
constexpr char kAskInterpreter[] = R"(
import sys
sys.path = [p for p in sys.path if p.startswith("/")]
import importlib.util, os, platform, sysconfig
var = lambda name: sysconfig.get_config_var(name) or ""
short = "%d.%d" % sys.version_info[:2]
print("VERSION", platform.python_version())
if platform.python_implementation() != "CPython":
    print("LACKS", platform.python_implementation() + " is not CPython")
for package in ("jaxlib", "scipy"):
    if importlib.util.find_spec(package) is None:
        print("LACKS", "it has no " + package)
names = [n for n in (var("INSTSONAME"), var("LDLIBRARY")) if ".so" in n]
names += ["libpython%s.so.1.0" % short, "libpython%s.so" % short]
folders = [var("LIBDIR"), os.path.join(sys.base_prefix, "lib"), os.path.join(var("LIBDIR"), var("MULTIARCH")),
           os.path.join("/usr/lib", var("MULTIARCH")), var("LIBPL")]
seen = []
for folder in folders:
    for name in names:
        path = os.path.join(folder, name)
        if folder and os.path.isfile(path) and path not in seen:
            seen.append(path)
            print("LIBRARY", path)
for path in sys.path:
    print("PATH", path)
print("END")
)";

}  // namespace

std::string EnvironmentOfPackage(absl::string_view file) {
  for (absl::string_view folder : {"/lib/python3.", "/lib64/python3."}) {
    const size_t at = file.rfind(folder);
    if (at == absl::string_view::npos) continue;
    absl::string_view rest = file.substr(at + folder.size());
    rest = rest.substr(std::min(rest.find('/'), rest.size()));
    if (absl::StartsWith(rest, "/site-packages/")) return std::string(file.substr(0, at));
  }
  return "";
}

std::vector<std::string> PythonCandidates(absl::string_view plugin_path) {
  std::vector<std::string> candidates;
  auto add_environment = [&](absl::string_view prefix) {
    if (!prefix.empty()) candidates.push_back(absl::StrCat(prefix, "/bin/python3"));
  };
  add_environment(EnvironmentOfPackage(plugin_path));
  if (const char* active = std::getenv("VIRTUAL_ENV")) add_environment(active);
  candidates.push_back("python3");
  return candidates;
}

absl::StatusOr<PythonInstallation> QueryPython(const std::string& interpreter) {
  LB_ASSIGN_OR_RETURN(const std::string answer, RunPython({interpreter, kAskInterpreter}, {}));
  PythonInstallation found;
  found.executable = interpreter;
  std::vector<std::string> lacks;
  bool complete = false;
  for (absl::string_view line : absl::StrSplit(answer, '\n')) {
    if (absl::ConsumePrefix(&line, "VERSION ")) {
      found.version = std::string(line);
    } else if (absl::ConsumePrefix(&line, "LACKS ")) {
      lacks.emplace_back(line);
    } else if (absl::ConsumePrefix(&line, "LIBRARY ")) {
      found.libraries.emplace_back(line);
    } else if (absl::ConsumePrefix(&line, "PATH ")) {
      found.path.emplace_back(line);
    } else if (line == "END") {
      complete = true;
    }
  }
  if (!complete || found.version.empty()) return absl::FailedPreconditionError("it is no Python");
  if (found.libraries.empty()) {
    const std::string name = absl::StrCat("libpython", found.version.substr(0, found.version.rfind('.')));
    lacks.push_back(absl::StrCat("its ", name, ".so is not installed; on Debian: apt-get install ", name));
  }
  if (!lacks.empty()) return absl::FailedPreconditionError(absl::StrJoin(lacks, ", "));
  return found;
}

std::vector<std::string> InterpretersOf(const PythonSearch& search) {
  if (!search.interpreter.empty()) return {search.interpreter};
  const char* named = std::getenv("LANDBRIDGE_PYTHON");
  if (named != nullptr && *named != '\0') return {named};
  return PythonCandidates(search.plugin_path);
}

absl::StatusOr<PythonInstallation> FindPython(const PythonSearch& search) {
  std::vector<std::string> tried;
  for (const std::string& candidate : InterpretersOf(search)) {
    absl::StatusOr<PythonInstallation> found = QueryPython(candidate);
    if (found.ok()) return found;
    tried.push_back(absl::StrCat(candidate, " (", FilterForeignText(found.status().message()), ")"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "its handler comes with jaxlib, which no Python of this worker's host has together with scipy and "
      "libpython: looked at ",
      absl::StrJoin(tried, ", "),
      "; run `pip install jaxlib scipy` there, or give landbridge-server --python=PATH (or LANDBRIDGE_PYTHON) "
      "with a Python that has them"));
}

}  // namespace landbridge
