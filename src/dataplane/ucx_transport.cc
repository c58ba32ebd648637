#include "dataplane/ucx_transport.h"

#include <poll.h>
#include <pthread.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status.h"
#include "dataplane/transfer_plane.h"
#include "dataplane/ucx_library.h"

namespace landbridge::dataplane {
namespace {

constexpr unsigned kActiveMessageId = 1;

absl::Status FromUcx(ucs_status_t status, absl::string_view what) {
  if (status == UCS_OK) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(what, ": ", UcxText(status)));
}

// UCX 1.13 tells an endpoint's lanes in print only.
bool UsesTcp(ucp_ep_h endpoint) {
  char* text = nullptr;
  size_t size = 0;
  FILE* stream = open_memstream(&text, &size);
  if (stream == nullptr) return true;
  ucp_ep_print_info(endpoint, stream);
  std::fclose(stream);
  const bool tcp = absl::StrContains(absl::string_view(text, size), ":tcp/");
  std::free(text);
  return tcp;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> UcxTransport::Make(const UcxOptions& options) {
  std::unique_ptr<UcxTransport> transport(new UcxTransport());
  transport->spin_ = options.spin;
  LB_ASSIGN_OR_RETURN(transport->context_, MakeUcxContext(options.listen_address, options.transports));
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucs_status_t s = ucp_worker_create(transport->context_, &params, &transport->worker_);
  if (s != UCS_OK) {
    return absl::FailedPreconditionError(absl::StrCat("UCX worker: ", UcxText(s)));
  }
  LB_RETURN_IF_ERROR(CheckUcxOptionsTaken());
  s = ucp_worker_get_efd(transport->worker_, &transport->event_fd_);
  if (s != UCS_OK) {
    return absl::FailedPreconditionError(absl::StrCat("UCX event descriptor: ", UcxText(s)));
  }
  ucp_am_handler_param_t handler = {};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kActiveMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = &OnActiveMessage;
  handler.arg = transport.get();
  s = ucp_worker_set_am_recv_handler(transport->worker_, &handler);
  if (s != UCS_OK) {
    return absl::FailedPreconditionError(absl::StrCat("UCX active messages: ", UcxText(s)));
  }
  ucp_address_t* address = nullptr;
  size_t length = 0;
  s = ucp_worker_get_address(transport->worker_, &address, &length);
  if (s != UCS_OK) {
    return absl::FailedPreconditionError(absl::StrCat("UCX address: ", UcxText(s)));
  }
  transport->address_.assign(reinterpret_cast<const char*>(address), length);
  ucp_worker_release_address(transport->worker_, address);
  return transport;
}

UcxTransport::~UcxTransport() {
  Stop();
  if (leak_) return;
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

absl::Status UcxTransport::Start(TransportEvents* events) {
  events_ = events;
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "lb_dataplane");
    Loop();
  });
  return absl::OkStatus();
}

void UcxTransport::Stop() {
  if (stopped_) return;
  stopped_ = true;
  if (!thread_.joinable()) return;
  stop_ = true;
  ucp_worker_signal(worker_);
  thread_.join();
}

void UcxTransport::Wake() {
  if (asleep_.exchange(false)) ucp_worker_signal(worker_);
}

bool UcxTransport::Progress() {
  const unsigned events = ucp_worker_progress(worker_);
  HandleBroken();
  const bool ran = events_->RunPending();
  return events > 0 || ran;
}

