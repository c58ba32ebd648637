// Bytes of clients on their way to workers.
//
// Thread-safety: none; part of the controller's state machine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "controller/cluster_table.h"
#include "controller/controller.h"
#include "controller/dispatcher.h"

namespace landbridge::ctl {

// Every key that comes in leaves by exactly one DropHostBuffer.
class HostUploads {
 public:
  explicit HostUploads(ControllerSink* sink) : sink_(sink) {}

  // False if the key is in use. `pulled`: workers fetch it from the front door; else its bytes go along the stream.
  bool Add(uint64_t key, SessionId session, bool pulled, std::shared_ptr<const std::string> bytes);
  // Before the Upload is sent.
  void AddTarget(uint64_t key, Life* life, ArrayId array);
  // All targets are known: ask for the bytes, if they are to go along and are not here.
  void Start(uint64_t key);
  void BeforeUploadSent(Life* life, uint64_t key);
  void AfterUploadSent(Life* life, uint64_t key, Dispatcher* dispatcher);
  // Returns the lives that have not been told and never will: mark their shards failed (on error).
  struct Failed {
    Life* life;
    ArrayId array;
  };
  std::vector<Failed> OnBytes(uint64_t key, absl::StatusOr<std::string> bytes, Dispatcher* dispatcher);
  void OnUploadDone(Life* life, uint64_t key);
  void LoseLife(Life* life);
  void DropSession(SessionId session);

  bool Contains(uint64_t key) const { return buffers_.contains(key); }
  size_t size() const { return buffers_.size(); }

 private:
  struct Destination {
    Life* life = nullptr;
    ArrayId array;
    bool sent = false;
  };
  struct Buffer {
    SessionId session;
    bool pulled = false;
    bool known = false;  // bytes or error are here
    std::shared_ptr<const std::string> bytes;
    absl::Status error;
    std::vector<Destination> targets;  // that have not got it
  };
  WorkerOp DataOp(uint64_t key, const Buffer& buffer) const;
  void DropIfDone(uint64_t key);

  ControllerSink* const sink_;
  absl::flat_hash_map<uint64_t, Buffer> buffers_;
};

}  // namespace landbridge::ctl
