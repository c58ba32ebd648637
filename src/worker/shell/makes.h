// Buffers put together from pieces of other buffers, here or on other workers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "worker/shell/box_copy.h"
#include "worker/shell/puller.h"
#include "worker/shell/shell_context.h"

namespace landbridge {

// A whole buffer is copied by the plugin (or re-used, if its owner gives it up). Everything else is put together in
// place in the new buffer's memory where the plugin lets us, else in a host image from which the buffer is made (where no device
// memory can be written in place, such images stand in line for ShellContext::received):
// remote pieces that are one run of the target are pulled straight there, others (and those of sub-byte elements, which
// travel packed) come in chunks. A chunk gets memory
// (of ShellContext::staged) only when the first, small one has shown that the source is there: pieces that wait for
// their producers do not hold up others.
//
// Thread-safety: the loop's thread only.
class Makes {
 public:
  Makes(ShellContext* context, Puller* puller) : context_(context), puller_(puller) {}

  // Answers the core's OnMakeDone, once per Start.
  void Start(std::shared_ptr<const MakeBuffers> make, int index);
  void Cancel(Ticket ticket, int index, const absl::Status& why);
  size_t open() const { return open_.size(); }

 private:
  using Id = std::pair<Ticket, int>;
  struct LocalPiece {
    std::shared_ptr<BufferSlot> source;
    std::vector<int64_t> source_dims;
    IndexBox source_box, target_box;
  };
  // A remote piece that is not one run of the target, as it travels.
  struct Strips {
    RemoteSource source;
    IndexBox box;       // in the target
    int64_t bytes = 0;  // packed
    int64_t asked = 0;  // of them
  };
  struct Open {
    std::shared_ptr<const MakeBuffers> make;
    int index = 0;
    Id id;
    DType dtype = DType::kInvalid;
    std::vector<int64_t> dims;
    int64_t bytes = 0;
    const pjrt::Memory* memory = nullptr;
    std::shared_ptr<BufferSlot> slot;
    std::byte* data = nullptr;         // where the dense image is put together ...
    std::shared_ptr<const void> keep;  // ... and what holds it
    bool in_place = false;             // `data` is the buffer itself
    std::vector<LocalPiece> local;
    absl::flat_hash_set<Puller::Handle> pulls;  // open ones
    int arriving = 0;                           // pulls, and chunks that wait for memory or are copied
    std::function<void()> next;                 // when all that arrives now is there, if not PutTogether
    absl::Status status;                        // first failure
    bool finished = false;

    const MakeBuffer& spec() const { return make->buffers(index); }
  };

  absl::Status Prepare(const std::shared_ptr<Open>& open);
  // Sets *taken if the op is a copy of one whole local buffer, and begins it.
  absl::Status TryWholeCopy(const std::shared_ptr<Open>& open, bool* taken);
  absl::Status StartPieces(const std::shared_ptr<Open>& open);
  // Host memory for the whole, as soon as all sources are there (they are asked for a byte or so): who holds memory never
  // waits for somebody who waits for memory.
  absl::Status TakeImage(const std::shared_ptr<Open>& open);
  void OnRoom(const std::shared_ptr<Open>& open, ImageBudget::Grant grant);
  absl::Status ArrangePieces(const std::shared_ptr<Open>& open);
  // `landed` follows with its outcome, once.
  void StartPull(const std::shared_ptr<Open>& open, const RemoteSource& source, int64_t offset, std::byte* dst,
                 int64_t bytes, std::shared_ptr<const void> keep, std::function<void(absl::Status)> landed);
  void StartStrips(const std::shared_ptr<Open>& open, const std::shared_ptr<Strips>& strips);
  void AskForChunk(const std::shared_ptr<Open>& open, const std::shared_ptr<Strips>& strips);
  absl::Status PullChunk(const std::shared_ptr<Open>& open, const std::shared_ptr<Strips>& strips, int64_t bytes,
                         ImageBudget::Grant grant, std::function<void()> then);
  void Arrived(const std::shared_ptr<Open>& open, const absl::Status& status);
  void PutTogether(const std::shared_ptr<Open>& open);
  void Finish(const std::shared_ptr<Open>& open, const absl::Status& status);
  void PostFinish(const std::shared_ptr<Open>& open, const absl::Status& status);

  ShellContext* const context_;
  Puller* const puller_;
  absl::flat_hash_map<Id, std::shared_ptr<Open>> open_;
};

}  // namespace landbridge