void UcxTransport::Loop() {
  using Clock = std::chrono::steady_clock;
  Clock::time_point last = Clock::now();
  while (!stop_.load(std::memory_order_relaxed)) {
    if (Progress()) {
      if (spin_ > 0) last = Clock::now();
      continue;
    }
    if (spin_ > 0 && Clock::now() - last < std::chrono::nanoseconds(spin_)) continue;
    const ucs_status_t armed = ucp_worker_arm(worker_);
    if (armed == UCS_ERR_BUSY) continue;
    if (armed != UCS_OK) LogError("data plane: cannot arm the UCX worker: ", UcxText(armed));
    asleep_.store(true);
    // A command posted before asleep_ was set did not signal.
    if (events_->HasPending() || stop_.load()) {
      asleep_.store(false);
      continue;
    }
    pollfd waited = {event_fd_, POLLIN, 0};
    poll(&waited, 1, PollTimeout(armed == UCS_OK));
    asleep_.store(false);
    if (spin_ > 0) last = Clock::now();
  }
  // What is left is ours alone: close, and progress until UCX has let go of every record.
  std::vector<PeerId> peers;
  for (const auto& [peer, connection] : connections_) peers.push_back(peer);
  for (PeerId peer : peers) Close(peer);
  // A peer that lives reads on or closes its end soon; one that is stopped does neither.
  const Clock::time_point patience = Clock::now() + std::chrono::nanoseconds(limits::kTransferPartingPatience);
  while (!parked_.empty() && Clock::now() < patience) {
    ucp_worker_progress(worker_);
    HandleBroken();
  }
  if (!parked_.empty()) {
    // Neither closing nor destroying is safe then, and the process is about to end.
    LogWarning("data plane: leaving ", parked_.size(), " TCP connections in the middle of a send");
    // Nobody makes progress on this worker any more, so nobody reads what the sends point to.
    for (SendRecord* record : sends_) record->chunk = Chunk();
    leak_ = true;
    return;
  }
  while (!closing_.empty() || operations_ > 0) ucp_worker_progress(worker_);
  // Closed endpoints still take their lanes apart behind our back; destroying the worker before that is a failed
  // assertion in UCX. Its flush counts them.
  ucp_request_param_t param = {};
  const ucs_status_ptr_t flush = ucp_worker_flush_nbx(worker_, &param);
  if (UCS_PTR_IS_PTR(flush)) {
    while (ucp_request_check_status(flush) == UCS_INPROGRESS) ucp_worker_progress(worker_);
    ucp_request_free(flush);
  }
}

int UcxTransport::PollTimeout(bool armed) const {
  // An unarmed worker is polled: slow, but alive. Closing endpoints are taken apart by callbacks that no event
  // announces, and CMA has no events at all: a look now and then, so that nothing that UCX forgot to count is lost.
  constexpr int kClosingMs = 1, kOperationsMs = 20;
  if (!armed || !closing_.empty()) return kClosingMs;
  return operations_ > 0 ? kOperationsMs : -1;
}

// --- Connections.

absl::Status UcxTransport::Connect(PeerId peer, const std::string& address) {
  if (connections_.contains(peer)) return absl::OkStatus();
  auto connection = std::make_shared<Connection>();
  connection->transport = this;
  connection->peer = peer;
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_USER_DATA;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &OnEndpointError;
  params.err_handler.arg = connection.get();
  params.user_data = connection.get();
  const ucs_status_t s = ucp_ep_create(worker_, &params, &connection->endpoint);
  if (s != UCS_OK) return FromUcx(s, "cannot connect");
  connections_.emplace(peer, std::move(connection));
  return absl::OkStatus();
}

void UcxTransport::OnEndpointError(void* argument, ucp_ep_h, ucs_status_t status) {
  auto* connection = static_cast<Connection*>(argument);
  if (connection->broken) return;
  connection->broken = true;
  connection->transport->broken_.push_back({connection->peer, connection, status});
}

void UcxTransport::HandleBroken() {
  while (!broken_.empty() || !idle_parked_.empty()) {
    for (Connection* idle : std::exchange(idle_parked_, {})) {
      auto parked = parked_.find(idle);
      if (parked == parked_.end()) continue;
      std::shared_ptr<Connection> connection = std::move(parked->second);
      parked_.erase(parked);
      ForceClose(std::move(connection));
    }
    const std::vector<Broken> broken = std::exchange(broken_, {});
    for (const Broken& b : broken) {
      auto it = connections_.find(b.peer);
      if (it != connections_.end() && it->second.get() == b.connection) {
        events_->OnBroken(b.peer, FromUcx(b.status, "UCX"));
      } else if (auto parked = parked_.find(b.connection); parked != parked_.end()) {
        std::shared_ptr<Connection> connection = std::move(parked->second);
        parked_.erase(parked);
        ForceClose(std::move(connection));
      }
    }
  }
}

