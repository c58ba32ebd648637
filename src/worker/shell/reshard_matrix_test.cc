// Any sharding to any sharding, of every type of element: what the workers' parts of the plans say is done with images in
// host memory and the bytes that would travel. Values against the definition; bytes of each link against brute force.
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sharding/reshard_part.h"
#include "worker/shell/byte_source.h"

namespace landbridge {
namespace {

using Bytes = std::vector<std::byte>;
using Devices = std::vector<DeviceId>;

// Eight devices, of two slices. One worker each, or two.
struct Layout {
  const char* name;
  int devices_per_worker;
  PlacedDevice Place(DeviceId d) const {
    return {{d.value() / 4, d.value() / devices_per_worker}, static_cast<uint32_t>(d.value() % devices_per_worker)};
  }
};
constexpr Layout kLayouts[] = {{"slices of a worker", 4}, {"slices of two workers", 2}};

struct Type {
  const char* name;
  DType dtype;
  bool key = false;  // one more dimension, which is not divided: as the data of JAX's typed keys
};
constexpr Type kTypes[] = {{"f32", DType::kF32},  {"bf16", DType::kBF16},    {"int4", DType::kS4},
                           {"uint4", DType::kU4}, {"int2", DType::kS2},      {"bool", DType::kPred},
                           {"c64", DType::kC64},  {"key", DType::kU32, true}};

// `tiles` of the two data dimensions, each held `copies` times, by the devices in order.
Sharding::Ptr Tiled(const Devices& devices, std::vector<int64_t> tiles, int64_t copies, bool key) {
  xla::OpSharding op;
  op.set_type(xla::OpSharding::OTHER);
  for (int64_t tile : tiles) op.add_tile_assignment_dimensions(tile);
  if (key) op.add_tile_assignment_dimensions(1);
  if (copies > 1) {
    op.add_tile_assignment_dimensions(copies);
    op.set_replicate_on_last_tile_dim(true);
  }
  for (size_t i = 0; i < devices.size(); ++i) op.add_tile_assignment_devices(static_cast<int64_t>(i));
  return Sharding::FromOpSharding(devices, MemoryKind::kDevice, op).value();
}

const char* const kKinds[] = {"replicated", "rows", "two axes", "partly replicated", "single device", "permuted"};

Sharding::Ptr Kind(size_t kind, const Devices& devices, bool key) {
  const int64_t n = static_cast<int64_t>(devices.size());
  switch (kind) {
    case 0: return Sharding::FullyReplicated(devices, MemoryKind::kDevice).value();
    case 1: return Tiled(devices, {n, 1}, 1, key);
    case 2: return Tiled(devices, {2, n / 2}, 1, key);
    case 3: return Tiled(devices, {1, 2}, n / 2, key);
    case 4: return Sharding::SingleDevice(devices.back(), MemoryKind::kDevice);
    default: {
      Devices order;
      for (size_t i = 1; i < devices.size(); i += 2) order.push_back(devices[i]);
      for (size_t i = 0; i < devices.size(); i += 2) order.push_back(devices[i]);
      return Tiled(order, {1, n}, 1, key);
    }
  }
}

struct Places {
  const char* name;
  std::vector<int> before, after;
};
const Places kPlaces[] = {{"same slice", {0, 1, 2, 3}, {0, 1, 2, 3}},
                          {"other slice", {0, 1, 2, 3}, {4, 5, 6, 7}},
                          {"both slices", {0, 1, 2, 3, 4, 5, 6, 7}, {4, 5, 6, 7, 0, 1, 2, 3}},
                          {"overlapping", {2, 3, 4, 5}, {3, 4, 5, 6}}};

Devices Ids(const std::vector<int>& numbers) { return {numbers.begin(), numbers.end()}; }

// An image has a byte for each element of a sub-byte type.
Bytes Global(DType dtype, const Dims& dims) {
  const int64_t bytes = IndexBox::Whole(dims).Elements() * HostElementBytes(dtype);
  const unsigned mask = IsSubByte(dtype) ? (1u << DeviceElementBits(dtype)) - 1 : 0xffu;
  Bytes image(static_cast<size_t>(bytes));
  for (size_t i = 0; i < image.size(); ++i) image[i] = static_cast<std::byte>((i * 2654435761u >> 7) & mask);
  return image;
}

Bytes Cut(const Bytes& global, DType dtype, const Dims& dims, const IndexBox& box) {
  const int element = HostElementBytes(dtype);
  Bytes out(static_cast<size_t>(box.Elements() * element));
  GatherPackedRange(out.data(), 0, static_cast<int64_t>(out.size()), global.data(), DenseStrides(dims, element), box,
                    element);
  return out;
}

IndexBox BoxOf(const Box& proto, absl::Span<const int64_t> dims) {
  if (proto.start_size() == 0 && proto.limit_size() == 0) return IndexBox::Whole(dims);
  return {{proto.start().begin(), proto.start().end()}, {proto.limit().begin(), proto.limit().end()}};
}

class Cell {
 public:
  Cell(const Layout& layout, const Type& type, Dims dims, Sharding::Ptr source, Sharding::Ptr target, bool donate,
       TaskPool* pool)
      : layout_(layout),
        dtype_(type.dtype),
        dims_(std::move(dims)),
        source_(std::move(source)),
        target_(std::move(target)),
        donate_(donate),
        pool_(pool),
        global_(Global(dtype_, dims_)) {}

