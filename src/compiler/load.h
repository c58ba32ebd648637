// Loading a sealed program on devices of this process.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "collectives/collective_program.h"
#include "compiler/envelope.h"
#include "pjrt/client.h"
#include "proto/landbridge/executable.pb.h"

namespace landbridge {

struct LoadedProgram {
  ExecutableInfo info;
  // Of split programs, else null. A launch of one needs a CollectiveRegistration.
  std::shared_ptr<const CollectiveProgram> collectives;
  std::unique_ptr<pjrt::LoadedExecutable> executable;
};

// Opens an envelope for this host: OpenEnvelope of envelope.h, with this client's identity.
absl::StatusOr<ExecutableBody> OpenEnvelopeFor(const pjrt::Client& client, absl::string_view envelope);

// `device_ordinals`: index into client.devices() for each logical device (replica-major, then partition), all
// different; any order. Portable programs take none or one, split programs any (they are
// not used: name the device at each launch).
// `numbers_in_group`: of native programs, for each logical device its number among those of all processes whose clients are one
// (Client::global_device_ids).
// Wrong counts, duplicates and unknown ordinals are refused here (INVALID_ARGUMENT): the plugin aborts on them.
// Safe to call from several threads. Handlers of custom calls must be registered before (custom_calls/handler_supply.h);
// missing ones: UNIMPLEMENTED naming the target.
absl::StatusOr<LoadedProgram> LoadBody(pjrt::Client& client, ExecutableBody body, absl::Span<const int> device_ordinals,
                                       absl::Span<const int> numbers_in_group = {});
// Both.
absl::StatusOr<LoadedProgram> LoadEnvelope(pjrt::Client& client, absl::string_view envelope,
                                           absl::Span<const int> device_ordinals);

}  // namespace landbridge
