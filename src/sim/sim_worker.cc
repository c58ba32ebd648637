#include "sim/sim_worker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/control_frames.h"
#include "sim/messages.h"

namespace landbridge::sim {

std::string Knobs::ToString() const {
  return absl::StrCat("slices ", slices, ", devices ", devices, ", sessions ", sessions, ", steps ", steps, ", kill ",
                      kill, ", pause ", pause, ", break ", break_stream, ", fail launch ", fail_launch, ", fail load ",
                      fail_load, ", messages up to ", message_max / kMicrosecond, " us",
                      spans > 0 ? absl::StrCat(", spans ", spans) : "", tight_memory ? ", tight memory" : "",
                      restart_rm ? ", RM restarts" : "", ", ", SchedulingPolicyProto_Name(policy), " with budget ",
                      activation_budget, sequential_dispatch ? ", sequential" : "");
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
  mails_ = MailGate();
  own_turns_ = 0;
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
    for (const auto& [ticket, run] : std::map(running_)) Abort(run, why);
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
        BufferRef used = ArgumentOf(*run->launch, arg, d);
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
