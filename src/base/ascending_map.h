// A map for ids that are given out one after the other and die in about that order (tickets, array ids). Neighbours lie
// together in blocks, so that walking along costs no cache miss each time, and no allocation for each. What outlives its
// neighbours by far keeps a block of kBlock values alive.
//
// Pointers to values hold until they are erased. Not thread-safe.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace landbridge {

template <typename Id, typename T>
class AscendingMap {
 public:
  static constexpr size_t kBlock = 64;

  AscendingMap() = default;
  AscendingMap(const AscendingMap&) = delete;
  AscendingMap& operator=(const AscendingMap&) = delete;
  ~AscendingMap() { Clear(); }

  // Null if it is not there.
  T* Find(Id id) const {
    Block* block = BlockOf(Key(id));
    return block != nullptr && block->Holds(Place(id)) ? block->at(Place(id)) : nullptr;
  }
  bool Contains(Id id) const { return Find(id) != nullptr; }
  // Default-constructed if it was not there: then true.
  std::pair<T*, bool> TryEmplace(Id id) {
    Block* block = BlockOf(Key(id));
    if (block == nullptr) {
      block = (blocks_[Key(id)] = std::make_unique<Block>()).get();
      Remember(Key(id), block);
    }
    const size_t place = Place(id);
    if (block->Holds(place)) return {block->at(place), false};
    block->used |= uint64_t{1} << place;
    ++size_;
    return {new (block->at(place)) T(), true};
  }
  // False if it was not there.
  bool Erase(Id id) {
    Block* block = BlockOf(Key(id));
    if (block == nullptr || !block->Holds(Place(id))) return false;
    EraseAt(Key(id), block, Place(id));
    return true;
  }
  void Clear() {
    for (auto& [key, block] : blocks_) {
      for (; block->used != 0; block->used &= block->used - 1) block->at(First(block->used))->~T();
    }
    blocks_.clear();
    last_ = nullptr;
    size_ = 0;
  }
  // In no order, but for neighbours. `fn(id, value)` changes nothing of the map.
  template <typename Fn>
  void ForEach(Fn fn) const {
    for (const auto& [key, block] : blocks_) {
      for (uint64_t used = block->used; used != 0; used &= used - 1) {
        fn(Id(key * kBlock + First(used)), *block->at(First(used)));
      }
    }
  }
  // Erases those of which `fn(id, value)` is true.
  template <typename Fn>
  void EraseIf(Fn fn) {
    for (auto it = blocks_.begin(); it != blocks_.end();) {
      const uint64_t key = it->first;
      Block* block = (it++)->second.get();  // erasing moves nothing
      for (uint64_t used = block->used; used != 0; used &= used - 1) {
        const size_t place = First(used);
        const bool last = (used & (used - 1)) == 0;
        if (fn(Id(key * kBlock + place), *block->at(place))) EraseAt(key, block, place);
        if (last) break;  // the block may be gone
      }
    }
  }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  struct Block {
    uint64_t used = 0;  // a bit for each place
    alignas(T) std::byte values[kBlock * sizeof(T)];
    bool Holds(size_t place) const { return (used >> place & 1) != 0; }
    T* at(size_t place) { return std::launder(reinterpret_cast<T*>(values + place * sizeof(T))); }
  };

  static uint64_t Value(uint64_t id) { return id; }
  template <typename Strong>
  static uint64_t Value(Strong id) {
    return id.value();
  }
  static uint64_t Key(Id id) { return Value(id) / kBlock; }
  static size_t Place(Id id) { return Value(id) % kBlock; }
  static size_t First(uint64_t used) { return static_cast<size_t>(std::countr_zero(used)); }

  Block* BlockOf(uint64_t key) const {
    if (last_ != nullptr && last_key_ == key) return last_;
    auto it = blocks_.find(key);
    if (it == blocks_.end()) return nullptr;
    Remember(key, it->second.get());
    return last_;
  }
  void Remember(uint64_t key, Block* block) const {
    last_key_ = key;
    last_ = block;
  }
  void EraseAt(uint64_t key, Block* block, size_t place) {
    block->at(place)->~T();
    block->used &= ~(uint64_t{1} << place);
    --size_;
    if (block->used != 0) return;
    if (last_ == block) last_ = nullptr;
    blocks_.erase(key);
  }

  absl::flat_hash_map<uint64_t, std::unique_ptr<Block>> blocks_;
  mutable uint64_t last_key_ = 0;
  mutable Block* last_ = nullptr;  // the block that was looked at last
  size_t size_ = 0;
};

}  // namespace landbridge
