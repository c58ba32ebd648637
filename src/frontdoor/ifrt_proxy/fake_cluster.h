// For tests: a controller with workers that do as they are told, at once, in one thread. Programs copy their first
// argument to every output; a program named "fail" fails.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "controller/controller.h"
#include "sharding/reshard_plans.h"

namespace landbridge {

// Thread-safety: none.
class FakeCluster final : public ControllerSink {
 public:
  static constexpr uint64_t kSpace = 77;
  static constexpr int kSlices = 2, kDevicesPerSlice = 2;

  FakeCluster() : controller(MakeOptions(), this) {
    std::vector<VirtualDevice> devices;
    for (int s = 0; s < kSlices; ++s) {
      for (int d = 0; d < kDevicesPerSlice; ++d) {
        devices.push_back({DeviceId(s * kDevicesPerSlice + d), SlotId{SliceId(s), 0}, static_cast<uint32_t>(d)});
      }
    }
    controller.DeclareDevices(std::move(devices));
    for (int s = 0; s < kSlices; ++s) {
      const Incarnation life(static_cast<uint64_t>(100 + s));
      workers_[life];
      controller.OnWorkerUp(SlotId{SliceId(s), 0}, life, "", absl::StrCat("worker", s), 0);
    }
  }

  // Lets the workers work off what they were sent, until nothing is left. Not while `paused`.
  void Run() {
    if (paused) return;
    while (!queue_.empty()) {
      auto [worker, op] = std::move(queue_.front());
      queue_.pop_front();
      if (workers_.contains(worker)) Work(worker, op);
    }
  }

  void Kill(int slice) {
    const Incarnation life(static_cast<uint64_t>(100 + slice));
    workers_.erase(life);
    controller.OnWorkerLost(life, absl::DataLossError(absl::StrCat("slice", slice, " lost")), 0);
  }

  // ControllerSink.
  void SendToWorker(Incarnation worker, WorkerOp op) override { queue_.emplace_back(worker, std::move(op)); }
  void Resolve(RequestId request, const absl::Status& status) override { resolved.emplace_back(request, status); }
  void ResolveRead(RequestId request, absl::StatusOr<ReadResult> result) override {
    reads.emplace_back(request, std::move(result));
  }
  void ResolveExplain(RequestId, std::string) override {}
  void ServeHostBuffer(uint64_t key, std::vector<Incarnation> to) override { served[key] = std::move(to); }
  void WantHostBytes(uint64_t key) override { wanted.push_back(key); }
  void DropHostBuffer(uint64_t key) override { dropped.insert(key); }
  void ServeExecutable(Incarnation, ExecutableId, std::shared_ptr<const std::string>) override {}
  void StopServingExecutable(Incarnation, ExecutableId) override {}
  void PauseSession(SessionId, bool paused_session) override { session_paused = paused_session; }

  // For bytes that do not ride along; set by tests with a data plane. `done` may be called later.
  std::function<void(Incarnation, const Upload&, std::function<void(absl::StatusOr<std::string>)>)> pull;
  std::function<void(Incarnation, uint64_t read, std::string bytes)> publish;
  std::function<void(uint64_t read)> unpublish;
  void FinishPull(Incarnation worker, const Upload& upload, absl::StatusOr<std::string> bytes) {
    UploadData data;
    if (bytes.ok()) {
      data.set_data(*std::move(bytes));
    } else {
      data.mutable_error()->set_code(static_cast<int>(bytes.status().code()));
      data.mutable_error()->set_message(std::string(bytes.status().message()));
    }
    Fill(worker, upload, data);
  }

  // Tells `door` (a session's core, or the whole door) of requests that have been answered. False: there were none.
  template <typename Door>
  bool HandOverAnswers(Door& door) {
    const bool any = !resolved.empty() || !reads.empty();
    while (!resolved.empty()) {
      const auto [request, status] = std::move(resolved.front());
      resolved.pop_front();
      door.OnResolve(request, status);
    }
    while (!reads.empty()) {
      auto [request, result] = std::move(reads.front());
      reads.pop_front();
      door.OnResolveRead(request, std::move(result));
    }
    return any;
  }

  bool paused = false;
  bool session_paused = false;
  std::deque<std::pair<RequestId, absl::Status>> resolved;
  std::deque<std::pair<RequestId, absl::StatusOr<ReadResult>>> reads;
  std::vector<uint64_t> wanted;
  std::map<uint64_t, std::vector<Incarnation>> served;
  std::set<uint64_t> dropped;
  size_t launches = 0;
  Controller controller;

