// A small cluster in virtual time around the machines that order launches: LogFollower, SliceSequencer, Spanner and the
// controller's Withdrawals are the production classes; workers, devices, transfers and the controller's graph are the
// least that these need. Checks the invariants of scheduler.md after every event.
//
// Everything comes from one seed; scenarios steer it by hand.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controller/withdrawals.h"
#include "env/clock.h"
#include "worker/log_follower.h"
#include "worker/memory_admission.h"
#include "worker/slice_sequencer.h"
#include "worker/spanner.h"

namespace landbridge::ordering {

constexpr TimeNs kForever = 100'000 * kSecond;

// A device: of the slice's numbering, whose worker is device / devices_per_member.
struct At {
  int slice = 0;
  uint32_t device = 0;
  friend auto operator<=>(const At&, const At&) = default;
};

struct Spec {
  struct Input {
    uint64_t producer = 0;
    At from, to;
    bool donate = false;  // only with from == to
    bool same_device() const { return from == to; }
  };
  std::vector<At> devices;
  std::vector<Input> inputs;
  uint64_t session = 1;
  bool collective = true;  // no part ends before all have started
  bool side_effects = false;
  bool fails = false;  // can fail, and does; then its consumers wait for its end
  bool stand_ins = true;
  DurationNs run = 100 * kMicrosecond;
};

struct WorldOptions {
  uint64_t seed = 1;
  int slices = 2;
  uint32_t members = 2;  // workers per slice
  uint32_t devices = 1;  // per worker
  int64_t memory = 4;    // launches per device
  DurationNs message_min = 1 * kMicrosecond;
  DurationNs message_max = 200 * kMicrosecond;
  double duplicates = 0;
  DurationNs detect = 500 * kMicrosecond;  // from a loss to the controller's knowing of it
  // Test doubles: a worker that leaves a rule out.
  bool forget_spanning_readers = false;  // [1]
  bool memory_as_it_comes = false;       // [2]
  bool side_effects_early = false;       // [6]
  bool keep_readers_of_dropped = false;  // [8]
};

enum class Ran : uint8_t { kNo, kStarted, kRunning, kEnded };

class World : private ctl::WithdrawalSink {
 public:
  explicit World(WorldOptions options) : options_(options), random_(options.seed * 2 + 1), withdrawals_(kSecond, this) {
    for (int s = 0; s < options_.slices; ++s) {
      for (uint32_t m = 0; m < options_.members; ++m) workers_.push_back(std::make_unique<Worker>(this, s, m));
      leader_.push_back(-1);
      epochs_.push_back(0);
      slice_gone_.push_back(false);
      canon_.emplace_back();
    }
    for (int s = 0; s < options_.slices; ++s) GrantSlice(s, s * static_cast<int>(options_.members));
    GrantSpanner(0);
  }

  // --- The client and faults.
  uint64_t Issue(Spec spec);
  void After(DurationNs delay, std::function<void()> what) {
    events_.push({now_ + delay, ++sequence_, std::move(what)});
  }
  void Kill(int worker);
  void Cancel(std::vector<uint64_t> tickets) {
    std::vector<Ticket> roots;
    for (uint64_t ticket : tickets) roots.push_back(Ticket(ticket));
    withdrawals_.Withdraw(roots, now_);
  }
  void MoveSequencer(int slice, int worker) {
    const bool alive = workers_[Index(worker)]->alive && !known_lost_.contains(worker);
    if (alive && !slice_gone_[Index(slice)]) GrantSlice(slice, worker);
  }
  void MoveSpanner(int worker) {
    if (workers_[Index(worker)]->alive && !known_lost_.contains(worker)) GrantSpanner(worker);
  }
  // Messages between two workers wait until Open.
  void Block(int from, int to) { blocked_[{from, to}] = {}; }
  void Open(int from, int to) {
    std::vector<std::function<void()>> held = std::move(blocked_[{from, to}]);
    blocked_.erase({from, to});
    for (auto& message : held) Post(from, to, std::move(message));
  }

  // Until nothing moves, or the first broken rule. False then.
  bool Run(TimeNs until = kForever) {
    while (!events_.empty() && events_.top().at <= until && violation_.empty()) {
      Event event = std::move(const_cast<Event&>(events_.top()));
      events_.pop();
      now_ = event.at;
      event.what();
      ++steps_;
      CheckLogs();
    }
    if (until == kForever && violation_.empty()) CheckEnd();
    return violation_.empty();
  }

