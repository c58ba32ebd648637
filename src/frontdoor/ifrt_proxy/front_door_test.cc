// The door over real gRPC, with a client of our own, a fake cluster and the in-process data plane.
#include "frontdoor/ifrt_proxy/front_door.h"

#include <dirent.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include <grpcpp/grpcpp.h>

#include "absl/strings/str_cat.h"
#include "base/data_keys.h"
#include "dataplane/in_process_data_plane.h"
#include "frontdoor/ifrt_proxy/fake_cluster.h"
#include "frontdoor/ifrt_proxy/grpc_service.h"
#include "frontdoor/ifrt_proxy/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/ifrt_proxy/grpc_ifrt_service.grpc.pb.h"

namespace landbridge {
namespace {

using ::testing::HasSubstr;
namespace proxy = xla::ifrt::proxy;

TimeNs Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int ThreadCount() {
  int count = 0;
  DIR* dir = ::opendir("/proc/self/task");
  while (dirent* entry = ::readdir(dir)) count += entry->d_name[0] != '.' ? 1 : 0;
  ::closedir(dir);
  return count;
}

// The proxy's loop: closures in order on one thread.
class TestLoop {
 public:
  explicit TestLoop(std::function<void()> after_turn)
      : after_turn_(std::move(after_turn)), thread_([this] { Run(); }) {}
  ~TestLoop() { Stop(); }
  void Post(absl::AnyInvocable<void()> run) {
    {
      std::lock_guard lock(mutex_);
      if (stopped_) return;
      queue_.push_back(std::move(run));
    }
    wake_.notify_one();
  }
  // Runs on the loop and waits.
  void Do(std::function<void()> run) {
    std::mutex done_mutex;
    std::condition_variable done_wake;
    bool done = false;
    Post([&] {
      run();
      std::lock_guard lock(done_mutex);
      done = true;
      done_wake.notify_one();
    });
    std::unique_lock lock(done_mutex);
    done_wake.wait(lock, [&] { return done; });
  }
  void Stop() {
    {
      std::lock_guard lock(mutex_);
      if (stopped_) return;
      stopped_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

 private:
  void Run() {
    for (;;) {
      absl::AnyInvocable<void()> next;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stopped_ || !queue_.empty(); });
        if (queue_.empty()) return;
        next = std::move(queue_.front());
        queue_.pop_front();
      }
      next();
      after_turn_();
    }
  }
  const std::function<void()> after_turn_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<absl::AnyInvocable<void()>> queue_;
  bool stopped_ = false;
  std::thread thread_;
};

class FrontDoorTest : public ::testing::Test {
 protected:
  static constexpr int kMessageBytesMax = 64 << 20;  // as the real limit, so that a test can reach it
  FrontDoorTest() : loop_([this] { AfterTurn(); }) {
    proxy_plane_ = fabric_.MakeDataPlane({.self = Incarnation(1), .token = {}, .authorizer = {}, .peer_failed = {}});
    for (int s = 0; s < FakeCluster::kSlices; ++s) {
      const Incarnation life(static_cast<uint64_t>(100 + s));
      auto plane = fabric_.MakeDataPlane({.self = life, .token = {}, .authorizer = {}, .peer_failed = {}});
      EXPECT_TRUE(plane->AddPeer(Incarnation(1), proxy_plane_->address()).ok());
      EXPECT_TRUE(proxy_plane_->AddPeer(life, plane->address()).ok());
      planes_[life] = std::move(plane);
    }
    loop_.Do([this] {
      cluster_ = std::make_unique<FakeCluster>();
      cluster_->pull = [this](Incarnation worker, const Upload& upload,
                              std::function<void(absl::StatusOr<std::string>)> done) {
        auto bytes = std::make_shared<std::string>(static_cast<size_t>(upload.image_bytes()), '\0');
        planes_[worker]->Pull(Incarnation(1), {FakeCluster::kSpace, upload.key()}, 0, bytes->data(), bytes->size(),
                              [this, bytes, done](absl::Status status) {
                                loop_.Post([bytes, done, status] {
                                  if (status.ok()) {
                                    done(std::move(*bytes));
                                  } else {
                                    done(status);
                                  }
                                });
                              });
      };
      cluster_->publish = [this](Incarnation worker, uint64_t read, std::string bytes) {
        auto owner = std::make_shared<const std::string>(std::move(bytes));
        ++published_;
        planes_[worker]->PublishSpan(
            {FakeCluster::kSpace, DataKeyId(DataKeyKind::kRead, read)},
            absl::MakeConstSpan(reinterpret_cast<const std::byte*>(owner->data()), owner->size()), owner);
      };
      cluster_->unpublish = [this](uint64_t) { --published_; };
      IfrtFrontDoorOptions options;
      options.space = FakeCluster::kSpace;
      options.now = Now;
      options.run_after = [this](DurationNs, std::function<void()> task) {
        if (hold_timers_) {
          timers_.push_back(std::move(task));
        } else {
          loop_.Post(std::move(task));
        }
      };
      options.message_bytes_max = kMessageBytesMax;
      door_ = std::make_unique<IfrtFrontDoor>(
          std::move(options), &cluster_->controller,
          [this](absl::AnyInvocable<void()> run) { loop_.Post(std::move(run)); }, nullptr, proxy_plane_.get());
    });
    absl::StatusOr<int> port = door_->Start("127.0.0.1:0");
    EXPECT_TRUE(port.ok()) << port.status();
    port_ = *port;
    channel_ = MakeChannel();
    stub_ = proxy::GrpcIfrtService::NewStub(channel_);
  }
  ~FrontDoorTest() override {
    door_->Stop();
    loop_.Stop();
    door_.reset();
    for (auto& [life, plane] : planes_) plane->Shutdown();
    proxy_plane_->Shutdown();
  }

