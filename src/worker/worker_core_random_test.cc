// Random runs of the core against a shell that completes things in any order, fails some of them, and checks:
//   I1  launches are handed over in log order, the log has no gaps
//   I3  every argument is resident, or made by an earlier launch on the same device that may still run
//   I4  a launch that fails, or has a bad input, fails with all its outputs
//   I5  every node, upload key, pull, read and watch ends exactly once, errors before progress
//   I6  everything ends; what is refused for lack of memory could not have fitted after all earlier work
//   I9  nothing that is bad, or made from something bad, is offered, read, taken into a make or watched as good
// besides: donations wait for readers and transfers, memory never exceeds the limit, nothing is freed while it is used
// or twice, nothing is left at the end.
#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "worker/core_test_util.h"
#include "worker/worker_core.h"

namespace landbridge {
namespace {

using namespace landbridge::testing;  // NOLINT: the short op builders

BufferRef Ref(const BufferRefProto& proto) { return BufferRef{ArrayId(proto.array()), proto.shard()}; }

struct Options {
  uint32_t seed = 0;
  bool trace = false;
};

class RandomRun : public WorkerSink {
 public:
  explicit RandomRun(Options options) : options_(options), random_(options.seed) {
    WorkerLimits limits;
    devices_ = 2;
    limit_ = Chance(0.5) ? 1200 : 1 << 20;
    limits.device_bytes.assign(devices_, limit_);
    limits.placed_launches_max = 1 + static_cast<int>(Below(5));
    core_ = std::make_unique<WorkerCore>(Incarnation(1), limits, this);
    used_.assign(devices_, 0);
  }

  std::string Go() {
    failure_rate_ = Chance(0.5) ? 0.0 : 0.1;
    for (int i = 0; i < 4; ++i) NewProgram();
    const int ops = 20 + static_cast<int>(Below(80));
    for (int i = 0; i < ops && error_.empty(); ++i) {
      RandomOp();
      const int events = static_cast<int>(Below(4));
      for (int e = 0; e < events; ++e) OneEvent();
      if (Chance(0.3)) Flush();
    }
    if (Chance(0.1)) {
      EndByFence();
    } else {
      EndInOrder();
    }
    return error_;
  }

 private:
  // ---------------------------------------------------------------- model
  struct Program {
    ProgramSpec spec;
    bool loading = true, failed = false, unloaded = false;
  };
  enum class Life { kUsable, kDonated, kDeleted };
  struct Array {
    std::vector<uint32_t> devices;
    int64_t bytes = 0;
    Life life = Life::kUsable;
    uint64_t session = 1;
  };
  struct Node {
    enum Kind { kLaunch, kUpload, kMake } kind = kLaunch;
    uint64_t session = 1;
    std::vector<BufferRef> inputs, outputs;
    bool started = false, ended = false;  // ended: in a Progress
    bool uncertain = false;               // can fail on one shard, or took from something running that can
    bool shell_failed = false;            // ... and delivered
    bool cancelled = false;               // may fail for that
    uint64_t program = 0;
  };
  struct Shard {  // the truth about a buffer
    uint64_t producer = 0;
    uint32_t device = 0;
    int64_t bytes = 0;
    bool in_shell = false, freed = false;
    bool enqueued = false, completed = false;
    bool bad = false;          // reported as failed
    std::set<uint64_t> roots;  // then: who may be named
    int users = 0;             // in the shell
    uint64_t donor = 0;        // ticket
    bool taken = false;        // the donor was handed over
  };
  struct Running {
    std::shared_ptr<const Launch> op;
    bool fails = false;
    std::vector<int64_t> scratch;  // to give back, per logical device
  };

  uint64_t Below(uint64_t n) { return random_() % n; }
  bool Chance(double p) { return static_cast<double>(random_() % 10000) < p * 10000; }
  void Fail(std::string what) {
    if (error_.empty()) error_ = absl::StrCat("seed ", options_.seed, ": ", what);
  }
  template <typename... Parts>
  void Trace(const Parts&... parts) {
    if (options_.trace) std::puts(absl::StrCat(parts...).c_str());
  }
  Shard& At(BufferRef ref) {
    auto it = shards_.find(ref);
    if (it == shards_.end()) {
      Fail(absl::StrCat("unknown buffer ", ref.ToString()));
      return shards_[ref];
    }
    return it->second;
  }
  void Take(uint32_t device, int64_t bytes) {
    used_[device] += bytes;
    if (used_[device] > limit_) Fail(absl::StrCat("device ", device, " holds ", used_[device], " of ", limit_));
  }
  void Send(WorkerOp op) {
    if (options_.trace) Trace("> ", op.ShortDebugString());
    core_->OnOp(std::move(op), ++now_);
  }

