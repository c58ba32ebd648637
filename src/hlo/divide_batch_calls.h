// Custom calls that work on each element of a batch alone: making XLA's partitioner divide them over the devices.
//
// The partitioner gathers every operand of a custom call that it does not know. jaxlib registers partitioners of its own
// for JAX's linear algebra, by C++ that a plugin does not have. Here the module is changed between the two passes that
// matter, after shardings were propagated and before the module is divided: such a call is put into a region where every
// device works on its part by hand ("manual", what shard_map makes), with the batch in the parts that the module's
// shardings already say.
//
// Thread-safety: pure functions.
#pragma once

#include "absl/strings/string_view.h"
#include "proto/xla/hlo.pb.h"

namespace landbridge::hlo {

// A call that says how many of its leading dimensions are a batch carries this among its front end's attributes: JAX's
// linear algebra, and calls of users by the convention of jax.ffi.register_ffi_target_as_batch_partitionable. The value
// is a decimal number.
inline constexpr absl::string_view kBatchDimsAttribute = "num_batch_dims";

// Changes every such call of `module` whose operands or results are divided along their batch over some of the
// `num_partitions` devices, and returns how many there were. Calls that cannot be divided so stay as they are, and
// remain right: without batch dimensions in common, with side effects, in a region that is manual over all devices, or with
// shardings that we do not understand. Batch dimensions that do not divide evenly stay whole.
int DivideBatchCalls(xla::HloModuleProto& module, int num_partitions);

// The same for calls of `target` that give nothing: each device is to call with the parts of the operands that it has. Changes
// every such call and returns how many there were. Those with shardings that we do not understand stay, as above; so do
// dimensions that do not divide evenly.
int DivideCallsByParts(xla::HloModuleProto& module, int num_partitions, absl::string_view target);

}  // namespace landbridge::hlo