  // What the proxy's sink does: hands on what the controller said.
  void AfterTurn() {
    if (cluster_ == nullptr || door_ == nullptr) return;
    for (bool more = true; more;) {
      more = false;
      for (auto& [key, workers] : std::exchange(cluster_->served, {})) door_->ServeHostBuffer(key, workers);
      for (uint64_t key : std::exchange(cluster_->wanted, {})) door_->WantHostBytes(key);
      for (uint64_t key : std::exchange(cluster_->dropped, {})) door_->DropHostBuffer(key);
      cluster_->Run();
      while (!cluster_->resolved.empty()) {
        door_->OnResolve(cluster_->resolved.front().first, cluster_->resolved.front().second);
        cluster_->resolved.pop_front();
        more = true;
      }
      while (!cluster_->reads.empty()) {
        door_->OnResolveRead(cluster_->reads.front().first, std::move(cluster_->reads.front().second));
        cluster_->reads.pop_front();
        more = true;
      }
      door_->Drain();
    }
  }

  std::shared_ptr<grpc::Channel> MakeChannel() const {
    grpc::ChannelArguments args;
    args.SetMaxReceiveMessageSize(-1);
    args.SetMaxSendMessageSize(-1);
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port_), grpc::InsecureChannelCredentials(), args);
  }
  void LetIn() {
    loop_.Do([this] {
      DeviceCatalog catalog;
      for (int i = 0; i < 4; ++i) {
        CatalogDevice device;
        device.id = DeviceId(i);
        device.slice_index = i / 2;
        catalog.devices.push_back(device);
      }
      door_->SetDevices(std::move(catalog));
    });
  }
  Controller::Counts ControllerCounts() {
    Controller::Counts counts;
    loop_.Do([&] { counts = cluster_->controller.counts(); });
    return counts;
  }
  nlohmann::json DoorStatus() {
    std::string text;
    loop_.Do([&] { text = door_->StatusJson(); });
    return nlohmann::json::parse(text);
  }
  // True once the condition holds; false after ten seconds.
  bool Eventually(const std::function<bool()>& condition) {
    const TimeNs end = Now() + 10 * kSecond;
    while (Now() < end) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return false;
  }

  // A client's session.
  class Client {
   public:
    explicit Client(proxy::GrpcIfrtService::Stub* stub, bool with_header = true) : stub_(stub) {
      proxy::GrpcIfrtSessionMetadata metadata;
      metadata.mutable_version()->set_protocol_version(25);
      metadata.mutable_version()->set_ifrt_serdes_version_number(3);
      if (with_header) {
        context_.AddMetadata("ifrt-proxy-grpc-ifrt-session-metadata-bin", metadata.SerializeAsString());
      }
      stream_ = stub_->IfrtSession(&context_);
    }
    ~Client() {
      if (stream_ == nullptr) return;
      context_.TryCancel();
      stream_->Finish();
    }
    uint64_t Send(proxy::IfrtRequest request) {
      request.mutable_request_metadata()->set_op_id(++op_);
      EXPECT_TRUE(stream_->Write(request));
      return op_;
    }
    proxy::IfrtResponse Receive() {
      proxy::IfrtResponse response;
      EXPECT_TRUE(stream_->Read(&response));
      return response;
    }
    // Until the answer to `op`.
    proxy::IfrtResponse Await(uint64_t op) {
      proxy::IfrtResponse response;
      while (stream_->Read(&response)) {
        if (response.response_metadata().op_id() == op) return response;
      }
      ADD_FAILURE() << "the session ended";
      return {};
    }
    proxy::IfrtResponse Call(proxy::IfrtRequest request) { return Await(Send(std::move(request))); }
    void Init() {
      proxy::IfrtRequest request;
      request.mutable_init_request();
      const auto response = Call(request);
      EXPECT_EQ(response.init_response().all_devices_size(), 4);
      session_id = response.init_response().session_id();
    }
    grpc::Status Store(uint64_t handle, const std::string& bytes, std::optional<int64_t> announced = {},
                       uint64_t other_session = 0) {
      grpc::ClientContext context;
      proxy::GrpcHostBufferStoreMetadata metadata;
      metadata.set_session_id(other_session != 0 ? other_session : session_id);
      metadata.set_handle(handle);
      metadata.set_buffer_size(announced.value_or(static_cast<int64_t>(bytes.size())));
      context.AddMetadata("ifrt-proxy-grpc-host-buffer-store-metadata-bin", metadata.SerializeAsString());
      proxy::GrpcHostBufferStoreResponse response;
      auto writer = stub_->HostBufferStore(&context, &response);
      for (size_t at = 0; at < bytes.size(); at += 1u << 20) {
        proxy::GrpcHostBufferStoreRequest message;
        message.set_data(bytes.substr(at, 1u << 20));
        if (!writer->Write(message)) break;
      }
      writer->WritesDone();
      return writer->Finish();
    }
    grpc::Status Lookup(uint64_t handle, std::string* bytes, uint64_t other_session = 0) {
      grpc::ClientContext context;
      proxy::GrpcHostBufferLookupRequest request;
      request.set_session_id(other_session != 0 ? other_session : session_id);
      request.set_handle(handle);
      auto reader = stub_->HostBufferLookup(&context, request);
      proxy::GrpcHostBufferLookupResponse message;
      int messages = 0;
      while (reader->Read(&message)) {
        bytes->append(message.data());
        ++messages;
      }
      const grpc::Status status = reader->Finish();
      EXPECT_TRUE(!status.ok() || messages >= 1);
      return status;
    }
    grpc::Status Delete(uint64_t handle) {
      grpc::ClientContext context;
      proxy::GrpcHostBufferDeleteRequest request;
      request.set_session_id(session_id);
      request.set_handle(handle);
      proxy::GrpcHostBufferDeleteResponse response;
      return stub_->HostBufferDelete(&context, request, &response);
    }
    static proxy::IfrtRequest MakeArray(uint64_t handle, int64_t bytes, int device) {
      proxy::IfrtRequest request;
      auto* make = request.mutable_make_array_from_host_buffer_request();
      wire::SetDType(DType::kU8, make->mutable_dtype());
      make->mutable_shape()->add_dims(bytes);
      xla::ifrt::SingleDeviceShardingProto single;
      single.set_device_id(device);
      make->mutable_sharding()->mutable_serialized_sharding()->set_type_name("xla::ifrt::SingleDeviceSharding");
      make->mutable_sharding()->mutable_serialized_sharding()->set_data(single.SerializeAsString());
      make->set_host_buffer_handle(handle);
      make->set_array_handle(handle);
      return request;
    }
    static proxy::IfrtRequest CopyOut(uint64_t array, uint64_t buffer) {
      proxy::IfrtRequest request;
      request.mutable_copy_to_host_buffer_request()->set_array_handle(array);
      request.mutable_copy_to_host_buffer_request()->set_host_buffer_handle(buffer);
      return request;
    }
    static proxy::IfrtRequest Ready(uint64_t array) {
      proxy::IfrtRequest request;
      request.mutable_check_value_ready_request()->add_value_handles(array);
      return request;
    }
    grpc::Status Finish() {
      proxy::IfrtResponse response;
      while (stream_->Read(&response)) {
      }
      const grpc::Status status = stream_->Finish();
      stream_ = nullptr;
      return status;
    }
    void Cancel() { context_.TryCancel(); }

    uint64_t session_id = 0;

   private:
    proxy::GrpcIfrtService::Stub* const stub_;
    grpc::ClientContext context_;
    std::unique_ptr<grpc::ClientReaderWriter<proxy::IfrtRequest, proxy::IfrtResponse>> stream_;
    uint64_t op_ = 0;
  };

  dataplane::InProcessFabric fabric_;
  std::unique_ptr<dataplane::DataPlane> proxy_plane_;
  std::map<Incarnation, std::unique_ptr<dataplane::DataPlane>> planes_;
  std::unique_ptr<FakeCluster> cluster_;
  std::unique_ptr<IfrtFrontDoor> door_;
  std::atomic<int> published_{0};
  bool hold_timers_ = false;                   // loop
  std::vector<std::function<void()>> timers_;  // loop
  int port_ = 0;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<proxy::GrpcIfrtService::Stub> stub_;
  TestLoop loop_;
};

