// With a real plugin, whose programs call; client and data plane are the test.
#include "worker/shell/host_call_launches.h"

#include <chrono>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "pjrt/test_support.h"

namespace landbridge {
namespace {

using pjrt::Value;
using ::testing::Each;
using ::testing::HasSubstr;

// Keeps what is published, and gives what the test says.
class TestPlane final : public dataplane::DataPlane {
 public:
  std::map<uint64_t, std::shared_ptr<dataplane::Source>> published;  // by Key::id
  std::string given;                                                 // what pulls find
  absl::Status end_of_pulls;

  dataplane::PullId Pull(dataplane::PeerId, dataplane::Key, uint64_t offset, void* dst, uint64_t size,
                         std::function<void(absl::Status)> done) override {
    if (end_of_pulls.ok()) std::memcpy(dst, given.data() + offset, size);
    done(end_of_pulls);
    return dataplane::PullId(1);
  }
  void Cancel(dataplane::PullId, absl::Status) override {}
  void Publish(dataplane::Key key, std::shared_ptr<dataplane::Source> source,
               dataplane::PublishOptions options) override {
    EXPECT_EQ(options.allowed_peer, dataplane::PeerId(9));
    published[key.id] = std::move(source);
  }
  void Unpublish(dataplane::Key key, absl::Status, std::function<void()> quiescent) override {
    published.erase(key.id);
    quiescent();
  }

  dataplane::PeerId self() const override { return dataplane::PeerId(1); }
  std::string address() const override { return ""; }
  absl::Status AddPeer(dataplane::PeerId, absl::string_view) override { return absl::OkStatus(); }
  void ClosePeer(dataplane::PeerId, absl::Status) override {}
  void CloseSpace(uint64_t, absl::Status, std::function<void()>) override {}
  void Listen(uint64_t, std::vector<dataplane::PeerId>, dataplane::PushListener) override {}
  void Unlisten(uint64_t) override {}
  bool Push(dataplane::PeerId, dataplane::Key, dataplane::Chunk, std::function<void()>) override { return true; }
  dataplane::DataPlaneStats Stats() const override { return {}; }
  void Shutdown() override {}
};

class HostCallLaunchesTest : public ::testing::Test {
 protected:
  using Floats = std::vector<float>;

  static void SetUpTestSuite() {
    pjrt::PreparePluginEnvironment(2);
    client_ =
        Value(Value(pjrt::Plugin::Load(pjrt::TestPluginPath()))->CreateClient(pjrt::Plugin::CpuOptions(2))).release();
    const absl::Status registered = pjrt::RegisterAndCheckHostCalls(*client_);
    ASSERT_TRUE(registered.ok()) << registered;
  }

  HostCallLaunchesTest()
      : io_(Value(BufferIo::Create(client_))),
        context_(std::make_shared<ShellContext>()),
        puller_(context_.get()),
        calls_(std::make_unique<HostCallLaunches>(
            context_.get(), &puller_, [this](WorkerReport report) { reports_.push_back(std::move(report)); })) {
    context_->loop = &loop_;
    context_->io = io_.get();
    context_->data_plane = &plane_;
    context_->proxy = dataplane::PeerId(9);
    context_->inbox = std::make_shared<Inbox>(&loop_, [](bool) { return Inbox::Outlook{.in_a_hurry = true}; });
  }
  ~HostCallLaunchesTest() override { context_->inbox->Close(); }

