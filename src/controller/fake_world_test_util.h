// For tests: workers that hold real values (s64 elements) and are strict about what they are told, in any order that a
// seed chooses. Anything that a real worker would count as an anomaly fails the test.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "controller/controller.h"
#include "controller/status_proto.h"
#include "sharding/reshard_plans.h"

namespace landbridge {

using Values = std::vector<int64_t>;
using RefKey = std::pair<uint64_t, uint32_t>;

inline RefKey KeyOf(const BufferRefProto& ref) { return {ref.array(), ref.shard()}; }

inline Values FromBytes(const std::string& bytes) {
  Values values(bytes.size() / 8);
  memcpy(values.data(), bytes.data(), values.size() * 8);
  return values;
}
inline std::string ToBytes(const Values& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * 8);
}

// Visits a box in row-major order.
template <typename Fn>
void ForEachIn(const IndexBox& box, Fn fn) {
  if (box.Elements() == 0) return;
  Dims at = box.start;
  while (true) {
    fn(at);
    size_t i = at.size();
    while (i-- > 0) {
      if (++at[i] < box.limit[i]) break;
      at[i] = box.start[i];
    }
    if (i == static_cast<size_t>(-1)) return;
  }
}
inline size_t FlatIndex(const Dims& at, const Dims& dims) {
  int64_t flat = 0;
  for (size_t i = 0; i < dims.size(); ++i) flat = flat * dims[i] + at[i];
  return static_cast<size_t>(flat);
}
inline Values Slice(const Values& values, const Dims& dims, const IndexBox& box) {
  Values out;
  ForEachIn(box, [&](const Dims& at) { out.push_back(values[FlatIndex(at, dims)]); });
  return out;
}

// What programs compute: output k from the arguments, element by element.
inline int64_t Compute(const std::vector<int64_t>& args, int output) {
  int64_t sum = output + 1;
  for (size_t i = 0; i < args.size(); ++i) sum = sum * 31 + args[i] * static_cast<int64_t>(i + 3);
  return sum & 0xffffff;
}

class FakeWorld : public ControllerSink {
 public:
  struct Buffer {
    bool ready = false;
    std::optional<StatusProto> poison;
    Values values;
    Dims dims;
    int users = 0;
    bool gone = false;  // deleted or given away: nobody may name it again
    uint64_t session = 0;
  };
  struct Task {
    enum Kind { kLaunch, kUpload, kMakeBuffer, kRead, kWatch } kind = kLaunch;
    WorkerOp op;
    int index = 0;  // kMakeBuffer: which
    std::shared_ptr<int> parts_left;
    std::shared_ptr<std::map<uint64_t, int>> edges;  // kMakeBuffer: pieces of each that are open
    uint64_t session = 0;
  };
  struct Worker {
    Incarnation incarnation;
    SlotId slot;
    std::deque<WorkerOp> inbox;
    std::deque<WorkerReport> outbox;
    std::map<RefKey, Buffer> buffers;
    std::map<uint64_t, ExecutableInfo> programs;
    std::map<uint64_t, RefKey> publications;
    ReshardPlans plans;
    std::map<uint64_t, std::string> data;  // UploadData
    std::map<uint64_t, StatusProto> data_errors;
    std::map<uint64_t, StatusProto> lost_peers;
    std::set<uint64_t> known_peers;
    std::set<uint64_t> published_reads;
    std::vector<LaunchSpan> spans;  // as they came
    std::map<uint64_t, StatusProto> aborted;
    std::vector<SpanOrder> span_orders;
    std::vector<Task> tasks;
    uint64_t last_ticket = 0;
    size_t ops_seen = 0;
  };

  explicit FakeWorld(uint64_t seed = 1, size_t launches_max = 4096)
      : FakeWorld(seed, Controller::Options{.space = 9, .launches_per_worker_max = launches_max, .scheduling = {}}) {}
  FakeWorld(uint64_t seed, Controller::Options options) : random(seed), controller(std::move(options), this) {}

