#include "frontdoor/ifrt_proxy/front_door.h"

#include <atomic>
#include <iterator>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/log.h"
#include "base/status.h"
#include "frontdoor/ifrt_proxy/grpc_service.h"
#include "frontdoor/ifrt_proxy/host_buffers.h"
#include "frontdoor/ifrt_proxy/host_call_router.h"
#include "frontdoor/ifrt_proxy/session_core.h"
#include "frontdoor/ifrt_proxy/session_pipe.h"
#include "nlohmann/json.hpp"

namespace landbridge {

// Members marked loop belong to the loop thread.
class IfrtFrontDoor::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(IfrtFrontDoorOptions options, Controller* controller, Post post, CompileService* compiler,
       dataplane::DataPlane* data_plane)
      : options_(std::move(options)),
        controller_(controller),
        post_(std::move(post)),
        compiler_(compiler),
        data_plane_(data_plane) {}

  void Init() {
    HostBuffers::Options buffers;
    buffers.space = options_.space;
    buffers.store_pool_bytes = options_.store_pool_bytes;
    buffers.on_bytes = [weak = weak_from_this(), post = post_](uint64_t key, absl::StatusOr<std::string> bytes) {
      post([weak, key, bytes = std::move(bytes)]() mutable {
        if (auto self = weak.lock()) self->OnHostBytes(key, std::move(bytes));
      });
    };
    buffers_ = HostBuffers::Create(std::move(buffers), data_plane_);
    HostCallRouter::Options calls;
    calls.space = options_.space;
    calls.reply = options_.reply_host_call;
    calls.post = [weak = weak_from_this(), post = post_](std::function<void(HostCallRouter&)> run) {
      post([weak, run = std::move(run)] {
        if (auto self = weak.lock()) run(*self->host_calls_);
      });
    };
    host_calls_ = std::make_unique<HostCallRouter>(std::move(calls), data_plane_);
  }

  absl::StatusOr<int> Start(const std::string& listen_address);
  void Stop();

  // --- Any thread.
  absl::StatusOr<std::shared_ptr<SessionPipe>> Open(ClientHello hello);
  void Closed(const std::shared_ptr<SessionPipe>& pipe);
  absl::StatusOr<std::shared_ptr<HostCallPipe>> ServeHostCalls(const std::string& peer, const std::string& token);
  size_t session_count() const { return session_count_.load(); }

  // --- Loop.
  void SetDevices(DeviceCatalog catalog);
  void ExpireInits(const absl::Status& why);
  void Record(RequestId request, std::variant<absl::Status, absl::StatusOr<ReadResult>> answer);
  void Drain();
  void OnHostBytes(uint64_t key, absl::StatusOr<std::string> bytes);
  void PauseSession(SessionId session, bool paused);
  std::string StatusJson() const;

  HostBuffers& buffers() { return *buffers_; }
  HostCallRouter& host_calls() { return *host_calls_; }

