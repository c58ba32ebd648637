#include "frontdoor/ifrt_proxy/host_buffers.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "frontdoor/ifrt_proxy/shared_directory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using ::testing::HasSubstr;

// Remembers what was published.
class FakeDataPlane final : public dataplane::DataPlane {
 public:
  dataplane::PeerId self() const override { return dataplane::PeerId(1); }
  std::string address() const override { return ""; }
  absl::Status AddPeer(dataplane::PeerId, absl::string_view) override { return absl::OkStatus(); }
  void ClosePeer(dataplane::PeerId, absl::Status) override {}
  void Publish(dataplane::Key key, std::shared_ptr<dataplane::Source> source, dataplane::PublishOptions) override {
    published[key.id] = std::move(source);
  }
  void Unpublish(dataplane::Key key, absl::Status, std::function<void()>) override { published.erase(key.id); }
  void CloseSpace(uint64_t, absl::Status, std::function<void()>) override {}
  dataplane::PullId Pull(dataplane::PeerId, dataplane::Key, uint64_t, void*, uint64_t,
                         std::function<void(absl::Status)>) override {
    return {};
  }
  void Cancel(dataplane::PullId, absl::Status) override {}
  void Listen(uint64_t, std::vector<dataplane::PeerId>, dataplane::PushListener) override {}
  void Unlisten(uint64_t) override {}
  bool Push(dataplane::PeerId, dataplane::Key, dataplane::Chunk, std::function<void()>) override { return true; }
  dataplane::DataPlaneStats Stats() const override { return {}; }
  void Shutdown() override {}

  std::map<uint64_t, std::shared_ptr<dataplane::Source>> published;
};

class HostBuffersTest : public ::testing::Test {
 protected:
  HostBuffersTest() {
    HostBuffers::Options options;
    options.space = 5;
    options.store_pool_bytes = 8u << 20;
    options.on_bytes = [this](uint64_t key, absl::StatusOr<std::string> bytes) {
      answered.emplace(key, std::move(bytes));
    };
    buffers = HostBuffers::Create(std::move(options), &plane);
    wire = buffers->OpenSession(SessionId(1), "me");
  }
  HostBuffers::UploadPtr Begin(uint64_t handle, int64_t size) {
    auto upload = buffers->BeginStore(wire, "me", handle, size);
    EXPECT_TRUE(upload.ok()) << upload.status();
    return *upload;
  }
  // All at once.
  absl::Status Store(uint64_t handle, const std::string& bytes) {
    auto upload = Begin(handle, static_cast<int64_t>(bytes.size()));
    buffers->Append(upload, bytes);
    return buffers->EndStore(upload, false);
  }
  // As a client sends: message by message while there is room. The number of bytes taken.
  size_t Feed(
      const HostBuffers::UploadPtr& upload, absl::string_view bytes, std::function<void()> resume = [] {}) {
    size_t taken = 0;
    while (taken < bytes.size() && buffers->MayRead(upload, resume)) {
      const absl::string_view message = bytes.substr(taken, 1u << 20);
      buffers->Append(upload, message);
      taken += message.size();
    }
    return taken;
  }
  std::optional<absl::StatusOr<std::string>> Pull(uint64_t key, uint64_t offset, uint64_t size) {
    std::optional<absl::StatusOr<std::string>> result;
    plane.published.at(key)->Read(offset, size, [&result](absl::StatusOr<dataplane::Chunk> chunk) {
      if (chunk.ok()) {
        result = std::string(static_cast<const char*>(chunk->data), static_cast<size_t>(chunk->size));
      } else {
        result = chunk.status();
      }
    });
    return result;
  }
  static std::string Pattern(size_t size) {
    std::string bytes(size, '\0');
    for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 31 + i / 4096);
    return bytes;
  }

  FakeDataPlane plane;
  std::map<uint64_t, absl::StatusOr<std::string>> answered;
  std::shared_ptr<HostBuffers> buffers;
  uint64_t wire = 0;
};

