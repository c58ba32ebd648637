// The real shells in one loop: RM server, workers with a control port, a proxy; over loopback sockets.
#include "resource_manager/server.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cluster/admin.h"
#include "cluster/control_server.h"
#include "cluster/holder_agent.h"
#include "cluster/worker_agent.h"
#include "env/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Payloads here are "h<sent_ns> <echo_ns>" for heartbeats and anything else for ops and reports.
struct FakeWorker {
  FakeWorker(Loop* l, const std::string& rm, std::string name, LeaseTimes times, uint64_t id) : loop(l) {
    ControlServer::Callbacks control;
    control.on_stream_resumed = [this](const ControlStreamId& stream, uint64_t) {
      streams.push_back(stream);
      return applied;
    };
    control.on_stream_broken = [this](const ControlStreamId&) { ++broken; };
    control.on_control = [this](const ControlStreamId& stream, absl::string_view payload) -> absl::Status {
      if (absl::StartsWith(payload, "h")) {
        agent->OnHolderHeartbeat(stream.grant, loop->Now());
        server->Send(stream, absl::StrCat("h", loop->Now()));
        return absl::OkStatus();
      }
      if (payload == "bad") return absl::InvalidArgumentError("bad op");
      ops.push_back(std::string(payload));
      ++applied;
      server->Send(stream, absl::StrCat("done ", payload));
      return absl::OkStatus();
    };
    auto listening = ControlServer::Listen(loop, "127.0.0.1:0", nullptr, std::move(control));
    EXPECT_TRUE(listening.ok());
    server = std::move(*listening);
    WorkerAgent::Options options;
    options.rm_address = rm;
    options.incarnation = Incarnation(id);
    options.times = times;
    options.info.set_name(std::move(name));
    options.info.set_host("h");
    options.info.set_platform("cpu");
    options.info.set_device_count(4);
    options.info.set_control_address(server->address());
    WorkerAgent::Callbacks callbacks;
    callbacks.on_fence = [this](const Grant& grant, const absl::Status&) {
      server->CloseStream(grant);
      ++fences;
      agent->OldWorkEnded(grant.slice);
    };
    callbacks.on_restart = [this](const std::string& why) { restart = why; };
    agent = std::make_unique<WorkerAgent>(loop, options, callbacks);
    server->SetAgent(agent.get());
    agent->Start();
  }
  ~FakeWorker() {
    server.reset();
    agent.reset();
  }

  Loop* loop;
  std::unique_ptr<ControlServer> server;
  std::unique_ptr<WorkerAgent> agent;
  std::vector<ControlStreamId> streams;
  std::vector<std::string> ops;
  std::string restart;
  uint64_t applied = 0;
  int fences = 0, broken = 0;
};

struct FakeProxy {
  FakeProxy(Loop* loop, const std::string& rm, LeaseTimes times) {
    HolderAgent::Callbacks callbacks;
    callbacks.on_fleet = [this](const Fleet& known) { fleet = known; };
    callbacks.on_member_up = [this](const MemberRef& member, const WorkerInfo& info) {
      events.push_back("up " + info.name());
      up = member;
    };
    callbacks.on_member_lost = [this](const MemberRef&, const absl::Status& why) {
      events.push_back("lost");
      loss = why;
    };
    callbacks.applied_reports = [](const MemberRef&) { return uint64_t{0}; };
    callbacks.on_stream_resumed = [this](const MemberRef& member, uint64_t received) {
      events.push_back(absl::StrCat("resumed ", received));
      stream = member;
    };
    callbacks.on_stream_broken = [this](const MemberRef&) { events.push_back("broken"); };
    callbacks.on_control = [this](const MemberRef& member, absl::string_view payload) -> absl::Status {
      if (absl::StartsWith(payload, "h")) {
        ++heartbeats;
        agent->OnHeartbeat(member, 1);
      } else {
        events.push_back(std::string(payload));
      }
      return absl::OkStatus();
    };
    callbacks.send_heartbeat = [this](const MemberRef& member, uint64_t, int64_t, int64_t) {
      agent->SendControl(member, "h");
    };
    HolderAgent::Options options;
    options.rm_address = rm;
    options.life = ProxyLife(SystemRandom().NextNonZero());
    options.times = times;
    agent = std::make_unique<HolderAgent>(loop, options, callbacks);
    agent->Start();
    agent->Request({});
  }
  std::vector<std::string> Take() { return std::exchange(events, {}); }

