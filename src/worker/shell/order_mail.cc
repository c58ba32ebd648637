#include "worker/shell/order_mail.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/data_keys.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/split_mix.h"
#include "worker/shell/shell_limits.h"

namespace landbridge {
namespace {

constexpr size_t kLengthBytes = 4;
constexpr size_t kPagePayload = limits::kMailPageBytes - kLengthBytes;

void AppendLength(size_t length, std::string* bytes) {
  for (size_t i = 0; i < kLengthBytes; ++i) bytes->push_back(static_cast<char>(length >> (8 * i) & 0xff));
}

size_t LengthAt(absl::string_view bytes) {
  size_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= static_cast<size_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  return length;
}

// A page, which says that it is being read.
class MailPage : public dataplane::Source {
 public:
  MailPage(std::string bytes, std::function<void()> on_read)
      : bytes_(std::make_shared<const std::string>(std::move(bytes))), on_read_(std::move(on_read)) {}
  uint64_t size() const override { return bytes_->size(); }
  void Read(uint64_t offset, uint64_t size, dataplane::ReadDone done) override {
    if (!read_.exchange(true)) on_read_();
    done(dataplane::Chunk{bytes_->data() + offset, size, bytes_});
  }

 private:
  const std::shared_ptr<const std::string> bytes_;
  const std::function<void()> on_read_;
  std::atomic<bool> read_{false};
};

}  // namespace

// ---------------------------------------------------------------- the stream

void AppendMail(absl::string_view message, std::string* bytes) {
  AppendLength(message.size(), bytes);
  bytes->append(message.data(), message.size());
}

std::string TakeMailPage(std::string* bytes) {
  const size_t used = std::min(bytes->size(), kPagePayload);
  std::string page;
  page.reserve(limits::kMailPageBytes);
  AppendLength(used, &page);
  page.append(*bytes, 0, used);
  page.resize(limits::kMailPageBytes);
  bytes->erase(0, used);
  return page;
}

absl::Status MailReader::Add(absl::string_view page, const std::function<void(absl::string_view)>& message) {
  if (!broken_.ok()) return broken_;
  const size_t used = page.size() == limits::kMailPageBytes ? LengthAt(page) : kPagePayload + 1;
  if (used > kPagePayload) return broken_ = absl::InvalidArgumentError("a page of mail says a wrong length");
  rest_.append(page.data() + kLengthBytes, used);
  size_t at = 0;
  while (rest_.size() - at >= kLengthBytes) {
    const size_t length = LengthAt(absl::string_view(rest_).substr(at));
    if (length > limits::kMailBytesMax) {
      return broken_ = absl::InvalidArgumentError(
                 absl::StrCat("a message of ", length, " bytes; at most ", limits::kMailBytesMax, " are taken"));
    }
    if (rest_.size() - at - kLengthBytes < length) break;
    message(absl::string_view(rest_).substr(at + kLengthBytes, length));
    at += kLengthBytes + length;
  }
  rest_.erase(0, at);
  return absl::OkStatus();
}

// ---------------------------------------------------------------- writing

uint64_t OrderMails::MailSpace(Incarnation writer, Incarnation reader) {
  return SplitMix(writer.value() ^ SplitMix(reader.value()));
}
dataplane::Key OrderMails::PageKey(Incarnation writer, Incarnation reader, uint64_t page) {
  return {MailSpace(writer, reader), DataKeyId(DataKeyKind::kMail, page)};
}

void OrderMails::Send(Incarnation peer, absl::string_view message) {
  if (stopped_) return;
  Outbox& outbox = out_[peer];
  if (outbox.bytes.empty()) to_flush_.push_back(peer);
  AppendMail(message, &outbox.bytes);
}

void OrderMails::Flush() {
  for (Incarnation peer : std::exchange(to_flush_, {})) {
    if (auto outbox = out_.find(peer); outbox != out_.end()) Publish(peer, outbox->second);
  }
}

void OrderMails::Publish(Incarnation peer, Outbox& outbox) {
  while (!outbox.bytes.empty() && outbox.published - outbox.read < limits::kMailPagesOut) {
    const uint64_t page = ++outbox.published;
    std::shared_ptr<ShellContext> context = context_->shared_from_this();
    auto source = std::make_shared<MailPage>(TakeMailPage(&outbox.bytes), [this, context, peer, page] {
      context->Post([this, peer, page] { OnRead(peer, page); });
    });
    context_->data_plane->Publish(PageKey(context_->data_plane->self(), peer, page), std::move(source),
                                  dataplane::PublishOptions{peer});
  }
}

void OrderMails::OnRead(Incarnation peer, uint64_t page) {
  auto it = out_.find(peer);
  if (it == out_.end()) return;
  Outbox& outbox = it->second;
  outbox.read = std::max(outbox.read, page);
  // It would not have asked for this one without having those.
  if (outbox.read > limits::kMailPagesAhead) LetGo(peer, outbox, outbox.read - limits::kMailPagesAhead);
  Publish(peer, outbox);
}

void OrderMails::LetGo(Incarnation peer, Outbox& outbox, uint64_t through) {
  while (outbox.let_go < through) {
    context_->data_plane->Unpublish(PageKey(context_->data_plane->self(), peer, ++outbox.let_go),
                                    absl::FailedPreconditionError("nobody will read this page of mail any more"));
  }
}

// ---------------------------------------------------------------- reading

void OrderMails::ListenTo(Incarnation peer) {
  if (stopped_ || !in_.try_emplace(peer).second) return;
  for (uint64_t page = 1; page <= limits::kMailPagesAhead; ++page) Ask(peer, page);
}

void OrderMails::Ask(Incarnation peer, uint64_t page) {
  std::shared_ptr<ShellContext> context = context_->shared_from_this();
  auto bytes = std::make_shared<std::string>(limits::kMailPageBytes, '\0');
  context_->data_plane->Pull(peer, PageKey(peer, context_->data_plane->self(), page), 0, bytes->data(), bytes->size(),
                             [this, context, peer, page, bytes](absl::Status status) {
                               context->Post([this, peer, page, bytes, status] { OnPage(peer, page, *bytes, status); });
                             });
}

void OrderMails::OnPage(Incarnation peer, uint64_t page, const std::string& bytes, const absl::Status& status) {
  auto it = in_.find(peer);
  if (stopped_ || it == in_.end()) return;
  if (absl::IsUnavailable(status)) return AskAgain(peer, page, status);
  if (!status.ok()) {
    LogWarning("mail of worker ", peer.ToString(), " has ended: ", status.message());
    in_.erase(it);
    return;
  }
  Inbox& inbox = it->second;
  inbox.arrived[page] = bytes;
  // Handed out when the box is not looked at any more: whoever gets a message may open and close boxes.
  std::vector<std::string> messages;
  absl::Status read;
  while (read.ok() && !inbox.arrived.empty() && inbox.arrived.begin()->first == inbox.taken + 1) {
    const std::string next = std::move(inbox.arrived.begin()->second);
    inbox.arrived.erase(inbox.arrived.begin());
    ++inbox.taken;
    Ask(peer, inbox.taken + limits::kMailPagesAhead);
    read = inbox.reader.Add(next, [&](absl::string_view message) { messages.emplace_back(message); });
  }
  if (!read.ok()) {
    LogWarning("mail of worker ", peer.ToString(), " is not read any more: ", read.message());
    in_.erase(it);
  }
  for (const std::string& message : messages) deliver_(peer, message);
}

// The connection broke; if the peer is lost, the controller says so.
void OrderMails::AskAgain(Incarnation peer, uint64_t page, const absl::Status& why) {
  Inbox& inbox = in_.at(peer);
  const TimeNs now = context_->Now();
  if (inbox.broken_at == 0 || now - inbox.broken_at > limits::kMailFailuresApart) inbox.broken_since = now;
  inbox.broken_at = now;
  const bool for_long = now - inbox.broken_since >= limits::kMailBrokenAfter;
  if (for_long) inbox.broken_since = now;
  context_->loop->RunAfter(limits::kPullRetryPause, context_->Guarded([this, peer, page] {
    if (!stopped_ && in_.contains(peer)) Ask(peer, page);
  }));
  if (!for_long) return;
  broken_(peer, absl::AbortedError(absl::StrCat("the order of launches that span workers cannot be agreed on: worker ",
                                                peer.ToString(), " cannot be reached from here (", why.message(),
                                                "); check the network between the workers' hosts")));
}

void OrderMails::PeerLost(Incarnation peer) {
  in_.erase(peer);
  auto it = out_.find(peer);
  if (it == out_.end()) return;
  LetGo(peer, it->second, it->second.published);
  out_.erase(it);
}

void OrderMails::Stop() {
  stopped_ = true;
  out_.clear();
  in_.clear();
}

}  // namespace landbridge