void UcxTransport::Close(PeerId peer) {
  auto it = connections_.find(peer);
  if (it == connections_.end()) return;
  std::shared_ptr<Connection> connection = std::move(it->second);
  connections_.erase(it);
  // UCX 1.13 crashes when a TCP endpoint is force-closed in the middle of a send, which a stopped receiver makes
  // likely: the socket lives on for receiving, with the send's remains in it.
  if (connection->sends > 0 && !connection->broken && UsesTcp(connection->endpoint)) {
    Park(std::move(connection));
  } else {
    ForceClose(std::move(connection));
  }
}

// To everybody else the connection is closed: its sends have ended, what still comes in is dropped by the shell. The
// chunks' owners are held until UCX lets go of them: when the peer reads on, or its death breaks the connection.
void UcxTransport::Park(std::shared_ptr<Connection> connection) {
  std::vector<SendRecord*> records;
  for (SendRecord* record : sends_) {
    if (record->connection == connection && record->serve.valid()) records.push_back(record);
  }
  Connection* key = connection.get();
  parked_.emplace(key, std::move(connection));
  for (SendRecord* record : records) {
    const ServeId serve = std::exchange(record->serve, ServeId());
    events_->OnSent(serve, record->peer, record->chunk.size, absl::UnavailableError("connection closed"));
  }
}

void UcxTransport::ForceClose(std::shared_ptr<Connection> connection) {
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.cb.send = &OnCloseCompleted;
  param.user_data = connection.get();
  Connection* key = connection.get();
  closing_.emplace(key, std::move(connection));
  const ucs_status_ptr_t request = ucp_ep_close_nbx(key->endpoint, &param);
  if (request == nullptr || UCS_PTR_IS_ERR(request)) closing_.erase(key);
}

void UcxTransport::OnCloseCompleted(void* request, ucs_status_t, void* argument) {
  auto* connection = static_cast<Connection*>(argument);
  connection->transport->closing_.erase(connection);
  ucp_request_free(request);
}

// --- Sending.

void UcxTransport::Post(SendRecord* record, const void* data, size_t size, uint32_t flags) {
  auto it = connections_.find(record->peer);
  if (it == connections_.end()) {
    ++operations_;
    SendEnded(record, UCS_ERR_NOT_CONNECTED);
    return;
  }
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = &OnSendCompleted;
  param.user_data = record;
  param.flags = flags;
  ++operations_;
  record->connection = it->second;
  ++record->connection->sends;
  sends_.insert(record);
  const ucs_status_ptr_t request = ucp_am_send_nbx(it->second->endpoint, kActiveMessageId, record->header.data(),
                                                   record->header.size(), data, size, &param);
  if (request == nullptr) {
    SendEnded(record, UCS_OK);
  } else if (UCS_PTR_IS_ERR(request)) {
    SendEnded(record, UCS_PTR_STATUS(request));
  }
}

void UcxTransport::Send(PeerId peer, const Message& message, std::string text) {
  auto* record = new SendRecord();
  record->transport = this;
  record->peer = peer;
  record->text = std::move(text);
  EncodeMessage(message, record->header);
  Post(record, record->text.data(), record->text.size(), UCP_AM_SEND_FLAG_EAGER);
}

void UcxTransport::SendData(SendChunk send) {
  auto* record = new SendRecord();
  record->transport = this;
  record->peer = send.peer;
  record->chunk = std::move(send.chunk);
  record->serve = send.serve;
  EncodeMessage(send.message, record->header);
  const bool eager = record->chunk.size <= limits::kTransferInlineBytesMax;
  Post(record, record->chunk.data, record->chunk.size, eager ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV);
}

