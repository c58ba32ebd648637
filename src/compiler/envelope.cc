#include "compiler/envelope.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/sha256.h"

namespace landbridge {
namespace {

constexpr uint64_t kMagic = 0x4558'4542'5244'4e4c;  // "LNDRBEXE"

// What compilers generate code for; the rest of the kernel's list describes the machine, not its instructions.
constexpr absl::string_view kInstructionSets[] = {
    "abm",    "adx",           "aes",       "amx",    "avx",     "bmi",   "clflushopt", "clwb",    "cx16",
    "f16c",   "fma",           "fsgsbase",  "gfni",   "lahf_lm", "movbe", "movdir",     "pclmul",  "popcnt",
    "rdrand", "rdseed",        "serialize", "sha_ni", "sse",     "ssse",  "vaes",       "vpclmul", "xop",
    "xsave",  "3dnowprefetch", "pni",       "fp",     "asimd",   "sve"};

struct CpuInfo {
  std::string model;
  std::string features;
};

CpuInfo ReadCpuInfo() {
  CpuInfo info;
  std::set<std::string> features;
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (parts.size() != 2) {
      if (!info.model.empty() && !features.empty()) break;  // the first processor speaks for all
      continue;
    }
    absl::string_view key = absl::StripAsciiWhitespace(parts[0]);
    absl::string_view value = absl::StripAsciiWhitespace(parts[1]);
    if (key == "model name") info.model = std::string(value);
    if (key == "flags" || key == "Features") {
      for (absl::string_view flag : absl::StrSplit(value, ' ', absl::SkipEmpty())) {
        for (absl::string_view set : kInstructionSets) {
          if (absl::StartsWith(flag, set)) features.insert(std::string(flag));
        }
      }
    }
  }
  info.features = absl::StrJoin(features, " ");
  return info;
}

absl::Status Refuse(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("a compiled program was refused: ", why));
}

std::string Short(absl::string_view hash) { return std::string(hash.substr(0, 12)); }

}  // namespace

HostIdentity HostIdentity::Current(absl::string_view plugin_sha256, absl::string_view platform) {
  static const CpuInfo* cpu = new CpuInfo(ReadCpuInfo());
  HostIdentity identity;
  identity.plugin_sha256 = std::string(plugin_sha256);
  identity.platform = std::string(platform);
  if (platform == "cpu") {
    identity.cpu_model = cpu->model;
    identity.cpu_features = cpu->features;
  }
  return identity;
}

std::string SealEnvelope(ExecutableBody body, const HostIdentity& identity) {
  body.set_format_version(kEnvelopeFormatVersion);
  body.set_plugin_sha256(identity.plugin_sha256);
  body.set_platform(identity.platform);
  body.set_cpu_model(identity.cpu_model);
  body.set_cpu_features(identity.cpu_features);
  ExecutableEnvelope envelope;
  envelope.set_magic(kMagic);
  envelope.set_format_version(kEnvelopeFormatVersion);
  envelope.set_body(body.SerializeAsString());
  body.Clear();
  envelope.set_body_sha256(Sha256Raw(envelope.body()));
  return envelope.SerializeAsString();
}

absl::StatusOr<ExecutableBody> OpenEnvelope(absl::string_view bytes, const HostIdentity& identity) {
  ExecutableEnvelope envelope;
  if (!envelope.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Refuse(absl::StrCat("its envelope of ", bytes.size(), " bytes is truncated or is none"));
  }
  if (envelope.magic() != kMagic) return Refuse("it is no envelope of Landbridge's");
  if (envelope.format_version() != kEnvelopeFormatVersion) {
    return Refuse(absl::StrCat("its envelope has format ", envelope.format_version(), ", this build reads ",
                               kEnvelopeFormatVersion, "; run the same version everywhere"));
  }
  if (Sha256Raw(envelope.body()) != envelope.body_sha256())
    return Refuse("its checksum does not match: the bytes are corrupt");
  ExecutableBody body;
  if (!body.ParseFromString(envelope.body())) return Refuse("its content does not parse");
  if (body.format_version() != kEnvelopeFormatVersion) {
    return Refuse(absl::StrCat("its content has format ", body.format_version()));
  }
  if (body.serialized().empty()) return Refuse("it holds no code");
  if (body.platform() != identity.platform) {
    return Refuse(absl::StrCat("it was compiled for platform '", body.platform(), "', this worker has '",
                               identity.platform, "'"));
  }
  if (body.plugin_sha256() != identity.plugin_sha256) {
    return Refuse(absl::StrCat("it was compiled with another build of the plugin (", Short(body.plugin_sha256()),
                               "..., this worker has ", Short(identity.plugin_sha256),
                               "...); install the same plugin on proxy and workers"));
  }
  absl::flat_hash_set<absl::string_view> have = absl::StrSplit(identity.cpu_features, ' ', absl::SkipEmpty());
  std::vector<absl::string_view> missing;
  for (absl::string_view feature : absl::StrSplit(body.cpu_features(), ' ', absl::SkipEmpty())) {
    if (!have.contains(feature)) missing.push_back(feature);
  }
  if (!missing.empty()) {
    return Refuse(absl::StrCat("it was compiled on '", body.cpu_model(), "' and may use instructions that this CPU ('",
                               identity.cpu_model, "') lacks: ", absl::StrJoin(missing, " "),
                               "; compile for the weakest CPU with --xla_cpu_max_isa"));
  }
  return body;
}

}  // namespace landbridge
