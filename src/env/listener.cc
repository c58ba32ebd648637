#include <netdb.h>
#include <sys/stat.h>
#include <unistd.h>
#include <uv.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "env/address.h"
#include "env/connection.h"
#include "env/connection_impl.h"

namespace landbridge {

// Thread-safety: the loop's thread only.
class ListenerImpl : public std::enable_shared_from_this<ListenerImpl> {
 public:
  ListenerImpl(Loop* loop, Listener::OnAccept on_accept)
      : loop_(loop), on_accept_(std::make_shared<Listener::OnAccept>(std::move(on_accept))) {}

  absl::Status Listen(absl::string_view address);
  void Close();
  void Forget() { on_accept_.reset(); }

  int port = 0;
  std::string address;

 private:
  struct Stream {
    union {
      uv_handle_t handle;
      uv_stream_t stream;
      uv_tcp_t tcp;
      uv_pipe_t pipe;
    } uv;
    std::shared_ptr<ListenerImpl> owner;
  };

  absl::Status ListenOnPath(const std::string& path);
  absl::Status ListenOnSocket(absl::string_view text, const sockaddr* socket_address);
  void Open(bool unix_socket);
  int StartListening();
  void OnConnection(int error);

  Loop* const loop_;
  std::shared_ptr<Listener::OnAccept> on_accept_;  // null: closed
  Stream* stream_ = nullptr;
  std::string unix_path_;
};

void ListenerImpl::Open(bool unix_socket) {
  stream_ = new Stream;
  if (unix_socket) {
    uv_pipe_init(loop_->uv(), &stream_->uv.pipe, 0);
  } else {
    uv_tcp_init(loop_->uv(), &stream_->uv.tcp);
  }
  stream_->uv.handle.data = stream_;
  stream_->owner = shared_from_this();
}

int ListenerImpl::StartListening() {
  return uv_listen(&stream_->uv.stream, 511, [](uv_stream_t* stream, int error) {
    std::shared_ptr<ListenerImpl> self = static_cast<Stream*>(stream->data)->owner;
    self->OnConnection(error);
  });
}

void ListenerImpl::OnConnection(int error) {
  loop_->CountEvent();
  if (on_accept_ == nullptr) return;
  if (error != 0) {
    LogWarning("cannot accept a connection on ", address, ": ", uv_strerror(error));
    return;
  }
  auto impl = std::make_shared<ConnectionImpl>(loop_);
  if (!impl->Accept(&stream_->uv.stream, !unix_path_.empty())) return;
  auto on_accept = on_accept_;
  (*on_accept)(std::unique_ptr<Connection>(new Connection(std::move(impl))));
}

absl::Status ListenerImpl::ListenOnPath(const std::string& path) {
  if (path.empty() || path.size() > kUnixPathBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("\"unix:", path.substr(0, 200),
                                                   "\" is not a unix socket's address: the path must have 1 to ",
                                                   kUnixPathBytesMax, " characters"));
  }
  // A socket file that nobody listens on is left from a process that was killed.
  struct stat info;
  if (lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot listen on unix:", path, ": a file is there that is not a socket"));
    }
    sockaddr_un probe;
    std::memset(&probe, 0, sizeof(probe));
    probe.sun_family = AF_UNIX;
    std::memcpy(probe.sun_path, path.data(), path.size());
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool dead =
        fd >= 0 && connect(fd, reinterpret_cast<sockaddr*>(&probe), sizeof(probe)) != 0 && errno == ECONNREFUSED;
    if (fd >= 0) close(fd);
    if (!dead) {
      return absl::FailedPreconditionError(absl::StrCat("cannot listen on unix:", path, ": another process does"));
    }
    unlink(path.c_str());
  }
  Open(true);
  unix_path_ = path;
  int error = uv_pipe_bind(&stream_->uv.pipe, path.c_str());
  if (error == 0) error = StartListening();
  if (error != 0) {
    return absl::FailedPreconditionError(absl::StrCat("cannot listen on unix:", path, ": ", uv_strerror(error)));
  }
  address = absl::StrCat("unix:", path);
  return absl::OkStatus();
}

