// Compiler processes that crash, hang, take too much or are killed; queues that are full; services that end.
#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <future>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "compiler/compile_service_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using pjrt::Value;
using testing::HasSubstr;

// Children of this process, by pid.
std::set<pid_t> Children() {
  std::set<pid_t> children;
  DIR* proc = ::opendir("/proc");
  while (dirent* entry = ::readdir(proc)) {
    pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
    std::string line;
    std::getline(file, line);
    size_t after_name = line.rfind(')');
    if (after_name == std::string::npos) continue;
    if (std::atoi(line.c_str() + after_name + 4) == ::getpid()) children.insert(pid);
  }
  ::closedir(proc);
  return children;
}

class CompileServiceFaultsTest : public CompileServiceTest {
 protected:
  // The children that are not of the service that a test starts next. The shared one's starts by itself: it must be there
  // before any are counted.
  static std::set<pid_t> ChildrenBefore() {
    EXPECT_TRUE(CompileNow(*service_, Request(pjrt::kAddProgram)).ok());
    return Children();
  }
};

TEST_F(CompileServiceFaultsTest, AbortFailsThatCompileOnly) {
#ifdef LB_SANITIZED
  GTEST_SKIP() << "the sanitizer turns the signal into an exit code";
#endif
  auto service = Value(CompileService::Start(ServiceOptions()));
  CompileRequest request = Request(pjrt::kAddProgram);
  request.test_fault = "abort";
  auto result = CompileNow(*service, request);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("died with signal 6"));
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("landbridge-compiler-0.log"));
  EXPECT_EQ(service->Stats().child_deaths, 1u);
  // Not tried again soon; others are.
  EXPECT_EQ(CompileNow(*service, request).status(), result.status());
  EXPECT_EQ(service->Stats().child_deaths, 1u);
  EXPECT_EQ(Value(CompileNow(*service, Request(pjrt::kAddProgram)))->info.name(), "jit_add");
}

TEST_F(CompileServiceFaultsTest, EndlessLoopMeetsTheTimeLimit) {
  CompileServiceOptions options = ServiceOptions();
  options.time_limit = 5 * kSecond;
  options.child_count = 2;
  options.negative_cache_time = 0;
  auto service = Value(CompileService::Start(options));
  CompileRequest request = Request(pjrt::kAddProgram);
  request.test_fault = "loop";
  std::promise<CompileResult> looped;
  service->Compile(request, [&](CompileResult result) { looped.set_value(std::move(result)); });
  // The other child goes on meanwhile.
  EXPECT_TRUE(CompileNow(*service, Request(pjrt::kMatmulProgram)).ok());
  auto result = looped.get_future().get();
  EXPECT_EQ(result.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("limit of 5 s"));
  EXPECT_TRUE(CompileNow(*service, Request(pjrt::kAddProgram)).ok());
}

TEST_F(CompileServiceFaultsTest, MemoryLimit) {
#ifdef LB_SANITIZED
  GTEST_SKIP() << "a sanitizer's shadow memory is beyond any limit";
#endif
  CompileServiceOptions options = ServiceOptions();
  options.memory_limit_bytes = int64_t{1} << 30;
  auto service = Value(CompileService::Start(options));
  CompileRequest request = Request(pjrt::kAddProgram);
  request.test_fault = "allocate";
  auto result = CompileNow(*service, request);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted) << result.status();
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("1073741824"));
  EXPECT_TRUE(CompileNow(*service, Request(pjrt::kPsumProgram, 4)).ok());
}

// The one child that `service`, started after `before` was taken, has now.
pid_t ChildSince(const std::set<pid_t>& before) {
  for (pid_t pid : Children()) {
    if (!before.contains(pid)) return pid;
  }
  ADD_FAILURE() << "no compiler process found";
  return 0;
}

TEST_F(CompileServiceFaultsTest, KilledWhileIdleIsRestarted) {
  const std::set<pid_t> before = ChildrenBefore();
  auto service = Value(CompileService::Start(ServiceOptions()));
  ASSERT_TRUE(CompileNow(*service, Request(pjrt::kAddProgram)).ok());
  const pid_t child = ChildSince(before);
  ASSERT_GT(child, 0);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  auto result = CompileNow(*service, Request(pjrt::kMatmulProgram));
  EXPECT_TRUE(result.ok()) << result.status();
  EXPECT_NE(ChildSince(before), child);
  EXPECT_EQ(service->Stats().child_deaths, 0u);
}