  // `slots` workers of `devices` devices, so many to a slice.
  void Declare(int slot_count, int devices, int per_slice = 1) {
    slots_per_slice = per_slice;
    std::vector<VirtualDevice> all;
    for (int s = 0; s < slot_count; ++s) {
      for (int d = 0; d < devices; ++d) {
        all.push_back({DeviceId(s * devices + d), IdOf(s), static_cast<uint32_t>(d)});
      }
    }
    devices_per_slot = devices;
    controller.DeclareDevices(std::move(all));
  }
  Incarnation Start(int slot) {
    auto worker = std::make_unique<Worker>();
    worker->incarnation = Incarnation(1000 + next_incarnation_++);
    worker->slot = IdOf(slot);
    const Incarnation id = worker->incarnation;
    workers[id] = std::move(worker);
    slots[slot] = id;
    controller.OnWorkerUp(IdOf(slot), id, "address-" + id.ToString(), "w" + std::to_string(slot), now);
    return id;
  }
  static absl::Status LostStatus(int slot) {
    return absl::DataLossError("worker of slice " + std::to_string(slot) + " was lost");
  }
  void Kill(int slot) {
    const Incarnation id = slots.at(slot);
    slots.erase(slot);
    workers.erase(id);
    controller.OnWorkerLost(id, LostStatus(slot), now);
  }
  SlotId IdOf(int slot) const { return {SliceId(slot / slots_per_slice), slot % slots_per_slice}; }
  Worker& At(int slot) { return *workers.at(slots.at(slot)); }

  // ---- One random step of one worker or its stream; false if nothing can move.
  bool Step() {
    std::vector<std::function<void()>> moves;
    for (auto& [id, worker] : workers) {
      Worker* w = worker.get();
      if (!w->inbox.empty()) moves.push_back([this, w] { Receive(*w); });
      if (!w->outbox.empty()) moves.push_back([this, w] { Deliver(*w); });
      for (size_t i = 0; i < w->tasks.size(); ++i) {
        if (Runnable(*w, w->tasks[i])) {
          moves.push_back([this, w, i] {
            Task task = std::move(w->tasks[i]);
            w->tasks.erase(w->tasks.begin() + static_cast<long>(i));
            Run(*w, task);
          });
        }
      }
    }
    if (!wanted.empty()) {
      moves.push_back([this] {
        const uint64_t key = *wanted.begin();
        wanted.erase(wanted.begin());
        if (host.contains(key)) controller.OnHostBytes(key, host.at(key));
      });
    }
    if (moves.empty()) return false;
    moves[std::uniform_int_distribution<size_t>(0, moves.size() - 1)(random)]();
    ++now;
    return true;
  }
  void RunAll() {
    for (int rounds = 0; rounds < 2; ++rounds) {
      while (Step()) {
      }
      controller.OnTime(now);
    }
    while (Step()) {
    }
  }

  // ---- Sink.
  void SendToWorker(Incarnation worker, WorkerOp op) override {
    ++sent;
    auto it = workers.find(worker);
    if (it == workers.end()) {
      // OnWorkerUp sends before Start has put it in place; anything else is an error.
      ADD_FAILURE() << "sent to a worker that is not there: " << op.ShortDebugString();
      return;
    }
    it->second->inbox.push_back(std::move(op));
  }
  void Resolve(RequestId request, const absl::Status& status) override {
    EXPECT_TRUE(resolved.emplace(request, status).second) << "answered twice: " << request;
  }
  void ResolveRead(RequestId request, absl::StatusOr<ReadResult> result) override {
    EXPECT_TRUE(reads.emplace(request, std::move(result)).second) << "answered twice: " << request;
  }
  void ResolveExplain(RequestId request, std::string json) override { explained[request] = std::move(json); }
  void ServeHostBuffer(uint64_t key, std::vector<Incarnation> to) override {
    for (Incarnation id : to) served[key].insert(id);
    serve_calls[key].push_back(std::move(to));
  }
  void WantHostBytes(uint64_t key) override { wanted.insert(key); }
  void DropHostBuffer(uint64_t key) override { EXPECT_TRUE(dropped.insert(key).second) << "dropped twice: " << key; }
  void ServeExecutable(Incarnation worker, ExecutableId executable, std::shared_ptr<const std::string>) override {
    serving.insert({worker, executable});
  }
  void StopServingExecutable(Incarnation worker, ExecutableId executable) override {
    EXPECT_EQ(serving.erase({worker, executable}), 1u);
  }
  void PauseSession(SessionId session, bool pause) override { paused[session] = pause; }

