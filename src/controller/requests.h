// Questions whose answers come later: waits, reads, explanations. Each is answered exactly once, or dropped with its
// session.
//
// Thread-safety: none; part of the controller's state machine.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "controller/cluster_table.h"
#include "controller/controller.h"

namespace landbridge::ctl {

class Requests {
 public:
  explicit Requests(ControllerSink* sink) : sink_(sink) {}

  // --- Waits. Open with the number of pieces to come; the first error is the answer, after all pieces.
  void OpenWait(RequestId request, SessionId session);
  void AddError(RequestId request, const absl::Status& error);
  // The worker of `life` is asked; the number names the question.
  uint64_t AddWatch(RequestId request, Life* life);
  void AddPiece(RequestId request);
  // All pieces are named; answers if none is open.
  void StartWait(RequestId request);
  void EndPiece(RequestId request, const absl::Status& status);
  // False: no such question to that life.
  bool EndWatch(uint64_t watch, const Life* life, const absl::Status& status);

  // --- Launches that somebody waits for.
  void WaitForLaunch(RequestId request, Ticket ticket) { launches_[ticket].push_back(request); }
  bool HasLaunchWait(Ticket ticket) const { return launches_.contains(ticket); }
  void EndLaunch(Ticket ticket, const absl::Status& status);

  // --- Reads.
  void OpenRead(RequestId request, SessionId session, Life* life, int64_t bytes);
  void AnswerRead(RequestId request, absl::StatusOr<ReadResult> result);  // of one that was never sent
  // From the worker. False: no such read there.
  bool EndRead(RequestId request, const Life* life, const ReadReady& ready, uint64_t space);
  // Figures of a device instead of an array's bytes; answered like a read.
  void OpenMemory(RequestId request, SessionId session, Life* life, uint32_t ordinal);
  // From the worker. False: no such question there.
  bool EndMemory(RequestId request, const Life* life, const MemoryUse& use);
  struct Released {
    Life* life = nullptr;   // null: nothing to do
    bool answered = false;  // else it still waits there
  };
  Released ReleaseRead(RequestId request);

  // --- Explanations.
  // `names`: of the lives' slots, in their order.
  void OpenExplain(RequestId request, std::string controller_json, const std::vector<Life*>& lives,
                   std::vector<std::string> names);
  void EndExplain(RequestId request, const Life* life, std::string json);  // empty: it will not answer
  void GiveUpExplain(RequestId request);                                   // none of those that are left will

  void LoseLife(const Life* life, const absl::Status& why);
  void DropSession(SessionId session);

  // Tells the sink. Called at the end of an event, when all state is in order again, since whoever hears an answer
  // may come back with the next question at once.
  void Deliver();

  bool Taken(RequestId request) const { return waits_.contains(request) || reads_.contains(request); }
  size_t size() const { return waits_.size() + reads_.size() + explains_.size(); }
  size_t of(SessionId session) const;

 private:
  struct Wait {
    SessionId session;
    size_t open = 1;  // pieces, and one until StartWait
    absl::Status error;
  };
  struct Watch {
    RequestId request;
    const Life* life = nullptr;
  };
  struct ReadState {
    SessionId session;
    Life* life = nullptr;
    int64_t bytes = 0;
    bool answered = false;                             // published there until ReleaseRead
    std::optional<uint32_t> memory_of = std::nullopt;  // a question for that device's figures
  };
  struct ExplainState {
    std::string text;  // JSON so far
    std::vector<std::pair<const Life*, std::string>> open;
  };
  struct Answer {
    RequestId request;
    std::variant<absl::Status, absl::StatusOr<ReadResult>, std::string> what;
  };
  void EndExplainIfDone(RequestId request);

  ControllerSink* const sink_;
  uint64_t next_watch_ = 1;
  absl::flat_hash_map<RequestId, Wait> waits_;
  absl::flat_hash_map<uint64_t, Watch> watches_;
  absl::flat_hash_map<Ticket, std::vector<RequestId>> launches_;
  absl::flat_hash_map<RequestId, ReadState> reads_;
  absl::flat_hash_map<RequestId, ExplainState> explains_;
  std::deque<Answer> answers_;
};

}  // namespace landbridge::ctl
