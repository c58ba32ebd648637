#include "worker/shell/worker_process.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status.h"
#include "dataplane/socket_data_plane.h"
#include "env/clock.h"
#include "env/file.h"
#include "env/process.h"
#include "pjrt/client_options.h"
#include "pjrt/host_calls.h"
#include "pjrt/plugin.h"
#include "pjrt/virtual_compute.h"

namespace landbridge {
namespace {

using nlohmann::json;

int64_t PhysicalMemoryBytes() {
  return static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
}

std::string JoinHostPort(const std::string& host, int port) {
  return host.find(':') == std::string::npos ? absl::StrCat(host, ":", port) : absl::StrCat("[", host, "]:", port);
}

// What a user can do about it, where it is known.
absl::Status DescribeNoClient(const absl::Status& status, const pjrt::Plugin& plugin) {
  const pjrt::Traits& traits = plugin.traits();
  if (traits.makes_devices) return status;
  return absl::FailedPreconditionError(absl::StrCat(
      "no ", absl::AsciiStrToUpper(traits.platform), " device can be used here: ", FilterForeignText(status.message()),
      "; look at the machine's driver and devices",
      traits.platform == "cuda" ? " (nvidia-smi, CUDA_VISIBLE_DEVICES)" : "",
      ", at --plugin_option, and at who else uses the devices"));
}

bool IsAnyAddress(const std::string& host) { return host == "0.0.0.0" || host == "::" || host.empty(); }

}  // namespace

WorkerProcess::WorkerProcess(Loop* loop, WorkerOptions options, std::function<void(const absl::Status&)> stop)
    : loop_(loop), options_(std::move(options)), stop_(std::move(stop)), incarnation_(SystemRandom().NextNonZero()) {}

WorkerProcess::~WorkerProcess() { LB_CHECK(shut_down_); }

absl::StatusOr<std::unique_ptr<WorkerProcess>> WorkerProcess::Start(Loop* loop, WorkerOptions options,
                                                                    std::function<void(const absl::Status&)> stop) {
  std::unique_ptr<WorkerProcess> worker(new WorkerProcess(loop, std::move(options), std::move(stop)));
  if (absl::Status status = worker->Init(); !status.ok()) {
    worker->Shutdown(0);
    return status;
  }
  return worker;
}

absl::Status WorkerProcess::Init() {
  LB_ASSIGN_OR_RETURN(plugin_, pjrt::Plugin::Load(options_.plugin_path));
  inbox_ = std::make_shared<Inbox>(loop_, [this](bool late) { return EndOfTurn(late); });
  if (!MakesClientWithOthers()) LB_RETURN_IF_ERROR(MakeClientAlone());
  return InitNetwork();
}

bool WorkerProcess::MakesClientWithOthers() const {
  const pjrt::Traits& traits = plugin_->traits();
  return options_.workers_per_slice > 1 && (traits.joins_processes || traits.joins_by_environment);
}

absl::Status WorkerProcess::MakeClientAlone() {
  pjrt::Plugin::ClientOptions client;
  LB_ASSIGN_OR_RETURN(client.options,
                      pjrt::MakeClientOptions(plugin_->traits(), options_.devices, options_.plugin_options));
  absl::StatusOr<std::unique_ptr<pjrt::Client>> made = plugin_->CreateClient(client);
  if (!made.ok()) return DescribeNoClient(made.status(), *plugin_);
  return TakeClient(*std::move(made));
}

absl::Status WorkerProcess::TakeClient(std::unique_ptr<pjrt::Client> client) {
  client_ = std::move(client);
  const pjrt::Traits& traits = plugin_->traits();
  if (traits.host_handlers) {
    LB_RETURN_IF_ERROR(AddContext(pjrt::RegisterVirtualCompute(*plugin_), "registering virtual compute"));
    LB_RETURN_IF_ERROR(AddContext(pjrt::RegisterHostCalls(*plugin_), "registering callbacks"));
  }
  LB_ASSIGN_OR_RETURN(handlers_, HandlerSupply::Create(client_.get(), options_.custom_calls));
  LB_ASSIGN_OR_RETURN(io_, BufferIo::Create(client_.get()));
  const int devices = io_->device_count();
  const int64_t host_share = PhysicalMemoryBytes() / 10 * 8 / devices;
  for (const pjrt::Device& device : client_->devices()) {
    int64_t limit = options_.device_memory_limit > 0 ? options_.device_memory_limit : host_share;
    if (options_.device_memory_limit <= 0 && traits.has_memory_stats) {
      absl::StatusOr<int64_t> known = client_->MemoryLimitBytes(device);
      if (known.ok()) {
        limit = *known;
      } else {
        LogWarning("the memory of ", device.debug_string, " is taken to be ", limit,
                   " bytes (--device_memory_limit says otherwise): ", known.status().message());
      }
    }
    limits_.device_bytes.push_back(limit);
  }
  limits_.host_bytes.assign(static_cast<size_t>(devices), host_share);
  limits_.placed_launches_max = limits::kPlacedLaunchesPerDeviceMax;
  limits_.policy_seed = SystemRandom().Next();
  limits_.spans_unordered = options_.unordered_launches;
  dispatcher_ = std::make_unique<Dispatcher>(devices);
  pool_ = std::make_unique<TaskPool>(options_.pool_threads, "pool");
  slow_pool_ = std::make_unique<TaskPool>(1, "slow");
  LogInfo("PJRT plugin ", plugin_->path(), " (sha256 ", plugin_->sha256(), "), platform ", client_->platform_name(),
          " ", client_->platform_version(), ", C API ", plugin_->api_major(), ".", plugin_->api_minor(), ": ", devices,
          " devices, ", limits_.device_bytes[0], " bytes each",
          io_->host_accessible() ? ", device memory is read and written in place"
                                 : ", device memory is copied by way of the host");
  return absl::OkStatus();
}

// ---------------------------------------------------------------- clients of several workers that are one

// A formation is the lives of a slice's workers. Each new life of a member makes another one. Who has no client yet makes it in the
// newest; who has one starts anew, since a plugin's communicators cannot be mended: that takes a client's whole process.
void WorkerProcess::OnFormation(std::vector<FormationMember> members) {
  if (!MakesClientWithOthers()) return;  // each has a client of its own
  auto told = std::make_shared<Formation>(std::move(members), incarnation_, options_.cluster_secret);
  if (told->index() < 0 || (formation_ != nullptr && formation_->epoch() == told->epoch())) return;
  LogInfo("this worker is member ", told->index(), " of ", told->size(), " of the formation ", told->epoch());
  const absl::Status over = absl::UnavailableError("the formation has ended: a member of it has started again");
  if (formation_ != nullptr) formation_->Close(over);
  formation_ = std::move(told);
  if (client_ != nullptr) {
    return stop_(absl::FailedPreconditionError(
        "another worker of this slice has started again, and the plugins' clients are made by all of them together"));
  }
  if (forming_ == nullptr) StartForming();
}

void WorkerProcess::StartForming() {
  if (forming_thread_.joinable()) forming_thread_.join();  // it has posted its end
  forming_ = formation_;
  pjrt::Plugin::ClientOptions client;
  absl::StatusOr<pjrt::AttributeMap> options =
      pjrt::MakeClientOptions(plugin_->traits(), options_.devices, options_.plugin_options,
                              pjrt::GroupPlace{forming_->index(), forming_->size()});
  if (!options.ok()) return stop_(options.status());
  client.options = *std::move(options);
  // It waits for the other members, for minutes if need be.
  forming_thread_ = std::thread([this, plugin = plugin_, formation = forming_, client = std::move(client)] {
    auto made =
        std::make_shared<absl::StatusOr<std::unique_ptr<pjrt::Client>>>(plugin->CreateClient(client, formation.get()));
    inbox_->Push([this, formation, made] { OnFormed(formation, std::move(*made)); });
  });
}

void WorkerProcess::OnFormed(const std::shared_ptr<Formation>& formation,
                             absl::StatusOr<std::unique_ptr<pjrt::Client>> made) {
  forming_ = nullptr;
  if (server_ == nullptr) {  // shutting down
    formed_ = formation;
    if (made.ok()) client_ = *std::move(made);
    return;
  }
  if (formation != formation_) {
    if (!made.ok()) {
      LogInfo("making a client in the next formation: ", made.status().message());
      return StartForming();
    }
    formed_ = formation;  // the client needs it to its end
    client_ = *std::move(made);
    return stop_(absl::FailedPreconditionError("another worker of this slice has started again meanwhile"));
  }
  // Keys of a formation are put once: what has failed in it can only be tried again in another one, by a new life.
  if (!made.ok()) return stop_(DescribeNoClient(made.status(), *plugin_));
  formed_ = formation;
  absl::Status taken = TakeClient(*std::move(made));
  if (taken.ok() && (client_->process_index() != formation->index() ||
                     client_->global_device_count() != formation->size() * options_.devices ||
                     io_->device_count() != options_.devices)) {
    taken = absl::FailedPreconditionError(
        absl::StrCat("the plugin says that this is process ", client_->process_index(), " with ", io_->device_count(),
                     " of ", client_->global_device_count(), " devices, but the slice has it as worker ",
                     formation->index(), " of ", formation->size(), " with ", options_.devices,
                     " devices each: change --instance_type, or the names of the workers "
                     "(places go by name; TPU: their order must be that of TPU_WORKER_ID)"));
  }
  if (!taken.ok()) return stop_(taken);
  LogInfo("formed: process ", formation->index(), " of ", formation->size(), ", ", client_->global_device_count(),
          " devices");
  agent_->Formed(Describe());
}

// ---------------------------------------------------------------- network

absl::Status WorkerProcess::InitNetwork() {
  dataplane::SocketOptions sockets;
  sockets.listen_address = options_.listen_host;
  LB_ASSIGN_OR_RETURN(data_host_, dataplane::MakeSocketHost(std::move(sockets)));

  admin_.Add("formation", AdminTable::Handler([this](const json& request, AdminTable::Answer answer) {
               if (formation_ == nullptr)
                 return answer(absl::UnavailableError("this worker knows of no formation yet"));
               formation_->OnRequest(request, loop_->Now(), std::move(answer),
                                     [loop = loop_](std::function<void()> task) { loop->Post(std::move(task)); });
             }));
  admin_.Add("status", [this](const json&) -> absl::StatusOr<json> { return Status(); });
  ControlServer::Callbacks server;
  server.on_stream_resumed = [this](const ControlStreamId& stream, uint64_t received) {
    return OnStreamResumed(stream, received);
  };
  server.on_stream_broken = [this](const ControlStreamId& stream) {
    if (ControlSession* session = FindSession(stream)) session->OnBroken();
  };
  server.on_control = [this](const ControlStreamId& stream, absl::string_view payload) -> absl::Status {
    ControlSession* session = FindSession(stream);
    if (session == nullptr) return absl::FailedPreconditionError("the lease has ended");
    WakeUp();  // reports leave at the end of this turn, once for all frames
    return session->OnFrame(payload);
  };
  LB_ASSIGN_OR_RETURN(server_, ControlServer::Listen(loop_, JoinHostPort(options_.listen_host, options_.port), &admin_,
                                                     std::move(server)));
  if (options_.name.empty()) {
    // With a fixed port the name survives a restart: the new life takes the place of the old one.
    options_.name = options_.port != 0 ? absl::StrCat(HostName(), ":", options_.port)
                                       : absl::StrCat(HostName(), "/", ::getpid(), "/", server_->port());
  }
  LogInfo("worker ", options_.name, " (", incarnation_.ToString(), ") listens on ", control_address(),
          "; registering with the resource manager at ", options_.resource_manager_address);
  if (!options_.port_file.empty()) {
    LB_RETURN_IF_ERROR(WriteFileAtomically(options_.port_file, control_address() + "\n"));
  }

  WorkerAgent::Options agent;
  agent.rm_address = options_.resource_manager_address;
  agent.incarnation = incarnation_;
  agent.info = Describe();
  agent.times = options_.times;
  agent.forming = client_ == nullptr;
  WorkerAgent::Callbacks callbacks;
  callbacks.on_activated = [](const Grant& grant, ProxyLife holder) {
    LogInfo("granted: ", grant.ToString(), " to proxy ", holder.ToString());
  };
  callbacks.on_fence = [this](const Grant& grant, const absl::Status& why) { OnFence(grant, why); };
  callbacks.on_restart = [this](const std::string& why) {
    stop_(absl::FailedPreconditionError(absl::StrCat("this worker must be started again: ", why)));
  };
  callbacks.on_formation = [this](std::vector<FormationMember> members) { OnFormation(std::move(members)); };
  callbacks.on_placed = [](PhysicalSliceId slice, int index) {
    LogInfo("placed: worker ", index, " of ", slice.ToString());
  };
  agent_ = std::make_unique<WorkerAgent>(loop_, std::move(agent), std::move(callbacks));
  server_->SetAgent(agent_.get());
  timers_.push_back(loop_->RunEvery(TickPeriod(options_.times), [this] { OnTick(); }));
  agent_->Start();
  return absl::OkStatus();
}

std::string WorkerProcess::control_address() const {
  return JoinHostPort(IsAnyAddress(options_.listen_host) ? HostName() : options_.listen_host, server_->port());
}

WorkerInfo WorkerProcess::Describe() const {
  const pjrt::Plugin& plugin = *plugin_;
  WorkerInfo info;
  info.set_name(options_.name);
  info.set_slice_hint(options_.slice_hint + 1);
  info.set_host(HostName());
  info.set_pid(::getpid());
  info.set_platform(plugin.traits().platform);
  info.set_plugin_name(plugin.path().substr(plugin.path().rfind('/') + 1));
  info.set_plugin_version(absl::StrCat(plugin.api_major(), ".", plugin.api_minor()));
  info.set_plugin_hash(plugin.sha256());
  info.set_device_count(client_ == nullptr ? options_.devices : io_->device_count());
  if (client_ != nullptr) {
    info.set_device_kind(client_->devices()[0].kind);
    for (const pjrt::Memory* memory : client_->devices()[0].memories) info.add_memory_kinds(memory->kind);
  }
  info.set_control_address(control_address());
  info.set_data_address(data_host_->address());
  info.set_log_place(LogPlace());
  return info;
}

// ---------------------------------------------------------------- control streams

void WorkerProcess::WakeUp() {
  inbox_->Push([] {});
}

ControlSession* WorkerProcess::FindSession(const ControlStreamId& stream) {
  auto it = sessions_.find(stream.grant.slice);
  if (it == sessions_.end() || !it->second->grant().SameNumber(stream.grant) || it->second->holder() != stream.holder) {
    return nullptr;
  }
  return it->second.get();
}

// The lease core lets one grant of a slice in at a time, and only when the old one's work has ended.
ControlSession& WorkerProcess::SessionOf(const ControlStreamId& stream) {
  if (ControlSession* session = FindSession(stream)) return *session;
  auto context = std::make_shared<ShellContext>();
  context->loop = loop_;
  context->io = io_.get();
  context->pool = pool_.get();
  context->slow = slow_pool_.get();
  context->handlers = handlers_.get();
  context->dispatcher = dispatcher_.get();
  context->images = &images_;
  context->staged = &staged_;
  context->sent = &sent_;
  context->received = &received_;
  context->snapshots = &snapshots_;
  context->inbox = inbox_;
  context->must_restart = [this](const std::string& why) { stop_(absl::FailedPreconditionError(why)); };
  ControlSession::Callbacks callbacks;
  callbacks.send = [this, stream](std::string payload) { return server_->Send(stream, std::move(payload)); };
  callbacks.on_heartbeat = [this, stream](int64_t echo_ns) { return agent_->OnHolderHeartbeat(stream.grant, echo_ns); };
  callbacks.left_over = [this, stream] {
    loop_->Post([this, stream] {
      ControlSession* behind = FindSession(stream);
      if (behind == nullptr) return;
      behind->ApplyMore();
      WakeUp();
    });
  };
  dataplane::DataPlaneOptions plane;
  plane.self = LifeUnder(stream.grant, incarnation_);
  plane.token = dataplane::TokenFromSecret(options_.cluster_secret);
  absl::StatusOr<std::unique_ptr<dataplane::DataPlane>> opened = data_host_->Open(std::move(plane));
  LB_CHECK(opened.ok());  // lives are not re-used
  auto made =
      std::make_unique<ControlSession>(stream.grant, stream.holder, std::move(context), *std::move(opened), limits_,
                                       stream.space != 0 ? stream.space : stream.holder.value(), std::move(callbacks));
  ControlSession& session = *made;
  sessions_[stream.grant.slice] = std::move(made);
  return session;
}

uint64_t WorkerProcess::OnStreamResumed(const ControlStreamId& stream, uint64_t received) {
  ControlSession& session = SessionOf(stream);
  if (!stream.data_address.empty()) {
    absl::Status status = session.data_plane().AddPeer(Incarnation(stream.holder.value()), stream.data_address);
    if (!status.ok()) LogError("the data plane of proxy ", stream.holder.ToString(), ": ", status.ToString());
  }
  if (absl::Status status = session.Resume(received); !status.ok()) {
    LogError("control stream of ", stream.grant.ToString(), " cannot resume: ", status.message());
  } else {
    LogInfo("control stream of ", stream.grant.ToString(), " from proxy ", stream.holder.ToString(), " is up");
  }
  WakeUp();  // the welcome goes first
  return session.received_ops();
}

// ---------------------------------------------------------------- leases and time

void WorkerProcess::OnFence(const Grant& grant, const absl::Status& why) {
  LogWarning("fenced: ", grant.ToString(), ": ", why.message());
  auto it = sessions_.find(grant.slice);
  if (it == sessions_.end() || !it->second->grant().SameNumber(grant)) {
    agent_->OldWorkEnded(grant.slice);  // its holder never came
    return;
  }
  server_->CloseStream(grant);
  it->second->Fence(why);
  fenced_.push_back(std::move(it->second));
  sessions_.erase(it);
  CheckOldWork();
}

void WorkerProcess::CheckOldWork() {
  for (size_t i = 0; i < fenced_.size();) {
    if (!fenced_[i]->OldWorkEnded()) {
      ++i;
      continue;
    }
    const Grant grant = fenced_[i]->grant();
    const dataplane::DataPlaneStats moved = fenced_[i]->data_plane().Stats();
    ended_bytes_sent_ += moved.bytes_sent;
    ended_bytes_received_ += moved.bytes_received;
    LogInfo("nothing of ", grant.ToString(), " is left");
    fenced_.erase(fenced_.begin() + static_cast<std::ptrdiff_t>(i));
    agent_->OldWorkEnded(grant.slice);
  }
  if (draining_ && sessions_.empty() && fenced_.empty()) {
    draining_ = false;
    stop_(absl::OkStatus());
  }
}

void WorkerProcess::OnTick() {
  const TimeNs now = loop_->Now();
  if (formation_ != nullptr) formation_->OnTick(now);
  for (auto& [slice, session] : sessions_) session->shell().core().OnTime(now);
  if (now - last_heartbeat_ >= options_.times.heartbeat) {
    last_heartbeat_ = now;
    for (auto& [slice, session] : sessions_) session->SendHeartbeat();
  }
  uint64_t ops = 0;
  for (auto& [slice, session] : sessions_) {
    ops += session->received_ops();
    if (!session->Idle()) ++busy_ticks_;
  }
  trimmer_.Tick(ops + busy_ticks_, now);
  EndOfTurn(/*late=*/true);
  if (draining_ && now >= drain_until_) {
    draining_ = false;
    LogWarning("the drain's grace has passed; what is left here is lost");
    stop_(absl::OkStatus());
  }
}

Inbox::Outlook WorkerProcess::EndOfTurn(bool late) {
  Inbox::Outlook outlook;
  for (auto& [slice, session] : sessions_) {
    outlook.put_off |= session->Flush(late);
    outlook.in_a_hurry |= session->shell().core().WaitsForLaunches();
  }
  if (!fenced_.empty() || draining_) {
    outlook.in_a_hurry = true;
    CheckOldWork();
  }
  return outlook;
}

void WorkerProcess::Drain(const std::string& reason) {
  if (draining_ || shut_down_) return;
  LogInfo("draining: ", reason);
  draining_ = true;
  drain_until_ = loop_->Now() + options_.drain_grace;
  agent_->Drain(reason);
  WakeUp();
}

bool WorkerProcess::Shutdown(DurationNs patience) {
  if (shut_down_) return true;
  for (Loop::TimerId timer : timers_) loop_->Cancel(timer);
  timers_.clear();
  if (agent_ != nullptr) {
    agent_->Leave();
    loop_->RunOnce(0);
  }
  if (server_ != nullptr) server_->SetAgent(nullptr);
  const absl::Status why = absl::DataLossError(absl::StrCat("worker ", options_.name, " has stopped"));
  for (auto& [slice, session] : sessions_) {
    server_->CloseStream(session->grant());
    session->Fence(why);
    fenced_.push_back(std::move(session));
  }
  sessions_.clear();
  server_.reset();
  const TimeNs until = loop_->Now() + patience;
  auto idle = [&] {
    return std::all_of(fenced_.begin(), fenced_.end(), [](const auto& session) { return session->Idle(); });
  };
  while (!idle() && loop_->Now() < until) loop_->RunOnce(std::min<DurationNs>(until - loop_->Now(), 50 * kMillisecond));
  if (!idle()) {
    LogError("some launch does not end; leaving anyway");
    return false;
  }
  const absl::Status over = absl::UnavailableError("a member of the formation has ended");
  for (const auto& formation : {formation_, forming_, formed_}) {
    if (formation != nullptr) formation->Close(over);
  }
  if (forming_ != nullptr) {
    // The plugin's thread may take long to notice.
    while (forming_ != nullptr && loop_->Now() < until)
      loop_->RunOnce(std::min<DurationNs>(until - loop_->Now(), 50 * kMillisecond));
    if (forming_ != nullptr) {
      LogWarning("a client is still being made; leaving anyway");
      return false;
    }
  }
  if (forming_thread_.joinable()) forming_thread_.join();
  if (dispatcher_ != nullptr) dispatcher_->Shutdown();
  fenced_.clear();
  if (slow_pool_ != nullptr) slow_pool_->Shutdown();
  if (pool_ != nullptr) pool_->Shutdown();
  if (inbox_ != nullptr) inbox_->Close();
  agent_.reset();
  data_host_.reset();
  io_.reset();
  handlers_.reset();
  client_.reset();
  formed_.reset();
  shut_down_ = true;
  return true;
}

// ---------------------------------------------------------------- looking inside

json WorkerProcess::Status() {
  json out;
  out["name"] = options_.name;
  out["incarnation"] = incarnation_.ToString();
  out["incarnation_hex"] = absl::StrCat(absl::Hex(incarnation_.value()));
  out["address"] = control_address();
  out["version"] = BuildVersion();
  out["resource_manager"] = {{"address", options_.resource_manager_address}, {"connected", agent_->rm_up()}};
  out["plugin"] = {{"path", plugin_->path()},
                   {"sha256", plugin_->sha256()},
                   {"platform", plugin_->traits().platform},
                   {"device_memory_in_place", io_ != nullptr && io_->host_accessible()}};
  if (MakesClientWithOthers()) {
    out["formation"] = {{"epoch", formation_ == nullptr ? "" : formation_->epoch()},
                        {"formed", formed_ != nullptr && formed_ == formation_}};
  }
  out["draining"] = draining_;
  json grants = json::array();
  for (auto& [slice, session] : sessions_) {
    json grant = {{"grant", session->grant().ToString()},
                  {"life", absl::StrCat(absl::Hex(session->data_plane().self().value()))},
                  {"holder", session->holder().ToString()},
                  {"connected", session->connected()},
                  {"launches_handed_over", session->shell().launches_open()}};
    grant["queues"] = json::parse(session->shell().core().ExplainJson(loop_->Now()), nullptr, false);
    Heartbeat use;
    session->shell().core().FillDeviceUse(&use);
    json devices = json::array();
    for (const DeviceUse& device : use.devices()) {
      devices.push_back({{"device", device.device()},
                         {"bytes_in_use", device.bytes_in_use()},
                         {"bytes_limit", device.bytes_limit()},
                         {"bytes_peak", device.bytes_peak()},
                         {"launches_queued", device.launches_queued()},
                         {"launches_placed", device.launches_placed()}});
    }
    grant["devices"] = std::move(devices);
    grants.push_back(std::move(grant));
  }
  out["grants"] = std::move(grants);
  out["fenced"] = fenced_.size();
  out["launches_to_issue"] = dispatcher_ == nullptr ? 0 : dispatcher_->queued();
  out["send_snapshots"] = {{"taken", snapshots_.granted()},
                           {"bytes", snapshots_.bytes_out()},
                           {"bytes_max", limits::kSendSnapshotBytesMax},
                           {"waiting", snapshots_.waiting()}};
  uint64_t bytes_sent = ended_bytes_sent_, bytes_received = ended_bytes_received_, pulls_open = 0, keys_published = 0;
  json links = json::array();
  for (auto& [slice, session] : sessions_) {
    const dataplane::DataPlaneStats stats = session->data_plane().Stats();
    bytes_sent += stats.bytes_sent;
    bytes_received += stats.bytes_received;
    pulls_open += stats.pulls_open;
    keys_published += stats.keys_published;
    for (const dataplane::PeerBytes& peer : stats.peers) {
      links.push_back({{"grant", session->grant().ToString()},
                       {"peer", absl::StrCat(absl::Hex(peer.peer.value()))},
                       {"bytes_sent", peer.bytes_sent},
                       {"bytes_received", peer.bytes_received}});
    }
  }
  out["data_plane"] = {{"bytes_sent", bytes_sent},
                       {"bytes_received", bytes_received},
                       {"pulls_open", pulls_open},
                       {"keys_published", keys_published},
                       {"links", std::move(links)}};
  return out;
}

}  // namespace landbridge