  // ---------------------------------------------------------------- what the core says
  void Report(WorkerReport report) override {
    if (options_.trace) Trace("  < ", RecordingSink::Text(report));
    if (fenced_) return Fail("a report after the fence");
    switch (report.report_case()) {
      case WorkerReport::kFailed: return OnFailed(report.failed());
      case WorkerReport::kProgress: return OnProgress(report.progress());
      case WorkerReport::kUploadsDone:
        for (uint64_t key : report.uploads_done().keys()) Once(&keys_, key, "upload key");
        return;
      case WorkerReport::kTransfersDone:
        for (uint64_t id : report.transfers_done().transfers()) Once(&pulls_, id, "pull");
        return;
      case WorkerReport::kReadReady:
        Once(&reads_asked_, report.read_ready().read(), "read");
        if (report.read_ready().status().code() == 0 && report.read_ready().published()) {
          published_reads_.insert(report.read_ready().read());
        }
        return;
      case WorkerReport::kWatched: {
        const uint64_t id = report.watched().watch();
        Once(&watches_asked_, id, "watch");
        bool bad = false, all = true;
        for (BufferRef ref : watched_[id]) {
          bad = bad || At(ref).bad;
          all = all && (At(ref).completed || At(ref).bad);
        }
        if (!all) Fail("a watch was answered too early");
        if (bad != (report.watched().status().code() != 0)) Fail("a watch has the wrong answer");
        return;
      }
      default: return;
    }
  }
  void Once(std::set<uint64_t>* open, uint64_t id, const char* what) {
    if (open->erase(id) != 1) Fail(absl::StrCat(what, " ", id, " ended twice"));
  }

  void OnFailed(const BuffersFailed& failed) {
    const auto code = static_cast<absl::StatusCode>(failed.status().code());
    const uint64_t root = failed.status().root_ticket();
    if (failed.refs().empty() || code == absl::StatusCode::kOk) return Fail("an empty failure");
    const uint64_t ticket = At(Ref(failed.refs(0))).producer;
    Node& node = nodes_.at(ticket);
    if (node.ended) Fail(absl::StrCat("t", ticket, " failed after its progress"));
    // A make fails buffer by buffer, everything else as a whole.
    if (node.kind != Node::kMake && failed.refs_size() != static_cast<int>(node.outputs.size())) {
      Fail(absl::StrCat("t", ticket, " failed in part"));
    }
    std::set<uint64_t> roots;
    for (BufferRef input : node.inputs) {
      if (At(input).bad) roots.insert(At(input).roots.begin(), At(input).roots.end());
    }
    const bool own = node.shell_failed || code == absl::StatusCode::kResourceExhausted ||
                     (node.kind == Node::kLaunch && programs_.at(node.program).failed);
    if (own) roots.insert(ticket);
    if (node.cancelled) {
      roots.insert(ticket);
      roots.insert(0);
    }
    if (!roots.contains(root)) Fail(absl::StrCat("t", ticket, " names t", root, " as the root"));
    if (code == absl::StatusCode::kResourceExhausted && root == ticket && !node.shell_failed)
      CheckMemoryFailure(ticket, failed.status().message());
    for (const BufferRefProto& ref : failed.refs()) {
      Shard& shard = At(Ref(ref));
      if (shard.bad) Fail(absl::StrCat(Ref(ref).ToString(), " failed twice"));
      if (shard.completed) Fail(absl::StrCat(Ref(ref).ToString(), " failed after it was good"));
      shard.bad = true;
      shard.roots = roots;
      PiecesOver(Ref(ref));
    }
  }

  // Older work must be over when the next progress is reported.
  void CheckMemoryFailure(uint64_t ticket, const std::string& message) {
    const std::vector<std::string> words = absl::StrSplit(message, ' ');
    if (words.size() < 4 || words[0] != absl::StrCat("t", ticket)) return Fail(absl::StrCat("odd message: ", message));
    if (std::stoll(words[2]) <= limit_) out_of_memory_.insert(ticket);
  }

  void OnProgress(const Progress& progress) {
    for (uint64_t ticket : progress.tickets()) {
      auto it = nodes_.find(ticket);
      if (it == nodes_.end() || it->second.ended) return Fail(absl::StrCat("t", ticket, " ended twice"));
      Node& node = it->second;
      node.ended = true;
      unfinished_.erase(ticket);
      bool bad = node.shell_failed && node.kind != Node::kMake;
      for (BufferRef input : node.inputs) bad = bad || (At(input).bad && node.kind == Node::kLaunch);
      for (BufferRef output : node.outputs) {
        if (bad && !At(output).bad) Fail(absl::StrCat("progress of t", ticket, " passes an unreported error"));
        if (!At(output).bad && !At(output).completed) Fail(absl::StrCat("t", ticket, " ended too early"));
      }
    }
    for (uint64_t ticket : out_of_memory_) {
      if (!unfinished_.empty() && *unfinished_.begin() < ticket) {
        Fail(absl::StrCat("t", ticket, " got no memory although t", *unfinished_.begin(), " had not ended"));
      }
    }
    out_of_memory_.clear();
  }

  void Load(const LoadExecutable& load) override { loading_.push_back(load.executable()); }
  void Unload(ExecutableId id) override {
    if (!programs_.at(id.value()).unloaded && !fenced_) Fail("unloaded unasked");
  }