  // ---- Shorthands for tests.
  std::vector<DeviceId> Devices(int slot, int count = -1) const {
    std::vector<DeviceId> ids;
    for (int d = 0; d < (count < 0 ? devices_per_slot : count); ++d)
      ids.push_back(DeviceId(slot * devices_per_slot + d));
    return ids;
  }
  ArraySpec Single(int device, Dims dims) const {
    return {DType::kS64, std::move(dims), Sharding::SingleDevice(DeviceId(device), MemoryKind::kDevice)};
  }
  ArraySpec Replicated(std::vector<DeviceId> devices, Dims dims) const {
    return {DType::kS64, std::move(dims), Sharding::FullyReplicated(std::move(devices), MemoryKind::kDevice).value()};
  }
  // Tiled over the leading dimension.
  ArraySpec Rows(std::vector<DeviceId> devices, Dims dims) const {
    xla::OpSharding op;
    op.set_type(xla::OpSharding::OTHER);
    const auto n = static_cast<int64_t>(devices.size());
    for (size_t i = 0; i < dims.size(); ++i) op.add_tile_assignment_dimensions(i == 0 ? n : 1);
    op.add_iota_reshape_dims(n);
    op.add_iota_transpose_perm(0);
    return {DType::kS64, std::move(dims),
            Sharding::FromOpSharding(std::move(devices), MemoryKind::kDevice, op).value()};
  }
  absl::StatusOr<ArrayId> Put(SessionId session, const ArraySpec& spec, const Values& values, uint64_t context = 0) {
    std::vector<HostShard> shards;
    for (uint32_t i = 0; i < spec.sharding->num_shards(); ++i) {
      HostShard shard;
      shard.shards = {i};
      shard.key = ++next_key;
      const std::string bytes = ToBytes(Slice(values, spec.dims, spec.sharding->Box(spec.dims, i).value()));
      shard.image_bytes = static_cast<int64_t>(bytes.size());
      if (i % 2 == 0 && bytes_at_once) {
        shard.bytes = std::make_shared<const std::string>(bytes);
      } else {
        host[shard.key] = bytes;
      }
      shards.push_back(std::move(shard));
    }
    return controller.MakeFromHost(session, spec, std::move(shards), context, now);
  }
  // Elementwise over arrays of one spec.
  std::shared_ptr<ProgramImage> Program(const ArraySpec& spec, int parameters, int outputs,
                                        std::vector<int> donated = {}, size_t envelope_bytes = 10) const {
    auto program = std::make_shared<ProgramImage>();
    program->envelope = std::make_shared<const std::string>(envelope_bytes, 'e');
    program->info.set_name("f");
    program->info.set_num_devices(static_cast<int>(spec.sharding->num_shards()));
    auto fill = [&](TensorInfo* info) {
      info->set_dtype(static_cast<int>(DType::kS64));
      const Dims shard = spec.sharding->ShardDims(spec.dims, 0).value();
      for (int64_t dim : shard) info->add_device_dims(dim);
      for (int64_t dim : spec.dims) info->add_global_dims(dim);
      info->set_device_bytes(DeviceBytes(DType::kS64, shard).value());
      *info->mutable_sharding() = spec.sharding->ToOpSharding().value();
    };
    for (int i = 0; i < parameters; ++i) fill(program->info.add_parameters());
    for (int i = 0; i < outputs; ++i) fill(program->info.add_outputs());
    for (int i : donated) program->info.add_donated_parameters(i);
    return program;
  }
  RequestId Wait(SessionId session, std::vector<ArrayId> arrays) {
    const RequestId request(++next_request);
    controller.WhenReady(session, request, arrays);
    return request;
  }
  RequestId ReadBack(SessionId session, ArrayId array) {
    const RequestId request(++next_request);
    const ArraySpec* spec = controller.Spec(session, array);
    controller.ReadArray(session, request, array, {},
                         spec == nullptr ? 0 : HostImageBytes(spec->dtype, spec->dims).value());
    return request;
  }
  // Reads an array shard by shard; the values of the whole.
  absl::StatusOr<Values> ReadWhole(SessionId session, ArrayId array) {
    const ArraySpec* spec_at = controller.Spec(session, array);
    if (spec_at == nullptr) return absl::InvalidArgumentError("unknown");
    const ArraySpec spec = *spec_at;
    absl::StatusOr<std::vector<ArrayId>> singles = controller.Disassemble(session, array, CopySemantics::kReuse);
    if (!singles.ok()) return singles.status();
    std::vector<RequestId> requests;
    for (ArrayId single : *singles) {
      requests.push_back(ReadBack(session, single));
      controller.Release(session, single);
    }
    RunAll();
    Values whole(static_cast<size_t>(ElementCount(spec.dims).value()), -1);
    for (uint32_t i = 0; i < requests.size(); ++i) {
      auto it = reads.find(requests[i]);
      if (it == reads.end()) return absl::AbortedError("no answer");
      if (!it->second.ok()) return it->second.status();
      const Values part = FromBytes(it->second->data);
      size_t next = 0;
      ForEachIn(spec.sharding->Box(spec.dims, i).value(),
                [&](const Dims& at) { whole[FlatIndex(at, spec.dims)] = part.at(next++); });
    }
    return whole;
  }
  void ExpectEmpty() {
    const Controller::Counts counts = controller.counts();
    EXPECT_EQ(counts.sessions, 0u);
    EXPECT_EQ(counts.arrays, 0u);
    EXPECT_EQ(counts.buffers, 0u);
    EXPECT_EQ(counts.executables, 0u);
    EXPECT_EQ(counts.requests, 0u);
    EXPECT_EQ(counts.launches_unfinished, 0u);
    EXPECT_EQ(counts.ops_parked, 0u) << controller.StatusJson(now);
    EXPECT_EQ(counts.transfers, 0u);
    EXPECT_EQ(counts.host_buffers, 0u);
    for (const auto& [id, worker] : workers) {
      EXPECT_TRUE(worker->buffers.empty())
          << "worker keeps " << worker->buffers.size() << " buffers, first a" << worker->buffers.begin()->first.first;
      EXPECT_TRUE(worker->tasks.empty());
      EXPECT_TRUE(worker->publications.empty());
      EXPECT_TRUE(worker->programs.empty());
    }
    EXPECT_TRUE(serving.empty());
  }

