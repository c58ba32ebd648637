// For tests of the core: a sink that writes down what it is told, and short ways to write ops.
//
// Not thread-safe.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/dtype.h"
#include "proto/landbridge/order.pb.h"
#include "worker/worker_core.h"

namespace landbridge::testing {

// Calls as text, in order: "HandOver t3 @1", "Free a1.0", ...
class RecordingSink : public WorkerSink {
 public:
  std::vector<std::string> calls;
  std::vector<WorkerReport> reports;

  // What came since the last call.
  std::vector<std::string> TakeCalls() { return std::exchange(calls, {}); }
  std::vector<std::string> TakeReports() {
    std::vector<std::string> texts;
    for (const WorkerReport& report : std::exchange(reports, {})) texts.push_back(Text(report));
    return texts;
  }
  static std::string Text(const StatusProto& status) {
    if (status.code() == 0) return "OK";
    std::string text = absl::StatusCodeToString(static_cast<absl::StatusCode>(status.code()));
    if (status.root_ticket() != 0) absl::StrAppend(&text, " root=t", status.root_ticket());
    if (status.user_context() != 0) absl::StrAppend(&text, " uc=", status.user_context());
    return text;
  }
  static std::string Text(const WorkerReport& report) {
    auto refs = [](const auto& list) {
      std::vector<std::string> names;
      for (const BufferRefProto& ref : list) names.push_back(absl::StrCat("a", ref.array(), ".", ref.shard()));
      return absl::StrJoin(names, ",");
    };
    switch (report.report_case()) {
      case WorkerReport::kLoadDone:
        return absl::StrCat("LoadDone x", report.load_done().executable(), " ", Text(report.load_done().status()));
      case WorkerReport::kProgress:
        return absl::StrCat("Progress e", report.progress().epoch(), " @", report.progress().place(), " t",
                            absl::StrJoin(report.progress().tickets(), ",t"));
      case WorkerReport::kFailed:
        return absl::StrCat("Failed ", refs(report.failed().refs()), " ", Text(report.failed().status()));
      case WorkerReport::kTransfersDone:
        return absl::StrCat("TransfersDone ", absl::StrJoin(report.transfers_done().transfers(), ","), " ",
                            Text(report.transfers_done().status()));
      case WorkerReport::kReadReady:
        return absl::StrCat("ReadReady ", report.read_ready().read(), " ", Text(report.read_ready().status()),
                            report.read_ready().published() ? " published" : "");
      case WorkerReport::kWatched:
        return absl::StrCat("Watched ", report.watched().watch(), " ", Text(report.watched().status()));
      case WorkerReport::kExplained: return absl::StrCat("Explained ", report.explained().request());
      case WorkerReport::kUploadsDone:
        return absl::StrCat("UploadsDone ", absl::StrJoin(report.uploads_done().keys(), ","));
      case WorkerReport::kMemoryUse: return absl::StrCat("MemoryUse ", report.memory_use().request());
      case WorkerReport::kHostCall:  // of the shell
      case WorkerReport::kHostCallTaken:
      case WorkerReport::REPORT_NOT_SET: break;
    }
    return "nothing";
  }

