// Ids of data-plane keys. Uploads, executables, transfers and reads count separately; the kind in the top bits keeps
// them apart within one space.
#pragma once

#include <cstdint>

namespace landbridge {

enum class DataKeyKind : uint64_t {
  kUpload = 0,      // proxy: bytes of a client (Upload.key)
  kExecutable = 1,  // proxy: a sealed executable (LoadExecutable.executable)
  kTransfer = 2,    // worker: a box of a buffer (Publish.transfer)
  kRead = 3,        // worker: an image for a client (Read.read)
  kHostCall = 4,    // worker: operands of a client's function (HostCall.call); proxy: its results (results_key)
  kMail = 5,        // worker: a page of what its core says to another's (order_mail.h)
};

constexpr int kDataKeyKindShift = 60;

constexpr uint64_t DataKeyId(DataKeyKind kind, uint64_t id) {
  return static_cast<uint64_t>(kind) << kDataKeyKindShift | id;
}

}  // namespace landbridge
