// The data plane's state machines against a peer that says anything: no byte lands outside a pull's memory or after its
// end, every pull, every quiescence and every push ends once, nobody hears of a space that is not listened for, and what a
// peer holds open is bounded.
#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "base/log.h"
#include "base/limits.h"
#include "dataplane/pull_core.h"
#include "dataplane/push_core.h"
#include "dataplane/serve_core.h"
#include "testing/fuzz.h"

namespace landbridge::fuzz {
namespace {

using namespace landbridge::dataplane;  // NOLINT

class FixedSource final : public Source {
 public:
  FixedSource(uint64_t size, bool copies) : size_(size), copies_(copies) {}
  uint64_t size() const override { return size_; }
  void Read(uint64_t, uint64_t, ReadDone) override { LB_CHECK(false); }  // the core only records
  bool copies() const override { return copies_; }

 private:
  const uint64_t size_;
  const bool copies_;
};

class Run {
 public:
  Run() : pulls(PeerId(1)), serves(PeerId(1)), pushes(PeerId(1)) {}

  void Drain() {
    while (pulls.HasActions() || serves.HasActions() || pushes.HasActions()) {
      Actions actions = pulls.TakeActions();
      for (Actions more : {serves.TakeActions(), pushes.TakeActions()}) {
        std::move(more.begin(), more.end(), std::back_inserter(actions));
      }
      for (Action& action : actions) Do(action);
    }
  }
  void Do(Action& action) {
    if (auto* message = std::get_if<SendMessage>(&action)) {
      LB_CHECK(message->message.type == MessageType::kRequest || message->message.type == MessageType::kRefuse ||
               message->message.type == MessageType::kForget || message->message.type == MessageType::kListen ||
               message->message.type == MessageType::kUnlisten || message->message.type == MessageType::kPush);
      LB_CHECK(message->message.type != MessageType::kPush || message->text.size() == message->message.size);
      if (message->message.type == MessageType::kRequest) asked.push_back(message->message);
    }
    if (auto* send = std::get_if<SendChunk>(&action)) sends.push_back(send->serve);
    if (auto* receive = std::get_if<StartReceive>(&action)) {
      LB_CHECK(Inside(receive->dst, receive->size));
      receives.push_back(receive->receive);
    }
    if (auto* read = std::get_if<StartRead>(&action)) {
      LB_CHECK(read->offset + read->size <= read->source->size());
      reads.emplace_back(read->serve, read->size);
    }
    if (auto* finish = std::get_if<FinishPull>(&action)) finish->done(finish->status);
    if (auto* quiescent = std::get_if<RunQuiescent>(&action)) quiescent->quiescent();
    if (auto* tell = std::get_if<TellListener>(&action)) tell->listener->ended(tell->peer, tell->why);
  }
  // Within the memory of a pull whose end has not been told.
  bool Inside(const void* at, uint64_t size) const {
    const char* begin = static_cast<const char*>(at);
    for (const auto& [id, memory] : open) {
      if (begin >= memory->data() && begin + size <= memory->data() + memory->size()) return true;
    }
    return false;
  }
  void Pull(uint64_t id, PeerId peer, uint64_t offset, uint64_t size) {
    if (!used.insert(id).second) return;  // ids are never re-used
    auto memory = std::make_shared<std::string>(size, '\0');
    open[id] = memory;
    pulls.Start(PullId(id), peer, Key{5, id % 7}, offset, memory->data(), size,
                [this, id](const absl::Status&) { LB_CHECK(open.erase(id) == 1); });
  }