  // --- What came of it.
  const std::string& violation() const { return violation_; }
  TimeNs now() const { return now_; }
  SeededRandom& random() { return random_; }
  // "": not over. Else how each part left, in order of devices' workers: g(ood) d(ropped) f(ailed) s(poilt) l(ost).
  std::string Fate(uint64_t ticket) const {
    std::string fate;
    for (const auto& [worker, part] : launches_.at(ticket).parts) {
      if (part.lost) {
        fate += 'l';
      } else if (part.end.has_value()) {
        fate += "gdfs"[static_cast<size_t>(*part.end)];
      } else {
        return "";
      }
    }
    return fate;
  }
  bool Over(uint64_t ticket) const { return launches_.at(ticket).over; }
  Ran HowFar(uint64_t ticket, int worker) const { return launches_.at(ticket).parts.at(worker).ran; }
  int WorkerOf(At at) const {
    return at.slice * static_cast<int>(options_.members) + static_cast<int>(at.device / options_.devices);
  }
  bool WorkerAlive(int worker) const { return workers_[Index(worker)]->alive; }
  bool KnownLost(int worker) const { return known_lost_.contains(worker); }
  bool SliceGone(int slice) const { return slice_gone_[Index(slice)]; }
  bool Poisoned(uint64_t ticket) const { return launches_.at(ticket).poisoned; }
  const std::vector<std::string>& trace() const { return trace_; }
  // What is not over, and how far it is.
  std::string Explain();
  uint64_t G(uint64_t ticket) const {
    auto it = g_of_.find(ticket);
    return it == g_of_.end() ? 0 : it->second;
  }
  // The slice's log as tickets, "-" in front of verdicts, "v" of void entries.
  std::string Log(int slice) const {
    std::string text;
    for (const auto& [place, entry] : canon_[Index(slice)]) {
      absl::StrAppend(&text, text.empty() ? "" : " ", entry.kind == OrderEntry::Kind::kVerdict ? "-" : "",
                      entry.kind == OrderEntry::Kind::kVoid ? "v" : "", entry.ticket.value());
    }
    return text;
  }
  struct Seen {
    int drops = 0, releases = 0, finishes = 0, aborts = 0, voids = 0, losses = 0, epochs = 0, conditional = 0;
  };
  const Seen& seen() const { return seen_; }

 private:
  static constexpr int kController = -1;
  static size_t Index(int i) { return static_cast<size_t>(i); }
  struct Event {
    TimeNs at;
    uint64_t sequence;
    std::function<void()> what;
    bool operator<(const Event& other) const { return at != other.at ? at > other.at : sequence > other.sequence; }
  };
  struct LaunchPart {
    Ran ran = Ran::kNo;
    bool stand_ins = false, lost = false, tainted = false, ended_bad = false, aborted = false;
    bool hangs = false;
    std::optional<PartEnd> end;
  };
  struct LaunchState {
    Spec spec;
    std::map<int, LaunchPart> parts;  // by worker
    bool over = false;
    bool poisoned = false;  // as far as the controller knows
    bool tainted = false;   // a collective one: some part ran on something bad
  };

  struct Worker : OrderSink, FollowerSink {
    Worker(World* w, int s, uint32_t m)
        : world(w),
          slice(s),
          member(m),
          id(s * static_cast<int>(w->options_.members) + static_cast<int>(m)),
          follower(SliceId(s), m, this, this),
          memory(std::vector<int64_t>(w->options_.devices, w->options_.memory), {}),
          queues(w->options_.devices) {}

    // OrderSink
    void ToMember(SliceId to, uint32_t m, OrderMessage message) override {
      world->Send(id, to.value() * static_cast<int>(world->options_.members) + static_cast<int>(m), std::move(message));
    }
    void ToSequencer(SliceId to, OrderMessage message) override {
      const bool commit = std::holds_alternative<Commit>(message);
      const int at = commit ? reporter_of[to.value()].second : leader_at;
      if (at >= 0) world->Send(id, at, std::move(message));
    }
    void ToSpanner(OrderMessage message) override {
      if (const Ready* ready = std::get_if<Ready>(&message); ready != nullptr && !ready->after.empty()) {
        ++world->seen_.conditional;
      }
      world->Send(id, spanner_at, std::move(message));
    }
    void ToCoordinator(Frozen message) override {
      world->Post(id, kController, [w = world, message] {
        w->withdrawals_.OnFrozen(message.slice, message.epoch, message.round, message.parts, w->now_);
      });
    }
    // FollowerSink
    void HandOver(Ticket ticket, bool stand_ins) override { world->OnHandOver(*this, ticket.value(), stand_ins); }
    void AbortRun(Ticket ticket) override { world->OnAbortRun(*this, ticket.value()); }
    void Leave(Ticket ticket, PartEnd end) override { world->OnLeave(*this, ticket.value(), end); }

