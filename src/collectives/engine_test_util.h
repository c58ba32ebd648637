// Several workers in one process, each with its own data plane, and calls of all devices.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "base/log.h"
#include "collectives/collective_engine.h"
#include "dataplane/in_process_data_plane.h"

namespace landbridge {

// Threads that run tasks until the object goes.
class TestExecutor {
 public:
  explicit TestExecutor(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Loop(); });
  }
  ~TestExecutor() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    for (std::thread& thread : threads_) thread.join();
  }
  void Run(absl::AnyInvocable<void()> task) {
    absl::MutexLock lock(&mutex_);
    tasks_.push_back(std::move(task));
  }

 private:
  void Loop() {
    for (;;) {
      absl::AnyInvocable<void()> task;
      {
        auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !tasks_.empty(); };
        absl::MutexLock lock(&mutex_, absl::Condition(&ready));
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }
  absl::Mutex mutex_;
  std::deque<absl::AnyInvocable<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

class TestWorkers {
 public:
  // `worker_of_device`: small numbers, by logical device. `slice_of_worker`: empty: all in one.
  TestWorkers(std::shared_ptr<const CollectiveProgram> program, const std::vector<int>& worker_of_device,
              uint64_t space = 77, std::function<void(const absl::Status&)> on_broken = {},
              std::vector<uint32_t> slice_of_worker = {})
      : program_(std::move(program)),
        worker_of_device_(worker_of_device),
        on_broken_(std::move(on_broken)),
        slice_of_worker_(std::move(slice_of_worker)),
        executor_(3) {
    int count = 0;
    for (int worker : worker_of_device) count = std::max(count, worker + 1);
    for (int w = 0; w < count; ++w) {
      planes_.push_back(fabric_.MakeDataPlane({.self = Peer(w), .token = {}, .authorizer = {}, .peer_failed = {}}));
    }
    for (int w = 0; w < count; ++w) {
      for (int v = 0; v < count; ++v) {
        if (v != w) LB_CHECK(planes_[Index(w)]->AddPeer(Peer(v), planes_[Index(v)]->address()).ok());
      }
    }
    Launch(space);
  }
  ~TestWorkers() {
    Close();
    for (auto& plane : planes_) plane->Shutdown();
  }

  // A new launch on all workers.
  void Launch(uint64_t space) {
    Close();
    runs_.clear();
    std::vector<Incarnation> peers;
    std::vector<uint32_t> slices;
    for (int worker : worker_of_device_) {
      peers.push_back(Peer(worker));
      if (!slice_of_worker_.empty()) slices.push_back(slice_of_worker_[Index(worker)]);
    }
    for (auto& plane : planes_) {
      auto run =
          StartCollectives({.plane = plane.get(),
                            .executor = [this](absl::AnyInvocable<void()> task) { executor_.Run(std::move(task)); },
                            .on_broken = on_broken_},
                           {.program = program_, .space = space, .worker_of_device = peers, .slice_of_device = slices});
      LB_CHECK(run.ok());
      runs_.push_back(*std::move(run));
    }
  }

  // The launch's programs have ended.
  void Close() {
    for (auto& run : runs_) run->Close();
  }

  static Incarnation Peer(int worker) { return Incarnation(static_cast<uint64_t>(worker) + 100); }
  const std::shared_ptr<CollectiveRun>& run_of_device(int device) {
    return runs_[Index(worker_of_device_[Index(device)])];
  }
  const std::shared_ptr<CollectiveRun>& run(int worker) { return runs_[Index(worker)]; }
  dataplane::DataPlane& plane(int worker) { return *planes_[Index(worker)]; }
  dataplane::InProcessFabric& fabric() { return fabric_; }
  const CollectiveProgram& program() const { return *program_; }
  int workers() const { return static_cast<int>(runs_.size()); }

  // Calls of one collective on devices 0 to `count` - 1, last ones first. `operands` stay as they are until Wait.
  class Calls {
   public:
    Calls(TestWorkers& workers, int op, const std::vector<std::vector<std::string>>& operands, int count)
        : results(Index(count)), statuses(Index(count), absl::UnknownError("not done")), left_(count) {
      for (int d = count; d-- > 0;) {
        CollectiveCall call;
        call.device = d;
        call.op = op;
        for (const std::string& operand : operands[Index(d)]) {
          call.operands.push_back(reinterpret_cast<const std::byte*>(operand.data()));
        }
        for (const CollectiveTensor& tensor : workers.program_->steps()[Index(op)].results) {
          results[Index(d)].emplace_back(static_cast<size_t>(tensor.bytes), '\xee');
        }
        for (std::string& result : results[Index(d)])
          call.results.push_back(reinterpret_cast<std::byte*>(result.data()));
        call.done = [this, d](const absl::Status& status) {
          statuses[Index(d)] = status;
          left_.DecrementCount();
        };
        workers.run_of_device(d)->Call(std::move(call));
      }
    }
    void Wait() { left_.Wait(); }

    std::vector<std::vector<std::string>> results;  // [device][i]
    std::vector<absl::Status> statuses;             // by device

   private:
    absl::BlockingCounter left_;
  };

  // Calls collective `op` on all devices and waits. operands[device][i], dense bytes. Returns results[device][i];
  // `statuses` by device.
  std::vector<std::vector<std::string>> CallAll(int op, const std::vector<std::vector<std::string>>& operands,
                                                std::vector<absl::Status>* statuses) {
    Calls calls(*this, op, operands, program_->num_devices());
    calls.Wait();
    *statuses = std::move(calls.statuses);
    return std::move(calls.results);
  }

 private:
  static size_t Index(int i) { return static_cast<size_t>(i); }
  std::shared_ptr<const CollectiveProgram> program_;
  const std::vector<int> worker_of_device_;
  const std::function<void(const absl::Status&)> on_broken_;
  const std::vector<uint32_t> slice_of_worker_;
  dataplane::InProcessFabric fabric_;
  TestExecutor executor_;
  std::vector<std::unique_ptr<dataplane::DataPlane>> planes_;
  std::vector<std::shared_ptr<CollectiveRun>> runs_;
};

}  // namespace landbridge
