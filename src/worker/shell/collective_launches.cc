#include "worker/shell/collective_launches.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "worker/shell/shell_limits.h"

namespace landbridge {

CollectiveLaunches::~CollectiveLaunches() {
  // Nothing is open any more when the grant's shell goes.
  if (pool_ != nullptr) pool_->Shutdown();
}

absl::Status CollectiveLaunches::Open(const Launch& launch, LaunchWork* work) {
  Forget();
  const LaunchSpan& span = launch.span();
  const CollectiveProgram& program = *work->program->collectives;
  if (span.worker_of_device_size() != program.num_devices()) {
    return absl::InternalError(absl::StrCat("launch t", launch.ticket(), " spans ", span.worker_of_device_size(),
                                            " devices with a program for ", program.num_devices()));
  }
  if (pool_ == nullptr) {
    pool_ = std::make_shared<TaskPool>(context_->io->device_count() + limits::kCollectiveThreadsMore, "collectives");
  }
  CollectiveLaunch collective;
  collective.program = work->program->collectives;
  collective.space = span.space();
  for (uint32_t w : span.worker_of_device()) {
    const SpanWorker& worker = span.workers(static_cast<int>(w));
    collective.worker_of_device.push_back(Incarnation(worker.incarnation()));
    collective.slice_of_device.push_back(worker.slice());
  }
  absl::flat_hash_map<int32_t, int32_t> device_of_ordinal;
  for (size_t d = 0; d < work->devices.size(); ++d) {
    const pjrt::Device& device = context_->io->client().devices()[static_cast<size_t>(work->devices[d])];
    device_of_ordinal[device.id] = static_cast<int32_t>(span.shards(static_cast<int>(d)));
  }
  Run run;
  run.peers = collective.worker_of_device;
  CollectiveEngineOptions options;
  options.plane = context_->data_plane;
  options.executor = [pool = pool_](absl::AnyInvocable<void()> task) { pool->Run(std::move(task)); };
  options.on_broken = [this, context = context_->shared_from_this(),
                       ticket = Ticket(launch.ticket())](absl::Status why) {
    context->Post([this, context, ticket, why] {
      // The loss of a worker has a name of its own; only a connection that broke between two that live is told as it is.
      context->loop->RunAfter(limits::kCollectiveBrokenGrace,
                              context->Guarded([this, ticket, why] { Abort(ticket, why); }));
    });
  };
  LB_ASSIGN_OR_RETURN(run.run, StartCollectives(options, std::move(collective)));
  work->collectives = run.run;
  work->registration =
      CollectiveRegistration(work->launch_id, work->program->collectives, run.run, std::move(device_of_ordinal));
  runs_.emplace(Ticket(launch.ticket()), std::move(run));
  return absl::OkStatus();
}

void CollectiveLaunches::Close(Ticket ticket) {
  if (auto it = runs_.find(ticket); it != runs_.end()) {
    it->second.closed = true;
    it->second.run->Close();
  }
  Forget();
}

void CollectiveLaunches::Abort(Ticket ticket, const absl::Status& why) {
  if (auto it = runs_.find(ticket); it != runs_.end()) it->second.run->Abort(why);
}

void CollectiveLaunches::PeerLost(Incarnation peer, const absl::Status& why) {
  for (auto& [ticket, run] : runs_) {
    if (std::find(run.peers.begin(), run.peers.end(), peer) != run.peers.end()) run.run->Abort(why);
  }
}

void CollectiveLaunches::AbortAll(const absl::Status& why) {
  for (auto& [ticket, run] : runs_) run.run->Abort(why);
}

void CollectiveLaunches::Forget() {
  for (auto it = runs_.begin(); it != runs_.end();) {
    if (it->second.closed && it->second.run->pending() == 0) {
      runs_.erase(it++);
    } else {
      ++it;
    }
  }
}

}  // namespace landbridge
