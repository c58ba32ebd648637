#include "worker/sequencer.h"

#include <map>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Candidate Make(uint64_t ticket, std::vector<uint32_t> devices, DurationNs estimate = 0, uint64_t session = 1,
               int priority = 0, TimeNs ready_since = 0) {
  Candidate candidate;
  candidate.ticket = Ticket(ticket);
  candidate.session = SessionId(session);
  candidate.priority = priority;
  candidate.devices = std::move(devices);
  candidate.estimated_run_ns = estimate;
  candidate.ready_since = ready_since;
  return candidate;
}

std::vector<uint64_t> Tickets(const std::vector<LogEntry>& entries) {
  std::vector<uint64_t> tickets;
  for (const LogEntry& entry : entries) tickets.push_back(entry.ticket.value());
  return tickets;
}

Sequencer::Options Options() {
  Sequencer::Options options;
  options.placed_run_time = 5 * kMillisecond;
  return options;
}

TEST(SequencerTest, PlacesInClientOrderAndNumbersEntries) {
  Sequencer sequencer(Options(), MakeClientOrderPolicy(), 7);
  sequencer.AddCandidate(Make(9, {0}));
  sequencer.AddCandidate(Make(4, {0}));
  const auto entries = sequencer.Place(0);
  EXPECT_THAT(Tickets(entries), ElementsAre(4, 9));
  EXPECT_EQ(entries[0].place, 1u);
  EXPECT_EQ(entries[1].place, 2u);
  EXPECT_EQ(sequencer.epoch(), 7u);
  EXPECT_EQ(sequencer.tail(), 2u);
  EXPECT_TRUE(sequencer.Placed(Ticket(4)));
  EXPECT_EQ(sequencer.done_through(), 0u);
  sequencer.OnFinished(Ticket(9), 10);
  EXPECT_EQ(sequencer.done_through(), 0u);
  sequencer.OnFinished(Ticket(4), 10);
  EXPECT_EQ(sequencer.done_through(), 2u);
  EXPECT_FALSE(sequencer.Placed(Ticket(4)));
}

TEST(SequencerTest, TwoWhileTheRunTimeIsUnknown) {
  Sequencer sequencer(Options(), MakeClientOrderPolicy(), 1);
  for (uint64_t t = 1; t <= 5; ++t) sequencer.AddCandidate(Make(t, {0}));
  EXPECT_THAT(Tickets(sequencer.Place(0)), ElementsAre(1, 2));
  EXPECT_THAT(sequencer.Place(0), IsEmpty());
  sequencer.OnFinished(Ticket(1), 1000);
  EXPECT_THAT(Tickets(sequencer.Place(0)), ElementsAre(3));
}

TEST(SequencerTest, LaunchesWorthFiveMilliseconds) {
  Sequencer sequencer(Options(), MakeClientOrderPolicy(), 1);
  for (uint64_t t = 1; t <= 20; ++t) sequencer.AddCandidate(Make(t, {0}, kMillisecond));
  EXPECT_THAT(Tickets(sequencer.Place(0)), ElementsAre(1, 2, 3, 4, 5));
}

TEST(SequencerTest, AtLeastOneAtMostSixteen) {
  Sequencer sequencer(Options(), MakeClientOrderPolicy(), 1);
  for (uint64_t t = 1; t <= 40; ++t) {
    sequencer.AddCandidate(Make(t, {0}, kMicrosecond));
    sequencer.AddCandidate(Make(100 + t, {1}, kSecond));
  }
  std::map<uint32_t, int> placed;
  for (const LogEntry& entry : sequencer.Place(0)) ++placed[entry.devices[0]];
  EXPECT_EQ(placed[0], 16);
  EXPECT_EQ(placed[1], 1);
}

// One long gang on devices 0 and 1 has no say over devices 2 and 3.
TEST(SequencerTest, DisjointGroupsDoNotWaitForEachOther) {
  Sequencer sequencer(Options(), MakeClientOrderPolicy(), 1);
  for (uint64_t t = 1; t <= 4; ++t) sequencer.AddCandidate(Make(t, {0, 1}, kSecond));
  for (uint64_t t = 5; t <= 6; ++t) sequencer.AddCandidate(Make(t, {3, 2}, kSecond));
  EXPECT_THAT(Tickets(sequencer.Place(0)), ElementsAre(1, 5));
  sequencer.OnFinished(Ticket(5), kSecond);
  EXPECT_THAT(Tickets(sequencer.Place(0)), ElementsAre(6));
}

