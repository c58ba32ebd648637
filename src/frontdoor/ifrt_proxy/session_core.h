// One client's session: turns decoded requests into calls of the controller and its answers into responses. Knows
// handles, their errors, futures, user contexts; no gRPC, thread or clock.
//
//     IfrtRequest --> SessionCore --> Controller
//                        | ^
//                responses | results (OnResolve, OnResolveRead, OnCompiled, OnStringBytes)
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/time.h"
#include "compiler/optimised_form.h"
#include "controller/controller.h"
#include "frontdoor/ifrt_proxy/device_catalog.h"
#include "frontdoor/ifrt_proxy/hints.h"
#include "frontdoor/ifrt_proxy/plugin_program.h"
#include "frontdoor/ifrt_proxy/user_contexts.h"
#include "proto/ifrt_proxy/ifrt_service.pb.h"
#include "proto/landbridge/executable.pb.h"
#include "proto/xla/compile_options.pb.h"

namespace landbridge {

// What a session needs from its surroundings. Never calls back into the session from inside.
class SessionHost {
 public:
  virtual ~SessionHost() = default;
  // `awaited`: the client may wait for it. Others can leave later, in their order.
  virtual void Respond(std::unique_ptr<xla::ifrt::proxy::IfrtResponse> response, bool awaited) = 0;
  virtual RequestId NewRequestId() = 0;
  // Answered by SessionCore::OnCompiled(token, ...). `split`: for devices of several workers (ExecutableInfo.split).
  virtual void Compile(uint64_t token, absl::Cord program, std::string options, bool split) = 0;
  // The program's optimised HLO, a module in base64: SessionCore::OnOptimisedProgram(token, ...).
  virtual void FetchOptimisedProgram(uint64_t token, std::shared_ptr<const ProgramImage> image, OptimisedForm form) = 0;
  // The form in which clients keep it, as {"program":"BASE64"}: SessionCore::OnAnswer(token, ...).
  virtual void SealProgram(uint64_t token, std::shared_ptr<const ProgramImage> image,
                           std::vector<DeviceId> devices) = 0;
  // The answer to a ShardingsQuestion: SessionCore::OnAnswer(token, ...).
  virtual void AskShardings(uint64_t token, absl::Cord program, std::string options) = 0;
  // What SealProgram gave: SessionCore::OnCompiled(token, ...).
  virtual void OpenProgram(uint64_t token, absl::Cord sealed) = 0;

  struct ClaimedUpload {
    uint64_t key = 0;
    std::shared_ptr<const std::string> bytes;  // when all are here and small
  };
  // See HostBuffers.
  virtual absl::StatusOr<ClaimedUpload> ClaimUpload(uint64_t handle, int64_t expected_bytes) = 0;
  // Bytes that the session itself wants; when not here yet: SessionCore::OnStringBytes(key, ...).
  virtual absl::StatusOr<ClaimedUpload> ClaimString(uint64_t handle) = 0;
  virtual void DiscardUpload(uint64_t handle) = 0;  // not claimed; its request failed
  virtual void DropUpload(uint64_t key) = 0;        // claimed, and then not used
  virtual absl::Status PutResult(uint64_t handle, RequestId read, ReadResult result) = 0;
};

// The answer to the question for a device's memory, from Controller::AskMemory's.
absl::StatusOr<std::string> MemoryText(absl::StatusOr<ReadResult> result);

// Requests of one session that have no answer yet. Above, those that wait for something fail.
constexpr size_t kSessionUnansweredMax = 1'000'000;

// Thread-safety: none (loop thread). Controller, host and catalog outlive it.
class SessionCore {
 public:
  struct Options {
    SessionId session;
    uint64_t wire_id = 0;
    int protocol_version = 25;
    SessionHints hints = {};
    std::string log_place = {};  // named in every error; empty: not
    size_t unanswered_max = kSessionUnansweredMax;
    int request_bytes_max = limits::kClientMessageBytesMax;
    bool reads_modules = false;  // the client takes OptimisedForm::kModule for the text of a program
    bool serializes = false;     // and asks for compiled programs by SerializeQuestion
  };
  SessionCore(Options options, Controller* controller, SessionHost* host);
  // The controller's session must have been closed or be closed right after: arrays are not released one by one.
  ~SessionCore();
  SessionCore(const SessionCore&) = delete;
  SessionCore& operator=(const SessionCore&) = delete;

  // Init is answered when this has been called too.
  void SetDevices(const DeviceCatalog* catalog);
  // Init requests from before `before` fail with `why`: the client tries again, and says it when its time is over.
  void ExpireInits(TimeNs before, const absl::Status& why);