  void HandOver(std::shared_ptr<const Launch> op, uint64_t place) override {
    Trace("  < HandOver t", op->ticket(), " @", place);
    if (place != ++tail_) Fail(absl::StrCat("place ", place, " after ", tail_ - 1));  // I1
    if (fenced_) return Fail("handed over after the fence");
    Node& node = nodes_.at(op->ticket());
    if (node.started) return Fail("handed over twice");
    node.started = true;
    const Program& program = programs_.at(op->executable());
    node.uncertain = program.spec.can_fail_on_one_shard;
    if (program.loading || program.failed) Fail("handed over before it is loaded");
    Running running;
    running.op = op;
    running.fails = Chance(failure_rate_);
    const std::set<uint32_t> donated(op->donated().begin(), op->donated().end());
    std::vector<int64_t> given(devices_, 0);
    for (int p = 0; p < op->args_size(); ++p) {
      for (int d = 0; d < op->devices_size(); ++d) {
        const BufferRef ref{ArrayId(op->args(p).array()), static_cast<uint32_t>(d)};
        Shard& shard = At(ref);
        if (!shard.in_shell || shard.taken) Fail(absl::StrCat(ref.ToString(), " is used but not there"));
        if (shard.device != op->devices(d)) Fail("an argument on another device");
        if (shard.bad) Fail(absl::StrCat("t", op->ticket(), " is handed over with the bad ", ref.ToString()));
        if (!shard.completed) {  // I3
          const Node& producer = nodes_.at(shard.producer);
          if (!shard.enqueued) Fail(absl::StrCat(ref.ToString(), " is not made yet"));
          if (program.spec.has_side_effects) Fail("side effects before the producer has completed");
          if (op->devices_size() > 1 && producer.uncertain) Fail("gang with an uncertain shard");
          node.uncertain |= producer.uncertain;
          if (producer.shell_failed) Fail("handed over with an input that is known to have failed");
        }
        ++shard.users;
        if (donated.contains(static_cast<uint32_t>(p))) {
          if (shard.donor != op->ticket()) Fail("a donation that nobody asked for");
          if (transfers_of_[ref] > 0) Fail(absl::StrCat(ref.ToString(), " is taken while a transfer reads it"));
          for (uint64_t reader : readers_of_[ref]) {  // rule (c)
            const Node& r = nodes_.at(reader);
            if (!r.started && !AnyBad(r.outputs))
              Fail(absl::StrCat("t", reader, " still has to read ", ref.ToString()));
          }
          shard.taken = true;
          given[shard.device] += shard.bytes;
        }
      }
    }
    for (int d = 0; d < op->devices_size(); ++d) {
      const uint32_t device = op->devices(d);
      int64_t outputs = 0;
      for (int64_t bytes : program.spec.outputs) outputs += bytes;
      const int64_t alias = std::min(outputs, given[device]);
      Take(device, outputs - alias + program.spec.temp);
      running.scratch.push_back(program.spec.temp - alias);
    }
    bool bad = running.fails;
    for (BufferRef input : node.inputs) bad = bad || will_fail_.contains(At(input).producer);
    if (bad) will_fail_.insert(op->ticket());
    for (BufferRef ref : node.outputs) {
      At(ref).in_shell = true;
      At(ref).enqueued = true;
    }
    running_.push_back(std::move(running));
  }
  bool AnyBad(const std::vector<BufferRef>& refs) {
    return std::any_of(refs.begin(), refs.end(), [&](BufferRef ref) { return At(ref).bad; });
  }

