#include "worker/simulated/simulated_shell.h"

#include <deque>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/core_test_util.h"
#include "worker/simulated/simulated_limits.h"

namespace landbridge {
namespace {

using namespace landbridge::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Iota(size_t count) {
  std::string bytes(count, '\0');
  std::iota(bytes.begin(), bytes.end(), char{1});
  return bytes;
}

// Workers of one process under one manual loop.
class SimulatedShellTest : public ::testing::Test {
 protected:
  struct Worker {
    std::unique_ptr<SimulatedShell> shell;
    std::vector<WorkerReport> reports;

    void Do(const WorkerOp& op) { shell->core().OnOp(op, 1); }
  };

  SimulatedShellTest() : board_([this](std::function<void()> task) { posted_.push_back(std::move(task)); }) {
    host_.now = [this] { return now_; };
    host_.post = [this](std::function<void()> task) { posted_.push_back(std::move(task)); };
    host_.run_after = [this](DurationNs delay, std::function<void()> task) {
      timers_.emplace(now_ + delay, std::move(task));
    };
    host_.board = &board_;
  }

  Worker& Add(uint64_t self, int devices = 2) {
    Worker& worker = workers_[self];
    SimulatedShell::Options options;
    options.self = Incarnation(self);
    options.worker_name = absl::StrCat("simulated-", self);
    options.limits.device_bytes.assign(static_cast<size_t>(devices), int64_t{1} << 30);
    options.limits.host_bytes = options.limits.device_bytes;
    options.report = [&worker](const WorkerReport& report) { worker.reports.push_back(report); };
    options.changed = [] {};
    worker.shell = std::make_unique<SimulatedShell>(&host_, std::move(options));
    return worker;
  }
  // Until nothing is left to do at this time.
  void Settle() {
    while (!posted_.empty()) {
      std::function<void()> task = std::move(posted_.front());
      posted_.pop_front();
      task();
    }
    for (auto& [self, worker] : workers_) worker.shell->core().Flush();
  }
  void RunUntil(TimeNs until) {
    Settle();
    while (!timers_.empty() && timers_.begin()->first <= until) {
      auto timer = timers_.extract(timers_.begin());
      now_ = timer.key();
      timer.mapped()();
      Settle();
    }
    now_ = until;
  }
  // The bytes of u8[dims] array `array`, or the error.
  absl::StatusOr<std::string> Read(Worker& worker, uint64_t array, std::vector<int64_t> dims) {
    WorkerOp op = ReadOp(++reads_, array);
    int64_t bytes = 1;
    for (int64_t dim : dims) {
      op.mutable_read()->add_dims(dim);
      bytes *= dim;
    }
    op.mutable_read()->set_dtype(static_cast<int>(DType::kU8));
    op.mutable_read()->set_image_bytes(bytes);
    worker.reports.clear();
    worker.Do(op);
    Settle();
    for (const WorkerReport& report : worker.reports) {
      if (!report.has_read_ready()) continue;
      const StatusProto& status = report.read_ready().status();
      if (status.code() != 0) return absl::Status(static_cast<absl::StatusCode>(status.code()), status.message());
      return report.read_ready().data();
    }
    return absl::UnavailableError("no answer");
  }
  static std::vector<std::string> Texts(Worker& worker) {
    std::vector<std::string> texts;
    for (const WorkerReport& report : std::exchange(worker.reports, {})) texts.push_back(RecordingSink::Text(report));
    return texts;
  }
  void Upload(Worker& worker, uint64_t ticket, uint64_t array, const std::string& bytes) {
    worker.Do(UploadOp(ticket, array, static_cast<int64_t>(bytes.size()), {0}, /*pulled=*/false));
    worker.Do(UploadDataOp(ticket, bytes));
    Settle();
  }

