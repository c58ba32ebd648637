#include "custom_calls/jaxlib_targets.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace landbridge {
namespace {

std::vector<std::string> MakeTargets() {
  std::vector<std::string> targets = {"tridiagonal_solve_perturbed_ffi", "cpu_csr_sparse_dense_ffi"};
  auto add = [&](std::initializer_list<const char*> types, std::initializer_list<const char*> routines) {
    for (const char* type : types) {
      for (const char* routine : routines) targets.push_back(absl::StrCat("lapack_", type, routine, "_ffi"));
    }
  };
  add({"s", "d", "c", "z"},
      {"trsm", "getrf", "geqrf", "geqp3", "potrf", "gesdd", "gesvd", "geev", "gees", "gehrd", "gtsv"});
  add({"s", "d"}, {"orgqr", "ormqr", "syevd", "sytrd"});
  add({"c", "z"}, {"ungqr", "unmqr", "heevd", "hetrd"});
  std::sort(targets.begin(), targets.end());
  return targets;
}

}  // namespace

const std::vector<std::string>& JaxlibTargets() {
  static const auto* targets = new std::vector<std::string>(MakeTargets());
  return *targets;
}

bool IsJaxlibTarget(absl::string_view target) {
  return std::binary_search(JaxlibTargets().begin(), JaxlibTargets().end(), target);
}

}  // namespace landbridge
