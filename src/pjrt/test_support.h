// For tests of this room and of those above it: finding a real plugin, and small programs for it.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "pjrt/plugin.h"
#include "proto/xla/compile_options.pb.h"

namespace landbridge::pjrt {

// The folders where Python packages of the test environment lie: of $LANDBRIDGE_PYTHON, else of python3.
inline std::vector<std::string> TestSitePackages() {
  const char* python = std::getenv("LANDBRIDGE_PYTHON");
  std::string command = absl::StrCat("'", python == nullptr ? "python3" : python,
                                     "' -c 'import sysconfig; print(sysconfig.get_paths()[\"platlib\"])'");
  std::vector<std::string> folders;
  if (FILE* pipe = ::popen(command.c_str(), "r")) {
    char line[4096];
    if (std::fgets(line, sizeof(line), pipe) != nullptr) folders.emplace_back(absl::StripAsciiWhitespace(line));
    ::pclose(pipe);
  }
  return folders;
}

// The plugin that tests run with. Ends the process with a clear text if there is none: such tests never pass by
// being skipped.
inline const std::string& TestPluginPath() {
  static const std::string* path = [] {
    auto found = DefaultCpuPluginPath(TestSitePackages());
    if (!found.ok()) {
      std::fprintf(stderr,
                   "These tests need a CPU PJRT plugin. Set LANDBRIDGE_PJRT_PLUGIN to its file, or LANDBRIDGE_PYTHON "
                   "to a Python that has one installed.\n%s\n",
                   found.status().ToString().c_str());
      std::exit(1);
    }
    return new std::string(*found);
  }();
  return *path;
}

// The other CPU plugin's file, or empty when it is not installed.
inline std::string TestSecondPluginPath() {
  for (const std::string& folder : TestSitePackages()) {
    for (const char* file : {"fastatomstruct_xla_cpu/libpjrt_cpu.so", "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so"}) {
      std::string path = absl::StrCat(folder, "/", file);
      if (path == TestPluginPath()) continue;
      if (FILE* f = std::fopen(path.c_str(), "r")) {
        std::fclose(f);
        return path;
      }
    }
  }
  return "";
}

// What it holds. Ends the process with the error, which is about `what`, if it holds one: a test cannot go on.
template <typename T>
T Value(absl::StatusOr<T> result, absl::string_view what = "no value") {
  if (!result.ok()) {
    ADD_FAILURE() << what << ": " << result.status();
    std::abort();
  }
  return *std::move(result);
}

// Options as JAX sends them: num_replicas 1, Shardy on.
inline xla::CompileOptionsProto TestCompileOptions(int num_partitions) {
  xla::CompileOptionsProto options;
  auto* build = options.mutable_executable_build_options();
  build->set_device_ordinal(-1);
  build->set_num_replicas(1);
  build->set_num_partitions(num_partitions);
  build->set_use_spmd_partitioning(true);
  build->set_use_shardy_partitioner(true);
  if (num_partitions == 1) {
    options.set_compile_portable_executable(true);
  } else {
    auto* assignment = build->mutable_device_assignment();
    assignment->set_replica_count(1);
    assignment->set_computation_count(num_partitions);
    for (int i = 0; i < num_partitions; ++i) assignment->add_computation_devices()->add_replica_device_ids(i);
  }
  return options;
}

inline constexpr char kAddProgram[] = R"(
module @jit_add attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<4xf32>, %arg1: tensor<4xf32>) -> (tensor<4xf32>) {
    %0 = stablehlo.add %arg0, %arg1 : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
})";

inline constexpr char kMatmulProgram[] = R"(
module @jit_matmul attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x3xf32>, %arg1: tensor<3x2xf32>) -> (tensor<2x2xf32>) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0] : (tensor<2x3xf32>, tensor<3x2xf32>) -> tensor<2x2xf32>
    return %0 : tensor<2x2xf32>
  }
})";

// Doubles 4,096 floats and gives its input away.
inline constexpr char kDonateProgram[] = R"(
module @jit_double attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<4096xf32> {tf.aliasing_output = 0 : i32}) -> (tensor<4096xf32>) {
    %cst = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<4096xf32>
    %1 = stablehlo.multiply %arg0, %0 : tensor<4096xf32>
    return %1 : tensor<4096xf32>
  }
})";

// psum over 4 devices of 2 floats each.
inline constexpr char kPsumProgram[] = R"(
module @jit_psum attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["d"=4]>
  func.func public @main(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}]>}) -> (tensor<2xf32>) {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"d"}]>] out_shardings=[<@mesh, [{}]>] manual_axes={"d"} (%arg1: tensor<2xf32>) {
      %1 = "stablehlo.all_reduce"(%arg1) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> ({
      ^bb0(%arg2: tensor<f32>, %arg3: tensor<f32>):
        %2 = stablehlo.add %arg2, %arg3 : tensor<f32>
        stablehlo.return %2 : tensor<f32>
      }) : (tensor<2xf32>) -> tensor<2xf32>
      sdy.return %1 : tensor<2xf32>
    } : (tensor<8xf32>) -> tensor<2xf32>
    return %0 : tensor<2xf32>
  }
})";

// Two results on 4 devices: one sharded, one a sum over all.
inline constexpr char kShardedProgram[] = R"(
module @jit_sharded attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["d"=4]>
  func.func public @main(%arg0: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}]>})
      -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}]>}, tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>}) {
    %cst = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<8xf32>
    %1 = stablehlo.multiply %arg0, %0 : tensor<8xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %2 = stablehlo.reduce(%arg0 init: %cst_0) applies stablehlo.add across dimensions = [0] : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
    return %1, %2 : tensor<8xf32>, tensor<f32>
  }
})";

// `target` on 2,048 floats, as jax.ffi lowers it; large enough not to run inside Execute.
inline std::string CustomCallProgram(absl::string_view target, int64_t duration_us) {
  return absl::StrReplaceAll(
      R"(
module @jit_call attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2048xf32>) -> (tensor<2048xf32>) {
    %0 = stablehlo.custom_call @TARGET(%arg0) {api_version = 4 : i32, backend_config = {duration_us = DURATION : i64}} : (tensor<2048xf32>) -> tensor<2048xf32>
    %1 = stablehlo.add %0, %0 : tensor<2048xf32>
    return %1 : tensor<2048xf32>
  }
})",
      {{"TARGET", target}, {"DURATION", absl::StrCat(duration_us)}});
}

// The same as jax 0.10 writes it for jax.ffi.ffi_call("landbridge_virtual_compute", ...)(x, duration_us=np.int64(1000)).
inline constexpr char kVirtualComputeFromJax[] = R"(
module @jit_vc attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2048xf32>) -> (tensor<2048xf32>) {
    %0 = stablehlo.custom_call @landbridge_virtual_compute(%arg0) {backend_config = "", mhlo.backend_config = {duration_us = 1000 : i64}, operand_layouts = [dense<0> : tensor<1xindex>], result_layouts = [dense<0> : tensor<1xindex>]} : (tensor<2048xf32>) -> tensor<2048xf32>
    return %0 : tensor<2048xf32>
  }
})";

}  // namespace landbridge::pjrt
