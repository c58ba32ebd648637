#include "cluster/holder_lease.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/report_limits.h"
#include "cluster/lease_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Recorder : public HolderLeaseSink {
 public:
  void SendReport(HolderReport report) override { reports.push_back(std::move(report)); }
  void FleetKnown(const Fleet& fleet) override { events.push_back(absl::StrCat("fleet ", fleet.slice_count)); }
  void Refused(const std::string& why) override { events.push_back("refused " + why); }
  void SliceBound(VirtualSlice slice, const Grant& grant, int workers) override {
    events.push_back(absl::StrCat("bound ", slice.index, " ", grant.ToString(), " x", workers));
  }
  void SliceLost(VirtualSlice slice, const Grant& grant, const absl::Status& why) override {
    EXPECT_EQ(why.code(), absl::StatusCode::kDataLoss);
    events.push_back(absl::StrCat("slice lost ", slice.index, " ", grant.ToString()));
  }
  void ConnectMember(const MemberRef& member, const WorkerInfo& info) override {
    refs.push_back(member);
    events.push_back(absl::StrCat("connect ", member.incarnation.ToString(), " ", info.control_address()));
  }
  void DisconnectMember(const MemberRef& member) override {
    events.push_back(absl::StrCat("disconnect ", member.incarnation.ToString()));
  }
  void MemberUp(const MemberRef& member, const WorkerInfo&) override {
    events.push_back(absl::StrCat("up ", member.incarnation.ToString()));
  }
  void MemberLost(const MemberRef& member, const absl::Status& why) override {
    EXPECT_EQ(why.code(), absl::StatusCode::kDataLoss);
    loss = std::string(why.message());
    events.push_back(absl::StrCat("lost ", member.incarnation.ToString()));
  }
  void MemberDraining(const MemberRef& member, const std::string& reason) override {
    events.push_back(absl::StrCat("drains ", member.incarnation.ToString(), " ", reason));
  }
  void SendHeartbeat(const MemberRef& member, uint64_t, int64_t, int64_t echo_ns) override {
    ++heartbeats;
    last_heartbeat = absl::StrCat(member.incarnation.ToString(), " echo ", echo_ns);
  }
  std::vector<std::string> Take() { return std::exchange(events, {}); }

  std::vector<HolderReport> reports;
  std::vector<std::string> events;
  std::vector<MemberRef> refs;
  std::string loss, last_heartbeat;
  int heartbeats = 0;
};

class HolderLeaseTest : public ::testing::Test {
 protected:
  HolderLeaseTest() : lease_(ProxyLife(50), times_, &sink_) { lease_.OnRmConnected(now_); }

  HolderUpdate Update(uint64_t term = kTerm1) {
    HolderUpdate update;
    update.set_term(term);
    update.set_number(++number_);
    update.set_life(50);
    update.set_answers(sink_.reports.back().number());
    update.set_settled(true);
    update.set_slice_type("cpu:2x4");
    update.set_slice_count(2);
    update.set_workers_per_slice(2);
    update.set_devices_per_worker(4);
    return update;
  }
  static Grant MakeGrant(uint64_t count, int slice = 0) {
    return Grant{PhysicalSliceId(slice), {kTerm1, count}, absl::StrCat("s", count)};
  }
  static void AddSlice(RequestUpdate* request, const Grant& grant, const std::vector<uint64_t>& members) {
    VirtualSliceUpdate* slice = request->add_slices();
    *slice->mutable_grant() = grant.ToProto();
    for (uint64_t id : members) {
      MemberUpdateForHolder* member = slice->add_members();
      member->set_incarnation(id);
      if (id == 0) continue;
      member->mutable_info()->set_name(absl::StrCat("w", id));
      member->mutable_info()->set_host("h");
      member->mutable_info()->set_control_address(absl::StrCat("h:", id));
      member->mutable_info()->set_log_place("/logs/w.log");
    }
  }
  // One request for one slice, bound to two members that are up.
  void Bind(const Grant& grant, const std::vector<uint64_t>& members) {
    if (request_ == 0) request_ = lease_.Request({"cpu:2x4"}, now_);
    HolderUpdate update = Update();
    RequestUpdate* request = update.add_requests();
    request->set_id(request_);
    AddSlice(request, grant, members);
    lease_.OnUpdate(update, now_);
  }
  void Welcome(size_t ref, ControlWelcome::Refusal refusal = ControlWelcome::NONE) {
    ControlWelcome welcome;
    welcome.set_refusal(refusal);
    lease_.OnMemberWelcome(sink_.refs[ref], welcome, now_);
  }
  void BindAndUp() {
    Bind(MakeGrant(1), {11, 12});
    Welcome(0);
    Welcome(1);
    sink_.Take();
  }
  void Pass(DurationNs time, bool members_speak = true) {
    for (const TimeNs end = now_ + time; now_ < end;) {
      now_ = std::min(end, now_ + TickPeriod(times_));
      if (members_speak) {
        for (const MemberRef& ref : sink_.refs) lease_.OnMemberHeartbeat(ref, now_, now_);
      }
      lease_.OnTick(now_);
    }
  }

