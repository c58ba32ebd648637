// Ops of a controller that may say anything, with a shell that answers in any order. Whatever came, after a fence all ends
// and nothing is left.
#include <algorithm>
#include <set>
#include <utility>

#include "base/log.h"
#include "testing/fuzz.h"
#include "testing/fuzz_proto.h"
#include "proto/landbridge/order.pb.h"
#include "worker/core_test_util.h"
#include "worker/worker_core.h"

namespace landbridge::fuzz {
namespace {

using namespace landbridge::testing;  // NOLINT: the short op builders

class Shell final : public WorkerSink {
 public:
  void Report(WorkerReport report) override { LB_CHECK(report.report_case() != WorkerReport::REPORT_NOT_SET); }
  void Load(const LoadExecutable& load) override { loads.push_back(load.executable()); }
  void Unload(ExecutableId) override {}
  void HandOver(std::shared_ptr<const Launch> launch, uint64_t) override { launches.push_back(launch->ticket()); }
  void StartUpload(std::shared_ptr<const Upload> upload) override {
    for (const Target& target : upload->targets()) Made(target.ref());
    uploads.push_back(upload->key());
  }
  void UploadBytes(uint64_t, std::string) override {}
  void CancelUpload(uint64_t, const absl::Status&) override {}
  void StartMake(std::shared_ptr<const MakeBuffers> make, int index) override {
    Made(make->buffers(index).target().ref());
    makes.emplace_back(make->ticket(), index);
  }
  void CancelMake(Ticket, int, const absl::Status&) override {}
  void StartPublish(const Publish& publish) override { publishes.push_back(publish.transfer()); }
  void FailPublish(TransferId, const absl::Status& why) override { LB_CHECK(!why.ok()); }
  void StopPublish(TransferId transfer, const absl::Status&) override {
    if (Take(publishes, transfer.value())) stopped_publishes.push_back(transfer.value());
  }
  void StartRead(const Read& read, bool) override { reads.push_back(read.read()); }
  void SnapshotPublish(TransferId transfer) override { snapshot_publishes.push_back(transfer.value()); }
  void SnapshotRead(uint64_t) override {}
  void StopRead(uint64_t) override {}
  void Free(BufferRef ref) override {
    LB_CHECK(!ref.array.valid() || freed.size() < 1'000'000);
    freed.insert(ref);
  }
  void PeerLost(Incarnation, const absl::Status&) override {}
  void AbortLaunch(Ticket, const absl::Status&) override {}

  template <typename T, typename V>
  static bool Take(std::vector<T>& list, const V& value) {
    auto it = std::find(list.begin(), list.end(), value);
    if (it == list.end()) return false;
    list.erase(it);
    return true;
  }
  void Made(const BufferRefProto& ref) { freed.erase(BufferRef{ArrayId(ref.array()), ref.shard()}); }

  std::vector<uint64_t> loads, launches, uploads, publishes, stopped_publishes, reads, snapshot_publishes;
  std::vector<std::pair<uint64_t, int>> makes;
  std::set<BufferRef> freed;
};

class Run {
 public:
  Run() {
    WorkerLimits limits;
    limits.device_bytes = {1000, 1000};
    limits.host_bytes = {500, 500};
    core = std::make_unique<WorkerCore>(Incarnation(1), limits, &shell);
  }

  // One thing that the shell was asked to do ends, well or not; false: nothing is open.
  bool Answer(uint64_t which, bool well) {
    const absl::Status status = well ? absl::OkStatus() : absl::UnavailableError("it did not work");
    std::vector<size_t> open;
    const size_t sizes[] = {shell.loads.size(),
                            shell.launches.size(),
                            shell.uploads.size(),
                            shell.makes.size(),
                            shell.stopped_publishes.size(),
                            shell.reads.size(),
                            shell.snapshot_publishes.size()};
    for (size_t i = 0; i < std::size(sizes); ++i) {
      if (sizes[i] > 0) open.push_back(i);
    }
    if (open.empty()) return false;
    auto next = [&](auto& list) {
      const size_t at = (which / 7) % list.size();
      auto value = list[at];
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(at));
      return value;
    };
    switch (open[which % open.size()]) {
      case 0: core->OnLoadDone(ExecutableId(next(shell.loads)), status, now); break;
      case 1: core->OnLaunchDone(Ticket(next(shell.launches)), status, 1000, now); break;
      case 2: core->OnUploadDone(next(shell.uploads), status, now); break;
      case 3: {
        const auto [ticket, index] = next(shell.makes);
        core->OnMakeDone(Ticket(ticket), index, status, now);
        break;
      }
      case 4: core->OnPublishQuiet(TransferId(next(shell.stopped_publishes)), now); break;
      case 6: core->OnPublishQuiet(TransferId(next(shell.snapshot_publishes)), now); break;
      default: {
        const uint64_t read = next(shell.reads);
        core->OnReadDone(read, status, well ? "data" : "", false, now);
        core->OnReadQuiet(read, now);
        break;
      }
    }
    return true;
  }