  std::mt19937_64 random;
  TimeNs now = 1;
  std::map<Incarnation, std::unique_ptr<Worker>> workers;
  std::map<int, Incarnation> slots;
  int devices_per_slot = 1;
  int slots_per_slice = 1;
  bool bytes_at_once = true;
  std::map<uint64_t, std::string> host;
  std::map<uint64_t, std::set<Incarnation>> served;
  std::map<uint64_t, std::vector<std::vector<Incarnation>>> serve_calls;
  std::set<uint64_t> wanted;
  std::set<uint64_t> dropped;
  std::set<std::pair<Incarnation, ExecutableId>> serving;
  std::map<RequestId, absl::Status> resolved;
  std::map<RequestId, absl::StatusOr<ReadResult>> reads;
  std::map<RequestId, std::string> explained;
  std::map<SessionId, bool> paused;
  std::optional<StatusProto> fail_next_launch;
  uint64_t next_key = 0;
  uint64_t next_request = 0;
  size_t sent = 0;
  Scheduling scheduling;  // that a worker was told last
  Controller controller;

 private:
  Buffer& NewBuffer(Worker& w, const BufferRefProto& ref, Dims dims, uint64_t session) {
    auto [it, added] = w.buffers.try_emplace(KeyOf(ref));
    EXPECT_TRUE(added) << "made twice: a" << ref.array() << "." << ref.shard();
    it->second.dims = std::move(dims);
    it->second.session = session;
    return it->second;
  }
  Buffer* Use(Worker& w, const BufferRefProto& ref, const WorkerOp& op) {
    auto it = w.buffers.find(KeyOf(ref));
    if (it == w.buffers.end() || it->second.gone) {
      ADD_FAILURE() << (it == w.buffers.end() ? "unknown" : "deleted") << " buffer a" << ref.array() << "."
                    << ref.shard() << " in " << op.ShortDebugString();
      return nullptr;
    }
    ++it->second.users;
    return &it->second;
  }
  void Unuse(Worker& w, RefKey key) {
    auto it = w.buffers.find(key);
    if (it == w.buffers.end()) return;
    if (--it->second.users == 0 && it->second.gone) w.buffers.erase(it);
  }
  void MarkGone(Worker& w, RefKey key) {
    auto it = w.buffers.find(key);
    ASSERT_TRUE(it != w.buffers.end() && !it->second.gone)
        << "deletes what is not there: a" << key.first << "." << key.second;
    it->second.gone = true;
    if (it->second.users == 0) w.buffers.erase(it);
  }
  void Report(Worker& w, WorkerReport report) { w.outbox.push_back(std::move(report)); }
  void Deliver(Worker& w) {
    const WorkerReport report = std::move(w.outbox.front());
    w.outbox.pop_front();
    controller.OnReport(w.incarnation, report, now);
  }
  static uint32_t ShardOf(const Launch& launch, int device) {
    return launch.has_span() ? launch.span().shards(device) : static_cast<uint32_t>(device);
  }
  static RefKey ArgKey(const Launch& launch, const LaunchArg& arg, int device) {
    return arg.shards_size() == 0 ? RefKey{arg.array(), ShardOf(launch, device)} : KeyOf(arg.shards(device));
  }
  static BufferRefProto Ref(RefKey key) {
    BufferRefProto ref;
    ref.set_array(key.first);
    ref.set_shard(key.second);
    return ref;
  }