  LeaseTimes times_;
  Recorder sink_;
  TimeNs now_ = 100 * kSecond;
  uint64_t number_ = 0;
  uint64_t request_ = 0;
  HolderLease lease_;
};

TEST_F(HolderLeaseTest, AsksForTheWholeFleetOnceItIsKnown) {
  lease_.Request({}, now_);
  EXPECT_EQ(sink_.reports.back().requests(0).slices_size(), 0);
  lease_.OnUpdate(Update(), now_);
  EXPECT_THAT(sink_.Take(), ElementsAre("fleet 2"));
  ASSERT_EQ(sink_.reports.back().requests(0).slices_size(), 2);
  EXPECT_EQ(sink_.reports.back().requests(0).slices(1).type(), "cpu:2x4");
  EXPECT_EQ(sink_.reports.back().promised_term(), kTerm1);
}

TEST_F(HolderLeaseTest, OfManySlicesTheNextTickTells) {
  lease_.Request(std::vector<std::string>(limits::kSlicesToldAtEachEventMax, "cpu:2x4"), now_);
  size_t reports = sink_.reports.size();
  lease_.OnRmConnected(now_);
  lease_.OnRmConnected(now_);
  EXPECT_EQ(sink_.reports.size(), reports + 2);
  lease_.Request({"cpu:2x4"}, now_);  // one too many
  reports = sink_.reports.size();
  lease_.OnRmConnected(now_);
  lease_.OnRmConnected(now_);
  EXPECT_EQ(sink_.reports.size(), reports);
  lease_.OnTick(now_);
  EXPECT_EQ(sink_.reports.size(), reports + 1);
  EXPECT_EQ(sink_.reports.back().requests_size(), 2);
}

TEST_F(HolderLeaseTest, AMembersFirstHeartbeatLeavesAtOnce) {
  Bind(MakeGrant(1), {11, 12});
  Welcome(0);
  const MemberRef first = sink_.refs[0], second = sink_.refs[1];
  lease_.OnMemberReady(second, now_);  // was not welcomed
  EXPECT_EQ(sink_.heartbeats, 0);
  lease_.OnMemberReady(first, now_);
  EXPECT_EQ(sink_.heartbeats, 1);
  EXPECT_EQ(sink_.last_heartbeat, first.incarnation.ToString() + " echo 0");
  lease_.OnMemberReady(first, now_);
  EXPECT_EQ(sink_.heartbeats, 1);
  EXPECT_EQ(lease_.member_counts().wanted, 2);
  EXPECT_EQ(lease_.member_counts().up, 1);
}

