// A KeyValueStore as the C ABI wants it. For this room only.
#pragma once

#include "pjrt/c_api.h"
#include "pjrt/key_value_store.h"

namespace landbridge::pjrt {

// The callbacks may run on any thread of the plugin for as long as the client lives.
void SetKeyValueCallbacks(KeyValueStore* store, PJRT_Client_Create_Args* args);

}  // namespace landbridge::pjrt
