#include "resource_manager/resource_manager_core.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/report_limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kGeneration = uint64_t{1} << kTermLifeBits;

// What a worker or a proxy would say, by hand; the real ones are in lease_model_test.cc.
class RmTest : public ::testing::Test, public ResourceManagerSink {
 protected:
  void SendToMember(Incarnation incarnation, MemberUpdate update) override {
    member_updates_[incarnation.value()] = std::move(update);
  }
  void SendToHolder(ProxyLife life, HolderUpdate update) override { holder_updates_[life.value()] = std::move(update); }
  void Log(const std::string& line) override { log_.push_back(line); }

  void StartRm(const std::string& type, int slices, uint64_t life = 5) {
    ResourceManagerOptions options;
    options.type = *ParseInstanceType(type);
    options.slice_count = slices;
    options.cluster_secret = "secret";
    options.version = "1.0";
    options.life = life;
    member_updates_.clear();
    holder_updates_.clear();
    rm_ = std::make_unique<ResourceManagerCore>(options, this, now_);
  }

  struct FakeWorker {
    uint64_t number = 0;
    MemberReport report;
  };
  struct FakeProxy {
    uint64_t number = 0;
    HolderReport report;
  };

  FakeWorker& AddWorker(uint64_t id, const std::string& name = "") {
    FakeWorker& worker = workers_[id];
    worker.report.set_incarnation(id);
    WorkerInfo* info = worker.report.mutable_info();
    info->set_version("1.0");
    info->set_name(name.empty() ? absl::StrCat("w", id) : name);
    info->set_platform("cpu");
    info->set_device_count(4);
    info->set_control_address(absl::StrCat("h:", id));
    return worker;
  }
  FakeProxy& AddProxy(uint64_t id, std::vector<std::string> types) {
    FakeProxy& proxy = proxies_[id];
    proxy.report.set_life(id);
    proxy.report.set_version("1.0");
    SliceRequest* request = proxy.report.add_requests();
    request->set_id(1);
    for (const std::string& type : types) request->add_slices()->set_type(type);
    return proxy;
  }
  // One exchange: the worker reports, takes in what it was answered (and offered, if `accept`).
  void Say(uint64_t id) {
    FakeWorker& worker = workers_[id];
    worker.report.set_number(++worker.number);
    ASSERT_TRUE(rm_->OnMemberReport(worker.report, now_).ok());
  }
  void Hear(uint64_t id, bool accept = true) {
    FakeWorker& worker = workers_[id];
    const MemberUpdate& update = member_updates_[id];
    worker.report.set_promised_term(std::max(worker.report.promised_term(), update.term()));
    worker.report.set_placed(update.placed());
    worker.report.set_slice(update.slice());
    worker.report.set_index(update.index());
    for (const RevokedUpTo& revoked : update.revoked()) {
      worker.report.clear_leases();
      worker.report.clear_ended();
      *worker.report.add_ended() = revoked;
    }
    if (!accept) return;
    for (const MemberOffer& offer : update.offers()) {
      worker.report.clear_leases();
      worker.report.clear_ended();
      MemberLease* lease = worker.report.add_leases();
      *lease->mutable_grant() = offer.grant();
      lease->set_holder(offer.holder());
      lease->set_request(offer.request());
      lease->set_virtual_slice(offer.virtual_slice());
      lease->set_state(MemberLease::ACTIVE);
    }
  }
  void SayProxy(uint64_t id) {
    FakeProxy& proxy = proxies_[id];
    proxy.report.set_number(++proxy.number);
    ASSERT_TRUE(rm_->OnHolderReport(proxy.report, now_).ok());
  }
  void HearProxy(uint64_t id) {
    FakeProxy& proxy = proxies_[id];
    const HolderUpdate& update = holder_updates_[id];
    proxy.report.set_promised_term(std::max(proxy.report.promised_term(), update.term()));
    for (const RequestUpdate& told : update.requests()) {
      SliceRequest* request = proxy.report.mutable_requests(0);
      if (told.has_stamp() && !request->has_stamp()) *request->mutable_stamp() = told.stamp();
      for (int v = 0; v < told.slices_size(); ++v) {
        if (told.slices(v).has_grant()) {
          *request->mutable_slices(v)->mutable_grant() = told.slices(v).grant();
        } else if (update.settled()) {
          request->mutable_slices(v)->clear_grant();
        }
      }
    }
  }
  // Everybody speaks and listens for a while; the skipped ones are silent.
  void Rounds(int rounds, std::vector<uint64_t> silent = {}) {
    auto speaks = [&](uint64_t id) { return std::find(silent.begin(), silent.end(), id) == silent.end(); };
    for (int i = 0; i < rounds; ++i) {
      now_ += TickPeriod(times_);
      rm_->OnTick(now_);
      for (auto& [id, worker] : workers_) {
        if (!speaks(id)) continue;
        Say(id);
        Hear(id);
      }
      for (auto& [id, proxy] : proxies_) {
        if (!speaks(id)) continue;
        SayProxy(id);
        HearProxy(id);
      }
    }
  }
  std::string Grants(uint64_t proxy) {
    std::vector<std::string> out;
    for (const auto& slice : proxies_[proxy].report.requests(0).slices()) {
      out.push_back(slice.has_grant() ? Grant::FromProto(slice.grant()).ToString() : "-");
    }
    return absl::StrJoin(out, " ");
  }
  bool Logged(const std::string& text) const {
    for (const std::string& line : log_) {
      if (line.find(text) != std::string::npos) return true;
    }
    return false;
  }