TEST_F(CompileServiceFaultsTest, KilledWhileCompilingFailsThatCompile) {
  const std::set<pid_t> before = ChildrenBefore();
  auto service = Value(CompileService::Start(ServiceOptions()));
  ASSERT_TRUE(CompileNow(*service, Request(pjrt::kAddProgram)).ok());
  const pid_t child = ChildSince(before);
  ASSERT_GT(child, 0);
  CompileRequest looping = Request(pjrt::kAddProgram);
  looping.test_fault = "loop";
  std::promise<CompileResult> promise;
  service->Compile(looping, [&](CompileResult result) { promise.set_value(std::move(result)); });
  // It loops when it uses the processor: wait until it has used more than compiling took.
  auto cpu_ticks = [&] {
    std::ifstream file(absl::StrCat("/proc/", child, "/stat"));
    std::string line;
    std::getline(file, line);
    std::vector<std::string> fields = absl::StrSplit(line.substr(line.rfind(')') + 2), ' ');
    return std::atol(fields[11].c_str()) + std::atol(fields[12].c_str());
  };
  for (long start = cpu_ticks(); cpu_ticks() < start + 20;) std::this_thread::yield();
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  auto result = promise.get_future().get();
  EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("died with signal 9"));
  EXPECT_TRUE(CompileNow(*service, Request(pjrt::kMatmulProgram)).ok());
}

TEST_F(CompileServiceFaultsTest, ShutdownEndsEverything) {
  const std::set<pid_t> before = ChildrenBefore();
  auto service = Value(CompileService::Start(ServiceOptions()));
  CompileRequest looping = Request(pjrt::kAddProgram);
  looping.test_fault = "loop";
  std::vector<absl::Status> statuses;
  std::mutex mutex;
  auto note = [&](CompileResult result) {
    std::lock_guard<std::mutex> lock(mutex);
    statuses.push_back(result.status());
  };
  service->Compile(looping, note);
  service->Compile(Request(pjrt::kMatmulProgram), note);
  service.reset();
  ASSERT_EQ(statuses.size(), 2u);
  for (const absl::Status& status : statuses) EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Children(), before);
}

TEST_F(CompileServiceFaultsTest, QueueIsBounded) {
  auto service = Value(CompileService::Start(ServiceOptions()));
  CompileRequest looping = Request(pjrt::kAddProgram);
  looping.test_fault = "loop";
  std::atomic<size_t> closed{0};
  std::atomic<size_t> refused{0};
  auto count = [&](CompileResult result) {
    if (absl::IsAborted(result.status())) ++refused;
    if (absl::IsFailedPrecondition(result.status())) ++closed;
  };
  // One may have been taken from the queue by the child's thread already.
  const size_t requests = limits::kCompileQueueMax + 2;
  for (size_t i = 0; i < requests; ++i) {
    looping.program = absl::StrCat(pjrt::kAddProgram, "// ", i);
    service->Compile(looping, count);
  }
  EXPECT_GE(refused, 1u);
  EXPECT_LE(refused, 2u);
  service.reset();
  EXPECT_EQ(closed + refused, requests);
}

TEST_F(CompileServiceFaultsTest, StartErrors) {
  CompileServiceOptions options = ServiceOptions();
  options.compiler_binary = "/nonexistent/landbridge-compiler";
  EXPECT_THAT(std::string(CompileService::Start(options).status().message()), HasSubstr("/nonexistent/"));
  options = ServiceOptions();
  options.plugin_path = "/nonexistent/plugin.so";
  EXPECT_EQ(CompileService::Start(options).status().code(), absl::StatusCode::kFailedPrecondition);
  options = ServiceOptions();
  for (int count : {0, limits::kCompileChildrenMax + 1}) {
    options.child_count = count;
    EXPECT_FALSE(CompileService::Start(options).ok()) << count;
  }
  // A file that is no plugin: found out by the child, told to the compile.
  std::string text = testing::TempDir() + "/not_a_plugin.so";
  std::ofstream(text) << "hello";
  options = ServiceOptions();
  options.plugin_path = text;
  auto service = Value(CompileService::Start(options));
  auto result = CompileNow(*service, Request(pjrt::kAddProgram));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("not_a_plugin.so"));
  // Faults are for tests only.
  options = ServiceOptions();
  options.enable_test_faults = false;
  service = Value(CompileService::Start(options));
  CompileRequest fault = Request(pjrt::kAddProgram);
  fault.test_fault = "abort";
  EXPECT_EQ(CompileNow(*service, std::move(fault)).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace landbridge
