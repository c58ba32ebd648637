#include "controller/launch_args.h"

#include <cstdint>
#include <utility>

#include "base/limits.h"

namespace landbridge::ctl {
namespace {

bool SameShards(const LaunchArg& a, const LaunchArg& b) {
  if (a.shards_size() != b.shards_size()) return false;
  for (int i = 0; i < a.shards_size(); ++i) {
    if (a.shards(i).array() != b.shards(i).array() || a.shards(i).shard() != b.shards(i).shard()) return false;
  }
  return true;
}

// False: `now` is `before` with `delta` added to its array.
bool MustBeFull(const LaunchArg& before, const LaunchArg& now, int64_t* delta) {
  *delta = static_cast<int64_t>(now.array() - before.array());
  if (before.shards_size() == 0 && now.shards_size() == 0) return false;
  return !SameShards(before, now) || *delta != 0;
}

void EncodeOutputs(Launch* launch) {
  const int count = launch->outputs_size();
  if (count < limits::kLaunchDifferenceArgsMin || count > limits::kLaunchOutputsRangeMax) return;
  for (int i = 1; i < count; ++i) {
    if (launch->outputs(i) != launch->outputs(0) + static_cast<uint64_t>(i)) return;
  }
  launch->set_outputs_first(launch->outputs(0));
  launch->set_outputs_count(static_cast<uint32_t>(count));
  launch->clear_outputs();
}

}  // namespace

void LaunchDifferences::Encode(Launch* launch) {
  EncodeOutputs(launch);
  if (launch->args_size() < limits::kLaunchDifferenceArgsMin) return;
  Last& last = last_[ExecutableId(launch->executable())];
  const bool first = last.args.empty();
  EncodeArgs(&last.args, launch);
  const std::vector<uint32_t> donated(launch->donated().begin(), launch->donated().end());
  if (!first && !donated.empty() && donated == last.donated) {
    launch->clear_donated();
    launch->set_donated_as_before(true);
  }
  last.donated = donated;
}

void LaunchDifferences::EncodeArgs(std::vector<LaunchArg>* last_args, Launch* launch) {
  std::vector<LaunchArg>& last = *last_args;
  std::vector<LaunchArg> now(std::make_move_iterator(launch->mutable_args()->begin()),
                             std::make_move_iterator(launch->mutable_args()->end()));
  launch->clear_args();
  if (last.size() != now.size()) {  // the first one
    for (const LaunchArg& arg : now) *launch->add_args() = arg;
    last = std::move(now);
    return;
  }
  constexpr uint32_t kInFull = 1;
  uint32_t count = 0, kind = 0;
  int64_t run_delta = 0;
  auto end_run = [&] {
    if (count == 0) return;
    launch->add_arg_runs(count * 2 + kind);
    if (kind != kInFull) launch->add_arg_deltas(run_delta);
  };
  for (size_t i = 0; i < now.size(); ++i) {
    int64_t delta = 0;
    const uint32_t wanted = MustBeFull(last[i], now[i], &delta) ? kInFull : 0;
    if (count == 0 || wanted != kind || (wanted == 0 && delta != run_delta)) {
      end_run();
      count = 0;
      kind = wanted;
      run_delta = delta;
    }
    ++count;
    if (wanted == kInFull) *launch->add_args() = now[i];
  }
  end_run();
  last = std::move(now);
}

}  // namespace landbridge::ctl
