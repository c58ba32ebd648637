#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "custom_calls/compiler_targets.h"
#include "custom_calls/embedded_python.h"
#include "custom_calls/ffi_library.h"
#include "custom_calls/handler_supply.h"
#include "custom_calls/jaxlib_targets.h"
#include "custom_calls/python_query.h"
#include "pjrt/client.h"
#include "pjrt/test_support.h"

// Leaks that are not ours, in this program alone: the interpreter is never ended, so what it and its modules hold at exit is
// theirs; the plugin keeps registrations for ever.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libpython3\nleak:_multiarray_umath\nleak:libcrypto\nleak:pjrt_c_api_cpu_plugin\n";
}

namespace landbridge {
namespace {

using pjrt::Value;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

const char* TestPython() {
  const char* named = std::getenv("LANDBRIDGE_PYTHON");
  return named == nullptr ? "python3" : named;
}

FfiLibrarySpec Handlers(std::vector<std::pair<std::string, std::string>> targets = {}) {
  return {LB_TEST_HANDLERS, std::move(targets)};
}

std::string MessageOf(const absl::Status& status) { return std::string(status.message()); }

pjrt::Client& TheClient() {
  static pjrt::Client* const client = [] {
    pjrt::PreparePluginEnvironment(1);
    auto plugin = Value(pjrt::Plugin::Load(pjrt::TestPluginPath()));
    return Value(plugin->CreateClient(pjrt::Plugin::CpuOptions(1))).release();
  }();
  return *client;
}

// Compiles `program` of one operand and one or more results, and runs it; the first result.
std::vector<float> ResultOf(const std::string& program, std::vector<float> values, const std::vector<int64_t>& dims) {
  pjrt::Client& client = TheClient();
  auto executable = Value(client.Compile(program, "mlir", pjrt::TestCompileOptions(1).SerializeAsString()));
  auto operand = Value(client.BufferFromHost(values.data(), DType::kF32, dims, {}, *client.devices()[0].default_memory,
                                             pjrt::HostSemantics::kOnlyDuringCall));
  static int32_t launches = 0;
  pjrt::Buffer* arguments[] = {&operand.buffer};
  auto launch = Value(executable->ExecuteOnDevice(client.devices()[0].handle, arguments, {.launch_id = ++launches}));
  pjrt::Buffer& result = launch.outputs[0];
  std::vector<float> read(Value(result.HostImageBytes()) / sizeof(float));
  absl::Status status = Value(result.CopyToHost(read.data(), read.size() * sizeof(float))).Await();
  EXPECT_TRUE(status.ok()) << status;
  return read;
}

std::string CallOf(const std::string& target) {
  return absl::StrCat(
      "module @m { func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> { %y = stablehlo.custom_call @", target,
      "(%x) {api_version = 4 : i32, backend_config = {}} : (tensor<4xf32>) -> tensor<4xf32> return %y : tensor<4xf32> "
      "} }");
}

TEST(JaxlibTargets, AreWhatJaxlibSays) {
  EXPECT_THAT(JaxlibTargets(), SizeIs(62));
  for (const char* target :
       {"lapack_spotrf_ffi", "lapack_zheevd_ffi", "lapack_dormqr_ffi", "cpu_csr_sparse_dense_ffi"}) {
    EXPECT_TRUE(IsJaxlibTarget(target)) << target;
  }
  for (const char* target : {"", "lapack_sheevd_ffi", "lapack_cormqr_ffi", "lapack_spotrf", "dce_sink"}) {
    EXPECT_FALSE(IsJaxlibTarget(target)) << target;
  }
}

TEST(PythonQuery, WhereAPackageLies) {
  EXPECT_EQ(EnvironmentOfPackage("/v/lib/python3.11/site-packages/p/x.so"), "/v");
  EXPECT_EQ(EnvironmentOfPackage("/v/lib64/python3.13/site-packages/p/x.so"), "/v");
  EXPECT_EQ(EnvironmentOfPackage("/lib/python3.1/v/lib/python3.12/site-packages/p/x.so"), "/lib/python3.1/v");
  EXPECT_EQ(EnvironmentOfPackage("/usr/lib/python3/dist-packages/p/x.so"), "");
  EXPECT_EQ(EnvironmentOfPackage("/opt/plugin.so"), "");
  EXPECT_EQ(PythonCandidates("/v/lib/python3.11/site-packages/p/x.so")[0], "/v/bin/python3");
  EXPECT_EQ(PythonCandidates("/opt/plugin.so").back(), "python3");
}

TEST(PythonQuery, SaysWhatIsMissing) {
  EXPECT_THAT(MessageOf(QueryPython("/no/such/python").status()), HasSubstr("no such program"));
  EXPECT_THAT(MessageOf(QueryPython("/bin/true").status()), HasSubstr("no Python"));
  EXPECT_THAT(MessageOf(QueryPython("/bin/false").status()), HasSubstr("failed"));
  const std::string old = absl::StrCat(testing::TempDir(), "/python-without-packages");
  std::ofstream(old) << "#!/bin/sh\necho VERSION 3.11.0; echo LACKS it has no jaxlib; echo END\n";
  ASSERT_EQ(::system(absl::StrCat("chmod +x ", old).c_str()), 0);
  EXPECT_THAT(MessageOf(QueryPython(old).status()), AllOf(HasSubstr("it has no jaxlib"), HasSubstr("libpython3.11.so"),
                                                          HasSubstr("apt-get install libpython3.11")));
  EXPECT_THAT(MessageOf(FindPython({old, ""}).status()), AllOf(HasSubstr(old), HasSubstr("--python=PATH")));
}

TEST(PythonQuery, FindsTheTestsOwn) {
  PythonInstallation found = Value(QueryPython(TestPython()));
  EXPECT_THAT(found.version, StartsWith("3."));
  EXPECT_THAT(found.libraries[0], HasSubstr("libpython3."));
  EXPECT_THAT(found.path, testing::Each(StartsWith("/")));
}

TEST(FfiLibrary, OnlyFunctionsOfItsOwn) {
  FfiLibrary library = Value(FfiLibrary::Open(Handlers()));
  EXPECT_NE(library.FindHandler("TestTriple"), nullptr);
  for (const char* symbol : {"system", "abort", "landbridge_test_number", "nothing", ""}) {
    EXPECT_EQ(library.FindHandler(symbol), nullptr) << symbol;
  }
  FfiLibrary listed = Value(FfiLibrary::Open(Handlers({{"triple", "TestTriple"}})));
  EXPECT_EQ(listed.FindHandler("triple"), library.FindHandler("TestTriple"));
  EXPECT_EQ(listed.FindHandler("TestTriple"), nullptr) << "only what is listed";
}

TEST(FfiLibrary, MistakesAreNamedAtStart) {
  const std::string text = absl::StrCat(testing::TempDir(), "/text.so");
  std::ofstream(text) << "hello";
  struct Mistake {
    FfiLibrarySpec spec;
    std::string part;
  };
  for (const Mistake& mistake : {Mistake{{"/no/such.so", {}}, "no such file"}, Mistake{{text, {}}, text},
                                 Mistake{Handlers({{"t", "Missing"}}), "'Missing'"},
                                 Mistake{Handlers({{"t", "landbridge_test_number"}}), "no function"},
                                 Mistake{Handlers({{"t", "TestOfOtherSize"}}), "expected 999"},
                                 Mistake{Handlers({{"t", "TestOfVersionNine"}}), "version 9.1"}}) {
    auto supply = HandlerSupply::Create(&TheClient(), {{mistake.spec}, ""});
    EXPECT_EQ(supply.status().code(), absl::StatusCode::kFailedPrecondition) << mistake.part;
    EXPECT_THAT(MessageOf(supply.status()), AllOf(HasSubstr(mistake.part), HasSubstr(mistake.spec.path)));
  }
}

TEST(HandlerSupply, LibrariesAndOurOwn) {
  auto supply = Value(HandlerSupply::Create(&TheClient(), {{Handlers({{"triple", "TestTriple"}}), Handlers()}, ""}));
  EXPECT_TRUE(supply->Ready({"triple", "nobody_has_it", "TopK"}));
  EXPECT_THAT(ResultOf(CallOf("triple"), {1, 2, 3, 4}, {4}), testing::ElementsAre(3, 6, 9, 12));
  EXPECT_FALSE(supply->Ready({"TestTriple"}));
  absl::Status status = supply->Supply({"TestTriple", kDceSinkTarget, "nobody_has_it"});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(supply->Ready({"TestTriple", kDceSinkTarget}));
  EXPECT_THAT(ResultOf(CallOf("TestTriple"), {1, 0, -1, 2}, {4}), testing::ElementsAre(3, 0, -3, 6));
  status = supply->Supply({"TestOfVersionNine"});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("'TestOfVersionNine'"), HasSubstr("9.1")));
}

