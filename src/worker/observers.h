// Those who only look: reads of a buffer's bytes for the client, and watches for "it is there".
//
// Pure. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "nlohmann/json_fwd.hpp"
#include "worker/core_context.h"

namespace landbridge {

class Observers {
 public:
  explicit Observers(CoreContext* context) : context_(context) {}

  void OnRead(Read op, TimeNs now);
  void OnReleaseRead(uint64_t read);
  void OnReadDone(uint64_t read, const absl::Status& status, std::string inline_data, bool published);
  void OnReadQuiet(uint64_t read);
  void OnWatch(const Watch& op, TimeNs now);

  void OnWake(const BufferTable::Wake& wake);
  void CancelSession(SessionId session, const PoisonPtr& why);
  void Fence();

  size_t reads() const { return reads_.size(); }
  size_t watches() const { return watches_.size(); }
  size_t running() const { return running_; }
  void Explain(TimeNs now, nlohmann::json* out) const;

 private:
  struct ReadNode {
    SlabHandle self;
    Read op;
    Buffer* buffer = nullptr;  // pinned until the shell needs it no more
    bool started = false;
    bool done = false;      // OnReadDone came
    bool stopping = false;  // StopRead was sent
    TimeNs arrived = 0;
  };
  struct WatchNode {
    SlabHandle self;
    uint64_t id = 0;
    size_t missing = 0;
    PoisonPtr poison;  // the first one seen
    TimeNs arrived = 0;
  };

  void Start(ReadNode& node);
  void LetGo(ReadNode& node);
  void Stop(ReadNode& node);  // nobody wants it any more; may erase
  void Erase(ReadNode& node);
  void Answer(uint64_t read, const StatusProto& status, std::string data, bool published);
  void AnswerWatch(uint64_t watch, const Poison* poison);

  CoreContext* const context_;
  Slab<ReadNode> reads_;
  absl::flat_hash_map<uint64_t, SlabHandle> read_by_id_;
  Slab<WatchNode> watches_;
  size_t running_ = 0;
};

}  // namespace landbridge
