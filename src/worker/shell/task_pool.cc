#include "worker/shell/task_pool.h"

#include <pthread.h>

#include <utility>

#include "base/log.h"

namespace landbridge {

TaskPool::TaskPool(int thread_count, const std::string& name) {
  for (int i = 0; i < thread_count; ++i) {
    threads_.emplace_back([this] { Loop(); });
    pthread_setname_np(threads_.back().native_handle(), (name + "-" + std::to_string(i)).substr(0, 15).c_str());
  }
}

TaskPool::~TaskPool() { LB_CHECK(threads_.empty()); }

void TaskPool::Run(absl::AnyInvocable<void()> task) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return;
  tasks_.push_back(std::move(task));
  wake_.Signal();
}

void TaskPool::Loop() {
  absl::MutexLock lock(&mutex_);
  while (true) {
    while (tasks_.empty() && !stopping_) wake_.Wait(&mutex_);
    if (tasks_.empty()) return;
    absl::AnyInvocable<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    mutex_.Unlock();
    task();
    task = nullptr;
    mutex_.Lock();
  }
}

void TaskPool::Shutdown() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace landbridge
