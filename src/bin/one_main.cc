// landbridge-one: resource manager, workers and proxy in one process, each on its own loop thread, joined by the same
// sockets and messages. For measuring what the process boundaries cost, and for debugging under one debugger; a plugin
// that aborts takes everything with it.
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/ffi_libraries.h"
#include "base/log.h"
#include "bin/flags.h"
#include "bin/plugin_flag.h"
#include "env/clock.h"
#include "env/loop.h"
#include "env/process_tuning.h"
#include "pjrt/plugin.h"
#include "proxy/proxy_process.h"
#include "resource_manager/server.h"
#include "worker/shell/worker_process.h"

namespace landbridge {
namespace {

// A loop on a thread of its own, and what lives on it.
template <typename T>
class OnLoop {
 public:
  // `make` runs on the loop's thread.
  absl::Status Start(std::function<absl::StatusOr<std::unique_ptr<T>>(Loop*)> make) {
    absl::Status status;
    absl::Notification done;
    thread_ = std::thread([&, make = std::move(make)] {
      absl::StatusOr<std::unique_ptr<T>> made = make(&loop_);
      if (made.ok()) object_ = std::move(*made);
      status = made.status();
      const bool ok = made.ok();
      done.Notify();
      if (ok) loop_.Run();
    });
    done.WaitForNotification();
    return status;
  }
  void Stop() {
    if (!thread_.joinable()) return;
    loop_.Stop();
    thread_.join();
  }
  T* get() { return object_.get(); }
  void Destroy() { object_.reset(); }
  ~OnLoop() { Stop(); }

 private:
  Loop loop_;
  std::unique_ptr<T> object_;
  std::thread thread_;
};

int Main(int argc, char** argv) {
  InitLog("landbridge-one");
  TuneProcess();
  ProxyOptions proxy;
  ResourceManagerServerOptions manager;
  std::string instance_type = "cpu:4", plugin, ffi_library;
  int64_t slices = 2, server_port = 29000;
  Flags flags("landbridge-one", "Resource manager, workers and proxy in one process, for measurements and debugging.");
  flags.Add("instance_type", &instance_type, "Type of each slice: cpu:4 (one worker of 4 devices), cpu:2x4.");
  flags.Add("instance_count", &slices, "Number of slices.");
  flags.Add("server_port", &server_port, "Port for clients; 0: any free one.");
  flags.Add("port_file", &proxy.port_file, "Write host:port there when clients may come.");
  flags.Add("pjrt_plugin", &plugin, "PJRT plugin. Empty: $LANDBRIDGE_PJRT_PLUGIN, or the CPU plugin of python3.");
  flags.Add("ffi_library", &ffi_library,
            "Libraries with custom-call handlers for jax.ffi: PATH[:TARGET=SYMBOL]...[,PATH...].");
  auto fail = [](absl::string_view text) {
    std::fprintf(stderr, "landbridge-one: %s\n", std::string(text).c_str());
    return 2;
  };
  if (const std::optional<int> code = flags.ParseOrExplain(argc, argv); code.has_value()) return *code;
  absl::StatusOr<std::string> found = FindPlugin(plugin);
  if (!found.ok()) return fail(std::string(found.status().message()));
  plugin = *found;
  absl::StatusOr<InstanceType> type = ParseInstanceType(instance_type);
  if (!type.ok()) return fail(std::string(type.status().message()));
  auto libraries = ParseFfiLibraries(ffi_library);
  if (!libraries.ok()) return fail(std::string(libraries.status().message()));
  manager.type = *type;
  manager.slice_count = static_cast<int>(slices);
  manager.listen_address = "127.0.0.1:0";
  manager.cluster_secret = SystemRandom().NextBytes(16);
  const int workers = static_cast<int>(slices) * type->workers_per_slice;
  pjrt::PreparePluginEnvironment(type->devices_per_worker * workers);

  OnLoop<ResourceManagerServer> rm;
  absl::Status status = rm.Start([&](Loop* loop) { return ResourceManagerServer::Start(loop, manager); });
  if (!status.ok()) return fail(std::string(status.message()));
  std::vector<std::unique_ptr<OnLoop<WorkerProcess>>> all;
  for (int w = 0; w < workers; ++w) {
    all.push_back(std::make_unique<OnLoop<WorkerProcess>>());
    status = all.back()->Start([&](Loop* loop) {
      WorkerOptions options;
      options.resource_manager_address = rm.get()->address();
      options.name = absl::StrCat("worker-", w);
      options.plugin_path = plugin;
      options.custom_calls.libraries = *libraries;
      options.devices = type->devices_per_worker;
      options.cluster_secret = manager.cluster_secret;
      return WorkerProcess::Start(loop, options, [](const absl::Status& why) {
        if (!why.ok()) LogError("a worker gave up: ", why.ToString());
      });
    });
    if (!status.ok()) return fail(std::string(status.message()));
  }
  proxy.resource_manager_address = rm.get()->address();
  proxy.listen_address = absl::StrCat("127.0.0.1:", server_port);
  proxy.compile.plugin_path = plugin;
  proxy.compile.ffi_libraries = ffi_library;
  proxy.cluster_secret = manager.cluster_secret;
  status = ProxyProcess(std::move(proxy)).Run();
  for (auto& worker : all) {
    worker->Stop();
    worker->get()->Shutdown(2 * kSecond);
    worker->Destroy();
  }
  rm.Stop();
  rm.Destroy();
  return status.ok() ? 0 : fail(std::string(status.message()));
}

}  // namespace
}  // namespace landbridge

int main(int argc, char** argv) { return landbridge::Main(argc, argv); }
