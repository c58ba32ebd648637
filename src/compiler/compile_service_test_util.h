// A compile service with one child, and a client of the plugin that runs what it compiled.
#ifndef LANDBRIDGE_COMPILER_COMPILE_SERVICE_TEST_UTIL_H_
#define LANDBRIDGE_COMPILER_COMPILE_SERVICE_TEST_UTIL_H_

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "compiler/compile_service.h"
#include "gtest/gtest.h"
#include "pjrt/client.h"
#include "pjrt/test_support.h"

namespace landbridge {

// The build puts binaries into bin/, three levels up from test binaries' own folder at most.
inline std::string CompilerBinary() {
  if (const char* named = ::getenv("LANDBRIDGE_COMPILER")) return named;
  char path[4096];
  ssize_t n = ::readlink("/proc/self/exe", path, sizeof(path));
  std::string folder(path, static_cast<size_t>(n > 0 ? n : 0));
  for (int i = 0; i < 4 && !folder.empty(); ++i) {
    folder = folder.substr(0, folder.rfind('/'));
    std::string candidate = folder + "/bin/landbridge-compiler";
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return "landbridge-compiler";
}

inline CompileServiceOptions ServiceOptions() {
  CompileServiceOptions options;
  options.compiler_binary = CompilerBinary();
  options.plugin_path = pjrt::TestPluginPath();
  options.child_count = 1;
  options.enable_test_faults = true;
  options.log_dir = testing::TempDir();
  return options;
}

inline CompileRequest Request(absl::string_view program, int partitions = 1) {
  CompileRequest request;
  request.program = std::string(program);
  request.compile_options = pjrt::TestCompileOptions(partitions).SerializeAsString();
  return request;
}

inline CompileResult CompileNow(CompileService& service, CompileRequest request) {
  std::promise<CompileResult> promise;
  service.Compile(std::move(request), [&](CompileResult result) { promise.set_value(std::move(result)); });
  return promise.get_future().get();
}

class CompileServiceTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    pjrt::PreparePluginEnvironment(4);
    auto plugin = pjrt::Value(pjrt::Plugin::Load(pjrt::TestPluginPath()));
    client_ = pjrt::Value(plugin->CreateClient(pjrt::Plugin::CpuOptions(4))).release();
    service_ = pjrt::Value(CompileService::Start(ServiceOptions())).release();
  }
  static void TearDownTestSuite() {
    delete service_;
    service_ = nullptr;
  }

  static pjrt::Buffer Upload(const std::vector<float>& values, size_t device) {
    auto result = pjrt::Value(client_->BufferFromHost(values.data(), DType::kF32, {static_cast<int64_t>(values.size())},
                                                      {}, *client_->devices()[device].default_memory,
                                                      pjrt::HostSemantics::kOnlyDuringCall));
    return std::move(result.buffer);
  }
  static std::vector<float> Download(const pjrt::Buffer& buffer) {
    std::vector<float> values(pjrt::Value(buffer.HostImageBytes()) / sizeof(float));
    absl::Status status = pjrt::Value(buffer.CopyToHost(values.data(), values.size() * sizeof(float))).Await();
    EXPECT_TRUE(status.ok()) << status;
    return values;
  }
  static int32_t NextLaunch() {
    static std::atomic<int32_t> next{1};
    return next++;
  }

  static inline pjrt::Client* client_ = nullptr;
  static inline CompileService* service_ = nullptr;
};

}  // namespace landbridge

#endif  // LANDBRIDGE_COMPILER_COMPILE_SERVICE_TEST_UTIL_H_