TEST_F(HolderLeaseTest, AFleetOfMoreDevicesThanThereCanBeIsNotBelieved) {
  lease_.Request({}, now_);
  for (const auto& [slices, workers, devices] :
       {std::tuple{0, 2, 4}, {2, -1, 4}, {2, 2, limits::kDevicesMax}, {40'000, 40'000, 1}, {65'536, 65'536, 65'536}}) {
    HolderUpdate update = Update();
    update.set_slice_count(slices);
    update.set_workers_per_slice(workers);
    update.set_devices_per_worker(devices);
    lease_.OnUpdate(update, now_);
    EXPECT_FALSE(lease_.fleet().has_value());
  }
}

TEST_F(HolderLeaseTest, StampIsRepeatedUnchanged) {
  request_ = lease_.Request({"cpu:2x4"}, now_);
  HolderUpdate update = Update();
  RequestUpdate* told = update.add_requests();
  told->set_id(request_);
  told->mutable_stamp()->set_term(kTerm1);
  told->mutable_stamp()->set_count(3);
  told->mutable_stamp()->set_signature("sig");
  lease_.OnUpdate(update, now_);
  HolderUpdate other = update;
  other.set_number(++number_);
  other.set_term(kTerm2);
  other.mutable_requests(0)->mutable_stamp()->set_count(99);
  lease_.OnUpdate(other, now_);
  const SliceRequest& reported = sink_.reports.back().requests(0);
  EXPECT_EQ(reported.stamp().term(), kTerm1);
  EXPECT_EQ(reported.stamp().count(), 3u);
  EXPECT_EQ(reported.stamp().signature(), "sig");
}

TEST_F(HolderLeaseTest, BindsConnectsAndBeats) {
  Bind(MakeGrant(1), {11, 12});
  EXPECT_THAT(sink_.Take(), ElementsAre("fleet 2", "bound 0 ps0/g1.1 x2", "connect i11 h:11", "connect i12 h:12"));
  EXPECT_EQ(sink_.reports.back().requests(0).slices(0).grant().count(), 1u);
  EXPECT_THAT(sink_.reports.back().requests(0).slices(0).members(), ElementsAre(11, 12));
  Welcome(0);
  EXPECT_THAT(sink_.Take(), ElementsAre("up i11"));
  lease_.OnMemberHeartbeat(sink_.refs[0], 777, now_);
  lease_.OnTick(now_);
  EXPECT_EQ(sink_.heartbeats, 1);
  EXPECT_EQ(sink_.last_heartbeat, "i11 echo 777");
  lease_.OnTick(now_ + 1);
  EXPECT_EQ(sink_.heartbeats, 1);  // not due
  Pass(4 * times_.heartbeat);
  EXPECT_EQ(sink_.heartbeats, 5);
}

TEST_F(HolderLeaseTest, RefusedConnectionIsDeathAtOnce) {
  BindAndUp();
  lease_.OnMemberRefused(sink_.refs[0], now_);
  EXPECT_THAT(sink_.Take(), ElementsAre("disconnect i11", "lost i11"));
  EXPECT_EQ(sink_.loss,
            "slice 0 (ps0) lost worker w11 on h (i11): its process has ended (connection refused); "
            "its log there: /logs/w.log");
  EXPECT_THAT(sink_.reports.back().dead(), ElementsAre(11));
  EXPECT_THAT(sink_.reports.back().requests(0).slices(0).members(), ElementsAre(0, 12));
  Pass(times_.heartbeat);  // the other one goes on
  EXPECT_THAT(sink_.Take(), IsEmpty());
}

// Clients of a refused proxy hear why; they must not see devices that it never gets.
TEST_F(HolderLeaseTest, ARefusedProxyHasNoFleet) {
  HolderUpdate update = Update();
  update.set_refused("wrong version");
  lease_.OnUpdate(update, now_);
  EXPECT_THAT(sink_.Take(), ElementsAre("refused wrong version"));
  EXPECT_FALSE(lease_.fleet().has_value());
  EXPECT_EQ(lease_.refused(), "wrong version");
  lease_.OnUpdate(Update(), now_);  // the resource manager was upgraded
  EXPECT_TRUE(lease_.fleet().has_value());
  EXPECT_EQ(lease_.refused(), "");
}

// A broken stream is not a dead worker: it is resumed, and lost only by silence for a lease.
TEST_F(HolderLeaseTest, BrokenStreamIsNotDeath) {
  BindAndUp();
  lease_.OnMemberDisconnected(sink_.refs[0], now_);
  EXPECT_THAT(sink_.Take(), IsEmpty());
  const int before = sink_.heartbeats;
  Pass(times_.lease / 2, false);
  EXPECT_GT(sink_.heartbeats, before);  // to the other one
  EXPECT_THAT(sink_.Take(), IsEmpty());
  Welcome(0);
  EXPECT_THAT(sink_.Take(), IsEmpty());  // not "up" again
  Pass(times_.lease + times_.heartbeat, false);
  EXPECT_THAT(sink_.Take(), ElementsAre("disconnect i12", "lost i12", "disconnect i11", "lost i11"));
}

TEST_F(HolderLeaseTest, NewLifeTakesThePlaceUnderTheSameLease) {
  BindAndUp();
  Bind(MakeGrant(1), {13, 12});
  EXPECT_THAT(sink_.Take(), ElementsAre("disconnect i11", "lost i11", "connect i13 h:13"));
  Welcome(2);
  EXPECT_THAT(sink_.Take(), ElementsAre("up i13"));  // and nothing about i12 or the slice
}

// An RM that has just started may hear the one that was stopped before the one that took its place.
TEST_F(HolderLeaseTest, ALifeThatWasLostAndReplacedNeverReturnsUnderTheGrant) {
  BindAndUp();
  for (int i = 0; i < 12; ++i) {
    Pass(times_.heartbeat, false);
    lease_.OnMemberHeartbeat(sink_.refs[0], now_, now_);
  }
  EXPECT_THAT(sink_.Take(), ElementsAre("disconnect i12", "lost i12"));
  Bind(MakeGrant(1), {11, 22});
  Welcome(2);
  EXPECT_THAT(sink_.Take(), ElementsAre("connect i22 h:22", "up i22"));
  Bind(MakeGrant(1), {11, 12});
  EXPECT_THAT(sink_.Take(), IsEmpty());
  EXPECT_THAT(sink_.reports.back().requests(0).slices(0).members(), ElementsAre(11, 22));
  Bind(MakeGrant(2), {11, 12});  // another grant, another stream
  EXPECT_THAT(sink_.Take(),
              ElementsAre("disconnect i11", "lost i11", "disconnect i22", "lost i22", "slice lost 0 ps0/g1.1",
                          "bound 0 ps0/g1.2 x2", "connect i11 h:11", "connect i12 h:12"));
}

TEST_F(HolderLeaseTest, VacantPlaceSaysNothingAboutAWorkerThatWeHear) {
  BindAndUp();
  Bind(MakeGrant(1), {0, 12});  // the RM does not hear it
  EXPECT_THAT(sink_.Take(), IsEmpty());
  Pass(times_.lease);
  EXPECT_THAT(sink_.Take(), IsEmpty());
}

TEST_F(HolderLeaseTest, FencedMemberNeverResumes) {
  BindAndUp();
  Welcome(0, ControlWelcome::FENCED);
  EXPECT_THAT(sink_.Take(), ElementsAre("disconnect i11", "lost i11"));
  Welcome(0);  // late answer on an old connection
  EXPECT_THAT(sink_.Take(), IsEmpty());
}

// Counterexample: an RM in its start window does not know the leases; "not listed" is no revocation there.
TEST_F(HolderLeaseTest, UnsettledRmEndsNothing) {
  BindAndUp();
  HolderUpdate update = Update(kTerm2);
  update.set_settled(false);
  update.add_requests()->set_id(request_);
  update.mutable_requests(0)->add_slices();
  lease_.OnUpdate(update, now_);
  EXPECT_THAT(sink_.Take(), IsEmpty());
  // Settled, but it has not read our announcement yet.
  update = Update(kTerm2);
  update.set_answers(0);
  update.add_requests()->set_id(request_);
  update.mutable_requests(0)->add_slices();
  lease_.OnUpdate(update, now_);
  EXPECT_THAT(sink_.Take(), IsEmpty());
  update = Update(kTerm2);
  update.add_requests()->set_id(request_);
  update.mutable_requests(0)->add_slices();
  lease_.OnUpdate(update, now_);
  EXPECT_THAT(sink_.Take(),
              ElementsAre("disconnect i11", "lost i11", "disconnect i12", "lost i12", "slice lost 0 ps0/g1.1"));
  EXPECT_FALSE(sink_.reports.back().requests(0).slices(0).has_grant());  // and stays in the queue
}

TEST_F(HolderLeaseTest, OldTermAndOldGrantAreIgnored) {
  BindAndUp();
  Bind(MakeGrant(2, 1), {21, 22});
  EXPECT_THAT(sink_.Take(),
              ElementsAre("disconnect i11", "lost i11", "disconnect i12", "lost i12", "slice lost 0 ps0/g1.1",
                          "bound 0 ps1/g1.2 x2", "connect i21 h:21", "connect i22 h:22"));
  Bind(MakeGrant(1), {11, 12});
  EXPECT_THAT(sink_.Take(), IsEmpty());
  lease_.OnUpdate(Update(kTerm2), now_);
  sink_.Take();
  HolderUpdate old = Update(kTerm1);
  RequestUpdate* request = old.add_requests();
  request->set_id(request_);
  AddSlice(request, MakeGrant(9), {31, 32});
  lease_.OnUpdate(old, now_);
  EXPECT_THAT(sink_.Take(), IsEmpty());
}

// After a pause the silence of others is judged only after what has arrived was read; our own lease is over when the
// workers must have fenced us.
TEST_F(HolderLeaseTest, PauseRestartsSilenceButNotOurLease) {
  BindAndUp();
  Pass(times_.heartbeat);
  now_ += times_.lease - times_.heartbeat / 2;
  lease_.OnTick(now_);
  EXPECT_THAT(sink_.Take(), IsEmpty());
  Pass(times_.heartbeat);
  now_ += WaitForOthersLease(times_) + times_.worst_delay + times_.heartbeat;
  lease_.OnMemberHeartbeat(sink_.refs[0], now_, now_);
  EXPECT_THAT(sink_.Take(), ElementsAre("disconnect i11", "lost i11", "disconnect i12", "lost i12"));
  EXPECT_THAT(sink_.loss, HasSubstr("this proxy was stopped"));
}

TEST_F(HolderLeaseTest, ReleaseIsNoLoss) {
  BindAndUp();
  lease_.Release({request_, 0}, now_);
  EXPECT_THAT(sink_.Take(), ElementsAre("disconnect i11", "disconnect i12"));
  EXPECT_TRUE(sink_.reports.back().requests(0).slices(0).released());
  Bind(MakeGrant(1), {11, 12});  // a late update
  EXPECT_THAT(sink_.Take(), IsEmpty());
  lease_.OnLeaving(now_);
  EXPECT_TRUE(sink_.reports.back().leaving());
  EXPECT_EQ(sink_.reports.back().requests_size(), 0);
}

TEST_F(HolderLeaseTest, DrainingIsPassedOn) {
  BindAndUp();
  HolderUpdate update = Update();
  RequestUpdate* request = update.add_requests();
  request->set_id(request_);
  AddSlice(request, MakeGrant(1), {11, 12});
  request->mutable_slices(0)->mutable_members(1)->set_draining("SIGTERM");
  lease_.OnUpdate(update, now_);
  EXPECT_THAT(sink_.Take(), ElementsAre("drains i12 SIGTERM"));
}

}  // namespace
}  // namespace landbridge
