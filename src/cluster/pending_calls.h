// Calls to an owner that are held back until nobody is inside the agent any more.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "env/loop.h"

namespace landbridge {

// Thread-safety: the loop's thread only.
class PendingCalls {
 public:
  explicit PendingCalls(Loop* loop) : loop_(loop) {}

  void Add(std::function<void()> call) { calls_.push_back(std::move(call)); }

  // At the end of an event of the loop.
  void RunNow() {
    if (running_) return;  // a call caused an event; the outer loop goes on
    running_ = true;
    std::weak_ptr<int> alive = alive_;
    while (!calls_.empty()) {
      std::function<void()> call = std::move(calls_.front());
      calls_.pop_front();
      call();
      if (alive.expired()) return;  // the call destroyed the agent
    }
    running_ = false;
  }

  // At the end of a call by the owner: in a later turn.
  void RunLater() {
    if (running_ || calls_.empty()) return;
    loop_->Post([this, alive = std::weak_ptr<int>(alive_)] {
      if (!alive.expired()) RunNow();
    });
  }

 private:
  Loop* const loop_;
  std::deque<std::function<void()>> calls_;
  bool running_ = false;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace landbridge