  void StartUpload(std::shared_ptr<const Upload> op) override {
    for (const Target& target : op->targets()) {
      At(Ref(target.ref())).in_shell = true;
      Take(target.device(), At(Ref(target.ref())).bytes);
    }
    nodes_.at(op->ticket()).started = true;
    if (op->pulled()) filling_.push_back(op->key());
  }
  void UploadBytes(uint64_t key, std::string) override { filling_.push_back(key); }
  void CancelUpload(uint64_t key, const absl::Status&) override {
    nodes_.at(key).cancelled = true;
    if (std::find(filling_.begin(), filling_.end(), key) == filling_.end()) filling_.push_back(key);
  }
  void StartMake(std::shared_ptr<const MakeBuffers> op, int index) override {
    Trace("  < StartMake t", op->ticket(), "/", index);
    const MakeBuffer& part = op->buffers(index);
    const BufferRef target = Ref(part.target().ref());
    At(target).in_shell = true;
    Take(part.target().device(), At(target).bytes);
    for (const Piece& piece : part.pieces()) {
      if (piece.has_local()) UseAsGood(Ref(piece.local()), "a make");
    }
    making_.emplace_back(op, index);
  }
  void CancelMake(Ticket, int, const absl::Status&) override {}
  void StartPublish(const Publish& op) override {
    UseAsGood(Ref(op.ref()), "a publish");
    offered_[op.transfer()] = Ref(op.ref());
  }
  void FailPublish(TransferId id, const absl::Status&) override {
    if (!At(publish_ref_.at(id.value())).bad) Fail("a publish failed without reason");
    Over(publish_ref_.at(id.value()), id.value());
  }
  void StopPublish(TransferId id, const absl::Status&) override {
    if (offered_.contains(id.value())) {
      stopping_.push_back(id.value());
    } else {
      Over(publish_ref_.at(id.value()), id.value());
    }
  }
  void Over(BufferRef ref, uint64_t id) {
    if (reading_publishes_.erase(id) == 1) --transfers_of_[ref];
  }
  void StartRead(const Read& op, bool snapshot) override {
    Trace("  < StartRead ", op.read(), " ", snapshot);
    UseAsGood(Ref(op.ref()), "a read");
    open_reads_[op.read()] = OpenRead{Ref(op.ref()), snapshot, false, false, false};
    if (snapshot) SnapshotRead(op.read());
  }
  void SnapshotPublish(TransferId id) override {
    if (!offered_.contains(id.value())) return Fail("snapshot of a publication that is not offered");
    snapshot_due_.push_back(id.value());
  }
  void SnapshotRead(uint64_t read) override { open_reads_.at(read).quiet_due = true; }
  void StopRead(uint64_t read) override {
    auto it = open_reads_.find(read);
    if (it == open_reads_.end()) return Fail("stop of an unknown read");
    it->second.stopped = true;
    if (!it->second.quiet) it->second.quiet_due = true;
  }
  void UseAsGood(BufferRef ref, const char* who) {
    Shard& shard = At(ref);
    if (shard.bad || !shard.completed || shard.taken || shard.freed) {  // I9
      Fail(absl::StrCat(who, " takes ", ref.ToString(), ", which is not good"));
    }
    ++shard.users;
  }
  void Free(BufferRef ref) override {
    Trace("  < Free ", ref.ToString());
    Shard& shard = At(ref);
    if (!shard.in_shell) Fail(absl::StrCat(ref.ToString(), " is freed but not there"));
    if (shard.users > 0) Fail(absl::StrCat(ref.ToString(), " is freed while it is used"));
    if (array_of(ref).life == Life::kUsable && shard.completed && !shard.bad && !fenced_)
      Fail(absl::StrCat(ref.ToString(), " is freed unasked"));
    shard.in_shell = false;
    shard.freed = true;
    if (shard.completed && !shard.taken) used_[shard.device] -= shard.bytes;
  }
  void PeerLost(Incarnation, const absl::Status&) override {}
  void AbortLaunch(Ticket, const absl::Status&) override {}

  // ---------------------------------------------------------------- events of the shell
  template <typename T>
  T Pick(std::vector<T>* list) {
    const size_t i = Below(list->size());
    T value = (*list)[i];
    list->erase(list->begin() + static_cast<ptrdiff_t>(i));
    return value;
  }

  bool OneEvent() {
    if (!error_.empty()) return false;
    std::vector<int> kinds;
    if (!loading_.empty()) kinds.push_back(0);
    if (!running_.empty()) kinds.insert(kinds.end(), {1, 1, 1});
    if (!filling_.empty()) kinds.push_back(2);
    if (!making_.empty()) kinds.push_back(3);
    if (!stopping_.empty()) kinds.push_back(4);
    if (!open_reads_.empty()) kinds.push_back(5);
    if (!snapshot_due_.empty()) kinds.push_back(6);
    if (kinds.empty()) return false;
    ++now_;
    switch (kinds[Below(kinds.size())]) {
      case 0: {
        const uint64_t id = Pick(&loading_);
        programs_.at(id).loading = false;
        programs_.at(id).failed = Chance(failure_rate_);
        core_->OnLoadDone(ExecutableId(id), programs_.at(id).failed ? absl::UnimplementedError("no") : absl::OkStatus(),
                          now_);
        return true;
      }
      case 1: LaunchEnds(); return true;
      case 2: UploadEnds(); return true;
      case 3: MakeEnds(); return true;
      case 4: {
        const uint64_t id = Pick(&stopping_);
        const BufferRef ref = offered_.at(id);
        offered_.erase(id);
        --At(ref).users;
        Over(ref, id);
        core_->OnPublishQuiet(TransferId(id), now_);
        return true;
      }
      case 5: return ReadMoves();
      case 6: {  // a copy is there; or the peer took the last of it while the copy was being made
        const uint64_t id = Pick(&snapshot_due_);
        auto it = offered_.find(id);
        if (it == offered_.end()) return true;
        std::erase(stopping_, id);
        const BufferRef ref = it->second;
        offered_.erase(it);
        --At(ref).users;
        Over(ref, id);
        core_->OnPublishQuiet(TransferId(id), now_);
        return true;
      }
    }
    return true;
  }

