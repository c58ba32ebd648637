#include "dataplane/socket_host.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status.h"
#include "dataplane/interfaces.h"
#include "dataplane/socket_transport.h"
#include "dataplane/transfer_plane.h"
#include "env/clock.h"

namespace landbridge::dataplane {
namespace {

constexpr StreamId kWake(1), kTcpListener(2), kLocalListener(3);
constexpr absl::string_view kLocalScheme = "local:";

Nonce RandomNonce() {
  const std::string bytes = SystemRandom().NextBytes(sizeof(Nonce));
  Nonce nonce;
  std::memcpy(nonce.data(), bytes.data(), nonce.size());
  return nonce;
}

absl::Status SystemError(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// An abstract name: no file, gone with the socket.
socklen_t FillLocal(const std::string& name, sockaddr_un* to) {
  *to = {};
  to->sun_family = AF_UNIX;
  std::memcpy(to->sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

void SetOption(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof(value)); }

void TuneTcp(int fd) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // For peers whose host vanished without a word; processes that end are seen at once.
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, static_cast<int>(limits::kTransferKeepAlive / kSecond));
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, static_cast<int>(limits::kTransferKeepAlive / kSecond));
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

}  // namespace

absl::StatusOr<std::shared_ptr<DataPlaneHost>> MakeSocketHost(SocketOptions options) {
  return SocketHost::Start(std::move(options));
}

absl::StatusOr<std::unique_ptr<DataPlane>> MakeSocketDataPlane(DataPlaneOptions base, SocketOptions options) {
  LB_ASSIGN_OR_RETURN(std::shared_ptr<SocketHost> host, SocketHost::Start(std::move(options)));
  return host->Open(std::move(base));
}

SocketHost::SocketHost(SocketOptions options)
    : options_(std::move(options)),
      probe_(std::make_unique<const Nonce>(RandomNonce())),
      scratch_(limits::kTransferScratchBytes) {}

absl::StatusOr<std::shared_ptr<SocketHost>> SocketHost::Start(SocketOptions options) {
  std::shared_ptr<SocketHost> host(new SocketHost(std::move(options)));
  LB_RETURN_IF_ERROR(host->Init());
  host->thread_ = std::thread([raw = host.get()] {
    pthread_setname_np(pthread_self(), "lb_dataplane");
    raw->Loop();
  });
  return host;
}

SocketHost::~SocketHost() {
  stop_.store(true);
  Wake();
  if (thread_.joinable()) thread_.join();
  for (const auto& [id, stream] : streams_) close(stream->fd);
  for (int fd : {tcp_listener_, local_listener_, wake_, epoll_}) {
    if (fd >= 0) close(fd);
  }
}

absl::Status SocketHost::Init() {
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (epoll_ < 0 || wake_ < 0) return absl::FailedPreconditionError(SystemError("data plane").message());
  LB_RETURN_IF_ERROR(ListenTcp());
  own_.machine = MachineName();
  if (options_.local_sockets && !own_.machine.empty()) LB_RETURN_IF_ERROR(ListenLocal());
  address_ = EncodeHostAddress(own_);
  for (const auto& [fd, id] :
       {std::pair(wake_, kWake), {tcp_listener_, kTcpListener}, {local_listener_, kLocalListener}}) {
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.u64 = id.value();
    if (fd >= 0) epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
  }
  return absl::OkStatus();
}

absl::Status SocketHost::ListenTcp() {
  sockaddr_storage address = {};
  socklen_t length = 0;
  LB_ASSIGN_OR_RETURN(std::vector<std::string> ips, ReachableAddresses(options_.listen_address));
  if (!ParseEndpoint(options_.listen_address == "localhost" ? "127.0.0.1" : options_.listen_address, 0, &address,
                     &length)) {
    return absl::FailedPreconditionError(
        absl::StrCat("data plane: ", options_.listen_address, " is not a numeric network address"));
  }
  tcp_listener_ = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (tcp_listener_ < 0) return absl::FailedPreconditionError(SystemError("data plane: socket").message());
  if (address.ss_family == AF_INET6) SetOption(tcp_listener_, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(tcp_listener_, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(tcp_listener_, SOMAXCONN) != 0 ||
      getsockname(tcp_listener_, reinterpret_cast<sockaddr*>(&address), &(length = sizeof(address))) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("data plane: cannot listen on ", options_.listen_address, ": ", std::strerror(errno)));
  }
  const int port = ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                                       : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
  for (const std::string& ip : ips) own_.tcp.push_back(JoinEndpoint(ip, port));
  return absl::OkStatus();
}

absl::Status SocketHost::ListenLocal() {
  own_.local = absl::StrCat("landbridge-", absl::BytesToHexString(SystemRandom().NextBytes(16)));
  sockaddr_un address;
  const socklen_t length = FillLocal(own_.local, &address);
  local_listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (local_listener_ < 0 || bind(local_listener_, reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(local_listener_, SOMAXCONN) != 0) {
    return absl::FailedPreconditionError(SystemError("data plane: local socket").message());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DataPlane>> SocketHost::Open(DataPlaneOptions options) {
  auto transport = std::make_unique<SocketTransport>(shared_from_this(), options.self, options.token);
  return TransferPlane::Make(std::move(options), std::move(transport));
}

// --- Commands.

void SocketHost::Wake() {
  if (!asleep_.exchange(false)) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(wake_, &one, sizeof(one));
}

void SocketHost::Run(std::function<void()> command) {
  absl::Notification done;
  {
    absl::MutexLock lock(&mutex_);
    commands_.push_back([&] {
      command();
      done.Notify();
    });
    has_commands_.store(true);
  }
  Wake();
  done.WaitForNotification();
}

bool SocketHost::RunCommands() {
  if (!has_commands_.load()) return false;
  std::vector<std::function<void()>> commands;
  {
    absl::MutexLock lock(&mutex_);
    commands.swap(commands_);
    has_commands_.store(false);
  }
  for (const auto& command : commands) command();
  return true;
}

absl::Status SocketHost::Add(PeerId self, SocketTransport* transport) {
  if (transports_.emplace(self, transport).second) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat("this process carries peer ", self.ToString(), " already"));
}

// --- The loop.

void SocketHost::Loop() {
  TimeNs last = MonotonicClock().Now();
  std::array<epoll_event, 64> events;
  std::vector<SocketTransport*> transports;
  while (!stop_.load()) {
    bool busy = RunCommands();
    transports.clear();
    for (const auto& [self, transport] : transports_) transports.push_back(transport);
    for (SocketTransport* transport : transports) busy |= transport->Turn();
    if (options_.spin > 0) {
      const TimeNs now = MonotonicClock().Now();
      if (busy) last = now;
      busy |= now - last < options_.spin;
    }
    if (!busy) {
      asleep_.store(true);
      // What was posted before asleep_ was set did not wake us.
      bool pending = has_commands_.load() || stop_.load();
      for (SocketTransport* transport : transports) pending |= transport->HasPending();
      if (pending) {
        asleep_.store(false);
        busy = true;
      }
    }
    const int n = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), WaitMs(busy));
    asleep_.store(false);
    for (size_t i = 0; static_cast<int>(i) < n; ++i) OnEvent(StreamId(events[i].data.u64), events[i].events);
    if (n > 0 && options_.spin > 0) last = MonotonicClock().Now();
    CheckDeadlines();
  }
}

int SocketHost::WaitMs(bool busy) {
  if (busy) return 0;
  TimeNs next = accept_again_;
  if (!deadlines_.empty() && (next == 0 || deadlines_.front().first < next)) next = deadlines_.front().first;
  for (const auto& [self, transport] : transports_) {
    const TimeNs deadline = transport->NextDeadline();
    if (deadline != 0 && (next == 0 || deadline < next)) next = deadline;
  }
  if (next == 0) return -1;
  const DurationNs left = next - MonotonicClock().Now();
  return left <= 0 ? 0 : static_cast<int>(left / kMillisecond) + 1;
}

void SocketHost::OnEvent(StreamId id, uint32_t events) {
  if (id == kWake) {
    uint64_t count;
    [[maybe_unused]] const ssize_t n = read(wake_, &count, sizeof(count));
    return;
  }
  if (id == kTcpListener) return Accept(tcp_listener_, false);
  if (id == kLocalListener) return Accept(local_listener_, true);
  Stream* stream = Find(id);  // an earlier event of this round may have ended it
  if (stream == nullptr) return;
  switch (stream->state) {
    case Stream::State::kDialling: return OnDialled(*stream);
    case Stream::State::kGreeting: return Greet(*stream);
    case Stream::State::kUp:
      if ((events & EPOLLOUT) != 0) stream->owner->OnWritable(*stream);
      if ((events & ~static_cast<uint32_t>(EPOLLOUT)) == 0) return;
      stream = Find(id);
      if (stream != nullptr) stream->owner->OnReadable(*stream);
  }
}

void SocketHost::CheckDeadlines() {
  if (deadlines_.empty() && accept_again_ == 0) return;
  const TimeNs now = MonotonicClock().Now();
  while (!deadlines_.empty() && deadlines_.front().first <= now) {
    Stream* stream = Find(deadlines_.front().second);
    deadlines_.pop_front();
    if (stream == nullptr || stream->state == Stream::State::kUp) continue;
    const absl::Status why = absl::UnavailableError("no answer in time");
    if (stream->state == Stream::State::kDialling) {
      DialNext(*stream, why);
    } else {
      End(*stream, why);
    }
  }
  if (accept_again_ != 0 && accept_again_ <= now) {
    accept_again_ = 0;
    for (const auto& [fd, id] : {std::pair(tcp_listener_, kTcpListener), {local_listener_, kLocalListener}}) {
      epoll_event event = {};
      event.events = EPOLLIN;
      event.data.u64 = id.value();
      if (fd >= 0) epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
    }
  }
}

// --- Streams.

Stream* SocketHost::Find(StreamId id) {
  auto it = streams_.find(id);
  return it == streams_.end() ? nullptr : it->second.get();
}

void SocketHost::Arm(Stream& stream, bool fresh) {
  epoll_event event = {};
  event.events = EPOLLIN;
  if (stream.writing || stream.state == Stream::State::kDialling) event.events |= EPOLLOUT;
  event.data.u64 = stream.id.value();
  epoll_ctl(epoll_, fresh ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, stream.fd, &event);
}

void SocketHost::SetWriting(Stream& stream, bool writing) {
  if (stream.writing == writing) return;
  stream.writing = writing;
  Arm(stream, /*fresh=*/false);
}

bool SocketHost::HungUp(const Stream& stream) {
  pollfd asked = {stream.fd, POLLRDHUP, 0};
  return poll(&asked, 1, 0) > 0;
}

void SocketHost::Close(StreamId id) {
  auto it = streams_.find(id);
  if (it == streams_.end()) return;
  if (it->second->fd >= 0) close(it->second->fd);
  streams_.erase(it);
}

void SocketHost::End(Stream& stream, const absl::Status& why) {
  if (stream.owner == nullptr) return Close(stream.id);
  stream.owner->OnStreamEnd(stream, why);  // closes it
}

// --- Accepting.

void SocketHost::Accept(int listener, bool local) {
  while (true) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) PauseAccepting();
      if (errno == ECONNABORTED || errno == EINTR) continue;
      return;
    }
    // Whoever does not say hello in time makes room for others.
    while (!greeting_.empty() &&
           (Find(greeting_.front()) == nullptr || Find(greeting_.front())->state == Stream::State::kUp ||
            greeting_.size() >= limits::kTransferHandshakesMax)) {
      if (Stream* old = Find(greeting_.front()); old != nullptr && old->state != Stream::State::kUp) Close(old->id);
      greeting_.pop_front();
    }
    auto stream = std::make_unique<Stream>();
    stream->id = NewStream();
    stream->fd = fd;
    stream->local = local;
    stream->challenge = RandomNonce();
    if (!local) TuneTcp(fd);
    Stream& placed = *(streams_[stream->id] = std::move(stream));
    greeting_.push_back(placed.id);
    deadlines_.emplace_back(MonotonicClock().Now() + limits::kTransferHandshakeTimeout, placed.id);
    Arm(placed, /*fresh=*/true);
    if (!Say(placed, EncodeChallenge(placed.challenge))) Close(placed.id);
  }
}

