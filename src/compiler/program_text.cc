#include "compiler/program_text.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/limits.h"
#include "base/status.h"
#include "compiler/compiler_limits.h"
#include "custom_calls/python_process.h"
#include "custom_calls/python_query.h"

namespace landbridge {
namespace {

// Answers "TEXT", "LACKS" or "ERROR", a space, and what follows up to the end. It ends by itself when whoever asked is gone.
constexpr char kAskJaxlib[] = R"python(
import signal, sys
signal.alarm(%d)
sys.path = [p for p in sys.path if p.startswith("/")]
def answer():
    try:
        try:
            from jaxlib._hlo import HloModule
        except ImportError:  # before 0.10.2
            from jaxlib._jax import HloModule
    except ImportError as error:
        return "LACKS", f"it has no jaxlib that reads programs ({error})"
    try:
        return "TEXT", HloModule.from_serialized_hlo_module_proto(sys.stdin.buffer.read()).to_string()
    except Exception as error:
        return "ERROR", str(error)
sys.stdout.buffer.write(" ".join(answer()).encode())
)python";

}  // namespace

absl::StatusOr<std::string> ProgramText(absl::string_view module, const std::string& plugin_path) {
  std::vector<std::string> tried;
  for (const std::string& interpreter : InterpretersOf({.interpreter = "", .plugin_path = plugin_path})) {
    PythonProcess process;
    process.interpreter = interpreter;
    process.script = absl::StrFormat(kAskJaxlib, limits::kProgramTextTime / kSecond);
    process.time_limit = limits::kProgramTextTime;
    process.answer_bytes_max = limits::kProgramBytesMax;
    absl::StatusOr<std::string> answer = RunPython(process, module);
    absl::string_view rest = answer.ok() ? absl::string_view(*answer) : answer.status().message();
    if (answer.ok() && absl::ConsumePrefix(&rest, "TEXT ")) return std::string(rest);
    if (answer.ok() && absl::ConsumePrefix(&rest, "ERROR ")) {
      return absl::UnimplementedError(absl::StrCat(
          "jaxlib of ", interpreter, " on the proxy's host cannot read this program: ", FilterForeignText(rest),
          "; install the one of the plugin's release"));
    }
    absl::ConsumePrefix(&rest, "LACKS ");
    tried.push_back(absl::StrCat(interpreter, " (", FilterForeignText(rest), ")"));
  }
  return absl::UnimplementedError(absl::StrCat(
      "no Python of the proxy's host has jaxlib, which writes programs as text: looked at ", absl::StrJoin(tried, ", "),
      "; run `pip install jaxlib` there, set LANDBRIDGE_PYTHON, or `pip install landbridge` at the client"));
}

}  // namespace landbridge
