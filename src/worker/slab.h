// Storage with stable addresses and handles that know when what they named is gone: state machines register handles,
// not pointers, in waiting lists, and need not search those lists when something is withdrawn.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace landbridge {

struct SlabHandle {
  uint32_t index = 0;
  uint32_t generation = 0;  // 0: names nothing
  bool valid() const { return generation != 0; }
  friend bool operator==(const SlabHandle&, const SlabHandle&) = default;
};

template <typename T>
class Slab {
 public:
  // The new object is default-constructed.
  std::pair<SlabHandle, T*> Add() {
    uint32_t index;
    if (free_.empty()) {
      index = static_cast<uint32_t>(slots_.size());
      slots_.emplace_back();
    } else {
      index = free_.back();
      free_.pop_back();
    }
    Slot& slot = slots_[index];
    if (++slot.generation == 0) slot.generation = 1;
    return {SlabHandle{index, slot.generation}, &slot.value.emplace()};
  }
  // Null when it is gone.
  T* Get(SlabHandle handle) { return const_cast<T*>(static_cast<const Slab*>(this)->Get(handle)); }
  const T* Get(SlabHandle handle) const {
    if (handle.index >= slots_.size()) return nullptr;
    const Slot& slot = slots_[handle.index];
    return slot.value && slot.generation == handle.generation ? &*slot.value : nullptr;
  }
  void Erase(SlabHandle handle) {
    slots_[handle.index].value.reset();
    free_.push_back(handle.index);
  }
  size_t size() const { return slots_.size() - free_.size(); }

  // In the order of slots: the same for the same history. `fn(handle, value)` may erase what it is given, and only that.
  template <typename Fn>
  void ForEach(Fn fn) {
    for (uint32_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].value) fn(SlabHandle{i, slots_[i].generation}, *slots_[i].value);
    }
  }
  template <typename Fn>
  void ForEach(Fn fn) const {
    for (uint32_t i = 0; i < slots_.size(); ++i) {
      if (slots_[i].value) fn(SlabHandle{i, slots_[i].generation}, *slots_[i].value);
    }
  }

 private:
  struct Slot {
    std::optional<T> value;
    uint32_t generation = 0;
  };
  std::deque<Slot> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace landbridge