TEST(SequencerTest, AGangNeedsRoomOnAllItsDevices) {
  Sequencer sequencer(Options(), MakeClientOrderPolicy(), 1);
  sequencer.AddCandidate(Make(1, {1}, kSecond));
  EXPECT_THAT(Tickets(sequencer.Place(0)), ElementsAre(1));
  sequencer.AddCandidate(Make(2, {0, 1}, kSecond));
  EXPECT_THAT(sequencer.Place(0), IsEmpty());
  sequencer.OnFinished(Ticket(1), kSecond);
  EXPECT_THAT(Tickets(sequencer.Place(0)), ElementsAre(2));
}

TEST(SequencerTest, WithdrawnIsNotPlaced) {
  Sequencer sequencer(Options(), MakeClientOrderPolicy(), 1);
  sequencer.AddCandidate(Make(1, {0}));
  sequencer.AddCandidate(Make(2, {0}));
  sequencer.Withdraw(Ticket(1));
  sequencer.Withdraw(Ticket(77));
  EXPECT_EQ(sequencer.candidates(), 1u);
  EXPECT_THAT(Tickets(sequencer.Place(0)), ElementsAre(2));
}

TEST(SequencerTest, PriorityThenTicket) {
  Sequencer sequencer(Options(), MakePriorityPolicy(), 1);
  sequencer.AddCandidate(Make(1, {0}, kSecond, 1, 0));
  sequencer.AddCandidate(Make(3, {0}, kSecond, 1, 5));
  sequencer.AddCandidate(Make(2, {0}, kSecond, 1, 5));
  std::vector<uint64_t> order;
  for (int i = 0; i < 3; ++i) {
    const auto entries = sequencer.Place(0);
    ASSERT_EQ(entries.size(), 1u);
    order.push_back(entries[0].ticket.value());
    sequencer.OnFinished(entries[0].ticket, kSecond);
  }
  EXPECT_THAT(order, ElementsAre(2, 3, 1));
}

// Two streams of small launches keep devices 0 and 1 busy in turn, so that a gang on both never sees room on both at
// once. Past the age limit its devices are kept free.
TEST(SequencerTest, AgeLimitEndsStarvation) {
  for (const DurationNs limit : {DurationNs{0}, 100 * kMillisecond}) {
    Sequencer::Options options = Options();
    options.age_limit = limit;
    Sequencer sequencer(options, MakePriorityPolicy(), 1);
    uint64_t ticket = 10;
    std::map<uint32_t, uint64_t> running;
    auto add = [&](uint32_t device, TimeNs now) {
      sequencer.AddCandidate(Make(++ticket, {device}, 10 * kMillisecond, 1, 9, now));
    };
    add(0, 0);
    add(1, 0);
    bool gang_placed = false;
    auto place = [&](TimeNs now) {
      for (const LogEntry& entry : sequencer.Place(now)) {
        if (entry.ticket == Ticket(1)) gang_placed = true;
        for (uint32_t device : entry.devices) running[device] = entry.ticket.value();
      }
    };
    place(0);
    sequencer.AddCandidate(Make(1, {0, 1}, 10 * kMillisecond, 1, 0, 0));
    for (TimeNs now = kMillisecond; now < kSecond && !gang_placed; now += 5 * kMillisecond) {
      const uint32_t device = static_cast<uint32_t>(now / (5 * kMillisecond) % 2);
      add(device, now);  // the stream's next is ready before the device is free
      if (running.contains(device)) {
        sequencer.OnFinished(Ticket(running[device]), 10 * kMillisecond);
        running.erase(device);
      }
      place(now);
    }
    EXPECT_EQ(gang_placed, limit > 0);
  }
}

