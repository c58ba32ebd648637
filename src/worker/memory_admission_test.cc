#include "worker/memory_admission.h"

#include <limits>

#include "gtest/gtest.h"
#include "worker/core_context.h"

namespace landbridge {
namespace {

constexpr PoolId kDevice0{0, false};
constexpr PoolId kHost0{0, true};
using Answer = MemoryAdmission::Answer;

Waiter Who(uint32_t index) { return Waiter{WaiterKind::kLaunch, SlabHandle{index, 1}}; }
MemoryAdmission::Key T(uint64_t ticket) { return {Ticket(ticket), 0}; }

TEST(MemoryAdmissionTest, YoungerNeverPassesOlder) {
  MemoryAdmission memory({100}, {});
  EXPECT_EQ(memory.Ask(kDevice0, T(1), Who(1), 80), Answer::kReserved);
  EXPECT_EQ(memory.Ask(kDevice0, T(2), Who(2), 50), Answer::kWaits);
  EXPECT_EQ(memory.Ask(kDevice0, T(3), Who(3), 10), Answer::kWaits);  // it would fit
  EXPECT_EQ(memory.Ask(kDevice0, T(4), Who(4), 0), Answer::kReserved);
  EXPECT_FALSE(memory.NextGranted().has_value());
  memory.Release(kDevice0, 30);
  EXPECT_EQ(memory.NextGranted()->who.handle.index, 2u);
  EXPECT_FALSE(memory.NextGranted().has_value());  // full again: 50 + 50
  memory.Release(kDevice0, 50);
  EXPECT_EQ(memory.NextGranted()->who.handle.index, 3u);
  EXPECT_EQ(memory.figures(kDevice0).used, 60);
  EXPECT_EQ(memory.figures(kDevice0).peak, 100);
}

TEST(MemoryAdmissionTest, AnOlderTicketThatComesLateGoesFirst) {
  MemoryAdmission memory({100}, {});
  EXPECT_EQ(memory.Ask(kDevice0, T(5), Who(5), 100), Answer::kReserved);
  EXPECT_EQ(memory.Ask(kDevice0, T(6), Who(6), 10), Answer::kWaits);
  EXPECT_EQ(memory.Ask(kDevice0, T(3), Who(3), 10), Answer::kWaits);
  memory.Release(kDevice0, 10);
  EXPECT_EQ(memory.NextGranted()->who.handle.index, 3u);
  EXPECT_FALSE(memory.NextGranted().has_value());
  EXPECT_EQ(memory.Head(kDevice0)->ticket, Ticket(6));
}

TEST(MemoryAdmissionTest, WithdrawingTheOldestLetsTheNextIn) {
  MemoryAdmission memory({100}, {});
  EXPECT_EQ(memory.Ask(kDevice0, T(1), Who(1), 80), Answer::kReserved);
  EXPECT_EQ(memory.Ask(kDevice0, T(2), Who(2), 50), Answer::kWaits);
  EXPECT_EQ(memory.Ask(kDevice0, T(3), Who(3), 10), Answer::kWaits);
  memory.Withdraw(kDevice0, T(2));
  EXPECT_EQ(memory.NextGranted()->who.handle.index, 3u);
  EXPECT_FALSE(memory.AnyWaiting());
}

TEST(MemoryAdmissionTest, LargerThanTheLimitNeverFits) {
  MemoryAdmission memory({100}, {});
  EXPECT_EQ(memory.Ask(kDevice0, T(1), Who(1), 101), Answer::kNeverFits);
  const absl::Status status = memory.DoesNotFit(kDevice0, T(1), 101);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message().substr(0, 62), "t1 needs 101 bytes on device 0: 0 of 100 bytes are in use, and");
}

TEST(MemoryAdmissionTest, HostMemoryIsAPoolOfItsOwn) {
  MemoryAdmission memory({100, 100}, {50});
  EXPECT_EQ(memory.Ask(kHost0, T(1), Who(1), 60), Answer::kNeverFits);
  EXPECT_EQ(memory.Ask(kHost0, T(1), Who(1), 50), Answer::kReserved);
  EXPECT_EQ(memory.figures(kDevice0).used, 0);
  // No limit given: none.
  EXPECT_EQ(memory.Ask(PoolId{1, true}, T(1), Who(1), int64_t{1} << 50), Answer::kReserved);
}

TEST(MemoryAdmissionTest, SumsDoNotOverflow) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(AddBytes(kMax, 1), kMax);
  EXPECT_EQ(AddBytes(kMax - 1, 1), kMax);
  EXPECT_EQ(AddBytes(2, 3), 5);
}

TEST(MemoryNeedsTest, OneRequestPerPoolInAnyOrder) {
  MemoryNeeds needs;
  for (uint32_t device : {2u, 3u, 0u, 3u, 1u}) needs.Add({device, false}, 10 + device);
  needs.Add(kHost0, 5);
  needs.Add({1, false}, 0);  // nothing
  EXPECT_EQ(needs.BytesOf({0, false}), 10);
  EXPECT_EQ(needs.BytesOf(kHost0), 5);
  EXPECT_EQ(needs.BytesOf({1, false}), 11);
  EXPECT_EQ(needs.BytesOf({2, false}), 12);
  EXPECT_EQ(needs.BytesOf({3, false}), 26);
  EXPECT_EQ(needs.BytesOf({3, true}), 0);
  EXPECT_EQ(needs.BytesOf({4, false}), 0);
  EXPECT_EQ(needs.all().size(), 5u);
}

}  // namespace
}  // namespace landbridge
