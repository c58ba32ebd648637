// The messages of a HostBufferStore stream, {bytes data = 1}, as gRPC received them.
#pragma once

#include <string>
#include <vector>

#include <grpcpp/support/slice.h>

#include "absl/strings/string_view.h"

namespace landbridge {

// Appends the parts of `data` to `parts`, in order: they lie in `slices`, without a copy, when the message is encoded
// as clients do, else in `copy`. False: not a message of that type.
//
// Thread-safety: any thread.
bool StoreMessageData(const std::vector<grpc::Slice>& slices, std::vector<absl::string_view>* parts, std::string* copy);

}  // namespace landbridge
