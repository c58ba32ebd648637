#include "proxy/controller_host.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/data_keys.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status.h"
#include "dataplane/socket_data_plane.h"
#include "env/clock.h"
#include "nlohmann/json.hpp"

namespace landbridge {

using nlohmann::json;

namespace {

// The envelope of an executable, for as long as the controller keeps it.
class EnvelopeSource : public dataplane::Source {
 public:
  explicit EnvelopeSource(const std::shared_ptr<const std::string>& envelope)
      : envelope_(envelope), size_(envelope->size()) {}
  uint64_t size() const override { return size_; }
  void Read(uint64_t offset, uint64_t size, dataplane::ReadDone done) override {
    std::shared_ptr<const std::string> envelope = envelope_.lock();
    if (envelope == nullptr) {
      done(absl::FailedPreconditionError("the executable was released meanwhile"));
      return;
    }
    done(dataplane::Chunk{envelope->data() + offset, size, envelope});
  }

 private:
  std::weak_ptr<const std::string> envelope_;
  uint64_t size_;
};

}  // namespace

ControllerHost::ControllerHost(Loop* loop, ControllerHostOptions options)
    : loop_(loop),
      options_(std::move(options)),
      life_(SystemRandom().NextNonZero()),
      controller_({.space = life_.value(),
                   .launches_per_worker_max = limits::kLaunchesPerWorkerUnfinishedMax,
                   .scheduling = options_.scheduling,
                   .sequential_dispatch = options_.sequential_dispatch},
                  this) {}

ControllerHost::~ControllerHost() { Shutdown(); }

absl::StatusOr<std::unique_ptr<ControllerHost>> ControllerHost::Open(Loop* loop, ControllerHostOptions options) {
  std::unique_ptr<ControllerHost> host(new ControllerHost(loop, std::move(options)));
  dataplane::DataPlaneOptions plane;
  plane.self = Incarnation(host->life_.value());
  plane.token = dataplane::TokenFromSecret(host->options_.cluster_secret);
  plane.broken_grace = limits::kReadBrokenGrace;
  dataplane::SocketOptions sockets;
  sockets.listen_address = host->options_.listen_host;
  LB_ASSIGN_OR_RETURN(host->data_plane_, dataplane::MakeSocketDataPlane(std::move(plane), std::move(sockets)));
  return host;
}

void ControllerHost::Join(ControllerDoor* door, const std::string& client_address) {
  door_ = door;
  HolderAgent::Options agent;
  agent.rm_address = options_.resource_manager_address;
  agent.life = life_;
  agent.client_address = client_address;
  agent.data_address = data_plane_->address();
  agent.times = options_.times;
  agent_ = std::make_unique<HolderAgent>(loop_, std::move(agent), AgentCallbacks());
  tick_ = loop_->RunEvery(TickPeriod(options_.times), [this] { OnTick(); });
  agent_->Start();
  agent_->Request(options_.virtual_slices);
}

void ControllerHost::Shutdown() {
  loop_->Cancel(std::exchange(tick_, 0));
  for (auto& [request, asked] : explaining_) loop_->Cancel(asked.limit);
  explaining_.clear();
  members_.clear();  // what is still said to workers goes nowhere
  lives_.clear();
  agent_.reset();
  if (data_plane_ != nullptr) data_plane_->Shutdown();
}

void ControllerHost::OnTick() {
  controller_.OnTime(loop_->Now());
  for (auto it = executables_served_.begin(); it != executables_served_.end();) {
    if (it->second.expired()) {
      data_plane_->Unpublish({life_.value(), DataKeyId(DataKeyKind::kExecutable, it->first.value())},
                             absl::FailedPreconditionError("the executable was released"));
      executables_served_.erase(it++);
    } else {
      ++it;
    }
  }
}

HolderAgent::Callbacks ControllerHost::AgentCallbacks() {
  HolderAgent::Callbacks callbacks;
  callbacks.on_fleet = [this](const Fleet& fleet) { OnFleet(fleet); };
  callbacks.on_slice_bound = [](VirtualSlice slice, const Grant& grant, int workers) {
    LogInfo("slice", slice.index, ": unplaced -> placed on ", grant.ToString(), " with ", workers, " worker(s)");
  };
  callbacks.on_slice_lost = [](VirtualSlice slice, const Grant& grant, const absl::Status& why) {
    LogWarning("slice", slice.index, ": placed -> unplaced, ", grant.ToString(), ": ", why.ToString());
  };
  callbacks.on_member_up = [this](const MemberRef& ref, const WorkerInfo& info) { OnMemberUp(ref, info); };
  callbacks.on_member_lost = [this](const MemberRef& ref, const absl::Status& why) { OnMemberLost(ref, why); };
  callbacks.on_member_draining = [](const MemberRef& ref, const std::string& reason) {
    LogWarning("slice", ref.slice.index, "/", ref.index, " is draining: ", reason);
  };
  callbacks.applied_reports = [this](const MemberRef& ref) -> uint64_t {
    Member* member = Find(ref);
    return member == nullptr ? 0 : member->stream.applied_reports();
  };
  callbacks.on_stream_resumed = [this](const MemberRef& ref, uint64_t received) {
    Member* member = Find(ref);
    if (member == nullptr) return;
    if (absl::Status status = member->stream.Resume(received); !status.ok()) {
      LogError("control stream to ", member->name, " cannot resume: ", status.ToString());
      return;
    }
    member->flowing = true;
    FlushSoon(member);
  };
  callbacks.on_stream_broken = [this](const MemberRef& ref) {
    if (Member* member = Find(ref)) {
      member->flowing = false;
      member->stream.OnDisconnect();
    }
  };
  callbacks.on_control = [this](const MemberRef& ref, absl::string_view payload) { return OnControl(ref, payload); };
  callbacks.send_heartbeat = [this](const MemberRef& ref, uint64_t number, int64_t sent_ns, int64_t echo_ns) {
    Heartbeat heartbeat;
    heartbeat.set_number(number);
    heartbeat.set_sent_ns(sent_ns);
    heartbeat.set_echo_ns(echo_ns);
    Member* member = Find(ref);
    if (member != nullptr && member->flowing) agent_->SendControl(ref, member->stream.HeartbeatFrame(heartbeat));
  };
  return callbacks;
}

void ControllerHost::OnFleet(const Fleet& fleet) {
  if (has_devices_) return;  // virtual devices never change under a client
  waits_for_kind_.clear();
  if (fleet.platform != "cpu" && fleet.device_kind.empty()) {
    // JAX asks what they are before anything else, and only a worker knows.
    waits_for_kind_ = absl::StrCat("a worker to tell what its ", fleet.platform, " devices are");
    LogInfo("waiting for ", waits_for_kind_);
    return;
  }
  const int slices =
      options_.virtual_slices.empty() ? fleet.slice_count : static_cast<int>(options_.virtual_slices.size());
  std::vector<VirtualDevice> devices;
  for (int s = 0; s < slices; ++s) {
    for (int w = 0; w < fleet.workers_per_slice; ++w) {
      for (int d = 0; d < fleet.devices_per_worker; ++d) {
        devices.push_back({DeviceId(static_cast<int32_t>(devices.size())), {SliceId(s), w}, static_cast<uint32_t>(d)});
      }
    }
  }
  if (devices.empty()) {
    LogInfo("the resource manager has no slices yet");
    return;
  }
  has_devices_ = true;
  controller_.DeclareDevices(devices);
  door_->OnDevices(fleet, devices);
}

ControllerHost::Member* ControllerHost::Find(const MemberRef& ref) const {
  auto it = lives_.find({ref.incarnation, ref.grant.slice});
  if (it == lives_.end()) return nullptr;
  Member* member = members_.at(it->second).get();
  return member->ref.grant.SameNumber(ref.grant) ? member : nullptr;
}

void ControllerHost::OnMemberUp(const MemberRef& ref, const WorkerInfo& info) {
  auto member = std::make_unique<Member>();
  const Incarnation life = LifeUnder(ref.grant, ref.incarnation);
  member->ref = ref;
  member->life = life;
  member->slot = {SliceId(ref.slice.index), ref.index};
  member->name =
      absl::StrCat(member->slot.ToString(), " (worker ", info.name(), " on ", info.host(), ", pid ", info.pid(), ")");
  LogInfo(member->name, " is up: ", info.device_count(), " ", info.device_kind(), " devices");
  if (info.data_address().empty()) {
    // Simulated: its bytes ride on the control stream, if there are any.
  } else if (absl::Status status = data_plane_->AddPeer(life, info.data_address()); !status.ok()) {
    LogError("data plane to ", member->name, ": ", status.ToString());
  }
  const std::string name = member->name;
  const SlotId slot = member->slot;
  members_[life] = std::move(member);
  lives_[{ref.incarnation, ref.grant.slice}] = life;
  controller_.OnWorkerUp(slot, life, info.data_address(), name, loop_->Now());
}

void ControllerHost::OnMemberLost(const MemberRef& ref, const absl::Status& why) {
  Member* member = Find(ref);
  if (member == nullptr) return;
  ++losses_;
  LogWarning("lost ", member->name, ": ", why.ToString());
  const Incarnation life = member->life;
  lives_.erase({ref.incarnation, ref.grant.slice});
  members_.erase(life);
  data_plane_->ClosePeer(life, why);
  door_->OnWorkerLost(life, why);
  controller_.OnWorkerLost(life, why, loop_->Now());
}

absl::Status ControllerHost::OnControl(const MemberRef& ref, absl::string_view payload) {
  Member* member = Find(ref);
  if (member == nullptr) return absl::FailedPreconditionError("the worker is lost");
  absl::Status status = member->stream.OnFrame(
      payload,
      [&](const Heartbeat& heartbeat) {
        agent_->OnHeartbeat(ref, heartbeat.sent_ns());
        member->use.assign(heartbeat.devices().begin(), heartbeat.devices().end());
        member->links.assign(heartbeat.links().begin(), heartbeat.links().end());
      },
      [&](const WorkerReport& report) { OnReport(member, report); });
  if (member->stream.needs_flush()) FlushSoon(member);
  return status;
}

void ControllerHost::OnReport(Member* member, const WorkerReport& report) {
  ++work_done_;
  if (report.has_host_call()) return door_->OnHostCall(member->life, report.host_call());
  if (report.has_host_call_taken()) return door_->OnHostCallTaken(member->life, report.host_call_taken().call());
  controller_.OnReport(member->life, report, loop_->Now());
}

// ---------------------------------------------------------------- what the controller wants done

void ControllerHost::SendToWorker(Incarnation worker, WorkerOp op) {
  auto it = members_.find(worker);
  if (it == members_.end()) return;
  it->second->stream.Push(op);
  ++it->second->ops_sent;
  FlushSoon(it->second.get());
}

void ControllerHost::ReplyHostCall(Incarnation worker, HostCallReply reply) {
  WorkerOp op;
  *op.mutable_host_call_reply() = std::move(reply);
  SendToWorker(worker, std::move(op));
}

void ControllerHost::FlushSoon(Member* member) {
  if (std::exchange(member->dirty, true)) return;
  dirty_.push_back(member->life);
  if (std::exchange(flush_posted_, true)) return;
  loop_->Post([this, alive = std::weak_ptr<int>(alive_)] {
    if (!alive.expired()) FlushStreams();
  });
}

void ControllerHost::FlushStreams() {
  ++work_done_;
  flush_posted_ = false;
  ++flushes_;
  std::vector<Incarnation> dirty;
  dirty.swap(dirty_);
  for (Incarnation life : dirty) {
    auto it = members_.find(life);
    if (it == members_.end()) continue;
    Member& member = *it->second;
    member.dirty = false;
    if (!member.flowing) continue;
    for (std::string frame = member.stream.NextFrame(); !frame.empty(); frame = member.stream.NextFrame()) {
      ++member.frames_sent;
      member.bytes_sent += frame.size();
      if (!agent_->SendControl(member.ref, std::move(frame))) break;  // resumed later, with replay
    }
  }
}

void ControllerHost::ServeExecutable(Incarnation, ExecutableId executable,
                                     std::shared_ptr<const std::string> envelope) {
  // One key serves every worker, also one that comes up much later: it lives as long as the executable does.
  auto [it, added] = executables_served_.try_emplace(executable, envelope);
  if (added) {
    data_plane_->Publish({life_.value(), DataKeyId(DataKeyKind::kExecutable, executable.value())},
                         std::make_shared<EnvelopeSource>(envelope));
  }
}

// ---------------------------------------------------------------- looking inside

std::string ControllerHost::waits_for() const {
  const std::string of_agent = agent_->waits_for();
  return of_agent.empty() ? waits_for_kind_ : of_agent;
}

json ControllerHost::WorkerCounts() const {
  const HolderLease::MemberCounts counts = agent_->lease().member_counts();
  return json{{"expected", counts.wanted}, {"up", counts.up}};
}

void ControllerHost::Explain(bool graph, AdminTable::Answer answer) {
  if (explaining_.size() >= limits::kExplainsOpenMax) {
    return answer(absl::ResourceExhaustedError(
        absl::StrCat(limits::kExplainsOpenMax, " explanations are under way already; ask again")));
  }
  const RequestId request(next_explain_++);
  Explaining& asked = explaining_[request];
  asked.answer = std::move(answer);
  asked.limit = loop_->RunAfter(limits::kExplainPatience, [this, request] { controller_.EndExplain(request); });
  controller_.Explain(request, loop_->Now(), graph);
}

void ControllerHost::ResolveExplain(RequestId request, std::string text) {
  auto it = explaining_.find(request);
  if (it == explaining_.end()) return;
  Explaining asked = std::move(it->second);
  explaining_.erase(it);
  loop_->Cancel(asked.limit);
  json answer = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (answer.is_discarded()) return asked.answer(absl::InternalError("the controller's explanation is not JSON"));
  answer["slices"] = Slices();
  asked.answer(std::move(answer));
}

void ControllerHost::AddStatus(json* status) {
  json& out = *status;
  const Controller::Counts counts = controller_.counts();
  out["counts"] = {{"sessions", counts.sessions},        {"arrays", counts.arrays},
                   {"buffers", counts.buffers},          {"executables", counts.executables},
                   {"requests", counts.requests},        {"launches_unfinished", counts.launches_unfinished},
                   {"ops_parked", counts.ops_parked},    {"transfers", counts.transfers},
                   {"host_buffers", counts.host_buffers}};
  out["controller"] = json::parse(controller_.StatusJson(loop_->Now()), nullptr, false);
  const dataplane::DataPlaneStats stats = data_plane_->Stats();
  out["data_plane"] = {{"bytes_sent", stats.bytes_sent},
                       {"bytes_received", stats.bytes_received},
                       {"pulls_open", stats.pulls_open},
                       {"keys_published", stats.keys_published}};
  out["tensor_bytes"] = stats.bytes_sent + stats.bytes_received;
  out["workers_lost"] = losses_;
  out["flushes"] = flushes_;
  out["slices"] = Slices();
}

json ControllerHost::Slices() const {
  json slices = json::array();
  for (const HolderLease::SliceView& view : agent_->lease().slices()) {
    json slice = {{"index", view.slice.index}, {"type", view.type}, {"placed", view.grant.has_value()}};
    if (view.grant.has_value()) slice["grant"] = view.grant->ToString();
    if (!view.waits_for.empty()) slice["waits_for"] = view.waits_for;
    json workers = json::array();
    for (const HolderLease::MemberView& member : view.members) {
      json worker = {{"up", member.up},
                     {"incarnation", absl::StrCat(absl::Hex(member.ref.incarnation.value()))},
                     {"name", member.info.name()},
                     {"host", member.info.host()},
                     {"pid", member.info.pid()}};
      if (const Member* known = Find(member.ref)) {
        worker["life"] = absl::StrCat(absl::Hex(known->life.value()));
        worker["unacknowledged_bytes"] = known->stream.unacknowledged_bytes();
        worker["ops_parked"] = known->stream.parked();
        worker["control"] = {{"ops", known->ops_sent}, {"frames", known->frames_sent}, {"bytes", known->bytes_sent}};
        json devices = json::array();
        for (const DeviceUse& use : known->use) {
          devices.push_back({{"device", use.device()},
                             {"bytes_in_use", use.bytes_in_use()},
                             {"bytes_limit", use.bytes_limit()},
                             {"bytes_peak", use.bytes_peak()},
                             {"launches_queued", use.launches_queued()},
                             {"launches_placed", use.launches_placed()}});
        }
        worker["devices"] = std::move(devices);
        json links = json::array();
        for (const LinkUse& link : known->links) {
          links.push_back({{"from", absl::StrCat(absl::Hex(link.peer()))}, {"bytes_received", link.bytes_received()}});
        }
        worker["links"] = std::move(links);
      }
      workers.push_back(std::move(worker));
    }
    slice["workers"] = std::move(workers);
    slices.push_back(std::move(slice));
  }
  return slices;
}

}  // namespace landbridge