  void LaunchEnds() {
    const size_t i = Below(running_.size());
    const Running running = running_[i];
    running_.erase(running_.begin() + static_cast<ptrdiff_t>(i));
    const uint64_t ticket = running.op->ticket();
    Node& node = nodes_.at(ticket);
    // With a bad input the plugin reports an error of its own, or none.
    const bool bad = will_fail_.contains(ticket);
    const bool fails = running.fails || (bad && Chance(0.5));
    Trace("= t", ticket, fails ? " fails" : " ends");
    node.shell_failed = fails;
    const std::set<uint32_t> donated(running.op->donated().begin(), running.op->donated().end());
    for (int p = 0; p < running.op->args_size(); ++p) {
      for (int d = 0; d < running.op->devices_size(); ++d) {
        --At(BufferRef{ArrayId(running.op->args(p).array()), static_cast<uint32_t>(d)}).users;
      }
    }
    // Memory: scratch and what donations held beyond the outputs goes; outputs stay if they are good.
    for (int d = 0; d < running.op->devices_size(); ++d) {
      int64_t given = 0;
      for (uint32_t p : donated) {
        given += At(BufferRef{ArrayId(running.op->args(static_cast<int>(p)).array()), static_cast<uint32_t>(d)}).bytes;
      }
      used_[running.op->devices(d)] -= running.scratch[static_cast<size_t>(d)] + given;
    }
    for (BufferRef output : node.outputs) {  // what a later launch took over is given back by that one
      if (bad && !At(output).taken) used_[At(output).device] -= At(output).bytes;
    }
    if (!bad) {
      for (BufferRef output : node.outputs) At(output).completed = true;
    }
    core_->OnLaunchDone(Ticket(ticket), fails ? absl::InvalidArgumentError("failed") : absl::OkStatus(),
                        static_cast<DurationNs>(Below(3 * kMillisecond)), now_);
  }

  void UploadEnds() {
    const uint64_t key = Pick(&filling_);
    Node& node = nodes_.at(key);
    const bool fails = Chance(failure_rate_) || (node.cancelled && Chance(0.7));
    node.shell_failed = fails;
    for (BufferRef ref : node.outputs) {
      At(ref).completed = !fails;
      if (fails) used_[At(ref).device] -= At(ref).bytes;
    }
    core_->OnUploadDone(key, fails ? absl::UnavailableError("failed") : absl::OkStatus(), now_);
  }

  void MakeEnds() {
    const auto [op, index] = Pick(&making_);
    Node& node = nodes_.at(op->ticket());
    const bool fails = Chance(failure_rate_);
    Trace("= make t", op->ticket(), "/", index, fails ? " fails" : " ends");
    if (fails) node.shell_failed = true;
    const MakeBuffer& part = op->buffers(index);
    for (const Piece& piece : part.pieces()) {
      if (!piece.has_local()) continue;
      --At(Ref(piece.local())).users;
    }
    PiecesOver(Ref(part.target().ref()));
    Shard& target = At(Ref(part.target().ref()));
    target.completed = !fails;
    if (fails) used_[target.device] -= target.bytes;
    core_->OnMakeDone(Ticket(op->ticket()), index, fails ? absl::UnavailableError("failed") : absl::OkStatus(), now_);
  }

  void PiecesOver(BufferRef target) {
    for (BufferRef source : pieces_of_[target]) --transfers_of_[source];
    pieces_of_.erase(target);
  }

  struct OpenRead {
    BufferRef ref;
    bool quiet_due = false, quiet = false, done = false, stopped = false;
  };
  bool ReadMoves() {
    auto it = open_reads_.begin();
    std::advance(it, static_cast<ptrdiff_t>(Below(open_reads_.size())));
    const uint64_t id = it->first;
    OpenRead& read = it->second;
    auto let_go = [&] {
      read.quiet = true;
      --At(read.ref).users;
      --transfers_of_[read.ref];
    };
    if (read.quiet_due && !read.quiet && (Chance(0.5) || read.done)) {
      let_go();
      if (read.stopped && read.done) open_reads_.erase(it);
      core_->OnReadQuiet(id, now_);
      return true;
    }
    if (!read.done) {
      read.done = true;
      const bool published = Chance(0.5);
      if (!published && !read.quiet) let_go();
      if (!published || (read.stopped && read.quiet)) open_reads_.erase(it);
      core_->OnReadDone(id, absl::OkStatus(), published ? "" : "bytes", published, now_);
      return true;
    }
    if (read.stopped && read.quiet) open_reads_.erase(it);
    return false;
  }

  // ---------------------------------------------------------------- ops of the controller
  const Array& array_of(BufferRef ref) { return arrays_.at(ref.array.value()); }

  void NewProgram() {
    Program program;
    const uint64_t kind = Below(4);
    program.spec.devices = kind == 0   ? std::vector<uint32_t>{0}
                           : kind == 1 ? std::vector<uint32_t>{1}
                           : kind == 2 ? std::vector<uint32_t>{0, 1}
                                       : std::vector<uint32_t>{};
    program.spec.params.assign(Below(4), 100);
    for (uint64_t i = 1 + Below(2); i > 0; --i) program.spec.outputs.push_back(static_cast<int64_t>(Below(4)) * 100);
    program.spec.temp = Chance(0.3) ? static_cast<int64_t>(Below(4)) * 100 : 0;
    program.spec.can_fail_on_one_shard = Chance(0.2);
    program.spec.has_side_effects = program.spec.can_fail_on_one_shard && Chance(0.5);
    const uint64_t id = ++next_id_;
    programs_[id] = program;
    Send(LoadOp(id, program.spec));
  }

  uint64_t NewArray(std::vector<uint32_t> devices, int64_t bytes, uint64_t session, uint64_t producer) {
    const uint64_t id = ++next_id_;
    Array& array = arrays_[id];
    array.devices = devices;
    array.bytes = bytes;
    array.session = session;
    for (uint32_t s = 0; s < devices.size(); ++s) {
      Shard& shard = shards_[BufferRef{ArrayId(id), s}];
      shard.producer = producer;
      shard.device = devices[s];
      shard.bytes = bytes;
      nodes_[producer].outputs.push_back(BufferRef{ArrayId(id), s});
    }
    return id;
  }