TEST_F(FrontDoorTest, VersionsAreAnsweredBeforeTheDevicesAreKnown) {
  auto ask = [&](int low, int high, proxy::GrpcGetVersionResponse* response) {
    grpc::ClientContext context;
    proxy::GrpcGetVersionRequest request;
    request.mutable_min_version()->set_protocol_version(low);
    request.mutable_max_version()->set_protocol_version(high);
    request.mutable_max_version()->set_ifrt_serdes_version_number(3);
    return stub_->GetVersion(&context, request, response);
  };
  proxy::GrpcGetVersionResponse response;
  EXPECT_TRUE(ask(16, 25, &response).ok());
  EXPECT_EQ(response.version().protocol_version(), 25);
  EXPECT_EQ(response.version().ifrt_serdes_version_number(), 3);
  const grpc::Status status = ask(30, 40, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("30 to 40"));
  EXPECT_THAT(status.error_message(), HasSubstr("15 to 25"));
}

TEST_F(FrontDoorTest, ASessionNeedsItsHeader) {
  Client client(stub_.get(), false);
  EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(FrontDoorTest, InitWaitsForTheDevices) {
  Client client(stub_.get());
  proxy::IfrtRequest request;
  request.mutable_init_request();
  const uint64_t op = client.Send(request);
  ASSERT_TRUE(Eventually([&] { return DoorStatus()["sessions"].size() == 1 && DoorStatus()["requests"] == 1; }));
  EXPECT_EQ(DoorStatus()["sessions"][0]["pending"], 1);
  LetIn();
  EXPECT_EQ(client.Await(op).init_response().all_devices_size(), 4);
}

TEST_F(FrontDoorTest, BytesThereAndBackInEitherOrder) {
  LetIn();
  Client client(stub_.get());
  client.Init();
  for (const int64_t size : {int64_t{0}, int64_t{5}, int64_t{65'536}, int64_t{65'537}, int64_t{5} << 20}) {
    std::string bytes(static_cast<size_t>(size), '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 + i / 1000);
    for (bool store_first : {true, false}) {
      const uint64_t handle = static_cast<uint64_t>(10 * size + (store_first ? 1 : 2));
      std::thread store;
      // Without its request a big Store is not read to its end.
      if (store_first && size <= 1 << 20) {
        EXPECT_TRUE(client.Store(handle, bytes).ok());
      } else {
        store = std::thread([&] { EXPECT_TRUE(client.Store(handle, bytes).ok()); });
      }
      client.Send(Client::MakeArray(handle, size, 3));
      const auto read = client.Call(Client::CopyOut(handle, handle + 5));
      if (store.joinable()) store.join();
      ASSERT_TRUE(read.has_copy_to_host_buffer_response()) << read.ShortDebugString();
      std::string back;
      EXPECT_TRUE(client.Lookup(handle + 5, &back).ok());
      EXPECT_TRUE(back == bytes) << size;
      EXPECT_EQ(published_.load(), size > static_cast<int64_t>(limits::kInlineBytesMax) ? 1 : 0);
      EXPECT_TRUE(client.Delete(handle + 5).ok());
      EXPECT_EQ(client.Delete(handle + 5).error_code(), grpc::StatusCode::NOT_FOUND);
      EXPECT_TRUE(Eventually([&] { return published_.load() == 0; }));
      proxy::IfrtRequest destruct;
      destruct.mutable_destruct_array_request()->add_array_handle(handle);
      client.Call(destruct);
    }
  }
  EXPECT_EQ(ControllerCounts().arrays, 0u);
  const nlohmann::json status = DoorStatus();
  EXPECT_EQ(status["host_buffers"]["bytes_held"], 0);
  EXPECT_EQ(status["host_buffers"]["claimed"], 0);
  EXPECT_EQ(status["requests_waiting"], 0);
}

TEST_F(FrontDoorTest, ABigUploadAndReadHoldAFewChunksOnly) {
  LetIn();
  Client client(stub_.get());
  client.Init();
  std::string bytes(size_t{96} << 20, '\0');
  for (size_t i = 0; i < bytes.size(); i += 97) bytes[i] = static_cast<char>(i >> 8);
  std::atomic<bool> running{true};
  std::atomic<size_t> peak{0};
  std::thread watch([&] {
    while (running.load()) {
      const size_t held = DoorStatus()["host_buffers"]["bytes_held"].get<size_t>();
      peak.store(std::max(peak.load(), held));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  client.Send(Client::MakeArray(1, static_cast<int64_t>(bytes.size()), 0));
  EXPECT_TRUE(client.Store(1, bytes).ok());
  EXPECT_TRUE(client.Call(Client::CopyOut(1, 2)).has_copy_to_host_buffer_response());
  std::string back;
  EXPECT_TRUE(client.Lookup(2, &back).ok());
  EXPECT_TRUE(back == bytes);
  running = false;
  watch.join();
  EXPECT_LE(peak.load(), size_t{40} << 20);
}

TEST_F(FrontDoorTest, HostBufferCallsBelongToTheirSession) {
  LetIn();
  Client a(stub_.get()), b(stub_.get());
  a.Init();
  b.Init();
  EXPECT_NE(a.session_id, b.session_id);
  EXPECT_EQ(a.Store(1, "abc", {}, /*other_session=*/12345).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_TRUE(a.Store(1, "abc").ok());
  EXPECT_EQ(a.Store(1, "abc").error_code(), grpc::StatusCode::ALREADY_EXISTS);
  a.Call(Client::MakeArray(1, 3, 0));
  a.Call(Client::CopyOut(1, 2));
  std::string bytes;
  EXPECT_EQ(b.Lookup(2, &bytes).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(a.Lookup(2, &bytes, 999).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_TRUE(a.Lookup(2, &bytes).ok());
  EXPECT_EQ(bytes, "abc");
}

TEST_F(FrontDoorTest, ImpossibleSizesCostTheArrayOnly) {
  LetIn();
  Client client(stub_.get());
  client.Init();
  uint64_t handle = 1;
  for (int64_t announced : {int64_t{-5}, int64_t{1} << 60}) {
    EXPECT_TRUE(client.Store(++handle, "abc", announced).ok());
    EXPECT_EQ(client.Call(Client::MakeArray(handle, 3, 0)).response_metadata().status().code(), 3);
    EXPECT_EQ(client.Call(Client::Ready(handle)).response_metadata().status().code(), 3);
  }
  EXPECT_EQ(client.Store(++handle, "abc", 4).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  // The session goes on.
  EXPECT_TRUE(client.Store(++handle, "abc").ok());
  client.Call(Client::MakeArray(handle, 3, 0));
  EXPECT_EQ(client.Call(Client::Ready(handle)).response_metadata().status().code(), 0);
}

TEST_F(FrontDoorTest, GarbageEndsItsSendersSessionOnly) {
  LetIn();
  Client good(stub_.get());
  good.Init();
  {
    auto channel = MakeChannel();
    grpc::ClientContext context;
    proxy::GrpcIfrtSessionMetadata metadata;
    metadata.mutable_version()->set_protocol_version(25);
    context.AddMetadata("ifrt-proxy-grpc-ifrt-session-metadata-bin", metadata.SerializeAsString());
    // A stream of another message type: its bytes are no IfrtRequest.
    grpc::internal::RpcMethod method("/xla.ifrt.proxy.GrpcIfrtService/IfrtSession",
                                     grpc::internal::RpcMethod::BIDI_STREAMING, channel);
    auto* stream = grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer, grpc::ByteBuffer>::Create(
        channel.get(), method, &context);
    const std::string garbage(100, '\xff');
    grpc::Slice slice(garbage.data(), garbage.size());
    grpc::ByteBuffer message(&slice, 1);
    EXPECT_TRUE(stream->Write(message));
    grpc::ByteBuffer answer;
    EXPECT_FALSE(stream->Read(&answer));
    EXPECT_FALSE(stream->Finish().ok());
    delete stream;
  }
  EXPECT_TRUE(good.Store(1, "abc").ok());
  good.Call(Client::MakeArray(1, 3, 0));
  EXPECT_EQ(good.Call(Client::Ready(1)).response_metadata().status().code(), 0);
  EXPECT_TRUE(Eventually([&] { return door_->session_count() == 1; }));
}

TEST_F(FrontDoorTest, NothingIsLeftOfAClientThatVanishes) {
  LetIn();
  Client stays(stub_.get());
  stays.Init();
  {
    Client goes(stub_.get());
    goes.Init();
    EXPECT_TRUE(goes.Store(1, "abc").ok());
    goes.Call(Client::MakeArray(1, 3, 0));
    EXPECT_TRUE(goes.Store(2, std::string(1000, 'x')).ok());  // never claimed
    goes.Call(Client::MakeArray(3, 1 << 20, 0));              // never sent
    goes.Send(Client::Ready(3));
    EXPECT_GT(ControllerCounts().arrays, 0u);
  }
  EXPECT_TRUE(Eventually([&] {
    const Controller::Counts counts = ControllerCounts();
    return counts.sessions == 1 && counts.arrays == 0 && counts.host_buffers == 0 && counts.requests == 0;
  }));
  const nlohmann::json status = DoorStatus();
  EXPECT_EQ(status["sessions"].size(), 1u);
  EXPECT_EQ(status["host_buffers"]["unclaimed"], 0);
  EXPECT_EQ(status["host_buffers"]["expected"], 0);
  EXPECT_EQ(status["host_buffers"]["claimed"], 0);
  EXPECT_EQ(status["requests_waiting"], 0);
}

TEST_F(FrontDoorTest, ThreadsDoNotGrowWithPendingRequests) {
  LetIn();
  Client client(stub_.get());
  client.Init();
  client.Call(Client::MakeArray(1, 3, 0));  // its bytes never come
  client.Send(Client::Ready(1));
  ASSERT_TRUE(Eventually([&] { return DoorStatus()["requests_waiting"] == 1; }));
  const int with_one = ThreadCount();
  for (int i = 1; i < 10'000; ++i) client.Send(Client::Ready(1));
  ASSERT_TRUE(Eventually([&] { return DoorStatus()["requests_waiting"] == 10'000; }));
  EXPECT_LE(ThreadCount(), with_one + 4);  // gRPC keeps a few pollers as it likes
  std::thread store([&] { EXPECT_TRUE(client.Store(1, "abc").ok()); });
  for (int i = 0; i < 10'000; ++i) EXPECT_EQ(client.Receive().response_metadata().status().code(), 0);
  store.join();
  EXPECT_EQ(DoorStatus()["requests_waiting"], 0);
}

TEST_F(FrontDoorTest, APausedSessionIsNotReadAndItsEndIsNoticed) {
  LetIn();
  {
    Client client(stub_.get());
    client.Init();
    const auto before = DoorStatus()["requests"].get<int>();
    loop_.Do([&] { door_->PauseSession(SessionId(1), true); });
    // One request may be on its way into the pipe already.
    for (int i = 0; i < 100; ++i) client.Send(Client::Ready(0));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_LE(DoorStatus()["requests"].get<int>(), before + 1);
    loop_.Do([&] { door_->PauseSession(SessionId(1), false); });
    for (int i = 0; i < 100; ++i) client.Receive();
    loop_.Do([&] { door_->PauseSession(SessionId(1), true); });
  }
  EXPECT_TRUE(Eventually([&] { return door_->session_count() == 0; }));
}

TEST_F(FrontDoorTest, AnswersThatNobodyWaitsForLeaveTogether) {
  LetIn();
  Client client(stub_.get());
  client.Init();
  auto destruct = [](uint64_t array) {
    proxy::IfrtRequest request;
    request.mutable_destruct_array_request()->add_array_handle(array);
    return request;
  };
  auto seen = [&](int requests) {
    return Eventually([&, requests] { return DoorStatus()["requests"].get<int>() >= requests; });
  };
  loop_.Do([this] { hold_timers_ = true; });
  const int before = DoorStatus()["requests"].get<int>();
  const uint64_t first = client.Send(Client::MakeArray(1, 3, 0));
  const uint64_t second = client.Send(destruct(1));
  ASSERT_TRUE(seen(before + 2));
  // One timer for both; nothing has left, or it would come first.
  loop_.Do([this] {
    ASSERT_EQ(timers_.size(), 1u);
    std::exchange(timers_, {})[0]();
  });
  EXPECT_EQ(client.Receive().response_metadata().op_id(), first);
  EXPECT_EQ(client.Receive().response_metadata().op_id(), second);
  // Somebody waits: everything before comes along, in order, without any timer.
  const uint64_t third = client.Send(Client::MakeArray(2, 3, 0));
  const uint64_t fourth = client.Send(Client::Ready(77));  // unknown: answered at once
  EXPECT_EQ(client.Receive().response_metadata().op_id(), third);
  EXPECT_EQ(client.Receive().response_metadata().op_id(), fourth);
  // There are never many.
  std::vector<uint64_t> ops;
  for (size_t i = 0; i < limits::kLazyAnswersMax; ++i) ops.push_back(client.Send(Client::MakeArray(100 + i, 3, 0)));
  for (uint64_t op : ops) EXPECT_EQ(client.Receive().response_metadata().op_id(), op);
  loop_.Do([this] { hold_timers_ = false; });
}

TEST_F(FrontDoorTest, ARequestThatCanWaitIsServedAlsoWhenNothingFollows) {
  LetIn();
  Client client(stub_.get());
  client.Init();
  proxy::IfrtRequest request;
  request.mutable_destruct_array_request()->add_array_handle(5);
  EXPECT_EQ(client.Call(request).response_metadata().status().code(), 3);  // unknown handle
}

TEST_F(FrontDoorTest, ProgramsLargerThanGrpcsDefaultArrive) {
  LetIn();
  Client client(stub_.get());
  client.Init();
  proxy::IfrtRequest request;
  request.mutable_compile_request()->mutable_program()->set_type_name("xla::ifrt::XlaProgram");
  request.mutable_compile_request()->mutable_program()->set_data(std::string(16u << 20, 'p'));
  request.mutable_compile_request()->mutable_compile_options()->set_type_name("xla::ifrt::XlaCompileOptions");
  const auto response = client.Call(request);  // there is no compiler in this test
  EXPECT_EQ(response.response_metadata().status().code(), 9);
}

TEST_F(FrontDoorTest, AMessageAboveTheLimitEndsItsSendersSessionOnly) {
  LetIn();
  Client other(stub_.get());
  other.Init();
  {
    Client client(stub_.get());
    client.Init();
    proxy::IfrtRequest request;
    request.mutable_compile_request()->mutable_program()->set_data(std::string(kMessageBytesMax + 1, 'x'));
    client.Send(request);
    EXPECT_FALSE(client.Finish().ok());
  }
  proxy::IfrtRequest request;
  request.mutable_check_future_request()->set_future_handle(1);
  EXPECT_EQ(other.Call(request).response_metadata().status().code(), 3);
}

TEST_F(FrontDoorTest, FilesAreRefusedWithoutADirectory) {
  grpc::ClientContext context;
  proxy::GrpcHostBufferReadFromDiskRequest request;
  proxy::GrpcHostBufferReadFromDiskResponse response;
  EXPECT_EQ(stub_->HostBufferReadFromDisk(&context, request, &response).error_code(), grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(FrontDoorTest, ABusyPortIsAnError) {
  IfrtFrontDoorOptions options;
  options.now = Now;
  IfrtFrontDoor other(
      std::move(options), &cluster_->controller, [this](absl::AnyInvocable<void()> run) { loop_.Post(std::move(run)); },
      nullptr, proxy_plane_.get());
  const absl::Status status = other.Start(absl::StrCat("127.0.0.1:", port_)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(port_)));
}

TEST(PeerHost, WithoutThePort) {
  EXPECT_EQ(PeerHost("ipv4:10.0.0.1:5000"), "ipv4:10.0.0.1");
  EXPECT_EQ(PeerHost("ipv6:%5B::1%5D:5000"), "ipv6:%5B::1%5D");
  EXPECT_EQ(PeerHost("unix:/tmp/x"), "unix");
}

}  // namespace
}  // namespace landbridge