  LeaseTimes times_;
  TimeNs now_ = 1000 * kSecond;
  std::unique_ptr<ResourceManagerCore> rm_;
  std::map<uint64_t, FakeWorker> workers_;
  std::map<uint64_t, FakeProxy> proxies_;
  std::map<uint64_t, MemberUpdate> member_updates_;
  std::map<uint64_t, HolderUpdate> holder_updates_;
  std::vector<std::string> log_;
};

TEST_F(RmTest, GrantsNothingAndStampsNobodyInTheStartWindow) {
  StartRm("cpu:4", 1);
  AddWorker(11);
  AddProxy(50, {"cpu:4"});
  const TimeNs end = now_ + StartWindow(times_);
  while (now_ + TickPeriod(times_) < end) {
    Rounds(1);
    ASSERT_FALSE(rm_->settled());
    ASSERT_FALSE(rm_->lease(0).has_value());
    ASSERT_FALSE(member_updates_[11].placed());
    ASSERT_FALSE(proxies_[50].report.requests(0).has_stamp());
    ASSERT_FALSE(holder_updates_[50].settled());
  }
  EXPECT_EQ(workers_[11].report.promised_term(), rm_->term());  // promised nevertheless
  EXPECT_EQ(holder_updates_[50].slice_type(), "cpu:4");         // topology is known before anything is placed
  EXPECT_EQ(holder_updates_[50].slice_count(), 1);
  Rounds(6);
  EXPECT_TRUE(rm_->settled());
  EXPECT_EQ(Grants(50), "ps0/g1.1");
  EXPECT_EQ(rm_->StatusJson(now_)["slices"][0]["lease"]["phase"], "granted");
}

TEST_F(RmTest, TellsTheHolderOnlyAfterEveryMemberHasAcknowledged) {
  StartRm("cpu:2x4", 1);
  AddWorker(11);
  AddWorker(12);
  AddProxy(50, {"cpu:2x4"});
  Rounds(12, {12});  // alone: the slice is not whole
  EXPECT_EQ(Grants(50), "-");
  EXPECT_THAT(holder_updates_[50].requests(0).slices(0).waits_for(), HasSubstr("first in the queue"));
  Say(12);
  Hear(12);
  Say(12);  // promised; the RM offers
  Hear(12, false);
  Say(11);
  Hear(11);
  Say(11);
  ASSERT_TRUE(rm_->lease(0).has_value());
  SayProxy(50);
  HearProxy(50);
  EXPECT_EQ(Grants(50), "-");
  EXPECT_THAT(holder_updates_[50].requests(0).slices(0).waits_for(), HasSubstr("the workers of ps0"));
  Hear(12);
  Say(12);
  HearProxy(50);
  EXPECT_EQ(Grants(50), "ps0/g1.1");
  EXPECT_EQ(holder_updates_[50].requests(0).slices(0).members(1).info().control_address(), "h:12");
}

