#include "cluster/worker_lease.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/lease_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ReportRecorder : public WorkerLeaseSink {
 public:
  void SendReport(MemberReport report) override { reports.push_back(std::move(report)); }
  void Activated(const Grant& grant, ProxyLife holder) override {
    events.push_back(absl::StrCat("active ", grant.ToString(), " ", holder.ToString()));
  }
  void Fence(const Grant& grant, const absl::Status& why) override {
    EXPECT_EQ(why.code(), absl::StatusCode::kDataLoss);
    events.push_back(absl::StrCat("fence ", grant.ToString()));
  }
  void RestartProcess(const std::string& why) override { events.push_back("restart: " + why); }
  void Refused(const std::string& why) override { events.push_back("refused: " + why); }
  void Placed(PhysicalSliceId slice, int index) override {
    events.push_back(absl::StrCat("placed ", slice.ToString(), ".", index));
  }
  std::vector<std::string> Take() { return std::exchange(events, {}); }

  std::vector<MemberReport> reports;
  std::vector<std::string> events;
};

class WorkerLeaseTest : public ::testing::Test {
 protected:
  WorkerLeaseTest() : lease_(Incarnation(7), Info(), times_, &sink_) { lease_.OnRmConnected(now_); }
  static WorkerInfo Info() {
    WorkerInfo info;
    info.set_version("1.0");
    info.set_name("w0");
    return info;
  }
  static Grant MakeGrant(uint64_t term, uint64_t count, int slice = 0) {
    return Grant{PhysicalSliceId(slice), {term, count}, absl::StrCat("secret", term, ".", count)};
  }
  MemberUpdate Update(uint64_t term) {
    MemberUpdate update;
    update.set_term(term);
    update.set_number(++number_);
    update.set_incarnation(7);
    update.set_know_info(true);
    update.set_placed(true);
    return update;
  }
  void Offer(const Grant& grant, uint64_t holder, uint64_t rm_term = 0) {
    MemberUpdate update = Update(rm_term == 0 ? grant.number.term : rm_term);
    MemberOffer* offer = update.add_offers();
    *offer->mutable_grant() = grant.ToProto();
    offer->set_holder(holder);
    lease_.OnUpdate(update, now_);
  }
  ControlWelcome::Refusal Hello(const Grant& grant, uint64_t life, uint64_t incarnation = 7,
                                const std::string& version = "1.0") {
    ControlHello hello;
    hello.set_version(version);
    hello.set_life(life);
    hello.set_incarnation(incarnation);
    *hello.mutable_grant() = grant.ToProto();
    return lease_.OnHello(hello, now_).refusal();
  }
  // Ticks as a live process does.
  void Pass(DurationNs time) {
    for (const TimeNs end = now_ + time; now_ < end;) {
      now_ = std::min(end, now_ + TickPeriod(times_));
      lease_.OnTick(now_);
    }
  }

  LeaseTimes times_;
  ReportRecorder sink_;
  TimeNs now_ = 100 * kSecond;
  uint64_t number_ = 0;
  WorkerLease lease_;
};

// Once the holder has come it counts the worker as lost after one lease of silence, and may fill its place: the worker must
// not wait for a first renewal any longer than that. (Simulator, seed 14107: a worker stopped right after the hand-shake.)
TEST_F(WorkerLeaseTest, AHolderThatCameAndFellSilentIsNotWaitedForAsLongAsOneThatNeverCame) {
  const Grant grant = MakeGrant(kTerm1, 1);
  Offer(grant, 50);
  Pass(times_.lease + kSecond);
  EXPECT_THAT(sink_.Take(), ElementsAre("placed ps0.0", "active ps0/g1.1 p50"));  // it may still come
  EXPECT_EQ(Hello(grant, 50), ControlWelcome::NONE);
  Pass(times_.lease - TickPeriod(times_));
  EXPECT_TRUE(lease_.Holds(grant, now_));
  Pass(2 * TickPeriod(times_));
  EXPECT_FALSE(lease_.Holds(grant, now_));
  EXPECT_THAT(sink_.Take(), ElementsAre("fence ps0/g1.1"));
}

TEST_F(WorkerLeaseTest, ReportsItselfUntilTheRmKnowsIt) {
  ASSERT_EQ(sink_.reports.size(), 1u);
  EXPECT_EQ(sink_.reports[0].info().name(), "w0");
  EXPECT_EQ(sink_.reports[0].promised_term(), 0u);
  lease_.OnUpdate(Update(kTerm1), now_);
  EXPECT_THAT(sink_.Take(), ElementsAre("placed ps0.0"));
  EXPECT_EQ(sink_.reports.back().promised_term(), kTerm1);
  EXPECT_FALSE(sink_.reports.back().has_info());
  EXPECT_TRUE(sink_.reports.back().placed());
  // Again to an RM that has forgotten.
  MemberUpdate update = Update(kTerm2);
  update.set_know_info(false);
  lease_.OnUpdate(update, now_);
  EXPECT_TRUE(sink_.reports.back().has_info());
  const size_t before = sink_.reports.size();
  Pass(times_.heartbeat);
  EXPECT_EQ(sink_.reports.size(), before + 1);
  EXPECT_GT(sink_.reports.back().number(), sink_.reports[before - 1].number());
}