  void Receive(Worker& w) {
    WorkerOp op = std::move(w.inbox.front());
    w.inbox.pop_front();
    ++w.ops_seen;
    switch (op.op_case()) {
      case WorkerOp::kLoad: {
        EXPECT_TRUE(w.programs.emplace(op.load().executable(), op.load().info()).second);
        WorkerReport report;
        report.mutable_load_done()->set_executable(op.load().executable());
        Report(w, std::move(report));
        return;
      }
      case WorkerOp::kUnload: EXPECT_EQ(w.programs.erase(op.unload().executable()), 1u); return;
      case WorkerOp::kLaunch: {
        const Launch& launch = op.launch();
        ASSERT_TRUE(w.programs.contains(launch.executable()));
        const ExecutableInfo& info = w.programs.at(launch.executable());
        EXPECT_EQ(launch.args_size(), info.parameters_size());
        if (launch.has_span()) w.spans.push_back(launch.span());
        std::set<uint32_t> donated(launch.donated().begin(), launch.donated().end());
        for (int a = 0; a < launch.args_size(); ++a) {
          for (int d = 0; d < launch.devices_size(); ++d) Use(w, Ref(ArgKey(launch, launch.args(a), d)), op);
        }
        for (uint32_t a : donated) {
          for (int d = 0; d < launch.devices_size(); ++d) {
            Buffer& buffer = w.buffers.at(ArgKey(launch, launch.args(static_cast<int>(a)), d));
            EXPECT_FALSE(buffer.gone);
            buffer.gone = true;
          }
        }
        const Dims dims(info.outputs(0).device_dims().begin(), info.outputs(0).device_dims().end());
        for (uint64_t output : launch.outputs()) {
          for (int d = 0; d < launch.devices_size(); ++d) {
            NewBuffer(w, Ref({output, ShardOf(launch, d)}), dims, launch.session());
          }
        }
        const uint64_t session = launch.session();
        w.tasks.push_back({Task::kLaunch, std::move(op), 0, nullptr, nullptr, session});
        return;
      }
      case WorkerOp::kUpload: {
        const Upload& upload = op.upload();
        for (const Target& target : upload.targets()) {
          NewBuffer(w, target.ref(), Dims(upload.dims().begin(), upload.dims().end()), upload.session());
        }
        EXPECT_TRUE(!upload.pulled() || served[upload.key()].contains(w.incarnation));
        const uint64_t session = upload.session();
        w.tasks.push_back({Task::kUpload, std::move(op), 0, nullptr, nullptr, session});
        return;
      }
      case WorkerOp::kUploadData:
        if (op.upload_data().has_error()) {
          w.data_errors[op.upload_data().key()] = op.upload_data().error();
        } else {
          w.data[op.upload_data().key()] = op.upload_data().data();
        }
        return;
      case WorkerOp::kMake: {
        auto left = std::make_shared<int>(op.make().buffers_size());
        auto edges = std::make_shared<std::map<uint64_t, int>>();
        for (int i = 0; i < op.make().buffers_size(); ++i) {
          const MakeBuffer& buffer = op.make().buffers(i);
          for (const Piece& piece : buffer.pieces()) {
            if (piece.has_local()) Use(w, piece.local(), op);
            if (piece.has_remote()) {
              ++(*edges)[piece.remote().edge()];
              EXPECT_EQ(piece.remote().space(), 9u);
              EXPECT_NE(piece.remote().incarnation(), 0u);
              if (!piece.remote().data_address().empty()) w.known_peers.insert(piece.remote().incarnation());
              EXPECT_TRUE(w.known_peers.contains(piece.remote().incarnation()));
            }
          }
          NewBuffer(w, buffer.target().ref(), Dims(buffer.dims().begin(), buffer.dims().end()), op.make().session());
        }
        for (int i = 0; i < op.make().buffers_size(); ++i) {
          w.tasks.push_back({Task::kMakeBuffer, op, i, left, edges, op.make().session()});
        }
        return;
      }
      case WorkerOp::kPublish: ADD_FAILURE() << "the controller does not send those by themselves"; return;
      case WorkerOp::kReshardReceive: {
        absl::StatusOr<std::shared_ptr<const ReshardPart>> part = w.plans.Use(op.reshard_receive().plan());
        ASSERT_TRUE(part.ok()) << part.status();
        absl::StatusOr<MakeBuffers> make = (*part)->Expand(op.reshard_receive());
        ASSERT_TRUE(make.ok()) << make.status();
        w.inbox.emplace_front();
        *w.inbox.front().mutable_make() = *std::move(make);
        --w.ops_seen;
        return Receive(w);
      }
      case WorkerOp::kReshardSend: {
        absl::StatusOr<std::shared_ptr<const ReshardPart>> part = w.plans.Use(op.reshard_send().plan());
        ASSERT_TRUE(part.ok()) << part.status();
        absl::StatusOr<std::vector<Publish>> publications = (*part)->Expand(op.reshard_send());
        ASSERT_TRUE(publications.ok()) << publications.status();
        for (const Publish& publish : *publications) {
          EXPECT_NE(publish.peer(), 0u);
          Use(w, publish.ref(), op);
          w.publications[publish.transfer()] = KeyOf(publish.ref());
        }
        return;
      }
      case WorkerOp::kUnpublish:
        ASSERT_EQ(op.unpublish().counts_size(), op.unpublish().transfers_size());
        for (int i = 0; i < op.unpublish().transfers_size(); ++i) {
          for (uint64_t k = 0; k < op.unpublish().counts(i); ++k) {
            auto it = w.publications.find(op.unpublish().transfers(i) + k);
            ASSERT_TRUE(it != w.publications.end()) << "unpublishes what is not published";
            Unuse(w, it->second);
            w.publications.erase(it);
          }
        }
        return;
      case WorkerOp::kRead: {
        Use(w, op.read().ref(), op);
        const uint64_t session = op.read().session();
        w.tasks.push_back({Task::kRead, std::move(op), 0, nullptr, nullptr, session});
        return;
      }
      case WorkerOp::kReleaseRead: return;
      case WorkerOp::kWatch:
        for (uint64_t array : op.watch().arrays()) {
          auto it = w.buffers.lower_bound({array, 0});
          EXPECT_TRUE(it != w.buffers.end() && it->first.first == array);
        }
        w.tasks.push_back({Task::kWatch, std::move(op), 0, nullptr, nullptr, 0});
        return;
      case WorkerOp::kDelete:
        for (uint64_t array : op.delete_().arrays()) {
          std::vector<RefKey> keys;
          for (auto it = w.buffers.lower_bound({array, 0}); it != w.buffers.end() && it->first.first == array; ++it) {
            keys.push_back(it->first);
          }
          EXPECT_FALSE(keys.empty()) << "deletes a" << array << ", which is not there";
          for (RefKey key : keys) MarkGone(w, key);
        }
        for (const BufferRefProto& ref : op.delete_().shards()) MarkGone(w, KeyOf(ref));
        return;
      case WorkerOp::kPoison:
        for (const Target& target : op.poison().targets()) {
          NewBuffer(w, target.ref(), {}, 0).poison = op.poison().why();
        }
        return;
      case WorkerOp::kAbortLaunch: w.aborted[op.abort_launch().ticket()] = op.abort_launch().why(); return;
      case WorkerOp::kSpanOrder: w.span_orders.push_back(op.span_order()); return;
      case WorkerOp::kPeerLost: w.lost_peers[op.peer_lost().incarnation()] = op.peer_lost().why(); return;
      case WorkerOp::kCancelSession: {
        const uint64_t session = op.cancel_session().session();
        std::vector<Task> kept;
        for (Task& task : w.tasks) {
          if (task.session == session && session != 0) {
            DropTask(w, task);
          } else {
            kept.push_back(std::move(task));
          }
        }
        w.tasks = std::move(kept);
        std::vector<RefKey> keys;
        for (auto& [key, buffer] : w.buffers) {
          if (buffer.session == session && !buffer.gone) keys.push_back(key);
        }
        for (RefKey key : keys) MarkGone(w, key);
        return;
      }
      case WorkerOp::kExplain: {
        WorkerReport report;
        report.mutable_explained()->set_request(op.explain().request());
        report.mutable_explained()->set_json("{\"queue\":0}");
        Report(w, std::move(report));
        return;
      }
      case WorkerOp::kScheduling: scheduling = op.scheduling(); return;
      case WorkerOp::kAskMemory: {
        WorkerReport report;
        report.mutable_memory_use()->set_request(op.ask_memory().request());
        for (uint32_t d = 0; d < 2; ++d) {
          DeviceUse* use = report.mutable_memory_use()->add_devices();
          use->set_device(d);
          use->set_bytes_in_use(100 + d);
        }
        Report(w, std::move(report));
        return;
      }
      case WorkerOp::kHostCallReply: ADD_FAILURE() << "the controller answers no calls of clients"; return;
      case WorkerOp::OP_NOT_SET: ADD_FAILURE() << "an empty operation"; return;
    }
  }