  // Every request gets exactly one response, now or later.
  // The program of a compile request is moved out of it.
  void OnRequest(xla::ifrt::proxy::IfrtRequest& request, TimeNs now);
  void OnResolve(RequestId request, const absl::Status& status);
  void OnResolveRead(RequestId request, absl::StatusOr<ReadResult> result);
  struct Compiled {
    std::shared_ptr<const ProgramImage> image;
    std::vector<DeviceId> devices = {};  // of one that was opened: where it was when it was sealed
  };
  void OnCompiled(uint64_t token, absl::StatusOr<Compiled> result);
  void OnStringBytes(uint64_t key, absl::StatusOr<std::string> bytes);
  void OnOptimisedProgram(uint64_t token, absl::StatusOr<std::string> program);
  void OnAnswer(uint64_t token, absl::StatusOr<std::string> answer);

  struct Counts {
    size_t arrays = 0, executables = 0, futures = 0, pending = 0, contexts_held = 0, contexts_kept_back = 0;
  };
  Counts counts() const;
  SessionId session() const { return options_.session; }

 private:
  using Request = xla::ifrt::proxy::IfrtRequest;
  using Response = xla::ifrt::proxy::IfrtResponse;
  using Handle = uint64_t;
  // Ours are from here on; the client's are below, so that the two never meet.
  static constexpr Handle kServerHandles = Handle{1} << 48;

  // A request on its way to its response.
  struct Op {
    uint64_t op_id = 0;
    uint64_t context = 0;
    UserContexts::Hold hold;
    bool numbered = true;
    bool awaited = true;  // else the client only notes the answer
  };
  struct WaitingInit {
    Op op;
    TimeNs since = 0;
  };
  // Strings live in the proxy: no device holds them.
  struct StringShard {
    bool ready = false;
    absl::Status error;
    std::string contents;  // serialized StringArrayContents
    std::vector<absl::AnyInvocable<void()>> waiters;
  };
  struct StringArray {
    Dims dims;
    Sharding::Ptr sharding;
    std::vector<std::shared_ptr<StringShard>> shards;
    bool deleted = false;
  };
  struct ArrayEntry {
    absl::Status error;  // not OK: the handle stands for this
    ArrayId id;          // valid: the controller's array
    std::shared_ptr<StringArray> strings;
    UserContexts::Hold context;  // of a request whose result may still fail
  };
  struct Executable {
    ExecutableId id;  // invalid: a reshard program, a question or a witness
    std::shared_ptr<const ProgramImage> image;
    std::vector<DeviceId> devices;
    std::unique_ptr<ReshardProgram> reshard;
    std::optional<std::string> answer;  // of a question
    bool is_witness = false;
    std::string name;
    std::string fingerprint;  // of what was compiled, and its devices
    // What the first Execute answers, without handles.
    std::vector<xla::ifrt::proxy::LoadedExecutableExecuteResponse::Output> outputs;
    bool outputs_known = false;
    ProgramHints hints;
  };
  struct Future {
    bool done = false;
    bool deletion = false;
    absl::Status status;
    absl::AnyInvocable<void(const absl::Status&)> waiter;  // set: somebody reads it already
  };
  struct PendingRead {
    Op op;
    Handle buffer = 0;
  };
  struct PendingCompile {
    Op op;
    std::vector<DeviceId> devices;
    ProgramHints hints;
    bool returned = false;      // by the client that kept it
    bool devices_known = true;  // else `devices` are those that the client offers
  };
  template <typename T>
  using Entries = absl::StatusOr<std::vector<T>>;

  // --- session_core.cc: dispatch, responses, tables, waiting.
  void Dispatch(Op op, Request& request, TimeNs now);
  std::unique_ptr<Response> NewResponse(const Op& op);
  void Succeed(const Op& op, std::unique_ptr<Response> response);
  void Fail(const Op& op, const absl::Status& status);
  Handle NewHandle() { return next_handle_++; }
  RequestId Wait(absl::AnyInvocable<void(const absl::Status&)> then);
  absl::StatusOr<ArrayEntry*> Find(Handle handle);
  // One answer when all are ready; an error wins, after all are done.
  void WhenAllReady(absl::Span<const Handle> handles, absl::AnyInvocable<void(absl::Status)> then);
  // Under the client's numbers, or under ours where there are none. Takes the entries over. Not OK: nothing is
  // registered, everything is released.
  static absl::Status NotTheClients(Handle handle);
  Entries<Handle> Register(std::vector<ArrayEntry> entries, absl::Span<const Handle> handles);
  void Poison(absl::Span<const Handle> handles, const absl::Status& status, const Op& op);
  void ReleaseEntry(ArrayEntry entry);
  void RetireLater(UserContexts::Hold hold);
  void AddLaunch(Ticket ticket, UserContexts::Hold hold);
  void OnLaunchDone(Ticket ticket, const absl::Status& status);
  std::vector<ArrayEntry> ToEntries(const std::vector<ArrayId>& ids, const UserContexts::Hold& context);
  absl::StatusOr<std::vector<ArrayId>> DeviceArrays(absl::Span<const Handle> handles);
  // All strings, or null: none of them. A mix is an error.
  absl::StatusOr<std::vector<std::shared_ptr<StringArray>>> AllStrings(absl::Span<const Handle> handles);
  Handle AddFuture(Handle handle, Future future);
  void ResolveFuture(Handle handle, const absl::Status& status);
  void AnswerInit(const Op& op);
  void CheckFuture(Op op, const Request& request);
  void CheckValueReady(Op op, const Request& request);

