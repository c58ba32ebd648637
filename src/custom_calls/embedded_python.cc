#include "custom_calls/embedded_python.h"

#include <dlfcn.h>
#include <signal.h>

#include <atomic>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/log.h"
#include "base/status.h"

namespace landbridge {
namespace {

using HandlerMap = absl::flat_hash_map<std::string, void*>;

// What we call of CPython: its stable ABI, by name, so that any version's library will do and none is needed to build.
// Objects are opaque.
struct PythonApi {
  using Object = void;
  const char* (*Py_GetVersion)() = nullptr;
  wchar_t* (*Py_DecodeLocale)(const char*, size_t*) = nullptr;
  void (*Py_InitializeEx)(int) = nullptr;
  int (*Py_IsInitialized)() = nullptr;
  Object* (*PyEval_SaveThread)() = nullptr;
  Object* (*PyImport_AddModule)(const char*) = nullptr;
  Object* (*PyModule_GetDict)(Object*) = nullptr;
  Object* (*PyDict_GetItemString)(Object*, const char*) = nullptr;
  int (*PyDict_SetItemString)(Object*, const char*, Object*) = nullptr;
  int (*PyDict_Next)(Object*, std::ptrdiff_t*, Object**, Object**) = nullptr;
  Object* (*PyList_New)(std::ptrdiff_t) = nullptr;
  int (*PyList_Append)(Object*, Object*) = nullptr;
  Object* (*PyUnicode_DecodeFSDefault)(const char*) = nullptr;
  Object* (*PyUnicode_AsUTF8String)(Object*) = nullptr;
  char* (*PyBytes_AsString)(Object*) = nullptr;
  const char* (*PyCapsule_GetName)(Object*) = nullptr;
  void* (*PyCapsule_GetPointer)(Object*, const char*) = nullptr;
  Object* (*Py_CompileString)(const char*, const char*, int) = nullptr;
  Object* (*PyEval_EvalCode)(Object*, Object*, Object*) = nullptr;
  void (*PyErr_Clear)() = nullptr;
  // Before 3.14, with flags that are variables. Gone in later versions.
  void (*Py_SetProgramName)(const wchar_t*) = nullptr;
  // From 3.14.
  Object* (*PyInitConfig_Create)() = nullptr;
  int (*PyInitConfig_SetInt)(Object*, const char*, int64_t) = nullptr;
  int (*PyInitConfig_SetStr)(Object*, const char*, const char*) = nullptr;
  int (*PyInitConfig_GetError)(Object*, const char**) = nullptr;
  int (*Py_InitializeFromInitConfig)(Object*) = nullptr;
};

constexpr int kFileInput = 257;  // Py_file_input

// Runs with `landbridge_path` set. Leaves `landbridge_handlers` (name -> capsule), or `landbridge_error`.
constexpr char kTakeHandlers[] = R"(
def _take():
    import sys
    sys.path[:] = landbridge_path
    sys.stdout = sys.stderr
    from jaxlib.cpu import _lapack, _sparse
    _lapack.initialize()
    found = {}
    for module in (_lapack, _sparse):
        for name, value in module.registrations().items():
            found[name] = value["execute"] if isinstance(value, dict) else value
    return found
try:
    landbridge_handlers = _take()
except BaseException as error:
    landbridge_error = "%s: %s" % (type(error).__name__, error)
)";

class PythonLibrary {
 public:
  // FAILED_PRECONDITION: not this file; another may do.
  static absl::StatusOr<PythonLibrary> Open(const std::string& path, const std::string& version) {
    PythonLibrary library;
    library.handle_ = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);  // extension modules find its symbols there
    if (library.handle_ == nullptr) {
      const char* why = ::dlerror();
      return absl::FailedPreconditionError(absl::StrCat(path, " does not load: ", why == nullptr ? "" : why));
    }
    LB_RETURN_IF_ERROR(library.Resolve(path));
    // The same version finds the same standard library; Py_InitializeEx would end the process if it found none.
    const std::string built = library.api_.Py_GetVersion();
    if (built.substr(0, built.find(' ')) != version) {
      return absl::FailedPreconditionError(absl::StrCat(path, " is of version ", built, ", not ", version));
    }
    return library;
  }

