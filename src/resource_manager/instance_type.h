// --instance_type: what one slice of the cluster is made of.
//
//   cpu:4      one worker with 4 devices
//   cpu:2x4    two workers with 4 devices each (also cuda:WxD, gpu:WxD)
//   tpuv6e:4x4 a TPU slice by its topology: 16 chips on 4 hosts
//
// Thread-safety: plain values and pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace landbridge {

struct InstanceType {
  std::string text;  // as given; the name of the slice type
  std::string platform;
  int workers_per_slice = 0;
  int devices_per_worker = 0;

  int devices() const { return workers_per_slice * devices_per_worker; }
  std::string ToString() const;  // "cpu:2x4 (2 workers of 4 devices)"
};

// INVALID_ARGUMENT names the text and the accepted forms.
absl::StatusOr<InstanceType> ParseInstanceType(absl::string_view text);

}  // namespace landbridge
