// Compiles programs in child processes, so that a plugin that aborts, loops or eats memory costs one compile.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "base/limits.h"
#include "base/time.h"
#include "compiler/compiler_limits.h"
#include "compiler/optimised_form.h"
#include "proto/landbridge/executable.pb.h"

namespace landbridge {

struct CompileRequest {
  absl::Cord program;           // StableHLO: text, or the bytes that the client sent
  std::string compile_options;  // serialized xla.CompileOptionsProto; any device assignment in it is replaced by 0..n-1
  // The devices belong to several processes: what comes out is a program of one device that each of them runs, with its
  // collectives as calls (ExecutableInfo.split). Costs a second compile. No effect on programs of one device.
  bool split = false;
  // Tests only: "abort", "loop", "allocate". INVALID_ARGUMENT unless CompileServiceOptions::enable_test_faults.
  std::string test_fault;
};

struct CompiledProgram {
  ExecutableInfo info;
  std::string envelope;         // sealed bytes for LoadEnvelope (compiler/load.h)
  std::string envelope_sha256;  // 32 bytes
  // When nothing but that was asked for:
  std::string optimised_program;  // in the form asked for
  std::string shardings;
};
// Shared by the cache and by all that hold it; immutable.
using CompileResult = absl::StatusOr<std::shared_ptr<const CompiledProgram>>;

// What a client gave back (compiler/client_program.h).
struct ReturnedProgram {
  std::shared_ptr<const CompiledProgram> program;
  std::vector<int32_t> device_ids;  // where it was loaded when it was sealed
};

struct CompileServiceOptions {
  std::string compiler_binary;  // empty: landbridge-compiler beside this process's own executable
  std::string plugin_path;
  // Of plugins other than the CPU's: "--plugin_option=NAME=VALUE", "--compile_topology=NAME", "--compile_target=TEXT"
  // (compile_devices.h: CompileTarget).
  std::vector<std::string> plugin_flags;
  // --ffi_library (custom_calls/ffi_library.h): custom-call targets of users; the workers need the same.
  std::string ffi_libraries;
  int child_count = 2;  // compiles at one time
  DurationNs time_limit = limits::kCompileTimeDefault;
  int64_t memory_limit_bytes = 0;  // RLIMIT_DATA of a child; 0: none
  size_t cache_bytes_max = limits::kCompileCacheBytesDefault;
  // Compiled programs are kept there too (compiler/disk_cache.h), and found there by whoever uses the folder next.
  // Empty: in memory only. A folder that cannot be used costs a log line.
  std::string disk_cache_folder;
  uint64_t disk_cache_bytes_max = limits::kDiskCacheBytesDefault;
  DurationNs negative_cache_time = limits::kCompileNegativeCacheTime;
  std::string log_dir;  // children write landbridge-compiler-N.log there; empty: share our standard error
  std::vector<std::string> environment;  // "NAME=value" added to ours, e.g. XLA_FLAGS of --xla_* flags
  bool enable_test_faults = false;
};

// Of programs that were not in memory. hits + misses + refused: those that were looked for.
struct DiskCacheStats {
  std::string folder;  // empty: there is none
  std::string off;     // why the folder is not used; empty: it is
  uint64_t hits = 0;
  uint64_t misses = 0;
  uint64_t refused = 0;  // there, but foreign, corrupt or truncated: compiled
  uint64_t writes = 0;
  uint64_t write_failures = 0;      // disk full, read-only, ...
  uint64_t writes_skipped = 0;      // too many waited
  uint64_t evictions = 0;           // deleted by this process to make room
  uint64_t bytes = 0, entries = 0;  // as last counted, and written by this process since
};

struct CompileServiceStats {
  uint64_t compiles = 0;    // sent to a child
  uint64_t cache_hits = 0;  // answered from memory, or joined to a compile under way
  DiskCacheStats disk;
  uint64_t failures = 0;      // the plugin refused
  uint64_t child_deaths = 0;  // crash, time limit, memory
  uint64_t cache_bytes = 0;
  uint64_t queued = 0;
  uint64_t running = 0;
};

// Thread-safety: all members from any thread.
class CompileService {
 public:
  // Starts one thread per child and pre-starts the children; FAILED_PRECONDITION if the binary or the plugin is
  // missing. Children that fail to start later fail the compiles that need them.
  static absl::StatusOr<std::unique_ptr<CompileService>> Start(CompileServiceOptions options);
  // Ends children at once; pending compiles end with FAILED_PRECONDITION, their callbacks run before this returns.
  ~CompileService();

  // `callback` runs exactly once: in this call for what is known at once (refused; of small programs: cached, or more than
  // kCompileQueueMax waiting: ABORTED), else on a service thread. What takes the longer the more bytes a program has
  // happens there, never in the call. It must not block for long. Equal requests under way are compiled once. Codes: INVALID_ARGUMENT for what the
  // plugin refuses and for a program that killed the compiler process, RESOURCE_EXHAUSTED for its memory limit,
  // ABORTED for its time limit, UNIMPLEMENTED for custom calls that nobody registered.
  void Compile(CompileRequest request, absl::AnyInvocable<void(CompileResult)> callback);

  // How the values that `request.program` marks would be divided (hlo/inspected_shardings.h), as the JSON of
  // CompileReply.shardings. Callback and errors as above; nothing is kept.
  void AskShardings(CompileRequest request, absl::AnyInvocable<void(absl::StatusOr<std::string>)> callback);

  // The optimised HLO of a program that was compiled; of one for devices of several
  // processes, what each device runs. It is not kept: a child reads it out of the envelope. Callback and errors as above.
  // `sha256`: of the envelope, 32 bytes.
  void FetchOptimisedProgram(std::shared_ptr<const std::string> envelope, std::string sha256, OptimisedForm form,
                             absl::AnyInvocable<void(absl::StatusOr<std::string>)> callback);

  // For clients that keep a compiled program and give it back, to be loaded without compiling: ClientProgramSeal::Seal and
  // Open, on a thread of their own. Callbacks as above, never in the call.
  void SealForClient(ExecutableInfo info, std::shared_ptr<const std::string> envelope, std::vector<int32_t> device_ids,
                     absl::AnyInvocable<void(absl::StatusOr<std::string>)> callback);
  void OpenFromClient(absl::Cord sealed, absl::AnyInvocable<void(absl::StatusOr<ReturnedProgram>)> callback);
  // ClientProgramSeal::name: clients' caches must not mix what has different ones.
  const std::string& seal_name() const;

  CompileServiceStats Stats() const;
  const std::string& plugin_sha256() const;

 private:
  class Impl;
  explicit CompileService(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace landbridge
