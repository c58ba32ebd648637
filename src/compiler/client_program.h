// The form in which clients keep compiled programs (JAX's persistent compilation cache, serialize_executable) and give them
// back to be loaded without compiling.
//
// It carries native code that workers will run, and comes from outside. So it is sealed with a secret of the servers that share
// a compile cache: what they did not make themselves, bit for bit, is refused.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compiler/compile_service.h"
#include "proto/landbridge/compile_cache.pb.h"

namespace landbridge {

constexpr uint32_t kClientProgramFormatVersion = 1;

// Thread-safety: const members from any thread.
class ClientProgramSeal {
 public:
  // `environment`: what programs depend on besides their text and options (CompileKey without those).
  ClientProgramSeal(std::string secret, CompileKey environment);

  // Not for programs that call their client's functions: UNIMPLEMENTED; the numbers of these mean nothing elsewhere.
  absl::StatusOr<std::string> Seal(const ExecutableInfo& info, absl::string_view envelope,
                                   const std::vector<int32_t>& device_ids) const;
  // INVALID_ARGUMENT, naming what is wrong, for anything truncated, corrupt, sealed by others, or compiled for another
  // environment.
  absl::StatusOr<ReturnedProgram> Open(absl::string_view bytes) const;

  // What is sealed under one name can be opened under the same. Short, hexadecimal; tells nothing of the secret.
  const std::string& name() const { return name_; }

 private:
  const std::string secret_, key_id_;
  const CompileKey environment_;
  std::string name_;
};

constexpr size_t kSealSecretBytes = 32;
// The secret that all who use `folder` share: the file `seal.key` in it, made if it is not there (mode 0600).
// FAILED_PRECONDITION saying why it cannot be used. Blocks for the disk.
absl::StatusOr<std::string> SharedSealSecret(const std::string& folder);
std::string RandomSealSecret();

}  // namespace landbridge
