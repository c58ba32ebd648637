// The connection of a worker or proxy to the resource manager: connects, connects again with back-off, and says in
// the log what it waits for.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "env/clock.h"
#include "env/connection.h"
#include "env/loop.h"

namespace landbridge {

// Thread-safety: the loop's thread only.
class RmLink {
 public:
  struct Handlers {
    std::function<void()> on_up;
    std::function<void()> on_down;
    std::function<void(uint32_t type, absl::string_view payload)> on_frame;
  };

  RmLink(Loop* loop, std::string address, Handlers handlers);
  ~RmLink();
  RmLink(const RmLink&) = delete;
  RmLink& operator=(const RmLink&) = delete;

  void Start();
  // False (dropped) when not connected.
  bool Send(uint32_t type, std::string payload);
  // What arrived makes no sense, or nothing has arrived for too long: start over.
  void Reconnect(const std::string& why);
  // Call every TickPeriod: starts over when nothing has arrived for `limit` (a half-open connection). After a pause of
  // this process the time counts anew: what has arrived is not read yet.
  void CheckSilence(DurationNs limit, DurationNs pause);
  // Something that speaks like a resource manager is at the other end.
  bool up() const { return up_ && greeted_; }
  // "the resource manager at HOST:PORT (why)"; empty while it is there.
  std::string waits_for() const;
  const std::string& address() const { return address_; }

 private:
  void Connect();
  void OnClosed(const absl::Status& status);

  Loop* const loop_;
  const std::string address_;
  const Handlers handlers_;
  std::unique_ptr<Connection> connection_;
  bool up_ = false;       // connected
  bool greeted_ = false;  // and a frame has come: not any server that happens to listen there
  std::string trouble_ = "not tried yet";
  DurationNs backoff_;
  Loop::TimerId retry_ = 0;
  TimeNs last_said_ = 0;
  TimeNs down_since_ = 0;
  TimeNs last_heard_ = 0;
  TimeNs last_check_ = 0;
};

}  // namespace landbridge
