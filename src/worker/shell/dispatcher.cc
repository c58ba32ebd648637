#include "worker/shell/dispatcher.h"

#include <pthread.h>

#include <string>
#include <utility>

#include "base/log.h"

namespace landbridge {

Dispatcher::Dispatcher(int device_count) : queues_(static_cast<size_t>(device_count)) {
  for (int i = 0; i <= device_count; ++i) lanes_.push_back(std::make_unique<Lane>());
  for (int i = 0; i <= device_count; ++i) {
    lanes_[static_cast<size_t>(i)]->thread = std::thread([this, i] { Run(i); });
    const std::string name = i == device_count ? std::string("gate") : "device-" + std::to_string(i);
    pthread_setname_np(lanes_[static_cast<size_t>(i)]->thread.native_handle(), name.substr(0, 15).c_str());
  }
}

Dispatcher::~Dispatcher() { LB_CHECK(lanes_.empty()); }

void Dispatcher::Enqueue(std::vector<int> devices, Issue issue) {
  auto item = std::make_shared<Item>();
  item->devices = std::move(devices);
  item->issue = std::move(issue);
  LB_CHECK(!item->devices.empty());
  absl::MutexLock lock(&mutex_);
  if (stopping_) return;
  ++queued_;
  for (int device : item->devices) {
    auto& queue = queues_.at(static_cast<size_t>(device));
    queue.push_back(item);
    if (queue.size() == 1) OnHead(item);
  }
}

void Dispatcher::RunOrEnqueue(int device, Issue issue) {
  bool alone;
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    alone = queues_.at(static_cast<size_t>(device)).empty();  // and stays so: only this thread adds to it
  }
  alone ? issue() : Enqueue({device}, std::move(issue));
}

void Dispatcher::OnHead(const std::shared_ptr<Item>& item) {
  if (++item->heads < item->devices.size()) return;
  Lane& lane = item->devices.size() == 1 ? *lanes_[static_cast<size_t>(item->devices[0])] : *lanes_.back();
  lane.ready.push_back(item);
  lane.wake.Signal();
}

void Dispatcher::Run(int lane_index) {
  Lane& lane = *lanes_[static_cast<size_t>(lane_index)];
  absl::MutexLock lock(&mutex_);
  while (true) {
    while (lane.ready.empty() && !(stopping_ && queued_ == 0)) lane.wake.Wait(&mutex_);
    if (lane.ready.empty()) return;
    std::shared_ptr<Item> item = std::move(lane.ready.front());
    lane.ready.pop_front();
    mutex_.Unlock();
    item->issue();
    item->issue = nullptr;  // lets go of arguments before the next item may donate them
    mutex_.Lock();
    --queued_;
    for (int device : item->devices) {
      auto& queue = queues_[static_cast<size_t>(device)];
      LB_CHECK(queue.front() == item);
      queue.pop_front();
      if (!queue.empty()) OnHead(queue.front());
    }
    if (stopping_ && queued_ == 0) {
      for (auto& other : lanes_) other->wake.Signal();
    }
  }
}

void Dispatcher::Shutdown() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    for (auto& lane : lanes_) lane->wake.Signal();
  }
  for (auto& lane : lanes_) lane->thread.join();
  lanes_.clear();
}

size_t Dispatcher::queued() const {
  absl::MutexLock lock(&mutex_);
  return queued_;
}

}  // namespace landbridge
