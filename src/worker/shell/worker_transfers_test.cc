// Buffers put together from boxes of others, of this worker's and of a peer's, and offered to a peer. The proxy's side
// of the fixture plays the other worker.
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "worker/shell/worker_process_test_util.h"

namespace landbridge {
namespace {

using Dims = std::vector<int64_t>;

class WorkerTransfersTest : public WorkerProcessTest {
 protected:
  static void SetBox(Box* box, const Dims& start, const Dims& limit) {
    for (int64_t x : start) box->add_start(x);
    for (int64_t x : limit) box->add_limit(x);
  }
  // The operation that makes array `array`'s shard 0 on `device`; its pieces are the caller's.
  MakeBuffer& Make(WorkerOp* op, uint64_t array, uint32_t device, DType dtype, const Dims& dims) {
    op->mutable_make()->set_ticket(++last_ticket_);
    MakeBuffer& buffer = *op->mutable_make()->add_buffers();
    buffer.mutable_target()->mutable_ref()->set_array(array);
    buffer.mutable_target()->set_device(device);
    buffer.set_dtype(static_cast<int>(dtype));
    for (int64_t dim : dims) buffer.add_dims(dim);
    return buffer;
  }
  // What the peer offers under `transfer` becomes the box of the new buffer.
  void AddRemotePiece(MakeBuffer* buffer, uint64_t transfer, const Dims& start, const Dims& limit) {
    Piece& piece = *buffer->add_pieces();
    piece.mutable_remote()->set_transfer(transfer);
    piece.mutable_remote()->set_incarnation(life_.value());
    piece.mutable_remote()->set_space(life_.value());
    piece.mutable_remote()->set_data_address(plane_->address());
    SetBox(piece.mutable_target_box(), start, limit);
  }
  template <typename T>
  void OfferAsPeer(uint64_t transfer, const std::vector<T>& values) {
    auto kept = std::make_shared<const std::vector<T>>(values);
    plane_->PublishSpan({life_.value(), DataKeyId(DataKeyKind::kTransfer, transfer)},
                        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(kept->data()), kept->size() * sizeof(T)),
                        kept);
  }
  // Tells the worker to offer a box of the array's shard 0 to the peer.
  void Publish(uint64_t transfer, uint64_t array, DType dtype, const Dims& dims, const Dims& start, const Dims& limit) {
    WorkerOp op;
    landbridge::Publish& offered = *op.mutable_publish();
    offered.set_ticket(++last_ticket_);
    offered.set_transfer(transfer);
    offered.mutable_ref()->set_array(array);
    offered.set_dtype(static_cast<int>(dtype));
    for (int64_t dim : dims) offered.add_dims(dim);
    SetBox(offered.mutable_box(), start, limit);
    offered.set_peer(life_.value());
    Push(op);
  }
  // The peer's pull of what the worker offers; `meanwhile` runs between the question and the answer.
  template <typename T>
  std::vector<T> PullAsPeer(
      uint64_t transfer, size_t count, const std::function<void()>& meanwhile = [] {}) {
    std::vector<T> pulled(count);
    std::optional<absl::Status> done;
    plane_->Pull(WorkerLife(), {life_.value(), DataKeyId(DataKeyKind::kTransfer, transfer)}, 0, pulled.data(),
                 count * sizeof(T), [&](absl::Status status) { loop_.Post([&, status] { done = status; }); });
    meanwhile();
    if (!RunUntil([&] { return done.has_value(); })) std::abort();  // the pull writes into our stack
    EXPECT_TRUE(done->ok()) << *done;
    return pulled;
  }
  void Unpublish(const std::vector<uint64_t>& transfers) {
    WorkerOp op;
    for (uint64_t transfer : transfers) op.mutable_unpublish()->add_transfers(transfer);
    Push(op);
  }
};

TEST_F(WorkerTransfersTest, PutsABufferTogetherFromBoxes) {
  StartAll();
  UploadShard(1, 0, 0, {0, 1, 2, 3, 4, 5, 6, 7}, {2, 4});
  UploadShard(1, 1, 1, {10, 11, 12, 13, 14, 15, 16, 17}, {2, 4});
  // Two columns of each, side by side, on device 2.
  WorkerOp op;
  MakeBuffer& buffer = Make(&op, 2, 2, DType::kF32, {2, 4});
  for (uint32_t shard = 0; shard < 2; ++shard) {
    Piece& piece = *buffer.add_pieces();
    piece.mutable_local()->set_array(1);
    piece.mutable_local()->set_shard(shard);
    for (int64_t dim : {2, 4}) piece.add_source_dims(dim);
    const int64_t from = shard == 0 ? 1 : 0, to = 2 * shard;
    SetBox(piece.mutable_source_box(), {0, from}, {2, from + 2});
    SetBox(piece.mutable_target_box(), {0, to}, {2, to + 2});
  }
  Push(op);
  // And a whole copy of that into another memory.
  WorkerOp copy;
  MakeBuffer& whole = Make(&copy, 3, 3, DType::kF32, {2, 4});
  whole.mutable_target()->set_memory(MEMORY_PINNED_HOST);
  Piece& piece = *whole.add_pieces();
  piece.mutable_local()->set_array(2);
  for (int64_t dim : {2, 4}) piece.add_source_dims(dim);
  Push(copy);
  Send();
  for (uint64_t array : {2, 3}) {
    auto values = ReadShard(array, 0, {2, 4});
    ASSERT_TRUE(values.ok()) << values.status();
    EXPECT_EQ(*values, (std::vector<float>{1, 2, 10, 11, 5, 6, 14, 15})) << array;
  }
}

// Row 0 arrives as one run, the last two columns of rows 1 and 2 as a box; the rest is here. A column of the result
// goes back, asked for before anything is there.
TEST_F(WorkerTransfersTest, MovesBoxesToAndFromAPeer) {
  StartAll();
  UploadShard(1, 0, 0, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {3, 4});
  WorkerOp op;
  MakeBuffer& buffer = Make(&op, 2, 1, DType::kF32, {3, 4});
  AddRemotePiece(&buffer, 901, {0, 0}, {1, 4});
  AddRemotePiece(&buffer, 902, {1, 2}, {3, 4});
  Piece& local = *buffer.add_pieces();
  local.mutable_local()->set_array(1);
  for (int64_t dim : {3, 4}) local.add_source_dims(dim);
  SetBox(local.mutable_source_box(), {1, 0}, {3, 2});
  SetBox(local.mutable_target_box(), {1, 0}, {3, 2});
  Push(op);
  Publish(903, 2, DType::kF32, {3, 4}, {0, 2}, {3, 4});
  Send();
  const auto pulled = PullAsPeer<float>(903, 6, [&] {
    OfferAsPeer<float>(902, {110, 111, 120, 121});
    OfferAsPeer<float>(901, {100, 101, 102, 103});
  });
  EXPECT_EQ(pulled, (std::vector<float>{102, 103, 110, 111, 120, 121}));
  auto values = ReadShard(2, 0, {3, 4});
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(*values, (std::vector<float>{100, 101, 102, 103, 4, 5, 110, 111, 8, 9, 120, 121}));
  Unpublish({903});
  for (uint64_t array : {1, 2}) Delete(array);
  Send();
  EXPECT_TRUE(WaitForNoBytes()) << BytesInUse();
}

// Elements of four bits: two to a byte between workers, in both directions, also where a piece ends in a byte's middle.
TEST_F(WorkerTransfersTest, SubByteElementsTravelPacked) {
  StartAll();
  // 0 1 2 3 4 / 5 6 7 8 9 / a b c d e, in two pieces: the first row, and the rest.
  OfferAsPeer<uint8_t>(901, {0x10, 0x32, 0x04});
  OfferAsPeer<uint8_t>(902, {0x65, 0x87, 0xa9, 0xcb, 0xed});
  WorkerOp op;
  MakeBuffer& buffer = Make(&op, 2, 0, DType::kU4, {3, 5});
  AddRemotePiece(&buffer, 901, {0, 0}, {1, 5});
  AddRemotePiece(&buffer, 902, {1, 0}, {3, 5});
  Push(op);
  Publish(903, 2, DType::kU4, {3, 5}, {0, 1}, {3, 4});
  Send();
  EXPECT_EQ(PullAsPeer<uint8_t>(903, 5), (std::vector<uint8_t>{0x21, 0x63, 0x87, 0xcb, 0x0d}));
  Unpublish({903});
  Delete(2);
  Send();
  EXPECT_TRUE(WaitForNoBytes()) << BytesInUse();
}

// The peer does not pull (yet); a step that donates what is offered to it runs nevertheless, and the peer gets the old
// bytes, whenever it comes.
TEST_F(WorkerTransfersTest, ADonorDoesNotWaitForAPeer) {
  StartAll();
  const uint64_t executable = Load(kIncrementProgram, 1);
  UploadShard(1, 0, 0, Ramp(64, 100), {64});
  Publish(903, 1, DType::kF32, {64}, {0}, {64});
  Publish(904, 1, DType::kF32, {64}, {8}, {40});
  const uint64_t donor = LaunchOp(executable, 1, {1}, 2, /*donate=*/true);
  Send();
  ASSERT_TRUE(RunUntil([&] { return done_.contains(donor); }));
  auto values = ReadShard(2, 0, {64});
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(*values, Ramp(64, 101));
  EXPECT_EQ(PullAsPeer<float>(903, 64), Ramp(64, 100));
  EXPECT_EQ(PullAsPeer<float>(904, 32), Ramp(32, 108));
  Unpublish({903, 904});
  Delete(2);
  Send();
  EXPECT_TRUE(WaitForNoBytes()) << BytesInUse();
}

TEST_F(WorkerTransfersTest, StridedUploadsToSeveralTargets) {
  StartAll();
  const std::vector<float> image = {0, 1, 2, 3, 4, 5};  // column-major 3 x 2
  for (const bool pulled : {false, true}) {
    WorkerOp op;
    Upload& upload = *op.mutable_upload();
    upload.set_ticket(++last_ticket_);
    for (uint32_t device : {0u, 2u}) {
      Target& target = *upload.add_targets();
      target.mutable_ref()->set_array(pulled ? 2 : 1);
      target.mutable_ref()->set_shard(device);
      target.set_device(device);
    }
    upload.set_dtype(static_cast<int>(DType::kF32));
    for (int64_t dim : {3, 2}) upload.add_dims(dim);
    for (int64_t stride : {4, 12}) upload.add_byte_strides(stride);
    upload.set_image_bytes(24);
    upload.set_key(++last_id_);
    upload.set_pulled(pulled);
    Push(op);
    if (pulled) {
      plane_->PublishSpan({life_.value(), DataKeyId(DataKeyKind::kUpload, upload.key())},
                          absl::MakeConstSpan(reinterpret_cast<const std::byte*>(image.data()), 24), nullptr);
    } else {
      WorkerOp data;
      data.mutable_upload_data()->set_key(upload.key());
      data.mutable_upload_data()->set_data(image.data(), 24);
      Push(data);
    }
    Send();
    for (uint32_t shard : {0u, 2u}) {
      auto values = ReadShard(pulled ? 2 : 1, shard, {3, 2});
      ASSERT_TRUE(values.ok()) << values.status();
      EXPECT_EQ(*values, (std::vector<float>{0, 3, 1, 4, 2, 5})) << shard;
    }
  }
}

}  // namespace
}  // namespace landbridge
