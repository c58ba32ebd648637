// The custom-call handler that programs call for their collectives, and the launches it serves.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "collectives/collective_engine.h"

namespace landbridge::pjrt {
class Client;
}

namespace landbridge {

// Registers the handler with the client's plugin, and proves by a compile that it took; again: no effect. Any thread. Before any program that has
// collectives is compiled or loaded. A process that only compiles needs no launches: calls fail FAILED_PRECONDITION.
absl::Status RegisterCollectives(pjrt::Client& client);

// Makes a launch known to the handler while it lives. `run_id` is the launch id given to the plugin: this process's,
// and of one launch at a time. `device_of_ordinal`: logical devices by the plugin's device id.
//
// Thread-safety: none; calls come from the plugin's threads meanwhile.
class CollectiveRegistration {
 public:
  CollectiveRegistration() = default;
  CollectiveRegistration(int64_t run_id, std::shared_ptr<const CollectiveProgram> program,
                         std::shared_ptr<CollectiveRun> run, absl::flat_hash_map<int32_t, int32_t> device_of_ordinal);
  CollectiveRegistration(CollectiveRegistration&& other) noexcept;
  CollectiveRegistration& operator=(CollectiveRegistration&& other) noexcept;
  ~CollectiveRegistration();

 private:
  int64_t run_id_ = 0;  // 0: none
};

}  // namespace landbridge
