#include "worker/simulated/simulated_worker.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status.h"
#include "env/clock.h"
#include "env/process.h"
#include "nlohmann/json.hpp"

namespace landbridge {

SimulatedWorker::SimulatedWorker(Loop* loop, const SimulatedWorkerOptions* options, SimulatedHostContext* host,
                                 int index, std::function<void()> wake)
    : loop_(loop),
      options_(options),
      host_(host),
      index_(index),
      name_(absl::StrCat("simulated-", index)),
      wake_(std::move(wake)) {}

SimulatedWorker::~SimulatedWorker() { Kill(); }

absl::Status SimulatedWorker::Start() {
  incarnation_ = Incarnation(SystemRandom().NextNonZero());
  restart_due_ = false;
  ControlServer::Callbacks server;
  server.on_stream_resumed = [this](const ControlStreamId& stream, uint64_t received) {
    return OnStreamResumed(stream, received);
  };
  server.on_stream_broken = [this](const ControlStreamId& stream) {
    if (Session* session = Find(stream)) session->stream->OnBroken();
  };
  server.on_control = [this](const ControlStreamId& stream, absl::string_view payload) -> absl::Status {
    Session* session = Find(stream);
    if (session == nullptr) return absl::FailedPreconditionError("the lease has ended");
    const absl::Status status = session->stream->OnFrame(payload, session->shell->core(), loop_->Now());
    wake_();  // behind what the frame has posted: launches that take no time end in the same turn
    return status;
  };
  LB_ASSIGN_OR_RETURN(
      server_, ControlServer::Listen(loop_, absl::StrCat(options_->listen_host, ":0"), nullptr, std::move(server)));
  WorkerAgent::Options agent;
  agent.rm_address = options_->resource_manager_address;
  agent.incarnation = incarnation_;
  agent.info = Describe();
  agent.times = options_->times;
  WorkerAgent::Callbacks callbacks;
  callbacks.on_fence = [this](const Grant& grant, const absl::Status& why) { OnFence(grant, why); };
  callbacks.on_restart = [this](const std::string&) { restart_due_ = true; };
  agent_ = std::make_unique<WorkerAgent>(loop_, std::move(agent), std::move(callbacks));
  server_->SetAgent(agent_.get());
  agent_->Start();
  // Heartbeats of the workers of a process are spread over time, as those of separate hosts are.
  last_heartbeat_ = loop_->Now() - index_ % 16 * options_->times.heartbeat / 16;
  return absl::OkStatus();
}

void SimulatedWorker::Kill() {
  if (server_ != nullptr) server_->SetAgent(nullptr);
  server_.reset();
  agent_.reset();
  sessions_.clear();
  fenced_.clear();
}

void SimulatedWorker::Leave() {
  if (agent_ != nullptr) agent_->Leave();
}

WorkerInfo SimulatedWorker::Describe() const {
  WorkerInfo info;
  info.set_name(name_);
  info.set_slice_hint(index_ + 1);
  info.set_host(HostName());
  info.set_pid(::getpid());
  info.set_platform(options_->platform);
  info.set_plugin_name("simulated");
  info.set_plugin_hash("simulated");
  info.set_device_kind(options_->platform);
  info.set_device_count(options_->devices);
  for (const char* kind : {"device", "pinned_host", "unpinned_host"}) info.add_memory_kinds(kind);
  info.set_control_address(server_->address());
  info.set_log_place(LogPlace());
  return info;
}

// ---------------------------------------------------------------- control streams

SimulatedWorker::Session* SimulatedWorker::Find(const ControlStreamId& stream) {
  for (const std::unique_ptr<Session>& session : sessions_) {
    if (session->grant.slice == stream.grant.slice && session->grant.SameNumber(stream.grant) &&
        session->holder == stream.holder) {
      return session.get();
    }
  }
  return nullptr;
}

SimulatedWorker::Session& SimulatedWorker::SessionOf(const ControlStreamId& stream) {
  if (Session* session = Find(stream)) return *session;
  auto made = std::make_unique<Session>();
  Session* session = made.get();
  session->grant = stream.grant;
  session->holder = stream.holder;
  HolderStream::Callbacks callbacks;
  callbacks.send = [this, stream](std::string payload) { return server_->Send(stream, std::move(payload)); };
  callbacks.on_heartbeat = [this, stream](int64_t echo_ns) { return agent_->OnHolderHeartbeat(stream.grant, echo_ns); };
  session->stream = std::make_unique<HolderStream>(std::move(callbacks));
  SimulatedShell::Options shell;
  shell.self = LifeUnder(stream.grant, incarnation_);
  shell.worker_name = name_;
  const auto devices = static_cast<size_t>(options_->devices);
  shell.limits.device_bytes.assign(devices, options_->device_memory_limit);
  shell.limits.host_bytes.assign(devices, options_->device_memory_limit);
  shell.limits.placed_launches_max = limits::kPlacedLaunchesPerDeviceMax;
  shell.limits.policy_seed = incarnation_.value();
  shell.report = [session](const WorkerReport& report) { session->stream->Queue(report); };
  shell.changed = wake_;
  session->shell = std::make_unique<SimulatedShell>(host_, std::move(shell));
  std::erase_if(sessions_, [&](const auto& old) { return old->grant.slice == stream.grant.slice; });
  sessions_.push_back(std::move(made));
  return *session;
}

uint64_t SimulatedWorker::OnStreamResumed(const ControlStreamId& stream, uint64_t received) {
  Session& session = SessionOf(stream);
  if (absl::Status status = session.stream->Resume(received); !status.ok()) {
    LogError("control stream of ", stream.grant.ToString(), " at ", name_, " cannot resume: ", status.message());
  }
  wake_();  // the welcome goes first
  return session.stream->received_ops();
}

// ---------------------------------------------------------------- leases and time

void SimulatedWorker::OnFence(const Grant& grant, const absl::Status& why) {
  LogWarning(name_, " is fenced: ", grant.ToString(), ": ", why.message());
  auto it = std::find_if(sessions_.begin(), sessions_.end(), [&](const auto& session) {
    return session->grant.slice == grant.slice && session->grant.SameNumber(grant);
  });
  if (it == sessions_.end()) {
    agent_->OldWorkEnded(grant.slice);  // its holder never came
    return;
  }
  server_->CloseStream(grant);
  (*it)->stream->Fence();
  (*it)->shell->Fence(why);
  fenced_.push_back(std::move(*it));
  sessions_.erase(it);
  wake_();
}

void SimulatedWorker::CheckOldWork() {
  for (size_t i = 0; i < fenced_.size();) {
    if (!fenced_[i]->shell->Idle() || !fenced_[i]->shell->core().OldWorkEnded()) {
      ++i;
      continue;
    }
    const Grant grant = fenced_[i]->grant;
    fenced_.erase(fenced_.begin() + static_cast<std::ptrdiff_t>(i));
    agent_->OldWorkEnded(grant.slice);
  }
}

bool SimulatedWorker::OnTurn(bool late) {
  bool put_off = false;
  for (const std::unique_ptr<Session>& session : sessions_)
    put_off |= session->stream->Flush(session->shell->core(), late);
  if (!fenced_.empty()) CheckOldWork();
  return put_off;
}

void SimulatedWorker::OnTick(TimeNs now) {
  if (!alive()) return;
  if (restart_due_) {
    Kill();
    if (absl::Status status = Start(); !status.ok()) LogError(name_, " cannot start again: ", status.message());
    return;
  }
  for (const std::unique_ptr<Session>& session : sessions_) session->shell->core().OnTime(now);
  if (now - last_heartbeat_ >= options_->times.heartbeat) {
    last_heartbeat_ = std::max(last_heartbeat_ + options_->times.heartbeat, now - options_->times.heartbeat);
    SendHeartbeats(now);
  }
  OnTurn(/*late=*/true);
}

void SimulatedWorker::SendHeartbeats(TimeNs now) {
  for (const std::unique_ptr<Session>& session : sessions_) {
    if (!session->stream->resumed()) continue;
    Heartbeat heartbeat;
    session->shell->core().FillDeviceUse(&heartbeat);
    session->stream->SendHeartbeat(std::move(heartbeat), now);
  }
}

bool SimulatedWorker::serves_holder() const {
  return std::any_of(sessions_.begin(), sessions_.end(),
                     [](const auto& session) { return session->stream->resumed(); });
}

void SimulatedWorker::AddTo(nlohmann::json* counts) const {
  auto add = [counts](const char* what, int64_t count) { (*counts)[what] = counts->value(what, int64_t{0}) + count; };
  add("alive", alive() ? 1 : 0);
  add("serving", serves_holder() ? 1 : 0);
  for (const std::unique_ptr<Session>& session : sessions_) {
    const WorkerCore::Counts core = session->shell->core().counts();
    add("buffers", static_cast<int64_t>(core.buffers));
    add("launches_unfinished", static_cast<int64_t>(core.launches));
    add("launches_done", session->shell->launches_done());
    add("executables", static_cast<int64_t>(core.executables));
    add("anomalies", static_cast<int64_t>(core.anomalies));
  }
}

}  // namespace landbridge