  void Run() {
    auto location = [this](DeviceId d) { return layout_.Place(d).at; };
    plan_ = PlanReshard(dims_, *source_, *target_, location, {nullptr, donate_}).value();
    std::vector<int64_t> workers;
    ReshardPlanProto definition = DefineReshard(
        dims_, *source_, *target_, [this](DeviceId d) { return layout_.Place(d); }, {nullptr, donate_}, &workers);
    for (size_t i = 0; i < workers.size(); ++i) {
      definition.set_self(static_cast<uint32_t>(i));
      parts_[workers[i]] = ReshardPart::Make(definition).value();
    }
    for (uint32_t i = 0; i < source_->num_shards(); ++i) {
      buffers_[{kSource, i}] = {*source_->ShardDims(dims_, i), Cut(global_, dtype_, dims_, *source_->Box(dims_, i))};
    }
    ASSERT_NO_FATAL_FAILURE(Offer());
    ASSERT_NO_FATAL_FAILURE(MakeAll());
    CheckValues();
    CheckLinks();
  }

 private:
  static constexpr uint64_t kSource = 1, kTarget = 2;
  struct Buffer {
    Dims dims;
    Bytes image;
  };

  void Offer() {
    uint64_t next = 100;
    for (uint32_t e = 0; e < plan_.edges.size(); ++e) {
      first_.push_back(next);
      next += plan_.edges[e].pieces.size();
      ReshardSend send;
      send.set_transfer(first_[e]);
      send.set_edge(e);
      send.set_dtype(static_cast<int>(dtype_));
      send.mutable_source()->set_array(kSource);
      send.set_target(kTarget);
      auto offers = parts_.at(plan_.edges[e].from)->Expand(send);
      ASSERT_TRUE(offers.ok()) << offers.status();
      for (const Publish& offer : *offers) offers_.emplace(offer.transfer(), std::make_pair(e, offer));
    }
  }

  void MakeAll() {
    std::vector<MakeBuffer> open;
    for (const auto& [worker, part] : parts_) {
      ReshardReceive receive;
      receive.set_target(kTarget);
      receive.set_dtype(static_cast<int>(dtype_));
      receive.mutable_source()->set_array(kSource);
      for (uint32_t e = 0; e < plan_.edges.size(); ++e) {
        if (plan_.edges[e].to == worker) receive.add_edges()->set_transfer(first_[e]);
      }
      auto make = part->Expand(receive);
      ASSERT_TRUE(make.ok()) << make.status();
      open.insert(open.end(), make->buffers().begin(), make->buffers().end());
    }
    while (!open.empty()) {
      const size_t before = open.size();
      std::erase_if(open, [this](const MakeBuffer& buffer) { return TryMake(buffer); });
      ASSERT_LT(open.size(), before) << "a cycle";
    }
    EXPECT_EQ(pulled_.size(), offers_.size());
  }

  const Buffer* Find(const BufferRefProto& ref) const {
    auto it = buffers_.find({ref.array(), ref.shard()});
    return it == buffers_.end() ? nullptr : &it->second;
  }

