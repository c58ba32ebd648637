// A bound on host copies: whoever needs memory for an image on its way stands in line for it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace landbridge {

// First come, first served. What is larger than the whole budget is let through when nothing else is out, so that
// everything gets its turn.
//
// Thread-safety: all members from any thread. Grants may outlive it.
class ImageBudget {
 public:
  // Gives its bytes back when the last copy of it goes.
  using Grant = std::shared_ptr<const void>;
  // Runs once, from inside Acquire or on a thread that gives back; must be short.
  using Granted = std::function<void(Grant)>;

  explicit ImageBudget(int64_t bytes_max);

  void Acquire(int64_t bytes, Granted granted);
  int64_t bytes_out() const;
  size_t waiting() const;
  uint64_t granted() const;  // ever

 private:
  struct State;
  static void GrantAll(const std::shared_ptr<State>& state);
  const std::shared_ptr<State> state_;
};

}  // namespace landbridge
