// Compile options as a client sends them, made fit for compiling away from its devices.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/xla/compile_options.pb.h"

namespace landbridge {

struct NormalizedOptions {
  xla::CompileOptionsProto proto;
  int num_replicas = 1;
  int num_partitions = 1;
  int num_devices() const { return num_replicas * num_partitions; }
};

// Replaces any device assignment by 0..n-1 (programs of one device become portable instead), unsets the device
// ordinal, and drops what names things of the client's machine (dump folders, process indices). INVALID_ARGUMENT
// for bytes that are no options, for more than kCompileDevicesMax devices, and for tupled arguments.
absl::StatusOr<NormalizedOptions> NormalizeOptions(absl::string_view client_options);

// The same bytes for equal options, map entries in order.
std::string SerializeDeterministic(const google::protobuf::MessageLite& message);

// For a compile of which only the optimised HLO is wanted, which is the same: spends no time on its code.
void MakeQuick(xla::CompileOptionsProto& options);

// Makes them fit for an optimised module of one device that a whole program was turned into: nothing but code is
// generated from it, and it loads on any device. `shapes`: of the module's parameters and result. The module's own layouts
// hold for its code whatever the options say, but the plugin believes the options about the buffers that it makes.
void MakeSingleDevice(xla::CompileOptionsProto& options, const xla::ProgramShapeProto& shapes);

// Puts `device_ids` (replica-major, then partition) into the options as their assignment.
void SetDeviceAssignment(xla::CompileOptionsProto& options, int num_replicas, int num_partitions,
                         absl::Span<const int> device_ids);

}  // namespace landbridge
