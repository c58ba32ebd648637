// Who waits for something: a handle into the slab of its kind, so that a registration of something that is gone by
// then is recognised instead of searched for.
#pragma once

#include <cstdint>

#include "worker/slab.h"

namespace landbridge {

enum class WaiterKind : uint8_t {
  kNone,
  kLaunch,       // an input; satisfied when enqueued (if the producer allows that) or resident
  kLaunchStrict, // an input of a program that needs its producers completed
  kLaunchPoison, // an input that is there already; only wants to hear if it fails after all
  kMakePart,
  kUpload,
  kPublish,
  kRead,
  kWatch,
};

struct Waiter {
  WaiterKind kind = WaiterKind::kNone;
  SlabHandle handle;
};

}  // namespace landbridge