  std::vector<uint64_t> Usable(const std::vector<uint32_t>* devices, uint64_t session) {
    std::vector<uint64_t> ids;
    for (const auto& [id, array] : arrays_) {
      if (array.life == Life::kUsable && array.session == session && (devices == nullptr || array.devices == *devices))
        ids.push_back(id);
    }
    return ids;
  }

  void RandomOp() {
    const uint64_t session = Chance(0.8) ? 1 : 2;
    switch (Below(16)) {
      case 0:
      case 1: return RandomUpload(session);
      case 2:
      case 3:
      case 4:
      case 5:
      case 6:
      case 7: return RandomLaunch(session);
      case 8: return RandomMake(session);
      case 9: return RandomPublish(session);
      case 10: {
        if (open_publishes_.empty()) return;
        auto it = open_publishes_.begin();
        std::advance(it, static_cast<ptrdiff_t>(Below(open_publishes_.size())));
        const uint64_t id = *it;
        open_publishes_.erase(it);
        return Send(UnpublishOp(id));
      }
      case 11: return RandomRead(session);
      case 12: return RandomWatch(session);
      case 13:
      case 14: {
        std::vector<uint64_t> ids = Usable(nullptr, session);
        if (ids.empty()) return;
        const uint64_t id = ids[Below(ids.size())];
        arrays_.at(id).life = Life::kDeleted;
        return Send(DeleteOp({id}));
      }
      case 15: return RareOp(session);
    }
  }

  void RareOp(uint64_t session) {
    switch (Below(8)) {
      case 0: {
        for (auto& [id, program] : programs_) {
          if (program.unloaded || Chance(0.5)) continue;
          program.unloaded = true;
          WorkerOp op;
          op.mutable_unload()->set_executable(id);
          Send(std::move(op));
          break;
        }
        return NewProgram();
      }
      case 1: {
        if (!Chance(0.3)) return;
        for (auto& [ticket, node] : nodes_) {
          if (node.session == session && !node.ended) node.cancelled = true;
        }
        for (auto& [id, array] : arrays_) {
          if (array.session == session && array.life == Life::kUsable) array.life = Life::kDeleted;
        }
        return Send(CancelSessionOp(session));
      }
      case 2: {
        for (uint64_t ticket : unfinished_) {
          Node& node = nodes_.at(ticket);
          if (node.kind == Node::kMake) node.cancelled = true;
        }
        return Send(PeerLostOp(9));
      }
      case 3: return Send(DeleteOp({999999}));
      case 4: {
        WorkerOp op;
        op.mutable_explain()->set_request(1);
        return Send(std::move(op));
      }
      default: return RandomLaunch(session);
    }
  }

  void RandomUpload(uint64_t session) {
    const uint64_t ticket = ++next_ticket_;
    const std::vector<std::vector<uint32_t>> places = {{0}, {1}, {0, 1}};
    const std::vector<uint32_t> devices = places[Below(3)];
    const int64_t bytes = static_cast<int64_t>(Below(5)) * 100;
    Node& node = nodes_[ticket];
    node.kind = Node::kUpload;
    node.session = session;
    const uint64_t id = NewArray(devices, bytes, session, ticket);
    unfinished_.insert(ticket);
    keys_.insert(ticket);
    const bool pulled = Chance(0.5);
    Send(UploadOp(ticket, id, bytes, devices, pulled, session));
    if (!pulled) Send(UploadDataOp(ticket, std::string(static_cast<size_t>(bytes), 'x')));
  }

  void RandomLaunch(uint64_t session) {
    std::vector<uint64_t> usable;
    for (const auto& [id, program] : programs_) {
      if (!program.unloaded) usable.push_back(id);
    }
    if (usable.empty()) return;
    const uint64_t id = usable[Below(usable.size())];
    const ProgramSpec& spec = programs_.at(id).spec;
    const std::vector<uint32_t> devices =
        spec.devices.empty() ? std::vector<uint32_t>{static_cast<uint32_t>(Below(devices_))} : spec.devices;
    const std::vector<uint64_t> candidates = Usable(&devices, session);
    if (candidates.empty() && !spec.params.empty()) return;
    std::vector<uint64_t> args;
    for (size_t p = 0; p < spec.params.size(); ++p) {
      // Young ones rather, so that chains form.
      const size_t i = std::max(Below(candidates.size()), Below(candidates.size()));
      args.push_back(candidates[i]);
    }
    std::vector<uint32_t> donated;
    for (uint32_t p = 0; p < args.size(); ++p) {
      if (std::count(args.begin(), args.end(), args[p]) == 1 && Chance(0.3)) donated.push_back(p);
    }
    const uint64_t ticket = ++next_ticket_;
    Node& node = nodes_[ticket];
    node.session = session;
    node.program = id;
    unfinished_.insert(ticket);
    std::vector<uint64_t> outputs;
    for (int64_t bytes : spec.outputs) outputs.push_back(NewArray(devices, bytes, session, ticket));
    for (uint32_t p = 0; p < args.size(); ++p) {
      const bool gives = std::count(donated.begin(), donated.end(), p) > 0;
      for (uint32_t d = 0; d < devices.size(); ++d) {
        const BufferRef ref{ArrayId(args[p]), d};
        nodes_[ticket].inputs.push_back(ref);
        if (gives) {
          At(ref).donor = ticket;
        } else {
          readers_of_[ref].insert(ticket);
        }
      }
      if (gives) arrays_.at(args[p]).life = Life::kDonated;
    }
    Send(LaunchOp(ticket, id, args, outputs, devices, donated, session));
  }

