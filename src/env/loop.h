// One thread's event loop: tasks, timers, signals, and (through connection.h) sockets.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/time.h"
#include "env/clock.h"

struct uv_loop_s;

namespace landbridge {

class ConnectionImpl;

// Thread-safety: Post, Stop and Now may be called from any thread; everything else only on the loop's thread (the
// one inside Run), or before Run and after it has returned.
class Loop : public Clock {
 public:
  using Task = std::function<void()>;
  using TimerId = uint64_t;  // 0: none

  Loop();
  // Drops tasks that were not run, timers and signal handlers. Connections, listeners and processes of this loop
  // must be destroyed before it.
  ~Loop() override;
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Runs `task` on the loop's thread, in the order of the posts. Wakes the loop; a post from a task or handler of the
  // loop itself costs no system call, and runs before the loop blocks.
  void Post(Task task);

  TimeNs Now() override;

  // Runs `task` once, or every `period` (missed periods are not made up for). Resolution 1 ms, never early.
  TimerId RunAfter(DurationNs delay, Task task);
  TimerId RunEvery(DurationNs period, Task task);
  void Cancel(TimerId timer);  // unknown and finished ids are ignored

  // Calls `task` on the loop for each SIGxxx instead of the default action. Replaces an earlier one.
  absl::Status OnSignal(int signal_number, Task task);

  // Processes events until Stop.
  void Run();
  // Ends Run after the events at hand; a Stop before Run ends the next Run at once.
  void Stop();
  // Processes what is ready, waiting at most `wait` for the first event. For tests and for loops inside others.
  void RunOnce(DurationNs wait);

  // After an event, poll for this long before blocking: saves the wake-up from sleep (some 50 us) at the price of a
  // busy core. 0 (default): block at once.
  void SetSpin(DurationNs spin) { spin_ = spin; }

  // The longest time in which it served nothing but one round of events and tasks. More than kLongTurn is logged.
  DurationNs longest_turn() const { return longest_turn_; }

  // For the other classes of this folder.
  uv_loop_s* uv() { return uv_.get(); }
  void FlushBeforeBlocking(ConnectionImpl* connection) { to_flush_.insert(connection); }
  void ForgetFlush(ConnectionImpl* connection) { to_flush_.erase(connection); }
  void CountEvent() { ++events_; }
  char* read_buffer();  // shared by all connections: filled and consumed within one callback
  static constexpr size_t kReadBufferBytes = 256u << 10;

 private:
  static constexpr DurationNs kLongTurn = 1 * kSecond;  // leases end with limits::kLeaseDefault of silence
  struct Timer;
  struct Signal;
  struct Handles;

  class Running;

  void RunPosted();
  void BeforeBlocking();
  void FlushAll();
  void BeginTurn();
  void EndTurn();
  bool TakeStop();
  TimerId StartTimer(DurationNs delay, DurationNs period, Task task);

  std::unique_ptr<uv_loop_s> uv_;
  std::unique_ptr<Handles> handles_;
  std::map<TimerId, Timer*> timers_;
  std::map<int, Signal*> signals_;
  TimerId next_timer_ = 1;
  DurationNs spin_ = 0;
  uint64_t events_ = 0;                              // callbacks run so far; tells a spin whether anything happened
  uint64_t turn_began_ns_ = 0, idle_before_ns_ = 0;  // libuv's clock, at the end of the last turn
  DurationNs longest_turn_ = 0;
  std::atomic<std::thread::id> runs_on_{};  // the thread inside Run or RunOnce
  absl::flat_hash_set<ConnectionImpl*> to_flush_;
  std::unique_ptr<char[]> read_buffer_;

  absl::Mutex mutex_;
  std::vector<Task> posted_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace landbridge