// Found by landbridge-sim: stopped for so long that the RM had forgotten it, a worker gave up its place at the RM's
// question who it was, got a place in another slice, and served two slices with one set of devices.
TEST_F(WorkerLeaseTest, AnRmThatAsksWhoWeAreTakesNoPlaceAway) {
  lease_.OnUpdate(Update(kTerm1), now_);
  Offer(MakeGrant(kTerm1, 1), 50);
  MemberUpdate update = Update(kTerm1);
  update.set_know_info(false);
  update.set_placed(false);
  lease_.OnUpdate(update, now_);
  EXPECT_TRUE(lease_.placed());
  EXPECT_TRUE(sink_.reports.back().has_info());
  EXPECT_TRUE(sink_.reports.back().placed());
  ASSERT_EQ(sink_.reports.back().leases_size(), 1);
  // One that knows us may.
  update = Update(kTerm1);
  update.set_placed(false);
  lease_.OnUpdate(update, now_);
  EXPECT_FALSE(lease_.placed());
}

TEST_F(WorkerLeaseTest, GrantLetsItsHolderIn) {
  const Grant grant = MakeGrant(kTerm1, 1);
  EXPECT_EQ(Hello(grant, 50), ControlWelcome::NOT_YET);
  Offer(grant, 50);
  EXPECT_THAT(sink_.Take(), ElementsAre("placed ps0.0", "active ps0/g1.1 p50"));
  EXPECT_EQ(sink_.reports.back().leases(0).state(), MemberLease::ACTIVE);
  EXPECT_EQ(Hello(grant, 50), ControlWelcome::NONE);
  EXPECT_EQ(Hello(grant, 50, 8), ControlWelcome::INCARNATION);
  EXPECT_EQ(Hello(grant, 50, 7, "0.9"), ControlWelcome::VERSION);
  EXPECT_EQ(Hello(grant, 51), ControlWelcome::FENCED);  // another proxy with a stolen grant
  EXPECT_EQ(Hello(MakeGrant(kTerm1, 2), 50), ControlWelcome::NOT_YET);
  Grant forged = grant;
  forged.secret = "guess";
  EXPECT_EQ(Hello(forged, 50), ControlWelcome::FENCED);
  EXPECT_FALSE(lease_.OnHolderHeartbeat(forged, 0, now_));
  EXPECT_FALSE(lease_.Holds(forged, now_));
  EXPECT_TRUE(lease_.Holds(grant, now_));
}

// Counterexample "last received wins": the late offer of the old grant lets the old holder back in.
TEST_F(WorkerLeaseTest, OldGrantNeverComesBack) {
  const Grant first = MakeGrant(kTerm1, 1);
  const Grant second = MakeGrant(kTerm1, 2);
  Offer(first, 50);
  Offer(second, 51);
  lease_.OnOldWorkEnded(PhysicalSliceId(0), now_);
  sink_.Take();
  Offer(first, 50);  // delayed on the way, with a newer message number even
  EXPECT_THAT(sink_.Take(), IsEmpty());
  EXPECT_FALSE(lease_.Holds(first, now_));
  EXPECT_EQ(Hello(first, 50), ControlWelcome::FENCED);
  EXPECT_TRUE(lease_.Holds(second, now_));
}

// Counterexample: grants ordered by random tokens wedge when the new token is the smaller number; (term, count) with
// any secret does not.
TEST_F(WorkerLeaseTest, SecretDoesNotOrder) {
  Grant first = MakeGrant(kTerm1, 1);
  first.secret = "zzz";
  Grant second = MakeGrant(kTerm1, 2);
  second.secret = "aaa";
  Offer(first, 50);
  Offer(second, 51);
  lease_.OnOldWorkEnded(PhysicalSliceId(0), now_);
  EXPECT_TRUE(lease_.Holds(second, now_));
}

// Counterexample: without the promise, a stopped RM of term 1 that resumes revokes and grants behind the back of the
// RM of term 2.
TEST_F(WorkerLeaseTest, PromisedTermRefusesOlderResourceManagers) {
  lease_.OnUpdate(Update(kTerm2), now_);  // in its start window: a promise, no grant
  EXPECT_EQ(lease_.promised_term(), kTerm2);
  sink_.Take();
  const size_t before = sink_.reports.size();
  Offer(MakeGrant(kTerm1, 9), 50);
  EXPECT_THAT(sink_.Take(), IsEmpty());
  EXPECT_TRUE(lease_.leases().empty());
  EXPECT_EQ(sink_.reports.size(), before + 1);  // shows the old RM what it has missed
  EXPECT_EQ(sink_.reports.back().promised_term(), kTerm2);
}

