// What clients say about scheduling: of a session (initialization data of its connection) and of a program (compile
// options of JAX, `jax.jit(f, compiler_options={"landbridge_priority": 2})`, which XLA must not see).
//
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "controller/controller.h"
#include "proto/ifrt_proxy/ifrt_service.pb.h"
#include "proto/xla/compile_options.pb.h"

namespace landbridge {

struct ProgramHints {
  std::optional<int32_t> priority;  // instead of the session's
  PipelinePhase phase = PHASE_NONE;
};

// "landbridge_weight" and "landbridge_priority". INVALID_ARGUMENT names the value and its range.
absl::StatusOr<SessionHints> ParseSessionHints(const xla::ifrt::AttributeMapProto& initialization_data);

// Takes every option that begins with "landbridge_" out of `options`. INVALID_ARGUMENT names what is wrong and what
// there is.
absl::StatusOr<ProgramHints> TakeProgramHints(xla::CompileOptionsProto* options);

}  // namespace landbridge