 private:
  // One session on the loop.
  struct Session final : public SessionHost {
    Session(Impl* owner, std::shared_ptr<SessionPipe> pipe_in, std::string peer_in, SessionCore::Options core_options)
        : door(owner),
          pipe(std::move(pipe_in)),
          peer(std::move(peer_in)),
          core(core_options, owner->controller_, this) {}
    void Respond(std::unique_ptr<SessionPipe::Response> response, bool awaited) override {
      if (!touched) door->touched_.push_back(core.session());
      touched = true;
      hurry = hurry || awaited;
      out_bytes += response->ByteSizeLong();
      out.push_back(std::move(response));
    }
    RequestId NewRequestId() override {
      const RequestId id(kRequestIdBit | door->next_request_++);
      door->requests_.emplace(id, core.session());
      return id;
    }
    void Compile(uint64_t token, absl::Cord program, std::string options, bool split) override {
      door->StartCompile(core.session(), token, std::move(program), std::move(options), split);
    }
    void FetchOptimisedProgram(uint64_t token, std::shared_ptr<const ProgramImage> image, OptimisedForm form) override {
      door->FetchOptimisedProgram(core.session(), token, std::move(image), form);
    }
    void AskShardings(uint64_t token, absl::Cord program, std::string options) override {
      door->AskShardings(core.session(), token, std::move(program), std::move(options));
    }
    void SealProgram(uint64_t token, std::shared_ptr<const ProgramImage> image,
                     std::vector<DeviceId> devices) override {
      door->SealProgram(core.session(), token, *image, devices);
    }
    void OpenProgram(uint64_t token, absl::Cord sealed) override {
      door->OpenProgram(core.session(), token, std::move(sealed));
    }
    absl::StatusOr<ClaimedUpload> ClaimUpload(uint64_t handle, int64_t expected_bytes) override {
      return Converted(door->buffers_->Claim(core.session(), handle, expected_bytes));
    }
    absl::StatusOr<ClaimedUpload> ClaimString(uint64_t handle) override {
      auto claimed = door->buffers_->ClaimWhole(core.session(), handle, limits::kStringArrayBytesMax);
      if (claimed.ok() && claimed->bytes == nullptr) {
        door->string_keys_.emplace(claimed->key, core.session());
        door->wanted_strings_.push_back(claimed->key);
      }
      return Converted(std::move(claimed));
    }
    void DiscardUpload(uint64_t handle) override { door->buffers_->Discard(core.session(), handle); }
    void DropUpload(uint64_t key) override {
      door->string_keys_.erase(key);
      door->buffers_->Drop(key);
    }
    absl::Status PutResult(uint64_t handle, RequestId read, ReadResult result) override {
      HostBuffers::Result kept;
      kept.bytes = result.bytes;
      if (result.remote) {
        kept.worker = result.worker;
        kept.space = result.space;
        kept.id = result.id;
        kept.read = read;
      } else {
        kept.data = std::make_shared<const std::string>(std::move(result.data));
      }
      return door->buffers_->PutResult(core.session(), handle, std::move(kept));
    }
    static absl::StatusOr<ClaimedUpload> Converted(absl::StatusOr<HostBuffers::Claimed> claimed) {
      if (!claimed.ok()) return claimed.status();
      return ClaimedUpload{claimed->key, std::move(claimed->bytes)};
    }

    Impl* const door;
    const std::shared_ptr<SessionPipe> pipe;
    const std::string peer;
    std::vector<std::unique_ptr<SessionPipe::Response>> out;
    size_t out_bytes = 0;
    bool touched = false;  // by this turn
    bool hurry = false;    // the client waits for one of `out`
    SessionCore core;
  };

  Session* Find(SessionId session) {
    auto it = sessions_.find(session);
    return it == sessions_.end() ? nullptr : it->second.get();
  }
  void OpenOnLoop(std::shared_ptr<SessionPipe> pipe, std::string peer, SessionCore::Options options);
  void CloseOnLoop(SessionId session);
  void Turn(SessionId session);
  void StartCompile(SessionId session, uint64_t token, absl::Cord program, std::string options, bool split);
  void OnCompiled(SessionId session, uint64_t token, CompileResult result, std::vector<DeviceId> devices = {});
  // To the session, if it is still there, on the loop.
  template <typename F>
  void TellSession(SessionId session, F tell);
  void FetchOptimisedProgram(SessionId session, uint64_t token, std::shared_ptr<const ProgramImage> image,
                             OptimisedForm form);
  void AskShardings(SessionId session, uint64_t token, absl::Cord program, std::string options);
  void SealProgram(SessionId session, uint64_t token, const ProgramImage& image, const std::vector<DeviceId>& devices);
  void OpenProgram(SessionId session, uint64_t token, absl::Cord sealed);
  void Answer(Session& session);
  void AnswerLater();
  template <typename F>
  void PostSelf(F run) {
    post_([weak = weak_from_this(), run = std::move(run)]() mutable {
      if (auto self = weak.lock()) run(*self);
    });
  }

  const IfrtFrontDoorOptions options_;
  Controller* const controller_;
  const Post post_;
  CompileService* const compiler_;
  dataplane::DataPlane* const data_plane_;
  std::shared_ptr<HostBuffers> buffers_;
  const std::shared_ptr<SharedDirectory> shared_directory_ =
      std::make_shared<SharedDirectory>(options_.shared_directory);

  std::unique_ptr<GrpcServer> server_;
  std::atomic<uint64_t> next_session_{1};
  std::atomic<size_t> session_count_{0};
  absl::Mutex pipes_mutex_;
  absl::flat_hash_map<SessionId, std::shared_ptr<SessionPipe>> pipes_ ABSL_GUARDED_BY(pipes_mutex_);
  struct HostCallClient {
    SessionId session;
    std::string peer;
  };
  absl::flat_hash_map<std::string, HostCallClient> host_call_tokens_ ABSL_GUARDED_BY(pipes_mutex_);
  bool stopping_ ABSL_GUARDED_BY(pipes_mutex_) = false;

