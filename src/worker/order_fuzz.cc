// What peers say about the order of launches: members, sequencers and the spanner, told anything.
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "base/log.h"
#include "testing/fuzz.h"
#include "worker/log_follower.h"
#include "worker/slice_sequencer.h"
#include "worker/spanner.h"

namespace landbridge::fuzz {
namespace {

// Holds what the machines promise whatever they hear.
class Judge : public OrderSink, public FollowerSink {
 public:
  void ToMember(SliceId, uint32_t, OrderMessage) override {}
  void ToSequencer(SliceId slice, OrderMessage message) override {
    const auto* commit = std::get_if<Commit>(&message);
    if (commit == nullptr) return;
    // Each Commit names the one before it, until a new writer begins.
    auto last = last_g.find({slice, commit->epoch});
    if (last != last_g.end()) LB_CHECK(commit->previous_g == last->second);
    last_g[{slice, commit->epoch}] = commit->g;
  }
  void ToSpanner(OrderMessage) override {}
  void ToCoordinator(Frozen) override {}
  void HandOver(Ticket ticket, bool) override {
    LB_CHECK(arrived.contains(ticket) && !left.contains(ticket));
    LB_CHECK(handed_over.insert(ticket).second);
  }
  void AbortRun(Ticket ticket) override { LB_CHECK(handed_over.contains(ticket) && !left.contains(ticket)); }
  void Leave(Ticket ticket, PartEnd end) override {
    LB_CHECK(arrived.contains(ticket));
    LB_CHECK(left.insert(ticket).second);
    LB_CHECK((end == PartEnd::kDropped) != handed_over.contains(ticket));
  }

