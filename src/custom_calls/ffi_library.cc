#include "custom_calls/ffi_library.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "pjrt/ffi_handler.h"

namespace landbridge {
absl::StatusOr<FfiLibrary> FfiLibrary::Open(const FfiLibrarySpec& spec) {
  auto fail = [&](absl::string_view why) {
    return absl::FailedPreconditionError(
        absl::StrCat("the library ", spec.path, " of --ffi_library cannot be used: ", FilterForeignText(why)));
  };
  std::error_code error;
  if (!std::filesystem::is_regular_file(spec.path, error)) {
    return fail("there is no such file; install it at the same path on the proxy's host and on every worker's");
  }
  FfiLibrary library;
  library.spec_ = spec;
  // With a slash, so that no other file of that name is found elsewhere.
  const std::string path = std::filesystem::absolute(spec.path).string();
  library.handle_ = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library.handle_ == nullptr) {
    const char* why = ::dlerror();
    return fail(why == nullptr ? "the loader refused it" : why);
  }
  return library;
}

void* FfiLibrary::FindFunction(const std::string& symbol) const {
  void* found = ::dlsym(handle_, symbol.c_str());
  if (found == nullptr) return nullptr;
  link_map* ours = nullptr;
  if (::dlinfo(handle_, RTLD_DI_LINKMAP, &ours) != 0) return nullptr;
  Dl_info info{};
  void* owner = nullptr;
  if (::dladdr1(found, &info, &owner, RTLD_DL_LINKMAP) == 0 || owner != ours) return nullptr;
  void* entry = nullptr;
  if (::dladdr1(found, &info, &entry, RTLD_DL_SYMENT) == 0 || entry == nullptr) return nullptr;
  return ELF64_ST_TYPE(static_cast<const ElfW(Sym)*>(entry)->st_info) == STT_FUNC ? found : nullptr;
}

void* FfiLibrary::FindHandler(absl::string_view target) const {
  if (spec_.targets.empty()) return FindFunction(std::string(target));
  for (const auto& [name, symbol] : spec_.targets) {
    if (name == target) return FindFunction(symbol);
  }
  return nullptr;
}

absl::Status FfiLibrary::CheckListed() const {
  for (const auto& [target, symbol] : spec_.targets) {
    void* handler = FindFunction(symbol);
    if (handler == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the library ", spec_.path, " of --ffi_library exports no function '", symbol, "', named as the handler of '",
          target, "'; XLA_FFI_DEFINE_HANDLER_SYMBOL makes one with the name that it is given"));
    }
    absl::Status version = pjrt::CheckFfiVersion(reinterpret_cast<pjrt::XLA_FFI_Handler>(handler)).status();
    LB_RETURN_IF_ERROR(AddContext(version, absl::StrCat("'", symbol, "' of ", spec_.path)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<FfiLibrary>> OpenFfiLibraries(const std::vector<FfiLibrarySpec>& specs) {
  std::vector<FfiLibrary> libraries;
  for (const FfiLibrarySpec& spec : specs) {
    LB_ASSIGN_OR_RETURN(FfiLibrary library, FfiLibrary::Open(spec));
    LB_RETURN_IF_ERROR(library.CheckListed());
    libraries.push_back(std::move(library));
  }
  return libraries;
}

}  // namespace landbridge
