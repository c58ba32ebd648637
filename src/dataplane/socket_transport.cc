#include "dataplane/socket_transport.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status.h"
#include "dataplane/peer_memory.h"
#include "dataplane/socket_errors.h"
#include "env/clock.h"

namespace landbridge::dataplane {
// --- Life.

absl::Status SocketTransport::CheckAddress(absl::string_view address) const {
  return DecodeHostAddress(address).status();
}

absl::Status SocketTransport::Start(TransportEvents* events) {
  events_ = events;
  absl::Status status;
  host_->Run([this, &status] { status = host_->Add(self_, this); });
  started_ = status.ok();
  return status;
}

void SocketTransport::Stop() {
  if (!started_) return;
  started_ = false;
  host_->Run([this] {
    host_->Remove(self_);
    for (auto& [peer, link] : links_) {
      Shut(*link);
      for (StreamId id : {link->out_messages, link->out_bulk, link->in_messages, link->in_bulk}) host_->Close(id);
    }
    links_.clear();
    sends_.clear();
  });
}

bool SocketTransport::Turn() {
  bool did = HandleBroken();
  did |= events_->RunPending();
  did |= FlushDirty();
  did |= ReadDirect();
  return did;
}

// --- Links.

SocketTransport::Link* SocketTransport::Find(PeerId peer) {
  auto it = links_.find(peer);
  return it == links_.end() ? nullptr : it->second.get();
}

SocketTransport::Link& SocketTransport::FindOrMake(PeerId peer) {
  std::unique_ptr<Link>& link = links_[peer];
  if (link == nullptr) {
    link = std::make_unique<Link>();
    link->peer = peer;
    link->number = SystemRandom().NextNonZero();
  }
  return *link;
}

Hello SocketTransport::MakeHello(const Link& link, StreamKind kind) const {
  Hello hello;
  hello.kind = kind;
  hello.from = self_;
  hello.to = link.peer;
  hello.link = link.number;
  hello.probe_address = reinterpret_cast<uintptr_t>(host_->probe().data());
  hello.probe = host_->probe();
  return hello;
}

absl::Status SocketTransport::Connect(PeerId peer, const std::string& address) {
  LB_ASSIGN_OR_RETURN(HostAddress decoded, DecodeHostAddress(address));
  Link& link = FindOrMake(peer);
  if (link.out_messages.valid()) return absl::OkStatus();
  link.address = std::move(decoded);
  link.near = host_->IsNear(link.address);
  link.out_messages = host_->NewStream();
  host_->Dial(link.out_messages, this, link.address, MakeHello(link, StreamKind::kMessages));
  return absl::OkStatus();
}

void SocketTransport::DialBulk(Link& link) {
  if (link.out_bulk.valid() || link.broken) return;
  link.out_bulk = host_->NewStream();
  host_->Dial(link.out_bulk, this, link.address, MakeHello(link, StreamKind::kBulk));
}

Verdict SocketTransport::OnHello(Stream& stream, const Hello& hello, pid_t pid) {
  if (!events_->Admits(hello.from)) return Verdict::kGivenUp;
  if (hello.kind == StreamKind::kBulk) {
    Link* link = Find(hello.from);
    if (link == nullptr || link->broken || link->in_number != hello.link || !link->in_messages.valid() ||
        link->in_bulk.valid()) {
      return Verdict::kStale;
    }
    link->in_bulk = stream.id;
    return Verdict::kWelcome;
  }
  // It would not dial again if it had not given the old connection up.
  if (Link* old = Find(hello.from); old != nullptr && (old->broken || old->in_messages.valid())) {
    BreakNow(hello.from, absl::UnavailableError("the peer connected anew"));
  }
  Link& link = FindOrMake(hello.from);
  link.in_messages = stream.id;
  link.in_number = hello.link;
  if (stream.local && host_->options().direct_reads && CanReadPeerMemory(pid, hello)) link.pid = pid;
  return Verdict::kWelcome;
}

void SocketTransport::OnUp(Stream& stream) {
  Link* link = Find(stream.peer);
  if (link == nullptr) return host_->Close(stream.id);
  if (stream.kind == StreamKind::kMessages) {
    if (!link->broken) Open(*link, stream.fd);
    Flush(*link);
  } else {
    WriteBulk(*link, stream);
  }
}

void SocketTransport::OnStreamEnd(Stream& stream, const absl::Status& why) {
  const StreamId id = stream.id;
  if (Link* link = Find(stream.peer)) Break(*link, why);
  host_->Close(id);
}

void SocketTransport::Break(Link& link, const absl::Status& why) {
  if (link.broken) return;
  link.broken = true;
  Shut(link);
  broken_.push_back({link.peer, link.number, why});
}

bool SocketTransport::HandleBroken() {
  if (broken_.empty()) return false;
  for (const Broken& broken : std::exchange(broken_, {})) {
    Link* link = Find(broken.peer);
    if (link != nullptr && link->number == broken.number) BreakNow(broken.peer, broken.why);
  }
  return true;
}

void SocketTransport::BreakNow(PeerId peer, const absl::Status& why) {
  Link* link = Find(peer);
  link->broken = true;
  Shut(*link);
  const uint64_t number = link->number;
  events_->OnBroken(peer, why);
  link = Find(peer);
  if (link != nullptr && link->number == number) Close(peer);
}

void SocketTransport::Close(PeerId peer) {
  auto it = links_.find(peer);
  if (it == links_.end()) return;
  const std::unique_ptr<Link> link = std::move(it->second);
  links_.erase(it);
  Shut(*link);
  // First the streams: then nobody reads our memory in good faith, and nothing lands in it.
  for (StreamId id : {link->out_messages, link->out_bulk, link->in_messages, link->in_bulk}) host_->Close(id);
  std::vector<ReceiveId> receives;
  for (const auto& [cookie, landing] : link->landing) {
    if (landing.dst != nullptr) receives.push_back(landing.receive);
  }
  for (std::deque<DirectRead>* reads : {&small_reads_, &bulk_reads_}) {
    for (const DirectRead& read : *reads) {
      if (read.peer == peer) receives.push_back(read.receive);
    }
    std::erase_if(*reads, [&](const DirectRead& read) { return read.peer == peer; });
  }
  for (ReceiveId receive : receives) events_->OnLanded(receive, peer, 0, ClosedError());
  for (uint64_t cookie : link->sends) {
    auto send = sends_.find(cookie);
    const ServeId serve = send->second.serve;
    const uint64_t size = send->second.chunk.size;
    sends_.erase(send);
    events_->OnSent(serve, peer, size, ClosedError());
  }
  std::deque<OutFrame> frames;
  {
    absl::MutexLock lock(&link->outbox->mutex);
    frames.swap(link->outbox->frames);
  }
  for (const OutFrame& frame : frames) {
    if (frame.serve.valid()) events_->OnSent(frame.serve, peer, frame.data_bytes, ClosedError());
  }
}

// --- Bulk out.

void SocketTransport::OnWritable(Stream& stream) {
  Link* link = Find(stream.peer);
  if (link == nullptr || !stream.dialled) return;
  if (stream.kind == StreamKind::kMessages) {
    Flush(*link);
  } else {
    WriteBulk(*link, stream);
  }
}

void SocketTransport::EndSend(uint64_t cookie, const absl::Status& status) {
  auto it = sends_.find(cookie);
  const OutSend send = std::move(it->second);
  sends_.erase(it);
  if (Link* link = Find(send.peer)) link->sends.erase(cookie);
  events_->OnSent(send.serve, send.peer, send.chunk.size, status);
}

// One piece, so that messages and other peers get their turn between two of them.
void SocketTransport::WriteBulk(Link& link, Stream& stream) {
  if (link.broken) return;
  if (link.sending == 0 && !link.fetched.empty()) {
    link.sending = link.fetched.front();
    link.fetched.pop_front();
    link.sent = 0;
  }
  if (link.sending == 0) return host_->SetWriting(stream, false);
  const OutSend& send = sends_.at(link.sending);
  const auto head = EncodeBulkHead({link.sending, send.chunk.size});
  iovec parts[2];
  size_t count = 0;
  if (link.sent < head.size()) {
    parts[count++] = {const_cast<std::byte*>(head.data()) + link.sent, head.size() - link.sent};
  }
  const uint64_t from = link.sent < head.size() ? 0 : link.sent - head.size();
  parts[count++] = {const_cast<char*>(static_cast<const char*>(send.chunk.data)) + from,
                    std::min<uint64_t>(send.chunk.size - from, limits::kTransferSliceBytes)};
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = count;
  const ssize_t n = sendmsg(stream.fd, &message, MSG_NOSIGNAL);
  if (n < 0 && !WouldBlock()) return Break(link, SocketError("sending"));
  if (n > 0) link.sent += static_cast<uint64_t>(n);
  if (link.sent == head.size() + send.chunk.size) EndSend(std::exchange(link.sending, 0), absl::OkStatus());
  host_->SetWriting(stream, link.sending != 0 || !link.fetched.empty());
}

// --- In.

void SocketTransport::OnReadable(Stream& stream) {
  if (stream.dialled) {
    // Nothing comes this way but the end.
    char byte;
    const ssize_t n = recv(stream.fd, &byte, 1, 0);
    if (n < 0 && WouldBlock()) return;
    return OnStreamEnd(stream, n > 0    ? absl::UnavailableError("the peer broke the protocol")
                               : n == 0 ? absl::UnavailableError("closed by the peer")
                                        : SocketError("receiving"));
  }
  stream.kind == StreamKind::kMessages ? ReadFrames(stream) : ReadBulk(stream);
}

void SocketTransport::ReadFrames(Stream& stream) {
  const absl::Span<std::byte> scratch = host_->scratch();
  const ssize_t n = recv(stream.fd, scratch.data(), scratch.size(), 0);
  if (n < 0 && WouldBlock()) return;
  if (n <= 0) {
    return OnStreamEnd(stream, n == 0 ? absl::UnavailableError("closed by the peer") : SocketError("receiving"));
  }
  std::string joined;
  absl::Span<const std::byte> input = scratch.subspan(0, static_cast<size_t>(n));
  if (!stream.input.empty()) {
    joined = std::move(stream.input);
    joined.append(reinterpret_cast<const char*>(input.data()), input.size());
    input = {reinterpret_cast<const std::byte*>(joined.data()), joined.size()};
  }
  Link* link = Find(stream.peer);
  while (link != nullptr && !link->broken) {
    Frame frame;
    const FrameResult result = TakeFrame(&input, &frame);
    if (result == FrameResult::kMore) break;
    if (result == FrameResult::kBad || !HandleFrame(*link, frame)) {
      events_->OnMalformed();
      return OnStreamEnd(stream, absl::UnavailableError("the peer broke the protocol"));
    }
  }
  stream.input.assign(reinterpret_cast<const char*>(input.data()), input.size());
}

bool SocketTransport::HandleFrame(Link& link, const Frame& frame) {
  if (frame.kind == FrameKind::kMessage || frame.kind == FrameKind::kOffer) {
    if (frame.message.from != link.peer || frame.message.to != self_) return false;
    if (frame.kind == FrameKind::kMessage) {
      events_->OnMessage(frame.message, frame.payload);
      return true;
    }
    if (frame.message.type != MessageType::kData) return false;
    const OfferId offer(next_offer_++);
    offers_.emplace(offer, Offer{link.peer, link.number, frame.cookie, frame.address});
    if (!events_->OnOffer(frame.message, frame.message.size, offer)) Reject(offer);
    return true;
  }
  auto it = sends_.find(frame.cookie);
  if (it == sends_.end()) return true;  // ended meanwhile
  if (it->second.peer != link.peer || it->second.asked) return false;
  switch (frame.kind) {
    case FrameKind::kFetch: {
      it->second.asked = true;
      it->second.chunk.size <= limits::kTransferSmallBytesMax ? link.fetched.push_front(frame.cookie)
                                                              : link.fetched.push_back(frame.cookie);
      DialBulk(link);
      Stream* bulk = host_->Find(link.out_bulk);
      if (bulk != nullptr && bulk->state == Stream::State::kUp) host_->SetWriting(*bulk, true);
      return true;
    }
    case FrameKind::kFetched: EndSend(frame.cookie, absl::OkStatus()); return true;
    default: EndSend(frame.cookie, absl::CancelledError("not wanted")); return true;
  }
}

void SocketTransport::Receive(const StartReceive& receive) {
  auto it = offers_.find(receive.offer);
  LB_CHECK(it != offers_.end());
  const Offer offer = it->second;
  offers_.erase(it);
  Link* link = Find(offer.peer);
  if (link == nullptr || link->number != offer.link)
    return events_->OnLanded(receive.receive, receive.peer, 0, ClosedError());
  const DirectRead read{
      offer.peer, offer.cookie, receive.receive, static_cast<std::byte*>(receive.dst), receive.size, offer.address, 0};
  if (offer.address == 0 || link->pid == 0) return AskForBulk(*link, read);
  (receive.size <= limits::kTransferSmallBytesMax ? small_reads_ : bulk_reads_).push_back(read);
}

void SocketTransport::Reject(OfferId id) {
  auto it = offers_.find(id);
  LB_CHECK(it != offers_.end());
  const Offer offer = it->second;
  offers_.erase(it);
  Link* link = Find(offer.peer);
  if (link != nullptr && link->number == offer.link) {
    Queue(*link, EncodeCookieFrame(FrameKind::kDropped, offer.cookie));
  }
}

void SocketTransport::Abandon(PeerId peer, ReceiveId receive) {
  Link* link = Find(peer);
  if (link == nullptr) return;  // it has ended
  const absl::Status why = absl::CancelledError("not wanted any more");
  for (std::deque<DirectRead>* reads : {&small_reads_, &bulk_reads_}) {
    auto it = std::find_if(reads->begin(), reads->end(), [&](const DirectRead& r) { return r.receive == receive; });
    if (it == reads->end()) continue;
    Queue(*link, EncodeCookieFrame(FrameKind::kDropped, it->cookie));
    reads->erase(it);
    return events_->OnLanded(receive, peer, 0, why);
  }
  for (auto& [cookie, landing] : link->landing) {
    if (landing.receive != receive || landing.dst == nullptr) continue;
    landing.dst = nullptr;  // what still comes is read past
    return events_->OnLanded(receive, peer, 0, why);
  }
}

// --- Bulk in.

void SocketTransport::AskForBulk(Link& link, const DirectRead& read) {
  link.landing.emplace(read.cookie, Landing{read.receive, read.dst, read.size});
  Queue(link, EncodeCookieFrame(FrameKind::kFetch, read.cookie));
}

void SocketTransport::ReadBulk(Stream& stream) {
  uint64_t budget = limits::kTransferSliceBytes;
  Link* link = Find(stream.peer);
  while (link != nullptr && !link->broken && ReadBulkOnce(*link, stream, &budget)) {
  }
}

bool SocketTransport::ReadBulkOnce(Link& link, Stream& stream, uint64_t* budget) {
  const bool head = link.head_bytes < kBulkHeadBytes;
  std::byte* to = link.head.data() + link.head_bytes;
  uint64_t wanted = kBulkHeadBytes - link.head_bytes;
  Landing* landing = nullptr;
  uint64_t cookie = 0;
  if (!head) {
    cookie = DecodeBulkHead(link.head.data()).cookie;
    landing = &link.landing.at(cookie);
    wanted = landing->size - link.landed;
    to = landing->dst == nullptr ? host_->scratch().data() : landing->dst + link.landed;
    if (landing->dst == nullptr) wanted = std::min<uint64_t>(wanted, host_->scratch().size());
    wanted = std::min(wanted, *budget);
  }
  const ssize_t n = recv(stream.fd, to, wanted, 0);
  if (n < 0 && WouldBlock()) return false;
  if (n <= 0) {
    OnStreamEnd(stream, n == 0 ? absl::UnavailableError("closed by the peer") : SocketError("receiving"));
    return false;
  }
  if (head) {
    link.head_bytes += static_cast<size_t>(n);
    if (link.head_bytes < kBulkHeadBytes) return true;
    const BulkHead decoded = DecodeBulkHead(link.head.data());
    auto it = link.landing.find(decoded.cookie);
    link.landed = 0;
    if (it != link.landing.end() && it->second.size == decoded.size && decoded.size > 0) return true;
    events_->OnMalformed();
    OnStreamEnd(stream, absl::UnavailableError("the peer broke the protocol"));
    return false;
  }
  link.landed += static_cast<uint64_t>(n);
  *budget -= static_cast<uint64_t>(n);
  if (link.landed == landing->size) {
    const Landing ended = *landing;
    link.landing.erase(cookie);
    link.head_bytes = 0;
    if (ended.dst != nullptr) events_->OnLanded(ended.receive, link.peer, ended.size, absl::OkStatus());
  }
  return *budget > 0;
}

// --- Direct reads.

bool SocketTransport::ReadDirect() {
  std::deque<DirectRead>& reads = small_reads_.empty() ? bulk_reads_ : small_reads_;
  if (reads.empty()) return false;
  DirectRead& read = reads.front();
  Link& link = *Find(read.peer);
  const uint64_t slice = std::min<uint64_t>(read.size - read.done, limits::kTransferSliceBytes);
  const absl::Status status = ReadPeerMemory(link.pid, read.address + read.done, read.dst + read.done, slice);
  read.done += slice;
  if (status.ok() && read.done < read.size) return true;
  const DirectRead ended = read;
  reads.pop_front();
  FinishDirect(ended, status);
  return true;
}

void SocketTransport::FinishDirect(const DirectRead& read, const absl::Status& status) {
  Link& link = *Find(read.peer);
  // A source closes its streams before it lets the memory go, and the kernel closes them before the process's number
  // can be another's: open streams after the read say that these were the bytes.
  const Stream* stream = host_->Find(link.in_messages);
  if (link.broken || stream == nullptr || SocketHost::HungUp(*stream)) {
    events_->OnLanded(read.receive, read.peer, 0, absl::UnavailableError("the connection broke"));
    return;
  }
  // Some memory cannot be read from outside (that of devices, for one).
  if (!status.ok()) return AskForBulk(link, read);
  Queue(link, EncodeCookieFrame(FrameKind::kFetched, read.cookie));
  events_->OnLanded(read.receive, read.peer, read.size, absl::OkStatus());
}

}  // namespace landbridge::dataplane
