// Programs whose custom calls can be divided, along a batch or by the parts of their operands (hlo/divide_batch_calls.h): how their module is had between
// the plugin's passes, and how the changed one is compiled.
//
// No plugin gives modules out half way, but XLA writes them to a folder when it is asked to. So such a program is compiled
// twice: as it came, with a folder to write to; and as the module of the moment before the partitioner, changed.
//
// Thread-safety: pure functions, but for the folder.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compiler/dump_folder.h"
#include "compiler/options.h"
#include "proto/xla/hlo.pb.h"

namespace landbridge {

// Whether `program` (MLIR, text or bytes) can have such calls; a search for a word.
bool MayDivideBatches(absl::string_view program, const NormalizedOptions& options);

// Makes the plugin write its module into `folder` before it divides it.
void WriteModulesTo(const DumpFolder& folder, xla::CompileOptionsProto& options);

struct DividedProgram {
  std::string module;  // compile it as "hlo"
  xla::CompileOptionsProto options;
};

// The module of the moment between propagation and partitioner. FAILED_PRECONDITION when the plugin wrote none.
absl::StatusOr<xla::HloModuleProto> ReadPropagated(const DumpFolder& folder);

// What to compile instead of the program that was compiled with `options` and `folder`; nullopt: nothing in it can be
// divided. Errors: ReadPropagated's.
absl::StatusOr<std::optional<DividedProgram>> DivideBatches(const DumpFolder& folder, const NormalizedOptions& options);

}  // namespace landbridge
