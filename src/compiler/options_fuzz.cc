// Compile options of a client.
#include "compiler/options.h"

#include "base/limits.h"
#include "base/log.h"
#include "testing/fuzz.h"
#include "testing/fuzz_proto.h"

namespace landbridge::fuzz {

std::vector<std::string> FuzzSeeds() {
  xla::CompileOptionsProto options;
  auto* build = options.mutable_executable_build_options();
  build->set_num_replicas(2);
  build->set_num_partitions(3);
  build->set_use_shardy_partitioner(true);
  SetDeviceAssignment(options, 2, 3, {0, 1, 2, 3, 4, 5});
  xla::DebugOptionsProto debug;
  debug.set_xla_dump_to("/tmp");
  build->set_debug_options(debug.SerializeAsString());
  (*options.mutable_env_option_overrides())["xla_dump_to"].set_string_field("/tmp");
  return {"1" + options.SerializeAsString(), "1", std::string("0") + std::string(100, '\x03')};
}

void FuzzOne(absl::string_view input) {
  static const MessageMaker maker({"xla_dump_to", "x"});
  Choices choices(input);
  std::string bytes;
  if (choices.Flag()) {
    bytes = std::string(choices.Rest());
  } else {
    xla::CompileOptionsProto options;
    maker.Fill(choices, &options);
    bytes = options.SerializeAsString();
  }
  const absl::StatusOr<NormalizedOptions> options = NormalizeOptions(bytes);
  if (!options.ok()) {
    LB_CHECK(absl::IsInvalidArgument(options.status()));
    return;
  }
  LB_CHECK(options->num_devices() >= 1 && options->num_devices() <= limits::kCompileDevicesMax);
  // What is normalised stays as it is: it is the cache's key.
  const std::string once = SerializeDeterministic(options->proto);
  const absl::StatusOr<NormalizedOptions> again = NormalizeOptions(once);
  LB_CHECK(again.ok() && SerializeDeterministic(again->proto) == once);
  xla::DebugOptionsProto debug;
  LB_CHECK(debug.ParseFromString(options->proto.executable_build_options().debug_options()));
  LB_CHECK(debug.xla_dump_to().empty());
  LB_CHECK(options->proto.env_option_overrides().count("xla_dump_to") == 0);
}

}  // namespace landbridge::fuzz
