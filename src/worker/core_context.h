// What the parts of the core share.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/ascending_map.h"
#include "base/ids.h"
#include "base/time.h"
#include "worker/buffer_table.h"
#include "worker/memory_admission.h"
#include "worker/poison.h"
#include "worker/worker_core.h"

namespace landbridge {

// Reports; those that can wait are collected until Flush.
class Reporter {
 public:
  explicit Reporter(WorkerSink* sink) : sink_(sink) {}

  void Now(WorkerReport report) {
    if (!muted_) sink_->Report(std::move(report));
  }
  // `node`: which failed. Of what it makes, perhaps nothing is known any more; somebody may wait for its end all the same.
  void Failed(const std::vector<BufferRef>& refs, const Poison& poison, Ticket node);
  void NodeEnded(Ticket ticket) { tickets_.push_back(ticket); }
  void Hurry() { hurried_ = true; }  // somebody waits for one of the ended nodes
  void UploadDone(uint64_t key) { keys_.push_back(key); }
  // Failures are reported now.
  void TransferDone(TransferId transfer, const Poison* poison);
  // `all`: the progress too, even if nobody is in a hurry for it and there is little.
  void Flush(bool all, uint64_t epoch, uint64_t done_through);
  bool HoldsProgress() const { return !muted_ && !tickets_.empty(); }
  void Mute() { muted_ = true; }  // fenced: nothing is said any more

 private:
  WorkerSink* const sink_;
  bool muted_ = false;
  bool hurried_ = false;
  std::vector<Ticket> tickets_;
  std::vector<uint64_t> keys_;
  std::vector<TransferId> transfers_;
};

struct CoreContext {
  CoreContext(Incarnation self_incarnation, const WorkerLimits& limits, WorkerSink* worker_sink)
      : self(self_incarnation),
        sink(worker_sink),
        memory(limits.device_bytes, limits.host_bytes),
        buffers(worker_sink, &memory),
        report(worker_sink) {}

  void NodeEnded(Ticket ticket) {
    unfinished.Erase(ticket);
    report.NodeEnded(ticket);
    memory_may_be_stuck = true;
  }
  // Makes what a node that went wrong before it began would have made, as errors, and reports them (unless the
  // controller knows). Names of buffers that exist are left alone.
  void CreatePoisoned(const std::vector<BufferRef>& refs, Ticket ticket, SessionId session, const PoisonPtr& poison,
                      bool reported);

  const Incarnation self;
  WorkerSink* const sink;
  MemoryAdmission memory;
  BufferTable buffers;
  Reporter report;
  AscendingMap<Ticket, std::monostate> unfinished;  // launches, uploads and makes
  uint64_t anomalies = 0;
  bool memory_may_be_stuck = false;  // something changed since the last look at requests that may never fit
  bool fenced = false;
};

// What a node asks of the pools: one request per pool, by pool. Launches name their devices in ascending order mostly.
class MemoryNeeds {
 public:
  struct Need {
    PoolId pool;
    int64_t bytes = 0;
    bool waits = false;
  };

  void Reserve(size_t pools) { needs_.reserve(pools); }
  void Add(PoolId pool, int64_t bytes);
  // Asks for all; `waiting` says how many have to wait. RESOURCE_EXHAUSTED if one can never fit: then nothing is kept.
  absl::Status Ask(MemoryAdmission& memory, MemoryAdmission::Key key, Waiter who);
  void Granted(PoolId pool);
  // Gives everything back, reserved or still waiting.
  void Drop(MemoryAdmission& memory, MemoryAdmission::Key key);
  int waiting() const { return waiting_; }
  int64_t BytesOf(PoolId pool) const;
  const absl::InlinedVector<Need, 2>& all() const { return needs_; }

 private:
  static bool Before(const Need& need, PoolId pool) { return need.pool < pool; }

  absl::InlinedVector<Need, 2> needs_;
  int waiting_ = 0;
};

inline BufferRef RefFromProto(const BufferRefProto& proto) { return BufferRef{ArrayId(proto.array()), proto.shard()}; }
inline void RefToProto(BufferRef ref, BufferRefProto* proto) {
  proto->set_array(ref.array.value());
  proto->set_shard(ref.shard);
}

// Dense device bytes of one shard; errors for types, ranks and sizes that cannot be.
absl::StatusOr<int64_t> DeviceBytes(int32_t dtype, absl::Span<const int64_t> dims);

}  // namespace landbridge