  std::unique_ptr<HolderAgent> agent;
  Fleet fleet;
  MemberRef up, stream;
  absl::Status loss;
  std::vector<std::string> events;
  int heartbeats = 0;
};

class ShellTest : public ::testing::Test {
 protected:
  ShellTest() {
    times_.reconnect = 100 * kMillisecond;
    times_.heartbeat = 100 * kMillisecond;
    times_.worst_delay = 200 * kMillisecond;
    times_.lease = 2 * kSecond;
  }
  void StartRm(const std::string& address) {
    ResourceManagerServerOptions options;
    options.listen_address = address;
    options.type = *ParseInstanceType("cpu:4");
    options.slice_count = 1;
    options.times = times_;
    options.cluster_secret = "s";
    auto server = ResourceManagerServer::Start(&loop_, options);
    ASSERT_TRUE(server.ok()) << server.status();
    rm_ = std::move(*server);
    rm_address_ = rm_->address();
  }
  void Until(const std::function<bool()>& condition) {
    const TimeNs limit = loop_.Now() + 30 * kSecond;
    while (!condition() && loop_.Now() < limit) loop_.RunOnce(20 * kMillisecond);
    ASSERT_TRUE(condition());
  }

  Loop loop_;
  LeaseTimes times_;
  std::string rm_address_;
  std::unique_ptr<ResourceManagerServer> rm_;
};

