// Who waits for something: a handle into the slab of its kind, so that a registration of something that is gone by
// then is recognised instead of searched for.
#pragma once

#include <cstdint>

#include "worker/slab.h"

namespace landbridge {

enum class WaiterKind : uint8_t {
  kNone,
  kLaunch,        // an input of a program of one device; satisfied when enqueued or resident
  kLaunchGang,    // an input of a program of several devices: enqueued is not enough when it can fail alone
  kLaunchStrict,  // an input of a program with side effects: needs its producer completed
  kLaunchPoison,  // an input that is there already; only wants to hear if it fails after all
  kMakePart,
  kUpload,
  kPublish,
  kRead,
  kWatch,
};

// An input that is waited for.
inline bool IsLaunch(WaiterKind kind) {
  return kind == WaiterKind::kLaunch || kind == WaiterKind::kLaunchGang || kind == WaiterKind::kLaunchStrict;
}

struct Waiter {
  WaiterKind kind = WaiterKind::kNone;
  SlabHandle handle;
};

}  // namespace landbridge
