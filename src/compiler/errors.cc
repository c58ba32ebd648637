#include "compiler/errors.h"

#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "pjrt/host_calls.h"
#include "pjrt/virtual_compute.h"

namespace landbridge {

namespace {

// As a whole word: programs hold other names, too.
bool Names(absl::string_view program, absl::string_view name) {
  auto in_name = [](char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (size_t at = program.find(name); at != absl::string_view::npos; at = program.find(name, at + 1)) {
    const size_t end = at + name.size();
    if ((at > 0 && in_name(program[at - 1])) || (end < program.size() && in_name(program[end]))) continue;
    return true;
  }
  return false;
}

}  // namespace

absl::Status CheckCallsOfTheClient(absl::string_view program) {
  constexpr std::pair<absl::string_view, absl::string_view> kRefused[] = {
      {"CustomSPMDPartitioning",
       "write the function with jax.shard_map instead of custom_partitioning, or pip install landbridge"},
      {"InspectSharding",
       "look at the sharding of a result (x.sharding) instead of inspect_array_sharding, or pip install landbridge"},
  };
  for (const auto& [name, advice] : kRefused) {
    if (!Names(program, name)) continue;
    return absl::UnimplementedError(absl::StrCat("the program calls the custom-call target '", name,
                                                 "', which is Python code of the client's process; ", advice));
  }
  return absl::OkStatus();
}

absl::Status CheckHostHandlers(absl::string_view program, absl::string_view platform) {
  auto refuse = [&](absl::string_view what, absl::string_view advice) {
    return absl::UnimplementedError(absl::StrCat("the program calls ", what, ", which workers of platform ", platform,
                                                 " do not have yet; ", advice));
  };
  for (absl::string_view name :
       {pjrt::kHostCallTarget, pjrt::kBufferHostCallTarget, pjrt::kPartitionedHostCallTarget,
        "xla_ffi_python_gpu_callback", "xla_buffer_python_gpu_callback", "xla_ffi_partitioned_python_gpu_callback"}) {
    if (!Names(program, name)) continue;
    return refuse(absl::StrCat("Python of the client (a callback such as pure_callback or debug.print: '", name, "')"),
                  "return the values and use them outside of jax.jit");
  }
  if (Names(program, pjrt::kVirtualComputeTarget)) return refuse("virtual compute", "it is for CPU workers");
  return absl::OkStatus();
}

std::string MissingHandlerOf(const absl::Status& status) {
  constexpr absl::string_view kMarks[] = {"No FFI handler registered for ",
                                          "No registered implementation for custom call to "};
  for (absl::string_view mark : kMarks) {
    size_t at = status.message().find(mark);
    if (at == absl::string_view::npos) continue;
    absl::string_view rest = status.message().substr(at + mark.size());
    rest = rest.substr(0, rest.find_first_of(" \n,;"));
    while (!rest.empty() && (rest.front() == '"' || rest.front() == '\'')) rest.remove_prefix(1);
    while (!rest.empty() && (rest.back() == '"' || rest.back() == '\'' || rest.back() == '.')) rest.remove_suffix(1);
    return std::string(rest);
  }
  return "";
}

absl::Status FromCompileError(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  if (const std::string target = MissingHandlerOf(status); !target.empty()) {
    return absl::UnimplementedError(
        absl::StrCat(context, ": the program calls the custom-call target '", FilterForeignText(target),
                     "', which has no handler on these workers; start the cluster with the library that has it "
                     "(--ffi_library), or use operations without it"));
  }
  if (status.message().size() > limits::kCompileErrorBytesMax) {
    // The plugin quotes whole programs at times.
    return FromPluginError(
        absl::Status(status.code(),
                     absl::StrCat(status.message().substr(0, limits::kCompileErrorBytesMax), " ... (cut)")),
        context);
  }
  return FromPluginError(status, context);
}

}  // namespace landbridge