  // Runs a program on device 1 that gives its operand (`count` ones) to function 7 and returns what that gives.
  std::future<absl::StatusOr<Floats>> Run(Ticket ticket, int count) {
    static int32_t launch_id = 5000;
    Launch launch;
    launch.set_ticket(ticket.value());
    launch.set_session(3);
    LaunchWork work;
    work.launch_id = ++launch_id;
    calls_->Open(launch, work);
    return std::async(std::launch::async, [count, id = work.launch_id]() -> absl::StatusOr<Floats> {
      const std::string type = absl::StrCat("tensor<", count, "xf32>");
      auto options = pjrt::TestCompileOptions(1);
      options.set_compile_portable_executable(true);
      options.mutable_executable_build_options()->clear_device_assignment();
      auto program = Value(client_->Compile(
          absl::StrCat("module @calls { func.func public @main(%x: ", type, ") -> ", type,
                       " { %y = stablehlo.custom_call @xla_ffi_python_cpu_callback(%x) {api_version = 4 : i32, "
                       "has_side_effect = true, backend_config = {index = 7 : ui64}} : (",
                       type, ") -> ", type, " return %y : ", type, " } }"),
          "mlir", options.SerializeAsString()));
      const Floats ones(static_cast<size_t>(count), 1.0f);
      const pjrt::Device& device = client_->devices()[1];
      auto operand = Value(client_->BufferFromHost(ones.data(), DType::kF32, {count}, {}, *device.default_memory,
                                                   pjrt::HostSemantics::kOnlyDuringCall));
      pjrt::Buffer* arguments[] = {&operand.buffer};
      auto run = program->ExecuteOnDevice(device.handle, arguments, {.launch_id = id});
      if (!run.ok()) return run.status();
      if (absl::Status done = run->done.Await(); !done.ok()) return done;
      Floats got(static_cast<size_t>(count));
      if (absl::Status copied = Value(run->outputs[0].CopyToHost(got.data(), got.size() * sizeof(float))).Await();
          !copied.ok()) {
        return copied;
      }
      return got;
    });
  }
  // The next report, once it is there.
  WorkerReport Next() {
    while (reports_.empty()) loop_.RunOnce(kSecond);
    WorkerReport report = std::move(reports_.front());
    reports_.erase(reports_.begin());
    return report;
  }
  absl::StatusOr<Floats> Await(std::future<absl::StatusOr<Floats>>& run) {
    while (run.wait_for(std::chrono::seconds(0)) != std::future_status::ready) loop_.RunOnce(kMillisecond);
    return run.get();
  }
  static HostCallReply Reply(uint64_t call, const Floats& values) {
    HostCallReply reply;
    reply.set_call(call);
    reply.set_results(std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
    return reply;
  }

  static pjrt::Client* client_;
  Loop loop_;
  TestPlane plane_;
  std::unique_ptr<BufferIo> io_;
  std::shared_ptr<ShellContext> context_;
  Puller puller_;
  std::vector<WorkerReport> reports_;
  std::unique_ptr<HostCallLaunches> calls_;
};

pjrt::Client* HostCallLaunchesTest::client_ = nullptr;

TEST_F(HostCallLaunchesTest, SmallCallsGoOnTheControlStream) {
  auto run = Run(Ticket(11), 4);
  const HostCall call = Next().host_call();
  EXPECT_EQ(call.ticket(), 11u);
  EXPECT_EQ(call.session(), 3u);
  EXPECT_EQ(call.function(), 7u);
  EXPECT_EQ(call.device(), 1u);
  EXPECT_EQ(call.result_bytes(), 16);
  EXPECT_EQ(call.operands(), Reply(0, {1, 1, 1, 1}).results());
  EXPECT_EQ(calls_->open(), 1u);
  calls_->OnReply(Reply(call.call() + 1, {9, 9, 9, 9}));  // of no call
  calls_->OnReply(Reply(call.call(), {2, 3, 4, 5}));
  EXPECT_EQ(calls_->open(), 0u);
  calls_->OnReply(Reply(call.call(), {9, 9, 9, 9}));  // once is enough
  EXPECT_EQ(Value(Await(run)), (Floats{2, 3, 4, 5}));
  EXPECT_TRUE(calls_->Close(Ticket(11)).ok());
}

TEST_F(HostCallLaunchesTest, LargeCallsGoOverTheDataPlane) {
  constexpr int kCount = limits::kInlineBytesMax / sizeof(float) + 1;
  auto run = Run(Ticket(12), kCount);
  const HostCall call = Next().host_call();
  EXPECT_EQ(call.operands(), "");
  ASSERT_EQ(plane_.published.size(), 1u);
  EXPECT_EQ(plane_.published.begin()->second->size(), kCount * sizeof(float));
  plane_.given = Reply(0, Floats(kCount, 6.0f)).results();
  HostCallReply reply;
  reply.set_call(call.call());
  reply.set_results_key(77);
  calls_->OnReply(reply);
  EXPECT_EQ(Next().host_call_taken().call(), call.call());
  EXPECT_THAT(Value(Await(run)), Each(6.0f));
  EXPECT_TRUE(plane_.published.empty());
  // Results that nobody waits for any more are told to be over.
  calls_->OnReply(reply);
  EXPECT_EQ(Next().host_call_taken().call(), call.call());
  EXPECT_TRUE(calls_->Close(Ticket(12)).ok());
}

TEST_F(HostCallLaunchesTest, FailuresAreTheLaunchs) {
  auto refused = Run(Ticket(13), 4);
  HostCallReply reply;
  reply.set_call(Next().host_call().call());
  reply.mutable_status()->set_code(static_cast<uint32_t>(absl::StatusCode::kInvalidArgument));
  reply.mutable_status()->set_message("it raised");
  calls_->OnReply(reply);
  EXPECT_THAT(std::string(Await(refused).status().message()), HasSubstr("it raised"));
  EXPECT_EQ(calls_->Close(Ticket(13)), absl::InvalidArgumentError("it raised"));

  auto wrong = Run(Ticket(14), 4);
  calls_->OnReply(Reply(Next().host_call().call(), {1}));
  EXPECT_FALSE(Await(wrong).ok());
  EXPECT_THAT(std::string(calls_->Close(Ticket(14)).message()), HasSubstr("4 bytes of 16"));

  auto lost = Run(Ticket(15), 4);
  plane_.end_of_pulls = absl::InvalidArgumentError("gone");
  reply.Clear();
  reply.set_call(Next().host_call().call());
  reply.set_results_key(78);
  calls_->OnReply(reply);
  EXPECT_FALSE(Await(lost).ok());
  EXPECT_THAT(std::string(calls_->Close(Ticket(15)).message()), HasSubstr("fetching a callback's results"));
  EXPECT_TRUE(calls_->Close(Ticket(15)).ok());  // closed
}

TEST_F(HostCallLaunchesTest, AbortedLaunchesCallNobody) {
  const absl::Status why = absl::AbortedError("its client is gone");
  auto waits = Run(Ticket(16), 4);
  Next();
  calls_->Abort(Ticket(16), why);
  EXPECT_EQ(calls_->open(), 0u);
  EXPECT_THAT(std::string(Await(waits).status().message()), HasSubstr("its client is gone"));
  EXPECT_EQ(calls_->Close(Ticket(16)), why);

  calls_->AbortAll(why);  // the grant ends: what is opened later fails, too
  auto late = Run(Ticket(17), 4);
  EXPECT_THAT(std::string(Await(late).status().message()), HasSubstr("its client is gone"));
  EXPECT_TRUE(reports_.empty());
  EXPECT_EQ(calls_->Close(Ticket(17)), why);
}

}  // namespace
}  // namespace landbridge