  Shell shell;
  std::unique_ptr<WorkerCore> core;
  TimeNs now = kSecond;
};

WorkerOp Sensible(Choices& choices) {
  auto devices = [&]() -> std::vector<uint32_t> {
    switch (choices.Below(3)) {
      case 0: return {0};
      case 1: return {1};
      default: return {0, 1};
    }
  };
  auto id = [&] { return 1 + choices.Below(12); };
  switch (choices.Below(15)) {
    case 0: {
      ProgramSpec spec;
      spec.params.assign(choices.Below(3), static_cast<int64_t>(choices.Below(200)));
      spec.outputs.assign(choices.Below(3), static_cast<int64_t>(choices.Below(200)));
      spec.devices = choices.Below(4) == 0 ? std::vector<uint32_t>{} : devices();
      spec.temp = static_cast<int64_t>(choices.Below(100));
      spec.can_fail_on_one_shard = choices.Flag();
      spec.has_side_effects = spec.can_fail_on_one_shard;
      WorkerOp op = LoadOp(id(), spec);
      if (choices.Flag()) op.mutable_load()->mutable_info()->set_split(true);
      return op;
    }
    case 1:
    case 2: {
      const uint64_t ticket = id() + 12 * choices.Below(4), executable = id();
      std::vector<uint64_t> args(choices.Below(3)), outputs(choices.Below(3));
      for (uint64_t& arg : args) arg = id();
      for (uint64_t& output : outputs) output = id();
      std::vector<uint32_t> donated(choices.Below(2));
      for (uint32_t& parameter : donated) parameter = static_cast<uint32_t>(choices.Below(3));
      return LaunchOp(ticket, executable, args, outputs, devices(), donated, id());
    }
    case 3: return UploadOp(id() + 12 * choices.Below(4), id(), choices.Size(), devices(), choices.Flag(), id());
    case 4: return UploadDataOp(id() + 12 * choices.Below(4), std::string(choices.Below(40), 'x'));
    case 5: {
      WorkerOp op = MakeOp(id() + 12 * choices.Below(4), id());
      for (uint64_t parts = choices.Below(3); parts > 0; --parts) {
        MakeBuffer* part = AddPart(&op, id(), static_cast<uint32_t>(choices.Below(2)),
                                   static_cast<uint32_t>(choices.Below(3)), choices.Size());
        if (choices.Flag()) {
          AddLocal(part, id(), static_cast<uint32_t>(choices.Below(2)), choices.Flag());
        } else {
          AddRemote(part, id(), id());
        }
      }
      return op;
    }
    case 6: return PublishOp(id() + 12 * choices.Below(4), id(), id(), static_cast<uint32_t>(choices.Below(2)), id());
    case 7: return UnpublishOp(id());
    case 8: return ReadOp(id(), id(), static_cast<uint32_t>(choices.Below(2)), id());
    case 9: return choices.Flag() ? ReleaseReadOp(id()) : WatchOp(id(), {id(), id()});
    case 10: return DeleteOp({id(), id()});
    case 11: return CancelSessionOp(id());
    case 12: {
      WorkerOp op = LaunchOp(id() + 12 * choices.Below(4), id(), {id()}, {id()}, {0, 1});
      LaunchSpan* span = op.mutable_launch()->mutable_span();
      for (uint32_t shard : {0, 1}) span->add_shards(shard);
      for (uint32_t worker : {1, 2}) {
        span->add_workers()->set_incarnation(worker);
        span->mutable_workers(static_cast<int>(worker) - 1)->set_log(worker);
      }
      for (int i = 0; i < 2; ++i) span->add_worker_of_device(0);
      span->set_number(id());
      span->set_horizon(choices.Below(4) == 0 ? id() : 0);
      return op;
    }
    case 13: {
      WorkerOp op;
      SpanOrder* order = op.mutable_span_order();
      order->set_epoch(1 + choices.Below(4));
      order->set_spanner(1 + choices.Below(2));
      order->set_log(1);
      for (uint64_t worker = 1; worker <= choices.Below(4); ++worker) {
        order->add_members()->set_incarnation(worker);
        order->mutable_members(static_cast<int>(worker) - 1)->set_log(static_cast<uint32_t>(worker));
      }
      return op;
    }
    default: return PeerLostOp(id());
  }
}

// Of the spanner on another worker, or of a member of the one here.
OrderMail SensibleMail(Choices& choices) {
  OrderMail mail;
  const uint64_t epoch = 1 + choices.Below(4), number = 1 + choices.Below(12);
  switch (choices.Below(4)) {
    case 0:
      mail.mutable_report()->set_log(2);
      mail.mutable_report()->set_spanner_epoch(epoch);
      mail.mutable_report()->set_g_seen(choices.Below(20));
      break;
    case 1:
      mail.mutable_ready()->set_log(2);
      mail.mutable_ready()->set_spanner_epoch(epoch);
      mail.mutable_ready()->set_number(number);
      for (uint32_t log : {1, 2}) mail.mutable_ready()->add_logs(log);
      break;
    case 2:
      mail.mutable_withdrawn()->set_log(2);
      mail.mutable_withdrawn()->set_spanner_epoch(epoch);
      mail.mutable_withdrawn()->set_number(number);
      break;
    default:
      mail.mutable_commit()->set_spanner_epoch(epoch);
      mail.mutable_commit()->set_number(number);
      mail.mutable_commit()->set_previous_g(choices.Below(12));
      mail.mutable_commit()->set_g(mail.commit().previous_g() + 1 + choices.Below(2));
      break;
  }
  return mail;
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  ProgramSpec program;
  program.params = {100};
  program.outputs = {100, 50};
  WorkerOp make = MakeOp(4);
  AddLocal(AddPart(&make, 5, 0, 0, 100), 2, 0);
  AddRemote(AddPart(&make, 6, 0, 1, 100), 9, 8);
  std::string steps;
  for (const WorkerOp& op :
       {LoadOp(1, program), UploadOp(1, 1, 100, {0}, false), UploadDataOp(1, std::string(100, 'x')),
        LaunchOp(2, 1, {1}, {2, 3}, {0}, {0}), PublishOp(3, 7, 2, 0, 8), make, ReadOp(1, 3), WatchOp(1, {2, 5}),
        UnpublishOp(7), ReleaseReadOp(1), DeleteOp({2, 3, 5, 6}), CancelSessionOp(1), PeerLostOp(8)}) {
    steps += std::string(1, '\0') + WithLength(op.SerializeAsString()) + "\x03\x01\x03\x01";
  }
  std::string random;
  for (int i = 0; i < 900; ++i) random.push_back(static_cast<char>(i * 7919 >> 3));
  std::string sensible;
  for (int i = 0; i < 900; ++i) sensible += i % 9 == 0 ? '\x01' : static_cast<char>(i * 104729 >> 5);
  return {steps, steps + steps, random, sensible};
}

void FuzzOne(absl::string_view input) {
  static const MessageMaker maker({"x", std::string(40, 'y')});
  Choices choices(input);
  Run run;
  while (!choices.empty()) {
    switch (choices.Below(8)) {
      case 0: {
        WorkerOp op;
        const absl::string_view bytes = choices.Text();
        if (op.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) run.core->OnOp(std::move(op), run.now);
        break;
      }
      case 1: run.core->OnOp(Sensible(choices), run.now); break;
      case 2: {
        WorkerOp op;
        maker.Fill(choices, &op);
        run.core->OnOp(std::move(op), run.now);
        break;
      }
      case 3: run.Answer(choices.Byte(), choices.Below(4) != 0); break;
      case 6: {
        OrderMail mail;
        if (choices.Flag()) {
          mail = SensibleMail(choices);
        } else {
          maker.Fill(choices, &mail);
        }
        run.core->OnMail(Incarnation(1 + choices.Below(3)), mail.SerializeAsString(), run.now);
        break;
      }
      case 7: run.core->OnMailBroken(Incarnation(1 + choices.Below(3)), absl::AbortedError("broken"), run.now); break;
      case 4:
        run.now += kMillisecond * static_cast<DurationNs>(choices.Byte());
        run.core->OnTime(run.now);
        run.core->Flush();
        break;
      default: {  // nonsense from the shell
        const uint64_t id = choices.Id();
        switch (choices.Below(6)) {
          case 0: run.core->OnLoadDone(ExecutableId(id), absl::OkStatus(), run.now); break;
          case 1: run.core->OnPublishQuiet(TransferId(id), run.now); break;
          case 2: run.core->OnReadQuiet(id, run.now); break;
          case 3: LB_CHECK(!run.core->ExplainJson(run.now).empty()); break;
          case 4: {
            Heartbeat heartbeat;
            run.core->FillDeviceUse(&heartbeat);
            for (const DeviceUse& use : heartbeat.devices())
              LB_CHECK(use.bytes_in_use() >= 0 && use.bytes_in_use() <= 1000);
            break;
          }
          default: break;
        }
      }
    }
  }
  run.core->Fence(absl::DataLossError("the end"), run.now);
  for (uint64_t n = 0; run.Answer(n, (n & 1) != 0); ++n) {
  }
  LB_CHECK(run.core->OldWorkEnded());
  const WorkerCore::Counts counts = run.core->counts();
  LB_CHECK(counts.buffers == 0 && counts.launches == 0 && counts.transfers == 0 && counts.reads == 0 &&
           counts.uploads == 0 && counts.watches == 0);
  for (int64_t bytes : counts.device_bytes_reserved) LB_CHECK(bytes == 0);
}

}  // namespace landbridge::fuzz
