#pragma once

namespace landbridge {

// How the optimised HLO of a program is told: as a serialized xla.HloModuleProto, or as what XLA writes for it.
enum class OptimisedForm { kModule, kText };

}  // namespace landbridge