    World* const world;
    const int slice;
    const uint32_t member;
    const int id;
    bool alive = true;
    LogFollower follower;
    std::unique_ptr<SliceSequencer> sequencer;
    std::unique_ptr<Spanner> spanner;
    std::vector<std::pair<int, OrderMessage>> for_spanner_to_come;
    int leader_at = -1, spanner_at = -1;
    std::map<int, std::pair<uint64_t, int>> reporter_of;  // slice -> epoch, worker that reported last
    std::deque<std::function<void()>> todo;               // what follows from what the follower said

    // The least of a worker.
    struct Input {
      Spec::Input spec;
      bool here = false;
      bool bad = false;
    };
    struct Part {
      std::vector<Input> inputs;
      std::vector<uint32_t> devices;  // local
      int memory_missing = 0;
      std::set<uint32_t> memory_held, memory_asked;
      bool able = false, bad = false;
    };
    struct BufferAt {
      bool known = false, good = false, bad = false, consumed = false;
      bool can_fail = false;
      std::vector<uint64_t> readers;  // not left, ascending
      int transfers = 0;              // open
    };
    MemoryAdmission memory;
    std::map<uint64_t, Part> parts;
    std::map<std::pair<uint64_t, uint32_t>, BufferAt> buffers;  // (launch, device of the slice)
    std::map<std::pair<uint64_t, size_t>, bool> arrived;        // (launch, input): good
    struct Pin {
      uint64_t producer;
      uint32_t device;
      int to;
    };
    std::map<std::pair<uint64_t, size_t>, Pin> pins;  // (consumer, input)
    std::set<std::pair<uint64_t, size_t>> acknowledged;
    std::set<int> lost_peers;
    std::map<uint32_t, int64_t> used;           // without MemoryAdmission
    std::vector<std::deque<uint64_t>> queues;   // per device: handed over, not ended
    std::map<uint32_t, uint64_t> last_started;  // device -> place
    uint64_t checked_through = 0;
  };

  // --- Messages. In order between two processes.
  void Post(int from, int to, std::function<void()> what) {
    auto blocked = blocked_.find({from, to});
    if (blocked != blocked_.end()) {
      blocked->second.push_back(std::move(what));
      return;
    }
    TimeNs& last = last_delivery_[{from, to}];
    const DurationNs span = options_.message_max - options_.message_min + 1;
    const DurationNs delay =
        from == to ? 0 : options_.message_min + static_cast<DurationNs>(random_.NextBelow(static_cast<uint64_t>(span)));
    last = std::max(last, now_ + delay);
    auto deliver = [this, to, what] {
      if (to == kController || workers_[Index(to)]->alive) what();
    };
    events_.push({last, ++sequence_, deliver});
  }
  void Send(int from, int to, OrderMessage message) {
    auto deliver = [this, from, to, message] { Deliver(from, *workers_[Index(to)], message); };
    Post(from, to, deliver);
    if (options_.duplicates > 0 && random_.NextUnit() < options_.duplicates) {
      // Again, out of order.
      After(static_cast<DurationNs>(random_.NextBelow(3 * static_cast<uint64_t>(options_.message_max))) +
                last_delivery_[{from, to}] - now_,
            [this, to, deliver] {
              if (workers_[Index(to)]->alive) deliver();
            });
    }
  }
  void Deliver(int from, Worker& at, const OrderMessage& message);