  // False: a source is not there yet.
  bool TryMake(const MakeBuffer& spec) {
    for (const Piece& piece : spec.pieces()) {
      const BufferRefProto& ref =
          piece.has_local() ? piece.local() : offers_.at(piece.remote().transfer()).second.ref();
      if (Find(ref) == nullptr) return false;
    }
    const int element = HostElementBytes(dtype_);
    const Dims dims(spec.dims().begin(), spec.dims().end());
    Buffer made{dims, Bytes(static_cast<size_t>(IndexBox::Whole(dims).Elements() * element), std::byte{0xee})};
    const std::vector<int64_t> strides = DenseStrides(dims, element);
    for (const Piece& piece : spec.pieces()) {
      const IndexBox to = BoxOf(piece.target_box(), dims);
      if (piece.has_remote()) {
        Pull(piece.remote().transfer(), to, strides, &made.image);
        continue;
      }
      const Buffer& from = *Find(piece.local());
      const IndexBox box = BoxOf(piece.source_box(), from.dims);
      CopyStrided(made.image.data() + OffsetOf(to.start, strides), strides,
                  from.image.data() + OffsetOf(box.start, DenseStrides(from.dims, element)),
                  DenseStrides(from.dims, element), to.dims(), element);
    }
    buffers_[{kTarget, spec.target().ref().shard()}] = std::move(made);
    return true;
  }

  // In two chunks, as the receiver does; the second one from a copy of the source, as if a donor had come between.
  void Pull(uint64_t transfer, const IndexBox& to, const std::vector<int64_t>& strides, Bytes* image) {
    const auto& [edge, offer] = offers_.at(transfer);
    EXPECT_TRUE(pulled_.emplace(transfer, true).second) << "twice";
    const Buffer& from = *Find(offer.ref());
    const Dims dims(offer.dims().begin(), offer.dims().end());
    EXPECT_EQ(dims, from.dims);
    BoxSource source(HostImage{from.image.data(), static_cast<int64_t>(from.image.size()), nullptr}, dtype_, dims,
                     BoxOf(offer.box(), dims), pool_);
    const int64_t bytes = static_cast<int64_t>(source.size()), half = bytes / 2;
    EXPECT_EQ(bytes, PackedBytes(to.Elements(), DeviceElementBits(dtype_)));
    Land(source, 0, half, to, strides, image);
    auto copy = source.Copy();
    ASSERT_TRUE(copy.ok()) << copy.status();
    source.Switch(*std::move(copy));
    Land(source, half, bytes - half, to, strides, image);
    const int64_t sender = plan_.edges[edge].from, receiver = plan_.edges[edge].to;
    link_bytes_[{sender, receiver}] += bytes;
    link_elements_[{sender, receiver}] += to.Elements();
  }

  void Land(BoxSource& source, int64_t offset, int64_t bytes, const IndexBox& to, const std::vector<int64_t>& strides,
            Bytes* image) {
    if (bytes == 0) return;
    absl::Notification read;
    source.Read(static_cast<uint64_t>(offset), static_cast<uint64_t>(bytes),
                [&](absl::StatusOr<dataplane::Chunk> chunk) {
                  ASSERT_TRUE(chunk.ok()) << chunk.status();
                  ASSERT_EQ(chunk->size, static_cast<uint64_t>(bytes));
                  const auto* data = static_cast<const std::byte*>(chunk->data);
                  if (IsSubByte(dtype_)) {
                    ScatterPackedBits(image->data(), strides, to, DeviceElementBits(dtype_), data, offset, bytes);
                  } else {
                    ScatterPackedRange(image->data(), strides, to, HostElementBytes(dtype_), data, offset, bytes);
                  }
                  read.Notify();
                });
    read.WaitForNotification();
  }

  void CheckValues() const {
    for (const ReshardTarget& target : plan_.targets) {
      const IndexBox box = *target_->Box(dims_, target.shard);
      const auto key = target.kept ? std::make_pair(kSource, *target.kept) : std::make_pair(kTarget, target.shard);
      if (target.kept) {  // only what is there already
        EXPECT_TRUE(donate_);
        EXPECT_EQ(source_->devices()[*target.kept], target_->devices()[target.shard]);
      }
      if (box.Elements() == 0 && !buffers_.contains(key)) continue;
      ASSERT_TRUE(buffers_.contains(key)) << "shard " << target.shard;
      EXPECT_EQ(buffers_.at(key).image, Cut(global_, dtype_, dims_, box)) << "shard " << target.shard;
    }
  }

  // Which elements a group of devices (a worker, a slice) holds.
  template <typename InGroup>
  std::vector<bool> Held(const Sharding& sharding, InGroup in_group) const {
    std::vector<bool> held(static_cast<size_t>(IndexBox::Whole(dims_).Elements()));
    const std::vector<int64_t> strides = DenseStrides(dims_, 1);
    for (uint32_t i = 0; i < sharding.num_shards(); ++i) {
      if (!in_group(sharding.devices()[i])) continue;
      const IndexBox box = *sharding.Box(dims_, i);
      Bytes ones(static_cast<size_t>(box.Elements()), std::byte{1}), image(held.size());
      ScatterPackedRange(image.data(), strides, box, 1, ones.data(), 0, box.Elements());
      for (size_t e = 0; e < held.size(); ++e) held[e] = held[e] || image[e] != std::byte{0};
    }
    return held;
  }
  template <typename InGroup>
  int64_t Lacking(InGroup in_group) const {
    const std::vector<bool> wanted = Held(*target_, in_group), has = Held(*source_, in_group);
    int64_t count = 0;
    for (size_t e = 0; e < wanted.size(); ++e) count += wanted[e] && !has[e];
    return count;
  }