TEST_F(RmTest, TakesATermAboveEveryTermReported) {
  StartRm("cpu:4", 1);
  const uint64_t first = rm_->term();
  AddWorker(11).report.set_promised_term(7 * kGeneration + 3);
  Say(11);
  EXPECT_GT(rm_->term(), 7 * kGeneration + 3);
  EXPECT_GT(rm_->term(), first);
  EXPECT_EQ(member_updates_[11].term(), rm_->term());
  // The same generation from another life of the RM is above or below, never equal.
  StartRm("cpu:4", 1, 6);
  AddProxy(50, {"cpu:4"}).report.set_promised_term(kGeneration + 5);
  SayProxy(50);
  EXPECT_NE(rm_->term() & (kGeneration - 1), 5u);
}

TEST_F(RmTest, QueueIsFirstComeFirstServedAlsoAcrossRestarts) {
  StartRm("cpu:4", 1);
  AddWorker(11);
  AddProxy(50, {"cpu:4"});
  Rounds(20);
  AddProxy(53, {"cpu:4"});
  Rounds(2);
  AddProxy(51, {"cpu:4"});
  Rounds(2);
  EXPECT_EQ(Grants(50), "ps0/g1.1");
  EXPECT_EQ(Grants(53), "-");
  EXPECT_THAT(holder_updates_[51].requests(0).slices(0).waits_for(), HasSubstr("1 request is ahead of it"));
  const std::string stamp = proxies_[53].report.requests(0).stamp().SerializeAsString();
  StartRm("cpu:4", 1, 9);
  Rounds(20);
  EXPECT_EQ(Grants(50), "ps0/g1.1");  // the lease outlived the RM
  EXPECT_EQ(proxies_[53].report.requests(0).stamp().SerializeAsString(), stamp);
  proxies_[50].report.mutable_requests(0)->mutable_slices(0)->set_released(true);
  proxies_[50].report.mutable_requests(0)->mutable_slices(0)->clear_grant();
  Rounds(6);
  EXPECT_EQ(Grants(53), "ps0/g2.1");
  EXPECT_EQ(Grants(51), "-");
  EXPECT_EQ(Grants(50), "-");
}

TEST_F(RmTest, ARequestThatWaitsForMoreIsNotOvertaken) {
  StartRm("cpu:4", 2);
  AddWorker(11);
  AddWorker(12);
  AddProxy(49, {"cpu:4"});
  Rounds(20);
  AddProxy(50, {"cpu:4", "cpu:4"});
  Rounds(3);
  AddProxy(51, {"cpu:4"});
  Rounds(3);
  EXPECT_EQ(Grants(50), "- ps1/g1.2");  // its first place is taken; the second is served
  EXPECT_EQ(Grants(51), "-");
  ASSERT_TRUE(proxies_[49].report.requests_size() == 1);
  proxies_[49].report.set_leaving(true);
  SayProxy(49);
  proxies_.erase(49);
  Rounds(4);
  EXPECT_EQ(Grants(50), "ps0/g1.3 ps1/g1.2");
  EXPECT_EQ(Grants(51), "-");
}

TEST_F(RmTest, UnknownTypeNeverBlocksOthers) {
  StartRm("cpu:4", 1);
  AddWorker(11);
  AddProxy(50, {"cpu:8"});
  AddProxy(51, {"cpu:4"});
  Rounds(20);
  EXPECT_EQ(holder_updates_[50].requests(0).slices(0).waits_for(),
            "a slice of type cpu:8; this cluster has only cpu:4");
  EXPECT_EQ(Grants(51), "ps0/g1.1");
}