  // Loop.
  struct Event {
    RequestId request;
    std::variant<absl::Status, absl::StatusOr<ReadResult>> answer;
  };
  std::unique_ptr<HostCallRouter> host_calls_;
  std::unique_ptr<DeviceCatalog> catalog_;
  uint64_t next_request_ = 1;
  absl::flat_hash_map<RequestId, SessionId> requests_;
  absl::flat_hash_map<uint64_t, SessionId> string_keys_;
  std::vector<uint64_t> wanted_strings_;
  std::vector<Event> events_;
  bool drain_posted_ = false;
  int depth_ = 0;                   // inside a turn: what is recorded is worked off at its end
  std::vector<SessionId> touched_;  // have responses to be written
  bool answers_put_off_ = false;    // a timer runs for sessions whose responses can wait
  absl::flat_hash_map<SessionId, std::unique_ptr<Session>> sessions_;
  uint64_t sessions_opened_ = 0, requests_seen_ = 0;
};

// ---------------------------------------------------------------- server

absl::StatusOr<int> IfrtFrontDoor::Impl::Start(const std::string& listen_address) {
  GrpcServiceHooks hooks;
  hooks.open = [this](ClientHello hello) { return Open(std::move(hello)); };
  hooks.closed = [this](const std::shared_ptr<SessionPipe>& pipe) { Closed(pipe); };
  hooks.serve_host_calls = [this](const std::string& peer, const std::string& token) {
    return ServeHostCalls(peer, token);
  };
  hooks.release_read = [this](RequestId read) {
    PostSelf([read](Impl& self) { self.controller_->ReleaseRead(read); });
  };
  LB_ASSIGN_OR_RETURN(server_, GrpcServer::Start(listen_address, std::move(hooks), buffers_, data_plane_,
                                                 shared_directory_, options_.message_bytes_max));
  return server_->port();
}

void IfrtFrontDoor::Impl::Stop() {
  std::vector<std::shared_ptr<SessionPipe>> pipes;
  {
    absl::MutexLock lock(&pipes_mutex_);
    stopping_ = true;
    for (auto& [session, pipe] : pipes_) pipes.push_back(pipe);
  }
  for (const auto& pipe : pipes) pipe->Close();
  server_.reset();
}

absl::StatusOr<std::shared_ptr<SessionPipe>> IfrtFrontDoor::Impl::Open(ClientHello hello) {
  SessionCore::Options core;
  core.session = SessionId(next_session_.fetch_add(1));
  core.protocol_version = hello.protocol_version;
  core.hints = hello.hints;
  core.log_place = options_.log_place;
  core.reads_modules = hello.reads_modules;
  core.serializes = hello.serializes;
  auto pipe = std::make_shared<SessionPipe>(core.session, [weak = weak_from_this(), session = core.session] {
    if (auto self = weak.lock()) self->PostSelf([session](Impl& door) { door.Turn(session); });
  });
  {
    absl::MutexLock lock(&pipes_mutex_);
    if (stopping_) return absl::FailedPreconditionError("The server is stopping");
    if (pipes_.size() >= limits::kSessionsMax) {
      return absl::ResourceExhaustedError(
          absl::StrCat("This proxy has ", limits::kSessionsMax, " sessions already, its limit"));
    }
    if (!hello.host_calls_token.empty() &&
        !host_call_tokens_.try_emplace(hello.host_calls_token, HostCallClient{core.session, hello.peer}).second) {
      return absl::InvalidArgumentError("another session announced the same token for calls of its functions");
    }
    pipes_.emplace(core.session, pipe);
    ++session_count_;
  }
  core.wire_id = buffers_->OpenSession(core.session, hello.peer);
  shared_directory_->Open(core.session, core.wire_id, hello.peer, std::move(hello.shared_folder));
  PostSelf([pipe, peer = std::move(hello.peer), core](Impl& self) { self.OpenOnLoop(pipe, peer, core); });
  return pipe;
}