  void DropTask(Worker& w, const Task& task) {
    if (task.kind == Task::kLaunch) {
      for (const LaunchArg& arg : task.op.launch().args()) {
        for (int d = 0; d < task.op.launch().devices_size(); ++d) Unuse(w, ArgKey(task.op.launch(), arg, d));
      }
    } else if (task.kind == Task::kMakeBuffer) {
      for (const Piece& piece : task.op.make().buffers(task.index).pieces()) {
        if (piece.has_local()) Unuse(w, KeyOf(piece.local()));
      }
    } else if (task.kind == Task::kRead) {
      Unuse(w, KeyOf(task.op.read().ref()));
    }
  }

  static bool Settled(const Worker& w, RefKey key) {
    auto it = w.buffers.find(key);
    return it == w.buffers.end() || it->second.ready || it->second.poison.has_value();
  }
  // The published buffer, once it is settled. `lost`: it never will be.
  const Buffer* Remote(const Worker& w, const RemoteSource& source, std::optional<StatusProto>* lost) const {
    auto gone = w.lost_peers.find(source.incarnation());
    if (gone != w.lost_peers.end()) {
      *lost = gone->second;
      return nullptr;
    }
    auto peer = workers.find(Incarnation(source.incarnation()));
    if (peer == workers.end()) return nullptr;
    auto publication = peer->second->publications.find(source.transfer());
    if (publication == peer->second->publications.end()) return nullptr;
    const Buffer& buffer = peer->second->buffers.at(publication->second);
    return buffer.ready || buffer.poison.has_value() ? &buffer : nullptr;
  }
  bool Runnable(const Worker& w, const Task& task) const {
    switch (task.kind) {
      case Task::kLaunch:
        for (const LaunchArg& arg : task.op.launch().args()) {
          for (int d = 0; d < task.op.launch().devices_size(); ++d) {
            if (!Settled(w, ArgKey(task.op.launch(), arg, d))) return false;
          }
        }
        return true;
      case Task::kUpload:
        return task.op.upload().pulled() || w.data.contains(task.op.upload().key()) ||
               w.data_errors.contains(task.op.upload().key());
      case Task::kMakeBuffer:
        for (const Piece& piece : task.op.make().buffers(task.index).pieces()) {
          if (piece.has_local() && !Settled(w, KeyOf(piece.local()))) return false;
          std::optional<StatusProto> lost;
          if (piece.has_remote() && Remote(w, piece.remote(), &lost) == nullptr && !lost) return false;
        }
        return true;
      case Task::kRead: return Settled(w, KeyOf(task.op.read().ref()));
      case Task::kWatch:
        for (uint64_t array : task.op.watch().arrays()) {
          for (auto it = w.buffers.lower_bound({array, 0}); it != w.buffers.end() && it->first.first == array; ++it) {
            if (!Settled(w, it->first)) return false;
          }
        }
        for (const BufferRefProto& ref : task.op.watch().shards()) {
          if (!Settled(w, KeyOf(ref))) return false;
        }
        return true;
    }
    return false;
  }

