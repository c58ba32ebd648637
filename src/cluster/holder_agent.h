// The shell around HolderLease: keeps a proxy in touch with the RM, and a control connection with handshake,
// heartbeats and reconnection to each member. See README.md for the sequence.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cluster/holder_lease.h"
#include "cluster/rm_link.h"
#include "env/loop.h"

namespace landbridge {

// Thread-safety: the loop's thread only. Callbacks run on the loop, after the event that caused them, never from
// inside a call into the agent.
class HolderAgent {
 public:
  struct Callbacks {
    std::function<void(const Fleet&)> on_fleet;
    std::function<void(VirtualSlice, const Grant&, int workers)> on_slice_bound;         // optional
    std::function<void(VirtualSlice, const Grant&, const absl::Status&)> on_slice_lost;  // optional
    std::function<void(const MemberRef&, const WorkerInfo&)> on_member_up;
    std::function<void(const MemberRef&, const absl::Status& why)> on_member_lost;        // drop the stream
    std::function<void(const MemberRef&, const std::string& reason)> on_member_draining;  // optional

    // --- The control stream of a member; the agent does the handshake and reconnects.
    // For the next ControlHello: number up to which reports of this member's stream were applied (0: new stream).
    std::function<uint64_t(const MemberRef&)> applied_reports;
    // The stream may flow (again) on a new connection; the worker has applied ops up to `received`. Before the
    // first one of a member comes on_member_up.
    std::function<void(const MemberRef&, uint64_t received)> on_stream_resumed;
    std::function<void(const MemberRef&)> on_stream_broken;
    // A kFrameControl payload. Return an error to have the connection closed and resumed (gap, malformed).
    // Heartbeats inside it go to HolderAgent::OnHeartbeat.
    std::function<absl::Status(const MemberRef&, absl::string_view payload)> on_control;
    // Send this heartbeat on the stream (SendControl with a frame that carries it).
    std::function<void(const MemberRef&, uint64_t number, int64_t sent_ns, int64_t echo_ns)> send_heartbeat;
  };
  struct Options {
    std::string rm_address;
    ProxyLife life;
    std::string client_address;
    std::string data_address;  // of the proxy's data plane: ControlHello.data_address
    LeaseTimes times;
  };

  HolderAgent(Loop* loop, Options options, Callbacks callbacks);
  ~HolderAgent();
  HolderAgent(const HolderAgent&) = delete;
  HolderAgent& operator=(const HolderAgent&) = delete;

  void Start();
  uint64_t Request(std::vector<std::string> types);  // see HolderLease
  void Release(VirtualSlice slice);
  void Leave();  // gives everything back; give the loop one turn to send it

  // Writes a kFrameControl frame to the member; false when its stream is broken (it will be resumed).
  bool SendControl(const MemberRef& member, std::string payload);
  void OnHeartbeat(const MemberRef& member, int64_t sent_ns);

  const HolderLease& lease() const;
  bool rm_up() const;
  // What keeps this proxy from having a fleet, for people; empty when nothing does.
  std::string waits_for() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace landbridge