void IfrtFrontDoor::Impl::Closed(const std::shared_ptr<SessionPipe>& pipe) {
  {
    absl::MutexLock lock(&pipes_mutex_);
    if (pipes_.erase(pipe->session()) > 0) --session_count_;
    absl::erase_if(host_call_tokens_, [&](const auto& entry) { return entry.second.session == pipe->session(); });
  }
  buffers_->CloseSession(pipe->session());
  shared_directory_->Close(pipe->session());
  PostSelf([session = pipe->session()](Impl& self) { self.CloseOnLoop(session); });
}

absl::StatusOr<std::shared_ptr<HostCallPipe>> IfrtFrontDoor::Impl::ServeHostCalls(const std::string& peer,
                                                                                  const std::string& token) {
  SessionId session;
  {
    absl::MutexLock lock(&pipes_mutex_);
    auto it = host_call_tokens_.find(token);
    // A foreign one answers as an unknown one.
    if (it == host_call_tokens_.end() || it->second.peer != peer || stopping_) {
      return absl::UnauthenticatedError("no session announced this token");
    }
    session = it->second.session;
  }
  struct Self {
    std::weak_ptr<HostCallPipe> pipe;
  };
  auto self = std::make_shared<Self>();
  auto on_loop = [weak = weak_from_this(), self](auto run) {
    auto door = weak.lock();
    if (door == nullptr) return;
    door->PostSelf([self, run = std::move(run)](Impl& impl) mutable {
      if (auto pipe = self->pipe.lock()) run(*impl.host_calls_, pipe);
    });
  };
  auto pipe = std::make_shared<HostCallPipe>(
      session,
      [on_loop](HostCallPipe::Frame frame) {
        on_loop([frame = std::move(frame)](HostCallRouter& router, const std::shared_ptr<HostCallPipe>& at) {
          router.OnFrame(at, frame);
        });
      },
      [on_loop](size_t bytes) {
        on_loop([bytes](HostCallRouter& router, const std::shared_ptr<HostCallPipe>& at) {
          router.OnWritten(at->session(), bytes);
        });
      },
      [on_loop] {
        on_loop([](HostCallRouter& router, const std::shared_ptr<HostCallPipe>& at) { router.Detach(at); });
      });
  self->pipe = pipe;
  PostSelf([pipe, session](Impl& impl) {
    if (impl.Find(session) == nullptr) return pipe->Close();  // it has ended meanwhile
    impl.host_calls_->Attach(pipe);
  });
  return pipe;
}

// ---------------------------------------------------------------- loop

void IfrtFrontDoor::Impl::OpenOnLoop(std::shared_ptr<SessionPipe> pipe, std::string peer,
                                     SessionCore::Options options) {
  ++sessions_opened_;
  controller_->OpenSession(options.session, options.hints);
  auto session = std::make_unique<Session>(this, std::move(pipe), std::move(peer), options);
  if (catalog_ != nullptr) session->core.SetDevices(catalog_.get());
  LogInfo("Session ", options.session.ToString(), " of ", session->peer, " opened, protocol ",
          options.protocol_version);
  sessions_.emplace(options.session, std::move(session));
}

void IfrtFrontDoor::Impl::CloseOnLoop(SessionId session) {
  auto it = sessions_.find(session);
  if (it == sessions_.end()) return;
  std::unique_ptr<Session> gone = std::move(it->second);
  sessions_.erase(it);
  absl::erase_if(requests_, [session](const auto& entry) { return entry.second == session; });
  absl::erase_if(string_keys_, [session](const auto& entry) { return entry.second == session; });
  ++depth_;
  controller_->CloseSession(session, absl::CancelledError("The client's session has ended"));
  host_calls_->CloseSession(session);  // after: what they free must not start other launches of it
  --depth_;
  gone.reset();
  LogInfo("Session ", session.ToString(), " closed");
  Drain();
}

void IfrtFrontDoor::Impl::SetDevices(DeviceCatalog catalog) {
  catalog_ = std::make_unique<DeviceCatalog>(std::move(catalog));
  for (auto& [id, session] : sessions_) session->core.SetDevices(catalog_.get());
  Drain();
}

void IfrtFrontDoor::Impl::ExpireInits(const absl::Status& why) {
  for (auto& [id, session] : sessions_) session->core.ExpireInits(options_.now() - limits::kInitPatience, why);
  Drain();
}

