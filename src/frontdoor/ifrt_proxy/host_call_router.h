// Calls of clients' functions by running programs: from the workers to the client that a launch belongs to, and back.
//
//     worker --HostCall--> [large operands pulled] --> the session's HostCallPipe --> client
//     worker <--HostCallReply, [large results served]-- HostCallPipe <--------------- client
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/ids.h"
#include "dataplane/data_plane.h"
#include "frontdoor/ifrt_proxy/host_call_pipe.h"
#include "proto/landbridge/control.pb.h"

namespace landbridge {

// Operands of one session that are being fetched, or wait to be written to the client; one call more at least.
constexpr size_t kHostCallSessionBytesMax = size_t{512} << 20;
constexpr size_t kHostCallErrorBytesMax = 16 << 10;  // longer texts are cut

// A number of a function means something to the client of its session only, so a call goes to the client whose launch it
// is, whoever compiled the program. Every call is answered: by the client, or by us when it is not there (any more).
//
// Thread-safety: none (loop thread). The data plane outlives it; `this` must outlive what `post` still runs, which the owner
// sees to.
class HostCallRouter {
 public:
  struct Options {
    uint64_t space = 0;  // of data-plane keys
    std::function<void(Incarnation, HostCallReply)> reply;
    // From any thread; the closure runs later on the loop, unless the router is gone.
    std::function<void(std::function<void(HostCallRouter&)>)> post;
  };
  HostCallRouter(Options options, dataplane::DataPlane* data_plane)
      : options_(std::move(options)), data_plane_(data_plane) {}

  // --- Workers.
  void OnCall(Incarnation worker, HostCall call);
  void OnTaken(Incarnation worker, uint64_t call);
  void OnWorkerLost(Incarnation worker);

  // --- Clients. A new pipe takes the place of the old one, whose calls fail.
  void Attach(std::shared_ptr<HostCallPipe> pipe);
  void OnFrame(const std::shared_ptr<HostCallPipe>& pipe, HostCallPipe::Frame frame);
  void OnWritten(SessionId session, size_t bytes);
  void Detach(const std::shared_ptr<HostCallPipe>& pipe);
  void CloseSession(SessionId session);

  size_t open() const { return calls_.size(); }
  uint64_t total() const { return last_; }

 private:
  struct Call {
    SessionId session;
    Incarnation worker;
    HostCall call;  // without operands
    dataplane::PullId pull;
  };
  struct Client {
    std::shared_ptr<HostCallPipe> pipe;
    size_t bytes = 0;              // fetched or being fetched, and not written
    std::deque<uint64_t> waiting;  // for room
  };

  void Fetch(uint64_t id, Client& client);
  void OnFetched(uint64_t id, std::shared_ptr<const std::string> operands, const absl::Status& status);
  void FetchMore(Client& client);
  void Fail(uint64_t id, const absl::Status& why);
  void FailAll(SessionId session, const absl::Status& why);
  void Unpublish(uint64_t key);

  const Options options_;
  dataplane::DataPlane* const data_plane_;
  absl::flat_hash_map<SessionId, Client> clients_;
  absl::flat_hash_map<uint64_t, Call> calls_;                               // no answer yet
  absl::flat_hash_map<std::pair<Incarnation, uint64_t>, uint64_t> served_;  // (worker, its call) -> our key of results
  uint64_t last_ = 0;
};

}  // namespace landbridge