  // --- session_arrays.cc
  void MakeArrayFromHostBuffer(Op op, const Request& request, TimeNs now);
  void MakeArraysFromHostBufferShards(Op op, const Request& request, TimeNs now);
  void MakeErrorArrays(Op op, const Request& request);
  void Assemble(Op op, const Request& request);
  void Disassemble(Op op, const Request& request);
  void FullyReplicatedShard(Op op, const Request& request);
  void CopyArrays(Op op, const Request& request, TimeNs now);
  void RemapArrays(Op op, const Request& request);
  void ReshardArrays(Op op, const Request& request, TimeNs now);
  void CopyToHostBuffer(Op op, const Request& request);
  void DeleteArray(Op op, const Request& request);
  void IsArrayDeleted(Op op, const Request& request);
  void DestructArray(Op op, const Request& request);
  void GetDefaultLayout(Op op, const Request& request);
  struct HostSource {
    Handle buffer = 0;
    std::vector<uint32_t> shards;  // positions that it fills
    int64_t image_bytes = 0;
    std::vector<int64_t> byte_strides;
  };
  struct HostArray {
    ArraySpec spec;
    std::vector<HostSource> sources;
  };
  absl::StatusOr<ArrayEntry> FromHost(const HostArray& array, const Op& op, TimeNs now);
  static absl::StatusOr<HostArray> ParseHostArray(
      const xla::ifrt::proxy::MakeArraysFromHostBufferShardsRequest::HostBufferShardsSpec& proto);
  template <typename Handles, typename Set>
  void Finish(const Op& op, Entries<ArrayEntry> entries, const Handles& handles, Set set);

  // --- session_programs.cc
  void Compile(Op op, Request& request);
  absl::Status CompileXla(const Op& op, xla::ifrt::proxy::CompileRequest& request);
  absl::Status CompilePlugin(const Op& op, xla::ifrt::proxy::CompileRequest& request);
  absl::Status CompileModule(const Op& op, absl::Cord program, xla::CompileOptionsProto& options);
  absl::Status LoadReturned(const Op& op, ReturnedExecutable returned);
  absl::Status PlaceReturned(const Compiled& compiled, PendingCompile* pending) const;
  void AnswerCompile(const Op& op, std::shared_ptr<Executable> executable);
  void Metadata(Op op, const Request& request);
  void Execute(Op op, const Request& request, TimeNs now);
  void FetchExecuteResult(Op op, const Request& request);
  void CostAnalysis(Op op, const Request& request);
  void DestructExecutable(Op op, const Request& request);
  void GetDefaultDeviceAssignment(Op op, const Request& request);
  absl::StatusOr<std::shared_ptr<Executable>> FindExecutable(Handle handle) const;

  // --- session_questions.cc
  void ProgramText(Op op, const Request& request);
  void AnswerText(const Op& op, absl::StatusOr<std::string> text);
  void Ask(const Op& op, const Question& question, std::shared_ptr<Executable> executable);
  void AddHostCallingLaunch(Ticket ticket);
  void AnswerHostCallsOver();

  const Options options_;
  Controller* const controller_;
  SessionHost* const host_;
  const DeviceCatalog* catalog_ = nullptr;
  std::vector<WaitingInit> waiting_inits_;
  size_t unanswered_ = 0;  // requests

  UserContexts contexts_;  // outlives all holds below
  absl::flat_hash_map<Handle, ArrayEntry> arrays_;
  absl::flat_hash_map<Handle, std::shared_ptr<Executable>> executables_;
  absl::flat_hash_map<Handle, Future> futures_;
  Handle next_handle_ = kServerHandles;
  absl::flat_hash_map<RequestId, absl::AnyInvocable<void(const absl::Status&)>> waits_;
  absl::flat_hash_map<RequestId, PendingRead> reads_;
  absl::flat_hash_map<uint64_t, PendingCompile> compiles_;
  uint64_t next_compile_ = 1;
  absl::flat_hash_map<uint64_t, Op> programs_fetched_;  // by token
  struct PendingQuestion {
    Op op;
    std::shared_ptr<Executable> executable;
  };
  void AnswerQuestion(PendingQuestion question, absl::StatusOr<std::string> answer);
  absl::flat_hash_map<RequestId, PendingQuestion> memory_questions_;
  absl::flat_hash_map<uint64_t, PendingQuestion> questions_;  // that the compile service answers, by token
  // Launches under way that may call the client, and who waits for all up to one of them.
  std::set<uint64_t> host_calling_;
  uint64_t last_host_calling_ = 0;
  std::deque<std::pair<uint64_t, PendingQuestion>> host_calls_over_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<StringShard>> string_keys_;
  // Launches that may still fail, and holds that wait for all launches that were issued before.
  std::set<uint64_t> launches_;
  uint64_t last_launch_ = 0;
  std::deque<std::pair<uint64_t, UserContexts::Hold>> retiring_;
};

}  // namespace landbridge