TEST_F(HostBuffersTest, SmallStoreThenClaim) {
  EXPECT_TRUE(Store(1, "hello").ok());
  auto claimed = buffers->Claim(SessionId(1), 1, 5);
  ASSERT_TRUE(claimed.ok());
  ASSERT_NE(claimed->bytes, nullptr);
  EXPECT_EQ(*claimed->bytes, "hello");
  EXPECT_EQ(buffers->counts().bytes_held, 0u);
  EXPECT_EQ(buffers->counts().unclaimed, 0u);
}

TEST_F(HostBuffersTest, ClaimThenStore) {
  auto claimed = buffers->Claim(SessionId(1), 1, 5);
  ASSERT_TRUE(claimed.ok());
  EXPECT_EQ(claimed->bytes, nullptr);
  buffers->WantBytes(claimed->key);
  EXPECT_TRUE(answered.empty());
  EXPECT_TRUE(Store(1, "hello").ok());
  ASSERT_EQ(answered.count(claimed->key), 1u);
  EXPECT_EQ(*answered.at(claimed->key), "hello");
  EXPECT_EQ(buffers->counts().claimed, 0u);
}

TEST_F(HostBuffersTest, EmptyBuffer) {
  EXPECT_TRUE(Store(1, "").ok());
  auto claimed = buffers->Claim(SessionId(1), 1, 0);
  ASSERT_TRUE(claimed.ok());
  EXPECT_EQ(*claimed->bytes, "");
}