TEST_F(ShellTest, FromNothingToOpsThroughLossAndRestarts) {
  // The proxy is first: it waits for the RM, then for a worker.
  StartRm("127.0.0.1:0");
  rm_.reset();
  FakeProxy proxy(&loop_, rm_address_, times_);
  auto worker = std::make_unique<FakeWorker>(&loop_, rm_address_, "w0", times_, 11);
  for (int i = 0; i < 10; ++i) loop_.RunOnce(20 * kMillisecond);
  EXPECT_FALSE(proxy.agent->rm_up());
  StartRm(rm_address_);
  Until([&] { return proxy.events.size() >= 2; });
  EXPECT_THAT(proxy.Take(), ElementsAre("up w0", "resumed 0"));
  EXPECT_EQ(proxy.fleet.slice_type, "cpu:4");
  EXPECT_EQ(proxy.fleet.devices_per_worker, 4);

  ASSERT_TRUE(proxy.agent->SendControl(proxy.stream, "op1"));
  Until([&] { return !proxy.events.empty(); });
  EXPECT_THAT(proxy.Take(), ElementsAre("done op1"));

  // A malformed op breaks the connection; the stream is resumed.
  ASSERT_TRUE(proxy.agent->SendControl(proxy.stream, "bad"));
  Until([&] { return proxy.events.size() >= 2; });
  EXPECT_THAT(proxy.Take(), ElementsAre("broken", "resumed 1"));
  EXPECT_EQ(worker->broken, 1);

  // The RM restarts: nothing is lost.
  rm_.reset();
  for (int i = 0; i < 20; ++i) loop_.RunOnce(20 * kMillisecond);
  StartRm(rm_address_);
  Until([&] { return rm_->core().settled() && rm_->core().lease(0).has_value(); });
  const TimeNs since = loop_.Now();
  Until([&] { return loop_.Now() - since > times_.heartbeat * 4; });
  EXPECT_THAT(proxy.Take(), ElementsAre());
  EXPECT_EQ(worker->fences, 0);

  // The worker dies: refused connections tell at once; its next life serves under the same lease.
  const Grant grant = proxy.up.grant;
  worker.reset();
  Until([&] { return proxy.events.size() >= 2; });
  EXPECT_THAT(proxy.Take(), ElementsAre("broken", "lost"));
  EXPECT_EQ(proxy.loss.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(proxy.loss.message()),
              HasSubstr("slice 0 (ps0) lost worker w0 on h (i11): its process has ended"));
  worker = std::make_unique<FakeWorker>(&loop_, rm_address_, "w0", times_, 12);
  Until([&] { return proxy.events.size() >= 2; });
  EXPECT_THAT(proxy.Take(), ElementsAre("up w0", "resumed 0"));
  EXPECT_EQ(proxy.up.incarnation.value(), 12u);
  EXPECT_TRUE(proxy.up.grant.SameNumber(grant));

  // Questions, from another thread as a tool would ask.
  absl::StatusOr<nlohmann::json> answer, nonsense, metrics;
  bool asked = false;
  std::thread tool([&] {
    answer = AskAdmin(rm_address_, {{"what", "status"}});
    nonsense = AskAdmin(rm_address_, {{"what", "nonsense"}});
    metrics = AskAdmin(rm_address_, {{"what", "metrics"}});
    loop_.Post([&] { asked = true; });
  });
  Until([&] { return asked; });
  tool.join();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ((*answer)["workers"][0]["name"], "w0");
  EXPECT_EQ((*answer)["slices"][0]["state"], "leased");
  EXPECT_EQ(nonsense.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(nonsense.status().message()), HasSubstr("status"));
  ASSERT_TRUE(metrics.ok());
  EXPECT_THAT(metrics->get<std::string>(), HasSubstr("landbridge_rm_slices{state=\"leased\"} 1\n"));

  // The proxy leaves: the slice is free at once.
  proxy.agent->Leave();
  Until([&] { return !rm_->core().lease(0).has_value(); });
  Until([&] { return worker->fences == 1; });
}

TEST_F(ShellTest, SilentProxyIsFencedByTheWorkerAlone) {
  StartRm("127.0.0.1:0");
  auto proxy = std::make_unique<FakeProxy>(&loop_, rm_address_, times_);
  FakeWorker worker(&loop_, rm_address_, "w0", times_, 11);
  Until([&] { return proxy->heartbeats > 1; });
  proxy.reset();  // dies without a word
  const TimeNs since = loop_.Now();
  Until([&] { return worker.fences == 1; });
  EXPECT_GE(loop_.Now() - since, times_.lease - 2 * times_.heartbeat);
  Until([&] { return rm_->core().counts(loop_.Now()).slices_free == 1; });
}

TEST(AskAdmin, NobodyThere) {
  auto answer = AskAdmin("127.0.0.1:1", {{"what", "status"}}, kSecond);
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(answer.status().message()), HasSubstr("127.0.0.1:1"));
}

TEST(ResourceManagerServer, RefusesNonsense) {
  Loop loop;
  ResourceManagerServerOptions options;
  options.listen_address = "127.0.0.1:0";
  options.type = *ParseInstanceType("cpu:4");
  options.slice_count = 0;
  EXPECT_EQ(ResourceManagerServer::Start(&loop, options).status().code(), absl::StatusCode::kInvalidArgument);
  options.slice_count = 1;
  options.times.lease = kMillisecond;
  EXPECT_EQ(ResourceManagerServer::Start(&loop, options).status().code(), absl::StatusCode::kInvalidArgument);
  options.times = LeaseTimes();
  auto first = ResourceManagerServer::Start(&loop, options);
  ASSERT_TRUE(first.ok());
  options.listen_address = (*first)->address();
  auto second = ResourceManagerServer::Start(&loop, options);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("in use"));
}

}  // namespace
}  // namespace landbridge