  void RandomMake(uint64_t session) {
    const std::vector<uint64_t> sources = Usable(nullptr, session);
    const uint64_t ticket = ++next_ticket_;
    WorkerOp op = MakeOp(ticket, session);
    Node& node = nodes_[ticket];
    node.kind = Node::kMake;
    node.session = session;
    unfinished_.insert(ticket);
    const std::vector<std::vector<uint32_t>> places = {{0}, {1}, {0, 1}};
    const std::vector<uint32_t> devices = places[Below(3)];
    const int64_t bytes = static_cast<int64_t>(Below(4)) * 100;
    const uint64_t id = NewArray(devices, bytes, session, ticket);
    for (uint32_t s = 0; s < devices.size(); ++s) {
      MakeBuffer* part = AddPart(&op, id, s, devices[s], bytes);
      for (uint64_t n = 1 + Below(2); n > 0; --n) {
        if (sources.empty() || Chance(0.4)) {
          const uint64_t transfer = ++next_id_;
          pulls_.insert(transfer);
          AddRemote(part, transfer, Chance(0.5) ? 9 : 8);
        } else {
          const uint64_t source = sources[Below(sources.size())];
          const uint32_t shard = static_cast<uint32_t>(Below(arrays_.at(source).devices.size()));
          AddLocal(part, source, shard);
          const BufferRef ref{ArrayId(source), shard};
          nodes_[ticket].inputs.push_back(ref);
          ++transfers_of_[ref];
          pieces_of_[BufferRef{ArrayId(id), s}].push_back(ref);
        }
      }
    }
    Send(std::move(op));
  }

  void RandomPublish(uint64_t session) {
    const std::vector<uint64_t> ids = Usable(nullptr, session);
    if (ids.empty()) return;
    const uint64_t id = ids[Below(ids.size())];
    const BufferRef ref{ArrayId(id), static_cast<uint32_t>(Below(arrays_.at(id).devices.size()))};
    const uint64_t transfer = ++next_id_;
    publish_ref_[transfer] = ref;
    open_publishes_.insert(transfer);
    reading_publishes_.insert(transfer);
    ++transfers_of_[ref];
    Send(PublishOp(++next_ticket_, transfer, id, ref.shard, Chance(0.5) ? 9 : 8));
  }

  void RandomRead(uint64_t session) {
    if (!published_reads_.empty() && Chance(0.5)) {
      const uint64_t id = *published_reads_.begin();
      published_reads_.erase(id);
      return Send(ReleaseReadOp(id));
    }
    const std::vector<uint64_t> ids = Usable(nullptr, session);
    if (ids.empty()) return;
    const uint64_t id = ids[Below(ids.size())];
    const BufferRef ref{ArrayId(id), static_cast<uint32_t>(Below(arrays_.at(id).devices.size()))};
    const uint64_t read = ++next_id_;
    reads_asked_.insert(read);
    read_ref_[read] = ref;
    ++transfers_of_[ref];
    Send(ReadOp(read, id, ref.shard, session));
  }

  void RandomWatch(uint64_t session) {
    const std::vector<uint64_t> ids = Usable(nullptr, session);
    if (ids.empty()) return;
    const uint64_t watch = ++next_id_;
    watches_asked_.insert(watch);
    std::vector<uint64_t> arrays;
    for (uint64_t n = 1 + Below(3); n > 0; --n) {
      arrays.push_back(ids[Below(ids.size())]);
      for (uint32_t s = 0; s < arrays_.at(arrays.back()).devices.size(); ++s) {
        watched_[watch].push_back(BufferRef{ArrayId(arrays.back()), s});
      }
    }
    Send(WatchOp(watch, arrays));
  }

  // ---------------------------------------------------------------- the end
  void Flush() { core_->Flush(); }

  void Drain() {
    int idle = 0;
    while (error_.empty() && idle < 50) idle = OneEvent() ? 0 : idle + 1;
    Flush();
  }

