#include "frontdoor/ifrt_proxy/store_message.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "proto/ifrt_proxy/grpc_ifrt_service.pb.h"

namespace landbridge {
namespace {

constexpr uint8_t kDataTag = 0x0a;  // field 1, with a length
constexpr int kLengthBitsMax = 35;  // of five bytes, as protobuf reads it

// Where the data begins in the first slice, if the message is nothing but the field; else 0.
size_t DataStart(const grpc::Slice& first, size_t total) {
  if (first.size() < 2 || first.begin()[0] != kDataTag) return 0;
  uint64_t length = 0;
  size_t at = 1;
  for (int shift = 0; at < first.size() && shift < kLengthBitsMax; shift += 7) {
    const uint8_t byte = first.begin()[at++];
    length |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) return length == total - at ? at : 0;
  }
  return 0;
}

}  // namespace

bool StoreMessageData(const std::vector<grpc::Slice>& slices, std::vector<absl::string_view>* parts,
                      std::string* copy) {
  size_t total = 0;
  for (const grpc::Slice& slice : slices) total += slice.size();
  if (total == 0) return true;
  if (const size_t start = DataStart(slices[0], total); start > 0) {
    for (size_t i = 0; i < slices.size(); ++i) {
      const size_t skip = i == 0 ? start : 0;
      if (slices[i].size() == skip) continue;
      parts->push_back({reinterpret_cast<const char*>(slices[i].begin()) + skip, slices[i].size() - skip});
    }
    return true;
  }
  std::string flat;
  flat.reserve(total);
  for (const grpc::Slice& slice : slices) flat.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  xla::ifrt::proxy::GrpcHostBufferStoreRequest message;
  if (!message.ParseFromString(flat)) return false;
  *copy = std::move(*message.mutable_data());
  parts->push_back(*copy);
  return true;
}

}  // namespace landbridge
