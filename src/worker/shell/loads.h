// Programs: fetched, checked, given the handlers of their custom calls, loaded, on pool threads.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/ids.h"
#include "compiler/load.h"
#include "worker/shell/puller.h"
#include "worker/shell/shell_context.h"

namespace landbridge {

// Thread-safety: the loop's thread only.
class Loads {
 public:
  struct Loaded {
    std::shared_ptr<LoadedProgram> program;
    bool issues_at_once = false;  // launcher.h
  };

  Loads(ShellContext* context, Puller* puller) : context_(context), puller_(puller) {}

  // Answers the core's OnLoadDone.
  void Start(const LoadExecutable& load);
  void Unload(ExecutableId executable);               // also in the middle of a load
  const Loaded* Find(ExecutableId executable) const;  // null if it is not loaded; valid until the next change
  size_t loaded() const { return loaded_.size(); }
  void Clear();

 private:
  // One load on its way through the pools. Its members run there, one after the other.
  struct Job : std::enable_shared_from_this<Job> {
    void SupplyHandlers();
    void Load();
    void End(absl::StatusOr<std::shared_ptr<LoadedProgram>> result);

    std::shared_ptr<ShellContext> context;
    std::vector<int> devices, numbers_in_group;
    ExecutableBody body;
    std::function<void(absl::StatusOr<std::shared_ptr<LoadedProgram>>)> done;  // on the loop
  };

  void LoadBytes(ExecutableId executable, std::shared_ptr<Job> job, absl::string_view bytes,
                 std::shared_ptr<const void> owner, std::string sha256);
  void Finish(ExecutableId executable, absl::StatusOr<std::shared_ptr<LoadedProgram>> loaded);
  // Freeing a program takes milliseconds: not on the loop.
  void Destroy(std::shared_ptr<LoadedProgram> program);

  ShellContext* const context_;
  Puller* const puller_;
  absl::flat_hash_map<ExecutableId, Loaded> loaded_;
  absl::flat_hash_map<ExecutableId, bool> loading_;  // false: unloaded meanwhile
};

}  // namespace landbridge