void UcxTransport::OnSendCompleted(void* request, ucs_status_t status, void* argument) {
  auto* record = static_cast<SendRecord*>(argument);
  record->transport->SendEnded(record, status);
  ucp_request_free(request);
}

void UcxTransport::SendEnded(SendRecord* record, ucs_status_t status) {
  --operations_;
  sends_.erase(record);
  if (Connection* connection = record->connection.get(); connection != nullptr && --connection->sends == 0) {
    if (parked_.contains(connection)) idle_parked_.push_back(connection);
  }
  if (!stop_.load(std::memory_order_relaxed)) {
    if (record->serve.valid()) {
      events_->OnSent(record->serve, record->peer, record->chunk.size, FromUcx(status, "send"));
    } else if (status != UCS_OK) {
      // A message that nobody waits for is lost: the peer must not wait for it either.
      auto it = connections_.find(record->peer);
      if (it != connections_.end() && it->second == record->connection) {
        OnEndpointError(it->second.get(), it->second->endpoint, status);
      }
    }
  }
  delete record;
}

// --- Receiving.

ucs_status_t UcxTransport::OnActiveMessage(void* self, const void* header, size_t header_length, void* data,
                                           size_t length, const ucp_am_recv_param_t* param) {
  auto* transport = static_cast<UcxTransport*>(self);
  if (transport->stop_.load(std::memory_order_relaxed)) return UCS_OK;
  const std::optional<Message> message =
      DecodeMessage({static_cast<const std::byte*>(header), header_length});
  if (!message.has_value()) {
    transport->events_->OnMalformed();
    return UCS_OK;
  }
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) {
    transport->events_->OnMessage(*message, {static_cast<const std::byte*>(data), length});
    return UCS_OK;
  }
  const OfferId offer(transport->next_offer_++);
  transport->offers_.emplace(offer, data);
  if (!transport->events_->OnOffer(*message, length, offer)) {
    transport->offers_.erase(offer);
    return UCS_OK;  // UCX tells the sender
  }
  return UCS_INPROGRESS;
}

void UcxTransport::Receive(const StartReceive& receive) {
  auto it = offers_.find(receive.offer);
  LB_CHECK(it != offers_.end());
  void* descriptor = it->second;
  offers_.erase(it);
  auto* record = new ReceiveRecord{this, receive.peer, receive.receive, receive.size};
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.cb.recv_am = &OnReceiveCompleted;
  param.user_data = record;
  ++operations_;
  const ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker_, descriptor, receive.dst, receive.size, &param);
  if (request == nullptr) {
    ReceiveEnded(record, UCS_OK);
  } else if (UCS_PTR_IS_ERR(request)) {
    ReceiveEnded(record, UCS_PTR_STATUS(request));
  }
}

void UcxTransport::OnReceiveCompleted(void* request, ucs_status_t status, size_t length, void* argument) {
  auto* record = static_cast<ReceiveRecord*>(argument);
  if (status == UCS_OK && length != record->size) status = UCS_ERR_MESSAGE_TRUNCATED;
  record->transport->ReceiveEnded(record, status);
  ucp_request_free(request);
}

void UcxTransport::ReceiveEnded(ReceiveRecord* record, ucs_status_t status) {
  --operations_;
  if (!stop_.load(std::memory_order_relaxed)) {
    events_->OnLanded(record->receive, record->peer, record->size, FromUcx(status, "receive"));
  }
  delete record;
}

void UcxTransport::Reject(OfferId offer) {
  auto it = offers_.find(offer);
  LB_CHECK(it != offers_.end());
  void* descriptor = it->second;
  offers_.erase(it);
  ucp_am_data_release(worker_, descriptor);
}

absl::StatusOr<std::unique_ptr<DataPlane>> MakeUcxDataPlane(UcxOptions options) {
  LB_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport, UcxTransport::Make(options));
  return TransferPlane::Make(std::move(options.base), std::move(transport));
}

}  // namespace landbridge::dataplane
