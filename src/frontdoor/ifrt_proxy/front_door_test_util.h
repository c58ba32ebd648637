// The door over real gRPC, with a client of our own, a fake cluster and the in-process data plane.
#ifndef LANDBRIDGE_FRONTDOOR_IFRT_PROXY_FRONT_DOOR_TEST_UTIL_H_
#define LANDBRIDGE_FRONTDOOR_IFRT_PROXY_FRONT_DOOR_TEST_UTIL_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "absl/strings/str_cat.h"
#include "base/data_keys.h"
#include "dataplane/in_process_data_plane.h"
#include "frontdoor/ifrt_proxy/fake_cluster.h"
#include "frontdoor/ifrt_proxy/front_door.h"
#include "frontdoor/ifrt_proxy/grpc_service.h"
#include "frontdoor/ifrt_proxy/wire.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/ifrt_proxy/grpc_ifrt_service.grpc.pb.h"

namespace landbridge {

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
  static TimeNs Now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
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
    stub_ = xla::ifrt::proxy::GrpcIfrtService::NewStub(channel_);
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
      for (auto& [key, workers] : std::exchange(cluster_->served, {})) door_->ServeHostBuffer(key, workers);
      for (uint64_t key : std::exchange(cluster_->wanted, {})) door_->WantHostBytes(key);
      for (uint64_t key : std::exchange(cluster_->dropped, {})) door_->DropHostBuffer(key);
      cluster_->Run();
      more = cluster_->HandOverAnswers(*door_);
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
    explicit Client(xla::ifrt::proxy::GrpcIfrtService::Stub* stub, bool with_header = true) : stub_(stub) {
      xla::ifrt::proxy::GrpcIfrtSessionMetadata metadata;
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
    uint64_t Send(xla::ifrt::proxy::IfrtRequest request) {
      request.mutable_request_metadata()->set_op_id(++op_);
      EXPECT_TRUE(stream_->Write(request));
      return op_;
    }
    xla::ifrt::proxy::IfrtResponse Receive() {
      xla::ifrt::proxy::IfrtResponse response;
      EXPECT_TRUE(stream_->Read(&response));
      return response;
    }
    // Until the answer to `op`.
    xla::ifrt::proxy::IfrtResponse Await(uint64_t op) {
      xla::ifrt::proxy::IfrtResponse response;
      while (stream_->Read(&response)) {
        if (response.response_metadata().op_id() == op) return response;
      }
      ADD_FAILURE() << "the session ended";
      return {};
    }
    xla::ifrt::proxy::IfrtResponse Call(xla::ifrt::proxy::IfrtRequest request) {
      return Await(Send(std::move(request)));
    }
    void Init() {
      xla::ifrt::proxy::IfrtRequest request;
      request.mutable_init_request();
      const auto response = Call(request);
      EXPECT_EQ(response.init_response().all_devices_size(), 4);
      session_id = response.init_response().session_id();
    }
    grpc::Status Store(uint64_t handle, const std::string& bytes, std::optional<int64_t> announced = {},
                       uint64_t other_session = 0) {
      grpc::ClientContext context;
      xla::ifrt::proxy::GrpcHostBufferStoreMetadata metadata;
      metadata.set_session_id(other_session != 0 ? other_session : session_id);
      metadata.set_handle(handle);
      metadata.set_buffer_size(announced.value_or(static_cast<int64_t>(bytes.size())));
      context.AddMetadata("ifrt-proxy-grpc-host-buffer-store-metadata-bin", metadata.SerializeAsString());
      xla::ifrt::proxy::GrpcHostBufferStoreResponse response;
      auto writer = stub_->HostBufferStore(&context, &response);
      for (size_t at = 0; at < bytes.size(); at += 1u << 20) {
        xla::ifrt::proxy::GrpcHostBufferStoreRequest message;
        message.set_data(bytes.substr(at, 1u << 20));
        if (!writer->Write(message)) break;
      }
      writer->WritesDone();
      return writer->Finish();
    }
    grpc::Status Lookup(uint64_t handle, std::string* bytes, uint64_t other_session = 0) {
      grpc::ClientContext context;
      xla::ifrt::proxy::GrpcHostBufferLookupRequest request;
      request.set_session_id(other_session != 0 ? other_session : session_id);
      request.set_handle(handle);
      auto reader = stub_->HostBufferLookup(&context, request);
      xla::ifrt::proxy::GrpcHostBufferLookupResponse message;
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
      xla::ifrt::proxy::GrpcHostBufferDeleteRequest request;
      request.set_session_id(session_id);
      request.set_handle(handle);
      xla::ifrt::proxy::GrpcHostBufferDeleteResponse response;
      return stub_->HostBufferDelete(&context, request, &response);
    }
    static xla::ifrt::proxy::IfrtRequest MakeArray(uint64_t handle, int64_t bytes, int device) {
      xla::ifrt::proxy::IfrtRequest request;
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
    static xla::ifrt::proxy::IfrtRequest CopyOut(uint64_t array, uint64_t buffer) {
      xla::ifrt::proxy::IfrtRequest request;
      request.mutable_copy_to_host_buffer_request()->set_array_handle(array);
      request.mutable_copy_to_host_buffer_request()->set_host_buffer_handle(buffer);
      return request;
    }
    static xla::ifrt::proxy::IfrtRequest Ready(uint64_t array) {
      xla::ifrt::proxy::IfrtRequest request;
      request.mutable_check_value_ready_request()->add_value_handles(array);
      return request;
    }
    grpc::Status Finish() {
      xla::ifrt::proxy::IfrtResponse response;
      while (stream_->Read(&response)) {
      }
      const grpc::Status status = stream_->Finish();
      stream_ = nullptr;
      return status;
    }
    void Cancel() { context_.TryCancel(); }

    uint64_t session_id = 0;

   private:
    xla::ifrt::proxy::GrpcIfrtService::Stub* const stub_;
    grpc::ClientContext context_;
    std::unique_ptr<grpc::ClientReaderWriter<xla::ifrt::proxy::IfrtRequest, xla::ifrt::proxy::IfrtResponse>> stream_;
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
  std::unique_ptr<xla::ifrt::proxy::GrpcIfrtService::Stub> stub_;
  TestLoop loop_;
};

}  // namespace landbridge

#endif  // LANDBRIDGE_FRONTDOOR_IFRT_PROXY_FRONT_DOOR_TEST_UTIL_H_