  std::map<std::pair<SliceId, uint64_t>, uint64_t> last_g;
  std::set<Ticket> arrived, handed_over, left;
};

SliceId SliceOf(Choices& choices) { return SliceId(static_cast<int32_t>(choices.Below(3))); }

std::vector<Ticket> Tickets(Choices& choices) {
  std::vector<Ticket> tickets(choices.Below(4));
  for (Ticket& ticket : tickets) ticket = Ticket(choices.Id());
  return tickets;
}

std::vector<After> Afters(Choices& choices) {
  std::vector<After> afters(choices.Below(3));
  for (After& after : afters) after = {Ticket(choices.Id()), choices.Flag()};
  return afters;
}

LaunchFacts Facts(Choices& choices) {
  LaunchFacts facts;
  facts.candidate.ticket = Ticket(choices.Id());
  for (uint64_t n = choices.Below(3); n > 0; --n) {
    facts.candidate.devices.push_back(static_cast<uint32_t>(choices.Flag() ? choices.Below(4) : choices.Id()));
  }
  for (uint64_t n = choices.Below(3); n > 0; --n) facts.members.push_back(static_cast<uint32_t>(choices.Below(3)));
  for (uint64_t n = choices.Below(3); n > 0; --n) facts.slices.push_back(SliceOf(choices));
  return facts;
}

LaunchVerdict VerdictFrom(Choices& choices) {
  return {Ticket(choices.Id()), static_cast<Verdict>(choices.Below(4)), choices.Id()};
}

OrderEntry EntryFrom(Choices& choices) {
  OrderEntry entry;
  entry.place = choices.Id();
  entry.kind = static_cast<OrderEntry::Kind>(choices.Below(3));
  entry.verdict = VerdictFrom(choices);
  entry.ticket = entry.kind == OrderEntry::Kind::kVerdict ? entry.verdict.ticket : Ticket(choices.Id());
  entry.g = choices.Id();
  entry.devices = {static_cast<uint32_t>(choices.Id())};
  entry.members = {static_cast<uint32_t>(choices.Below(3))};
  return entry;
}

std::vector<OrderEntry> Entries(Choices& choices) {
  std::vector<OrderEntry> entries;
  for (uint64_t n = choices.Below(4); n > 0; --n) entries.push_back(EntryFrom(choices));
  return entries;
}

Able AbleFrom(Choices& choices) {
  return {choices.Below(3), static_cast<uint32_t>(choices.Below(3)), Facts(choices), Afters(choices)};
}

void TellFollower(Choices& choices, Judge& judge, LogFollower& follower) {
  switch (choices.Below(8)) {
    case 0: {
      LaunchFacts facts = Facts(choices);
      const std::vector<uint32_t> devices{static_cast<uint32_t>(choices.Below(3))};
      // The worker itself names each launch once.
      if (!judge.arrived.insert(facts.candidate.ticket).second) return;
      follower.Arrive(std::move(facts), devices);
      return;
    }
    case 1: {
      const Ticket ticket(choices.Id());
      return follower.SetAble(ticket, Afters(choices));
    }
    case 2: return follower.SetBadInput(Ticket(choices.Id()));
    case 3: {
      follower.WithdrawUnknown(Ticket(choices.Id()));
      return;
    }
    case 4: {
      const Ticket ticket(choices.Id());
      if (judge.handed_over.contains(ticket)) follower.OnRunDone(ticket, choices.Flag(), 1);
      return;
    }
    case 5: return follower.OnNewWriter({choices.Id()});
    case 6: {
      Append append;
      append.epoch = follower.epoch();
      append.horizon = Ticket(choices.Id());
      append.first_place = choices.Id();
      append.entries = Entries(choices);
      if (choices.Flag()) {  // such that it counts
        for (size_t i = 0; i < append.entries.size(); ++i) append.entries[i].place = follower.tail() + 1 + i;
      }
      return follower.OnAppend(append);
    }
    default: return follower.OnFreeze({follower.epoch(), choices.Id(), Tickets(choices)});
  }
}

void TellSequencer(Choices& choices, SliceSequencer& sequencer) {
  switch (choices.Below(10)) {
    case 0:
    case 1: return sequencer.OnAble(AbleFrom(choices), 0);
    case 2: {
      PartOver over{1, static_cast<uint32_t>(choices.Below(3)), Ticket(choices.Id()), choices.Flag(), choices.Size()};
      return sequencer.OnPartOver(over, 0);
    }
    case 3: {
      Tail tail;
      tail.epoch = 1;
      tail.member = static_cast<uint32_t>(choices.Below(3));
      tail.entries = Entries(choices);
      for (size_t i = 0; i < tail.entries.size(); ++i) tail.entries[i].place = i + 1;
      for (uint64_t n = choices.Below(3); n > 0; --n) tail.able.push_back(AbleFrom(choices));
      return sequencer.OnTail(tail, 0);
    }
    case 4: return sequencer.OnFreezeAnswer({1, static_cast<uint32_t>(choices.Below(3)), choices.Id(), {}});
    case 5: return sequencer.OnNewSpanner({choices.Below(4)}, 0);
    case 6: {
      const Commit commit{choices.Below(4), 1, Ticket(choices.Id()), choices.Id(), choices.Id()};
      return sequencer.OnCommit(commit, 0);
    }
    case 7: return sequencer.OnFreeze(choices.Id(), Tickets(choices));
    case 8: return sequencer.OnVerdicts({VerdictFrom(choices)}, 0);
    default:
      if (choices.Flag()) return sequencer.OnHorizon(Ticket(choices.Id()), 0);
      return sequencer.OnMemberLost(static_cast<uint32_t>(choices.Below(3)), 0);
  }
}

void TellSpanner(Choices& choices, Spanner& spanner) {
  const SliceId slice = SliceOf(choices);
  switch (choices.Below(5)) {
    case 0:
    case 1: {
      const std::vector<SliceId> slices{SliceOf(choices), SliceOf(choices)};
      const Ready ready{slice, choices.Below(3), 1, Ticket(choices.Id()), slices, Afters(choices)};
      return spanner.OnReady(ready);
    }
    case 2: return spanner.OnWithdrawn({slice, choices.Below(3), 1, Ticket(choices.Id())});
    case 3: return spanner.OnHorizon({slice, choices.Below(3), 1, Ticket(choices.Id())});
    default: {
      SliceReport report;
      report.slice = slice;
      report.epoch = choices.Below(3);
      report.spanner_epoch = 1;
      report.g_tail = choices.Byte();
      report.g_seen = choices.Byte();
      report.horizon = Ticket(choices.Id());
      for (uint64_t n = choices.Below(3); n > 0; --n) {
        report.placed.push_back({Ticket(choices.Id()), choices.Byte(), {SliceOf(choices), slice}});
      }
      report.withdrawn = Tickets(choices);
      return spanner.OnSliceReport(report);
    }
  }
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  std::string all;
  for (int i = 0; i < 600; ++i) all.push_back(static_cast<char>(i * 7 % 251));
  return {all, std::string("\x00\x05\x01\x00\x00\x01\x01\x00\x00\x00\x01\x01\x00", 13), std::string(40, '\x01')};
}

void FuzzOne(absl::string_view input) {
  Choices choices(input);
  Judge judge;
  LogFollower follower(SliceId(0), 0, &judge, &judge);
  SliceSequencer::Grant grant;
  grant.slice = SliceId(0);
  grant.members = {0, 1, 2};
  grant.spanner_epoch = 1;
  SliceSequencer sequencer(grant, Sequencer::Options(), MakeClientOrderPolicy(), &judge);
  Spanner spanner(1, {SliceId(0), SliceId(1), SliceId(2)}, &judge);
  while (!choices.empty()) {
    switch (choices.Below(3)) {
      case 0: TellFollower(choices, judge, follower); break;
      case 1: {
        TellSequencer(choices, sequencer);
        uint64_t place = 0;
        for (const OrderEntry& entry : sequencer.log()) {
          LB_CHECK(place == 0 || entry.place == place + 1);
          place = entry.place;
        }
        break;
      }
      default: TellSpanner(choices, spanner); break;
    }
  }
}

}  // namespace landbridge::fuzz
