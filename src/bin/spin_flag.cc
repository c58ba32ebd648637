#include "bin/spin_flag.h"

#include "absl/strings/str_cat.h"

namespace landbridge {
namespace {

constexpr int64_t kSpinUsMax = 1'000'000;

}  // namespace

void AddSpinFlag(Flags* flags, int64_t* spin_us) {
  flags->Add("spin_us", spin_us,
             "After each event, poll for so many microseconds before sleeping: spares the next event the time of a "
             "wake-up (some 25 us), and keeps a core busy. 0: sleep at once.");
}

absl::StatusOr<DurationNs> SpinOf(int64_t spin_us) {
  if (spin_us < 0 || spin_us > kSpinUsMax) {
    return absl::InvalidArgumentError(absl::StrCat("--spin_us=", spin_us, ": between 0 and ", kSpinUsMax));
  }
  return spin_us * kMicrosecond;
}

}  // namespace landbridge
