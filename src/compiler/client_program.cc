#include "compiler/client_program.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <random>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/hmac.h"
#include "base/sha256.h"
#include "base/status.h"
#include "compiler/cache_entry.h"
#include "compiler/options.h"
#include "compiler/private_folder.h"
#include "env/file.h"

namespace landbridge {
namespace {

constexpr uint64_t kClientProgramMagic = 0x3147'5250'4c43'424c;  // "LBCLPRG1"
constexpr char kSecretFile[] = "seal.key";
constexpr size_t kKeyIdBytes = 8, kNameBytes = 6;

absl::Status RefuseProgram(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("this serialized program cannot be loaded: ", why));
}

absl::StatusOr<std::string> ReadSecret(int folder) {
  const Fd file(::openat(folder, kSecretFile, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0) return SystemError(kSecretFile, errno);
  struct stat info;
  if (::fstat(file.get(), &info) != 0) return SystemError(kSecretFile, errno);
  std::string why = !S_ISREG(info.st_mode) ? "it is no regular file" : WhyNotOurs(info);
  if (why.empty() && (info.st_mode & (S_IRGRP | S_IROTH)) != 0) why = "others may read it";
  if (why.empty() && info.st_size != kSealSecretBytes) why = absl::StrCat("it has ", info.st_size, " bytes");
  if (!why.empty()) return absl::FailedPreconditionError(absl::StrCat(kSecretFile, ": ", why));
  LB_ASSIGN_OR_RETURN(std::string secret, ReadAll(file.get(), kSealSecretBytes));
  if (secret.size() != kSealSecretBytes) return absl::FailedPreconditionError("the file was cut while it was read");
  return secret;
}

}  // namespace

std::string RandomSealSecret() {
  std::random_device system;  // the kernel's
  std::string secret;
  while (secret.size() < kSealSecretBytes) {
    const auto word = system();
    secret.append(reinterpret_cast<const char*>(&word), sizeof(word));
  }
  secret.resize(kSealSecretBytes);
  return secret;
}

absl::StatusOr<std::string> SharedSealSecret(const std::string& folder) {
  LB_ASSIGN_OR_RETURN(const Fd place, OpenPrivateFolder(folder));
  struct stat info;
  if (::fstatat(place.get(), kSecretFile, &info, AT_SYMLINK_NOFOLLOW) == 0) return ReadSecret(place.get());
  const std::string temporary = TemporaryName();
  {
    const Fd file(::openat(place.get(), temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (file.get() < 0) return SystemError(absl::StrCat("cannot write to ", folder), errno);
    const bool written = WriteAll(file.get(), RandomSealSecret()) && ::fsync(file.get()) == 0;
    if (!written) {
      const int error = errno;
      ::unlinkat(place.get(), temporary.c_str(), 0);
      return SystemError(absl::StrCat("cannot write to ", folder), error);
    }
  }
  // Of several processes that come here at once, one makes it, and all read that.
  const bool linked = ::linkat(place.get(), temporary.c_str(), place.get(), kSecretFile, 0) == 0;
  const int error = errno;
  ::unlinkat(place.get(), temporary.c_str(), 0);
  if (!linked && error != EEXIST) return SystemError(absl::StrCat("cannot write to ", folder), error);
  return ReadSecret(place.get());
}

ClientProgramSeal::ClientProgramSeal(std::string secret, CompileKey environment)
    : secret_(std::move(secret)),
      key_id_(HmacSha256(secret_, "key id").substr(0, kKeyIdBytes)),
      environment_(std::move(environment)) {
  const std::string hash = HmacSha256(secret_, absl::StrCat("name", HashOf(environment_)));
  name_ = absl::BytesToHexString(hash.substr(0, kNameBytes));
}

absl::StatusOr<std::string> ClientProgramSeal::Seal(const ExecutableInfo& info, absl::string_view envelope,
                                                    const std::vector<int32_t>& device_ids) const {
  if (info.calls_host()) {
    return absl::UnimplementedError(
        absl::StrCat(info.name(), " calls Python functions of this process, so it cannot be serialized"));
  }
  ClientProgramBody body;
  *body.mutable_environment() = environment_;
  *body.mutable_info() = info;
  body.set_envelope(std::string(envelope));
  body.mutable_device_ids()->Add(device_ids.begin(), device_ids.end());
  ClientProgram program;
  program.set_magic(kClientProgramMagic);
  program.set_format_version(kClientProgramFormatVersion);
  program.set_key_id(key_id_);
  program.set_body(SerializeDeterministic(body));
  program.set_tag(HmacSha256(secret_, program.body()));
  return SerializeDeterministic(program);
}

absl::StatusOr<ReturnedProgram> ClientProgramSeal::Open(absl::string_view bytes) const {
  ClientProgram program;
  if (bytes.size() > INT32_MAX || !program.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return RefuseProgram(absl::StrCat("its ", bytes.size(), " bytes are truncated, or none of Landbridge's"));
  }
  if (program.magic() != kClientProgramMagic) return RefuseProgram("it is none of Landbridge's");
  if (program.format_version() != kClientProgramFormatVersion) {
    return RefuseProgram(
        absl::StrCat("it has format ", program.format_version(), ", this server reads ", kClientProgramFormatVersion));
  }
  if (program.key_id() != key_id_) {
    return RefuseProgram(
        "a server with another compile cache made it (or this one before it was started again without one)");
  }
  if (!EqualConstantTime(program.tag(), HmacSha256(secret_, program.body()))) {
    return RefuseProgram("its seal does not match: the bytes are corrupt");
  }
  ClientProgramBody body;
  if (!body.ParseFromString(program.body())) return RefuseProgram("its content does not parse");
  program.Clear();
  if (const std::string difference = Difference(body.environment(), environment_); !difference.empty()) {
    return RefuseProgram(absl::StrCat("it was compiled for ", difference));
  }
  auto compiled = std::make_shared<CompiledProgram>();
  compiled->info = std::move(*body.mutable_info());
  compiled->envelope = std::move(*body.mutable_envelope());
  compiled->envelope_sha256 = Sha256Raw(compiled->envelope);
  ReturnedProgram returned;
  returned.device_ids.assign(body.device_ids().begin(), body.device_ids().end());
  returned.program = std::move(compiled);
  return returned;
}

}  // namespace landbridge
