#include "sim/sim_worker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/landbridge/order.pb.h"
#include "sim/messages.h"

namespace landbridge::sim {

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
  for (const LaunchArg& arg : launch->args()) {
    for (int d = 0; d < launch->devices_size(); ++d) {
      const BufferRef ref = ArgumentOf(*launch, arg, d);
      if (Find(ref) == nullptr && expected_.count(ref) == 0) {
        world_->Violation(absl::StrCat(name_, ": launch t", launch->ticket(), " needs ", ref.ToString(),
                                       ", which is neither here nor on its way on that device"));
      }
    }
  }
  for (int d = 0; d < launch->devices_size(); ++d) {
    for (uint64_t output : launch->outputs()) {
      expected_.insert(OutputOf(*launch, output, d));
      Told(OutputOf(*launch, output, d));
    }
    const uint32_t device = launch->devices(d);
    if (place <= last_place_[device]) {  // I1
      world_->Violation(
          absl::StrCat(name_, ": device ", device, " gets place ", place, " after ", last_place_[device]));
    }
    last_place_[device] = place;
    device_queue_[device].push_back(run);
    if (launch->has_span()) fabric_->SpanInLog(self_, grant_, device, launch->span().number());
  }
  if (device_queue_[launch->devices(0)].size() > 33) world_->Violation(name_ + ": the plugin's queue overflows");
  StartIfFirst(run);
}

void SimWorker::StartIfFirst(const std::shared_ptr<Run>& run) {
  if (run->started) return;
  for (uint32_t device : run->launch->devices()) {
    if (device_queue_[device].front() != run) return;
  }
  Start(run);
}

