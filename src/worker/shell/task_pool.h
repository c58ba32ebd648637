// A few threads for work that takes long: loading programs, copies of many bytes.
#pragma once

#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace landbridge {

// Tasks start in the order in which they were given. The queue's bound is its users': each op that the worker has
// admitted has at most one task here.
//
// Thread-safety: all members from any thread. The destructor needs an earlier Shutdown.
class TaskPool {
 public:
  TaskPool(int thread_count, const std::string& name);
  ~TaskPool();
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  void Run(absl::AnyInvocable<void()> task);  // dropped after Shutdown
  void Shutdown();                            // runs what is queued, then ends the threads; not from a task

 private:
  void Loop();

  absl::Mutex mutex_;
  absl::CondVar wake_;
  std::deque<absl::AnyInvocable<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace landbridge
