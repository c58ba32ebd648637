#include <dirent.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frontdoor/ifrt_proxy/front_door_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using ::testing::HasSubstr;
namespace proxy = xla::ifrt::proxy;

int ThreadCount() {
  int count = 0;
  DIR* dir = ::opendir("/proc/self/task");
  while (dirent* entry = ::readdir(dir)) count += entry->d_name[0] != '.' ? 1 : 0;
  ::closedir(dir);
  return count;
}

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
