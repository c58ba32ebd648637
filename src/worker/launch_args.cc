#include "worker/launch_args.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"

namespace landbridge {
namespace {

absl::Status ExpandOutputs(Launch* launch) {
  const uint32_t count = launch->outputs_count();
  if (count == 0) return absl::OkStatus();
  if (count > limits::kLaunchOutputsRangeMax || launch->outputs_size() > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a launch with a range of ", count, " outputs and ", launch->outputs_size(), " more"));
  }
  launch->mutable_outputs()->Reserve(static_cast<int>(count));
  for (uint32_t i = 0; i < count; ++i) launch->add_outputs(launch->outputs_first() + i);
  launch->clear_outputs_first();
  launch->clear_outputs_count();
  return absl::OkStatus();
}

// The arguments that the runs stand for. Never more than `last` has.
absl::Status DecodeArgs(const Launch& launch, const std::vector<LaunchArg>& last, std::vector<LaunchArg>* args) {
  int next_full = 0, next_delta = 0;
  args->reserve(last.size());
  for (uint32_t run : launch.arg_runs()) {
    const uint32_t count = run / 2;
    if (count > last.size() - args->size()) return absl::InvalidArgumentError("more arguments than the launch before");
    if (run % 2 == 1) {
      if (count > static_cast<uint32_t>(launch.args_size() - next_full)) {
        return absl::InvalidArgumentError("fewer arguments in full than announced");
      }
      for (uint32_t i = 0; i < count; ++i) args->push_back(launch.args(next_full++));
      continue;
    }
    if (next_delta >= launch.arg_deltas_size()) return absl::InvalidArgumentError("a run without its difference");
    const auto delta = static_cast<uint64_t>(launch.arg_deltas(next_delta++));
    for (uint32_t i = 0; i < count; ++i) {
      LaunchArg arg = last[args->size()];
      if (delta != 0) arg.set_array(arg.array() + delta);
      args->push_back(std::move(arg));
    }
  }
  if (args->size() != last.size() || next_full != launch.args_size() || next_delta != launch.arg_deltas_size()) {
    return absl::InvalidArgumentError(absl::StrCat(args->size(), " arguments after a launch with ", last.size()));
  }
  return absl::OkStatus();
}

absl::Status Expand(LaunchBase* base, Launch* launch) {
  if (absl::Status status = ExpandOutputs(launch); !status.ok()) return status;
  if (launch->arg_runs_size() > 0) {
    std::vector<LaunchArg> args;
    if (absl::Status status = DecodeArgs(*launch, base->args, &args); !status.ok()) return status;
    launch->clear_arg_runs();
    launch->clear_arg_deltas();
    launch->clear_args();
    launch->mutable_args()->Reserve(static_cast<int>(args.size()));
    for (const LaunchArg& arg : args) *launch->add_args() = arg;
    base->args = std::move(args);
  } else if (launch->args_size() >= limits::kLaunchDifferenceArgsMin) {
    base->args.assign(launch->args().begin(), launch->args().end());
  } else {
    return absl::OkStatus();
  }
  if (launch->donated_as_before()) {
    if (launch->donated_size() > 0) return absl::InvalidArgumentError("donates as before, and more");
    launch->mutable_donated()->Add(base->donated.begin(), base->donated.end());
    launch->clear_donated_as_before();
  } else {
    base->donated.assign(launch->donated().begin(), launch->donated().end());
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ExpandLaunch(LaunchBase* base, Launch* launch) {
  absl::Status status = Expand(base, launch);
  if (!status.ok()) {
    launch->clear_args();
    launch->clear_donated();
    *base = LaunchBase();
  }
  return status;
}

}  // namespace landbridge