absl::Status ListenerImpl::ListenOnSocket(absl::string_view text, const sockaddr* socket_address) {
  Open(false);
  int error = uv_tcp_bind(&stream_->uv.tcp, socket_address, 0);
  if (error == 0) error = StartListening();  // libuv reports a busy port here only
  if (error == UV_EADDRINUSE) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot listen on ", text, ": the port is in use by another process; choose another one (0: any free)"));
  }
  if (error != 0)
    return absl::FailedPreconditionError(absl::StrCat("cannot listen on ", text, ": ", uv_strerror(error)));
  sockaddr_storage bound;
  int size = sizeof(bound);
  std::memset(&bound, 0, sizeof(bound));
  uv_tcp_getsockname(&stream_->uv.tcp, reinterpret_cast<sockaddr*>(&bound), &size);
  port = SocketAddressPort(bound);
  address = SocketAddressToString(bound);
  // A wildcard address is no destination.
  if (absl::StartsWith(address, "[::]:")) address = absl::StrCat("[::1]:", port);
  if (absl::StartsWith(address, "0.0.0.0:")) address = absl::StrCat("127.0.0.1:", port);
  return absl::OkStatus();
}

absl::Status ListenerImpl::Listen(absl::string_view text) {
  if (absl::StartsWith(text, "unix:")) return ListenOnPath(std::string(text.substr(5)));
  absl::StatusOr<HostPort> parsed = ParseHostPort(text);
  if (!parsed.ok()) return parsed.status();
  if (parsed->host.empty()) {
    sockaddr_in6 any6;
    uv_ip6_addr("::", parsed->port, &any6);
    absl::Status status = ListenOnSocket(text, reinterpret_cast<sockaddr*>(&any6));
    if (status.ok() || absl::StrContains(status.message(), "in use")) return status;
    Close();  // a machine without IPv6
    sockaddr_in any4;
    uv_ip4_addr("0.0.0.0", parsed->port, &any4);
    return ListenOnSocket(text, reinterpret_cast<sockaddr*>(&any4));
  }
  addrinfo hints;
  std::memset(&hints, 0, sizeof(hints));
  hints.ai_socktype = SOCK_STREAM;
  if (parsed->host == "localhost") hints.ai_family = AF_INET;  // one family; clients try both
  uv_getaddrinfo_t request;
  const int error =
      uv_getaddrinfo(loop_->uv(), &request, nullptr, parsed->host.c_str(), absl::StrCat(parsed->port).c_str(), &hints);
  if (error != 0) {
    return absl::InvalidArgumentError(absl::StrCat("cannot listen on ", text, ": ", uv_strerror(error)));
  }
  absl::Status status = ListenOnSocket(text, request.addrinfo->ai_addr);
  uv_freeaddrinfo(request.addrinfo);
  return status;
}

void ListenerImpl::Close() {
  if (stream_ == nullptr) return;
  Stream* dropped = std::exchange(stream_, nullptr);
  uv_close(&dropped->uv.handle, [](uv_handle_t* handle) { delete static_cast<Stream*>(handle->data); });
}

Listener::Listener(std::shared_ptr<ListenerImpl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Listen(Loop* loop, absl::string_view address, OnAccept on_accept) {
  auto impl = std::make_shared<ListenerImpl>(loop, std::move(on_accept));
  std::unique_ptr<Listener> listener(new Listener(impl));
  if (absl::Status status = impl->Listen(address); !status.ok()) return status;
  return listener;
}

Listener::~Listener() {
  impl_->Close();  // libuv unlinks a unix socket's file
  impl_->Forget();
}
int Listener::port() const { return impl_->port; }
std::string Listener::address() const { return impl_->address; }

}  // namespace landbridge