  absl::Status Start(const std::string& executable) {
    if (api_.Py_IsInitialized()) return absl::FailedPreconditionError("another part of this process uses Python");
    if (api_.PyInitConfig_Create != nullptr) return StartByConfig(executable);
    wchar_t* name = api_.Py_DecodeLocale(executable.c_str(), nullptr);  // kept by Python
    if (name == nullptr) return absl::FailedPreconditionError("the interpreter's path cannot be decoded");
    for (const char* flag : {"Py_IsolatedFlag", "Py_IgnoreEnvironmentFlag", "Py_NoUserSiteDirectory", "Py_NoSiteFlag",
                             "Py_DontWriteBytecodeFlag"}) {
      if (auto* variable = static_cast<int*>(::dlsym(handle_, flag))) *variable = 1;
    }
    api_.Py_SetProgramName(name);
    api_.Py_InitializeEx(/*install_signal_handlers=*/0);
    return absl::OkStatus();
  }

  // Python is up, and this thread has the GIL; it is given back for good.
  absl::StatusOr<HandlerMap> TakeHandlers(const std::vector<std::string>& path) {
    absl::StatusOr<HandlerMap> handlers = RunTakeHandlers(path);
    api_.PyErr_Clear();
    api_.PyEval_SaveThread();
    return handlers;
  }

 private:
  absl::Status Resolve(const std::string& path) {
    const char* missing = nullptr;
    auto get = [&](auto& function, const char* name, bool optional = false) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(handle_, name));
      if (function == nullptr && !optional) missing = name;
    };
#define LB_PYTHON(name, ...) get(api_.name, #name, ##__VA_ARGS__)
    LB_PYTHON(Py_GetVersion);
    LB_PYTHON(Py_DecodeLocale);
    LB_PYTHON(Py_IsInitialized);
    LB_PYTHON(PyEval_SaveThread);
    LB_PYTHON(PyImport_AddModule);
    LB_PYTHON(PyModule_GetDict);
    LB_PYTHON(PyDict_GetItemString);
    LB_PYTHON(PyDict_SetItemString);
    LB_PYTHON(PyDict_Next);
    LB_PYTHON(PyList_New);
    LB_PYTHON(PyList_Append);
    LB_PYTHON(PyUnicode_DecodeFSDefault);
    LB_PYTHON(PyUnicode_AsUTF8String);
    LB_PYTHON(PyBytes_AsString);
    LB_PYTHON(PyCapsule_GetName);
    LB_PYTHON(PyCapsule_GetPointer);
    LB_PYTHON(Py_CompileString);
    LB_PYTHON(PyEval_EvalCode);
    LB_PYTHON(PyErr_Clear);
    LB_PYTHON(PyInitConfig_Create, true);
    const bool by_config = api_.PyInitConfig_Create != nullptr;
    LB_PYTHON(PyInitConfig_SetInt, !by_config);
    LB_PYTHON(PyInitConfig_SetStr, !by_config);
    LB_PYTHON(PyInitConfig_GetError, !by_config);
    LB_PYTHON(Py_InitializeFromInitConfig, !by_config);
    LB_PYTHON(Py_InitializeEx, by_config);
    LB_PYTHON(Py_SetProgramName, by_config);