 private:
  using Ref = std::pair<uint64_t, uint32_t>;
  struct Program {
    bool fails = false;
  };
  struct Worker {
    std::map<Ref, std::string> buffers;
    std::map<Ref, absl::Status> poisoned;
    std::map<uint64_t, Program> programs;
    std::map<uint64_t, Upload> uploads;  // whose bytes come later
    std::map<uint64_t, Ref> published;
    ReshardPlans plans;
    std::set<Ref> pulling;
    std::vector<WorkerOp> waiting;  // for those
  };

  static Controller::Options MakeOptions() {
    Controller::Options options;
    options.space = kSpace;
    return options;
  }
  static Ref RefOf(const BufferRefProto& proto) { return {proto.array(), proto.shard()}; }

  void Report(Incarnation worker, const WorkerReport& report) { controller.OnReport(worker, report, 0); }
  void Done(Incarnation worker, uint64_t ticket) {
    WorkerReport report;
    report.mutable_progress()->add_tickets(ticket);
    Report(worker, report);
  }
  void Poison(Incarnation worker, uint64_t ticket, const std::vector<Ref>& refs, const StatusProto& why) {
    WorkerReport report;
    for (const Ref& ref : refs) {
      workers_[worker].poisoned[ref] = absl::Status(static_cast<absl::StatusCode>(why.code()), why.message());
      auto* out = report.mutable_failed()->add_refs();
      out->set_array(ref.first);
      out->set_shard(ref.second);
    }
    *report.mutable_failed()->mutable_status() = why;
    report.mutable_failed()->set_ticket(ticket);
    Report(worker, report);
  }
  void Fill(Incarnation worker, const Upload& upload, const UploadData& data) {
    std::vector<Ref> refs;
    for (const Target& target : upload.targets()) refs.push_back(RefOf(target.ref()));
    for (const Ref& ref : refs) workers_[worker].pulling.erase(ref);
    for (WorkerOp& op : std::exchange(workers_[worker].waiting, {})) queue_.emplace_back(worker, std::move(op));
    if (data.error().code() != 0) {
      Poison(worker, upload.ticket(), refs, data.error());
    } else {
      for (const Ref& ref : refs) workers_[worker].buffers[ref] = data.data();
    }
    WorkerReport report;
    report.mutable_uploads_done()->add_keys(upload.key());
    Report(worker, report);
    Done(worker, upload.ticket());
  }

