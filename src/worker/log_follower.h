// One worker's side of its slice's order log: tells the sequencer which launches are able to run here, follows the log,
// hands over in its order, and holds what is being withdrawn (scheduler.md).
//
// A device follows only the entries that include it. An entry that may not start yet holds up its own devices.
//
// Pure: no clock, lock or I/O. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "absl/container/btree_map.h"
#include "worker/order_messages.h"
#include "worker/verdict_book.h"

namespace landbridge {

// How a launch's part leaves a worker.
enum class PartEnd : uint8_t {
  kGood,     // it ran; what it made may be used
  kDropped,  // it never ran and never will
  kFailed,   // it ran and failed by itself
  kSpoilt,   // it ran, but was withdrawn meanwhile
};

// Records what to do. Never calls back.
class FollowerSink {
 public:
  virtual ~FollowerSink() = default;
  // Calls come in log order for each device. `stand_ins`: an input is an error; anything of the right size will do.
  // Answer OnRunDone, once.
  virtual void HandOver(Ticket ticket, bool stand_ins) = 0;
  // Its collectives are to fail, so that it ends. OnRunDone still comes.
  virtual void AbortRun(Ticket ticket) = 0;
  // Exactly once for each part that arrived. kGood: what it made is visible from now on, not before.
  virtual void Leave(Ticket ticket, PartEnd end) = 0;
};

class LogFollower {
 public:
  LogFollower(SliceId slice, uint32_t member, OrderSink* order, FollowerSink* sink)
      : slice_(slice), member_(member), order_(order), sink_(sink) {}

  // A launch with a part here, in ticket order. `devices`: those of the slice that are this worker's. It may leave at
  // once.
  void Arrive(LaunchFacts launch, std::vector<uint32_t> devices);
  // All that it waits for here is there, but for `after`, which have parts here as well. Once.
  void SetAble(Ticket ticket, std::vector<After> after);
  // An input here is an error. It starts no more by itself; what becomes of it is for the coordinator to say.
  void SetBadInput(Ticket ticket);
  // If all of it is here and it was not able yet, so that nobody else knows of it, it leaves as dropped. Else: false.
  bool WithdrawUnknown(Ticket ticket);
  void OnRunDone(Ticket ticket, bool ok, DurationNs run_ns);

  void OnNewWriter(const NewWriter& message);
  void OnAppend(const Append& message);
  void OnFreeze(const FreezeParts& message);

  // It is being withdrawn: nothing that it made may be used or sent until the verdict.
  bool Held(Ticket ticket) const { return withdrawals_.Held(ticket); }
  uint64_t epoch() const { return epoch_; }
  uint64_t tail() const { return first_place_ + log_.size() - 1; }
  const std::deque<OrderEntry>& log() const { return log_; }
  uint64_t first_place() const { return first_place_; }
  size_t parts() const { return parts_.size(); }
  size_t remembered() const {
    return left_.size() + withdrawals_.verdicts().size() + withdrawals_.held() + log_.size();
  }

 private:
  enum class Stage : uint8_t { kWaiting, kAble, kPlaced, kStarted, kDone };
  struct Part {
    LaunchFacts launch;
    std::vector<uint32_t> devices;
    std::vector<After> after;
    Stage stage = Stage::kWaiting;
    bool bad_input = false;
    bool spoilt = false;  // was to finish on stand-ins: whatever follows, it is not good
    bool aborted = false;
    bool run_ok = false;
    DurationNs run_ns = 0;
  };
  struct Left {
    bool good = false;
    bool ran = false;
    DurationNs run_ns = 0;
  };
  using Parts = std::map<Ticket, Part>;

  Able AbleMessage(const Part& part) const;
  PartOver OverMessage(Ticket ticket, const Left& left) const;
  void Apply(const OrderEntry& entry);
  void ApplyVerdict(const LaunchVerdict& verdict);
  void TrimTo(Ticket horizon);
  bool MayStart(const Part& part) const;
  bool FirstOnItsDevices(Ticket ticket, const Part& part) const;
  void Run();
  void LeaveAs(Parts::iterator part, PartEnd end);

  const SliceId slice_;
  const uint32_t member_;
  OrderSink* const order_;
  FollowerSink* const sink_;
  uint64_t epoch_ = 0;
  uint64_t round_ = 0;  // the latest of questions
  uint64_t first_place_ = 1;
  uint64_t g_before_ = 0;
  std::deque<OrderEntry> log_;
  Parts parts_;
  // Until the horizon has passed them, also of launches that have not arrived yet.
  absl::btree_map<Ticket, Left> left_;
  VerdictBook withdrawals_;
  std::map<uint32_t, std::deque<Ticket>> queues_;  // per device: placed and not handed over
  std::vector<uint32_t> look_at_;
};

}  // namespace landbridge
