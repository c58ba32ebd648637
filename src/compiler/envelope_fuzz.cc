// Sealed executables. A checksum stops nearly every mutation, so half of the inputs are sealed contents.
#include "compiler/envelope.h"

#include "base/log.h"
#include "base/sha256.h"
#include "testing/fuzz.h"

namespace landbridge::fuzz {
namespace {

HostIdentity Identity() {
  HostIdentity identity;
  identity.plugin_sha256 = std::string(64, 'a');
  identity.platform = "cpu";
  identity.cpu_model = "Some CPU";
  identity.cpu_features = "avx avx2";
  return identity;
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  ExecutableBody body;
  body.set_serialized("native code");
  body.mutable_info()->set_name("jit_f");
  const std::string sealed = SealEnvelope(body, Identity());
  ExecutableEnvelope envelope;
  LB_CHECK(envelope.ParseFromString(sealed));
  return {"0" + sealed, "1" + envelope.body(), "1", "0"};
}

void FuzzOne(absl::string_view input) {
  Choices choices(input);
  const bool seal = choices.Flag();
  std::string bytes(choices.Rest());
  if (seal) {
    ExecutableEnvelope envelope;
    const std::string model = FuzzSeeds()[0].substr(1);
    LB_CHECK(envelope.ParseFromString(model));
    envelope.set_body(bytes);
    envelope.set_body_sha256(Sha256Raw(bytes));
    bytes = envelope.SerializeAsString();
  }
  const absl::StatusOr<ExecutableBody> body = OpenEnvelope(bytes, Identity());
  if (!body.ok()) {
    LB_CHECK(absl::IsInvalidArgument(body.status()));
    return;
  }
  LB_CHECK(!body->serialized().empty() && body->platform() == "cpu" && body->plugin_sha256() == std::string(64, 'a'));
}

}  // namespace landbridge::fuzz
