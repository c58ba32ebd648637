// Custom-call handlers in a process that runs programs: found and registered when the first program needs them.
//
//   a library of --ffi_library   what it lists, or every target that it exports under its own name
//   dce_sink                     ours, does nothing
//   jaxlib                       LAPACK, tridiagonal, sparse: taken out of jaxlib by a Python inside this process
//                                (embedded_python.h), so that results are those of plain JAX
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "custom_calls/ffi_library.h"
#include "pjrt/client.h"

namespace landbridge {

inline constexpr char kDceSinkTarget[] = "dce_sink";  // of jax.lax.dce_sink

struct HandlerSupplyOptions {
  std::vector<FfiLibrarySpec> libraries;
  std::string python;  // the interpreter that has jaxlib and scipy; empty: looked for (python_query.h)
};

// Thread-safety: all members from any thread.
class HandlerSupply {
 public:
  // Opens the libraries, registers what they list, and proves by compiles that the plugin took it. FAILED_PRECONDITION
  // names library and symbol. `client` must outlive this.
  static absl::StatusOr<std::unique_ptr<HandlerSupply>> Create(pjrt::Client* client, HandlerSupplyOptions options);

  // Whether Supply has nothing to do for them.
  bool Ready(const std::vector<std::string>& targets) const;

  // Before a program with these targets is loaded. Those that nobody here supplies are passed over: the plugin may
  // have them itself, or refuses by name. May block for seconds (Python's start): on a thread where that hurts nobody.
  // UNIMPLEMENTED names the target, what is missing on this host, and the cure; another try may succeed.
  absl::Status Supply(const std::vector<std::string>& targets);

 private:
  enum class Source { kNone, kLibrary, kOurs, kJaxlib };

  HandlerSupply(pjrt::Client* client, HandlerSupplyOptions options);
  Source SourceOf(absl::string_view target, void** handler) const;
  bool Has(absl::string_view target) const;
  absl::Status SupplyOne(const std::string& target);
  absl::Status Register(const std::string& target, void* handler);

  pjrt::Client* const client_;
  const HandlerSupplyOptions options_;
  std::vector<FfiLibrary> libraries_;  // set once
  mutable absl::Mutex mutex_;
  absl::flat_hash_set<std::string> registered_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace landbridge