TEST_F(RmTest, AbortedGrantKeepsItsPlace) {
  StartRm("cpu:4", 1);
  AddWorker(11);
  AddProxy(50, {"cpu:4"});
  Rounds(10);
  // From here the worker hears no offer.
  workers_[11].report.clear_leases();
  AddProxy(51, {"cpu:4"});
  StartRm("cpu:4", 1, 9);
  auto deaf_round = [&] {
    now_ += TickPeriod(times_);
    rm_->OnTick(now_);
    Say(11);
    Hear(11, false);
    for (uint64_t id : {51, 50}) {
      SayProxy(id);
      HearProxy(id);
    }
  };
  std::optional<GrantNumber> first;
  bool aborted = false;
  for (TimeNs end = now_ + 20 * kSecond; now_ < end && !aborted;) {
    deaf_round();
    if (!first.has_value() && rm_->lease(0).has_value()) first = rm_->lease(0)->number;
    aborted = Logged("not all workers took the grant");
  }
  ASSERT_TRUE(first.has_value());
  ASSERT_TRUE(aborted);
  Rounds(10);
  EXPECT_NE(Grants(50), "-");
  EXPECT_EQ(Grants(51), "-");
  EXPECT_GT(rm_->lease(0)->number, *first);
}

TEST_F(RmTest, RevokesWhenAMemberNoLongerAnnounces) {
  StartRm("cpu:2x4", 1);
  AddWorker(11);
  AddWorker(12);
  AddProxy(50, {"cpu:2x4"});
  Rounds(20);
  ASSERT_EQ(Grants(50), "ps0/g1.1");
  // Worker 12 has fenced itself.
  RevokedUpTo* ended = workers_[12].report.add_ended();
  ended->set_slice(0);
  ended->set_term(workers_[12].report.leases(0).grant().term());
  ended->set_count(1);
  workers_[12].report.clear_leases();
  Say(12);
  EXPECT_TRUE(Logged("lease g1.1 of proxy p50 has ended: it has ended at worker w12"));
  Rounds(6);
  EXPECT_EQ(Grants(50), "ps0/g1.2");  // the whole slice anew
  EXPECT_EQ(workers_[11].report.leases(0).grant().count(), 2u);
}

TEST_F(RmTest, RenewalsAtTheWorkersKeepTheLeaseOfASilentProxy) {
  StartRm("cpu:4", 1);
  AddWorker(11);
  AddProxy(50, {"cpu:4"});
  Rounds(20);
  rm_->OnHolderGone(ProxyLife(50), now_);
  for (int i = 0; i < 100; ++i) {
    workers_[11].report.mutable_leases(0)->set_renewed(true);
    workers_[11].report.mutable_leases(0)->set_renewed_ago_ns(times_.heartbeat);
    Rounds(1, {50});
  }
  EXPECT_TRUE(rm_->lease(0).has_value());
  // The holder stops renewing (its worker would fence soon).
  const TimeNs stopped = now_;
  while (rm_->lease(0).has_value() && now_ - stopped < 10 * kSecond) {
    workers_[11].report.mutable_leases(0)->set_renewed_ago_ns(times_.heartbeat + now_ - stopped);
    Rounds(1, {50});
  }
  EXPECT_FALSE(rm_->lease(0).has_value());
  EXPECT_GE(now_ - stopped + times_.heartbeat, WaitForOthersLease(times_));  // not before it is over on every clock
}

TEST_F(RmTest, NewLifeTakesItsPlaceAndJoinsTheSameLease) {
  StartRm("cpu:2x4", 1);
  AddWorker(11);
  AddWorker(12);
  AddProxy(50, {"cpu:2x4"});
  Rounds(20);
  ASSERT_EQ(Grants(50), "ps0/g1.1");
  workers_.erase(12);
  AddWorker(22, "w12");
  Say(22);
  EXPECT_EQ(rm_->members(0)[1].value(), 22u);
  EXPECT_TRUE(Logged("started again as i22"));
  SayProxy(50);
  EXPECT_EQ(holder_updates_[50].requests(0).slices(0).members(1).incarnation(), 0u);  // it has not acknowledged yet
  Rounds(4);
  EXPECT_EQ(Grants(50), "ps0/g1.1");
  EXPECT_EQ(holder_updates_[50].requests(0).slices(0).members(0).incarnation(), 11u);
  EXPECT_EQ(holder_updates_[50].requests(0).slices(0).members(1).incarnation(), 22u);
  EXPECT_EQ(workers_[22].report.leases(0).grant().count(), 1u);
  // The old life, were it to come back, is told to end.
  AddWorker(12, "w12").number = 1000;
  Say(12);
  EXPECT_TRUE(member_updates_[12].replaced());
  EXPECT_EQ(rm_->members(0)[1].value(), 22u);
}