void SocketHost::PauseAccepting() {
  if (accept_again_ != 0) return;
  LogWarning("data plane: cannot accept connections (", std::strerror(errno), "); trying again soon");
  accept_again_ = MonotonicClock().Now() + limits::kTransferAcceptPause;
  for (int fd : {tcp_listener_, local_listener_}) {
    if (fd >= 0) epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr);
  }
}

// --- Dialling.

bool SocketHost::IsNear(const HostAddress& to) const {
  return !own_.local.empty() && !to.local.empty() && to.machine == own_.machine;
}

void SocketHost::Dial(StreamId id, SocketTransport* owner, const HostAddress& to, const Hello& hello) {
  auto made = std::make_unique<Stream>();
  Stream& stream = *made;
  streams_[id] = std::move(made);
  stream.id = id;
  stream.dialled = true;
  stream.owner = owner;
  stream.peer = hello.to;
  stream.kind = hello.kind;
  stream.hello = hello;
  stream.hello.nonce = RandomNonce();
  if (IsNear(to)) {
    stream.endpoints.push_back(absl::StrCat(kLocalScheme, to.local));
  }
  stream.endpoints.insert(stream.endpoints.end(), to.tcp.begin(), to.tcp.end());
  DialNext(stream, absl::UnavailableError("no address of the peer can be reached from here"));
}