  void Report(WorkerReport report) override { reports.push_back(std::move(report)); }
  void Load(const LoadExecutable& load) override { Add("Load x", load.executable()); }
  void Unload(ExecutableId id) override { Add("Unload ", id.ToString()); }
  void HandOver(std::shared_ptr<const Launch> launch, uint64_t place) override {
    Add("HandOver t", launch->ticket(), " @", place);
  }
  void AbortLaunch(Ticket ticket, const absl::Status& why) override {
    Add("AbortLaunch ", ticket.ToString(), " ", absl::StatusCodeToString(why.code()));
  }
  void StartUpload(std::shared_ptr<const Upload> upload) override { Add("StartUpload k", upload->key()); }
  void UploadBytes(uint64_t key, std::string data) override { Add("UploadBytes k", key, " ", data.size()); }
  void CancelUpload(uint64_t key, const absl::Status& why) override {
    Add("CancelUpload k", key, " ", absl::StatusCodeToString(why.code()));
  }
  void StartMake(std::shared_ptr<const MakeBuffers> make, int index) override {
    Add("StartMake t", make->ticket(), "/", index);
  }
  void CancelMake(Ticket ticket, int index, const absl::Status& why) override {
    Add("CancelMake ", ticket.ToString(), "/", index, " ", absl::StatusCodeToString(why.code()));
  }
  void StartPublish(const Publish& publish) override { Add("StartPublish tr", publish.transfer()); }
  void FailPublish(TransferId transfer, const absl::Status& why) override {
    Add("FailPublish ", transfer.ToString(), " ", absl::StatusCodeToString(why.code()));
  }
  void StopPublish(TransferId transfer, const absl::Status&) override { Add("StopPublish ", transfer.ToString()); }
  void StartRead(const Read& read, bool snapshot) override {
    Add("StartRead ", read.read(), snapshot ? " snapshot" : "");
  }
  void SnapshotPublish(TransferId transfer) override { Add("SnapshotPublish ", transfer.ToString()); }
  void SnapshotRead(uint64_t read) override { Add("SnapshotRead ", read); }
  void StopRead(uint64_t read) override { Add("StopRead ", read); }
  void Free(BufferRef ref) override { Add("Free ", ref.ToString()); }
  void PeerLost(Incarnation peer, const absl::Status&) override { Add("PeerLost ", peer.ToString()); }
  void SendMail(Incarnation peer, std::string mail) override { Add("SendMail ", peer.ToString(), " ", MailText(mail)); }
  void ListenTo(Incarnation peer) override { Add("ListenTo ", peer.ToString()); }
  static std::string MailText(const std::string& bytes) {
    OrderMail mail;
    if (!mail.ParseFromString(bytes)) return "nonsense";
    switch (mail.mail_case()) {
      case OrderMail::kReady: {
        std::string text = absl::StrCat("ready ", mail.ready().number());
        for (const OrderAfter& after : mail.ready().after()) {
          absl::StrAppend(&text, " after ", after.number(), after.data() ? " data" : "");
        }
        return text;
      }
      case OrderMail::kWithdrawn: return absl::StrCat("withdrawn ", mail.withdrawn().number());
      case OrderMail::kHorizon: return absl::StrCat("horizon ", mail.horizon().horizon());
      case OrderMail::kReport: return "report";
      case OrderMail::kCommit:
        return absl::StrCat("commit ", mail.commit().number(), " ", mail.commit().g(), " after ",
                            mail.commit().previous_g());
      case OrderMail::MAIL_NOT_SET: break;
    }
    return "nothing";
  }
  void MeetPeer(Incarnation peer, const std::string& address) override {
    Add("MeetPeer ", peer.ToString(), " ", address);
  }

