#include "worker/shell/launcher.h"

#include <atomic>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "worker/shell/shell_limits.h"

namespace landbridge {
namespace {

void FailOutputs(const LaunchWork& work, const absl::Status& status) {
  for (const auto& shard : work.outputs) {
    for (const auto& slot : shard) slot->Fail(status);
  }
}

// Counts the devices of one launch.
class Completion {
 public:
  Completion(size_t devices, TimeNs start, Clock& clock, LaunchDone done)
      : left_(devices), start_(start), clock_(clock), done_(std::move(done)) {}

  void OnDevice(const absl::Status& status) {
    if (!status.ok()) {
      absl::MutexLock lock(&mutex_);
      if (status_.ok()) status_ = status;
    }
    if (left_.fetch_sub(1) != 1) return;
    absl::Status status_of_all;
    {
      absl::MutexLock lock(&mutex_);
      status_of_all = std::move(status_);
    }
    done_(std::move(status_of_all), start_, clock_.Now());
  }

 private:
  std::atomic<size_t> left_;
  const TimeNs start_;
  Clock& clock_;
  LaunchDone done_;
  absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// Collects the arguments of one device. An error if one has failed.
absl::Status TakeArguments(const LaunchWork& work, size_t d, std::vector<std::shared_ptr<pjrt::Buffer>>* held,
                           std::vector<pjrt::Buffer*>* arguments) {
  held->reserve(work.arguments[d].size());
  arguments->reserve(work.arguments[d].size());
  for (size_t i = 0; i < work.arguments[d].size(); ++i) {
    std::shared_ptr<pjrt::Buffer> buffer = work.arguments[d][i]->buffer();
    if (buffer == nullptr) {
      const absl::Status status = work.arguments[d][i]->failure();
      return status.ok() ? absl::InternalError(absl::StrCat("argument ", i, " of shard ", d, " has no buffer"))
                         : status;
    }
    arguments->push_back(buffer.get());
    held->push_back(std::move(buffer));
  }
  return absl::OkStatus();
}

// What the devices of a split launch share.
struct Split {
  Split(LaunchWork launch_work, Clock& clock, LaunchDone done)
      : work(std::move(launch_work)),
        completion(work.devices.size(), clock.Now(), clock,
                   [this, done = std::move(done)](absl::Status status, TimeNs start, TimeNs end) {
                     work.registration = CollectiveRegistration();
                     done(std::move(status), start, end);
                   }) {}

  void OnDevice(const absl::Status& status) {
    if (!status.ok()) work.collectives->Abort(status);
    completion.OnDevice(status);
  }

  // What made it fail is better known to the collectives than to the plugin.
  absl::Status Reason(const absl::Status& of_plugin) const {
    const absl::Status known = work.collectives->status();
    return known.ok() ? FromPluginError(of_plugin, absl::StrCat("running ", work.program->info.name())) : known;
  }

