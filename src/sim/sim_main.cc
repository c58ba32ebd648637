// landbridge-sim: runs seeds of the simulation; a failing one is repeated with --first=SEED --count=1.
#include <cstdio>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "bin/flags.h"
#include "env/clock.h"
#include "sim/simulation.h"

int main(int argc, char** argv) {
  using namespace landbridge;
  int64_t first = 1, count = 1000, failures = 10;
  bool trace = false;
  Flags flags("landbridge-sim",
              "Runs the control plane (controller, leases, resource manager, workers) in virtual time under random\n"
              "faults, one run a seed, and checks its rules. Exit code 1 and the command to repeat it if one breaks.");
  flags.Add("first", &first, "First seed.");
  flags.Add("count", &count, "How many seeds.");
  flags.Add("failures", &failures, "Stop after so many seeds that fail.");
  flags.Add("trace", &trace, "Print every message and fault.");
  if (absl::Status status = flags.Parse(argc, argv); !status.ok()) {
    std::fprintf(stderr, "landbridge-sim: %s\n", std::string(status.message()).c_str());
    return 2;
  }
  if (flags.help()) {
    std::fputs(flags.Help().c_str(), stdout);
    return 0;
  }
  const TimeNs start = MonotonicClock().Now();
  sim::Outcome total;
  int64_t ran = 0, failed = 0;
  for (int64_t seed = first; seed < first + count; ++seed) {
    std::function<void(const std::string&)> print;
    if (trace) print = [](const std::string& line) { std::printf("%s\n", line.c_str()); };
    const sim::Knobs knobs = sim::KnobsOfSeed(static_cast<uint64_t>(seed));
    sim::Outcome outcome = sim::RunSeed(static_cast<uint64_t>(seed), knobs, print);
    ++ran;
    total.events += outcome.events;
    total.reads_ok += outcome.reads_ok;
    total.reads_failed += outcome.reads_failed;
    total.launches += outcome.launches;
    total.copies += outcome.copies;
    total.losses += outcome.losses;
    total.spans += outcome.spans;
    total.virtual_time += outcome.virtual_time;
    if (outcome.violations.empty()) continue;
    ++failed;
    std::printf("seed %lld (%s) broke a rule:\n", static_cast<long long>(seed), knobs.ToString().c_str());
    for (const std::string& text : outcome.violations) std::printf("  %s\n", text.c_str());
    std::printf("  repeat: landbridge-sim --first=%lld --count=1\n", static_cast<long long>(seed));
    if (failed >= failures) break;
  }
  const double seconds = static_cast<double>(MonotonicClock().Now() - start) / 1e9;
  std::printf(
      "%lld seeds, %lld failed, %.1f s (%.0f x real time): %llu events, %llu launches, %llu copies, %llu "
      "values right, %llu errors explained, %llu losses, %llu collectives over workers\n",
      static_cast<long long>(ran), static_cast<long long>(failed), seconds,
      static_cast<double>(total.virtual_time) / 1e9 / seconds, static_cast<unsigned long long>(total.events),
      static_cast<unsigned long long>(total.launches), static_cast<unsigned long long>(total.copies),
      static_cast<unsigned long long>(total.reads_ok), static_cast<unsigned long long>(total.reads_failed),
      static_cast<unsigned long long>(total.losses), static_cast<unsigned long long>(total.spans));
  return failed == 0 ? 0 : 1;
}