  PullCore pulls;
  ServeCore serves;
  PushCore pushes;
  std::set<uint64_t> listened, listening;            // spaces
  std::set<std::pair<uint64_t, uint64_t>> told_end;  // by space and peer
  int64_t pushes_due = 0;
  // One of the commands and messages of pushes, over four spaces.
  void AnyPush(Choices& choices, PeerId peer) {
    const uint64_t space = 20 + choices.Below(4);
    Message message;
    message.from = peer;
    message.key = {space, choices.Id()};
    message.size = choices.Below(16);
    switch (choices.Below(9)) {
      case 0: {
        if (!listened.insert(space).second) break;  // once per space
        listening.insert(space);
        const std::vector<PeerId> peers = {PeerId(2), choices.Flag() ? PeerId(3) : PeerId(2)};
        pushes.Listen(space, peers, {.value = {}, .ended = [this, space](PeerId from, const absl::Status& why) {
                                       LB_CHECK(!why.ok() && told_end.insert({space, from.value()}).second);
                                     }});
        break;
      }
      case 1:
        pushes.Unlisten(space);
        listening.erase(space);
        break;
      case 2: {
        ++pushes_due;
        Message sent;
        const Chunk value{this, message.size, nullptr};
        if (pushes.Push(
                peer, message.key, value, [this] { LB_CHECK(pushes_due-- > 0); }, &sent))
          --pushes_due;
        break;
      }
      case 3:
        pushes.CloseSpace(space, absl::AbortedError("closed"));
        listening.erase(space);
        break;
      case 4:
        pushes.OnListen(peer, message, choices.Below(8) == 0 ? absl::PermissionDeniedError("no") : absl::OkStatus());
        break;
      case 5: pushes.OnUnlisten(peer, message); break;
      case 6: {
        const auto listener = pushes.OnPush(peer, message, choices.Flag() ? message.size : choices.U64());
        LB_CHECK(listener == nullptr || listening.contains(space));
        break;
      }
      case 7: pushes.OnRefuse(peer, message, absl::DataLossError("lost")); break;
      default: pushes.OnPeerDown(peer, absl::UnavailableError("down")); break;
    }
  }
  std::map<uint64_t, std::shared_ptr<std::string>> open;
  std::set<uint64_t> used;
  std::vector<Message> asked;
  std::vector<ServeId> sends;
  std::vector<ReceiveId> receives;
  std::vector<std::pair<ServeId, uint64_t>> reads;
  uint64_t next_offer = 1;
  int quiescent_due = 0;
};

// What the transport delivers: `length` bytes beside the message.
Message AnyMessage(Choices& choices) {
  Message message;
  message.from = PeerId(2 + choices.Below(2));
  message.to = PeerId(1);
  message.key = {5, choices.Id()};
  message.pull = PullId(choices.Id());
  message.offset = choices.U64() % (limits::kTransferBytesMax + 1);
  message.size = choices.U64() % (limits::kTransferChunkBytes + 1);
  message.end =
      std::min<uint64_t>(message.offset + message.size + choices.Byte(), limits::kTransferBytesMax + message.size);
  return message;
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  std::string orderly, random, sensible;
  for (int i = 0; i < 60; ++i) orderly += {static_cast<char>(i % 10), static_cast<char>(i % 4), '\x03', '\x40', '\x01'};
  for (int i = 0; i < 600; ++i) random.push_back(static_cast<char>(i * 7919 >> 3));
  for (int i = 0; i < 40; ++i)
    sensible += {'\0', static_cast<char>(i), '\x02', '\x7f', '\x02', static_cast<char>(i), '\x03', '\0'};
  return {orderly, random, sensible};
}

void FuzzOne(absl::string_view input) {
  Choices choices(input);
  Run run;
  int quiescent_due = 0;
  while (!choices.empty()) {
    const PeerId peer(2 + choices.Below(2));
    switch (choices.Below(16)) {
      case 0:
        run.Pull(choices.Id(), peer, choices.Below(16), choices.Flag() ? choices.Below(256) : choices.Below(8) << 18);
        break;
      case 1: run.pulls.Cancel(PullId(choices.Id()), absl::CancelledError("not any more")); break;
      case 2: {  // the answer to something that was asked for, or nearly
        if (run.asked.empty()) break;
        Message message = run.asked[choices.Byte() % run.asked.size()];
        message.type = MessageType::kData;
        std::swap(message.from, message.to);
        if (choices.Below(8) == 0) message.offset += choices.Below(4);
        uint64_t length = message.size;
        if (choices.Below(8) == 0) length = choices.Below(3) == 0 ? 0 : length + choices.Below(5) - 2;
        if (choices.Flag()) {
          run.pulls.OnOffer(message.from, message, length, OfferId(run.next_offer++));
        } else {
          void* dst = nullptr;
          if (run.pulls.OnInlineData(message.from, message, length, &dst)) {
            LB_CHECK(run.Inside(dst, length));
            run.pulls.OnInlineLanded(message.from, message);
          }
        }
        break;
      }
      case 3: {
        const Message message = AnyMessage(choices);
        void* dst = nullptr;
        if (run.pulls.OnInlineData(message.from, message, message.size, &dst)) {
          LB_CHECK(run.Inside(dst, message.size));
          run.pulls.OnInlineLanded(message.from, message);
        }
        break;
      }
      case 4: {
        const Message message = AnyMessage(choices);
        run.pulls.OnOffer(message.from, message, choices.Flag() ? message.size : choices.U64(),
                          OfferId(run.next_offer++));
        break;
      }
      case 5: {
        const Message message = AnyMessage(choices);
        run.pulls.OnRefuse(message.from, message, absl::NotFoundError("gone"));
        break;
      }
      case 6:
        if (!run.receives.empty()) {
          const ReceiveId id = run.receives.back();
          run.receives.pop_back();
          run.pulls.OnLanded(id, choices.Below(4) == 0 ? absl::UnavailableError("broken") : absl::OkStatus());
        }
        break;
      case 7:
        run.pulls.OnPeerDown(peer, absl::UnavailableError("down"));
        run.serves.OnPeerDown(peer);
        break;
      case 8: run.pulls.OnPeerDown(peer, absl::UnavailableError("reset")); break;
      case 9:
        run.serves.Publish(Key{5, choices.Below(12)},
                           std::make_shared<FixedSource>(choices.Below(256) << choices.Below(16), choices.Flag()),
                           choices.Flag() ? PeerId() : peer);
        break;
      case 10: {
        auto quiet = [&quiescent_due] { LB_CHECK(quiescent_due-- > 0); };
        ++quiescent_due;
        if (choices.Below(8) == 0) {
          run.serves.CloseSpace(5, absl::CancelledError("closed"), quiet);
        } else {
          run.serves.Unpublish(Key{5, choices.Below(12)}, absl::CancelledError("gone"), quiet);
        }
        break;
      }
      case 11: {
        Message message = AnyMessage(choices);
        if (choices.Flag()) {
          message.offset %= 64;
          message.end = message.offset + message.size + choices.Byte();
        }
        // As DecodeMessage lets it through.
        if (message.offset + message.size > message.end || message.end > limits::kTransferBytesMax) break;
        run.serves.OnRequest(message.from, message, choices.Below(8) != 0);
        break;
      }
      case 12: run.serves.OnForget(peer, PullId(choices.Id())); break;
      case 13:
      case 14: run.AnyPush(choices, peer); break;
      default:
        if (!run.sends.empty() && choices.Flag()) {
          const ServeId id = run.sends.back();
          run.sends.pop_back();
          run.serves.OnSent(id, choices.Below(4) == 0 ? absl::UnavailableError("broken") : absl::OkStatus());
        } else if (!run.reads.empty()) {
          const auto [id, size] = run.reads.back();
          run.reads.pop_back();
          if (choices.Below(4) == 0) {
            run.serves.OnReadDone(id, absl::DataLossError("the bytes are gone"));
          } else {
            run.serves.OnReadDone(id, Chunk{&run, size, nullptr});
          }
        }
        break;
    }
    run.Drain();
    LB_CHECK(run.pulls.pulls_open() == run.open.size());
    LB_CHECK(run.pulls.bytes_fetching() <= limits::kTransferWindowBytesTotal);
    LB_CHECK(run.serves.bytes_staged() <= limits::kTransferStagedBytesMax);
  }
  for (const PeerId peer : {PeerId(2), PeerId(3)}) {
    run.pushes.OnPeerDown(peer, absl::UnavailableError("the end"));
    run.pulls.OnPeerDown(peer, absl::UnavailableError("the end"));
    run.serves.OnPeerDown(peer);
  }
  run.Drain();
  while (!run.receives.empty()) {
    const ReceiveId id = run.receives.back();
    run.receives.pop_back();
    run.pulls.OnLanded(id, absl::UnavailableError("the end"));
    run.Drain();
  }
  for (ServeId id : std::exchange(run.sends, {})) run.serves.OnSent(id, absl::UnavailableError("the end"));
  for (const auto& [id, size] : std::exchange(run.reads, {}))
    run.serves.OnReadDone(id, absl::UnavailableError("the end"));
  run.Drain();
  LB_CHECK(run.open.empty() && run.pulls.pulls_quarantined() == 0 && run.pulls.bytes_fetching() == 0);
  LB_CHECK(run.pushes_due == 0 && run.pushes.waiting() == 0 && run.pushes.outlets() == 0);
  LB_CHECK(quiescent_due == 0 && run.serves.requests() == 0 && run.serves.sends() == 0 &&
           run.serves.bytes_staged() == 0);
}

}  // namespace landbridge::fuzz
