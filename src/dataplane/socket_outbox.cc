// Messages out: what other threads send by themselves, and what the host's thread sends for them.
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "dataplane/socket_errors.h"
#include "dataplane/socket_transport.h"

namespace landbridge::dataplane {
namespace {

absl::Status DoesNotRead(uint64_t waiting) {
  return absl::UnavailableError(absl::StrCat("it does not read: ", waiting, " bytes of messages to it are waiting"));
}

}  // namespace

void SocketTransport::Queue(Link& link, OutFrame frame) {
  uint64_t waiting = 0;
  {
    absl::MutexLock lock(&link.outbox->mutex);
    link.outbox->frames_bytes += frame.memory();
    waiting = link.outbox->frames_bytes;
    link.outbox->frames.push_back(std::move(frame));
  }
  // What it asked us for is bounded elsewhere; not so refusals, and what we take back of pulls that it never hears of.
  if (waiting > host_->options().queued_bytes_max) {
    Break(link, DoesNotRead(waiting));
  }
  MarkDirty(link);
}

void SocketTransport::MarkDirty(Link& link) {
  if (link.dirty) return;
  link.dirty = true;
  dirty_.push_back(link.peer);
}

void SocketTransport::Open(Link& link, int fd) {
  absl::MutexLock lock(&outboxes_mutex_);
  absl::MutexLock box(&link.outbox->mutex);
  link.outbox->fd = fd;
  outboxes_[link.peer] = link.outbox;
}

void SocketTransport::Shut(Link& link) {
  absl::MutexLock lock(&outboxes_mutex_);
  absl::MutexLock box(&link.outbox->mutex);
  link.outbox->fd = -1;
  auto it = outboxes_.find(link.peer);
  if (it != outboxes_.end() && it->second == link.outbox) outboxes_.erase(it);
}

bool SocketTransport::SendNow(PeerId peer, const Message& message, absl::Span<const std::byte> payload) {
  std::shared_ptr<Outbox> outbox;
  {
    absl::MutexLock lock(&outboxes_mutex_);
    auto it = outboxes_.find(peer);
    if (it == outboxes_.end()) return false;
    outbox = it->second;
  }
  OutFrame frame;
  frame.bytes = EncodeMessageFrame(message, payload);
  {
    absl::MutexLock lock(&outbox->mutex);
    if (outbox->fd < 0) return false;
    const bool behind = !outbox->frames.empty();
    if (!behind) {
      const ssize_t n = send(outbox->fd, frame.bytes.data(), frame.bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) frame.sent = static_cast<size_t>(n);
      if (frame.sent == frame.bytes.size()) return true;
    }
    outbox->frames_bytes += frame.memory();
    outbox->frames.push_back(std::move(frame));
    if (behind && outbox->frames_bytes <= host_->options().queued_bytes_max) return true;  // it is being flushed
  }
  Kick(peer);  // also after an error, which the host's thread then meets
  return true;
}

void SocketTransport::Kick(PeerId peer) {
  {
    absl::MutexLock lock(&outboxes_mutex_);
    kicked_.push_back(peer);
    has_kicked_.store(true);
  }
  host_->Wake();
}

void SocketTransport::Queue(Link& link, std::string bytes) {
  OutFrame frame;
  frame.bytes = std::move(bytes);
  Queue(link, std::move(frame));
}

void SocketTransport::Send(PeerId peer, const Message& message, std::string text) {
  Link* link = Find(peer);
  if (link == nullptr || link->broken) return;  // the shell has heard, or hears soon
  Queue(*link, EncodeMessageFrame(message, {reinterpret_cast<const std::byte*>(text.data()), text.size()}));
}

void SocketTransport::SendData(SendChunk send) {
  Link* link = Find(send.peer);
  if (link == nullptr) return events_->OnSent(send.serve, send.peer, send.chunk.size, ClosedError());
  const uint64_t size = send.chunk.size;
  // Between hosts small data never waits behind bulk; on one host larger pieces are cheaper to read directly.
  const uint64_t inside = link->near ? limits::kTransferInlineBytesMax : limits::kTransferSmallBytesMax;
  if (size <= inside) {
    OutFrame frame;
    frame.bytes = EncodeMessageFrame(send.message, {static_cast<const std::byte*>(send.chunk.data), size});
    frame.serve = send.serve;
    frame.data_bytes = size;
    return Queue(*link, std::move(frame));
  }
  const uint64_t cookie = next_cookie_++;
  const uint64_t address = link->near ? reinterpret_cast<uintptr_t>(send.chunk.data) : 0;
  link->sends.insert(cookie);
  sends_.emplace(cookie, OutSend{send.peer, send.serve, std::move(send.chunk)});
  Queue(*link, EncodeOfferFrame(send.message, cookie, address));
}

bool SocketTransport::FlushDirty() {
  if (has_kicked_.load()) {
    absl::MutexLock lock(&outboxes_mutex_);
    has_kicked_.store(false);
    for (PeerId peer : std::exchange(kicked_, {})) {
      if (Link* link = Find(peer)) MarkDirty(*link);
    }
  }
  bool did = false;
  for (PeerId peer : std::exchange(dirty_, {})) {
    Link* link = Find(peer);
    if (link == nullptr || !link->dirty) continue;
    link->dirty = false;
    did |= Flush(*link);
  }
  return did;
}

bool SocketTransport::Flush(Link& link) {
  Stream* stream = host_->Find(link.out_messages);
  if (stream == nullptr || stream->state != Stream::State::kUp || link.broken) return false;
  std::vector<OutFrame> ended;  // sends
  absl::Status error;
  uint64_t waiting = 0;
  {
    absl::MutexLock lock(&link.outbox->mutex);
    error = Write(*link.outbox, stream->fd, ended);
    waiting = link.outbox->frames_bytes;
  }
  if (error.ok() && waiting > host_->options().queued_bytes_max) error = DoesNotRead(waiting);
  if (error.ok()) {
    host_->SetWriting(*stream, waiting > 0);
  } else {
    Break(link, error);
  }
  for (const OutFrame& frame : ended) events_->OnSent(frame.serve, link.peer, frame.data_bytes, absl::OkStatus());
  return !ended.empty();
}

absl::Status SocketTransport::Write(Outbox& outbox, int fd, std::vector<OutFrame>& ended) {
  while (!outbox.frames.empty()) {
    constexpr size_t kFramesAtOnce = 64;
    iovec parts[kFramesAtOnce];
    size_t count = 0;
    for (auto it = outbox.frames.begin(); it != outbox.frames.end() && count < kFramesAtOnce; ++it, ++count) {
      parts[count] = {it->bytes.data() + it->sent, it->bytes.size() - it->sent};
    }
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL);
    if (n < 0) return WouldBlock() ? absl::OkStatus() : SocketError("sending");
    while (n > 0) {
      OutFrame& frame = outbox.frames.front();
      const size_t part = std::min(static_cast<size_t>(n), frame.bytes.size() - frame.sent);
      frame.sent += part;
      n -= static_cast<ssize_t>(part);
      if (frame.sent < frame.bytes.size()) break;
      outbox.frames_bytes -= frame.memory();
      if (frame.serve.valid()) ended.push_back(std::move(frame));
      outbox.frames.pop_front();
    }
  }
  return absl::OkStatus();
}

}  // namespace landbridge::dataplane