TEST_F(WorkerLeaseTest, RebindsAnOlderTermsGrantForTheNewRm) {
  // The lease is from term 1, the RM has restarted since: this new life joins under the old grant.
  Offer(MakeGrant(kTerm1, 5), 50, kTerm2);
  EXPECT_TRUE(lease_.Holds(MakeGrant(kTerm1, 5), now_));
}

TEST_F(WorkerLeaseTest, IgnoresUpdatesForAnotherLifeAndOldNumbers) {
  MemberUpdate update = Update(kTerm1);
  update.set_incarnation(8);
  *update.add_offers()->mutable_grant() = MakeGrant(kTerm1, 1).ToProto();
  lease_.OnUpdate(update, now_);
  EXPECT_TRUE(lease_.leases().empty());
  MemberUpdate old = Update(kTerm1);
  lease_.OnUpdate(Update(kTerm1), now_);
  *old.add_offers()->mutable_grant() = MakeGrant(kTerm1, 1).ToProto();
  lease_.OnUpdate(old, now_);
  EXPECT_TRUE(lease_.leases().empty());
}

// Counterexample: acknowledging at once lets the new holder's programs run beside the old one's on the same memory.
TEST_F(WorkerLeaseTest, AcknowledgesOnlyAfterTheOldWorkHasEnded) {
  const Grant first = MakeGrant(kTerm1, 1);
  const Grant second = MakeGrant(kTerm1, 2);
  Offer(first, 50);
  sink_.Take();
  Offer(second, 51);
  EXPECT_THAT(sink_.Take(), ElementsAre("fence ps0/g1.1"));
  EXPECT_EQ(sink_.reports.back().leases(0).state(), MemberLease::CLOSING);
  EXPECT_EQ(Hello(second, 51), ControlWelcome::NOT_YET);
  EXPECT_FALSE(lease_.Holds(first, now_));
  EXPECT_FALSE(lease_.Holds(second, now_));
  lease_.OnOldWorkEnded(PhysicalSliceId(0), now_);
  EXPECT_THAT(sink_.Take(), ElementsAre("active ps0/g1.2 p51"));
  EXPECT_EQ(sink_.reports.back().leases(0).state(), MemberLease::ACTIVE);
}

TEST_F(WorkerLeaseTest, WorkThatDoesNotEndRestartsTheProcess) {
  Offer(MakeGrant(kTerm1, 1), 50);
  Offer(MakeGrant(kTerm1, 2), 51);
  sink_.Take();
  Pass(times_.old_work);
  EXPECT_THAT(sink_.Take(), IsEmpty());
  Pass(times_.heartbeat);
  EXPECT_THAT(sink_.Take(), ElementsAre(HasSubstr("restart: work of an ended lease of ps0 still runs")));
  Pass(times_.old_work);
  EXPECT_THAT(sink_.Take(), IsEmpty());  // said once
}

TEST_F(WorkerLeaseTest, FencesItselfWhenTheHolderIsSilent) {
  const Grant grant = MakeGrant(kTerm1, 1);
  Offer(grant, 50);
  EXPECT_TRUE(lease_.OnHolderHeartbeat(grant, 0, now_));
  EXPECT_TRUE(sink_.reports.back().leases(0).renewed());
  sink_.Take();
  Pass(times_.lease - kMillisecond);
  EXPECT_THAT(sink_.Take(), IsEmpty());
  EXPECT_TRUE(lease_.Holds(grant, now_));
  Pass(kMillisecond);
  EXPECT_THAT(sink_.Take(), ElementsAre("fence ps0/g1.1"));
  EXPECT_FALSE(lease_.OnHolderHeartbeat(grant, 0, now_));  // too late: it never resumes
  EXPECT_EQ(Hello(grant, 50), ControlWelcome::FENCED);
  ASSERT_EQ(sink_.reports.back().ended_size(), 1);
  EXPECT_EQ(sink_.reports.back().ended(0).count(), 1u);
}

TEST_F(WorkerLeaseTest, HeartbeatsKeepTheLeaseWithoutAnyRm) {
  const Grant grant = MakeGrant(kTerm1, 1);
  Offer(grant, 50);
  lease_.OnRmDisconnected(now_);
  for (int i = 0; i < 100; ++i) {
    Pass(times_.heartbeat);
    ASSERT_TRUE(lease_.OnHolderHeartbeat(grant, now_, now_));
  }
  EXPECT_TRUE(lease_.Holds(grant, now_));
}