TEST(HandlerSupply, JaxlibIsStartedAtTheFirstNeed) {
  EXPECT_FALSE(PythonStarted());
  auto without = Value(HandlerSupply::Create(&TheClient(), {{}, "/no/such/python"}));
  EXPECT_FALSE(without->Ready({"lapack_spotrf_ffi"}));
  absl::Status status = without->Supply({"lapack_spotrf_ffi"});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("'lapack_spotrf_ffi'"), HasSubstr("/no/such/python"),
                                       HasSubstr("pip install jaxlib scipy")));
  EXPECT_FALSE(PythonStarted());

  struct sigaction before[2], after[2];
  ::sigaction(SIGINT, nullptr, &before[0]);
  ::sigaction(SIGPIPE, nullptr, &before[1]);
  auto supply = Value(HandlerSupply::Create(&TheClient(), {{}, TestPython()}));
  EXPECT_FALSE(PythonStarted());
  status = supply->Supply({"lapack_spotrf_ffi", "cpu_csr_sparse_dense_ffi"});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(PythonStarted());
  ::sigaction(SIGINT, nullptr, &after[0]);
  ::sigaction(SIGPIPE, nullptr, &after[1]);
  EXPECT_EQ(before[0].sa_handler, after[0].sa_handler);
  EXPECT_EQ(before[1].sa_handler, after[1].sa_handler);

  for (const std::string& target : JaxlibTargets()) EXPECT_TRUE(FindJaxlibHandler(target, {}).ok()) << target;
  EXPECT_EQ(FindJaxlibHandler("lapack_sxxxx_ffi", {}).status().code(), absl::StatusCode::kFailedPrecondition);
  // [4 2; 2 10] = L L^T with L = [2 0; 1 3]; what lies above the diagonal stays as it was.
  const std::string cholesky =
      "module @m { func.func public @main(%x: tensor<2x2xf32>) -> tensor<2x2xf32> {"
      " %y:2 = stablehlo.custom_call @lapack_spotrf_ffi(%x) {backend_config = {uplo = 76 : ui8}, api_version = 4 "
      ": i32,"
      " operand_layouts = [dense<[0, 1]> : tensor<2xindex>],"
      " result_layouts = [dense<[0, 1]> : tensor<2xindex>, dense<> : tensor<0xindex>]}"
      " : (tensor<2x2xf32>) -> (tensor<2x2xf32>, tensor<i32>) return %y#0 : tensor<2x2xf32> } }";
  const std::vector<float> lower = ResultOf(cholesky, {4, 2, 2, 10}, {2, 2});
  EXPECT_FLOAT_EQ(lower[0], 2);
  EXPECT_FLOAT_EQ(lower[2], 1);
  EXPECT_FLOAT_EQ(lower[3], 3);
}

// Last in this process: its placeholders take the names that are left.
TEST(ZCompilerTargets, NamesAreEnough) {
  CompilerTargets targets = Value(CompilerTargets::Register(TheClient().plugin(), {Handlers()}));
  EXPECT_TRUE(TheClient().CheckCustomCall("lapack_zgees_ffi").ok());
  EXPECT_FALSE(Value(targets.Offer(TheClient().plugin(), "nobody_has_it")));
  EXPECT_FALSE(Value(targets.Offer(TheClient().plugin(), "system")));
  auto bad = targets.Offer(TheClient().plugin(), "TestOfVersionNine");
  EXPECT_EQ(bad.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(MessageOf(bad.status()), HasSubstr(LB_TEST_HANDLERS));
  EXPECT_TRUE(Value(targets.Offer(TheClient().plugin(), "TestTriple")));
  // A second time it must have been refused.
  EXPECT_EQ(targets.Offer(TheClient().plugin(), "TestTriple").status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace landbridge