  void Fail(Worker& w, uint64_t ticket, const std::vector<RefKey>& keys, StatusProto why) {
    WorkerReport report;
    for (RefKey key : keys) {
      auto it = w.buffers.find(key);
      if (it != w.buffers.end()) it->second.poison = why;
      *report.mutable_failed()->add_refs() = Ref(key);
    }
    *report.mutable_failed()->mutable_status() = std::move(why);
    report.mutable_failed()->set_ticket(ticket);
    Report(w, std::move(report));
  }
  void Ended(Worker& w, uint64_t ticket) {
    WorkerReport report;
    report.mutable_progress()->add_tickets(ticket);
    Report(w, std::move(report));
  }
  void Finish(Worker& w, RefKey key, Values values) {
    auto it = w.buffers.find(key);
    if (it == w.buffers.end()) return;  // deleted meanwhile, nobody uses it
    EXPECT_EQ(static_cast<int64_t>(values.size()), ElementCount(it->second.dims).value());
    it->second.values = std::move(values);
    it->second.ready = true;
  }

  void Run(Worker& w, const Task& task) {
    switch (task.kind) {
      case Task::kLaunch: return RunLaunch(w, task);
      case Task::kUpload: {
        const Upload& upload = task.op.upload();
        std::vector<RefKey> keys;
        for (const Target& target : upload.targets()) keys.push_back(KeyOf(target.ref()));
        if (w.data_errors.contains(upload.key())) {
          Fail(w, upload.ticket(), keys, w.data_errors.at(upload.key()));
        } else {
          const std::string& bytes = upload.pulled() ? host.at(upload.key()) : w.data.at(upload.key());
          for (RefKey key : keys) Finish(w, key, FromBytes(bytes));
        }
        WorkerReport report;
        report.mutable_uploads_done()->add_keys(upload.key());
        Report(w, std::move(report));
        Ended(w, upload.ticket());
        return;
      }
      case Task::kMakeBuffer: return RunMake(w, task);
      case Task::kRead: {
        const Read& read = task.op.read();
        WorkerReport report;
        ReadReady* ready = report.mutable_read_ready();
        ready->set_read(read.read());
        const Buffer& buffer = w.buffers.at(KeyOf(read.ref()));
        if (buffer.poison) {
          *ready->mutable_status() = *buffer.poison;
        } else {
          ready->set_data(ToBytes(buffer.values));
        }
        Unuse(w, KeyOf(read.ref()));
        Report(w, std::move(report));
        return;
      }
      case Task::kWatch: {
        WorkerReport report;
        report.mutable_watched()->set_watch(task.op.watch().watch());
        auto look = [&](RefKey key) {
          auto it = w.buffers.find(key);
          if (it != w.buffers.end() && it->second.poison && report.watched().status().code() == 0) {
            *report.mutable_watched()->mutable_status() = *it->second.poison;
          }
        };
        for (uint64_t array : task.op.watch().arrays()) {
          for (auto it = w.buffers.lower_bound({array, 0}); it != w.buffers.end() && it->first.first == array; ++it) {
            look(it->first);
          }
        }
        for (const BufferRefProto& ref : task.op.watch().shards()) look(KeyOf(ref));
        Report(w, std::move(report));
        return;
      }
    }
  }

