// Reports of workers that may say anything, while a client works. Every request is answered once at most, and when the
// session is closed and the workers are gone nothing is left.
#include <map>
#include <set>

#include "base/log.h"
#include "controller/controller.h"
#include "testing/fuzz.h"
#include "testing/fuzz_proto.h"

namespace landbridge::fuzz {
namespace {

class Sink final : public ControllerSink {
 public:
  void SendToWorker(Incarnation worker, WorkerOp op) override { ops[worker].push_back(std::move(op)); }
  void Resolve(RequestId request, const absl::Status&) override { LB_CHECK(answered.insert(request.value()).second); }
  void ResolveRead(RequestId request, absl::StatusOr<ReadResult> result) override {
    LB_CHECK(answered.insert(request.value()).second);
    if (result.ok()) reads.push_back(request);
  }
  void ResolveExplain(RequestId, std::string) override {}
  void ServeHostBuffer(uint64_t, std::vector<Incarnation>) override {}
  void WantHostBytes(uint64_t key) override { wanted.push_back(key); }
  void DropHostBuffer(uint64_t key) override { LB_CHECK(dropped.insert(key).second); }
  void ServeExecutable(Incarnation, ExecutableId, std::shared_ptr<const std::string>) override {}
  void StopServingExecutable(Incarnation, ExecutableId) override {}
  void PauseSession(SessionId, bool) override {}

  std::map<Incarnation, std::vector<WorkerOp>> ops;
  std::set<uint64_t> answered, dropped;
  std::vector<uint64_t> wanted;
  std::vector<RequestId> reads;
};

// What a good worker would report about an op.
std::vector<WorkerReport> GoodReports(const WorkerOp& op) {
  std::vector<WorkerReport> reports(1);
  WorkerReport& report = reports[0];
  auto ended = [&](uint64_t ticket) { reports.emplace_back().mutable_progress()->add_tickets(ticket); };
  switch (op.op_case()) {
    case WorkerOp::kLoad: report.mutable_load_done()->set_executable(op.load().executable()); break;
    case WorkerOp::kLaunch: report.mutable_progress()->add_tickets(op.launch().ticket()); break;
    case WorkerOp::kUpload:
      report.mutable_uploads_done()->add_keys(op.upload().key());
      ended(op.upload().ticket());
      break;
    case WorkerOp::kReshardReceive:
      for (const ReshardEdgeProto& edge : op.reshard_receive().edges()) {
        report.mutable_transfers_done()->add_transfers(edge.transfer());
      }
      ended(op.reshard_receive().ticket());
      break;
    case WorkerOp::kRead:
      report.mutable_read_ready()->set_read(op.read().read());
      report.mutable_read_ready()->set_data(std::string(static_cast<size_t>(op.read().image_bytes()), 'r'));
      break;
    case WorkerOp::kWatch: report.mutable_watched()->set_watch(op.watch().watch()); break;
    case WorkerOp::kAskMemory:
      report.mutable_memory_use()->set_request(op.ask_memory().request());
      report.mutable_memory_use()->add_devices();
      break;
    case WorkerOp::kExplain: report.mutable_explained()->set_request(op.explain().request()); break;
    default: return {};
  }
  return reports;
}

class Run {
 public:
  Run() : controller({.space = 9, .launches_per_worker_max = 4}, &sink) {
    std::vector<VirtualDevice> devices;
    for (int d = 0; d < 4; ++d) {
      devices.push_back({DeviceId(d), SlotId{SliceId(d / 2), 0}, static_cast<uint32_t>(d % 2)});
    }
    controller.DeclareDevices(std::move(devices));
    Up(0);
    Up(1);
    controller.OpenSession(session);
  }
  void Up(int slot) {
    if (lives[slot].valid()) return;
    lives[slot] = Incarnation(next_life++);
    controller.OnWorkerUp(SlotId{SliceId(slot), 0}, lives[slot], "address", "w", ++now);
  }
  void Lose(int slot) {
    if (!lives[slot].valid()) return;
    const Incarnation life = std::exchange(lives[slot], Incarnation());
    sink.ops.erase(life);
    controller.OnWorkerLost(life, absl::DataLossError("lost"), ++now);
  }
  std::vector<DeviceId> Devices(uint64_t which) const {
    switch (which % 4) {
      case 0: return {DeviceId(0), DeviceId(1)};
      case 1: return {DeviceId(2), DeviceId(3)};
      case 2: return {DeviceId(1)};
      default: return {DeviceId(2)};
    }
  }
  ArraySpec Spec(const std::vector<DeviceId>& devices) const {
    xla::OpSharding op;
    if (devices.size() > 1) {
      op.set_type(xla::OpSharding::OTHER);
      op.add_tile_assignment_dimensions(static_cast<int64_t>(devices.size()));
      op.add_iota_reshape_dims(static_cast<int64_t>(devices.size()));
      op.add_iota_transpose_perm(0);
    }
    ArraySpec spec;
    spec.dtype = DType::kU8;
    spec.dims = {8};
    spec.sharding = *Sharding::FromOpSharding(devices, MemoryKind::kDevice, op);
    return spec;
  }
  ArrayId Array(Choices& choices) {
    return arrays.empty() ? ArrayId(choices.Id()) : arrays[choices.Byte() % arrays.size()];
  }

