// The resource manager's process: ResourceManagerCore behind one port for workers, proxies and questions.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "env/loop.h"
#include "resource_manager/resource_manager_core.h"

namespace landbridge {

struct ResourceManagerServerOptions {
  std::string listen_address = "localhost:29001";
  InstanceType type;
  int slice_count = 1;
  LeaseTimes times;
  // The same in every life of this cluster's RM, unknown to others. Empty: stamps and grants are not protected
  // against forgery by somebody who can reach the port (a notice says so).
  std::string cluster_secret;
};

// Thread-safety: the loop's thread only.
class ResourceManagerServer {
 public:
  static absl::StatusOr<std::unique_ptr<ResourceManagerServer>> Start(Loop* loop, ResourceManagerServerOptions options);
  ~ResourceManagerServer();
  ResourceManagerServer(const ResourceManagerServer&) = delete;
  ResourceManagerServer& operator=(const ResourceManagerServer&) = delete;

  int port() const;
  std::string address() const;
  const ResourceManagerCore& core() const;

 private:
  class Impl;
  explicit ResourceManagerServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Runs until SIGTERM or SIGINT. `on_ready` (may be null) gets the port once it is open. Returns the process's exit code;
// errors are logged.
int RunResourceManager(const ResourceManagerServerOptions& options, const std::function<void(int port)>& on_ready);

}  // namespace landbridge