  // --- The controller.
  void GrantSlice(int slice, int worker);
  void GrantSpanner(int worker);
  void OnWorkerLost(int worker);
  void OnLeftReport(int worker, uint64_t ticket, PartEnd end);
  void CheckOver(uint64_t ticket);
  void MoveHorizon();
  // WithdrawalSink
  std::vector<ctl::WithdrawnLaunch> Closure(const std::set<Ticket>& roots, const std::set<Ticket>& asked) override;
  void SendFreeze(SliceId slice, uint64_t round, std::vector<Ticket> tickets) override {
    const int leader = leader_[Index(slice.value())];
    if (leader < 0) return;
    Post(kController, leader, [this, leader, round, tickets, slice] {
      if (SliceSequencer* sequencer = SequencerAt(leader, slice)) sequencer->OnFreeze(round, tickets);
    });
  }
  void SendVerdicts(SliceId slice, std::vector<LaunchVerdict> verdicts) override {
    const int leader = leader_[Index(slice.value())];
    if (leader < 0) return;
    Post(kController, leader, [this, leader, verdicts, slice] {
      if (SliceSequencer* sequencer = SequencerAt(leader, slice)) sequencer->OnVerdicts(verdicts, now_);
    });
  }
  void Decided(Ticket ticket, Verdict verdict, const std::vector<ctl::WithdrawnLaunch::Place>&) override {
    Trace(absl::StrCat("decided t", ticket.value(), " ", static_cast<int>(verdict)));
    if (verdict != Verdict::kRelease) launches_.at(ticket.value()).poisoned = true;
    seen_.drops += verdict == Verdict::kDrop ? 1 : 0;
    seen_.releases += verdict == Verdict::kRelease ? 1 : 0;
    seen_.finishes += verdict == Verdict::kFinish ? 1 : 0;
    seen_.aborts += verdict == Verdict::kAbort ? 1 : 0;
  }
  void Unanswered(SliceId) override {}
  SliceSequencer* SequencerAt(int worker, SliceId slice) {
    Worker& at = *workers_[Index(worker)];
    return at.slice == slice.value() ? at.sequencer.get() : nullptr;
  }

  // --- Workers.
  void OnPrepare(Worker& at, uint64_t ticket);
  void OnPin(Worker& at, uint64_t consumer, size_t input);
  void OnArrived(Worker& at, uint64_t consumer, size_t input, bool good);
  void OnTransferOver(Worker& at, uint64_t consumer, size_t input);
  void ServePins(Worker& at, uint64_t producer, uint32_t device);
  void CheckAble(Worker& at, uint64_t ticket);
  void CheckAllAble(Worker& at);
  void Drain(Worker& at);
  bool MemoryFits(Worker& at, uint64_t ticket, uint32_t device);
  void TakeMemory(Worker& at);
  void SetBad(Worker& at, uint64_t ticket);
  void OnHandOver(Worker& at, uint64_t ticket, bool stand_ins);
  void OnAbortRun(Worker& at, uint64_t ticket);
  void OnLeave(Worker& at, uint64_t ticket, PartEnd end);
  void RunDevices(Worker& at);
  void StartOnDevice(Worker& at, uint64_t ticket);
  void CheckGang(uint64_t ticket);
  void EndRun(int worker, uint64_t ticket, bool ok);

  // --- Checks.
  void Violation(std::string text) {
    if (violation_.empty()) violation_ = absl::StrCat("at ", now_ / kMicrosecond, " us: ", text);
  }
  void Trace(std::string line) {
    if (trace_.size() < 20'000) trace_.push_back(absl::StrCat(now_ / kMicrosecond, " ", line));
  }
  void CheckLogs();
  void CheckEnd();

  const WorldOptions options_;
  TimeNs now_ = kSecond;
  uint64_t sequence_ = 0, steps_ = 0;
  SeededRandom random_;
  std::priority_queue<Event> events_;
  std::map<std::pair<int, int>, TimeNs> last_delivery_;
  std::map<std::pair<int, int>, std::vector<std::function<void()>>> blocked_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::string> trace_;
  std::string violation_;
  Seen seen_;

  // The controller.
  std::map<uint64_t, LaunchState> launches_;
  uint64_t next_ticket_ = 1;
  uint64_t horizon_ = 1;
  std::vector<int> leader_;
  std::vector<uint64_t> epochs_;
  std::vector<bool> slice_gone_;
  int spanner_ = -1;
  uint64_t spanner_epoch_ = 0;
  std::set<int> known_lost_;
  ctl::Withdrawals withdrawals_;

  // What all logs say.
  std::vector<std::map<uint64_t, OrderEntry>> canon_;
  std::map<int, uint64_t> canon_epoch_, canon_through_;
  std::map<uint64_t, uint64_t> g_of_;
};

}  // namespace landbridge::ordering