void IfrtFrontDoor::Impl::Turn(SessionId id) {
  Session* session = Find(id);
  if (session == nullptr) return;
  std::vector<SessionPipe::RequestPtr> requests = session->pipe->TakeRequests();
  ++depth_;
  size_t seen = 0;
  while (seen < requests.size() && session->out_bytes < kSessionAnswerBytesMax) {
    session->core.OnRequest(*requests[seen++]->mutable_message(), options_.now());
  }
  --depth_;
  if (seen < requests.size()) {  // the client is to take these answers first
    session->hurry = true;
    session->pipe->PutBack({std::make_move_iterator(requests.begin() + static_cast<ptrdiff_t>(seen)),
                            std::make_move_iterator(requests.end())});
    requests.resize(seen);
  }
  requests_seen_ += seen;
  session->pipe->Recycle(std::move(requests));
  Drain();
}

void IfrtFrontDoor::Impl::Record(RequestId request, std::variant<absl::Status, absl::StatusOr<ReadResult>> answer) {
  events_.push_back({request, std::move(answer)});
  if (depth_ > 0 || drain_posted_) return;
  drain_posted_ = true;
  PostSelf([](Impl& self) {
    self.drain_posted_ = false;
    self.Drain();
  });
}

void IfrtFrontDoor::Impl::Drain() {
  if (depth_ > 0) return;
  ++depth_;
  while (!events_.empty() || !wanted_strings_.empty()) {
    for (uint64_t key : std::exchange(wanted_strings_, {})) buffers_->WantBytes(key);
    for (Event& event : std::exchange(events_, {})) {
      auto it = requests_.find(event.request);
      if (it == requests_.end()) continue;  // its session has ended
      Session* session = Find(it->second);
      requests_.erase(it);
      if (session == nullptr) continue;
      if (auto* status = std::get_if<absl::Status>(&event.answer)) {
        session->core.OnResolve(event.request, *status);
      } else {
        session->core.OnResolveRead(event.request, std::move(std::get<1>(event.answer)));
      }
    }
  }
  --depth_;
  for (SessionId id : std::exchange(touched_, {})) {
    Session* session = Find(id);
    if (session == nullptr) continue;
    session->touched = false;
    if (session->hurry || !options_.run_after || session->out.size() >= limits::kLazyAnswersMax) {
      Answer(*session);
    } else {
      AnswerLater();
    }
  }
}

void IfrtFrontDoor::Impl::Answer(Session& session) {
  session.hurry = false;
  session.out_bytes = 0;
  session.pipe->PushResponses(std::exchange(session.out, {}));
}

// Each packet costs both ends a wake-up. In a run of calls that nobody waits for, some dozen answers share one.
void IfrtFrontDoor::Impl::AnswerLater() {
  if (std::exchange(answers_put_off_, true)) return;
  options_.run_after(limits::kLazyDelay, [weak = weak_from_this()] {
    auto self = weak.lock();
    if (self == nullptr) return;
    self->answers_put_off_ = false;
    for (auto& [id, session] : self->sessions_) {
      if (!session->out.empty()) self->Answer(*session);
    }
  });
}

void IfrtFrontDoor::Impl::OnHostBytes(uint64_t key, absl::StatusOr<std::string> bytes) {
  ++depth_;
  auto it = string_keys_.find(key);
  if (it != string_keys_.end()) {
    Session* session = Find(it->second);
    string_keys_.erase(it);
    if (session != nullptr) session->core.OnStringBytes(key, std::move(bytes));
  } else {
    controller_->OnHostBytes(key, std::move(bytes));
  }
  --depth_;
  Drain();
}

void IfrtFrontDoor::Impl::PauseSession(SessionId session, bool paused) {
  if (Session* found = Find(session)) found->pipe->SetPaused(paused);
}

void IfrtFrontDoor::Impl::StartCompile(SessionId session, uint64_t token, absl::Cord program, std::string options,
                                       bool split) {
  std::shared_ptr<SessionPipe> pipe = Find(session)->pipe;
  const size_t bytes = program.size();
  pipe->AddKept(bytes);
  auto done = [weak = weak_from_this(), session, token, bytes, pipe = std::move(pipe)](CompileResult result) {
    auto self = weak.lock();
    if (self == nullptr) return;
    pipe->RemoveKept(bytes);
    self->OnCompiled(session, token, std::move(result));
  };
  if (compiler_ == nullptr) return done(absl::FailedPreconditionError("This proxy has no compiler"));
  CompileRequest request;
  request.program = std::move(program);
  request.compile_options = std::move(options);
  request.split = split;
  compiler_->Compile(std::move(request), std::move(done));
}

