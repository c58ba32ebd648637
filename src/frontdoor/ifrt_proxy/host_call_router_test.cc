#include "frontdoor/ifrt_proxy/host_call_router.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/data_keys.h"
#include "base/limits.h"
#include "dataplane/in_process_data_plane.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kRouterSpace = 77;

std::string Number(uint64_t value, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

// The stream of a client: keeps what is written until the test takes it.
class FakeHostCallStream final : public HostCallPipe::Stream {
 public:
  void StartRead() override { reading = true; }
  void StartWrite(const HostCallFrameOut& frame) override {
    written.push_back(frame.head + (frame.body == nullptr ? "" : *frame.body));
  }
  void Cancel() override { cancelled = true; }
  void Finish() override { finished = true; }

  bool reading = false, cancelled = false, finished = false;
  std::vector<std::string> written;
};

class HostCallRouterTest : public ::testing::Test {
 protected:
  HostCallRouterTest() {
    plane_ = Plane(100);
    worker_plane_ = Plane(5);
    EXPECT_TRUE(plane_->AddPeer(Incarnation(5), worker_plane_->address()).ok());
    EXPECT_TRUE(worker_plane_->AddPeer(Incarnation(100), plane_->address()).ok());
    HostCallRouter::Options options;
    options.space = kRouterSpace;
    options.reply = [this](Incarnation worker, HostCallReply reply) {
      EXPECT_EQ(worker, Incarnation(5));
      replies_.push_back(std::move(reply));
    };
    options.post = [this](std::function<void(HostCallRouter&)> run) {
      std::lock_guard<std::mutex> lock(mutex_);
      posted_.push_back(std::move(run));
    };
    router_ = std::make_unique<HostCallRouter>(std::move(options), plane_.get());
  }
  ~HostCallRouterTest() override {
    plane_->Shutdown();
    worker_plane_->Shutdown();
  }

  std::unique_ptr<dataplane::DataPlane> Plane(uint64_t self) {
    dataplane::DataPlaneOptions options;
    options.self = Incarnation(self);
    return fabric_.MakeDataPlane(std::move(options));
  }

  struct Client {
    FakeHostCallStream stream;
    std::shared_ptr<HostCallPipe> pipe;
    HostCallPipe::Frame delivered;
  };
  std::unique_ptr<Client> Attach(uint64_t session) {
    auto client = std::make_unique<Client>();
    Client* raw = client.get();
    client->pipe = std::make_shared<HostCallPipe>(
        SessionId(session), [raw](HostCallPipe::Frame frame) { raw->delivered = std::move(frame); },
        [this, session](size_t bytes) { router_->OnWritten(SessionId(session), bytes); }, [] {});
    router_->Attach(client->pipe);
    client->pipe->Start(&client->stream);
    return client;
  }
  static HostCall Call(uint64_t call, uint64_t session, const std::string& operands, int64_t result_bytes) {
    HostCall out;
    out.set_call(call);
    out.set_session(session);
    out.set_function(9);
    out.set_device(3);
    out.set_operands(operands);
    out.set_operand_bytes(static_cast<int64_t>(operands.size()));
    out.set_result_bytes(result_bytes);
    return out;
  }
  // What the client sends.
  void Answer(Client& client, const std::string& frame) {
    client.pipe->OnRead(std::make_shared<const std::string>(frame));
    ASSERT_NE(client.delivered, nullptr);
    router_->OnFrame(client.pipe, std::move(client.delivered));
  }
  static std::string Results(uint64_t call, const std::string& bytes) { return "\1" + Number(call, 8) + bytes; }
  static std::string Error(uint64_t call, const std::string& text) { return "\2" + Number(call, 8) + text; }

  // Runs what the data plane posts until there are `count` replies or frames.
  void RunUntil(const std::function<bool()>& done) {
    while (!done()) {
      std::vector<std::function<void(HostCallRouter&)>> posted;
      {
        std::lock_guard<std::mutex> lock(mutex_);
        posted.swap(posted_);
      }
      for (auto& run : posted) run(*router_);
      if (posted.empty()) std::this_thread::yield();
    }
  }

  dataplane::InProcessFabric fabric_;
  std::unique_ptr<dataplane::DataPlane> plane_, worker_plane_;
  std::unique_ptr<HostCallRouter> router_;
  std::vector<HostCallReply> replies_;
  std::mutex mutex_;
  std::vector<std::function<void(HostCallRouter&)>> posted_;
};

TEST_F(HostCallRouterTest, ACallGoesToTheClientOfItsSessionAndBack) {
  auto one = Attach(1), two = Attach(2);
  router_->OnCall(Incarnation(5), Call(41, 2, "abcd", 2));
  EXPECT_THAT(one->stream.written, IsEmpty());
  EXPECT_THAT(two->stream.written, ElementsAre("\2" + Number(1, 8) + Number(9, 8) + Number(3, 4) + "abcd"));
  // Nobody else can answer it.
  Answer(*one, Results(1, "xy"));
  EXPECT_THAT(replies_, IsEmpty());
  Answer(*two, Results(1, "xy"));
  ASSERT_THAT(replies_, SizeIs(1));
  EXPECT_EQ(replies_[0].call(), 41u);
  EXPECT_EQ(replies_[0].status().code(), 0);
  EXPECT_EQ(replies_[0].results(), "xy");
  Answer(*two, Results(1, "xy"));  // once is enough
  EXPECT_THAT(replies_, SizeIs(1));
  EXPECT_EQ(router_->open(), 0u);
}

TEST_F(HostCallRouterTest, WhatTheClientSaysIsTheUsersMistake) {
  auto client = Attach(1);
  router_->OnCall(Incarnation(5), Call(41, 1, "", 2));
  Answer(*client, Error(1, "ValueError: INTERNAL: no"));
  router_->OnCall(Incarnation(5), Call(42, 1, "", 2));
  Answer(*client, Results(2, "too much"));
  ASSERT_THAT(replies_, SizeIs(2));
  for (const HostCallReply& reply : replies_) EXPECT_EQ(reply.status().code(), 3);
  EXPECT_THAT(replies_[0].status().message(), HasSubstr("ValueError"));
  EXPECT_THAT(replies_[0].status().message(), ::testing::Not(HasSubstr("INTERNAL")));
  EXPECT_THAT(replies_[1].status().message(), HasSubstr("8 bytes where its program wants 2"));
}

TEST_F(HostCallRouterTest, ClientsThatAreNotThereOrGoFreeTheWorker) {
  router_->OnCall(Incarnation(5), Call(41, 1, "", 0));
  ASSERT_THAT(replies_, SizeIs(1));
  EXPECT_EQ(replies_[0].status().code(), 9);
  auto client = Attach(1);
  router_->OnCall(Incarnation(5), Call(42, 1, "", 0));
  router_->CloseSession(SessionId(1));
  ASSERT_THAT(replies_, SizeIs(2));
  EXPECT_EQ(replies_[1].call(), 42u);
  EXPECT_EQ(replies_[1].status().code(), 1);
  EXPECT_TRUE(client->stream.cancelled);
  client->pipe->OnRead(nullptr);
  client->pipe->OnWritten(false);
  EXPECT_TRUE(client->stream.finished);
}

TEST_F(HostCallRouterTest, ANewStreamTakesThePlaceOfTheOldOne) {
  auto old = Attach(1);
  router_->OnCall(Incarnation(5), Call(41, 1, "", 0));
  auto client = Attach(1);
  ASSERT_THAT(replies_, SizeIs(1));
  EXPECT_EQ(replies_[0].status().code(), 9);
  router_->Detach(old->pipe);  // comes late
  router_->OnCall(Incarnation(5), Call(42, 1, "", 0));
  EXPECT_THAT(client->stream.written, SizeIs(1));
}

TEST_F(HostCallRouterTest, AFrameThatIsNoAnswerEndsTheStream) {
  for (const std::string& frame : {std::string(), std::string("\1\0\0", 3), std::string("\7") + Number(1, 8)}) {
    auto client = Attach(1);
    Answer(*client, frame);
    EXPECT_TRUE(client->stream.cancelled);
    router_->Detach(client->pipe);
  }
}

TEST_F(HostCallRouterTest, LargeOperandsAndResultsTravelOnTheDataPlane) {
  auto client = Attach(1);
  const std::string large(limits::kInlineBytesMax + 1, 'o');
  worker_plane_->PublishSpan({kRouterSpace, DataKeyId(DataKeyKind::kHostCall, 41)},
                             {reinterpret_cast<const std::byte*>(large.data()), large.size()}, nullptr);
  HostCall call = Call(41, 1, "", static_cast<int64_t>(large.size()));
  call.set_operand_bytes(static_cast<int64_t>(large.size()));
  router_->OnCall(Incarnation(5), call);
  RunUntil([&] { return !client->stream.written.empty(); });
  EXPECT_EQ(client->stream.written[0].substr(21), large);
  Answer(*client, Results(1, large));
  ASSERT_THAT(replies_, SizeIs(1));
  ASSERT_NE(replies_[0].results_key(), 0u);
  std::string fetched(large.size(), '\0');
  std::atomic<bool> done = false;
  worker_plane_->Pull(Incarnation(100), {kRouterSpace, DataKeyId(DataKeyKind::kHostCall, replies_[0].results_key())}, 0,
                      fetched.data(), fetched.size(), [&](absl::Status status) {
                        EXPECT_TRUE(status.ok()) << status;
                        done = true;
                      });
  RunUntil([&] { return done.load(); });
  EXPECT_EQ(fetched, large);
  EXPECT_EQ(plane_->Stats().keys_published, 1u);
  router_->OnTaken(Incarnation(5), 41);
  RunUntil([&] { return plane_->Stats().keys_published == 0; });
}

TEST_F(HostCallRouterTest, ALostWorkersCallsAreForgotten) {
  auto client = Attach(1);
  router_->OnCall(Incarnation(5), Call(41, 1, "", 1));
  router_->OnWorkerLost(Incarnation(5));
  EXPECT_EQ(router_->open(), 0u);
  Answer(*client, Results(1, "x"));
  EXPECT_THAT(replies_, IsEmpty());
}

}  // namespace
}  // namespace landbridge
