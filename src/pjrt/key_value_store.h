// Where the clients of several processes, which become one, tell each other what they are. Given to Plugin::CreateClient.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/time.h"

namespace landbridge::pjrt {

// Called by the plugin while the client is made, and later, when collectives of a new set of devices first meet. It must
// outlive the client.
//
// Thread-safety: all members from any thread, also at one time.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  // A key is put once.
  virtual absl::Status Put(absl::string_view key, absl::string_view value) = 0;
  // Waits until somebody has put it. DEADLINE_EXCEEDED after `timeout`; another error at once if it never will be there.
  virtual absl::StatusOr<std::string> Get(absl::string_view key, DurationNs timeout) = 0;
  // NOT_FOUND if it is not there now.
  virtual absl::StatusOr<std::string> TryGet(absl::string_view key) = 0;
};

}  // namespace landbridge::pjrt
