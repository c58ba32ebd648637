#include "env/connection.h"

#include <netdb.h>
#include <sys/socket.h>
#include <uv.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "env/address.h"
#include "env/connection_impl.h"

namespace landbridge {
namespace {

constexpr size_t kJoinBelowBytes = 16u << 10;  // smaller payloads are copied behind each other, larger ones moved
constexpr size_t kChunkBytes = 64u << 10;
constexpr size_t kBuffersPerWrite = 64;
constexpr absl::string_view kRefusedKey = "landbridge/connection_refused";
constexpr DurationNs kLingerMax = 2 * kSecond;

}  // namespace

bool IsConnectionRefused(const absl::Status& status) { return status.GetPayload(kRefusedKey).has_value(); }

struct ConnectionImpl::Resolve {
  uv_getaddrinfo_t request;
  std::shared_ptr<ConnectionImpl> owner;
};
struct ConnectionImpl::ConnectRequest {
  uv_connect_t request;
  std::shared_ptr<ConnectionImpl> owner;
};
struct ConnectionImpl::WriteRequest {
  uv_write_t request;
  std::deque<std::string> chunks;
  size_t bytes;
  std::shared_ptr<ConnectionImpl> owner;
};
struct ConnectionImpl::ShutdownRequest {
  uv_shutdown_t request;
  std::shared_ptr<ConnectionImpl> owner;
};

ConnectionImpl::Stream* ConnectionImpl::OpenStream(bool unix_socket) {
  auto* stream = new Stream;
  if (unix_socket) {
    uv_pipe_init(loop_->uv(), &stream->uv.pipe, 0);
  } else {
    uv_tcp_init(loop_->uv(), &stream->uv.tcp);
  }
  stream->uv.handle.data = stream;
  stream->owner = shared_from_this();
  return stream;
}

void ConnectionImpl::DropStream() {
  if (stream_ == nullptr) return;
  Stream* dropped = std::exchange(stream_, nullptr);
  uv_close(&dropped->uv.handle, [](uv_handle_t* handle) { delete static_cast<Stream*>(handle->data); });
}

absl::Status ConnectionImpl::ConnectError(int error) const {
  absl::Status status = absl::UnavailableError(absl::StrCat("cannot connect to ", address_, ": ", uv_strerror(error)));
  if (all_refused_) status.SetPayload(kRefusedKey, absl::Cord("1"));
  return status;
}

void ConnectionImpl::Connect(absl::string_view address, DurationNs timeout) {
  address_ = std::string(address);
  timeout_ = loop_->RunAfter(timeout, [weak = weak_from_this(), timeout] {
    if (auto self = weak.lock()) {
      self->timeout_ = 0;
      self->Fail(absl::UnavailableError(
          absl::StrCat("cannot connect to ", self->address_, ": no answer within ", timeout / kMillisecond, " ms")));
    }
  });
  if (absl::StartsWith(address, "unix:")) {
    const std::string path(address.substr(5));
    stream_ = OpenStream(true);
    auto* request = new ConnectRequest{{}, shared_from_this()};
    request->request.data = request;
    if (path.empty() || path.size() > kUnixPathBytesMax) {
      delete request;
      Fail(absl::InvalidArgumentError(absl::StrCat("\"", address_,
                                                   "\" is not a unix socket's address: the path must have 1 to ",
                                                   kUnixPathBytesMax, " characters")));
      return;
    }
    uv_pipe_connect(&request->request, &stream_->uv.pipe, path.c_str(), [](uv_connect_t* done, int error) {
      std::unique_ptr<ConnectRequest> held(static_cast<ConnectRequest*>(done->data));
      held->owner->OnConnectDone(error);
    });
    return;
  }
  absl::StatusOr<HostPort> parsed = ParseHostPort(address);
  if (!parsed.ok()) {
    Fail(parsed.status());
    return;
  }
  const std::string host = parsed->host.empty() ? "localhost" : parsed->host;
  addrinfo hints;
  std::memset(&hints, 0, sizeof(hints));
  hints.ai_socktype = SOCK_STREAM;
  auto* resolve = new Resolve{{}, shared_from_this()};
  resolve->request.data = resolve;
  int error = uv_getaddrinfo(
      loop_->uv(), &resolve->request,
      [](uv_getaddrinfo_t* done, int status, addrinfo* found) {
        std::unique_ptr<Resolve> held(static_cast<Resolve*>(done->data));
        ConnectionImpl& self = *held->owner;
        self.loop_->CountEvent();
        for (addrinfo* at = found; at != nullptr; at = at->ai_next) {
          sockaddr_storage storage;
          std::memset(&storage, 0, sizeof(storage));
          std::memcpy(&storage, at->ai_addr, std::min<size_t>(at->ai_addrlen, sizeof(storage)));
          self.candidates_.push_back(storage);
        }
        uv_freeaddrinfo(found);
        if (self.state_ != State::kConnecting) return;
        if (status != 0 || self.candidates_.empty()) {
          self.all_refused_ = false;
          self.Fail(self.ConnectError(status != 0 ? status : UV_EAI_NONAME));
          return;
        }
        std::reverse(self.candidates_.begin(), self.candidates_.end());
        self.TryNextAddress();
      },
      host.c_str(), absl::StrCat(parsed->port).c_str(), &hints);
  if (error != 0) {
    delete resolve;
    all_refused_ = false;
    Fail(ConnectError(error));
  }
}

void ConnectionImpl::TryNextAddress() {
  sockaddr_storage address = candidates_.back();
  candidates_.pop_back();
  stream_ = OpenStream(false);
  auto* request = new ConnectRequest{{}, shared_from_this()};
  request->request.data = request;
  int error = uv_tcp_connect(&request->request, &stream_->uv.tcp, reinterpret_cast<sockaddr*>(&address),
                             [](uv_connect_t* done, int status) {
                               std::unique_ptr<ConnectRequest> held(static_cast<ConnectRequest*>(done->data));
                               held->owner->OnConnectDone(status);
                             });
  if (error != 0) {
    delete request;
    OnConnectDone(error);
  }
}

void ConnectionImpl::OnConnectDone(int error) {
  loop_->CountEvent();
  if (state_ != State::kConnecting || error == UV_ECANCELED) return;
  if (error != 0) {
    all_refused_ = all_refused_ && (error == UV_ECONNREFUSED || error == UV_ENOENT);
    DropStream();
    if (!candidates_.empty()) {
      TryNextAddress();
    } else {
      Fail(ConnectError(error));
    }
    return;
  }
  loop_->Cancel(std::exchange(timeout_, 0));
  state_ = State::kConnected;
  if (stream_->uv.handle.type == UV_TCP) uv_tcp_nodelay(&stream_->uv.tcp, 1);
  if (auto handlers = handlers_; handlers != nullptr && handlers->on_connected) handlers->on_connected();
  if (state_ != State::kConnected) return;
  StartReading();
  FlushNow();
}

bool ConnectionImpl::Accept(uv_stream_t* listener, bool unix_socket) {
  stream_ = OpenStream(unix_socket);
  if (uv_accept(listener, &stream_->uv.stream) != 0) {
    state_ = State::kClosed;
    DropStream();
    return false;
  }
  state_ = State::kConnected;
  if (!unix_socket) uv_tcp_nodelay(&stream_->uv.tcp, 1);
  address_ = peer();  // for messages when the socket is gone
  return true;
}

void ConnectionImpl::Start(Connection::Handlers handlers) {
  handlers_ = std::make_shared<Connection::Handlers>(std::move(handlers));
  started_ = true;
  if (state_ == State::kConnected) StartReading();
}

void ConnectionImpl::SetReading(bool reading) {
  reading_wanted_ = reading;
  if (state_ != State::kConnected) return;
  if (reading) {
    StartReading();
  } else if (reading_) {
    reading_ = false;
    uv_read_stop(&stream_->uv.stream);
  }
}

void ConnectionImpl::StartReading() {
  if (reading_ || !reading_wanted_ || !started_ || stream_ == nullptr) return;
  reading_ = true;
  uv_read_start(
      &stream_->uv.stream,
      [](uv_handle_t* handle, size_t, uv_buf_t* buffer) {
        Loop* loop = static_cast<Stream*>(handle->data)->owner->loop_;
        *buffer = uv_buf_init(loop->read_buffer(), static_cast<unsigned int>(Loop::kReadBufferBytes));
      },
      [](uv_stream_t* stream, ssize_t size, const uv_buf_t* buffer) {
        std::shared_ptr<ConnectionImpl> self = static_cast<Stream*>(stream->data)->owner;
        self->OnRead(size, buffer->base);
      });
}

void ConnectionImpl::OnRead(ssize_t size, const char* data) {
  loop_->CountEvent();
  if (size == 0 || state_ != State::kConnected || (handlers_ == nullptr && !close_when_sent_)) return;
  if (size < 0) {
    if (close_when_sent_) {
      Close();
    } else if (size == UV_EOF) {
      Fail(absl::UnavailableError(parser_.InsideFrame() ? "the peer closed the connection inside a frame"
                                                        : "the peer closed the connection"));
    } else {
      Fail(absl::UnavailableError(absl::StrCat("the connection broke: ", uv_strerror(static_cast<int>(size)))));
    }
    return;
  }
  if (close_when_sent_) return;  // read only to see its end
  absl::Status status = parser_.Feed(absl::string_view(data, static_cast<size_t>(size)),
                                     [this, handlers = handlers_](uint32_t type, absl::string_view payload) {
                                       handlers->on_frame(type, payload);
                                       return state_ == State::kConnected && !close_when_sent_;
                                     });
  if (!status.ok()) Fail(std::move(status));
}

bool ConnectionImpl::Send(uint32_t type, std::string payload) {
  if (state_ == State::kClosed || close_when_sent_) return false;
  if (payload.size() > limits::kFrameBytesMax ||
      unsent_bytes_ + payload.size() + kFrameHeaderBytes > limits::kConnectionUnsentBytesMax) {
    Fail(absl::ResourceExhaustedError(absl::StrCat("the peer does not read: ", unsent_bytes_,
                                                   " bytes are unsent, the next frame has ", payload.size(),
                                                   ", the limit is ", limits::kConnectionUnsentBytesMax)));
    return false;
  }
  unsent_bytes_ += kFrameHeaderBytes + payload.size();
  // With one chunk only and its start gone, appending is still right: the offset counts from the front.
  if (out_.empty() || out_.back().size() >= kChunkBytes) out_.emplace_back();
  AppendFrameHeader(type, payload, &out_.back());
  if (payload.size() < kJoinBelowBytes) {
    out_.back().append(payload);
  } else {
    out_.push_back(std::move(payload));
  }
  if (!writing_) loop_->FlushBeforeBlocking(this);
  return true;
}

void ConnectionImpl::FlushNow() {
  if (state_ != State::kConnected || writing_) return;
  while (!out_.empty()) {
    uv_buf_t buffers[kBuffersPerWrite];
    unsigned int count = 0;
    size_t total = 0;
    for (std::string& chunk : out_) {
      if (count == kBuffersPerWrite) break;
      const size_t skip = count == 0 ? out_offset_ : 0;
      buffers[count++] = uv_buf_init(chunk.data() + skip, static_cast<unsigned int>(chunk.size() - skip));
      total += chunk.size() - skip;
    }
    const int written = uv_try_write(&stream_->uv.stream, buffers, count);
    if (written < 0 && written != UV_EAGAIN) {
      Fail(absl::UnavailableError(absl::StrCat("the connection broke: ", uv_strerror(written))));
      return;
    }
    size_t left = static_cast<size_t>(std::max(written, 0));
    unsent_bytes_ -= left;
    while (left > 0) {
      const size_t front = out_.front().size() - out_offset_;
      if (left < front) {
        out_offset_ += left;
        break;
      }
      left -= front;
      out_.pop_front();
      out_offset_ = 0;
    }
    if (written >= 0 && static_cast<size_t>(written) == total) continue;
    // The kernel's buffer is full: the rest goes when there is room.
    auto* request = new WriteRequest{{}, {}, unsent_bytes_, shared_from_this()};
    request->request.data = request;
    request->chunks.swap(out_);
    std::vector<uv_buf_t> rest;
    rest.reserve(request->chunks.size());
    for (std::string& chunk : request->chunks) {
      const size_t skip = rest.empty() ? out_offset_ : 0;
      rest.push_back(uv_buf_init(chunk.data() + skip, static_cast<unsigned int>(chunk.size() - skip)));
    }
    out_offset_ = 0;
    writing_ = true;
    const int error =
        uv_write(&request->request, &stream_->uv.stream, rest.data(), static_cast<unsigned int>(rest.size()),
                 [](uv_write_t* done, int status) {
                   std::unique_ptr<WriteRequest> held(static_cast<WriteRequest*>(done->data));
                   ConnectionImpl& self = *held->owner;
                   self.loop_->CountEvent();
                   self.writing_ = false;
                   self.unsent_bytes_ -= held->bytes;
                   if (self.state_ != State::kConnected) return;
                   if (status != 0) {
                     self.Fail(absl::UnavailableError(absl::StrCat("the connection broke: ", uv_strerror(status))));
                     return;
                   }
                   self.FlushNow();
                 });
    if (error != 0) {
      writing_ = false;
      delete request;
      Fail(absl::UnavailableError(absl::StrCat("the connection broke: ", uv_strerror(error))));
    }
    return;
  }
  OnDrained();
}

void ConnectionImpl::CloseWhenSent() {
  if (state_ == State::kClosed || close_when_sent_) return;
  close_when_sent_ = true;
  handlers_.reset();
  timeout_ = loop_->RunAfter(kLingerMax, [weak = weak_from_this()] {
    if (auto self = weak.lock()) self->Close();
  });
  FlushNow();
}

void ConnectionImpl::OnDrained() {
  if (!close_when_sent_ || shut_down_) return;
  // Closing while unread bytes are here would make the kernel reset the connection and lose what we sent: say that
  // we are done and read until the peer's end.
  shut_down_ = true;
  started_ = reading_wanted_ = true;
  StartReading();
  auto* request = new ShutdownRequest{{}, shared_from_this()};
  request->request.data = request;
  if (uv_shutdown(&request->request, &stream_->uv.stream,
                  [](uv_shutdown_t* done, int) { delete static_cast<ShutdownRequest*>(done->data); }) != 0) {
    delete request;
    Close();
  }
}

void ConnectionImpl::Close() {
  if (state_ == State::kClosed) return;
  if (state_ == State::kConnected && !close_when_sent_) FlushNow();
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  loop_->Cancel(std::exchange(timeout_, 0));
  loop_->ForgetFlush(this);
  DropStream();
  handlers_.reset();
}

void ConnectionImpl::Fail(absl::Status status) {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  loop_->Cancel(std::exchange(timeout_, 0));
  loop_->ForgetFlush(this);
  DropStream();
  loop_->Post([self = shared_from_this(), status = std::move(status)] {
    auto handlers = std::exchange(self->handlers_, nullptr);
    if (handlers != nullptr && handlers->on_close) handlers->on_close(status);
  });
}

std::string ConnectionImpl::peer() const {
  if (stream_ == nullptr || stream_->uv.handle.type != UV_TCP) return address_.empty() ? "unix" : address_;
  sockaddr_storage storage;
  int size = sizeof(storage);
  if (uv_tcp_getpeername(&stream_->uv.tcp, reinterpret_cast<sockaddr*>(&storage), &size) != 0) return address_;
  return SocketAddressToString(storage);
}

int ConnectionImpl::peer_uid() const {
  if (stream_ == nullptr || stream_->uv.handle.type != UV_NAMED_PIPE) return -1;
  int fd = -1;
  ucred credentials;
  socklen_t size = sizeof(credentials);
  if (uv_fileno(&stream_->uv.handle, &fd) != 0 || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return -1;
  }
  return static_cast<int>(credentials.uid);
}

Connection::Connection(std::shared_ptr<ConnectionImpl> impl) : impl_(std::move(impl)) {}

std::unique_ptr<Connection> Connection::Connect(Loop* loop, absl::string_view address, Handlers handlers,
                                                DurationNs timeout) {
  auto impl = std::make_shared<ConnectionImpl>(loop);
  impl->Start(std::move(handlers));
  impl->Connect(address, timeout);
  return std::unique_ptr<Connection>(new Connection(std::move(impl)));
}

Connection::~Connection() {
  impl_->Close();
  impl_->ForgetHandlers();
}

void Connection::Start(Handlers handlers) { impl_->Start(std::move(handlers)); }
bool Connection::Send(uint32_t type, std::string payload) { return impl_->Send(type, std::move(payload)); }
void Connection::CloseWhenSent() { impl_->CloseWhenSent(); }
void Connection::Close() { impl_->Close(); }
void Connection::PauseReading() { impl_->SetReading(false); }
void Connection::ResumeReading() { impl_->SetReading(true); }
bool Connection::connected() const { return impl_->connected(); }
size_t Connection::unsent_bytes() const { return impl_->unsent_bytes(); }
std::string Connection::peer() const { return impl_->peer(); }
int Connection::peer_uid() const { return impl_->peer_uid(); }

}  // namespace landbridge