  void RunLaunch(Worker& w, const Task& task) {
    const Launch& launch = task.op.launch();
    std::optional<StatusProto> poison;
    if (fail_next_launch) {
      poison = std::exchange(fail_next_launch, std::nullopt);
      poison->set_root_ticket(launch.ticket());
      poison->set_user_context(launch.user_context());
    }
    for (const LaunchArg& arg : launch.args()) {
      for (int d = 0; d < launch.devices_size(); ++d) {
        const Buffer& buffer = w.buffers.at(ArgKey(launch, arg, d));
        if (buffer.poison && !poison) poison = buffer.poison;
      }
    }
    if (launch.span().has_failed() && !poison) poison = launch.span().failed();
    if (w.aborted.contains(launch.ticket()) && !poison) poison = w.aborted.at(launch.ticket());
    std::vector<RefKey> keys;
    for (uint64_t output : launch.outputs()) {
      for (int d = 0; d < launch.devices_size(); ++d) keys.push_back({output, ShardOf(launch, d)});
    }
    if (poison) {
      Fail(w, launch.ticket(), keys, *poison);
    } else {
      for (int k = 0; k < launch.outputs_size(); ++k) {
        for (int d = 0; d < launch.devices_size(); ++d) {
          const size_t count = w.buffers.at(ArgKey(launch, launch.args(0), d)).values.size();
          Values values(count);
          for (size_t i = 0; i < count; ++i) {
            std::vector<int64_t> in;
            for (const LaunchArg& arg : launch.args()) in.push_back(w.buffers.at(ArgKey(launch, arg, d)).values.at(i));
            values[i] = Compute(in, k);
          }
          Finish(w, {launch.outputs(k), ShardOf(launch, d)}, std::move(values));
        }
      }
    }
    DropTask(w, task);
    Ended(w, launch.ticket());
  }

  void RunMake(Worker& w, const Task& task) {
    const MakeBuffers& make = task.op.make();
    const MakeBuffer& buffer = make.buffers(task.index);
    const Dims dims(buffer.dims().begin(), buffer.dims().end());
    Values values(static_cast<size_t>(ElementCount(dims).value()), -1);
    std::optional<StatusProto> poison;
    WorkerReport done;
    auto box = [](const Box& proto, const Dims& whole) {
      if (proto.start_size() == 0) return IndexBox::Whole(whole);
      return IndexBox{Dims(proto.start().begin(), proto.start().end()),
                      Dims(proto.limit().begin(), proto.limit().end())};
    };
    for (const Piece& piece : buffer.pieces()) {
      std::optional<StatusProto> lost;
      const Buffer* source = piece.has_local() ? &w.buffers.at(KeyOf(piece.local())) : Remote(w, piece.remote(), &lost);
      if (piece.has_remote() && --task.edges->at(piece.remote().edge()) == 0) {
        done.mutable_transfers_done()->add_transfers(piece.remote().edge());
      }
      if (lost || source->poison) {
        if (!poison) poison = lost ? lost : source->poison;
        continue;
      }
      const Dims source_dims(piece.source_dims().begin(), piece.source_dims().end());
      EXPECT_EQ(source->dims, source_dims);
      const Values part = Slice(source->values, source_dims, box(piece.source_box(), source_dims));
      size_t next = 0;
      ForEachIn(box(piece.target_box(), dims), [&](const Dims& at) { values[FlatIndex(at, dims)] = part.at(next++); });
    }
    const RefKey key = KeyOf(buffer.target().ref());
    if (poison) {
      Fail(w, task.op.make().ticket(), {key}, *poison);
    } else {
      for (int64_t value : values) EXPECT_NE(value, -1) << "not covered";
      Finish(w, key, std::move(values));
    }
    DropTask(w, task);
    if (done.has_transfers_done()) Report(w, std::move(done));
    if (--*task.parts_left == 0) Ended(w, make.ticket());
  }

  uint64_t next_incarnation_ = 0;
};

}  // namespace landbridge
