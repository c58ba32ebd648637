// Mail between the cores of two workers (WorkerSink::SendMail): in order, once, over the data plane that they have anyway.
//
// What one says to another is a stream of bytes, cut into pages of one size. The writer publishes pages 1, 2, ... under a
// key space of the pair; the reader has asked for the next few before they exist, so a page costs one message. It asks for
// page n + kMailPagesAhead when it has page n: when that is read, n is let go. A connection that breaks is pulled over
// anew. What is said in one turn of the loop shares pages, and when the reader is slow, of several turns.
//
// Keys, also between processes of different versions: space MailSpace(writer, reader), id DataKeyId(kMail, page).
// A page: how many of its bytes are used (32 bits, little-endian), then those. The stream: length (32 bits), message.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "worker/shell/shell_context.h"

namespace landbridge {

// Of the mail of one peer, what has not been cut into messages.
//
// Thread-safety: none.
class MailReader {
 public:
  // A page's bytes. INVALID_ARGUMENT: it is none, or a message would be too long. Then nothing of the peer is read any more.
  absl::Status Add(absl::string_view page, const std::function<void(absl::string_view)>& message);

 private:
  std::string rest_;
  absl::Status broken_;
};

// Bytes of the stream, as a page; takes at most one page's worth off `bytes`.
std::string TakeMailPage(std::string* bytes);
void AppendMail(absl::string_view message, std::string* bytes);

// Of one grant.
//
// Thread-safety: the loop's thread only.
class OrderMails {
 public:
  // Both run in turns of the loop of their own kind: they may call the core. `broken`: for limits::kMailBrokenAfter nothing
  // could be asked of the peer; it goes on being asked.
  OrderMails(ShellContext* context, std::function<void(Incarnation, absl::string_view)> deliver,
             std::function<void(Incarnation, const absl::Status&)> broken)
      : context_(context), deliver_(std::move(deliver)), broken_(std::move(broken)) {}

  void Send(Incarnation peer, absl::string_view message);
  void ListenTo(Incarnation peer);
  // Publishes what was said; at the end of a turn.
  void Flush();
  void PeerLost(Incarnation peer);
  void Stop();  // for good

 private:
  struct Outbox {
    std::string bytes;       // not in a page yet
    uint64_t published = 0;  // pages
    uint64_t read = 0;       // the reader has asked for, and so has all but the last kMailPagesAhead of these
    uint64_t let_go = 0;
  };
  struct Inbox {
    MailReader reader;
    TimeNs broken_since = 0, broken_at = 0;   // the first and the last of failures in a row
    uint64_t taken = 0;                       // pages, in their order
    std::map<uint64_t, std::string> arrived;  // before one that is missing
  };
  static uint64_t MailSpace(Incarnation writer, Incarnation reader);
  static dataplane::Key PageKey(Incarnation writer, Incarnation reader, uint64_t page);
  void Publish(Incarnation peer, Outbox& outbox);
  void OnRead(Incarnation peer, uint64_t page);
  void LetGo(Incarnation peer, Outbox& outbox, uint64_t through);
  void Ask(Incarnation peer, uint64_t page);
  void OnPage(Incarnation peer, uint64_t page, const std::string& bytes, const absl::Status& status);
  void AskAgain(Incarnation peer, uint64_t page, const absl::Status& why);

  ShellContext* const context_;
  const std::function<void(Incarnation, absl::string_view)> deliver_;
  const std::function<void(Incarnation, const absl::Status&)> broken_;
  absl::flat_hash_map<Incarnation, Outbox> out_;
  absl::flat_hash_map<Incarnation, Inbox> in_;
  std::vector<Incarnation> to_flush_;
  bool stopped_ = false;
};

}  // namespace landbridge
