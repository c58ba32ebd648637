#include "frontdoor/ifrt_proxy/session_core.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "frontdoor/ifrt_proxy/init_response.h"
#include "frontdoor/ifrt_proxy/wire.h"

namespace landbridge {

namespace proxy = xla::ifrt::proxy;

SessionCore::SessionCore(Options options, Controller* controller, SessionHost* host)
    : options_(std::move(options)), controller_(controller), host_(host) {}

SessionCore::~SessionCore() = default;

void SessionCore::SetDevices(const DeviceCatalog* catalog) {
  catalog_ = catalog;
  for (const WaitingInit& waiting : std::exchange(waiting_inits_, {})) AnswerInit(waiting.op);
}

void SessionCore::ExpireInits(TimeNs before, const absl::Status& why) {
  for (WaitingInit& waiting : std::exchange(waiting_inits_, {})) {
    if (waiting.since <= before) {
      Fail(waiting.op, why);
    } else {
      waiting_inits_.push_back(std::move(waiting));
    }
  }
}

SessionCore::Counts SessionCore::counts() const {
  Counts counts;
  counts.arrays = arrays_.size();
  counts.executables = executables_.size();
  counts.futures = futures_.size();
  counts.pending = waits_.size() + reads_.size() + compiles_.size() + waiting_inits_.size() + programs_fetched_.size() +
                   memory_questions_.size();
  counts.contexts_held = contexts_.held();
  counts.contexts_kept_back = contexts_.kept_back();
  return counts;
}

// ---------------------------------------------------------------- dispatch

namespace {

// Whether a client may stop for the answer. It does not for results that it has given numbers to, nor for what it
// drops. (Of an array that is deleted it asks for the future next.)
bool IsAwaited(const proxy::IfrtRequest& request) {
  switch (request.request_case()) {
    case proxy::IfrtRequest::kLoadedExecutableExecuteRequest:
      return request.loaded_executable_execute_request().result_array_handle_size() == 0;
    case proxy::IfrtRequest::kDestructArrayRequest: return false;
    case proxy::IfrtRequest::kMakeArrayFromHostBufferRequest:
      return request.make_array_from_host_buffer_request().array_handle() == 0;
    case proxy::IfrtRequest::kMakeArraysFromHostBufferShardsRequest:
      return request.make_arrays_from_host_buffer_shards_request().array_handles_size() == 0;
    case proxy::IfrtRequest::kFullyReplicatedShardRequest:
      return request.fully_replicated_shard_request().result_handle() == 0;
    case proxy::IfrtRequest::kDisassembleIntoSingleDeviceArraysRequest:
      return request.disassemble_into_single_device_arrays_request().result_handles_size() == 0;
    case proxy::IfrtRequest::kAssembleArrayFromSingleDeviceArraysRequest:
      return request.assemble_array_from_single_device_arrays_request().result_handle() == 0;
    case proxy::IfrtRequest::kCopyArraysRequest: return request.copy_arrays_request().result_handles_size() == 0;
    case proxy::IfrtRequest::kRemapArraysRequest: return request.remap_arrays_request().result_handles_size() == 0;
    case proxy::IfrtRequest::kReshardArraysRequest: return request.reshard_arrays_request().result_handles_size() == 0;
    default: return true;
  }
}

// Whether the answer may be a long time in coming.
bool MayWait(const proxy::IfrtRequest& request) {
  switch (request.request_case()) {
    case proxy::IfrtRequest::kInitRequest:
    case proxy::IfrtRequest::kCheckFutureRequest:
    case proxy::IfrtRequest::kCheckValueReadyRequest:
    case proxy::IfrtRequest::kCopyToHostBufferRequest:
    case proxy::IfrtRequest::kCompileRequest:
    case proxy::IfrtRequest::kLoadedExecutableHumanReadableProgramTextRequest: return true;
    default: return false;
  }
}

}  // namespace

void SessionCore::OnRequest(Request& request, TimeNs now) {
  Op op;
  op.op_id = request.request_metadata().op_id();
  op.context = request.request_metadata().user_context_id();
  op.awaited = IsAwaited(request);
  switch (request.request_case()) {
    case Request::kInitRequest:
    case Request::kDeleteArrayRequest:
    case Request::kDestructArrayRequest:
      // The client does not apply numbers of these: a numbered response would leave a gap that stops it for ever.
      op.numbered = false;
      break;
    default: op.hold = contexts_.Begin(op.context);
  }
  ++unanswered_;
  // As whoever received it has counted it; nobody counts again here.
  if (const int bytes = request.GetCachedSize(); bytes > options_.request_bytes_max) {
    return Fail(op, absl::InvalidArgumentError(absl::StrCat("a request of ", bytes, " bytes exceeds the limit of ",
                                                            options_.request_bytes_max,
                                                            "; pass large constants as arguments")));
  }
  if (unanswered_ > options_.unanswered_max && MayWait(request)) {
    return Fail(op, absl::ResourceExhaustedError(
                        absl::StrCat(options_.unanswered_max,
                                     " requests of this session wait for their answers, its limit: wait for "
                                     "some of its arrays before asking for more")));
  }
  Dispatch(std::move(op), request, now);
}

void SessionCore::Dispatch(Op op, Request& request, TimeNs now) {
  switch (request.request_case()) {
    case Request::kInitRequest:
      if (catalog_ != nullptr) {
        AnswerInit(op);
      } else {
        waiting_inits_.push_back({std::move(op), now});
      }
      return;
    case Request::kCheckFutureRequest: return CheckFuture(std::move(op), request);
    case Request::kCheckValueReadyRequest: return CheckValueReady(std::move(op), request);
    case Request::kMakeArrayFromHostBufferRequest: return MakeArrayFromHostBuffer(std::move(op), request, now);
    case Request::kMakeArraysFromHostBufferShardsRequest:
      return MakeArraysFromHostBufferShards(std::move(op), request, now);
    case Request::kMakeErrorArraysRequest: return MakeErrorArrays(std::move(op), request);
    case Request::kAssembleArrayFromSingleDeviceArraysRequest: return Assemble(std::move(op), request);
    case Request::kDisassembleIntoSingleDeviceArraysRequest: return Disassemble(std::move(op), request);
    case Request::kFullyReplicatedShardRequest: return FullyReplicatedShard(std::move(op), request);
    case Request::kCopyArraysRequest: return CopyArrays(std::move(op), request, now);
    case Request::kRemapArraysRequest: return RemapArrays(std::move(op), request);
    case Request::kReshardArraysRequest: return ReshardArrays(std::move(op), request, now);
    case Request::kCopyToHostBufferRequest: return CopyToHostBuffer(std::move(op), request);
    case Request::kDeleteArrayRequest: return DeleteArray(std::move(op), request);
    case Request::kIsArrayDeletedRequest: return IsArrayDeleted(std::move(op), request);
    case Request::kDestructArrayRequest: return DestructArray(std::move(op), request);
    case Request::kGetDefaultLayoutRequest: return GetDefaultLayout(std::move(op), request);
    case Request::kCompileRequest: return Compile(std::move(op), request);
    case Request::kLoadedExecutableMetadataRequest: return Metadata(std::move(op), request);
    case Request::kLoadedExecutableExecuteRequest: return Execute(std::move(op), request, now);
    case Request::kLoadedExecutableFetchExecuteResultRequest: return FetchExecuteResult(std::move(op), request);
    case Request::kLoadedExecutableCostAnalysisRequest: return CostAnalysis(std::move(op), request);
    case Request::kLoadedExecutableDestructRequest: return DestructExecutable(std::move(op), request);
    case Request::kGetDefaultDeviceAssignmentRequest: return GetDefaultDeviceAssignment(std::move(op), request);

    case Request::kBitcastArraysRequest: {
      const auto& bitcast = request.bitcast_arrays_request();
      const absl::Status status = absl::UnimplementedError(
          "Bitcasting whole arrays is not supported; use jax.lax.bitcast_convert_type inside jit");
      Poison(bitcast.result_handles(), status, op);
      return Fail(op, status);
    }
    case Request::kLoadedExecutableHumanReadableProgramTextRequest: return ProgramText(std::move(op), request);
    case Request::kLoadedExecutableMpmdMetadataRequest: {
      auto response = NewResponse(op);
      *response->mutable_loaded_executable_mpmd_metadata_response()->mutable_mpmd_compiled_memory_stats_error() =
          wire::ToProto(absl::UnimplementedError("MPMD executables are not supported"));
      return Succeed(op, std::move(response));
    }
    case Request::kLoadedExecutableMpmdCostAnalysisRequest: {
      auto response = NewResponse(op);
      *response->mutable_loaded_executable_mpmd_cost_analysis_response()->mutable_status() =
          wire::ToProto(absl::UnimplementedError("MPMD executables are not supported"));
      return Succeed(op, std::move(response));
    }
    case Request::kLoadedExecutableDeleteRequest: {
      Future future;
      future.done = true;
      future.status = absl::UnimplementedError("Executables are deleted when they are dropped");
      auto response = NewResponse(op);
      response->mutable_loaded_executable_delete_response()->set_future_handle(AddFuture(0, std::move(future)));
      return Succeed(op, std::move(response));
    }
    case Request::kLoadedExecutableIsDeletedRequest: {
      auto response = NewResponse(op);
      response->mutable_loaded_executable_is_deleted_response()->set_is_deleted(false);
      return Succeed(op, std::move(response));
    }
    case Request::kLoadedHostCallbackPollRequest: {
      // No callback was ever registered: "gone" makes the client stop asking, an error would make it ask for ever.
      auto response = NewResponse(op);
      response->mutable_loaded_host_callback_poll_response();
      return Succeed(op, std::move(response));
    }
    case Request::kLoadedHostCallbackReturnRequest:
      if (request.loaded_host_callback_return_request().result_host_buffer_handle() != 0) {
        host_->DiscardUpload(request.loaded_host_callback_return_request().result_host_buffer_handle());
      }
      return Fail(op, absl::InvalidArgumentError("No such host callback execution"));
    case Request::REQUEST_NOT_SET:
      return Fail(op, absl::UnimplementedError("This request is unknown to the server; the client may be too new"));
  }
}

void SessionCore::AnswerInit(const Op& op) {
  auto response = NewResponse(op);
  *response->mutable_init_response() = MakeInitResponse(*catalog_, options_.wire_id, options_.serializes);
  Succeed(op, std::move(response));
}

// ---------------------------------------------------------------- responses

std::unique_ptr<SessionCore::Response> SessionCore::NewResponse(const Op& op) {
  auto response = std::make_unique<Response>();
  response->mutable_response_metadata()->set_op_id(op.op_id);
  return response;
}

void SessionCore::Succeed(const Op& op, std::unique_ptr<Response> response) {
  --unanswered_;
  if (op.numbered) contexts_.Number(response->mutable_response_metadata());
  host_->Respond(std::move(response), op.awaited);
}

void SessionCore::Fail(const Op& op, const absl::Status& status) {
  --unanswered_;
  contexts_.Cite(status);
  auto response = NewResponse(op);
  *response->mutable_response_metadata()->mutable_status() = wire::ToProto(
      options_.log_place.empty() ? status : AddToEnd(status, absl::StrCat(" [log: ", options_.log_place, "]")));
  host_->Respond(std::move(response), /*awaited=*/true);
}

// ---------------------------------------------------------------- waiting

RequestId SessionCore::Wait(absl::AnyInvocable<void(const absl::Status&)> then) {
  const RequestId id = host_->NewRequestId();
  waits_.emplace(id, std::move(then));
  return id;
}

void SessionCore::OnResolve(RequestId request, const absl::Status& status) {
  auto it = waits_.find(request);
  if (it == waits_.end()) return;
  auto then = std::move(it->second);
  waits_.erase(it);
  contexts_.Cite(status);
  then(status);
}

void SessionCore::WhenAllReady(absl::Span<const Handle> handles, absl::AnyInvocable<void(absl::Status)> then) {
  std::vector<ArrayId> arrays;
  std::vector<std::shared_ptr<StringShard>> strings;
  for (Handle handle : handles) {
    absl::StatusOr<ArrayEntry*> entry = Find(handle);
    if (!entry.ok()) return then(entry.status());
    if (!(*entry)->error.ok()) return then((*entry)->error);
    if ((*entry)->strings != nullptr) {
      if ((*entry)->strings->deleted) return then(absl::InvalidArgumentError("The array has been deleted"));
      for (const auto& shard : (*entry)->strings->shards) strings.push_back(shard);
    } else {
      arrays.push_back((*entry)->id);
    }
  }
  struct Join {
    size_t left = 1;
    absl::Status error;
    absl::AnyInvocable<void(absl::Status)> then;
    void Done(const absl::Status& status) {
      if (error.ok()) error = status;
      if (--left == 0) then(error);
    }
  };
  auto join = std::make_shared<Join>();
  join->then = std::move(then);
  for (const auto& shard : strings) {
    if (shard->ready) {
      if (join->error.ok()) join->error = shard->error;
      continue;
    }
    ++join->left;
    // The shard calls its own waiters, so it lives then.
    shard->waiters.push_back([join, raw = shard.get()] { join->Done(raw->error); });
  }
  if (!arrays.empty()) {
    ++join->left;
    const RequestId id = Wait([join](const absl::Status& status) { join->Done(status); });
    controller_->WhenReady(options_.session, id, arrays);
  }
  join->Done(absl::OkStatus());
}

void SessionCore::CheckValueReady(Op op, const Request& request) {
  const auto& handles = request.check_value_ready_request().value_handles();
  WhenAllReady(handles, [this, op = std::move(op)](absl::Status status) {
    if (!status.ok()) return Fail(op, status);
    auto response = NewResponse(op);
    response->mutable_check_value_ready_response();
    Succeed(op, std::move(response));
  });
}

// ---------------------------------------------------------------- futures

SessionCore::Handle SessionCore::AddFuture(Handle handle, Future future) {
  if (handle == 0) handle = NewHandle();
  futures_[handle] = std::move(future);
  return handle;
}

void SessionCore::ResolveFuture(Handle handle, const absl::Status& status) {
  auto it = futures_.find(handle);
  if (it == futures_.end()) return;
  if (it->second.waiter) {
    auto waiter = std::move(it->second.waiter);
    futures_.erase(it);  // reading is destructive
    return waiter(status);
  }
  it->second.done = true;
  it->second.status = status;
}

void SessionCore::CheckFuture(Op op, const Request& request) {
  const Handle handle = request.check_future_request().future_handle();
  auto it = futures_.find(handle);
  if (it == futures_.end() || it->second.waiter) {
    return Fail(op, absl::InvalidArgumentError(absl::StrCat("Unknown future handle: ", handle)));
  }
  if (it->second.deletion) op.numbered = false;  // see OnRequest
  auto answer = [this, op = std::move(op)](const absl::Status& status) {
    if (!status.ok()) return Fail(op, status);
    auto response = NewResponse(op);
    response->mutable_check_future_response();
    Succeed(op, std::move(response));
  };
  if (it->second.done) {
    const absl::Status status = it->second.status;
    futures_.erase(it);
    return answer(status);
  }
  it->second.waiter = std::move(answer);
}

// ---------------------------------------------------------------- arrays by handle

absl::Status SessionCore::NotTheClients(Handle handle) {
  return absl::InvalidArgumentError(
      absl::StrCat("Result handle ", handle, " is not one that a client gives: they are below 2^48"));
}

absl::StatusOr<SessionCore::ArrayEntry*> SessionCore::Find(Handle handle) {
  auto it = arrays_.find(handle);
  if (it == arrays_.end()) return absl::InvalidArgumentError(absl::StrCat("Unknown array handle: ", handle));
  return &it->second;
}

absl::StatusOr<std::vector<ArrayId>> SessionCore::DeviceArrays(absl::Span<const Handle> handles) {
  std::vector<ArrayId> ids;
  ids.reserve(handles.size());
  for (Handle handle : handles) {
    LB_ASSIGN_OR_RETURN(ArrayEntry * entry, Find(handle));
    if (!entry->error.ok()) return entry->error;
    if (entry->strings != nullptr) {
      return absl::InvalidArgumentError("Arrays of strings live on no device and cannot be used here");
    }
    ids.push_back(entry->id);
  }
  return ids;
}

absl::StatusOr<std::vector<std::shared_ptr<SessionCore::StringArray>>> SessionCore::AllStrings(
    absl::Span<const Handle> handles) {
  std::vector<std::shared_ptr<StringArray>> strings;
  for (Handle handle : handles) {
    LB_ASSIGN_OR_RETURN(ArrayEntry * entry, Find(handle));
    if (!entry->error.ok()) return entry->error;
    if (entry->strings == nullptr) continue;
    if (entry->strings->deleted) return absl::InvalidArgumentError("The array has been deleted");
    strings.push_back(entry->strings);
  }
  if (!strings.empty() && strings.size() != handles.size()) {
    return absl::InvalidArgumentError("Arrays of strings and of numbers cannot be mixed in one request");
  }
  return strings;
}

std::vector<SessionCore::ArrayEntry> SessionCore::ToEntries(const std::vector<ArrayId>& ids,
                                                            const UserContexts::Hold& context) {
  std::vector<ArrayEntry> entries(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    entries[i].id = ids[i];
    entries[i].context = context;
  }
  return entries;
}

SessionCore::Entries<SessionCore::Handle> SessionCore::Register(std::vector<ArrayEntry> entries,
                                                                absl::Span<const Handle> handles) {
  absl::Status bad;
  if (!handles.empty() && handles.size() != entries.size()) {
    bad = absl::InvalidArgumentError(
        absl::StrCat("The request names ", handles.size(), " results, but there are ", entries.size()));
  }
  std::vector<Handle> result;
  result.reserve(entries.size());
  size_t done = 0;
  for (; bad.ok() && done < entries.size(); ++done) {
    Handle handle = handles.empty() ? 0 : handles[done];
    if (handle >= kServerHandles) {
      bad = NotTheClients(handle);
      break;
    }
    if (handle == 0) handle = NewHandle();
    auto [it, inserted] = arrays_.try_emplace(handle);
    if (!inserted) {
      bad = absl::InvalidArgumentError(absl::StrCat("Array handle ", handle, " exists already"));
      break;
    }
    it->second = std::move(entries[done]);
    result.push_back(handle);
  }
  if (bad.ok()) return result;
  for (Handle handle : result) {
    auto node = arrays_.extract(handle);
    ReleaseEntry(std::move(node.mapped()));
  }
  for (size_t i = done; i < entries.size(); ++i) ReleaseEntry(std::move(entries[i]));
  return bad;
}

void SessionCore::Poison(absl::Span<const Handle> handles, const absl::Status& status, const Op& op) {
  if (handles.empty()) return;
  const absl::Status error = WithUserContext(status, op.context);
  contexts_.Cite(error);
  for (Handle handle : handles) {
    if (handle == 0 || handle >= kServerHandles) continue;
    auto [it, inserted] = arrays_.try_emplace(handle);
    if (inserted) it->second.error = error;
  }
}

void SessionCore::ReleaseEntry(ArrayEntry entry) {
  if (entry.id.valid()) controller_->Release(options_.session, entry.id);
  if (entry.context != nullptr) RetireLater(std::move(entry.context));
}

// ---------------------------------------------------------------- which contexts an error can still cite

// The array is gone, but launches that took it may still fail because of it.
void SessionCore::RetireLater(UserContexts::Hold hold) {
  if (launches_.empty()) return;
  retiring_.emplace_back(last_launch_, std::move(hold));
}

void SessionCore::AddLaunch(Ticket ticket, UserContexts::Hold hold) {
  launches_.insert(ticket.value());
  last_launch_ = std::max(last_launch_, ticket.value());
  const RequestId id =
      Wait([this, ticket, hold = std::move(hold)](const absl::Status& status) { OnLaunchDone(ticket, status); });
  controller_->WhenDone(options_.session, id, ticket);
}

void SessionCore::OnLaunchDone(Ticket ticket, const absl::Status& status) {
  contexts_.Cite(status);
  launches_.erase(ticket.value());
  const uint64_t oldest = launches_.empty() ? UINT64_MAX : *launches_.begin();
  while (!retiring_.empty() && retiring_.front().first < oldest) retiring_.pop_front();
}

// ---------------------------------------------------------------- strings

void SessionCore::OnStringBytes(uint64_t key, absl::StatusOr<std::string> bytes) {
  auto it = string_keys_.find(key);
  if (it == string_keys_.end()) return;
  const std::shared_ptr<StringShard> shard = std::move(it->second);
  string_keys_.erase(it);
  shard->ready = true;
  if (bytes.ok()) {
    shard->contents = *std::move(bytes);
  } else {
    shard->error = bytes.status();
  }
  auto waiters = std::move(shard->waiters);
  shard->waiters.clear();
  for (auto& waiter : waiters) waiter();
}

}  // namespace landbridge
