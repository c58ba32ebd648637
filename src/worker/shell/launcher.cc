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

}  // namespace

bool IssuesAtOnce(const ExecutableInfo& info, absl::string_view platform) {
  if (platform != "cpu" || info.num_devices() != 1 || info.parameters_size() > limits::kIssueInPlaceArgumentsMax) return false;
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

void IssueLaunch(pjrt::Client& client, LaunchWork work, Clock& clock, LaunchDone done) {
  const TimeNs start = clock.Now();
  const size_t shards = work.devices.size();
  std::vector<std::vector<std::shared_ptr<pjrt::Buffer>>> held(shards);
  std::vector<std::vector<pjrt::Buffer*>> arguments(shards);
  absl::Status status;
  for (size_t d = 0; d < shards && status.ok(); ++d) {
    held[d].reserve(work.arguments[d].size());
    arguments[d].reserve(work.arguments[d].size());
    for (size_t i = 0; i < work.arguments[d].size(); ++i) {
      std::shared_ptr<pjrt::Buffer> buffer = work.arguments[d][i]->buffer();
      if (buffer == nullptr) {
        status = work.arguments[d][i]->failure();
        if (status.ok()) {
          status = absl::InternalError(absl::StrCat("argument ", i, " of shard ", d, " has no buffer"));
        }
        break;
      }
      arguments[d].push_back(buffer.get());
      held[d].push_back(std::move(buffer));
    }
  }
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
  if (shards == 1) {
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