TEST_F(WorkerLeaseTest, HolderThatNeverComesLosesTheGrant) {
  const Grant grant = MakeGrant(kTerm1, 1);
  Offer(grant, 50);
  Pass(times_.lease * 2);
  EXPECT_TRUE(lease_.Holds(grant, now_));  // other members may still be ending old work
  Pass(FirstRenewalLimit(times_));
  EXPECT_FALSE(lease_.Holds(grant, now_));
}

// Counterexample: the process was stopped past its lease; the heartbeats that waited in its socket must not revive it.
TEST_F(WorkerLeaseTest, PauseLongerThanTheLeaseFences) {
  const Grant grant = MakeGrant(kTerm1, 1);
  Offer(grant, 50);
  ASSERT_TRUE(lease_.OnHolderHeartbeat(grant, 0, now_));
  sink_.Take();
  now_ += times_.lease + kSecond;
  EXPECT_FALSE(lease_.OnHolderHeartbeat(grant, now_, now_));  // even one that claims to be fresh
  EXPECT_THAT(sink_.Take(), ElementsAre("fence ps0/g1.1"));
}

// Counterexample: after a pause shorter than the lease, a renewal that is read late but was sent early would extend
// the lease beyond what others wait for.
TEST_F(WorkerLeaseTest, RenewalReadAfterAPauseDoesNotExtend) {
  const Grant grant = MakeGrant(kTerm1, 1);
  Offer(grant, 50);
  const TimeNs heard = now_;
  ASSERT_TRUE(lease_.OnHolderHeartbeat(grant, now_ - kMillisecond, now_));
  now_ += times_.lease - 200 * kMillisecond;
  EXPECT_TRUE(lease_.OnHolderHeartbeat(grant, heard, now_));  // was in the socket
  ASSERT_EQ(lease_.leases().size(), 1u);
  EXPECT_EQ(lease_.leases()[0].deadline, heard + times_.lease);
  const TimeNs resumed = now_;
  Pass(50 * kMillisecond);
  EXPECT_TRUE(lease_.OnHolderHeartbeat(grant, resumed, now_));  // its sender had heard us after the pause
  EXPECT_EQ(lease_.leases()[0].deadline, now_ + times_.lease);
}

TEST_F(WorkerLeaseTest, RevocationEndsTheGrantAndAllBelow) {
  const Grant grant = MakeGrant(kTerm1, 3);
  Offer(grant, 50);
  sink_.Take();
  MemberUpdate update = Update(kTerm1);
  RevokedUpTo* revoked = update.add_revoked();
  revoked->set_slice(0);
  revoked->set_term(kTerm1);
  revoked->set_count(4);
  lease_.OnUpdate(update, now_);
  EXPECT_THAT(sink_.Take(), ElementsAre("fence ps0/g1.3"));
  Offer(MakeGrant(kTerm1, 4), 50);
  EXPECT_TRUE(lease_.leases().empty());
  Offer(MakeGrant(kTerm1, 5), 50);
  lease_.OnOldWorkEnded(PhysicalSliceId(0), now_);
  EXPECT_TRUE(lease_.Holds(MakeGrant(kTerm1, 5), now_));
}

TEST_F(WorkerLeaseTest, SlicesAreFencedOneByOne) {
  const Grant a = MakeGrant(kTerm1, 1, 0);
  const Grant b = MakeGrant(kTerm1, 2, 1);
  Offer(a, 50);
  Offer(b, 51);
  ASSERT_TRUE(lease_.OnHolderHeartbeat(a, 0, now_));
  ASSERT_TRUE(lease_.OnHolderHeartbeat(b, 0, now_));
  Pass(times_.lease / 2);
  ASSERT_TRUE(lease_.OnHolderHeartbeat(b, 0, now_));
  Pass(times_.lease / 2);
  EXPECT_FALSE(lease_.Holds(a, now_));
  EXPECT_TRUE(lease_.Holds(b, now_));
}

TEST_F(WorkerLeaseTest, DrainingTakesNoNewGrant) {
  lease_.OnDrain("SIGTERM", now_);
  EXPECT_EQ(sink_.reports.back().draining(), "SIGTERM");
  Offer(MakeGrant(kTerm1, 1), 50);
  EXPECT_TRUE(lease_.leases().empty());
  lease_.OnLeaving(now_);
  EXPECT_TRUE(sink_.reports.back().leaving());
}

TEST_F(WorkerLeaseTest, ReplacedWorkerRestarts) {
  MemberUpdate update = Update(kTerm1);
  update.set_replaced(true);
  lease_.OnUpdate(update, now_);
  EXPECT_THAT(sink_.Take(), ElementsAre(HasSubstr("restart: another worker has taken"), "placed ps0.0"));
}

}  // namespace
}  // namespace landbridge
