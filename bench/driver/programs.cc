#include "driver/programs.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "base/dtype.h"
#include "base/status.h"
#include "proto/xla/compile_options.pb.h"

namespace landbridge {
namespace {

constexpr const char* kScalar = "tensor<f32>";

std::string Module(const ProgramShape& shape) {
  const char* replicated = "{sdy.sharding = #sdy.sharding<@mesh, []>}";
  std::string text = absl::StrCat("module @driver attributes {mhlo.num_partitions = ", shape.devices,
                                  " : i32, mhlo.num_replicas = 1 : i32} {\n  sdy.mesh @mesh = <[\"d\"=", shape.devices,
                                  "]>\n  func.func public @main(");
  for (int i = 0; i < shape.parameters; ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", "%arg", i, ": ", kScalar, " ", replicated);
  }
  absl::StrAppend(&text, ") -> (");
  for (int i = 0; i < shape.outputs; ++i) absl::StrAppend(&text, i == 0 ? "" : ", ", kScalar, " ", replicated);
  absl::StrAppend(&text, ") {\n    %one = stablehlo.constant dense<1.000000e+00> : ", kScalar, "\n");
  std::string value = "%arg0";
  for (int i = 0; i < shape.adds; ++i) {
    absl::StrAppend(&text, "    %a", i, " = stablehlo.add ", value, ", %one : ", kScalar, "\n");
    value = absl::StrCat("%a", i);
  }
  if (shape.step_us > 0) {
    absl::StrAppend(&text, "    %v = stablehlo.custom_call @landbridge_virtual_compute(", value,
                    ") {api_version = 4 : i32, backend_config = {duration_us = ", shape.step_us,
                    " : i64}, mhlo.sharding = \"{replicated}\"} : (", kScalar, ") -> ", kScalar, "\n");
    value = "%v";
  }
  auto repeated = [&](const std::string& what) {
    return absl::StrJoin(std::vector<std::string>(static_cast<size_t>(shape.outputs), what), ", ");
  };
  absl::StrAppend(&text, "    return ", repeated(value), " : ", repeated(kScalar), "\n  }\n}\n");
  return text;
}

std::string Options(const ProgramShape& shape) {
  xla::CompileOptionsProto options;
  auto* build = options.mutable_executable_build_options();
  build->set_device_ordinal(-1);
  build->set_num_replicas(1);
  build->set_num_partitions(shape.devices);
  build->set_use_spmd_partitioning(true);
  build->set_use_shardy_partitioner(true);
  auto* assignment = build->mutable_device_assignment();
  assignment->set_replica_count(1);
  assignment->set_computation_count(shape.devices);
  for (int i = 0; i < shape.devices; ++i) assignment->add_computation_devices()->add_replica_device_ids(i);
  return options.SerializeAsString();
}

}  // namespace

std::shared_ptr<const ProgramImage> NullProgram(const ProgramShape& shape) {
  auto program = std::make_shared<ProgramImage>();
  program->envelope = std::make_shared<const std::string>("nothing: for workers that simulate");
  program->info.set_name("null");
  program->info.set_num_devices(shape.devices);
  program->info.set_num_partitions(shape.devices);
  program->info.set_num_replicas(1);
  program->info.set_split(shape.split);
  auto scalar = [](TensorInfo* info) {
    info->set_dtype(static_cast<int>(DType::kF32));
    info->set_device_bytes(sizeof(float));
    info->mutable_sharding()->set_type(xla::OpSharding::REPLICATED);
  };
  for (int i = 0; i < shape.parameters; ++i) scalar(program->info.add_parameters());
  for (int i = 0; i < shape.outputs; ++i) scalar(program->info.add_outputs());
  return program;
}

absl::StatusOr<std::shared_ptr<const ProgramImage>> CompileProgram(CompileService& compiler,
                                                                   const ProgramShape& shape) {
  CompileRequest request;
  request.program = Module(shape);
  request.compile_options = Options(shape);
  request.split = shape.split;
  CompileResult result;
  absl::Notification done;
  compiler.Compile(std::move(request), [&](CompileResult given) {
    result = std::move(given);
    done.Notify();
  });
  done.WaitForNotification();
  LB_RETURN_IF_ERROR(result.status());
  const std::shared_ptr<const CompiledProgram> compiled = *std::move(result);
  auto program = std::make_shared<ProgramImage>();
  program->envelope = std::shared_ptr<const std::string>(compiled, &compiled->envelope);
  program->sha256 = compiled->envelope_sha256;
  program->info = compiled->info;
  return program;
}

}  // namespace landbridge