void SocketHost::DialNext(Stream& stream, const absl::Status& last) {
  if (stream.fd >= 0) close(std::exchange(stream.fd, -1));
  absl::Status why = last;
  while (!stream.endpoints.empty()) {
    const std::string endpoint = std::move(stream.endpoints.front());
    stream.endpoints.pop_front();
    const bool local = absl::StartsWith(endpoint, kLocalScheme);
    if (local ? DialLocal(stream, endpoint.substr(kLocalScheme.size())) : DialTcp(stream, endpoint)) {
      deadlines_.emplace_back(MonotonicClock().Now() + limits::kTransferHandshakeTimeout, stream.id);
      Arm(stream, /*fresh=*/true);
      return;
    }
    why = SystemError(absl::StrCat("connecting to ", local ? "a local socket" : endpoint));
    if (stream.fd >= 0) close(std::exchange(stream.fd, -1));
  }
  End(stream, why);
}

bool SocketHost::DialLocal(Stream& stream, const std::string& name) {
  sockaddr_un address;
  if (name.size() + 1 > sizeof(address.sun_path)) {
    errno = EINVAL;
    return false;
  }
  const socklen_t length = FillLocal(name, &address);
  stream.local = true;
  stream.state = Stream::State::kGreeting;
  stream.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  return stream.fd >= 0 && connect(stream.fd, reinterpret_cast<const sockaddr*>(&address), length) == 0;
}

