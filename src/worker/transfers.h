// Bytes that come and go: uploads from the client, buffers made from pieces here and elsewhere, and what is offered to
// other workers. A reshard's two ops become such makes and publications: the worker's own part of the plan.
//
// Pure. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "nlohmann/json_fwd.hpp"
#include "sharding/reshard_plans.h"
#include "worker/core_context.h"

namespace landbridge {

class Transfers {
 public:
  explicit Transfers(CoreContext* context) : context_(context) {}

  void OnUpload(Upload op, TimeNs now);
  void OnUploadData(UploadData op);
  void OnUploadDone(uint64_t key, const absl::Status& status);

  void OnReshardReceive(ReshardReceive op, TimeNs now);
  void OnReshardSend(ReshardSend op, TimeNs now);

  void OnMake(MakeBuffers op, TimeNs now);
  void OnMakeDone(Ticket ticket, int index, const absl::Status& status);

  void OnPublish(Publish op, TimeNs now);
  void OnUnpublish(TransferId transfer, const absl::Status& why);
  void OnPublishQuiet(TransferId transfer);

  void OnWake(const BufferTable::Wake& wake);
  void OnMemoryGranted(Waiter who, PoolId pool);
  void OnMemoryNeverFits(const MemoryAdmission::Blocked& blocked);

  void OnPeerLost(Incarnation peer, const absl::Status& why);
  void CancelSession(SessionId session, const PoisonPtr& why);
  void Fence(const PoisonPtr& why);

  // A publish older than `ticket` keeps memory of the pool that is to be freed after it.
  bool OlderPublishWillFree(PoolId pool, Ticket ticket) const;

  size_t uploads() const { return uploads_.size(); }
  size_t make_parts() const { return parts_.size(); }
  size_t publishes() const { return publishes_.size(); }
  uint64_t send_snapshots() const { return send_snapshots_; }
  // Things in the shell.
  size_t running() const { return running_; }

  void Explain(TimeNs now, nlohmann::json* out) const;
  void Graph(nlohmann::json* out) const;  // graph_json.cc

 private:
  struct UploadNode {
    SlabHandle self;
    std::shared_ptr<const Upload> op;
    Ticket ticket;
    std::vector<Buffer*> targets;
    MemoryNeeds memory;
    bool started = false, data_came = false;
    std::string data;     // came before the memory did
    PoisonPtr cancelled;  // started, and given up since
    TimeNs arrived = 0;
  };
  struct MakeOp {  // shared by its parts
    std::shared_ptr<const MakeBuffers> op;
    std::vector<SlabHandle> parts;             // by index
    absl::flat_hash_map<uint64_t, int> edges;  // first transfer of each -> pieces that are not over
    int unfinished = 0;
    TimeNs arrived = 0;
  };
  struct MakePart {
    SlabHandle self;
    Ticket ticket;
    int index = 0;
    MakeOp* make = nullptr;
    Buffer* target = nullptr;
    absl::InlinedVector<Buffer*, 2> sources;
    absl::InlinedVector<Buffer*, 1> donated;  // of the sources
    int inputs_missing = 0, donations_missing = 0;
    MemoryNeeds memory;
    bool started = false;
    PoisonPtr cancelled;
    const MakeBuffer& spec() const { return make->op->buffers(index); }
  };
  enum class PublishStage : uint8_t { kWaiting, kOffered, kFailed, kStopping };
  struct PublishNode {
    SlabHandle self;
    TransferId transfer;
    Ticket ticket;
    Incarnation peer;
    Publish op;
    Buffer* buffer = nullptr;  // null: failed, or offered from a copy since a donor took it
    PublishStage stage = PublishStage::kWaiting;
    TimeNs arrived = 0;
  };

  void StartUploadIfReady(UploadNode& node);
  void GiveUpUpload(UploadNode& node, const PoisonPtr& why);
  void EndUpload(UploadNode& node, const PoisonPtr& poison);
  absl::Status CheckPart(const MakeBuffer& spec) const;
  PoisonPtr TakePart(MakePart& part);
  void StartPartIfReady(MakePart& part);
  void GiveUpPart(MakePart& part, const PoisonPtr& why);
  void EndPart(MakePart& part, const PoisonPtr& poison);
  void PieceOver(MakeOp& make, const RemoteSource& piece, const Poison* poison);
  void EndMakeIfDone(Ticket ticket);
  void Offer(PublishNode& node);
  void FailPublish(PublishNode& node, const absl::Status& why);
  void StopPublish(PublishNode& node, const absl::Status& why);
  void ErasePublish(PublishNode& node);
  void LetGo(PublishNode& node);

  CoreContext* const context_;
  Slab<UploadNode> uploads_;
  absl::flat_hash_map<uint64_t, SlabHandle> upload_by_key_;
  absl::flat_hash_map<Ticket, std::unique_ptr<MakeOp>> makes_;
  Slab<MakePart> parts_;
  Slab<PublishNode> publishes_;
  absl::flat_hash_map<TransferId, SlabHandle> publish_by_id_;
  size_t running_ = 0;
  uint64_t send_snapshots_ = 0;
  ReshardPlans plans_;
};

}  // namespace landbridge