  void EndInOrder() {
    // Twice: what ends the publishes and reads may let others begin.
    for (int round = 0; round < 400 && error_.empty(); ++round) {
      Drain();
      const std::set<uint64_t> publishes = std::exchange(open_publishes_, {});
      for (uint64_t id : publishes) Send(UnpublishOp(id));
      for (uint64_t id : std::exchange(published_reads_, {})) Send(ReleaseReadOp(id));
      Drain();
      if (publishes.empty() && published_reads_.empty() && unfinished_.empty()) break;
    }
    if (!error_.empty()) return;
    if (!unfinished_.empty()) {
      return Fail(absl::StrCat("t", *unfinished_.begin(), " never ends: ", core_->ExplainJson(now_)));  // I6
    }
    if (!keys_.empty() || !pulls_.empty() || !reads_asked_.empty() || !watches_asked_.empty()) {
      return Fail("something was never answered");
    }
    // I9 and its converse: good exactly if nothing in its making failed.
    for (const auto& [ref, shard] : shards_) {
      if (shard.bad == shard.completed) Fail(absl::StrCat(ref.ToString(), " is neither good nor bad"));
    }
    for (auto& [id, array] : arrays_) {
      if (array.life != Life::kUsable) continue;
      array.life = Life::kDeleted;
      Send(DeleteOp({id}));
    }
    for (auto& [id, program] : programs_) {
      if (std::exchange(program.unloaded, true)) continue;
      WorkerOp op;
      op.mutable_unload()->set_executable(id);
      Send(std::move(op));
    }
    // Donated to nodes that went wrong before they began, and errors of cancelled sessions, go with their arrays.
    CheckNothingLeft();
  }

  void EndByFence() {
    Flush();
    if (!error_.empty()) return;
    fenced_ = true;
    Trace("= fence");
    for (auto& [ticket, node] : nodes_) node.cancelled = true;
    core_->Fence(absl::FailedPreconditionError("fenced"), ++now_);
    Drain();
    if (!core_->OldWorkEnded()) Fail("the old work never ends");
    CheckNothingLeft();
  }

  void CheckNothingLeft() {
    if (!error_.empty()) return;
    const WorkerCore::Counts counts = core_->counts();
    if (counts.buffers + counts.launches + counts.transfers + counts.reads + counts.uploads + counts.executables +
            counts.watches !=
        0) {
      return Fail(absl::StrCat("left: ", counts.buffers, " buffers, ", counts.launches, " launches, ", counts.transfers,
                               " transfers, ", counts.reads, " reads, ", counts.uploads, " uploads, ",
                               counts.executables, " executables, ", counts.watches, " watches"));
    }
    for (uint32_t d = 0; d < devices_; ++d) {
      if (counts.device_bytes_reserved[d] != 0) Fail(absl::StrCat(counts.device_bytes_reserved[d], " bytes are left"));
      if (used_[d] != 0) Fail(absl::StrCat("the shell holds ", used_[d], " bytes"));
    }
    for (const auto& [ref, shard] : shards_) {
      if (shard.in_shell) Fail(absl::StrCat(ref.ToString(), " was never freed"));
    }
  }

  const Options options_;
  std::mt19937 random_;
  std::unique_ptr<WorkerCore> core_;
  std::string error_;
  TimeNs now_ = kSecond;
  uint32_t devices_ = 0;
  int64_t limit_ = 0;
  double failure_rate_ = 0;
  std::vector<int64_t> used_;
  uint64_t next_id_ = 0, next_ticket_ = 0, tail_ = 0;
  bool fenced_ = false;

  std::map<uint64_t, Program> programs_;
  std::map<uint64_t, Array> arrays_;
  std::map<uint64_t, Node> nodes_;
  std::map<BufferRef, Shard> shards_;
  std::set<uint64_t> unfinished_, keys_, pulls_, reads_asked_, watches_asked_, published_reads_, open_publishes_,
      reading_publishes_;
  std::set<uint64_t> out_of_memory_;
  std::set<uint64_t> will_fail_;  // launches that are handed over and come to a bad end
  std::map<uint64_t, std::vector<BufferRef>> watched_;
  std::map<uint64_t, BufferRef> publish_ref_, read_ref_, offered_;
  std::vector<uint64_t> snapshot_due_;
  std::map<BufferRef, std::set<uint64_t>> readers_of_;
  std::map<BufferRef, int> transfers_of_;
  std::map<BufferRef, std::vector<BufferRef>> pieces_of_;
  std::vector<uint64_t> loading_, filling_, stopping_;
  std::vector<Running> running_;
  std::vector<std::pair<std::shared_ptr<const MakeBuffers>, int>> making_;
  std::map<uint64_t, OpenRead> open_reads_;
};

#ifdef LB_SANITIZED
constexpr uint32_t kRuns = 2'000;  // ten times slower
#else
constexpr uint32_t kRuns = 20'000;
#endif

// LANDBRIDGE_SEED repeats one run, with a trace; LANDBRIDGE_RUNS makes more.
TEST(WorkerCoreRandomTest, Invariants) {
  if (const char* seed = std::getenv("LANDBRIDGE_SEED")) {
    EXPECT_EQ(RandomRun({static_cast<uint32_t>(std::stoul(seed)), true}).Go(), "");
    return;
  }
  const char* runs = std::getenv("LANDBRIDGE_RUNS");
  const uint32_t count = runs != nullptr ? static_cast<uint32_t>(std::stoul(runs)) : kRuns;
  for (uint32_t seed = 0; seed < count; ++seed) {
    ASSERT_EQ(RandomRun({seed, false}).Go(), "") << "repeat with LANDBRIDGE_SEED=" << seed;
  }
}

}  // namespace
}  // namespace landbridge