  // Into each worker, and into each slice from the other: exactly the elements that it lacks, in as many bytes as they take.
  void CheckLinks() const {
    std::map<int64_t, int64_t> into_worker, into_slice;
    const int per_slice = 4 / layout_.devices_per_worker;
    for (const auto& [link, elements] : link_elements_) {
      into_worker[link.second] += elements;
      if (link.first / per_slice != link.second / per_slice) into_slice[link.second / per_slice] += elements;
      const int bits = DeviceElementBits(dtype_);
      // Every piece ends at a byte; more is not lost.
      const int64_t exact = PackedBytes(elements, bits), pieces = static_cast<int64_t>(offers_.size());
      const int64_t bytes = link_bytes_.at(link);
      EXPECT_GE(bytes, exact);
      EXPECT_LE(bytes, exact + (bits < 8 ? pieces : 0));
      if (bits >= 8 || EvenPieces()) {
        EXPECT_EQ(bytes, exact);
      }
    }
    for (int64_t w = 0; w < 8 / layout_.devices_per_worker; ++w) {
      EXPECT_EQ(into_worker[w], Lacking([&](DeviceId d) { return layout_.Place(d).at.worker == w; })) << "worker " << w;
    }
    for (int64_t s = 0; s < 2; ++s) {
      EXPECT_EQ(into_slice[s], Lacking([&](DeviceId d) { return layout_.Place(d).at.slice == s; })) << "slice " << s;
    }
  }
  bool EvenPieces() const {
    for (const auto& [transfer, offer] : offers_) {
      const Dims dims(offer.second.dims().begin(), offer.second.dims().end());
      if (BoxOf(offer.second.box(), dims).Elements() * DeviceElementBits(dtype_) % 8 != 0) return false;
    }
    return true;
  }

  const Layout layout_;
  const DType dtype_;
  const Dims dims_;
  const Sharding::Ptr source_, target_;
  const bool donate_;
  TaskPool* const pool_;
  const Bytes global_;
  ReshardPlan plan_;
  std::map<int64_t, std::shared_ptr<const ReshardPart>> parts_;
  std::vector<uint64_t> first_;
  std::map<uint64_t, std::pair<uint32_t, Publish>> offers_;
  std::map<uint64_t, bool> pulled_;
  std::map<std::pair<uint64_t, uint32_t>, Buffer> buffers_;
  std::map<std::pair<int64_t, int64_t>, int64_t> link_bytes_, link_elements_;
};

class ReshardMatrix : public ::testing::TestWithParam<Type> {};

TEST_P(ReshardMatrix, ValuesAndBytesOfEveryCell) {
  const Type type = GetParam();
  TaskPool pool(1, "matrix");
  int cells = 0;
  for (const Layout& layout : kLayouts) {
    for (const Dims& data : {Dims{16, 24}, Dims{7, 9}}) {  // the second is uneven for every division, and odd
      Dims dims = data;
      if (type.key) dims.push_back(2);
      for (const Places& places : kPlaces) {
        for (size_t a = 0; a < std::size(kKinds); ++a) {
          for (size_t b = 0; b < std::size(kKinds); ++b) {
            for (bool donate : {false, true}) {
              SCOPED_TRACE(absl::StrCat(layout.name, ", ", DimsToString(dims), ", ", places.name, ", ", kKinds[a],
                                        " -> ", kKinds[b], donate ? ", donated" : ""));
              Cell cell(layout, type, dims, Kind(a, Ids(places.before), type.key), Kind(b, Ids(places.after), type.key),
                        donate, &pool);
              cell.Run();
              if (HasFailure()) return pool.Shutdown();
              ++cells;
            }
          }
        }
      }
    }
  }
  pool.Shutdown();
  EXPECT_EQ(cells, 2 * 2 * 4 * 36 * 2);
}

INSTANTIATE_TEST_SUITE_P(Types, ReshardMatrix, ::testing::ValuesIn(kTypes),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace landbridge