  TimeNs now_ = 1;
  uint64_t reads_ = 0;
  std::deque<std::function<void()>> posted_;
  std::multimap<TimeNs, std::function<void()>> timers_;
  TransferBoard board_;
  SimulatedHostContext host_;
  std::map<uint64_t, Worker> workers_;
};

TEST_F(SimulatedShellTest, SmallUploadsAreReadBackAndForgottenWithTheirBuffers) {
  Worker& worker = Add(5);
  Upload(worker, 1, 10, Iota(12));
  EXPECT_THAT(Texts(worker), ElementsAre("UploadsDone 1", "Progress e1 @0 t1"));
  EXPECT_EQ(Read(worker, 10, {12}).value(), Iota(12));
  EXPECT_EQ(host_.bytes_kept, 12);
  worker.Do(DeleteOp({10}));
  Settle();
  EXPECT_EQ(host_.bytes_kept, 0);
  EXPECT_EQ(worker.shell->core().counts().anomalies, 0u);
}

TEST_F(SimulatedShellTest, StridedUploadsAreMadeDense) {
  Worker& worker = Add(5);
  WorkerOp op = UploadOp(1, 10, 6, {0}, /*pulled=*/false);
  op.mutable_upload()->clear_dims();
  for (int64_t dim : {2, 3}) op.mutable_upload()->add_dims(dim);
  for (int64_t stride : {1, 2}) op.mutable_upload()->add_byte_strides(stride);  // a transposed image
  worker.Do(op);
  worker.Do(UploadDataOp(1, std::string("adbecf")));
  Settle();
  EXPECT_EQ(Read(worker, 10, {2, 3}).value(), "abcdef");
}

TEST_F(SimulatedShellTest, LargeUploadsHaveASizeOnly) {
  Worker& worker = Add(5);
  const int64_t bytes = limits::kSimulatedBufferBytesMax + 1;
  worker.Do(UploadOp(1, 10, bytes));
  Settle();
  EXPECT_THAT(Texts(worker), ElementsAre("UploadsDone 1", "Progress e1 @0 t1"));
  EXPECT_EQ(worker.shell->core().counts().device_bytes_reserved[0], bytes);
  EXPECT_THAT(Read(worker, 10, {bytes}).status().message(), HasSubstr("simulated-5 is simulated"));
}

TEST_F(SimulatedShellTest, WhatAProgramMakesHasNoValuesAndSaysSo) {
  host_.launch_time = 100;
  Worker& worker = Add(5);
  Upload(worker, 1, 10, Iota(4));
  worker.Do(LoadOp(7, {.params = {4}, .outputs = {4}}));
  worker.Do(LaunchOp(2, 7, {10}, {11}));
  worker.Do(LaunchOp(3, 7, {11}, {12}));  // behind it on the same device
  worker.Do(WatchOp(77, {12}));
  worker.reports.clear();
  const TimeNs start = now_;
  RunUntil(start + 199);
  EXPECT_EQ(worker.shell->launches_done(), 1);
  RunUntil(start + 200);
  EXPECT_EQ(worker.shell->launches_done(), 2);
  EXPECT_TRUE(worker.shell->Idle());
  EXPECT_THAT(Texts(worker), ::testing::Contains("Watched 77 OK"));
  const absl::Status status = Read(worker, 12, {4}).status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_EQ(Read(worker, 10, {4}).value(), Iota(4));
}

TEST_F(SimulatedShellTest, PiecesTravelBetweenWorkersOfTheProcess) {
  Worker& source = Add(5);
  Worker& target = Add(6);
  // Rows 0-1 of u8[3,4] from the other worker, row 2 from here.
  WorkerOp make = MakeOp(9);
  MakeBuffer* part = AddPart(&make, 20, 0, 1, 3);
  part->add_dims(4);
  auto box = [](Box* to, std::vector<int64_t> start, std::vector<int64_t> limit) {
    for (int64_t at : start) to->add_start(at);
    for (int64_t at : limit) to->add_limit(at);
  };
  box(AddRemote(part, 40, 5)->mutable_target_box(), {0, 0}, {2, 4});
  Piece* local = AddLocal(part, 30, 0);
  box(local->mutable_target_box(), {2, 0}, {3, 4});
  for (int64_t dim : {1, 4}) local->add_source_dims(dim);
  Upload(target, 1, 30, "ABCD");
  target.Do(make);
  Settle();
  EXPECT_EQ(board_.waiting(), 1u);  // the source has not offered it yet

  Upload(source, 1, 10, Iota(12));
  WorkerOp publish = PublishOp(2, 40, 10, 0, 6);
  for (int64_t dim : {3, 4}) publish.mutable_publish()->add_dims(dim);
  publish.mutable_publish()->set_dtype(static_cast<int>(DType::kU8));
  box(publish.mutable_publish()->mutable_box(), {1, 0}, {3, 4});
  source.Do(publish);
  Settle();
  EXPECT_EQ(Read(target, 20, {3, 4}).value(), Iota(12).substr(4) + "ABCD");
  source.Do(UnpublishOp(40));
  Settle();
  EXPECT_EQ(board_.boxes(), 0u);
  EXPECT_EQ(source.shell->core().counts().transfers, 0u);
}

TEST_F(SimulatedShellTest, ALostPeerEndsWhatWaitsForIt) {
  Worker& target = Add(6);
  WorkerOp make = MakeOp(9);
  AddRemote(AddPart(&make, 20, 0, 0, 4), 40, 9);
  target.Do(make);
  Settle();
  EXPECT_EQ(board_.waiting(), 1u);
  target.reports.clear();
  target.Do(PeerLostOp(9));
  Settle();
  EXPECT_THAT(Texts(target), ::testing::Contains(HasSubstr("Failed a20.0 DATA_LOSS")));
  EXPECT_EQ(board_.waiting(), 0u);
}

TEST_F(SimulatedShellTest, ARealWorkersBytesAreRefused) {
  Worker& target = Add(6);
  WorkerOp make = MakeOp(9);
  AddRemote(AddPart(&make, 20, 0, 0, 4), 40, 9)->mutable_remote()->set_data_address("somewhere");
  target.reports.clear();
  target.Do(make);
  Settle();
  EXPECT_THAT(Texts(target), ::testing::Contains(HasSubstr("Failed a20.0 UNIMPLEMENTED")));
}

TEST_F(SimulatedShellTest, AFencedShellLetsGoOfEverything) {
  host_.launch_time = 100;
  Worker& worker = Add(5);
  Upload(worker, 1, 10, Iota(4));
  worker.Do(LoadOp(7, {.params = {4}, .outputs = {4}}));
  Settle();
  worker.Do(LaunchOp(2, 7, {10}, {11}));
  WorkerOp make = MakeOp(3);
  AddRemote(AddPart(&make, 20, 0, 0, 4), 40, 9);
  worker.Do(make);
  worker.reports.clear();
  worker.shell->Fence(absl::DataLossError("over"));
  Settle();
  EXPECT_FALSE(worker.shell->Idle());
  EXPECT_EQ(board_.waiting(), 0u);
  RunUntil(now_ + 100);
  EXPECT_TRUE(worker.shell->Idle());
  EXPECT_TRUE(worker.shell->core().OldWorkEnded());
  EXPECT_THAT(worker.reports, IsEmpty());
  workers_.clear();
  EXPECT_EQ(host_.bytes_kept, 0);
}

TEST(TransferBoard, OthersPullsAreRefusedAndLateOnesHearWhy) {
  std::vector<std::function<void()>> posted;
  TransferBoard board([&](std::function<void()> task) { posted.push_back(std::move(task)); });
  std::vector<std::string> answers;
  auto pull = [&](uint64_t transfer, uint64_t peer) {
    board.Pull(Incarnation(1), TransferId(transfer), Incarnation(peer),
               [&](const absl::StatusOr<SimulatedBytes>& bytes) {
                 answers.push_back(bytes.ok() ? (*bytes == nullptr ? "size only" : **bytes)
                                              : std::string(bytes.status().message()));
               });
  };
  auto run = [&] {
    for (auto& task : std::exchange(posted, {})) task();
    return std::exchange(answers, {});
  };
  pull(1, 3);
  board.Publish(Incarnation(1), TransferId(1), Incarnation(2), std::make_shared<const std::string>("abc"));
  board.Publish(Incarnation(1), TransferId(2), Incarnation(2), nullptr);
  pull(1, 2);
  pull(1, 3);
  pull(2, 2);
  EXPECT_THAT(run(), ElementsAre("the bytes are offered to another worker", "abc",
                                 "the bytes are offered to another worker", "size only"));
  pull(3, 2);
  board.Cancel(Incarnation(1), TransferId(3), Incarnation(2), absl::CancelledError("given up"));
  board.Withdraw(Incarnation(1), TransferId(1), absl::AbortedError("withdrawn"));
  pull(1, 2);
  EXPECT_THAT(run(), ElementsAre("given up", "withdrawn"));
  board.End(Incarnation(1));
  EXPECT_EQ(board.boxes(), 0u);
  EXPECT_EQ(board.waiting(), 0u);
}

}  // namespace
}  // namespace landbridge