template <typename F>
void IfrtFrontDoor::Impl::TellSession(SessionId id, F tell) {
  PostSelf([id, tell = std::move(tell)](Impl& door) mutable {
    Session* session = door.Find(id);
    if (session == nullptr) return;
    ++door.depth_;
    tell(session->core);
    --door.depth_;
    door.Drain();
  });
}

void IfrtFrontDoor::Impl::OnCompiled(SessionId id, uint64_t token, CompileResult result,
                                     std::vector<DeviceId> devices) {
  absl::StatusOr<SessionCore::Compiled> compiled = SessionCore::Compiled{};
  if (!result.ok()) {
    compiled = result.status();
  } else {
    auto image = std::make_shared<ProgramImage>();
    image->envelope = std::shared_ptr<const std::string>(*result, &(*result)->envelope);
    image->sha256 = (*result)->envelope_sha256;
    image->info = (*result)->info;
    compiled = SessionCore::Compiled{std::move(image), std::move(devices)};
  }
  TellSession(id, [token, compiled = std::move(compiled)](SessionCore& core) mutable {
    core.OnCompiled(token, std::move(compiled));
  });
}

void IfrtFrontDoor::Impl::FetchOptimisedProgram(SessionId id, uint64_t token, std::shared_ptr<const ProgramImage> image,
                                                OptimisedForm form) {
  auto done = [weak = weak_from_this(), id, token, form](absl::StatusOr<std::string> program) {
    auto self = weak.lock();
    if (self == nullptr) return;
    // The client's message has room for text only.
    if (program.ok() && form == OptimisedForm::kModule) program = absl::Base64Escape(*program);
    self->TellSession(id, [token, program = std::move(program)](SessionCore& core) mutable {
      core.OnOptimisedProgram(token, std::move(program));
    });
  };
  if (compiler_ == nullptr) return done(absl::FailedPreconditionError("This proxy has no compiler"));
  compiler_->FetchOptimisedProgram(image->envelope, image->sha256, form, std::move(done));
}

void IfrtFrontDoor::Impl::SealProgram(SessionId id, uint64_t token, const ProgramImage& image,
                                      const std::vector<DeviceId>& devices) {
  auto done = [weak = weak_from_this(), id, token](absl::StatusOr<std::string> sealed) {
    auto self = weak.lock();
    if (self == nullptr) return;
    if (sealed.ok()) sealed = absl::StrCat("{\"program\":\"", absl::Base64Escape(*sealed), "\"}");
    self->TellSession(id, [token, sealed = std::move(sealed)](SessionCore& core) mutable {
      core.OnAnswer(token, std::move(sealed));
    });
  };
  if (compiler_ == nullptr) return done(absl::FailedPreconditionError("This proxy has no compiler"));
  std::vector<int32_t> ids;
  for (DeviceId device : devices) ids.push_back(device.value());
  compiler_->SealForClient(image.info, image.envelope, std::move(ids), std::move(done));
}

void IfrtFrontDoor::Impl::AskShardings(SessionId id, uint64_t token, absl::Cord program, std::string options) {
  std::shared_ptr<SessionPipe> pipe = Find(id)->pipe;
  const size_t bytes = program.size();
  pipe->AddKept(bytes);
  auto done = [weak = weak_from_this(), id, token, bytes, pipe = std::move(pipe)](absl::StatusOr<std::string> answer) {
    auto self = weak.lock();
    if (self == nullptr) return;
    pipe->RemoveKept(bytes);
    self->TellSession(id, [token, answer = std::move(answer)](SessionCore& core) mutable {
      core.OnAnswer(token, std::move(answer));
    });
  };
  if (compiler_ == nullptr) return done(absl::FailedPreconditionError("This proxy has no compiler"));
  CompileRequest request;
  request.program = std::move(program);
  request.compile_options = std::move(options);
  compiler_->AskShardings(std::move(request), std::move(done));
}