TEST_F(RmTest, WorkersGetTheSliceThatTheyAskForWhileItHasAPlace) {
  StartRm("cpu:4", 3);
  Rounds(20);  // the start window is over: workers are placed as they register
  AddWorker(12).report.mutable_info()->set_slice_hint(3);
  Rounds(2);
  AddWorker(11).report.mutable_info()->set_slice_hint(1);
  AddWorker(13).report.mutable_info()->set_slice_hint(1);
  Rounds(2);
  EXPECT_EQ(rm_->members(0)[0].value(), 11u);
  EXPECT_EQ(rm_->members(1)[0].value(), 13u);  // its wish is taken: any place
  EXPECT_EQ(rm_->members(2)[0].value(), 12u);
}

TEST_F(RmTest, WhoAsksForEverySliceGetsThemInOrder) {
  StartRm("cpu:4", 2);
  AddProxy(50, {"cpu:4", "cpu:4"});
  Rounds(20);
  AddWorker(12).report.mutable_info()->set_slice_hint(2);  // slice 1 is whole first
  Rounds(6);
  EXPECT_EQ(Grants(50), "- ps1/g1.1");
  AddWorker(11);
  Rounds(6);
  EXPECT_EQ(Grants(50), "ps0/g1.2 ps1/g1.1");
}

// Telling a proxy of one slice is telling it of all: with many slices the ticks do, however many events come between.
TEST_F(RmTest, OfManySlicesTheNextTickTells) {
  const int slices = static_cast<int>(limits::kSlicesToldAtEachEventMax) + 1;
  StartRm("cpu:4", slices);
  for (int i = 0; i < slices; ++i) AddWorker(static_cast<uint64_t>(100 + i));
  AddProxy(50, std::vector<std::string>(static_cast<size_t>(slices), "cpu:4"));
  Rounds(20);
  EXPECT_EQ(rm_->counts(now_).slices_leased, slices);
  EXPECT_THAT(Grants(50), ::testing::Not(::testing::HasSubstr("-")));
  rm_->OnTick(now_);
  holder_updates_.clear();
  member_updates_.clear();
  workers_[100].report.set_draining("maintenance");
  Say(100);
  EXPECT_TRUE(member_updates_.contains(100));  // its own answer comes at once
  EXPECT_TRUE(holder_updates_.empty());
  rm_->OnTick(now_);
  ASSERT_TRUE(holder_updates_.contains(50));
  int draining = 0;
  for (const VirtualSliceUpdate& slice : holder_updates_[50].requests(0).slices()) {
    for (const MemberUpdateForHolder& member : slice.members()) draining += member.draining() == "maintenance" ? 1 : 0;
  }
  EXPECT_EQ(draining, 1);
}

TEST_F(RmTest, SpareTakesTheplaceOfASilentWorker) {
  StartRm("cpu:4", 1);
  AddWorker(11);
  Rounds(12);
  AddWorker(12);
  AddProxy(50, {"cpu:4"});
  Rounds(10);
  EXPECT_EQ(rm_->members(0)[0].value(), 11u);
  const TimeNs since = now_;
  while (rm_->members(0)[0].value() == 11 && now_ - since < 10 * kSecond) Rounds(1, {11});
  EXPECT_GT(now_ - since, WaitForOthersLease(times_));
  EXPECT_EQ(rm_->members(0)[0].value(), 12u);
  Say(11);  // it was only stopped
  EXPECT_TRUE(member_updates_[11].replaced());
}