  void Work(Incarnation worker, const WorkerOp& op) {
    Worker& w = workers_[worker];
    switch (op.op_case()) {
      case WorkerOp::kLoad: {
        w.programs[op.load().executable()].fails = op.load().info().name() == "fail";
        WorkerReport report;
        report.mutable_load_done()->set_executable(op.load().executable());
        return Report(worker, report);
      }
      case WorkerOp::kUpload:
        for (const Target& target : op.upload().targets()) w.pulling.insert(RefOf(target.ref()));
        if (op.upload().pulled()) {
          const Upload upload = op.upload();
          return pull(worker, upload, [this, worker, upload](absl::StatusOr<std::string> bytes) {
            FinishPull(worker, upload, std::move(bytes));
          });
        }
        w.uploads[op.upload().key()] = op.upload();
        return;
      case WorkerOp::kUploadData: {
        const Upload upload = w.uploads[op.upload_data().key()];
        w.uploads.erase(op.upload_data().key());
        return Fill(worker, upload, op.upload_data());
      }
      case WorkerOp::kLaunch: {
        ++launches;
        std::vector<Ref> refs;
        StatusProto why;
        if (w.programs[op.launch().executable()].fails) {
          why.set_code(static_cast<int>(absl::StatusCode::kInvalidArgument));
          why.set_message("the program failed");
        }
        why.set_root_ticket(op.launch().ticket());
        why.set_user_context(op.launch().user_context());
        for (uint64_t output : op.launch().outputs()) {
          for (uint32_t i = 0; i < static_cast<uint32_t>(op.launch().devices_size()); ++i) {
            refs.emplace_back(output, i);
            Ref source{0, 0};
            if (op.launch().args_size() > 0) {
              const auto& arg = op.launch().args(0);
              source = arg.shards_size() > 0 ? RefOf(arg.shards(static_cast<int>(i))) : Ref{arg.array(), i};
            }
            auto poison = w.poisoned.find(source);
            if (why.code() == 0 && poison != w.poisoned.end()) {
              why.set_code(static_cast<int>(poison->second.code()));
              why.set_message(std::string(poison->second.message()));
            }
            w.buffers[{output, i}] = w.buffers[source];
          }
        }
        if (why.code() != 0) Poison(worker, op.launch().ticket(), refs, why);
        return Done(worker, op.launch().ticket());
      }
      case WorkerOp::kAskMemory: {
        WorkerReport report;
        report.mutable_memory_use()->set_request(op.ask_memory().request());
        for (uint32_t d = 0; d < 4; ++d) {
          DeviceUse* use = report.mutable_memory_use()->add_devices();
          use->set_device(d);
          use->set_bytes_in_use(100 + d);
          use->set_bytes_limit(1000);
          use->set_bytes_peak(500);
        }
        return Report(worker, report);
      }
      case WorkerOp::kReshardSend: {
        const ReshardSend& send = op.reshard_send();
        const std::vector<Publish> offers = w.plans.Use(send.plan()).value()->Expand(send).value();
        for (const Publish& offer : offers) w.published[offer.transfer()] = RefOf(offer.ref());
        return;
      }
      case WorkerOp::kReshardReceive: {
        // Only whole shards move here.
        const MakeBuffers make = w.plans.Use(op.reshard_receive().plan()).value()->Expand(op.reshard_receive()).value();
        for (const MakeBuffer& buffer : make.buffers()) {
          for (const Piece& piece : buffer.pieces()) {
            if (piece.has_remote()) {
              Worker& source = workers_[Incarnation(piece.remote().incarnation())];
              w.buffers[RefOf(buffer.target().ref())] = source.buffers[source.published[piece.remote().transfer()]];
            } else {
              w.buffers[RefOf(buffer.target().ref())] = w.buffers[RefOf(piece.local())];
            }
          }
        }
        WorkerReport report;
        for (const ReshardEdgeProto& edge : op.reshard_receive().edges()) {
          report.mutable_transfers_done()->add_transfers(edge.transfer());
        }
        if (report.has_transfers_done()) Report(worker, report);
        return Done(worker, make.ticket());
      }
      case WorkerOp::kRead: {
        if (w.pulling.contains(RefOf(op.read().ref()))) {
          w.waiting.push_back(op);
          return;
        }
        WorkerReport report;
        report.mutable_read_ready()->set_read(op.read().read());
        auto poison = w.poisoned.find(RefOf(op.read().ref()));
        if (poison != w.poisoned.end()) {
          report.mutable_read_ready()->mutable_status()->set_code(static_cast<int>(poison->second.code()));
          report.mutable_read_ready()->mutable_status()->set_message(std::string(poison->second.message()));
        } else if (publish && w.buffers[RefOf(op.read().ref())].size() > limits::kInlineBytesMax) {
          publish(worker, op.read().read(), w.buffers[RefOf(op.read().ref())]);
          report.mutable_read_ready()->set_published(true);
        } else {
          report.mutable_read_ready()->set_data(w.buffers[RefOf(op.read().ref())]);
        }
        return Report(worker, report);
      }
      case WorkerOp::kReleaseRead:
        if (unpublish) unpublish(op.release_read().read());
        return;
      case WorkerOp::kDelete:
        for (uint64_t array : op.delete_().arrays()) {
          std::erase_if(w.buffers, [array](const auto& entry) { return entry.first.first == array; });
        }
        for (const auto& shard : op.delete_().shards()) w.buffers.erase(RefOf(shard));
        return;
      case WorkerOp::kWatch: {
        bool waits = false;
        for (const Ref& ref : w.pulling) {
          for (uint64_t array : op.watch().arrays()) waits = waits || ref.first == array;
          for (const auto& shard : op.watch().shards()) waits = waits || ref == RefOf(shard);
        }
        if (waits) {
          w.waiting.push_back(op);
          return;
        }
        WorkerReport report;
        report.mutable_watched()->set_watch(op.watch().watch());
        auto add = [&](const Ref& ref) {
          auto poison = w.poisoned.find(ref);
          if (poison == w.poisoned.end()) return;
          report.mutable_watched()->mutable_status()->set_code(static_cast<int>(poison->second.code()));
          report.mutable_watched()->mutable_status()->set_message(std::string(poison->second.message()));
        };
        for (uint64_t array : op.watch().arrays()) {
          for (uint32_t i = 0; i < kDevicesPerSlice; ++i) add({array, i});
        }
        for (const auto& shard : op.watch().shards()) add(RefOf(shard));
        return Report(worker, report);
      }
      case WorkerOp::kPoison: {
        std::vector<Ref> refs;
        for (const Target& target : op.poison().targets()) refs.push_back(RefOf(target.ref()));
        Poison(worker, op.poison().ticket(), refs, op.poison().why());
        return Done(worker, op.poison().ticket());
      }
      default: return;
    }
  }

  std::deque<std::pair<Incarnation, WorkerOp>> queue_;
  std::map<Incarnation, Worker> workers_;
};

}  // namespace landbridge
