// Programs that clients give back. The seal stops every mutation, so half of the inputs are sealed contents.
#include "compiler/client_program.h"

#include "base/hmac.h"
#include "base/log.h"
#include "testing/fuzz.h"

namespace landbridge::fuzz {
namespace {

const std::string kSecret(kSealSecretBytes, 's');

CompileKey Environment() {
  CompileKey key;
  key.set_plugin_sha256(std::string(64, 'a'));
  key.set_cpu_features("avx avx2");
  return key;
}

std::string Sealed() {
  ExecutableInfo info;
  info.set_name("jit_f");
  return *ClientProgramSeal(kSecret, Environment()).Seal(info, "an envelope", {0, 1});
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  ClientProgram program;
  LB_CHECK(program.ParseFromString(Sealed()));
  return {"0" + Sealed(), "1" + program.body(), "1", "0"};
}

void FuzzOne(absl::string_view input) {
  Choices choices(input);
  const bool seal = choices.Flag();
  std::string bytes(choices.Rest());
  const std::string ours = Sealed();
  if (seal) {
    ClientProgram program;
    LB_CHECK(program.ParseFromString(ours));
    program.set_body(bytes);
    program.set_tag(HmacSha256(kSecret, bytes));
    bytes = program.SerializeAsString();
  }
  const absl::StatusOr<ReturnedProgram> opened = ClientProgramSeal(kSecret, Environment()).Open(bytes);
  if (!opened.ok()) {
    LB_CHECK(absl::IsInvalidArgument(opened.status()));
  } else if (!seal) {
    LB_CHECK(opened->program->envelope == "an envelope");
  }
}

}  // namespace landbridge::fuzz