void IfrtFrontDoor::Impl::OpenProgram(SessionId id, uint64_t token, absl::Cord sealed) {
  std::shared_ptr<SessionPipe> pipe = Find(id)->pipe;
  const size_t bytes = sealed.size();
  pipe->AddKept(bytes);
  auto done = [weak = weak_from_this(), id, token, bytes,
               pipe = std::move(pipe)](absl::StatusOr<ReturnedProgram> returned) {
    auto self = weak.lock();
    if (self == nullptr) return;
    pipe->RemoveKept(bytes);
    if (!returned.ok()) return self->OnCompiled(id, token, returned.status());
    std::vector<DeviceId> devices;
    for (int32_t device : returned->device_ids) devices.push_back(DeviceId(device));
    self->OnCompiled(id, token, std::move(returned->program), std::move(devices));
  };
  if (compiler_ == nullptr) return done(absl::FailedPreconditionError("This proxy has no compiler"));
  compiler_->OpenFromClient(std::move(sealed), std::move(done));
}

std::string IfrtFrontDoor::Impl::StatusJson() const {
  nlohmann::json json;
  const HostBuffers::Counts buffers = buffers_->counts();
  json["devices_known"] = catalog_ != nullptr;
  json["sessions_opened"] = sessions_opened_;
  json["requests"] = requests_seen_;
  json["requests_waiting"] = requests_.size();
  json["host_buffers"] = {
      {"unclaimed", buffers.unclaimed}, {"expected", buffers.expected},           {"claimed", buffers.claimed},
      {"results", buffers.results},     {"parked_stores", buffers.parked_stores}, {"bytes_held", buffers.bytes_held}};
  json["host_calls"] = {{"open", host_calls_->open()}, {"total", host_calls_->total()}};
  json["uploads_by_file"] = shared_directory_->uploads();
  json["sessions"] = nlohmann::json::array();
  for (const auto& [id, session] : sessions_) {
    const SessionCore::Counts counts = session->core.counts();
    json["sessions"].push_back({{"id", id.ToString()},
                                {"peer", session->peer},
                                {"arrays", counts.arrays},
                                {"executables", counts.executables},
                                {"futures", counts.futures},
                                {"pending", counts.pending},
                                {"contexts_held", counts.contexts_held},
                                {"contexts_kept_back", counts.contexts_kept_back}});
  }
  return json.dump();
}

// ---------------------------------------------------------------- public

IfrtFrontDoor::IfrtFrontDoor(IfrtFrontDoorOptions options, Controller* controller, Post post, CompileService* compiler,
                             dataplane::DataPlane* data_plane)
    : impl_(std::make_shared<Impl>(std::move(options), controller, std::move(post), compiler, data_plane)) {
  impl_->Init();
}

IfrtFrontDoor::~IfrtFrontDoor() { impl_->Stop(); }

absl::StatusOr<int> IfrtFrontDoor::Start(const std::string& listen_address) { return impl_->Start(listen_address); }
void IfrtFrontDoor::Stop() { impl_->Stop(); }
void IfrtFrontDoor::SetDevices(DeviceCatalog catalog) { impl_->SetDevices(std::move(catalog)); }
void IfrtFrontDoor::ExpireInits(const absl::Status& why) { impl_->ExpireInits(why); }
void IfrtFrontDoor::OnResolve(RequestId request, const absl::Status& status) { impl_->Record(request, status); }
void IfrtFrontDoor::OnResolveRead(RequestId request, absl::StatusOr<ReadResult> result) {
  impl_->Record(request, std::move(result));
}
void IfrtFrontDoor::ServeHostBuffer(uint64_t key, std::vector<Incarnation> workers) {
  impl_->buffers().Serve(key, workers);
}
void IfrtFrontDoor::WantHostBytes(uint64_t key) { impl_->buffers().WantBytes(key); }
void IfrtFrontDoor::DropHostBuffer(uint64_t key) { impl_->buffers().Drop(key); }
void IfrtFrontDoor::PauseSession(SessionId session, bool paused) { impl_->PauseSession(session, paused); }
void IfrtFrontDoor::OnWorkerLost(Incarnation worker, const absl::Status&) {
  impl_->buffers().OnWorkerLost(worker);
  impl_->host_calls().OnWorkerLost(worker);
}
void IfrtFrontDoor::OnHostCall(Incarnation worker, HostCall call) {
  impl_->host_calls().OnCall(worker, std::move(call));
}
void IfrtFrontDoor::OnHostCallTaken(Incarnation worker, uint64_t call) { impl_->host_calls().OnTaken(worker, call); }
void IfrtFrontDoor::Drain() { impl_->Drain(); }
std::string IfrtFrontDoor::StatusJson() const { return impl_->StatusJson(); }
size_t IfrtFrontDoor::session_count() const { return impl_->session_count(); }

}  // namespace landbridge