// All devices are at it: it runs as one gang.
void SimWorker::Start(const std::shared_ptr<Run>& run) {
  run->started = true;
  // Arguments are read at the start; donated ones are gone from then on.
  const Launch& launch = *run->launch;
  // A gang of one worker would hang; parts of a launch that spans several are programs of one device each.
  const bool alone = launch.devices_size() == 1 || launch.has_span();
  bool missing = false, bad_input = false;
  for (int d = 0; d < launch.devices_size(); ++d) {
    std::vector<Content>& of_device = run->arguments.emplace_back();
    for (const LaunchArg& arg : launch.args()) {
      const BufferRef ref = ArgumentOf(launch, arg, d);
      const Content* content = Find(ref);
      if (content == nullptr && alone && failed_.contains(ref)) {
        bad_input = true;  // the plugin runs nothing then, and says so
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
  if (fails) run->status = absl::InvalidArgumentError("injected: the launch failed");
  if (!run->aborted.ok()) run->status = run->aborted;
  if (run->status.ok() && HasCollectives(*run)) {
    run->meets = true;
    fabric_->MeetSpan(launch.span().space(), launch.span().workers_size(), self_, [this, run] { RunOn(run); });
  } else {
    RunOn(run);
  }
}

// Nothing keeps it from its end any more.
void SimWorker::RunOn(const std::shared_ptr<Run>& run) {
  if (std::exchange(run->ends, true)) return;  // aborted when all had met
  run->meets = false;
  Later(run->duration, [this, run, generation = generation_] { Finish(run, generation); });
}

bool SimWorker::HasCollectives(const Run& run) { return run.launch->has_span() && run.constant % 3 != 0; }

void SimWorker::AbortLaunch(Ticket ticket, const absl::Status& why) {
  auto it = running_.find(ticket.value());
  if (it != running_.end()) Abort(it->second, why);
}

void SimWorker::Abort(const std::shared_ptr<Run>& run, const absl::Status& why) {
  if (!HasCollectives(*run) || !run->aborted.ok()) return;
  run->aborted = why;
  if (!run->meets) return;  // it has not begun, or its collectives are over
  run->status = why;
  fabric_->LeaveSpan(run->launch->span().space(), self_);
  RunOn(run);
}

void SimWorker::PeerLost(Incarnation peer, const absl::Status& why) {
  std::vector<std::shared_ptr<Run>> runs;
  for (const auto& [ticket, run] : running_) {
    for (const SpanWorker& worker : run->launch->span().workers()) {
      if (worker.incarnation() == peer.value()) runs.push_back(run);
    }
  }
  for (const std::shared_ptr<Run>& run : runs) Abort(run, why);
  mails_.Close(peer);
}

void SimWorker::Finish(const std::shared_ptr<Run>& run, uint64_t generation) {
  const Launch& op = *run->launch;
  for (int d = 0; d < op.devices_size(); ++d) device_queue_[op.devices(d)].pop_front();
  if (generation == generation_) {
    running_.erase(op.ticket());
    for (uint32_t parameter : op.donated()) {
      for (int d = 0; d < op.devices_size(); ++d) {
        auto it = buffers_.find(ArgumentOf(op, op.args(static_cast<int>(parameter)), d));
        if (it == buffers_.end()) continue;
        device_bytes_[it->second.device] -= static_cast<int64_t>(it->second.content.elements.size() * 8);
        buffers_.erase(it);
      }
    }
    for (uint64_t output : op.outputs()) {
      for (int d = 0; d < op.devices_size(); ++d) {
        const BufferRef ref = OutputOf(op, output, d);
        expected_.erase(ref);
        if (!run->status.ok()) {
          failed_.insert(ref);
          continue;
        }
        const std::vector<Content>& inputs = run->arguments[static_cast<size_t>(d)];
        Content out = inputs.front();
        std::vector<uint64_t> row(inputs.size());
        for (size_t e = 0; e < out.elements.size(); ++e) {
          for (size_t a = 0; a < inputs.size(); ++a) row[a] = inputs[a].elements[e];
          out.elements[e] = Combine(run->constant, row);
        }
        Put(ref, op.devices(d), std::move(out));
      }
    }
    if (op.has_span()) {
      fabric_->SpanPartEnded(op.span().number(),
                             {self_, op.span().workers_size(), HasCollectives(*run), run->status.ok()});
    }
    core_->OnLaunchDone(Ticket(op.ticket()), run->status, run->duration, world_->now());
    FlushSoon();
    CheckOldWork();
  }
  for (uint32_t device : op.devices()) {
    if (!device_queue_[device].empty()) StartIfFirst(std::shared_ptr<Run>(device_queue_[device].front()));
  }
}

// ---------------------------------------------------------------- their order, agreed with other workers

void SimWorker::SendMail(Incarnation peer, std::string mail) {
  if (knobs_.unordered) TakeOwnTurn(peer, mail);
  fabric_->Mail(self_, grant_, peer, std::move(mail));
}

// The next turn here, without asking anybody.
void SimWorker::TakeOwnTurn(Incarnation spanner, const std::string& mail) {
  OrderMail said, turn;
  if (!said.ParseFromString(mail) || !said.has_ready()) return;
  turn.mutable_commit()->set_spanner_epoch(said.ready().spanner_epoch());
  turn.mutable_commit()->set_number(said.ready().number());
  turn.mutable_commit()->set_previous_g(own_turns_);
  turn.mutable_commit()->set_g(++own_turns_);
  Later(kMicrosecond, [this, spanner, bytes = turn.SerializeAsString(), generation = generation_] {
    if (generation == generation_ && !fenced_) core_->OnMail(spanner, bytes, world_->now());
    FlushSoon();
  });
}

void SimWorker::OnMail(Incarnation from, const Grant& to, const std::string& mail) {
  if (core_ == nullptr || fenced_ || !grant_.SameNumber(to)) return;
  OrderMail turn;
  if (knobs_.unordered && turn.ParseFromString(mail) && turn.has_commit()) return;
  mails_.Add(from, mail);
  ReadMail(from);
}

void SimWorker::OnMailBroken(Incarnation peer) {
  if (core_ == nullptr || fenced_) return;
  core_->OnMailBroken(peer, absl::AbortedError("injected: no mail passes"), world_->now());
  FlushSoon();
}

void SimWorker::ListenTo(Incarnation peer) {
  mails_.Listen(peer);
  Later(0, [this, peer] { ReadMail(peer); });  // not from within the core's own call
}

void SimWorker::ReadMail(Incarnation peer) {
  for (std::string mail; !fenced_ && mails_.Next(peer, &mail);) core_->OnMail(peer, mail, world_->now());
  FlushSoon();
}

}  // namespace landbridge::sim
