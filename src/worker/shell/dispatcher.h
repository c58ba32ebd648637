// Hands work to the plugin in order-log order: on each device one thing at a time, and things that span devices
// through one gate.
#pragma once

#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace landbridge {

// One thread per device, and one (the gate) for work on several devices at once. Work is *issued*, not awaited:
// `issue` returns when the plugin has taken the launch. An item runs when it is at the head of the queue of each of
// its devices, so a wide item is a barrier in all of them, and two wide items never wait for each other crosswise.
//
// Thread-safety: Enqueue and RunOrEnqueue from one thread (that is the order); the rest from any thread. The destructor needs an
// earlier Shutdown.
class Dispatcher {
 public:
  using Issue = absl::AnyInvocable<void()>;

  explicit Dispatcher(int device_count);
  ~Dispatcher();
  Dispatcher(const Dispatcher&) = delete;
  Dispatcher& operator=(const Dispatcher&) = delete;

  // `devices`: distinct, each below device_count, at least one. `issue` runs once, on a thread of the dispatcher.
  void Enqueue(std::vector<int> devices, Issue issue);

  // The same for one device and work that is quick and never blocks: it runs here and now if nothing is before it.
  void RunOrEnqueue(int device, Issue issue);

  // Issues what is queued, then ends the threads. Later Enqueues are refused (their issue is dropped).
  void Shutdown();

  size_t queued() const;  // not issued yet

 private:
  struct Item {
    std::vector<int> devices;
    Issue issue;
    size_t heads = 0;  // of how many of its queues it is the head
  };
  struct Lane {
    std::deque<std::shared_ptr<Item>> ready;
    absl::CondVar wake;
    std::thread thread;
  };

  void Run(int lane_index);
  void OnHead(const std::shared_ptr<Item>& item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::vector<std::deque<std::shared_ptr<Item>>> queues_ ABSL_GUARDED_BY(mutex_);  // per device
  std::vector<std::unique_ptr<Lane>> lanes_;  // per device, then the gate; `ready` guarded by mutex_
  size_t queued_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace landbridge
