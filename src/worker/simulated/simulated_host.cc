#include "worker/simulated/simulated_host.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "env/file.h"
#include "env/process_tuning.h"
#include "nlohmann/json.hpp"
#include "worker/simulated/simulated_limits.h"

namespace landbridge {

using nlohmann::json;

SimulatedHost::SimulatedHost(Loop* loop, SimulatedHostOptions options)
    : loop_(loop),
      options_(std::move(options)),
      board_([loop](std::function<void()> task) { loop->Post(std::move(task)); }) {
  context_.now = [loop] { return loop->Now(); };
  context_.post = [loop](std::function<void()> task) { loop->Post(std::move(task)); };
  context_.run_after = [this](DurationNs delay, std::function<void()> task) {
    timers_->RunAfter(delay, std::move(task));
  };
  context_.board = &board_;
  context_.launch_time = options_.launch_time;
}

SimulatedHost::~SimulatedHost() {
  loop_->Cancel(tick_);
  loop_->Cancel(delay_);
}

absl::StatusOr<std::unique_ptr<SimulatedHost>> SimulatedHost::Start(Loop* loop, SimulatedHostOptions options) {
  auto check = [](absl::string_view what, int64_t value, int64_t max) -> absl::Status {
    if (value >= 1 && value <= max) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(what, " is ", value, ", but must lie between 1 and ", max));
  };
  LB_RETURN_IF_ERROR(check("--workers", options.workers, limits::kSimulatedWorkersMax));
  if (options.first < 0 || options.first > INT32_MAX - options.workers - 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--first_worker is ", options.first, ": not the number of a worker"));
  }
  LB_RETURN_IF_ERROR(check("--devices", options.worker.devices, limits::kSimulatedDevicesPerWorkerMax));
  LB_RETURN_IF_ERROR(
      NeedOpenFiles(options.workers * limits::kSimulatedDescriptorsPerWorker + limits::kSimulatedDescriptorsSpare,
                    absl::StrCat("simulating ", options.workers, " workers")));
  std::unique_ptr<SimulatedHost> host(new SimulatedHost(loop, std::move(options)));
  LB_RETURN_IF_ERROR(host->Init());
  return host;
}

absl::Status SimulatedHost::Init() {
  LB_ASSIGN_OR_RETURN(timers_, FineTimers::Make(loop_));
  const auto count = static_cast<size_t>(options_.workers);
  awake_.assign(count, false);
  workers_.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    workers_.push_back(std::make_unique<SimulatedWorker>(loop_, &options_.worker, &context_,
                                                         options_.first + static_cast<int>(i), [this, i] { Wake(i); }));
    LB_RETURN_IF_ERROR(workers_.back()->Start());
  }
  admin_.Add("status", [this](const json&) -> absl::StatusOr<json> { return Status(); });
  admin_.Add("kill", [this](const json& request) -> absl::StatusOr<json> {
    const auto name = request.find("worker");
    if (name == request.end() || !name->is_string()) return absl::InvalidArgumentError("\"worker\" names none");
    const auto restart = request.find("restart");
    LB_RETURN_IF_ERROR(Kill(name->get<std::string>(), restart != request.end() && *restart == json(true)));
    return json::object();
  });
  LB_ASSIGN_OR_RETURN(admin_server_, AdminServer::Listen(loop_, options_.admin_address, &admin_));
  tick_ = loop_->RunEvery(TickPeriod(options_.worker.times), [this] {
    const TimeNs now = loop_->Now();
    for (const std::unique_ptr<SimulatedWorker>& worker : workers_) worker->OnTick(now);
  });
  LogInfo(options_.workers, " simulated workers of ", options_.worker.devices, " devices; questions at ",
          admin_server_->address());
  if (!options_.port_file.empty()) {
    LB_RETURN_IF_ERROR(WriteFileAtomically(options_.port_file, admin_server_->address() + "\n"));
  }
  return absl::OkStatus();
}

// Each worker sends one frame for all that a turn of the loop brought it.
void SimulatedHost::Wake(size_t worker) {
  if (awake_[worker]) return;
  awake_[worker] = true;
  woken_.push_back(worker);
  if (std::exchange(turn_posted_, true)) return;
  loop_->Post([this, alive = std::weak_ptr<int>(context_.alive)] {
    if (!alive.expired()) EndOfTurn();
  });
}

void SimulatedHost::EndOfTurn() {
  turn_posted_ = false;
  std::vector<size_t> woken;
  woken.swap(woken_);
  for (size_t worker : woken) {
    awake_[worker] = false;
    if (workers_[worker]->OnTurn(/*late=*/false)) put_off_.push_back(worker);
  }
  if (put_off_.empty() || delay_ != 0) return;
  delay_ = loop_->RunAfter(limits::kProgressDelay, [this] { EndOfDelay(); });
}

void SimulatedHost::EndOfDelay() {
  delay_ = 0;
  std::vector<size_t> put_off;
  put_off.swap(put_off_);
  for (size_t worker : put_off) workers_[worker]->OnTurn(/*late=*/true);
}

void SimulatedHost::Leave() {
  for (const std::unique_ptr<SimulatedWorker>& worker : workers_) worker->Leave();
  loop_->RunOnce(0);
}

absl::Status SimulatedHost::Kill(const std::string& name, bool restart) {
  auto it = std::find_if(workers_.begin(), workers_.end(), [&](const auto& worker) { return worker->name() == name; });
  if (it == workers_.end()) return absl::InvalidArgumentError(absl::StrCat("there is no worker named ", name));
  LogWarning(name, " is killed, as asked", restart ? "; a new life follows" : "");
  (*it)->Kill();
  return restart ? (*it)->Start() : absl::OkStatus();
}

json SimulatedHost::Status() const {
  json out = {{"role", "simulated_workers"}, {"workers", options_.workers}, {"devices", options_.worker.devices}};
  json counts = json::object();
  for (const std::unique_ptr<SimulatedWorker>& worker : workers_) worker->AddTo(&counts);
  out["counts"] = std::move(counts);
  out["bytes_kept"] = context_.bytes_kept;
  out["transfers_offered"] = board_.boxes();
  out["transfers_awaited"] = board_.waiting();
  return out;
}

}  // namespace landbridge
