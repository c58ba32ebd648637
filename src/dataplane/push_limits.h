// Bounds of what is sent before anybody asks (push_core.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace landbridge::dataplane {

inline constexpr uint64_t kPushBytesMax = 8u << 10;     // of one value: inside a message everywhere
inline constexpr size_t kListensPerPeerMax = 65'536;    // spaces that one peer listens for here; more are refused
inline constexpr size_t kPushClosedSpacesMax = 65'536;  // closed ones that are remembered for who listens late

}  // namespace landbridge::dataplane