  // One call of a client.
  void Call(Choices& choices) {
    switch (choices.Below(9)) {
      case 0: {
        const std::vector<DeviceId> devices = Devices(choices.Byte());
        std::vector<HostShard> shards(devices.size());
        for (uint32_t i = 0; i < shards.size(); ++i) {
          shards[i].shards = {i};
          shards[i].key = next_key++;
          shards[i].image_bytes = 8 / static_cast<int64_t>(devices.size());
          if (choices.Flag())
            shards[i].bytes = std::make_shared<std::string>(static_cast<size_t>(shards[i].image_bytes), 'h');
        }
        Keep(controller.MakeFromHost(session, Spec(devices), std::move(shards), 0, ++now));
        break;
      }
      case 1: {
        const std::vector<DeviceId> devices = Devices(choices.Byte());
        auto image = std::make_shared<ProgramImage>();
        image->envelope = std::make_shared<const std::string>("envelope");
        image->sha256 = std::string(32, 'x');
        image->info.set_name("f");
        image->info.set_num_devices(static_cast<int>(devices.size()));
        image->info.set_num_replicas(1);
        image->info.set_num_partitions(static_cast<int>(devices.size()));
        for (TensorInfo* tensor : {image->info.add_parameters(), image->info.add_outputs()}) {
          tensor->set_dtype(static_cast<int>(DType::kU8));
          tensor->add_global_dims(8);
          tensor->add_device_dims(8 / static_cast<int64_t>(devices.size()));
          tensor->set_device_bytes(8 / static_cast<int64_t>(devices.size()));
          if (devices.size() > 1) *tensor->mutable_sharding() = *Spec(devices).sharding->ToOpSharding();
        }
        if (choices.Flag()) image->info.add_donated_parameters(0);
        if (auto id = controller.AddExecutable(session, image, devices); id.ok()) executables.push_back(*id);
        break;
      }
      case 2:
        if (!executables.empty()) {
          ExecuteArgs args;
          args.executable = executables[choices.Byte() % executables.size()];
          args.args = {Array(choices)};
          if (auto result = controller.Execute(session, args, 0, ++now); result.ok()) {
            for (ArrayId id : result->outputs) arrays.push_back(id);
            controller.WhenDone(session, RequestId(next_request++), result->ticket);
          }
        }
        break;
      case 3: {
        const std::vector<DeviceId> devices = Devices(choices.Byte());
        const ArrayId id = Array(choices);
        auto made = controller.Copy(session, {&id, 1}, &devices, nullptr, static_cast<CopySemantics>(choices.Below(3)),
                                    0, ++now);
        if (made.ok()) arrays.insert(arrays.end(), made->begin(), made->end());
        break;
      }
      case 4: {
        const ArrayId id = Array(choices);
        auto made = controller.Reshard(session, {&id, 1}, {Spec(Devices(choices.Byte()))},
                                       static_cast<CopySemantics>(choices.Below(3)), 0, ++now);
        if (made.ok()) arrays.insert(arrays.end(), made->begin(), made->end());
        break;
      }
      case 5: controller.ReadArray(session, RequestId(next_request++), Array(choices), {}, 8); break;
      case 6: {
        const ArrayId id = Array(choices);
        controller.WhenReady(session, RequestId(next_request++), {&id, 1});
        break;
      }
      case 7:
        if (choices.Flag()) {
          controller.Delete(session, Array(choices)).IgnoreError();
        } else if (!arrays.empty()) {
          const size_t at = choices.Byte() % arrays.size();
          controller.Release(session, arrays[at]);
          arrays.erase(arrays.begin() + static_cast<std::ptrdiff_t>(at));
        }
        break;
      default:
        if (!sink.wanted.empty()) {
          const uint64_t key = sink.wanted.back();
          sink.wanted.pop_back();
          if (choices.Flag()) {
            controller.OnHostBytes(key, std::string(4, 'b'));
          } else {
            controller.OnHostBytes(key, absl::UnavailableError("no bytes"));
          }
        }
        break;
    }
  }
  void Keep(absl::StatusOr<ArrayId> id) {
    if (id.ok()) arrays.push_back(*id);
  }