// One was stopped, lost to the holder and replaced; then the RM starts anew and hears it before the one that has its
// place. The holder, heard in the window, knows whom it uses.
TEST_F(RmTest, OfTwoThatClaimAPlaceAfterARestartTheHoldersKeepsIt) {
  StartRm("cpu:4", 1);
  AddWorker(11);
  Rounds(12);
  AddWorker(12);
  AddProxy(50, {"cpu:4"});
  Rounds(10);
  ASSERT_EQ(Grants(50), "ps0/g1.1");
  const TimeNs since = now_;
  while (rm_->members(0)[0].value() == 11 && now_ - since < 10 * kSecond) Rounds(1, {11});
  Rounds(4, {11});
  ASSERT_EQ(rm_->members(0)[0].value(), 12u);
  ASSERT_EQ(workers_[12].report.leases_size(), 1);
  proxies_[50].report.mutable_requests(0)->mutable_slices(0)->clear_members();
  proxies_[50].report.mutable_requests(0)->mutable_slices(0)->add_members(12);

  for (uint64_t life : {6, 7}) {  // the second one starts before the first one's window is over: no claim was forgotten
    StartRm("cpu:4", 1, life);
    Say(11);
    Hear(11);
    EXPECT_EQ(rm_->members(0)[0].value(), 11u);
    Say(12);
    Hear(12);
    EXPECT_TRUE(workers_[12].report.placed());
  }
  while (!rm_->settled()) Rounds(1);
  EXPECT_EQ(rm_->members(0)[0].value(), 12u);
  EXPECT_TRUE(member_updates_[11].replaced());
  EXPECT_FALSE(member_updates_[12].replaced());
  Rounds(4, {11});
  EXPECT_EQ(Grants(50), "ps0/g1.1");
  EXPECT_EQ(holder_updates_[50].requests(0).slices(0).members(0).incarnation(), 12u);
  EXPECT_TRUE(member_updates_[12].placed());

  // Without a word of a holder the first one keeps the place.
  StartRm("cpu:4", 1, 8);
  proxies_[50].report.mutable_requests(0)->mutable_slices(0)->clear_members();
  workers_[11].report.set_placed(true);
  while (!rm_->settled()) Rounds(1);
  EXPECT_EQ(rm_->members(0)[0].value(), 11u);
  EXPECT_TRUE(member_updates_[12].replaced());
}

TEST_F(RmTest, DeadHintOfAHolderCountsOnceTheLinkIsGone) {
  StartRm("cpu:4", 1);
  AddWorker(11);
  AddProxy(50, {"cpu:4"});
  Rounds(20);
  proxies_[50].report.add_dead(11);
  SayProxy(50);
  EXPECT_EQ(rm_->members(0)[0].value(), 11u);  // we hear it ourselves
  rm_->OnMemberGone(Incarnation(11), now_);
  EXPECT_EQ(rm_->members(0)[0].value(), 0u);
  EXPECT_TRUE(rm_->lease(0).has_value());  // the lease waits for a new member
}