#undef LB_PYTHON
    if (missing == nullptr) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(path, " has no ", missing));
  }

  absl::Status StartByConfig(const std::string& executable) {
    void* config = api_.PyInitConfig_Create();  // isolated: no environment, no signal handlers; leaked
    if (config == nullptr) return absl::FailedPreconditionError("no memory for Python's configuration");
    if (api_.PyInitConfig_SetStr(config, "program_name", executable.c_str()) == 0 &&
        api_.PyInitConfig_SetInt(config, "site_import", 0) == 0 &&
        api_.PyInitConfig_SetInt(config, "write_bytecode", 0) == 0 &&
        api_.PyInitConfig_SetInt(config, "install_signal_handlers", 0) == 0 &&
        api_.Py_InitializeFromInitConfig(config) == 0) {
      return absl::OkStatus();
    }
    const char* why = nullptr;
    api_.PyInitConfig_GetError(config, &why);
    return absl::FailedPreconditionError(absl::StrCat("Python does not start: ", why == nullptr ? "" : why));
  }

  absl::StatusOr<HandlerMap> RunTakeHandlers(const std::vector<std::string>& path) {
    const absl::Status failed = absl::FailedPreconditionError("Python could not be asked for jaxlib's handlers");
    void* globals = api_.PyModule_GetDict(api_.PyImport_AddModule("__main__"));
    void* folders = api_.PyList_New(0);
    if (globals == nullptr || folders == nullptr) return failed;
    for (const std::string& folder : path) {
      void* text = api_.PyUnicode_DecodeFSDefault(folder.c_str());
      if (text == nullptr || api_.PyList_Append(folders, text) != 0) return failed;
    }
    void* code = api_.Py_CompileString(kTakeHandlers, "<landbridge>", kFileInput);
    if (code == nullptr || api_.PyDict_SetItemString(globals, "landbridge_path", folders) != 0 ||
        api_.PyEval_EvalCode(code, globals, globals) == nullptr) {
      return failed;
    }
    if (void* error = api_.PyDict_GetItemString(globals, "landbridge_error")) {
      return absl::FailedPreconditionError(Text(error).value_or("jaxlib does not load"));
    }
    void* found = api_.PyDict_GetItemString(globals, "landbridge_handlers");
    if (found == nullptr) return failed;
    HandlerMap handlers;
    void *key = nullptr, *value = nullptr;
    for (std::ptrdiff_t at = 0; api_.PyDict_Next(found, &at, &key, &value) != 0;) {
      void* pointer = api_.PyCapsule_GetPointer(value, api_.PyCapsule_GetName(value));
      std::optional<std::string> name = Text(key);
      if (pointer != nullptr && name.has_value()) handlers[*std::move(name)] = pointer;
    }
    return handlers;
  }

  std::optional<std::string> Text(void* unicode) {
    void* bytes = api_.PyUnicode_AsUTF8String(unicode);
    const char* text = bytes == nullptr ? nullptr : api_.PyBytes_AsString(bytes);
    if (text == nullptr) return std::nullopt;
    return std::string(text);
  }

  void* handle_ = nullptr;
  PythonApi api_;
};

std::atomic<bool> python_started{false};

struct ThePython {
  absl::Mutex mutex;
  std::optional<absl::StatusOr<HandlerMap>> handlers ABSL_GUARDED_BY(mutex);  // once started
};

// Never destroyed: handlers are called until the process ends.
ThePython& Python() {
  static ThePython* const python = new ThePython();
  return *python;
}

absl::StatusOr<PythonLibrary> OpenPython(const PythonInstallation& python) {
  std::string tried;
  for (const std::string& path : python.libraries) {
    absl::StatusOr<PythonLibrary> library = PythonLibrary::Open(path, python.version);
    if (library.ok()) return library;
    absl::StrAppend(&tried, tried.empty() ? "" : "; ", library.status().message());
  }
  return absl::FailedPreconditionError(absl::StrCat("the library of ", python.executable, " cannot be used: ", tried));
}

// Sets `result` unless another try may end differently.
absl::Status StartPython(const PythonSearch& search, std::optional<absl::StatusOr<HandlerMap>>& result) {
  LB_ASSIGN_OR_RETURN(PythonInstallation python, FindPython(search));
  LB_ASSIGN_OR_RETURN(PythonLibrary library, OpenPython(python));
  // Whatever imports Python's module `signal` takes SIGINT where nobody has it.
  struct sigaction interrupt {};
  ::sigaction(SIGINT, nullptr, &interrupt);
  LB_RETURN_IF_ERROR(library.Start(python.executable));
  python_started = true;
  absl::StatusOr<HandlerMap> handlers = library.TakeHandlers(python.path);
  ::sigaction(SIGINT, &interrupt, nullptr);
  if (handlers.ok()) {
    LogInfo("took ", handlers->size(), " custom-call handlers out of the jaxlib of ", python.executable, " (Python ",
            python.version, ")");
    result = std::move(handlers);
  } else {
    result = absl::FailedPreconditionError(
        absl::StrCat("jaxlib of ", python.executable,
                     ", which has its handler, does not load: ", FilterForeignText(handlers.status().message()),
                     "; mend that installation (`pip install jaxlib scipy`) and start the worker again"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<void*> FindJaxlibHandler(absl::string_view target, const PythonSearch& search) {
  ThePython& python = Python();
  absl::MutexLock lock(&python.mutex);
  if (!python.handlers.has_value()) {
    absl::Status status = StartPython(search, python.handlers);
    if (!status.ok()) return absl::FailedPreconditionError(FilterForeignText(status.message()));
  }
  LB_RETURN_IF_ERROR(python.handlers->status());
  auto found = (*python.handlers)->find(target);
  if (found == (*python.handlers)->end()) {
    return absl::FailedPreconditionError("jaxlib on this worker does not have it: install a newer one");
  }
  return found->second;
}

bool PythonStarted() { return python_started; }

}  // namespace landbridge
