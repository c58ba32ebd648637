// Strong integer ids: a device is not an array, and the compiler says so.
//
// Thread-safety: plain values.
#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <utility>

namespace landbridge {

// `Tag::kPrefix` is what the id looks like in messages: d3, a12, t7.
template <typename Tag, typename Rep = uint64_t>
class StrongId {
 public:
  using Representation = Rep;
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  constexpr bool valid() const { return value_ != Rep{}; }
  std::string ToString() const { return Tag::kPrefix + std::to_string(value_); }

  friend constexpr bool operator==(StrongId a, StrongId b) { return a.value_ == b.value_; }
  friend constexpr auto operator<=>(StrongId a, StrongId b) { return a.value_ <=> b.value_; }
  template <typename H>
  friend H AbslHashValue(H h, StrongId id) {
    return H::combine(std::move(h), id.value_);
  }
  friend std::ostream& operator<<(std::ostream& os, StrongId id) { return os << id.ToString(); }

 private:
  Rep value_ = Rep{};
};

#define LANDBRIDGE_DEFINE_ID(NAME, PREFIX, REP)    \
  struct NAME##Tag {                               \
    static constexpr const char* kPrefix = PREFIX; \
  };                                               \
  using NAME = StrongId<NAME##Tag, REP>

// Issued by the controller, from 1, never re-used. 0 is "none".
LANDBRIDGE_DEFINE_ID(ArrayId, "a", uint64_t);
LANDBRIDGE_DEFINE_ID(ExecutableId, "x", uint64_t);
LANDBRIDGE_DEFINE_ID(Ticket, "t", uint64_t);  // place of a node in client order
LANDBRIDGE_DEFINE_ID(TransferId, "tr", uint64_t);
LANDBRIDGE_DEFINE_ID(RequestId, "r", uint64_t);  // something whose answer comes later
LANDBRIDGE_DEFINE_ID(SessionId, "s", uint64_t);
// A random number that a process chooses for one life; compared for equality only.
LANDBRIDGE_DEFINE_ID(Incarnation, "i", uint64_t);
// What a client names. Dense from 0, so 0 is a real device.
LANDBRIDGE_DEFINE_ID(DeviceId, "d", int32_t);
// A virtual slice of one proxy, dense from 0.
LANDBRIDGE_DEFINE_ID(SliceId, "slice", int32_t);

// One shard's memory: (array that made it, shard index). No worker in it, so it survives re-binding.
struct BufferRef {
  ArrayId array;
  uint32_t shard = 0;

  std::string ToString() const { return array.ToString() + "." + std::to_string(shard); }
  friend bool operator==(const BufferRef&, const BufferRef&) = default;
  friend auto operator<=>(const BufferRef&, const BufferRef&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const BufferRef& ref) {
    return H::combine(std::move(h), ref.array, ref.shard);
  }
};

}  // namespace landbridge

template <typename Tag, typename Rep>
struct std::hash<landbridge::StrongId<Tag, Rep>> {
  size_t operator()(landbridge::StrongId<Tag, Rep> id) const { return std::hash<Rep>()(id.value()); }
};
