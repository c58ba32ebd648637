// Which Python of this host has jaxlib and scipy, and where its library lies: by asking interpreters, in processes of
// their own.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace landbridge {

struct PythonSearch {
  std::string interpreter;  // --python; empty: $LANDBRIDGE_PYTHON, else PythonCandidates
  std::string plugin_path;
};

struct PythonInstallation {
  std::string executable;
  std::string version;                 // "3.11.7"
  std::vector<std::string> libraries;  // files that may be its libpython, best first
  std::vector<std::string> path;       // sys.path
};

// The environment that has the plugin's package, the active virtual environment, and python3 of PATH.
std::vector<std::string> PythonCandidates(absl::string_view plugin_path);

// "PREFIX" of PREFIX/lib/pythonX.Y/site-packages/...; empty if the path has no such form.
std::string EnvironmentOfPackage(absl::string_view file);

// What a search looks at, in this order.
std::vector<std::string> InterpretersOf(const PythonSearch& search);

// Runs `interpreter`. FAILED_PRECONDITION says what it lacks. Blocks for a fraction of a second.
absl::StatusOr<PythonInstallation> QueryPython(const std::string& interpreter);

// The first that has what is needed; the error tells of each that was asked.
absl::StatusOr<PythonInstallation> FindPython(const PythonSearch& search);

}  // namespace landbridge
