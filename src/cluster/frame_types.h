// Types of the frames that daemons exchange (env/frame.h). Payloads are protocol buffers unless said otherwise.
#pragma once

#include <cstdint>

namespace landbridge {

enum FrameType : uint32_t {
  kFrameMemberReport = 1,  // cluster.proto, worker -> RM
  kFrameMemberUpdate = 2,
  kFrameHolderReport = 3,  // proxy -> RM
  kFrameHolderUpdate = 4,
  kFrameAdminRequest = 10,  // JSON text (admin.h), anybody -> any daemon
  kFrameAdminAnswer = 11,
  kFrameControlHello = 20,  // cluster.proto, proxy -> worker
  kFrameControlWelcome = 21,
  kFrameControl = 22,  // control.proto ControlFrame, both ways
};

}  // namespace landbridge
