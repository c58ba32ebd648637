// The answer to Init: what jax.devices(), memories and client attributes show.
//
// Thread-safety: a pure function.
#pragma once

#include <cstdint>

#include "frontdoor/ifrt_proxy/device_catalog.h"
#include "proto/ifrt_proxy/ifrt_service.pb.h"

namespace landbridge {

// Memory ids are dense from 0, apart from device ids; the kind a device lists first is its default.
xla::ifrt::proxy::InitResponse MakeInitResponse(const DeviceCatalog& catalog, uint64_t session_wire_id,
                                                bool serializes = false);

}  // namespace landbridge