// Workers of a slice that make their clients together are told who they are when all are there, and take grants when they have them.
TEST_F(RmTest, AFormationIsTheLivesOfAWholeSlice) {
  StartRm("cuda:2x4", 1);
  AddProxy(100, {"cuda:2x4"});
  auto add = [&](uint64_t id, const std::string& name) {
    FakeWorker& worker = AddWorker(id, name);
    worker.report.mutable_info()->set_platform("cuda");
    worker.report.set_forming(true);
  };
  auto formation = [&](uint64_t id) {
    std::vector<std::string> members;
    for (const FormationMember& member : member_updates_[id].formation()) {
      members.push_back(absl::StrCat(member.incarnation(), " ", member.address()));
    }
    return absl::StrJoin(members, ", ");
  };
  add(1, "a");
  Rounds(20);
  EXPECT_EQ(formation(1), "") << "one of two";
  add(2, "b");
  Rounds(4);
  EXPECT_EQ(formation(1), "1 h:1, 2 h:2");
  EXPECT_EQ(formation(2), "1 h:1, 2 h:2");
  EXPECT_FALSE(rm_->lease(0).has_value()) << "no devices yet";
  EXPECT_EQ(holder_updates_[100].platform(), "cuda");
  EXPECT_EQ(holder_updates_[100].device_kind(), "");
  for (uint64_t id : {1, 2}) {
    workers_[id].report.set_forming(false);
    workers_[id].report.mutable_info()->set_device_kind("a GPU");
    workers_[id].report.mutable_info()->add_memory_kinds("device");
    Rounds(2);
  }
  EXPECT_TRUE(rm_->lease(0).has_value());
  EXPECT_EQ(holder_updates_[100].device_kind(), "a GPU");
  EXPECT_EQ(holder_updates_[100].memory_kinds_size(), 1);
  // A new life of a member is another formation, for all.
  workers_[2].report.set_leaving(true);
  Say(2);
  workers_.erase(2);
  Rounds(2);
  add(3, "b");
  Rounds(4);
  EXPECT_EQ(formation(1), "1 h:1, 3 h:3") << "one that does not know its devices fits to those that do";
  EXPECT_EQ(formation(3), "1 h:1, 3 h:3");
}

TEST_F(RmTest, DrainingWorkersGetNoNewGrant) {
  StartRm("cpu:4", 1);
  AddWorker(11).report.set_draining("SIGTERM");
  AddProxy(50, {"cpu:4"});
  Rounds(20);
  EXPECT_EQ(Grants(50), "-");
  workers_[11].report.set_draining("");
  Rounds(6);
  EXPECT_EQ(Grants(50), "ps0/g1.1");
  workers_[11].report.set_draining("SIGTERM");
  Rounds(2);
  EXPECT_EQ(holder_updates_[50].requests(0).slices(0).members(0).draining(), "SIGTERM");
  EXPECT_EQ(Grants(50), "ps0/g1.1");  // its holder moves out first
  workers_[11].report.set_leaving(true);
  Say(11);
  EXPECT_EQ(rm_->members(0)[0].value(), 0u);
}

TEST_F(RmTest, RefusalsNameBothSides) {
  StartRm("cpu:4", 1);
  AddWorker(11).report.mutable_info()->set_version("0.9");
  Say(11);
  EXPECT_EQ(member_updates_[11].refused(),
            "worker w11 has version 0.9, the resource manager has version 1.0: all processes of a cluster must come "
            "from one build");
  AddWorker(12).report.mutable_info()->set_device_count(8);
  Say(12);
  EXPECT_THAT(member_updates_[12].refused(), HasSubstr("has 8 devices, but --instance_type=cpu:4"));
  AddWorker(13).report.mutable_info()->set_platform("cuda");
  Say(13);
  EXPECT_THAT(member_updates_[13].refused(), HasSubstr("\"cuda\""));
  AddProxy(50, {"cpu:4"}).report.set_version("2.0");
  SayProxy(50);
  EXPECT_THAT(holder_updates_[50].refused(), HasSubstr("version 2.0"));
  EXPECT_THAT(holder_updates_[50].refused(), HasSubstr("version 1.0"));
  Rounds(20);
  EXPECT_EQ(rm_->members(0)[0].value(), 0u);
  EXPECT_FALSE(rm_->lease(0).has_value());
}

TEST_F(RmTest, ForgedGrantsAndStampsAreNotBelieved) {
  StartRm("cpu:4", 1);
  AddWorker(11);
  FakeProxy& thief = AddProxy(50, {"cpu:4"});
  GrantProto* grant = thief.report.mutable_requests(0)->mutable_slices(0)->mutable_grant();
  grant->set_term(kGeneration);
  grant->set_count(1);
  grant->set_secret("guess");
  StampProto* stamp = thief.report.mutable_requests(0)->mutable_stamp();
  stamp->set_term(1);
  stamp->set_count(1);
  stamp->set_signature("guess");
  SayProxy(50);
  EXPECT_FALSE(rm_->lease(0).has_value());
  EXPECT_TRUE(Logged("a stamp that this cluster did not make"));
}