TEST_F(HostBuffersTest, ForeignSessionsAnswerAsUnknownOnes) {
  EXPECT_EQ(buffers->BeginStore(wire + 1, "me", 1, 5).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(buffers->BeginStore(wire, "you", 1, 5).status().code(), absl::StatusCode::kNotFound);
  HostBuffers::Result result;
  result.data = std::make_shared<const std::string>("secret");
  ASSERT_TRUE(buffers->PutResult(SessionId(1), 9, result).ok());
  EXPECT_EQ(buffers->FindResult(wire, "you", 9).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(buffers->TakeResult(wire + 1, "me", 9).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(buffers->FindResult(wire, "me", 9).ok());
  EXPECT_FALSE(buffers->PutResult(SessionId(1), 9, result).ok());
  EXPECT_TRUE(buffers->TakeResult(wire, "me", 9).ok());
  EXPECT_EQ(buffers->TakeResult(wire, "me", 9).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(HostBuffersTest, ResultsThatNobodyFetchesEndAtALimit) {
  HostBuffers::Result result;
  result.data = std::make_shared<const std::string>(kSessionResultBytesMax / 4, 'r');  // shared: it is here once
  for (uint64_t handle = 1; handle <= 4; ++handle) ASSERT_TRUE(buffers->PutResult(SessionId(1), handle, result).ok());
  HostBuffers::Result more;
  more.data = std::make_shared<const std::string>("more");
  const absl::Status full = buffers->PutResult(SessionId(1), 5, more);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), ::testing::HasSubstr("1073741824"));
  EXPECT_TRUE(buffers->TakeResult(wire, "me", 3).ok());
  EXPECT_TRUE(buffers->PutResult(SessionId(1), 5, more).ok());
  EXPECT_EQ(buffers->counts().results, 4u);
}

TEST_F(HostBuffersTest, DuplicateHandle) {
  EXPECT_TRUE(Store(1, "a").ok());
  EXPECT_EQ(buffers->BeginStore(wire, "me", 1, 1).status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(HostBuffersTest, ImpossibleSizesAreDrainedAndCostTheArrayOnly) {
  for (int64_t size : {int64_t{-1}, limits::kArrayBytesMax + 1, INT64_MIN}) {
    auto upload = Begin(7, size);
    EXPECT_TRUE(buffers->MayRead(upload, [] {}));
    buffers->Append(upload, "data");
    EXPECT_TRUE(buffers->EndStore(upload, false).ok());
    EXPECT_EQ(buffers->Claim(SessionId(1), 7, 4).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(buffers->counts().bytes_held, 0u);
  }
}

TEST_F(HostBuffersTest, ASizeThatDoesNotFitTheArray) {
  EXPECT_TRUE(Store(1, "hello").ok());
  EXPECT_EQ(buffers->Claim(SessionId(1), 1, 6).status().code(), absl::StatusCode::kInvalidArgument);
  // The other way round, for bytes that go along and for bytes that are pulled.
  auto claimed = buffers->Claim(SessionId(1), 2, 6);
  buffers->WantBytes(claimed->key);
  auto served = buffers->Claim(SessionId(1), 3, 1 << 20);
  buffers->Serve(served->key, {Incarnation(8)});
  EXPECT_TRUE(Store(2, "hello").ok());
  EXPECT_TRUE(Store(3, "hello").ok());
  EXPECT_EQ(answered.at(claimed->key).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Pull(served->key, 0, 10)->status().code(), absl::StatusCode::kInvalidArgument);
  buffers->Drop(served->key);
  EXPECT_EQ(buffers->counts().claimed, 0u);
}

TEST_F(HostBuffersTest, MoreOrFewerBytesThanAnnounced) {
  auto upload = Begin(1, 4);
  buffers->Append(upload, "12345");
  EXPECT_EQ(buffers->Claim(SessionId(1), 1, 4).status().code(), absl::StatusCode::kInvalidArgument);
  upload = Begin(2, 4);
  buffers->Append(upload, "123");
  EXPECT_EQ(buffers->EndStore(upload, false).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(buffers->Claim(SessionId(1), 2, 4).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(HostBuffersTest, UnclaimedStoresAreBounded) {
  const std::string bytes = Pattern(16u << 20);
  auto upload = Begin(1, static_cast<int64_t>(bytes.size()));
  int resumed = 0;
  // Chunks are counted whole.
  EXPECT_GE(Feed(upload, bytes, [&] { ++resumed; }), limits::kStoreWithoutDestinationBytesMax - (1u << 20));
  EXPECT_EQ(buffers->counts().bytes_held, limits::kStoreWithoutDestinationBytesMax);
  EXPECT_EQ(buffers->counts().parked_stores, 1u);
  // Many of them: the session's bound. A small one has to wait as well.
  std::vector<HostBuffers::UploadPtr> more;
  for (uint64_t handle = 2; handle < 30; ++handle) {
    more.push_back(Begin(handle, static_cast<int64_t>(bytes.size())));
    Feed(more.back(), bytes);
  }
  EXPECT_EQ(buffers->counts().bytes_held, limits::kSessionStorePoolBytesMax);
  EXPECT_EQ(resumed, 0);
  // Other sessions do not feel it.
  const uint64_t other = buffers->OpenSession(SessionId(2), "me");
  auto others = buffers->BeginStore(other, "me", 1, 1000);
  EXPECT_TRUE(buffers->MayRead(*others, [] {}));
  // A claim that somebody pulls lets it go on.
  auto claimed = buffers->Claim(SessionId(1), 1, static_cast<int64_t>(bytes.size()));
  buffers->Serve(claimed->key, {Incarnation(8)});
  EXPECT_TRUE(Pull(claimed->key, 0, 2u << 20).has_value());
  plane.published.at(claimed->key)->Read(6u << 20, 2u << 20, [](absl::StatusOr<dataplane::Chunk>) {});
  EXPECT_EQ(resumed, 1);
}

TEST_F(HostBuffersTest, BigUploadStreamsThroughAFewChunks) {
  const std::string bytes = Pattern((64u << 20) + 12345);
  auto claimed = buffers->Claim(SessionId(1), 1, static_cast<int64_t>(bytes.size()));
  ASSERT_TRUE(claimed.ok());
  buffers->Serve(claimed->key, {Incarnation(8), Incarnation()});  // two will pull it; the second is named later
  auto upload = Begin(1, static_cast<int64_t>(bytes.size()));
  buffers->Serve(claimed->key, {Incarnation(9)});
  EXPECT_EQ(plane.published.at(claimed->key)->size(), bytes.size());
  size_t sent = 0, peak = 0;
  int resumed = 0;
  bool parked = false;
  for (uint64_t offset = 0; offset < bytes.size(); offset += limits::kTransferChunkBytes) {
    const uint64_t size = std::min<uint64_t>(limits::kTransferChunkBytes, bytes.size() - offset);
    std::vector<std::optional<absl::StatusOr<std::string>>> got(2);
    for (auto& result : got) {
      plane.published.at(claimed->key)->Read(offset, size, [&result](absl::StatusOr<dataplane::Chunk> chunk) {
        ASSERT_TRUE(chunk.ok()) << chunk.status();
        result = std::string(static_cast<const char*>(chunk->data), static_cast<size_t>(chunk->size));
      });
    }
    if (!parked || resumed > 0) {
      resumed = 0;
      sent += Feed(upload, absl::string_view(bytes).substr(sent), [&] { ++resumed; });
      parked = sent < bytes.size();
    }
    peak = std::max(peak, buffers->counts().bytes_held);
    for (auto& result : got) {
      ASSERT_TRUE(result.has_value()) << offset;
      EXPECT_TRUE(result->value() == absl::string_view(bytes).substr(offset, size)) << offset;
    }
  }
  EXPECT_EQ(sent, bytes.size());
  EXPECT_TRUE(buffers->EndStore(upload, false).ok());
  EXPECT_LE(peak, limits::kStoreAheadBytesMax + (4u << 20));
  EXPECT_EQ(buffers->counts().bytes_held, 0u);
  EXPECT_EQ(Pull(claimed->key, 0, 100)->status().code(), absl::StatusCode::kAborted);  // gone
  buffers->Drop(claimed->key);
  EXPECT_TRUE(plane.published.empty());
}

TEST_F(HostBuffersTest, AReaderIsServedAlthoughOthersHoldThePool) {
  const std::string bytes = Pattern(8u << 20);
  std::vector<HostBuffers::UploadPtr> uploads;
  std::vector<uint64_t> keys;
  for (uint64_t handle = 1; handle <= 6; ++handle) {
    auto claimed = buffers->Claim(SessionId(1), handle, static_cast<int64_t>(bytes.size()));
    buffers->Serve(claimed->key, {Incarnation(8)});
    keys.push_back(claimed->key);
    uploads.push_back(Begin(handle, static_cast<int64_t>(bytes.size())));
  }
  int resumed = 0;
  for (size_t i = 0; i < 5; ++i) Feed(uploads[i], bytes);
  const size_t held = buffers->counts().bytes_held;
  EXPECT_LE(held, 8u << 20);
  EXPECT_EQ(Feed(uploads[5], bytes, [&] { ++resumed; }), 0u);
  bool done = false;
  plane.published.at(keys[5])->Read(0, 2u << 20, [&](absl::StatusOr<dataplane::Chunk> chunk) { done = chunk.ok(); });
  EXPECT_EQ(resumed, 1);
  Feed(uploads[5], bytes);
  EXPECT_TRUE(done);
}

TEST_F(HostBuffersTest, ReadsAcrossChunksAndOutOfRange) {
  const std::string bytes = Pattern(5u << 20);
  auto claimed = buffers->Claim(SessionId(1), 1, static_cast<int64_t>(bytes.size()));
  buffers->Serve(claimed->key, {Incarnation(8)});
  auto upload = Begin(1, static_cast<int64_t>(bytes.size()));
  ASSERT_EQ(Feed(upload, bytes), bytes.size());
  EXPECT_EQ(**Pull(claimed->key, (2u << 20) - 3, 7), bytes.substr((2u << 20) - 3, 7));
  EXPECT_EQ(Pull(claimed->key, bytes.size(), 1)->status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Pull(claimed->key, UINT64_MAX, 2)->status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(HostBuffersTest, ALostConsumerDoesNotStopTheOther) {
  const std::string bytes = Pattern(16u << 20);
  auto claimed = buffers->Claim(SessionId(1), 1, static_cast<int64_t>(bytes.size()));
  buffers->Serve(claimed->key, {Incarnation(8), Incarnation(9)});
  auto upload = Begin(1, static_cast<int64_t>(bytes.size()));
  int resumed = 0;
  const size_t sent = Feed(upload, bytes, [&] { ++resumed; });
  EXPECT_LT(sent, bytes.size());
  EXPECT_TRUE(Pull(claimed->key, 0, 2u << 20)->ok());  // one of them, once
  buffers->OnWorkerLost(Incarnation(9));
  EXPECT_EQ(resumed, 1);
  EXPECT_EQ(Feed(upload, absl::string_view(bytes).substr(sent)), bytes.size() - sent);
  EXPECT_TRUE(Pull(claimed->key, 0, 2u << 20)->ok());
}

TEST_F(HostBuffersTest, AConsumerThatNeverComesDoesNotStopTheOther) {
  const std::string bytes = Pattern(16u << 20);
  auto claimed = buffers->Claim(SessionId(1), 1, static_cast<int64_t>(bytes.size()));
  buffers->Serve(claimed->key, {Incarnation(8), Incarnation()});
  auto upload = Begin(1, static_cast<int64_t>(bytes.size()));
  int resumed = 0;
  const size_t sent = Feed(upload, bytes, [&] { ++resumed; });
  EXPECT_LT(sent, bytes.size());
  EXPECT_TRUE(Pull(claimed->key, 0, 2u << 20)->ok());
  buffers->Serve(claimed->key, {});
  EXPECT_EQ(resumed, 1);
  EXPECT_EQ(Feed(upload, absl::string_view(bytes).substr(sent)), bytes.size() - sent);
  EXPECT_TRUE(Pull(claimed->key, 0, 2u << 20)->ok());
}

TEST_F(HostBuffersTest, ADroppedUploadIsDrained) {
  const std::string bytes = Pattern(16u << 20);
  auto claimed = buffers->Claim(SessionId(1), 1, static_cast<int64_t>(bytes.size()));
  buffers->Serve(claimed->key, {Incarnation(8)});
  auto upload = Begin(1, static_cast<int64_t>(bytes.size()));
  int resumed = 0;
  const size_t sent = Feed(upload, bytes, [&] { ++resumed; });
  buffers->Drop(claimed->key);
  EXPECT_EQ(resumed, 1);
  EXPECT_EQ(Feed(upload, absl::string_view(bytes).substr(sent)), bytes.size() - sent);
  EXPECT_TRUE(buffers->EndStore(upload, false).ok());
  EXPECT_EQ(buffers->counts().bytes_held, 0u);
  // Discarded before it was sent.
  buffers->Discard(SessionId(1), 2);
  EXPECT_TRUE(Store(2, bytes).ok());
  EXPECT_EQ(buffers->counts().bytes_held, 0u);
  EXPECT_EQ(buffers->counts().expected, 0u);
}

TEST_F(HostBuffersTest, ClosingASessionFreesAllOfIt) {
  const std::string bytes = Pattern(4u << 20);
  Feed(Begin(1, static_cast<int64_t>(bytes.size())), bytes);
  auto claimed = buffers->Claim(SessionId(1), 2, static_cast<int64_t>(bytes.size()));
  buffers->Serve(claimed->key, {Incarnation(8)});
  auto upload = Begin(2, static_cast<int64_t>(bytes.size()));
  Feed(upload, bytes);
  buffers->Claim(SessionId(1), 3, 100).status().IgnoreError();
  bool answered_read = false;
  auto source = plane.published.at(claimed->key);
  buffers->CloseSession(SessionId(1));
  source->Read(0, 10, [&](absl::StatusOr<dataplane::Chunk> chunk) { answered_read = !chunk.ok(); });
  EXPECT_TRUE(answered_read);
  EXPECT_EQ(buffers->counts().bytes_held, 0u);
  EXPECT_EQ(buffers->counts().claimed, 0u);
  EXPECT_TRUE(plane.published.empty());
  EXPECT_EQ(buffers->BeginStore(wire, "me", 5, 1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(buffers->Claim(SessionId(1), 6, 1).ok());
}

TEST_F(HostBuffersTest, AStringIsTakenWholeUpToItsLimit) {
  const std::string bytes = Pattern(300'000);
  auto claimed = buffers->ClaimWhole(SessionId(1), 1, 1 << 20);
  buffers->WantBytes(claimed->key);
  EXPECT_TRUE(Store(1, bytes).ok());
  EXPECT_EQ(*answered.at(claimed->key), bytes);
  EXPECT_TRUE(Store(2, bytes).ok());
  claimed = buffers->ClaimWhole(SessionId(1), 2, 1 << 20);
  EXPECT_EQ(*claimed->bytes, bytes);
  claimed = buffers->ClaimWhole(SessionId(1), 3, 1000);
  buffers->WantBytes(claimed->key);
  EXPECT_TRUE(Store(3, bytes).ok());
  EXPECT_EQ(answered.at(claimed->key).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(HostBuffersTest, AClientThatGivesUpFailsItsArray) {
  auto claimed = buffers->Claim(SessionId(1), 1, 100);
  buffers->WantBytes(claimed->key);
  auto upload = Begin(1, 100);
  buffers->Append(upload, "abc");
  buffers->EndStore(upload, true).IgnoreError();
  EXPECT_EQ(answered.at(claimed->key).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(HostBuffersTest, ManyThreadsAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < 300; ++i) {
        const uint64_t handle = static_cast<uint64_t>(t * 1000 + i);
        const size_t size = random() % (3u << 20);
        const std::string bytes(size, static_cast<char>(t));
        auto upload = buffers->BeginStore(wire, "me", handle, static_cast<int64_t>(size));
        ASSERT_TRUE(upload.ok());
        if (i % 3 == 0) buffers->Discard(SessionId(1), handle);
        Feed(*upload, bytes);
        buffers->EndStore(*upload, true).IgnoreError();
        buffers->Discard(SessionId(1), handle);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(buffers->counts().bytes_held, 0u);
  EXPECT_EQ(buffers->counts().parked_stores, 0u);
}

class SharedDirectoryTest : public HostBuffersTest {
 protected:
  SharedDirectoryTest() {
    char name[] = "/tmp/lb_shared_XXXXXX";
    directory = ::mkdtemp(name);
  }
  ~SharedDirectoryTest() override { ::rmdir(directory.c_str()); }
  void Write(const std::string& name, const std::string& bytes) {
    const int fd = ::open((directory + "/" + name).c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(::write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    ::close(fd);
  }
  void StoreFile(uint64_t handle, int64_t size) {
    auto file = UploadedFile::Open(directory, "", handle, size);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_TRUE(buffers->StoreFile(wire, "me", handle, size, *std::move(file)).ok());
  }
  // The key of an upload by the file that lies there, served to one worker.
  uint64_t Claimed(uint64_t handle, size_t size) {
    StoreFile(handle, static_cast<int64_t>(size));
    auto claimed = buffers->Claim(SessionId(1), handle, static_cast<int64_t>(size));
    EXPECT_TRUE(claimed.ok()) << claimed.status();
    buffers->Serve(claimed->key, {Incarnation(8)});
    return claimed->key;
  }
  uint64_t Upload(uint64_t handle, const std::string& bytes) {
    Write(absl::StrCat("lt_", handle), bytes);
    return Claimed(handle, bytes.size());
  }
  std::string directory;
};

std::string Content(const absl::StatusOr<UploadedFilePtr>& file) {
  char text[3] = {};
  if (!file.ok()) return std::string(file.status().message());
  return (*file)->Read(0, text, 3).ok() ? std::string(text, 3) : "";
}

TEST_F(SharedDirectoryTest, OpenedAndUnlinkedAtOnce) {
  const std::string bytes = Pattern(3u << 20);
  const uint64_t key = Upload(12, bytes);
  EXPECT_NE(::access((directory + "/lt_12").c_str(), F_OK), 0);
  EXPECT_EQ(**Pull(key, 1u << 20, 2u << 20), bytes.substr(1u << 20, 2u << 20));
  EXPECT_EQ(**Pull(key, 3u << 20, 0), "");
  EXPECT_EQ(buffers->counts().bytes_held, 0u);
  buffers->Drop(key);
}

TEST_F(SharedDirectoryTest, AFileThatIsCutShortIsAnErrorOfItsUpload) {
  const std::string bytes = Pattern(3u << 20);
  Write("lt_12", bytes);
  const int writer = ::open((directory + "/lt_12").c_str(), O_WRONLY);
  const uint64_t key = Claimed(12, bytes.size());
  EXPECT_EQ(**Pull(key, 0, 1u << 20), bytes.substr(0, 1u << 20));
  ASSERT_EQ(::ftruncate(writer, 1000), 0);
  // Also what lies before the cut: an array is whole or an error.
  for (uint64_t offset : {uint64_t{1} << 20, uint64_t{0}}) {
    const absl::Status cut = Pull(key, offset, 1u << 20)->status();
    EXPECT_EQ(cut.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(cut.message()), HasSubstr("'lt_12' in the shared directory was cut short"));
  }
  EXPECT_EQ(buffers->counts().bytes_held, 0u);
  buffers->Drop(key);

  // The door itself reads small ones and those of strings.
  for (const bool whole : {false, true}) {
    Write("lt_13", "abc");
    const int other = ::open((directory + "/lt_13").c_str(), O_WRONLY);
    StoreFile(13, 3);
    ASSERT_EQ(::ftruncate(other, 2), 0);
    auto claimed = whole ? buffers->ClaimWhole(SessionId(1), 13, 1000) : buffers->Claim(SessionId(1), 13, 3);
    EXPECT_EQ(claimed.status().code(), absl::StatusCode::kInvalidArgument);
    ::close(other);
  }
  const uint64_t wanted = Upload(14, bytes);
  buffers->WantBytes(wanted);
  EXPECT_EQ(answered.at(wanted).value(), bytes);
  Write("lt_15", bytes);
  const int third = ::open((directory + "/lt_15").c_str(), O_WRONLY);
  const uint64_t lost = Claimed(15, bytes.size());
  ASSERT_EQ(::ftruncate(third, 2), 0);
  buffers->WantBytes(lost);
  EXPECT_EQ(answered.at(lost).status().code(), absl::StatusCode::kInvalidArgument);
  ::close(third);
  ::close(writer);
}

TEST_F(SharedDirectoryTest, FilesThatWaitAreCounted) {
  struct rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const uint64_t max = std::min<uint64_t>(kUploadedFilesMax, before.rlim_cur / 2);
  std::vector<UploadedFilePtr> files;
  for (uint64_t i = 0; i < max; ++i) {
    Write("lt_1", "abc");
    auto file = UploadedFile::Open(directory, "", 1, 3);
    ASSERT_TRUE(file.ok()) << file.status() << " after " << i;
    files.push_back(*std::move(file));
  }
  Write("lt_1", "abc");
  const absl::Status refused = UploadedFile::Open(directory, "", 1, 3).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(absl::StrCat("holds ", max, " files of uploads")));
  files.pop_back();
  Write("lt_1", "abc");
  EXPECT_TRUE(UploadedFile::Open(directory, "", 1, 3).ok());
}

TEST_F(SharedDirectoryTest, WhatIsRefused) {
  auto open = [this](uint64_t handle, int64_t size) {
    return UploadedFile::Open(directory, "", handle, size).status();
  };
  EXPECT_EQ(open(1, 3).code(), absl::StatusCode::kInvalidArgument);  // no such file
  Write("lt_2", "abc");
  EXPECT_EQ(open(2, 4).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(::symlink("/etc/hostname", (directory + "/lt_3").c_str()), 0);
  EXPECT_EQ(open(3, 3).code(), absl::StatusCode::kInvalidArgument);
  ::unlink((directory + "/lt_3").c_str());
  // Handles are cut to 32 bits, with their sign, as the client does.
  Write("lt_-1", "abc");
  EXPECT_TRUE(open(0xffffffffull, 3).ok());
}

TEST_F(SharedDirectoryTest, ClientsWithFoldersOfTheirOwnDoNotMeet) {
  SharedDirectory shared(directory);
  shared.Open(SessionId(1), 101, "me", "one");
  shared.Open(SessionId(2), 102, "me", "two");
  for (const char* folder : {"one", "two"}) {
    ASSERT_EQ(::mkdir((directory + "/" + folder).c_str(), 0700), 0);
    Write(std::string(folder) + "/lt_1", folder);
    Write(std::string(folder) + "/lt_2", "left behind");
  }
  EXPECT_EQ(Content(shared.OpenUpload(101, "me", 1, 3)), "one");
  EXPECT_EQ(Content(shared.OpenUpload(102, "me", 1, 3)), "two");
  shared.Close(SessionId(1));
  EXPECT_NE(::access((directory + "/one").c_str(), F_OK), 0);
  EXPECT_EQ(::access((directory + "/two/lt_2").c_str(), F_OK), 0);
  shared.Close(SessionId(2));
  EXPECT_NE(::access((directory + "/two").c_str(), F_OK), 0);
}

TEST_F(SharedDirectoryTest, ClientsWithoutAFolderTakeTurns) {
  SharedDirectory shared(directory);
  for (uint64_t n : {1, 2}) shared.Open(SessionId(n), 100 + n, "me", "");
  Write("lt_1", "one");
  EXPECT_TRUE(shared.OpenUpload(101, "me", 1, 3).ok());
  Write("lt_1", "two");
  const absl::Status refused = shared.OpenUpload(102, "me", 1, 3).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("install the landbridge package"));
  shared.Close(SessionId(1));
  EXPECT_NE(::access((directory + "/lt_1").c_str(), F_OK), 0);  // whose it was is not known
  Write("lt_1", "new");
  EXPECT_EQ(Content(shared.OpenUpload(102, "me", 1, 3)), "new");
  shared.Close(SessionId(2));
}

TEST_F(SharedDirectoryTest, ForeignSessionsTouchNothing) {
  SharedDirectory shared(directory);
  shared.Open(SessionId(1), 101, "me", "");
  Write("lt_1", "abc");
  EXPECT_EQ(shared.OpenUpload(102, "me", 1, 3).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(shared.OpenUpload(101, "you", 1, 3).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(::access((directory + "/lt_1").c_str(), F_OK), 0);
  shared.Close(SessionId(1));
  ::unlink((directory + "/lt_1").c_str());
  EXPECT_EQ(SharedDirectory("").OpenUpload(101, "me", 1, 3).status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(SharedDirectoryTest, FoldersOutsideAreRefused) {
  EXPECT_TRUE(SharedDirectory::CheckFolder("landbridge-12_ab").ok());
  for (const char* bad : {"..", "a/b", "/etc", ".", "a b"}) EXPECT_FALSE(SharedDirectory::CheckFolder(bad).ok()) << bad;
  EXPECT_FALSE(SharedDirectory::CheckFolder(std::string(65, 'a')).ok());
  SharedDirectory shared(directory);
  shared.Open(SessionId(1), 101, "me", "link");
  ASSERT_EQ(::symlink("/tmp", (directory + "/link").c_str()), 0);
  EXPECT_EQ(shared.OpenUpload(101, "me", 1, 3).status().code(), absl::StatusCode::kInvalidArgument);
  shared.Close(SessionId(1));
  ::unlink((directory + "/link").c_str());
}

}  // namespace
}  // namespace landbridge