bool SocketHost::DialTcp(Stream& stream, const std::string& endpoint) {
  sockaddr_storage address = {};
  socklen_t length = 0;
  if (!SplitEndpoint(endpoint, &address, &length)) {
    errno = EINVAL;
    return false;
  }
  stream.local = false;
  stream.fd = socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (stream.fd < 0) return false;
  TuneTcp(stream.fd);
  stream.state = Stream::State::kDialling;
  if (connect(stream.fd, reinterpret_cast<const sockaddr*>(&address), length) == 0) {
    stream.state = Stream::State::kGreeting;
    return true;
  }
  return errno == EINPROGRESS;
}

void SocketHost::OnDialled(Stream& stream) {
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(stream.fd, SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) {
    errno = error;
    return DialNext(stream, SystemError("connecting"));
  }
  stream.state = Stream::State::kGreeting;
  Arm(stream, /*fresh=*/false);
  Greet(stream);
}

// --- Handshakes.

bool SocketHost::Say(Stream& stream, const std::string& bytes) {
  // A fresh socket has room for far more.
  return send(stream.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

void SocketHost::Greet(Stream& stream) {
  // Never more than the next part of the handshake: what follows it is read by its owner.
  const size_t wanted = !stream.dialled ? kHelloBytes : stream.challenge != Nonce{} ? kWelcomeBytes : kChallengeBytes;
  char bytes[kHelloBytes];
  const ssize_t n = recv(stream.fd, bytes, wanted - stream.input.size(), 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    const absl::Status why = n == 0 ? absl::UnavailableError("closed by the peer") : SystemError("connecting");
    return End(stream, why);
  }
  stream.input.append(bytes, static_cast<size_t>(n));
  if (stream.input.size() < wanted) return;
  if (!stream.dialled) return OnHello(stream);
  stream.challenge != Nonce{} ? OnWelcome(stream) : OnChallenge(stream);
}

void SocketHost::OnChallenge(Stream& stream) {
  const std::optional<Nonce> challenge = DecodeChallenge(std::exchange(stream.input, {}));
  if (!challenge.has_value() || *challenge == Nonce{}) {
    return End(stream, absl::UnavailableError("the other end does not speak the data plane's language"));
  }
  stream.challenge = *challenge;
  if (!Say(stream, EncodeHello(stream.hello, *challenge, stream.owner->token()))) {
    End(stream, SystemError("connecting"));
  }
}

void SocketHost::OnHello(Stream& stream) {
  const std::string bytes = std::exchange(stream.input, {});
  const std::optional<Hello> hello = DecodeHello(bytes);
  if (!hello.has_value()) return Close(stream.id);
  auto found = transports_.find(hello->to);
  Verdict verdict = Verdict::kNotHere;
  Token token;
  if (found != transports_.end()) {
    SocketTransport* transport = found->second;
    token = transport->token();
    verdict = Verdict::kWrongToken;
    if (HelloIsGenuine(bytes, stream.challenge, token)) {
      ucred peer = {};
      socklen_t length = sizeof(peer);
      if (stream.local) getsockopt(stream.fd, SOL_SOCKET, SO_PEERCRED, &peer, &length);
      stream.kind = hello->kind;
      stream.peer = hello->from;
      verdict = transport->OnHello(stream, *hello, peer.pid);
      if (verdict == Verdict::kWelcome) {
        stream.owner = transport;
        stream.state = Stream::State::kUp;
      }
    }
  }
  const bool said = Say(stream, EncodeWelcome(verdict, hello->nonce, token));
  if (stream.owner == nullptr) {
    if (verdict == Verdict::kWrongToken) {
      LogWarning("data plane: refused a connection for ", hello->to.ToString(), ": it is of another cluster");
    }
    return Close(stream.id);
  }
  if (!said) End(stream, SystemError("accepting"));
}

void SocketHost::OnWelcome(Stream& stream) {
  const absl::Status verdict = CheckWelcome(std::exchange(stream.input, {}), stream.hello.nonce, stream.owner->token());
  if (!verdict.ok()) return End(stream, verdict);
  stream.state = Stream::State::kUp;
  stream.owner->OnUp(stream);
}

}  // namespace landbridge::dataplane