TEST_F(RmTest, OldReportsAreIgnored) {
  StartRm("cpu:4", 1);
  AddWorker(11);
  AddProxy(50, {"cpu:4"});
  Rounds(20);
  MemberReport late = workers_[11].report;
  late.set_number(1);
  late.clear_leases();
  late.set_draining("x");
  ASSERT_TRUE(rm_->OnMemberReport(late, now_).ok());
  EXPECT_EQ(rm_->StatusJson(now_)["workers"][0]["state"], "ready");
  EXPECT_TRUE(rm_->lease(0).has_value());
}

// Counterexample: an RM that was stopped grants a slice of which another life of the RM disposed meanwhile.
TEST_F(RmTest, PauseBehavesAsARestart) {
  StartRm("cpu:4", 2);
  AddWorker(11);
  AddWorker(12);
  AddProxy(50, {"cpu:4"});
  Rounds(20);
  const uint64_t term = rm_->term();
  now_ += 30 * kSecond;
  AddProxy(51, {"cpu:4"});
  SayProxy(51);
  EXPECT_GT(rm_->term(), term);
  EXPECT_FALSE(rm_->settled());
  EXPECT_EQ(rm_->members(0)[0].value(), 11u);  // nobody was declared silent
  Rounds(4);
  EXPECT_EQ(Grants(51), "-");
  Rounds(20);
  EXPECT_EQ(Grants(50), "ps0/g1.1");
  EXPECT_EQ(Grants(51), "ps1/g2.1");
}

TEST_F(RmTest, MalformedReportsDisturbNobody) {
  StartRm("cpu:4", 1);
  MemberReport member;
  EXPECT_EQ(rm_->OnMemberReport(member, now_).code(), absl::StatusCode::kInvalidArgument);
  member.set_incarnation(1);
  member.set_number(1);
  member.mutable_info()->set_name(std::string(limits::kRmStringBytesMax, 'x'));
  EXPECT_EQ(rm_->OnMemberReport(member, now_).code(), absl::StatusCode::kInvalidArgument);
  member.clear_info();
  for (size_t i = 0; i <= limits::kLeasesPerWorkerMax; ++i) member.add_leases();
  EXPECT_EQ(rm_->OnMemberReport(member, now_).code(), absl::StatusCode::kInvalidArgument);
  HolderReport holder;
  EXPECT_EQ(rm_->OnHolderReport(holder, now_).code(), absl::StatusCode::kInvalidArgument);
  holder.set_life(1);
  holder.set_number(1);
  for (size_t i = 0; i <= limits::kSliceRequestsPerProxyMax; ++i) holder.add_requests()->set_id(i + 1);
  EXPECT_EQ(rm_->OnHolderReport(holder, now_).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(rm_->counts(now_).workers, 0);
  EXPECT_EQ(rm_->counts(now_).proxies, 0);
  // A term after which there is none: the next one would be below it, and be refused by everybody for ever.
  const uint64_t term = rm_->term();
  member.clear_leases();
  member.set_promised_term(~uint64_t{0});
  EXPECT_EQ(rm_->OnMemberReport(member, now_).code(), absl::StatusCode::kInvalidArgument);
  holder.clear_requests();
  holder.set_promised_term(~uint64_t{0});
  EXPECT_EQ(rm_->OnHolderReport(holder, now_).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(rm_->term(), term);
  // A lease of a slice that does not exist, and places that do not exist.
  FakeWorker& odd = AddWorker(11);
  odd.report.set_placed(true);
  odd.report.set_slice(-3);
  odd.report.set_index(99);
  MemberLease* lease = odd.report.add_leases();
  lease->mutable_grant()->set_slice(77);
  lease->mutable_grant()->set_term(1);
  lease->set_holder(1);
  Say(11);
  Rounds(20);
  EXPECT_EQ(rm_->members(0)[0].value(), 11u);
}

}  // namespace
}  // namespace landbridge