 private:
  template <typename... Parts>
  void Add(const Parts&... parts) {
    calls.push_back(absl::StrCat(parts...));
  }
};

// A program: `params` and `outputs` are bytes per device of each parameter and output.
struct ProgramSpec {
  std::vector<int64_t> params, outputs;
  std::vector<uint32_t> devices = {0};  // empty: portable
  int64_t temp = 0;
  bool can_fail_on_one_shard = false;
  bool has_side_effects = false;
};

inline WorkerOp LoadOp(uint64_t id, const ProgramSpec& spec) {
  WorkerOp op;
  LoadExecutable* load = op.mutable_load();
  load->set_executable(id);
  for (uint32_t device : spec.devices) load->add_devices(device);
  ExecutableInfo* info = load->mutable_info();
  info->set_name(absl::StrCat("program", id));
  info->set_num_devices(spec.devices.empty() ? 1 : static_cast<int>(spec.devices.size()));
  info->set_portable(spec.devices.empty());
  for (int64_t bytes : spec.params) info->add_parameters()->set_device_bytes(bytes);
  for (int64_t bytes : spec.outputs) info->add_outputs()->set_device_bytes(bytes);
  info->set_temp_bytes_per_device(spec.temp);
  info->set_can_fail_on_one_shard(spec.can_fail_on_one_shard);
  info->set_has_side_effects(spec.has_side_effects);
  return op;
}

inline WorkerOp LaunchOp(uint64_t ticket, uint64_t executable, std::vector<uint64_t> args,
                         std::vector<uint64_t> outputs, std::vector<uint32_t> devices = {0},
                         std::vector<uint32_t> donated = {}, uint64_t session = 1) {
  WorkerOp op;
  Launch* launch = op.mutable_launch();
  launch->set_ticket(ticket);
  launch->set_executable(executable);
  launch->set_session(session);
  launch->set_user_context(1000 + ticket);
  for (uint32_t device : devices) launch->add_devices(device);
  for (uint64_t arg : args) launch->add_args()->set_array(arg);
  for (uint64_t output : outputs) launch->add_outputs(output);
  for (uint32_t parameter : donated) launch->add_donated(parameter);
  return op;
}

inline void SetTarget(Target* target, uint64_t array, uint32_t shard, uint32_t device,
                      MemoryKindProto memory = MEMORY_DEVICE) {
  target->mutable_ref()->set_array(array);
  target->mutable_ref()->set_shard(shard);
  target->set_device(device);
  target->set_memory(memory);
}

// An upload of `bytes` u8 elements to shards 0.. of `array` on `devices`; the key is the ticket.
inline WorkerOp UploadOp(uint64_t ticket, uint64_t array, int64_t bytes, std::vector<uint32_t> devices = {0},
                         bool pulled = true, uint64_t session = 1) {
  WorkerOp op;
  Upload* upload = op.mutable_upload();
  upload->set_ticket(ticket);
  upload->set_session(session);
  upload->set_key(ticket);
  upload->set_pulled(pulled);
  upload->set_dtype(static_cast<int>(DType::kU8));
  upload->add_dims(bytes);
  upload->set_image_bytes(bytes);
  upload->set_user_context(1000 + ticket);
  for (size_t i = 0; i < devices.size(); ++i) {
    SetTarget(upload->add_targets(), array, static_cast<uint32_t>(i), devices[i]);
  }
  return op;
}

inline WorkerOp UploadDataOp(uint64_t key, std::string data) {
  WorkerOp op;
  op.mutable_upload_data()->set_key(key);
  op.mutable_upload_data()->set_data(std::move(data));
  return op;
}

inline WorkerOp MakeOp(uint64_t ticket, uint64_t session = 1) {
  WorkerOp op;
  op.mutable_make()->set_ticket(ticket);
  op.mutable_make()->set_session(session);
  op.mutable_make()->set_user_context(1000 + ticket);
  return op;
}
inline MakeBuffer* AddPart(WorkerOp* op, uint64_t array, uint32_t shard, uint32_t device, int64_t bytes) {
  MakeBuffer* part = op->mutable_make()->add_buffers();
  SetTarget(part->mutable_target(), array, shard, device);
  part->set_dtype(static_cast<int>(DType::kU8));
  part->add_dims(bytes);
  return part;
}
inline Piece* AddLocal(MakeBuffer* part, uint64_t array, uint32_t shard, bool donate = false) {
  Piece* piece = part->add_pieces();
  piece->mutable_local()->set_array(array);
  piece->mutable_local()->set_shard(shard);
  piece->set_donate(donate);
  return piece;
}
inline Piece* AddRemote(MakeBuffer* part, uint64_t transfer, uint64_t incarnation) {
  Piece* piece = part->add_pieces();
  piece->mutable_remote()->set_transfer(transfer);
  piece->mutable_remote()->set_incarnation(incarnation);
  return piece;
}

inline WorkerOp PublishOp(uint64_t ticket, uint64_t transfer, uint64_t array, uint32_t shard, uint64_t peer) {
  WorkerOp op;
  op.mutable_publish()->set_ticket(ticket);
  op.mutable_publish()->set_transfer(transfer);
  op.mutable_publish()->mutable_ref()->set_array(array);
  op.mutable_publish()->mutable_ref()->set_shard(shard);
  op.mutable_publish()->set_peer(peer);
  return op;
}
inline WorkerOp UnpublishOp(uint64_t transfer) {
  WorkerOp op;
  op.mutable_unpublish()->add_transfers(transfer);
  return op;
}
inline WorkerOp ReadOp(uint64_t read, uint64_t array, uint32_t shard = 0, uint64_t session = 1) {
  WorkerOp op;
  op.mutable_read()->set_read(read);
  op.mutable_read()->mutable_ref()->set_array(array);
  op.mutable_read()->mutable_ref()->set_shard(shard);
  op.mutable_read()->set_session(session);
  return op;
}
inline WorkerOp ReleaseReadOp(uint64_t read) {
  WorkerOp op;
  op.mutable_release_read()->set_read(read);
  return op;
}
inline WorkerOp WatchOp(uint64_t watch, std::vector<uint64_t> arrays) {
  WorkerOp op;
  op.mutable_watch()->set_watch(watch);
  for (uint64_t array : arrays) op.mutable_watch()->add_arrays(array);
  return op;
}
inline WorkerOp DeleteOp(std::vector<uint64_t> arrays) {
  WorkerOp op;
  for (uint64_t array : arrays) op.mutable_delete_()->add_arrays(array);
  return op;
}
inline StatusProto Why(absl::StatusCode code, std::string message) {
  StatusProto why;
  why.set_code(static_cast<int>(code));
  why.set_message(std::move(message));
  return why;
}
inline WorkerOp CancelSessionOp(uint64_t session) {
  WorkerOp op;
  op.mutable_cancel_session()->set_session(session);
  *op.mutable_cancel_session()->mutable_why() = Why(absl::StatusCode::kCancelled, "the session ended");
  return op;
}
inline WorkerOp PeerLostOp(uint64_t peer) {
  WorkerOp op;
  op.mutable_peer_lost()->set_incarnation(peer);
  *op.mutable_peer_lost()->mutable_why() = Why(absl::StatusCode::kDataLoss, "worker i9 of slice1 was lost");
  return op;
}

}  // namespace landbridge::testing
