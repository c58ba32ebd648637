// Buffers filled from bytes of the client.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "worker/shell/puller.h"
#include "worker/shell/shell_context.h"

namespace landbridge {

// Dense images of whole bytes per element are pulled straight into the first target's memory (where the plugin lets
// us) and copied from there to the other targets; strided and sub-byte ones are pulled into a host image first.
//
// Thread-safety: the loop's thread only.
class Uploads {
 public:
  Uploads(ShellContext* context, Puller* puller) : context_(context), puller_(puller) {}

  // Answers the core's OnUploadDone, once per Start.
  void Start(std::shared_ptr<const Upload> upload);
  void Bytes(uint64_t key, std::string data);
  void Cancel(uint64_t key, const absl::Status& why);
  size_t open() const { return open_.size(); }

 private:
  struct Open {
    std::shared_ptr<const Upload> upload;
    DType dtype = DType::kInvalid;
    int64_t dense_bytes = 0;
    std::vector<int64_t> dims;
    std::vector<int64_t> strides;                    // empty: dense
    std::vector<const pjrt::Memory*> memories;       // per target
    std::vector<std::shared_ptr<BufferSlot>> slots;  // per target
    Puller::Handle pull = 0;
    bool waits_for_bytes = false;
    bool waits_for_memory = false;  // in line for a host image
    bool finished = false;
  };

  absl::Status Prepare(Open& open);
  absl::Status PullInPlace(const std::shared_ptr<Open>& open);
  void PullImage(const std::shared_ptr<Open>& open);
  absl::Status PullIntoImage(const std::shared_ptr<Open>& open, ImageBudget::Grant grant);
  void MakeFromImage(const std::shared_ptr<Open>& open, std::shared_ptr<const void> keep, const std::byte* data,
                     int64_t bytes);
  void Replicate(const std::shared_ptr<Open>& open);  // target 0 is there
  void Finish(const std::shared_ptr<Open>& open, const absl::Status& status);
  void PostFinish(const std::shared_ptr<Open>& open, const absl::Status& status);

  ShellContext* const context_;
  Puller* const puller_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Open>> open_;
};

}  // namespace landbridge
