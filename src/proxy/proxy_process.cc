#include "proxy/proxy_process.h"

#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "env/clock.h"
#include "env/file.h"
#include "env/process.h"

namespace landbridge {
namespace {

using nlohmann::json;

// Null: compiled programs are in memory only.
json DiskCacheJson(const DiskCacheStats& stats) {
  if (stats.folder.empty()) return nullptr;
  json out = {{"folder", stats.folder},
              {"hits", stats.hits},
              {"misses", stats.misses},
              {"refused", stats.refused},
              {"writes", stats.writes},
              {"write_failures", stats.write_failures},
              {"writes_skipped", stats.writes_skipped},
              {"evictions", stats.evictions},
              {"entries", stats.entries},
              {"bytes", stats.bytes}};
  if (!stats.off.empty()) out["off"] = stats.off;
  return out;
}

// The host part of "host:port".
std::string HostOf(const std::string& address) {
  absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  return parsed.ok() ? parsed->host : "127.0.0.1";
}

std::string JoinHostPort(const std::string& host, int port) {
  return host.find(':') == std::string::npos ? absl::StrCat(host, ":", port) : absl::StrCat("[", host, "]:", port);
}

}  // namespace

ProxyProcess::ProxyProcess(ProxyOptions options) : options_(std::move(options)) {}

ProxyProcess::~ProxyProcess() = default;

absl::Status ProxyProcess::Run() {
  ControllerHostOptions host;
  host.resource_manager_address = options_.resource_manager_address;
  host.virtual_slices = options_.virtual_slices;
  host.times = options_.times;
  host.listen_host = HostOf(options_.listen_address);
  host.cluster_secret = options_.cluster_secret;
  host.scheduling = options_.scheduling;
  host.sequential_dispatch = options_.sequential_dispatch;
  LB_ASSIGN_OR_RETURN(host_, ControllerHost::Open(&loop_, std::move(host)));
  LB_ASSIGN_OR_RETURN(compiler_, CompileService::Start(options_.compile));
  LB_RETURN_IF_ERROR(OpenDoor());

  AddAdminAnswers();
  LB_ASSIGN_OR_RETURN(admin_server_, AdminServer::Listen(&loop_, options_.admin_address, &admin_));
  if (!options_.port_file.empty()) {
    LB_RETURN_IF_ERROR(WriteFileAtomically(options_.port_file + ".admin", admin_server_->address() + "\n"));
  }
  for (int signal : {SIGTERM, SIGINT}) {
    LB_RETURN_IF_ERROR(loop_.OnSignal(signal, [this] {
      LogInfo("asked to stop: giving the slices back");
      host_->Leave();
      loop_.RunAfter(50 * kMillisecond, [this] { loop_.Stop(); });
    }));
  }
  loop_.RunEvery(TickPeriod(options_.times), [this] {
    if (!host_->has_devices()) {
      const std::string reason = host_->waits_for();
      door_->ExpireInits(
          absl::UnavailableError(absl::StrCat("this proxy has no devices yet: it waits for ",
                                              reason.empty() ? "the resource manager to declare its slices" : reason)));
    }
    trimmer_.Tick(host_->work_done(), loop_.Now());
  });
  host_->Join(this, client_address_);

  loop_.SetSpin(options_.spin);
  loop_.Run();

  door_->Stop();
  loop_.RunOnce(0);  // what Stop posted
  host_->Shutdown();
  door_.reset();
  compiler_.reset();
  admin_server_.reset();
  LogInfo("stopped");
  return failure_;
}

// Clients may knock from then on: GetVersion is answered at once, Init when the devices are known.
absl::Status ProxyProcess::OpenDoor() {
  IfrtFrontDoorOptions door;
  door.space = host_->life().value();
  door.shared_directory = options_.shared_directory;
  door.log_place = LogPlace();
  door.now = [] { return MonotonicClock().Now(); };
  door.run_after = [this](DurationNs delay, std::function<void()> task) { loop_.RunAfter(delay, std::move(task)); };
  door.reply_host_call = [this](Incarnation worker, HostCallReply reply) {
    host_->ReplyHostCall(worker, std::move(reply));
  };
  door_ = std::make_unique<IfrtFrontDoor>(
      std::move(door), &host_->controller(),
      [this](absl::AnyInvocable<void()> task) {
        loop_.Post([shared = std::make_shared<absl::AnyInvocable<void()>>(std::move(task))] { (*shared)(); });
      },
      compiler_.get(), host_->data_plane());
  LB_ASSIGN_OR_RETURN(int port, door_->Start(options_.listen_address));
  client_address_ = JoinHostPort(HostOf(options_.listen_address), port);
  LogInfo("listening for clients on ", client_address_, "; waiting for the resource manager at ",
          options_.resource_manager_address, " to declare its slices");
  return absl::OkStatus();
}

void ProxyProcess::OnDevices(const Fleet& fleet, const std::vector<VirtualDevice>& devices) {
  const int slices = devices.back().slot.slice.value() + 1;
  DeviceCatalog catalog;
  // JAX's own cache in the client keeps apart what has different ones: programs that it got from servers that take other ones,
  // or for other groups of devices.
  catalog.platform_version = absl::StrCat("landbridge ", BuildVersion(), " (programs ", compiler_->seal_name(), " on ",
                                          slices, "x", fleet.workers_per_slice, "x", fleet.devices_per_worker, ")");
  catalog.platform_name = fleet.platform;
  std::vector<MemoryKind> memories = {MemoryKind::kDevice};
  if (fleet.platform == "cpu") {
    memories = {MemoryKind::kDevice, MemoryKind::kPinnedHost, MemoryKind::kUnpinnedHost};
  } else {
    for (const std::string& kind : fleet.memory_kinds) {
      const auto known = ParseMemoryKind(kind);
      if (known.ok() && *known != MemoryKind::kDevice) memories.push_back(*known);
    }
  }
  for (const VirtualDevice& device : devices) {
    CatalogDevice& shown = catalog.devices.emplace_back();
    shown.id = device.id;
    shown.slice_index = device.slot.slice.value();
    shown.worker_index = shown.slice_index * fleet.workers_per_slice + device.slot.index;
    shown.local_ordinal = static_cast<int>(device.local_ordinal);
    if (fleet.platform != "cpu") shown.device_kind = fleet.device_kind;
    shown.memories = memories;
  }
  door_->SetDevices(std::move(catalog));
  LogInfo("IFRT proxy server started with status OK on ", client_address_, ": ", slices, " slice(s) of ",
          fleet.slice_type, ", ", devices.size(), " devices");
  if (options_.port_file.empty()) return;
  if (absl::Status status = WriteFileAtomically(options_.port_file, client_address_ + "\n"); !status.ok()) {
    failure_ = status;
    LogError(status.ToString());
    loop_.Stop();
  }
}

void ProxyProcess::AddAdminAnswers() {
  admin_.Add("status", [this](const json&) -> absl::StatusOr<json> { return Status(); });
  // For who waits until all are there: cheap however many they are.
  admin_.Add("workers", [this](const json&) -> absl::StatusOr<json> { return host_->WorkerCounts(); });
  for (const bool graph : {false, true}) {
    admin_.Add(graph ? "graph" : "explain", AdminTable::Handler([this, graph](const json&, AdminTable::Answer answer) {
                 host_->Explain(graph, std::move(answer));
               }));
  }
}

json ProxyProcess::Status() {
  json out;
  out["address"] = client_address_;
  out["version"] = BuildVersion();
  out["ready"] = host_->has_devices();
  out["log"] = LogPlace();
  if (const std::string reason = host_->waits_for(); !reason.empty()) out["waits_for"] = reason;
  host_->AddStatus(&out);
  out["front_door"] = json::parse(door_->StatusJson(), nullptr, false);
  const CompileServiceStats compile = compiler_->Stats();
  out["compile"] = {{"compiles", compile.compiles},
                    {"cache_hits", compile.cache_hits},
                    {"failures", compile.failures},
                    {"child_deaths", compile.child_deaths},
                    {"queued", compile.queued},
                    {"running", compile.running},
                    {"plugin_sha256", compiler_->plugin_sha256()},
                    {"disk_cache", DiskCacheJson(compile.disk)}};
  return out;
}

}  // namespace landbridge