  LaunchWork work;
  Completion completion;
};

void IssueOnDevice(pjrt::Client& client, const std::shared_ptr<Split>& split, size_t d) {
  LaunchWork& work = split->work;
  std::vector<std::shared_ptr<pjrt::Buffer>> held;
  std::vector<pjrt::Buffer*> arguments;
  absl::Status status = TakeArguments(work, d, &held, &arguments);
  absl::StatusOr<pjrt::DeviceResult> result = absl::UnknownError("not issued");
  if (status.ok()) {
    pjrt::ExecuteOptions options;
    options.launch_id = work.launch_id;
    options.non_donatable_inputs = work.kept;
    result = work.program->executable->ExecuteOnDevice(client.devices()[static_cast<size_t>(work.devices[d])].handle,
                                                       arguments, options);
    if (!result.ok()) status = split->Reason(result.status());  // a small program has run, and failed, in the call
    for (uint32_t parameter : work.donated) work.arguments[d][parameter]->Take();
  }
  if (!status.ok()) {
    for (const auto& slot : work.outputs[d]) slot->Fail(status);
    return split->OnDevice(status);
  }
  for (size_t i = 0; i < work.outputs[d].size(); ++i) work.outputs[d][i]->Fill(std::move(result->outputs[i]));
  result->done.OnReady([split](absl::Status device_status) {
    split->OnDevice(device_status.ok() ? device_status : split->Reason(device_status));
  });
}

}  // namespace

bool IssuesAtOnce(const ExecutableInfo& info, const pjrt::Traits& traits) {
  if (!traits.runs_in_caller || info.num_devices() != 1 || info.parameters_size() > limits::kIssueInPlaceArgumentsMax)
    return false;
  if (info.flops_at_least() >= limits::kCpuPluginThreadsFlops) return true;
  if (info.has_loops() || info.custom_call_targets_size() > 0) return false;
  int64_t bytes = info.temp_bytes_per_device();
  for (const auto* tensors : {&info.parameters(), &info.outputs()}) {
    for (const TensorInfo& tensor : *tensors) {
      if (tensor.device_bytes() > limits::kRunInPlaceBytesMax) return false;  // and no sum overflows
      bytes += tensor.device_bytes();
    }
  }
  return bytes <= limits::kRunInPlaceBytesMax;
}

std::vector<absl::AnyInvocable<void()>> SplitLaunch(pjrt::Client& client, LaunchWork work, Clock& clock,
                                                    LaunchDone done) {
  const size_t devices = work.devices.size();
  auto split = std::make_shared<Split>(std::move(work), clock, std::move(done));
  std::vector<absl::AnyInvocable<void()>> pieces;
  for (size_t d = 0; d < devices; ++d) pieces.push_back([&client, split, d] { IssueOnDevice(client, split, d); });
  return pieces;
}

void IssueLaunch(pjrt::Client& client, LaunchWork work, Clock& clock, LaunchDone done) {
  const TimeNs start = clock.Now();
  const size_t shards = work.devices.size();
  std::vector<std::vector<std::shared_ptr<pjrt::Buffer>>> held(shards);
  std::vector<std::vector<pjrt::Buffer*>> arguments(shards);
  absl::Status status;
  for (size_t d = 0; d < shards && status.ok(); ++d) status = TakeArguments(work, d, &held[d], &arguments[d]);
  if (!status.ok()) {
    FailOutputs(work, status);
    done(std::move(status), start, clock.Now());
    return;
  }

  pjrt::ExecuteOptions options;
  options.launch_id = work.launch_id;
  options.non_donatable_inputs = work.kept;
  pjrt::LoadedExecutable& executable = *work.program->executable;
  std::vector<pjrt::DeviceResult> results;
  if (shards == 1 && !work.native) {
    auto result = executable.ExecuteOnDevice(client.devices()[static_cast<size_t>(work.devices[0])].handle,
                                             arguments[0], options);
    if (result.ok()) {
      results.push_back(*std::move(result));
    } else {
      status = result.status();
    }
  } else {
    std::vector<absl::Span<pjrt::Buffer* const>> lists(arguments.begin(), arguments.end());
    auto all = executable.ExecuteAll(lists, options);
    if (all.ok()) {
      results = *std::move(all);
    } else {
      status = all.status();
    }
  }
  // Donated buffers are dead now (or lost, if the call failed); their objects must go.
  for (auto& shard : work.arguments) {
    for (uint32_t parameter : work.donated) shard[parameter]->Take();
  }
  if (!status.ok()) {
    status = FromPluginError(status, absl::StrCat("running ", work.program->info.name()));
    FailOutputs(work, status);
    done(std::move(status), start, clock.Now());
    return;
  }
  for (size_t d = 0; d < shards; ++d) {
    for (size_t i = 0; i < work.outputs[d].size(); ++i) work.outputs[d][i]->Fill(std::move(results[d].outputs[i]));
  }
  auto completion = std::make_shared<Completion>(shards, start, clock, std::move(done));
  const std::string context = absl::StrCat("running ", work.program->info.name());
  for (size_t d = 0; d < shards; ++d) {
    results[d].done.OnReady([completion, context](absl::Status device_status) {
      completion->OnDevice(device_status.ok() ? device_status : FromPluginError(device_status, context));
    });
  }
}

}  // namespace landbridge