// Long and short programs, weights 1 and 3: device time, not launches, is shared out.
TEST(SequencerTest, SharesOfDeviceTime) {
  Sequencer sequencer(Options(), MakeSharePolicy({{SessionId(1), 1.0}, {SessionId(2), 3.0}}), 1);
  uint64_t ticket = 0;
  const std::map<uint64_t, DurationNs> run = {{1, 8 * kMillisecond}, {2, 6 * kMillisecond}};
  auto add = [&](uint64_t session) { sequencer.AddCandidate(Make(++ticket, {0}, run.at(session), session)); };
  std::map<uint64_t, uint64_t> session_of;
  for (uint64_t session : {1, 2}) {
    add(session);
    session_of[ticket] = session;
  }
  std::map<uint64_t, DurationNs> used;
  for (int i = 0; i < 2000; ++i) {
    const auto entries = sequencer.Place(0);
    ASSERT_EQ(entries.size(), 1u);
    const uint64_t session = session_of[entries[0].ticket.value()];
    used[session] += run.at(session);
    sequencer.OnFinished(entries[0].ticket, run.at(session));
    add(session);
    session_of[ticket] = session;
  }
  EXPECT_NEAR(static_cast<double>(used[2]) / static_cast<double>(used[1]), 3.0, 0.05);
}

TEST(SequencerTest, IdleSessionDoesNotLockTheOthersOut) {
  Sequencer sequencer(Options(), MakeSharePolicy(), 1);
  uint64_t ticket = 0;
  std::map<uint64_t, uint64_t> session_of;
  auto add = [&](uint64_t session) {
    sequencer.AddCandidate(Make(++ticket, {0}, 10 * kMillisecond, session));
    session_of[ticket] = session;
  };
  auto run_one = [&] {
    const auto entries = sequencer.Place(0);
    EXPECT_EQ(entries.size(), 1u);
    sequencer.OnFinished(entries[0].ticket, 10 * kMillisecond);
    return session_of[entries[0].ticket.value()];
  };
  add(2);
  run_one();
  for (int i = 0; i < 1000; ++i) {  // session 1 alone for ten seconds
    add(1);
    EXPECT_EQ(run_one(), 1u);
  }
  for (int i = 0; i < 60; ++i) {
    add(1);
    add(2);
  }
  int of_two = 0;
  for (int i = 0; i < 60; ++i) of_two += run_one() == 2 ? 1 : 0;
  EXPECT_GE(of_two, 30);
  EXPECT_LE(of_two, 36);  // half, and the credit of 100 ms at most
}

// I8: the same input gives the same log; and K and the order of places hold at every step.
TEST(SequencerTest, RandomHistoriesRepeat) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::string logs[2];
    for (std::string& log : logs) {
      std::mt19937 random(seed);
      Sequencer::Options options = Options();
      options.age_limit = 20 * kMillisecond;
      Sequencer sequencer(options, MakeSharePolicy(), 1);
      std::vector<Candidate> placed;
      std::map<uint64_t, Candidate> known;
      std::map<uint32_t, int> on_device;
      uint64_t place = 0;
      for (uint64_t t = 1; t <= 200; ++t) {
        const TimeNs now = static_cast<TimeNs>(t) * kMillisecond;
        std::vector<uint32_t> devices{static_cast<uint32_t>(random() % 4)};
        if (random() % 3 == 0) devices.push_back((devices[0] + 1) % 4);
        Candidate candidate = Make(t, devices, random() % 3 == 0 ? 0 : (random() % 7000 + 1) * kMicrosecond,
                                   1 + random() % 3, static_cast<int>(random() % 2), now);
        known.emplace(t, candidate);
        sequencer.AddCandidate(candidate);
        if (random() % 10 == 0) sequencer.Withdraw(Ticket(1 + random() % t));
        for (const LogEntry& entry : sequencer.Place(now)) {
          ASSERT_EQ(entry.place, ++place);
          absl::StrAppend(&log, entry.ticket.value(), " ");
          placed.push_back(known.at(entry.ticket.value()));
          for (uint32_t device : entry.devices) ASSERT_LE(++on_device[device], 16);
        }
        while (!placed.empty() && random() % 2 == 0) {
          const size_t i = random() % placed.size();
          sequencer.OnFinished(placed[i].ticket, (random() % 9000) * kMicrosecond);
          for (uint32_t device : placed[i].devices) --on_device[device];
          placed.erase(placed.begin() + static_cast<ptrdiff_t>(i));
        }
        for (uint32_t device = 0; device < 4; ++device) ASSERT_EQ(sequencer.placed(device), on_device[device]);
      }
    }
    ASSERT_EQ(logs[0], logs[1]) << seed;
    ASSERT_FALSE(logs[0].empty());
  }
}

}  // namespace
}  // namespace landbridge
