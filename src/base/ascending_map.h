// A map for ids that are given out one after the other and die in about that order (tickets, array ids). Neighbours lie
// together in blocks, so that walking along costs no cache miss each time, and no allocation for each. What outlives its
// neighbours by far keeps a block of kBlock values alive.
//
// Pointers to values hold until they are erased. Not thread-safe.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"

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
      if (spare_ == nullptr) spare_ = std::make_unique_for_overwrite<Block>();
      block = (blocks_[Key(id)] = std::move(spare_)).get();
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
      for (; block->used != 0; block->used &= block->used - 1) block->at(Lowest(block->used))->~T();
    }
    blocks_.clear();
    recent_ = {};
    size_ = 0;
  }
  // The lowest id; the map is not empty.
  Id First() const {
    const auto& [key, block] = *blocks_.begin();
    return Id(key * kBlock + Lowest(block->used));
  }
  // Ascending. `fn(id, value)` changes nothing of the map.
  template <typename Fn>
  void ForEach(Fn fn) const {
    for (const auto& [key, block] : blocks_) {
      for (uint64_t used = block->used; used != 0; used &= used - 1) {
        fn(Id(key * kBlock + Lowest(used)), *block->at(Lowest(used)));
      }
    }
  }
  // Erases those of which `fn(id, value)` is true.
  template <typename Fn>
  void EraseIf(Fn fn) {
    std::vector<Id> gone;
    ForEach([&](Id id, T& value) {
      if (fn(id, value)) gone.push_back(id);
    });
    for (Id id : gone) Erase(id);
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
  static size_t Lowest(uint64_t used) { return static_cast<size_t>(std::countr_zero(used)); }

  Block* BlockOf(uint64_t key) const {
    for (const Recent& recent : recent_) {
      if (recent.block != nullptr && recent.key == key) return recent.block;
    }
    auto it = blocks_.find(key);
    if (it == blocks_.end()) return nullptr;
    Remember(key, it->second.get());
    return it->second.get();
  }
  void Remember(uint64_t key, Block* block) const {
    recent_[1] = recent_[0];
    recent_[0] = {key, block};
  }
  void EraseAt(uint64_t key, Block* block, size_t place) {
    block->at(place)->~T();
    block->used &= ~(uint64_t{1} << place);
    --size_;
    if (block->used != 0) return;
    for (Recent& recent : recent_) {
      if (recent.block == block) recent = {};
    }
    auto it = blocks_.find(key);
    spare_ = std::move(it->second);
    blocks_.erase(it);
  }

  struct Recent {
    uint64_t key = 0;
    Block* block = nullptr;
  };
  absl::btree_map<uint64_t, std::unique_ptr<Block>> blocks_;
  std::unique_ptr<Block> spare_;          // for the next: with few ids alive, blocks come and go
  mutable std::array<Recent, 2> recent_;  // looked at last: where ids begin, and where they end
  size_t size_ = 0;
};

}  // namespace landbridge
