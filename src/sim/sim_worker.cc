#include "sim/sim_worker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/control_frames.h"

namespace landbridge::sim {
namespace {

Dims ToDims(const google::protobuf::RepeatedField<int64_t>& field) { return Dims(field.begin(), field.end()); }

IndexBox ToBox(const Box& box, absl::Span<const int64_t> dims) {
  if (box.start_size() == 0 && box.limit_size() == 0) return IndexBox::Whole(dims);
  return {ToDims(box.start()), ToDims(box.limit())};
}

BufferRef ToRef(const BufferRefProto& ref) { return {ArrayId(ref.array()), ref.shard()}; }

std::string Pack(const Content& content) {
  return std::string(reinterpret_cast<const char*>(content.elements.data()), content.elements.size() * 8);
}

}  // namespace

std::string Knobs::ToString() const {
  return absl::StrCat("slices ", slices, ", devices ", devices, ", sessions ", sessions, ", steps ", steps, ", kill ",
                      kill, ", pause ", pause, ", break ", break_stream, ", fail launch ", fail_launch, ", fail load ",
                      fail_load, ", messages up to ", message_max / kMicrosecond, " us",
                      tight_memory ? ", tight memory" : "", restart_rm ? ", RM restarts" : "", ", ",
                      SchedulingPolicyProto_Name(policy), " with budget ", activation_budget,
                      sequential_dispatch ? ", sequential" : "");
}

SimWorker::SimWorker(World* world, const Knobs& knobs, Fabric* fabric, Incarnation self, std::string name)
    : world_(world),
      knobs_(knobs),
      fabric_(fabric),
      self_(self),
      name_(std::move(name)),
      device_bytes_(static_cast<size_t>(knobs.devices), 0),
      device_queue_(static_cast<size_t>(knobs.devices)),
      last_place_(static_cast<size_t>(knobs.devices), 0) {
  info_.set_version(BuildVersion());
  info_.set_name(name_);
  info_.set_host("sim");
  info_.set_platform("cpu");
  info_.set_plugin_name("sim");
  info_.set_plugin_hash("sim");
  info_.set_device_kind("cpu");
  info_.set_device_count(knobs.devices);
  info_.set_control_address(absl::StrCat("sim:", self.value()));
  info_.set_data_address(absl::StrCat("data:", self.value()));
  lease_ = std::make_unique<WorkerLease>(self_, info_, LeaseTimes{}, static_cast<WorkerLeaseSink*>(this));
}

SimWorker::~SimWorker() = default;

void SimWorker::Deliver(std::function<void()> event) {
  if (paused_ || !backlog_.empty()) {
    backlog_.push_back(std::move(event));
  } else {
    event();
  }
}

void SimWorker::Resume() {
  paused_ = false;
  while (!backlog_.empty() && !paused_) {
    std::function<void()> event = std::move(backlog_.front());
    event();
    backlog_.pop_front();  // only now: what it delivers comes after the rest
  }
}

void SimWorker::Later(DurationNs delay, std::function<void()> event) {
  world_->After(delay, [this, alive = fabric_, self = self_, event = std::move(event)] {
    if (alive->WorkerOf(self) != this) return;  // that process is gone
    Deliver(event);
  });
}

// ---------------------------------------------------------------- the control connection

ControlWelcome SimWorker::OnHello(const ControlHello& hello) {
  ControlWelcome welcome = lease_->OnHello(hello, world_->now());
  if (welcome.refusal() != ControlWelcome::NONE) return welcome;
  const Grant grant = Grant::FromProto(hello.grant());
  if (!grant_.Matches(grant) || core_ == nullptr) OpenStream(grant);
  welcome.set_received(receiver_.applied());
  if (!sender_.Resume(hello.received()).ok()) {
    world_->Violation(absl::StrCat(name_, ": a stream that stands cannot resume"));
    return welcome;
  }
  connected_ = true;
  FlushSoon();
  return welcome;
}

void SimWorker::OpenStream(const Grant& grant) {
  if (core_ != nullptr && !(core_->OldWorkEnded() && running_.empty() && makes_.empty())) {
    world_->Violation(absl::StrCat(name_, ": a new grant is active while the old holder's work goes on"));
  }
  if (!buffers_.empty()) {
    world_->Violation(absl::StrCat(name_, ": ", buffers_.size(), " buffers of the old holder are still there"));
  }
  world_->Trace([&] { return absl::StrCat(name_, " opens the stream of ", grant.ToString()); });
  grant_ = grant;
  ++generation_;
  fenced_ = false;
  sender_ = StreamSender<std::string>();
  receiver_ = StreamReceiver();
  buffers_.clear();
  told_.clear();
  executables_.clear();
  published_.clear();
  unpublished_.clear();
  early_pulls_.clear();
  reads_.clear();
  uploads_.clear();
  makes_.clear();
  running_.clear();
  expected_.clear();
  failed_.clear();
  std::fill(device_bytes_.begin(), device_bytes_.end(), 0);
  std::fill(last_place_.begin(), last_place_.end(), 0);
  WorkerLimits limits;
  const int64_t bytes = knobs_.tight_memory ? 4000 : int64_t{1} << 40;
  limits.device_bytes.assign(static_cast<size_t>(knobs_.devices), bytes);
  limits.host_bytes.assign(static_cast<size_t>(knobs_.devices), bytes);
  core_ = std::make_unique<WorkerCore>(self_, limits, static_cast<WorkerSink*>(this));
}

void SimWorker::OnConnectionBroken(const Grant& grant) {
  if (!grant_.SameNumber(grant)) return;
  connected_ = false;
  sender_.OnDisconnect();
}

void SimWorker::OnFrame(const Grant& grant, const std::string& payload) {
  if (core_ == nullptr || fenced_ || !grant_.Matches(grant) || !lease_->Holds(grant, world_->now())) return;
  if (fenced_) return;  // Holds noticed that the time is over
  ControlFrame frame;
  if (!frame.ParseFromString(payload)) return world_->Violation("a frame does not parse");
  if (absl::Status status = sender_.OnAck(frame.ack()); !status.ok()) return world_->Violation(status.ToString());
  if (frame.has_heartbeat()) {
    echo_ns_ = frame.heartbeat().sent_ns();
    if (!lease_->OnHolderHeartbeat(grant, frame.heartbeat().echo_ns(), world_->now())) return;
    Heartbeat answer;
    answer.set_number(++heartbeat_number_);
    answer.set_sent_ns(world_->now());
    answer.set_echo_ns(echo_ns_);
    fabric_->ToProxy(self_, grant_,
                     JoinControlFrame(0, receiver_.applied(), kControlFrameReports, {}, answer.SerializeAsString()));
  }
  absl::StatusOr<size_t> skip =
      receiver_.OnFrame(frame.first_seq(), static_cast<size_t>(frame.ops_size()), payload.size());
  if (!skip.ok()) return world_->Violation(skip.status().ToString());
  for (int i = static_cast<int>(*skip); i < frame.ops_size() && !fenced_; ++i) core_->OnOp(frame.ops(i), world_->now());
  FlushSoon();
}

void SimWorker::FlushSoon() {
  if (flush_posted_) return;
  flush_posted_ = true;
  Later(1 * kMicrosecond, [this] {
    flush_posted_ = false;
    Flush(/*late=*/false);
  });
}

// As worker/shell/control_session.cc and inbox.h: progress that nobody waits for leaves with the next frame, or late.
void SimWorker::Flush(bool late) {
  if (core_ == nullptr || fenced_) return;
  core_->Flush(late);
  if (sender_.HasUnsent()) core_->Flush(/*all=*/true);
  if (core_->HoldsProgress() && !late_flush_posted_) {
    late_flush_posted_ = true;
    Later(limits::kProgressDelay, [this] {
      late_flush_posted_ = false;
      Flush(/*late=*/true);
    });
  }
  while (connected_ && (sender_.HasUnsent() || receiver_.ack_due())) {
    StreamSender<std::string>::Batch batch = sender_.Take(limits::kControlFrameBytesMax);
    receiver_.AckMade();
    fabric_->ToProxy(self_, grant_,
                     JoinControlFrame(batch.first, receiver_.applied(), kControlFrameReports, batch.messages, ""));
  }
}

void SimWorker::Report(WorkerReport report) {
  std::string bytes = report.SerializeAsString();
  const size_t size = bytes.size();
  if (!sender_.TryPush(bytes, size) && !fenced_) world_->Violation(name_ + ": the report stream is full");
  FlushSoon();
}

void SimWorker::OnUpdate(const MemberUpdate& update) { lease_->OnUpdate(update, world_->now()); }

void SimWorker::Tick() {
  lease_->OnTick(world_->now());
  if (core_ != nullptr && !fenced_) {
    core_->OnTime(world_->now());
    FlushSoon();
    if (const size_t anomalies = core_->counts().anomalies; anomalies != 0) {
      world_->Violation(absl::StrCat(name_, " ignored ", anomalies, " messages that made no sense"));
    }
  }
}

// ---------------------------------------------------------------- lease

void SimWorker::SendReport(MemberReport report) { fabric_->ReportToRm(self_, std::move(report)); }
void SimWorker::Activated(const Grant& grant, ProxyLife) {
  world_->Trace([&] { return absl::StrCat(name_, " activates ", grant.ToString()); });
}
void SimWorker::Refused(const std::string& why) { world_->Violation(name_ + " was refused: " + why); }
void SimWorker::Placed(PhysicalSliceId, int) {}
void SimWorker::RestartProcess(const std::string& why) { fabric_->WorkerRestarts(self_, why); }

void SimWorker::Fence(const Grant& grant, const absl::Status& why) {
  world_->Trace([&] { return absl::StrCat(name_, " fences ", grant.ToString(), ": ", std::string(why.message())); });
  if (core_ != nullptr && grant_.SameNumber(grant) && !fenced_) {
    fenced_ = true;
    connected_ = false;
    sender_.Fence();
    receiver_.Fence();
    core_->Fence(why, world_->now());
    // Its space of the data plane is closed.
    while (!early_pulls_.empty()) AnswerEarlyPulls(early_pulls_.begin()->first, absl::UnavailableError("fenced"));
    fabric_->CloseConnection(self_, grant);
  }
  Later(0, [this] { CheckOldWork(); });  // not from within the lease's own event
}

void SimWorker::CheckOldWork() {
  const PhysicalSliceId slice = lease_->slice();
  if (!lease_->old_work_pending(slice)) return;
  if (core_ != nullptr && fenced_) {
    if (!core_->OldWorkEnded() || !running_.empty() || !makes_.empty()) return;
    if (!buffers_.empty()) {
      world_->Violation(absl::StrCat(name_, ": ", buffers_.size(), " buffers outlive the fenced holder's work"));
    }
  }
  lease_->OnOldWorkEnded(slice, world_->now());
}

// ---------------------------------------------------------------- memory

Content* SimWorker::Find(BufferRef ref) {
  auto it = buffers_.find(ref);
  return it == buffers_.end() ? nullptr : &it->second.content;
}

void SimWorker::Put(BufferRef ref, uint32_t device, Content content) {
  const int64_t bytes = static_cast<int64_t>(content.elements.size() * 8);
  if (!buffers_.try_emplace(ref, Stored{std::move(content), device}).second) {
    world_->Violation(absl::StrCat(name_, ": buffer ", ref.ToString(), " is made twice"));
    return;
  }
  device_bytes_[device] += bytes;
  if (knobs_.tight_memory && device_bytes_[device] > 4000) {
    world_->Violation(absl::StrCat(name_, ": device ", device, " holds ", device_bytes_[device], " bytes, limit 4000"));
  }
}

void SimWorker::Told(BufferRef ref) {
  if (!told_.insert(ref).second) world_->Violation(absl::StrCat(name_, ": ", ref.ToString(), " is to be made twice"));
}

void SimWorker::Free(BufferRef ref) {
  failed_.erase(ref);
  if (told_.erase(ref) == 0) {
    world_->Violation(absl::StrCat(name_, ": ", ref.ToString(), " is freed twice, or was never to be made"));
  }
  for (const auto& [key, make] : makes_) {
    for (const Piece& piece : make->op->buffers(make->index).pieces()) {
      if (piece.has_local() && ToRef(piece.local()) == ref) {
        world_->Violation(absl::StrCat(name_, ": ", ref.ToString(), " is freed while make t", key.first, " reads it"));
      }
    }
  }
  for (const auto& [read, open] : reads_) {
    if (open.holds_buffer && open.ref == ref) {
      world_->Violation(absl::StrCat(name_, ": ", ref.ToString(), " is freed while read ", read, " needs it"));
    }
  }
  for (const auto& [transfer, published] : published_) {
    if (published.ref == ref && published.pulling > 0 && !published.copy.has_value()) {
      world_->Violation(absl::StrCat(name_, ": ", ref.ToString(), " is freed while a peer pulls it"));
    }
  }
  for (const auto& [ticket, run] : running_) {
    for (int p = 0; p < run->launch->args_size(); ++p) {
      const LaunchArg& arg = run->launch->args(p);
      for (int d = 0; d < run->launch->devices_size(); ++d) {
        BufferRef used =
            arg.shards_size() > 0 ? ToRef(arg.shards(d)) : BufferRef{ArrayId(arg.array()), static_cast<uint32_t>(d)};
        if (used == ref) {
          world_->Violation(absl::StrCat(name_, ": ", ref.ToString(), " is freed while launch t", ticket, " uses it"));
        }
      }
    }
  }
  auto it = buffers_.find(ref);
  if (it == buffers_.end()) {
    if (expected_.count(ref) == 0) return;  // poisoned before it was made
    world_->Violation(absl::StrCat(name_, ": ", ref.ToString(), " is freed before its launch made it"));
    return;
  }
  device_bytes_[it->second.device] -= static_cast<int64_t>(it->second.content.elements.size() * 8);
  buffers_.erase(it);
}

// ---------------------------------------------------------------- programs

void SimWorker::Load(const LoadExecutable& load) {
  Loaded& loaded = executables_[load.executable()];
  loaded.op = load;
  // The envelope of a simulated program is its constant.
  std::memcpy(&loaded.constant, load.inline_envelope().data(), std::min<size_t>(8, load.inline_envelope().size()));
  const uint64_t generation = generation_;
  const bool fails = world_->Chance(knobs_.fail_load);
  Later(world_->Between(100 * kMicrosecond, 5 * kMillisecond), [this, id = load.executable(), generation, fails] {
    if (generation != generation_ || fenced_) return;
    auto it = executables_.find(id);
    if (it != executables_.end()) it->second.ready = !fails;
    core_->OnLoadDone(ExecutableId(id),
                      fails ? absl::InvalidArgumentError("injected: the load failed") : absl::OkStatus(),
                      world_->now());
    FlushSoon();
  });
}

void SimWorker::Unload(ExecutableId executable) { executables_.erase(executable.value()); }

void SimWorker::HandOver(std::shared_ptr<const Launch> launch, uint64_t place) {
  auto it = executables_.find(launch->executable());
  if (it == executables_.end() || !it->second.ready) {
    return world_->Violation(absl::StrCat(name_, ": launch t", launch->ticket(), " without its program"));
  }
  auto run = std::make_shared<Run>();
  run->launch = launch;
  run->constant = it->second.constant;  // the program may be unloaded while it runs
  run->duration = world_->Between(knobs_.launch_min, knobs_.launch_max);
  if (!running_.emplace(launch->ticket(), run).second) {
    return world_->Violation(absl::StrCat("launch t", launch->ticket(), " is handed over twice"));
  }
  // I3: every input is here, or will be made by an earlier entry on the same device.
  for (int p = 0; p < launch->args_size(); ++p) {
    const LaunchArg& arg = launch->args(p);
    for (int d = 0; d < launch->devices_size(); ++d) {
      const BufferRef ref =
          arg.shards_size() > 0 ? ToRef(arg.shards(d)) : BufferRef{ArrayId(arg.array()), static_cast<uint32_t>(d)};
      if (Find(ref) == nullptr && expected_.count(ref) == 0) {
        world_->Violation(absl::StrCat(name_, ": launch t", launch->ticket(), " needs ", ref.ToString(),
                                       ", which is neither here nor on its way on that device"));
      }
    }
  }
  for (int d = 0; d < launch->devices_size(); ++d) {
    for (uint64_t output : launch->outputs()) {
      expected_.insert({ArrayId(output), static_cast<uint32_t>(d)});
      Told({ArrayId(output), static_cast<uint32_t>(d)});
    }
    const uint32_t device = launch->devices(d);
    if (place <= last_place_[device]) {  // I1
      world_->Violation(
          absl::StrCat(name_, ": device ", device, " gets place ", place, " after ", last_place_[device]));
    }
    last_place_[device] = place;
    device_queue_[device].push_back(run);
  }
  if (device_queue_[launch->devices(0)].size() > 33) world_->Violation(name_ + ": the plugin's queue overflows");
  StartIfFirst(run);
}

// All devices are at it: it runs as one gang.
void SimWorker::Start(const std::shared_ptr<Run>& run) {
  run->started = true;
  // Arguments are read at the start; donated ones are gone from then on.
  const Launch& launch = *run->launch;
  auto arguments = std::make_shared<std::vector<std::vector<Content>>>();
  bool missing = false, bad_input = false;
  for (int d = 0; d < launch.devices_size(); ++d) {
    std::vector<Content>& of_device = arguments->emplace_back();
    for (const LaunchArg& arg : launch.args()) {
      const BufferRef ref =
          arg.shards_size() > 0 ? ToRef(arg.shards(d)) : BufferRef{ArrayId(arg.array()), static_cast<uint32_t>(d)};
      const Content* content = Find(ref);
      if (content == nullptr && launch.devices_size() == 1 && failed_.contains(ref)) {
        bad_input = true;  // the plugin runs nothing then, and says so; a gang would hang
      } else if (content == nullptr) {
        missing = true;
        world_->Violation(absl::StrCat(name_, ": launch t", launch.ticket(), " starts without ", ref.ToString()));
      } else {
        of_device.push_back(*content);
      }
    }
  }
  if (missing) return;
  const bool fails = bad_input || world_->Chance(knobs_.fail_launch);
  const uint64_t generation = generation_;
  Later(run->duration, [this, run, arguments, fails, generation] {
    const Launch& op = *run->launch;
    for (int d = 0; d < op.devices_size(); ++d) device_queue_[op.devices(d)].pop_front();
    if (generation == generation_) {
      running_.erase(op.ticket());
      for (uint32_t parameter : op.donated()) {
        const LaunchArg& arg = op.args(static_cast<int>(parameter));
        for (int d = 0; d < op.devices_size(); ++d) {
          const BufferRef ref =
              arg.shards_size() > 0 ? ToRef(arg.shards(d)) : BufferRef{ArrayId(arg.array()), static_cast<uint32_t>(d)};
          auto it = buffers_.find(ref);
          if (it == buffers_.end()) continue;
          device_bytes_[it->second.device] -= static_cast<int64_t>(it->second.content.elements.size() * 8);
          buffers_.erase(it);
        }
      }
      for (uint64_t output : op.outputs()) {
        for (int d = 0; d < op.devices_size(); ++d) {
          const BufferRef ref{ArrayId(output), static_cast<uint32_t>(d)};
          expected_.erase(ref);
          if (fails) {
            failed_.insert(ref);
            continue;
          }
          const std::vector<Content>& inputs = (*arguments)[static_cast<size_t>(d)];
          Content out = inputs.front();
          std::vector<uint64_t> row(inputs.size());
          for (size_t e = 0; e < out.elements.size(); ++e) {
            for (size_t a = 0; a < inputs.size(); ++a) row[a] = inputs[a].elements[e];
            out.elements[e] = Combine(run->constant, row);
          }
          Put(ref, op.devices(d), std::move(out));
        }
      }
      core_->OnLaunchDone(Ticket(op.ticket()),
                          fails ? absl::InvalidArgumentError("injected: the launch failed") : absl::OkStatus(),
                          run->duration, world_->now());
      FlushSoon();
      CheckOldWork();
    }
    for (uint32_t device : op.devices()) {
      if (!device_queue_[device].empty()) StartIfFirst(std::shared_ptr<Run>(device_queue_[device].front()));
    }
  });
}

void SimWorker::StartIfFirst(const std::shared_ptr<Run>& run) {
  if (run->started) return;
  for (uint32_t device : run->launch->devices()) {
    if (device_queue_[device].front() != run) return;
  }
  Start(run);
}

// ---------------------------------------------------------------- uploads

void SimWorker::StartUpload(std::shared_ptr<const Upload> upload) {
  uploads_[upload->key()] = upload;
  for (const Target& target : upload->targets()) Told(ToRef(target.ref()));
  if (!upload->pulled()) return;  // UploadBytes follows
  Later(world_->Between(50 * kMicrosecond, 2 * kMillisecond), [this, key = upload->key(), generation = generation_] {
    if (generation != generation_) return;
    const Content* bytes = fabric_->HostBytes(key);
    if (bytes == nullptr) {
      auto it = uploads_.find(key);
      if (it == uploads_.end()) return;
      uploads_.erase(it);
      core_->OnUploadDone(key, absl::FailedPreconditionError("the client is gone"), world_->now());
      FlushSoon();
      CheckOldWork();
      return;
    }
    UploadBytes(key, Pack(*bytes));
  });
}

void SimWorker::UploadBytes(uint64_t key, std::string data) {
  auto it = uploads_.find(key);
  if (it == uploads_.end()) return;
  std::shared_ptr<const Upload> upload = it->second;
  uploads_.erase(it);
  Content content = Empty(ToDims(upload->dims()));
  if (data.size() != content.elements.size() * 8) return world_->Violation("an upload of the wrong size");
  std::memcpy(content.elements.data(), data.data(), data.size());
  // Made from inside the core's call at times: answer as an event of its own.
  Later(world_->Between(1 * kMicrosecond, 100 * kMicrosecond), [this, upload, content, generation = generation_] {
    if (generation != generation_) return;
    for (const Target& target : upload->targets()) Put(ToRef(target.ref()), target.device(), content);
    core_->OnUploadDone(upload->key(), absl::OkStatus(), world_->now());
    FlushSoon();
    CheckOldWork();
  });
}

void SimWorker::CancelUpload(uint64_t key, const absl::Status& why) {
  auto it = uploads_.find(key);
  if (it == uploads_.end()) return;  // its end is under way
  uploads_.erase(it);
  Later(10 * kMicrosecond, [this, key, why, generation = generation_] {
    if (generation != generation_) return;
    core_->OnUploadDone(key, why, world_->now());
    FlushSoon();
    CheckOldWork();
  });
}

// ---------------------------------------------------------------- makes

void SimWorker::StartMake(std::shared_ptr<const MakeBuffers> op, int index) {
  auto make = std::make_shared<Make>();
  make->op = op;
  make->started = world_->now();
  Told(ToRef(op->buffers(index).target().ref()));
  make->index = index;
  const MakeBuffer& buffer = op->buffers(index);
  make->content = Empty(ToDims(buffer.dims()));
  makes_[{op->ticket(), index}] = make;
  make->open = 1;
  const uint64_t generation = generation_;
  for (const Piece& piece : buffer.pieces()) {
    const IndexBox target = ToBox(piece.target_box(), make->content.dims);
    ++make->open;
    if (piece.has_remote()) {
      StartPull(make, piece, target);
    } else {
      const Content* source = Find(ToRef(piece.local()));
      if (source == nullptr) {
        world_->Violation(absl::StrCat(name_, ": make t", op->ticket(), " needs ", ToRef(piece.local()).ToString()));
        return;
      }
      Paste(Cut(*source, ToBox(piece.source_box(), source->dims)), target, &make->content);
      --make->open;
    }
  }
  Later(world_->Between(5 * kMicrosecond, 200 * kMicrosecond), [this, make, generation] {
    if (generation == generation_) FinishMake(make);
  });
}

void SimWorker::StartPull(const std::shared_ptr<Make>& make, const Piece& piece, const IndexBox& target) {
  const uint64_t generation = generation_;
  auto landed = [this, make, &piece, target, generation](absl::StatusOr<Content> bytes) {
    if (fabric_->WorkerOf(self_) != this) return;
    Deliver([this, make, &piece, target, generation, bytes = std::move(bytes)] {
      if (generation != generation_) return;
      if (!bytes.ok() && absl::IsUnavailable(bytes.status()) && !make->cancelled && !fenced_ &&
          world_->now() - make->started < limits::kPullRetryTime) {
        // The connection broke. What that means, the controller says (PeerLost, hence CancelMake).
        return Later(limits::kPullRetryPause, [this, make, &piece, target, generation] {
          if (generation == generation_) StartPull(make, piece, target);
        });
      }
      if (!bytes.ok()) {
        if (make->status.ok()) make->status = bytes.status();
      } else if (!make->cancelled) {
        Paste(*bytes, target, &make->content);
      }
      FinishMake(make);
    });
  };
  SimWorker* peer = make->cancelled ? nullptr : fabric_->WorkerOf(Incarnation(piece.remote().incarnation()));
  if (peer == nullptr) {
    Later(world_->Between(50 * kMicrosecond, kMillisecond),
          [landed] { landed(absl::UnavailableError("the peer is gone")); });
  } else {
    peer->Pull(self_, TransferId(piece.remote().transfer()), landed);
  }
}

void SimWorker::FinishMake(const std::shared_ptr<Make>& make) {
  if (--make->open > 0) return;
  makes_.erase({make->op->ticket(), make->index});
  const Target& target = make->op->buffers(make->index).target();
  if (make->status.ok()) Put(ToRef(target.ref()), target.device(), make->content);
  core_->OnMakeDone(Ticket(make->op->ticket()), make->index, make->status, world_->now());
  FlushSoon();
  CheckOldWork();
}

void SimWorker::CancelMake(Ticket ticket, int index, const absl::Status& why) {
  auto it = makes_.find({ticket.value(), index});
  if (it == makes_.end()) return;
  // Quarantine: the destination stays until the pull has ended. One whose bytes travel does so by itself.
  const std::shared_ptr<Make> make = it->second;
  make->cancelled = true;
  make->status = why;
  for (const Piece& piece : make->op->buffers(index).pieces()) {
    if (!piece.has_remote()) continue;
    if (SimWorker* peer = fabric_->WorkerOf(Incarnation(piece.remote().incarnation()))) {
      peer->CancelPull(self_, TransferId(piece.remote().transfer()));
    }
  }
}

// ---------------------------------------------------------------- publications and reads

void SimWorker::StartPublish(const Publish& publish) {
  Published& published = published_[publish.transfer()];
  published.ref = ToRef(publish.ref());
  published.box = ToBox(publish.box(), ToDims(publish.dims()));
  published.peer = Incarnation(publish.peer());
  auto early = early_pulls_.find(publish.transfer());
  if (early == early_pulls_.end()) return;
  auto waiting = std::move(early->second);
  early_pulls_.erase(early);
  for (auto& [peer, done] : waiting) Pull(peer, TransferId(publish.transfer()), std::move(done));
}

void SimWorker::FailPublish(TransferId transfer, const absl::Status& why) {
  Published& published = published_[transfer.value()];
  published.failed = true;
  published.why = why;
  AnswerEarlyPulls(transfer.value(), why);
}

void SimWorker::AnswerEarlyPulls(uint64_t transfer, const absl::Status& why) {
  auto early = early_pulls_.find(transfer);
  if (early == early_pulls_.end()) return;
  auto waiting = std::move(early->second);
  early_pulls_.erase(early);
  for (auto& [peer, done] : waiting) {
    world_->After(world_->Between(20 * kMicrosecond, 2 * kMillisecond), [done = std::move(done), why] { done(why); });
  }
}

void SimWorker::CancelPull(Incarnation peer, TransferId transfer) {
  auto early = early_pulls_.find(transfer.value());
  if (early == early_pulls_.end()) return;
  for (const auto& [from, done] : early->second) {
    if (from == peer) return AnswerEarlyPulls(transfer.value(), absl::CancelledError("not wanted any more"));
  }
}

void SimWorker::PeerDied(Incarnation peer) {
  for (auto it = early_pulls_.begin(); it != early_pulls_.end();) {
    std::erase_if(it->second, [peer](const auto& waiting) { return waiting.first == peer; });
    it = it->second.empty() ? early_pulls_.erase(it) : std::next(it);
  }
}

void SimWorker::Die() {
  while (!early_pulls_.empty())
    AnswerEarlyPulls(early_pulls_.begin()->first, absl::UnavailableError("the peer is gone"));
}

void SimWorker::StopPublish(TransferId transfer, const absl::Status& why) {
  unpublished_.emplace(transfer.value(), why);
  AnswerEarlyPulls(transfer.value(), why);
  auto it = published_.find(transfer.value());
  if (it == published_.end()) return;  // never started
  it->second.stopping = true;
  it->second.why = why;
  if (it->second.pulling == 0) EndPublication(transfer);
}

void SimWorker::EndPublication(TransferId transfer) {
  Later(5 * kMicrosecond, [this, transfer, generation = generation_] {
    if (generation != generation_ || published_.erase(transfer.value()) == 0) return;
    core_->OnPublishQuiet(transfer, world_->now());
    FlushSoon();
    CheckOldWork();
  });
}

void SimWorker::Pull(Incarnation peer, TransferId transfer, std::function<void(absl::StatusOr<Content>)> done) {
  auto answer = [this, done](absl::StatusOr<Content> bytes) {
    world_->After(world_->Between(20 * kMicrosecond, 2 * kMillisecond), [done, bytes] { done(bytes); });
  };
  if (core_ == nullptr || fenced_) return answer(absl::UnavailableError("fenced"));
  if (auto ended = unpublished_.find(transfer.value()); ended != unpublished_.end()) return answer(ended->second);
  auto it = published_.find(transfer.value());
  if (it == published_.end()) {  // the pin has not come yet: wait
    early_pulls_[transfer.value()].emplace_back(peer, std::move(done));
    return;
  }
  Published& published = it->second;
  if (published.failed) return answer(published.why);
  if (published.peer != peer) {
    world_->Violation(absl::StrCat(name_, ": ", transfer.ToString(), " is pulled by a stranger"));
    return;
  }
  ++published.pulling;
  fabric_->PullStarted(self_, peer);
  const Incarnation self = self_;
  Fabric* fabric = fabric_;
  world_->After(world_->Between(20 * kMicrosecond, 2 * kMillisecond),
                [this, self, fabric, transfer, done, generation = generation_] {
                  if (fabric->WorkerOf(self) != this || generation != generation_)
                    return done(absl::UnavailableError("the peer is gone"));
                  // A stopped process still serves: its memory is read by the peer.
                  auto at = published_.find(transfer.value());
                  if (at == published_.end()) return done(absl::UnavailableError("unpublished"));
                  --at->second.pulling;
                  const Content* content = at->second.copy.has_value() ? &*at->second.copy : Find(at->second.ref);
                  if (content == nullptr) {
                    if (!fenced_)
                      world_->Violation(absl::StrCat(name_, ": ", at->second.ref.ToString(), " vanished under a pull"));
                    done(absl::UnavailableError("fenced"));
                  } else {
                    done(Cut(*content, at->second.box));
                  }
                  at = published_.find(transfer.value());
                  if (at != published_.end() && at->second.stopping && at->second.pulling == 0)
                    EndPublication(transfer);
                });
}

void SimWorker::SnapshotPublish(TransferId transfer) {
  Later(world_->Between(5 * kMicrosecond, 5 * kMillisecond), [this, transfer, generation = generation_] {
    auto it = published_.find(transfer.value());
    if (generation != generation_ || it == published_.end() || it->second.stopping) return;
    const Content* content = Find(it->second.ref);
    if (content == nullptr) return world_->Violation(absl::StrCat(name_, ": copy of ", it->second.ref.ToString()));
    it->second.copy = *content;
    core_->OnPublishQuiet(transfer, world_->now());
    FlushSoon();
  });
}

void SimWorker::StartRead(const Read& read, bool snapshot) {
  OpenRead& open = reads_[read.read()];
  open.ref = ToRef(read.ref());
  const Content* content = Find(open.ref);
  if (content == nullptr) return world_->Violation(absl::StrCat(name_, ": read of ", open.ref.ToString()));
  open.content = *content;
  open.published = world_->Chance(0.5);
  Later(world_->Between(2 * kMicrosecond, 100 * kMicrosecond),
        [this, id = read.read(), snapshot, generation = generation_] {
          auto it = reads_.find(id);
          if (generation != generation_ || it == reads_.end()) return;
          const bool published = it->second.published;
          std::string bytes = published ? "" : Pack(it->second.content);
          if (!published) reads_.erase(it);  // the answer is its end
          core_->OnReadDone(id, absl::OkStatus(), std::move(bytes), published, world_->now());
          if (published && snapshot) SnapshotRead(id);
          CheckOldWork();
          FlushSoon();
        });
}

void SimWorker::SnapshotRead(uint64_t read) {
  Later(5 * kMicrosecond, [this, read, generation = generation_] {
    auto it = reads_.find(read);
    if (generation != generation_ || it == reads_.end() || !it->second.holds_buffer) return;
    it->second.holds_buffer = false;
    core_->OnReadQuiet(read, world_->now());
    FlushSoon();
  });
}

void SimWorker::StopRead(uint64_t read) {
  Later(5 * kMicrosecond, [this, read, generation = generation_] {
    auto it = reads_.find(read);
    if (generation != generation_ || it == reads_.end()) return;
    const bool held = it->second.holds_buffer;
    reads_.erase(it);
    if (held) core_->OnReadQuiet(read, world_->now());
    FlushSoon();
    CheckOldWork();
  });
}

absl::StatusOr<Content> SimWorker::ReadPublished(uint64_t read) {
  auto it = reads_.find(read);
  if (it == reads_.end() || fenced_) return absl::UnavailableError("no such read");
  return it->second.content;
}

void SimWorker::PeerLost(Incarnation, const absl::Status&) {}

std::string SimWorker::Leftovers() const {
  if (core_ == nullptr || fenced_) return "";
  const WorkerCore::Counts counts = core_->counts();
  std::string out;
  if (counts.buffers + counts.launches + counts.transfers + counts.reads + counts.uploads + counts.executables +
          counts.watches !=
      0) {
    absl::StrAppend(&out, " ", counts.buffers, " buffers, ", counts.launches, " launches, ", counts.transfers,
                    " transfers, ", counts.reads, " reads, ", counts.uploads, " uploads, ", counts.executables,
                    " executables, ", counts.watches, " watches;");
  }
  if (!buffers_.empty()) absl::StrAppend(&out, " ", buffers_.size(), " buffers of its devices;");
  if (!told_.empty()) absl::StrAppend(&out, " ", told_.size(), " buffers that it was to make and not to free;");
  if (!published_.empty() || !early_pulls_.empty()) {
    absl::StrAppend(&out, " ", published_.size(), " publications and ", early_pulls_.size(), " pulls that wait;");
  }
  if (!reads_.empty()) absl::StrAppend(&out, " ", reads_.size(), " reads in its shell;");
  for (int64_t bytes : counts.device_bytes_reserved) {
    if (bytes != 0) absl::StrAppend(&out, " ", bytes, " bytes reserved;");
  }
  return out.empty() ? out : absl::StrCat(name_, " still has", out);
}

}  // namespace landbridge::sim
