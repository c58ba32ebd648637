#include "compiler/load.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/collective_handler.h"
#include "compiler/errors.h"
#include "compiler/options.h"
#include "proto/xla/compile_options.pb.h"

namespace landbridge {

absl::StatusOr<ExecutableBody> OpenEnvelopeFor(const pjrt::Client& client, absl::string_view envelope) {
  return OpenEnvelope(envelope, HostIdentity::Current(client.plugin().sha256(), client.plugin().traits().platform));
}

absl::StatusOr<LoadedProgram> LoadEnvelope(pjrt::Client& client, absl::string_view envelope,
                                           absl::Span<const int> device_ordinals) {
  LB_ASSIGN_OR_RETURN(ExecutableBody body, OpenEnvelopeFor(client, envelope));
  return LoadBody(client, std::move(body), device_ordinals);
}

namespace {

// The plugin knows nothing of wrong ones, and hangs or dies of them.
absl::StatusOr<std::vector<int>> IdsInGroup(const pjrt::Client& client, const ExecutableInfo& info,
                                            absl::Span<const int> numbers) {
  const std::vector<int>& all = client.global_device_ids();
  if (numbers.size() != static_cast<size_t>(info.num_devices())) {
    return absl::InvalidArgumentError(absl::StrCat("program ", info.name(), " is for ", info.num_devices(),
                                                   " devices, but ", numbers.size(), " were named"));
  }
  std::vector<int> ids;
  absl::flat_hash_set<int> seen;
  for (int number : numbers) {
    if (number < 0 || static_cast<size_t>(number) >= all.size() || !seen.insert(number).second) {
      return absl::InvalidArgumentError(absl::StrCat("program ", info.name(), " cannot be loaded on device ", number,
                                                     " of a group that has ", all.size(), ", or not twice"));
    }
    ids.push_back(all[static_cast<size_t>(number)]);
  }
  return ids;
}

}  // namespace

absl::StatusOr<LoadedProgram> LoadBody(pjrt::Client& client, ExecutableBody body, absl::Span<const int> device_ordinals,
                                       absl::Span<const int> numbers_in_group) {
  LoadedProgram program;
  program.info = std::move(*body.mutable_info());
  const ExecutableInfo& info = program.info;
  absl::flat_hash_set<int> seen;
  for (int ordinal : device_ordinals) {
    if (ordinal < 0 || static_cast<size_t>(ordinal) >= client.devices().size()) {
      return absl::InvalidArgumentError(absl::StrCat("program ", info.name(), " cannot be loaded on device ", ordinal,
                                                     ": this worker has ", client.devices().size()));
    }
    if (!seen.insert(ordinal).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("program ", info.name(), " cannot be loaded twice on device ", ordinal));
    }
  }
  const size_t wanted = static_cast<size_t>(info.num_devices());
  if (!info.split() && (info.portable() ? device_ordinals.size() > 1 : device_ordinals.size() != wanted)) {
    return absl::InvalidArgumentError(absl::StrCat("program ", info.name(), " is for ", info.num_devices(),
                                                   " devices, but ", device_ordinals.size(), " were named"));
  }
  if (info.split() && !info.native()) {
    LB_ASSIGN_OR_RETURN(program.collectives, CollectiveProgram::Make(body.collectives()));
    if (program.collectives->num_devices() != info.num_devices()) {
      return absl::InvalidArgumentError(absl::StrCat("program ", info.name(), " came with collectives for ",
                                                     program.collectives->num_devices(), " devices instead of ",
                                                     info.num_devices()));
    }
    LB_RETURN_IF_ERROR(RegisterCollectives(client));
  }
  std::string options;
  if (!info.portable() && (!info.split() || info.native())) {
    xla::CompileOptionsProto proto;
    if (!proto.ParseFromString(body.compile_options()) ||
        static_cast<int64_t>(info.num_replicas()) * info.num_partitions() != info.num_devices()) {
      return absl::InvalidArgumentError(absl::StrCat("program ", info.name(), " came with unusable compile options"));
    }
    std::vector<int> ids;
    for (int ordinal : device_ordinals) ids.push_back(client.devices()[static_cast<size_t>(ordinal)].id);
    if (info.native()) {
      LB_ASSIGN_OR_RETURN(ids, IdsInGroup(client, info, numbers_in_group));
    }
    SetDeviceAssignment(proto, info.num_replicas(), info.num_partitions(), ids);
    options = proto.SerializeAsString();
  }
  auto executable = client.DeserializeAndLoad(body.serialized(), options);
  if (!executable.ok()) {
    return FromCompileError(executable.status(), absl::StrCat("loading program ", info.name()));
  }
  program.executable = *std::move(executable);
  if (program.executable->num_outputs() != static_cast<size_t>(info.outputs_size())) {
    return absl::InvalidArgumentError(absl::StrCat("program ", info.name(), " loaded with ",
                                                   program.executable->num_outputs(), " outputs instead of ",
                                                   info.outputs_size()));
  }
  return program;
}

}  // namespace landbridge
