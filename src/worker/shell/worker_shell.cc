#include "worker/shell/worker_shell.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "worker/launch_args.h"
#include "worker/shell/shell_limits.h"

namespace landbridge {
namespace {

constexpr uint32_t kNativeLaunchBit = 1u << 30;

// The plugin's number of a launch: unique in the process among launches that are not done, never 0. All grants of the
// process share it.
int32_t NextLaunchId() {
  static std::atomic<uint32_t> last{0};
  while (true) {
    const uint32_t id = (last.fetch_add(1) + 1) & (kNativeLaunchBit - 1);
    if (id != 0) return static_cast<int32_t>(id);
  }
}

// The same on all workers of a launch that their plugins run together.
int32_t NativeLaunchId(const LaunchSpan& span) {
  return static_cast<int32_t>(kNativeLaunchBit | (span.number() & (kNativeLaunchBit - 1)));
}

}  // namespace

WorkerShell::WorkerShell(std::shared_ptr<ShellContext> context, dataplane::DataPlane* data_plane, Options options)
    : context_(std::move(context)),
      report_(std::move(options.report)),
      core_(options.self, options.limits, this),
      puller_(context_.get()),
      loads_(context_.get(), &puller_),
      uploads_(context_.get(), &puller_),
      makes_(context_.get(), &puller_),
      publishes_(context_.get()),
      reads_(context_.get()),
      collectives_(context_.get()),
      host_calls_(context_.get(), &puller_, report_),
      mails_(
          context_.get(),
          [this](Incarnation from, absl::string_view mail) { core_.OnMail(from, mail, context_->Now()); },
          [this](Incarnation peer, const absl::Status& why) { core_.OnMailBroken(peer, why, context_->Now()); }),
      device_busy_until_(static_cast<size_t>(context_->io->device_count()), 0) {
  context_->core = &core_;
  context_->data_plane = data_plane;
  context_->space = options.space;
  context_->proxy = options.proxy;
}

WorkerShell::~WorkerShell() {
  loads_.Clear();
  context_->store.Clear();
  context_->closed = true;
  context_->core = nullptr;
}

void WorkerShell::Fence(const absl::Status& why) {
  core_.Fence(why, context_->Now());
  puller_.CancelAll(why);
  publishes_.StopAll(why);
  reads_.StopAll();
  collectives_.AbortAll(why);
  host_calls_.AbortAll(why);
  mails_.Stop();
}

bool WorkerShell::Idle() const { return launches_open_ == 0 && context_->open == 0; }

void WorkerShell::Report(WorkerReport report) { report_(std::move(report)); }
void WorkerShell::Load(const LoadExecutable& load) { loads_.Start(load); }
void WorkerShell::Unload(ExecutableId executable) { loads_.Unload(executable); }
void WorkerShell::StartUpload(std::shared_ptr<const Upload> upload) { uploads_.Start(std::move(upload)); }
void WorkerShell::UploadBytes(uint64_t key, std::string data) { uploads_.Bytes(key, std::move(data)); }
void WorkerShell::CancelUpload(uint64_t key, const absl::Status& why) { uploads_.Cancel(key, why); }
void WorkerShell::StartMake(std::shared_ptr<const MakeBuffers> make, int index) {
  makes_.Start(std::move(make), index);
}
void WorkerShell::CancelMake(Ticket ticket, int index, const absl::Status& why) { makes_.Cancel(ticket, index, why); }
void WorkerShell::StartPublish(const Publish& publish) { publishes_.Start(publish); }
void WorkerShell::FailPublish(TransferId transfer, const absl::Status& why) { publishes_.Fail(transfer, why); }
void WorkerShell::StopPublish(TransferId transfer, const absl::Status& why) { publishes_.Stop(transfer, why); }
void WorkerShell::StartRead(const Read& read, bool snapshot) { reads_.Start(read, snapshot); }
void WorkerShell::SnapshotPublish(TransferId transfer) { publishes_.Snapshot(transfer); }
void WorkerShell::SnapshotRead(uint64_t read) { reads_.Snapshot(read); }
void WorkerShell::StopRead(uint64_t read) { reads_.Stop(read); }
void WorkerShell::Free(BufferRef ref) { context_->store.Erase(ref); }
void WorkerShell::PeerLost(Incarnation peer, const absl::Status& why) {
  context_->data_plane->ClosePeer(peer, why);
  collectives_.PeerLost(peer, why);
  mails_.PeerLost(peer);
}
void WorkerShell::SendMail(Incarnation peer, std::string mail) { mails_.Send(peer, mail); }
void WorkerShell::ListenTo(Incarnation peer) { mails_.ListenTo(peer); }
void WorkerShell::MeetPeer(Incarnation peer, const std::string& address) {
  // A peer that cannot be met is found out by the first who wants something of it.
  if (absl::Status met = context_->MeetPeer(peer, address); !met.ok()) {
    LogWarning("the data plane of peer ", peer.ToString(), " cannot be used: ", met.message());
  }
}
void WorkerShell::AbortLaunch(Ticket ticket, const absl::Status& why) {
  collectives_.Abort(ticket, why);
  host_calls_.Abort(ticket, why);
  if (natives_.contains(ticket)) EndNative(ticket, why);
}

// Nothing can end it, and its peers may never come: then only a new life of this process helps.
void WorkerShell::EndNative(Ticket ticket, const absl::Status& why) {
  context_->loop->RunAfter(limits::kNativeAbortGrace, context_->Guarded([this, ticket, why] {
    if (!natives_.contains(ticket)) return;
    context_->must_restart(absl::StrCat("a launch over several workers does not end: ", why.message()));
  }));
}
void WorkerShell::HostCallReplied(HostCallReply reply) { host_calls_.OnReply(std::move(reply)); }

void WorkerShell::HandOver(std::shared_ptr<const Launch> launch, uint64_t /*place*/) {
  ++launches_open_;
  absl::StatusOr<LaunchWork> work = Resolve(*launch);
  if (work.ok() && launch->has_span() && !work->native) {
    if (absl::Status opened = collectives_.Open(*launch, &*work); !opened.ok()) work = opened;
  }
  if (!work.ok()) {
    context_->Post([this, ticket = Ticket(launch->ticket()), status = work.status()] {
      --launches_open_;
      core_.OnLaunchDone(ticket, status, 0, context_->Now());
    });
    return;
  }
  if (work->program->info.calls_host()) host_calls_.Open(*launch, *work);
  const bool at_once = work->issues_at_once;
  std::vector<int> devices = work->devices;
  if (work->native) natives_.insert(Ticket(launch->ticket()));
  if (launch->has_span() && !work->native) {
    auto pieces = SplitLaunch(context_->io->client(), *std::move(work), *context_->loop,
                              [this, context = context_, launch](absl::Status status, TimeNs start, TimeNs end) {
                                context->PostLate([this, launch, status = std::move(status), start, end] {
                                  collectives_.Close(Ticket(launch->ticket()));
                                  OnLaunchDone(*launch, status, start, end);
                                });
                              });
    for (size_t d = 0; d < pieces.size(); ++d) context_->dispatcher->Enqueue({devices[d]}, std::move(pieces[d]));
    return;
  }
  auto issue = [this, context = context_, launch = std::move(launch), work = *std::move(work)]() mutable {
    IssueLaunch(context->io->client(), std::move(work), *context->loop,
                [this, context, launch = std::move(launch)](absl::Status status, TimeNs start, TimeNs end) {
                  context->PostLate([this, launch, status = std::move(status), start, end] {
                    OnLaunchDone(*launch, status, start, end);
                  });
                });
  };
  if (at_once) {
    context_->dispatcher->RunOrEnqueue(devices[0], std::move(issue));  // waking the device's thread would take longer
  } else {
    context_->dispatcher->Enqueue(std::move(devices), std::move(issue));
  }
}

absl::StatusOr<LaunchWork> WorkerShell::Resolve(const Launch& launch) {
  LaunchWork work;
  const Loads::Loaded* program = loads_.Find(ExecutableId(launch.executable()));
  if (program == nullptr) return absl::InternalError(absl::StrCat("program x", launch.executable(), " is not loaded"));
  work.program = program->program;
  work.issues_at_once = program->issues_at_once;
  const ExecutableInfo& info = work.program->info;
  const std::string name = absl::StrCat("launch of ", info.name());
  if (launch.has_span() != info.split() || launch.span().shards_size() != (info.split() ? launch.devices_size() : 0)) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": it is not of the kind that its program was compiled for"));
  }
  if (!info.split() && launch.devices_size() != std::max(info.num_devices(), 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", launch.devices_size(), " devices for a program of ", info.num_devices()));
  }
  if (launch.args_size() != info.parameters_size() || launch.outputs_size() != info.outputs_size()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", launch.args_size(), " arguments and ",
                                                   launch.outputs_size(), " outputs for a program with ",
                                                   info.parameters_size(), " and ", info.outputs_size()));
  }
  work.devices.assign(launch.devices().begin(), launch.devices().end());
  for (int device : work.devices) {
    if (device < 0 || device >= context_->io->device_count()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": there is no local device ", device));
    }
  }
  work.native = info.native();
  if (!info.portable() && (work.native || (!info.split() && work.devices.size() > 1))) {
    // The arguments go in the order of the assignment that the program was loaded with.
    const std::vector<int>& loaded = work.program->executable->device_ids();
    if (work.native && loaded.size() != work.devices.size()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": this worker's part of it is of ", work.devices.size(),
                                                     " devices, but it was loaded on ", loaded.size()));
    }
    for (size_t d = 0; d < work.devices.size(); ++d) {
      if (d >= loaded.size() ||
          context_->io->client().devices()[static_cast<size_t>(work.devices[d])].id != loaded[d]) {
        return absl::InvalidArgumentError(absl::StrCat(name, ": its devices are not those it was loaded for"));
      }
    }
  }
  work.donated.assign(launch.donated().begin(), launch.donated().end());
  std::vector<bool> given_up(static_cast<size_t>(launch.args_size()), false);
  for (uint32_t parameter : work.donated) {
    if (parameter >= given_up.size()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": there is no parameter ", parameter, " to donate"));
    }
    given_up[parameter] = true;
  }
  for (int32_t parameter : info.donated_parameters()) {
    const auto index = static_cast<size_t>(parameter);
    if (index < given_up.size() && !given_up[index]) work.kept.push_back(parameter);
  }
  const size_t shards = work.devices.size();
  work.arguments.resize(shards);
  work.outputs.resize(shards);
  for (size_t d = 0; d < shards; ++d) {
    work.arguments[d].reserve(static_cast<size_t>(launch.args_size()));
    for (const LaunchArg& arg : launch.args()) {
      if (arg.shards_size() != 0 && static_cast<size_t>(arg.shards_size()) != shards) {
        return absl::InvalidArgumentError(
            absl::StrCat(name, ": an argument of ", arg.shards_size(), " shards on ", shards, " devices"));
      }
      const BufferRef ref = arg.shards_size() != 0
                                ? RefOf(arg.shards(static_cast<int>(d)))
                                : BufferRef{ArrayId(arg.array()), ShardOf(launch, static_cast<int>(d))};
      const DeviceStore::Entry* entry = context_->store.Find(ref);
      if (entry == nullptr) return absl::InternalError(absl::StrCat(name, ": ", ref.ToString(), " is not here"));
      work.arguments[d].push_back(entry->slot);
    }
  }
  for (size_t d = 0; d < shards; ++d) {
    work.outputs[d].reserve(static_cast<size_t>(launch.outputs_size()));
    for (uint64_t array : launch.outputs()) {
      work.outputs[d].push_back(
          context_->store.Create(BufferRef{ArrayId(array), ShardOf(launch, static_cast<int>(d))}, work.devices[d]));
    }
  }
  work.launch_id = work.native ? NativeLaunchId(launch.span()) : NextLaunchId();
  return work;
}

void WorkerShell::OnLaunchDone(const Launch& launch, absl::Status status, TimeNs start, TimeNs end) {
  --launches_open_;
  natives_.erase(Ticket(launch.ticket()));
  // What the client said is the reason; the plugin only knows that a custom call failed.
  if (absl::Status of_call = host_calls_.Close(Ticket(launch.ticket())); !status.ok() && !of_call.ok())
    status = of_call;
  DurationNs run = 0;
  for (uint32_t device : launch.devices()) {
    TimeNs& busy_until = device_busy_until_[device];
    run = std::max(run, end - std::max(start, busy_until));
    busy_until = std::max(busy_until, end);
  }
  core_.OnLaunchDone(Ticket(launch.ticket()), status, std::max<DurationNs>(run, 0), context_->Now());
}

}  // namespace landbridge
