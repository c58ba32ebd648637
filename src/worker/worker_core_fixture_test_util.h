// What the tests of the core's rules share: a core with a recording sink, and short names for its events.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/core_test_util.h"
#include "worker/worker_core.h"

namespace landbridge::testing {

using Strings = std::vector<std::string>;

class WorkerCoreTest : public ::testing::Test {
 protected:
  explicit WorkerCoreTest(std::vector<int64_t> device_bytes = {1 << 20, 1 << 20}) {
    WorkerLimits limits;
    limits.device_bytes = std::move(device_bytes);
    core_ = std::make_unique<WorkerCore>(Incarnation(7), limits, &sink_);
  }

  // What the core says to do in answer.
  Strings Op(WorkerOp op) {
    core_->OnOp(std::move(op), ++now_);
    return sink_.TakeCalls();
  }
  Strings Done(uint64_t ticket, const absl::Status& status = absl::OkStatus(), DurationNs run_ns = kMicrosecond) {
    core_->OnLaunchDone(Ticket(ticket), status, run_ns, ++now_);
    return sink_.TakeCalls();
  }
  Strings UploadDone(uint64_t key, const absl::Status& status = absl::OkStatus()) {
    core_->OnUploadDone(key, status, ++now_);
    return sink_.TakeCalls();
  }
  Strings MakeDone(uint64_t ticket, int index, const absl::Status& status = absl::OkStatus()) {
    core_->OnMakeDone(Ticket(ticket), index, status, ++now_);
    return sink_.TakeCalls();
  }
  Strings Reports() {
    core_->Flush();
    return sink_.TakeReports();
  }
  void Load(uint64_t id, const ProgramSpec& spec) {
    Op(LoadOp(id, spec));
    core_->OnLoadDone(ExecutableId(id), absl::OkStatus(), ++now_);
    sink_.TakeCalls();
    sink_.TakeReports();
  }
  // A resident array, one shard per device.
  void Resident(uint64_t ticket, uint64_t array, int64_t bytes, std::vector<uint32_t> devices = {0},
                uint64_t session = 1) {
    Op(UploadOp(ticket, array, bytes, std::move(devices), true, session));
    UploadDone(ticket);
    Reports();
  }
  int64_t Used(size_t device = 0) { return core_->counts().device_bytes_reserved[device]; }
  nlohmann::json Explain() { return nlohmann::json::parse(core_->ExplainJson(now_)); }

  RecordingSink sink_;
  std::unique_ptr<WorkerCore> core_;
  TimeNs now_ = kSecond;
};

class SmallMemoryTest : public WorkerCoreTest {
 protected:
  SmallMemoryTest() : WorkerCoreTest({1000, 1000}) {}
};

}  // namespace landbridge::testing