  const SessionId session{1};
  Sink sink;
  Controller controller;
  Incarnation lives[2];
  uint64_t next_life = 100, next_key = 1, next_request = 1;
  TimeNs now = kSecond;
  std::vector<ArrayId> arrays;
  std::vector<ExecutableId> executables;
};

}  // namespace

std::vector<std::string> FuzzSeeds() {
  WorkerReport failed;
  failed.mutable_failed()->mutable_status()->set_code(3);
  failed.mutable_failed()->add_refs()->set_array(1);
  WorkerReport read;
  read.mutable_read_ready()->set_read(1);
  read.mutable_read_ready()->set_data("12345678");
  WorkerReport progress;
  progress.mutable_progress()->add_tickets(1);
  std::string work;
  for (int i = 0; i < 40; ++i) work += std::string("\x00", 1) + static_cast<char>(i * 5) + "\x01\x02\x01\x03";
  std::string steps;
  for (const WorkerReport& report : {failed, read, progress}) {
    steps += std::string("\x00\x00\x01\x00\x01\x00", 6) + std::string("\x02\x00", 2) +
             WithLength(report.SerializeAsString());
  }
  std::string random;
  for (int i = 0; i < 900; ++i) random.push_back(static_cast<char>(i * 7919 >> 3));
  return {work, steps + work + steps, random};
}

void FuzzOne(absl::string_view input) {
  static const MessageMaker maker({"12345678", "x"});
  Choices choices(input);
  Run run;
  while (!choices.empty()) {
    const int slot = static_cast<int>(choices.Below(2));
    const Incarnation life = run.lives[slot];
    switch (choices.Below(8)) {
      case 0:
      case 1: run.Call(choices); break;
      case 2: {
        WorkerReport report;
        const absl::string_view bytes = choices.Text();
        if (report.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
          run.controller.OnReport(life, report, ++run.now);
        break;
      }
      case 3: {
        WorkerReport report;
        maker.Fill(choices, &report);
        run.controller.OnReport(life, report, ++run.now);
        break;
      }
      case 4:
      case 5: {  // a worker does its work
        auto& ops = run.sink.ops[life];
        if (ops.empty()) break;
        const size_t at = choices.Byte() % ops.size();
        const WorkerOp op = ops[at];
        ops.erase(ops.begin() + static_cast<std::ptrdiff_t>(at));
        if (life.valid()) {
          for (const WorkerReport& report : GoodReports(op)) run.controller.OnReport(life, report, ++run.now);
        }
        break;
      }
      case 6: choices.Below(4) == 0 ? run.Lose(slot) : run.Up(slot); break;
      default:
        switch (choices.Below(4)) {
          case 0: LB_CHECK(!run.controller.StatusJson(run.now).empty()); break;
          case 1: run.controller.Explain(RequestId(run.next_request++), ++run.now); break;
          case 2:
            if (!run.sink.reads.empty()) {
              run.controller.ReleaseRead(run.sink.reads.back());
              run.sink.reads.pop_back();
            }
            break;
          default: run.controller.OnTime(++run.now); break;
        }
    }
  }
  run.controller.CloseSession(run.session, absl::CancelledError("the end"));
  for (int slot : {0, 1}) {
    run.Up(slot);
    run.Lose(slot);
  }
  const Controller::Counts counts = run.controller.counts();
  LB_CHECK(counts.sessions == 0 && counts.arrays == 0 && counts.buffers == 0 && counts.executables == 0 &&
           counts.launches_unfinished == 0 && counts.ops_parked == 0 && counts.transfers == 0);
}

}  // namespace landbridge::fuzz
