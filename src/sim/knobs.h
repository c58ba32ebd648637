// What one simulation is made of: sizes, times, rates of faults, and faults at given moments.
#pragma once

#include <string>
#include <vector>

#include "base/time.h"
#include "proto/landbridge/control.pb.h"

namespace landbridge::sim {

// A fault that is not left to chance, for scenarios.
struct Fault {
  enum class Kind { kKill, kPause, kBreakStream, kRestartRm, kCutMail };
  Kind kind = Kind::kKill;
  DurationNs at = 0;  // after every worker is up for the first time
  int slice = 0;
  DurationNs lasts = 0;  // kPause: until SIGCONT; kRestartRm: until the next life; kCutMail: until mail passes again
  int other = 0;         // kCutMail: the slice that `slice` and its worker cannot reach, nor it them
};

struct Knobs {
  int slices = 2;
  int devices = 4;  // of a worker
  int sessions = 2;
  int steps = 60;  // of each session
  // Chances at every look (some 7 looks a second) or, for the last two, of every launch and load.
  double kill = 0, pause = 0, break_stream = 0, fail_launch = 0, fail_load = 0;
  double spans = 0;        // chance that a program's devices lie on two slices
  double repeat_mail = 0;  // chance that what one worker says to another comes twice
  double cut_mail =
      0;  // chance, at every look, that two workers do not hear each other for a while, or for the rest of the run
  DurationNs mail_broken_after = 2 * kSecond;  // then a reader's core is told
  // The control experiment: workers but the spanner's start launches that span them as soon as their own part is ready.
  bool unordered = false;
  bool tight_memory = false;
  bool restart_rm = false;
  SchedulingPolicyProto policy = POLICY_CLIENT_ORDER;
  uint32_t activation_budget = 0;
  bool sequential_dispatch = false;
  DurationNs message_min = 20 * kMicrosecond, message_max = 400 * kMicrosecond;
  DurationNs launch_min = 10 * kMicrosecond, launch_max = 3 * kMillisecond;
  DurationNs idle_max = 0;  // a client pauses now and then, up to so long: gives faults time
  std::vector<Fault> faults;
  bool only_reshards = false;  // no programs: clients move arrays all the time
  // The source, or the target, of the so-maniest transfer is killed while the bytes travel. 0: none.
  int kill_source_of_pull = 0, kill_target_of_pull = 0;

  bool any_faults() const {
    return kill > 0 || pause > 0 || break_stream > 0 || restart_rm || cut_mail > 0 || !faults.empty() ||
           kill_source_of_pull > 0 || kill_target_of_pull > 0;
  }
  std::string ToString() const;
};

}  // namespace landbridge::sim
