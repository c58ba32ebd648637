// Messages of HostBufferStore, cut into slices anywhere: the same data as protobuf finds, or none.
#include "frontdoor/ifrt_proxy/store_message.h"

#include <algorithm>

#include "base/log.h"
#include "proto/ifrt_proxy/grpc_ifrt_service.pb.h"
#include "testing/fuzz.h"

namespace landbridge::fuzz {
namespace {

std::string Encoded(const std::string& data) {
  xla::ifrt::proxy::GrpcHostBufferStoreRequest message;
  message.set_data(data);
  return message.SerializeAsString();
}

}  // namespace

// A number of cuts, the length of each slice but the last, then the message.
std::vector<std::string> FuzzSeeds() {
  const std::string none(1, '\0');
  return {none + Encoded("data"), "\x02\x01\x03" + Encoded(std::string(300, 'x')),
          "\x01\x04" + Encoded("one") + Encoded("two"),            // the last one counts
          none + std::string("\x0a\x84\x80\x80\x80\x00text", 10),  // a length in more bytes than it needs
          none + "\x12\x01z" + Encoded("behind an unknown field")};
}

void FuzzOne(absl::string_view input) {
  Choices choices(input);
  std::vector<size_t> lengths(choices.Below(4));
  for (size_t& length : lengths) length = choices.Byte();
  const std::string flat(choices.Rest());
  std::vector<grpc::Slice> slices;
  size_t at = 0;
  for (size_t length : lengths) {
    length = std::min(length, flat.size() - at);
    slices.emplace_back(flat.data() + at, length);
    at += length;
  }
  slices.emplace_back(flat.data() + at, flat.size() - at);

  std::vector<absl::string_view> parts;
  std::string copy, joined;
  const bool taken = StoreMessageData(slices, &parts, &copy);
  for (absl::string_view part : parts) joined.append(part.data(), part.size());
  xla::ifrt::proxy::GrpcHostBufferStoreRequest message;
  LB_CHECK(message.ParseFromString(flat) == taken);
  if (taken) LB_CHECK(joined == message.data());
}

}  // namespace landbridge::fuzz
