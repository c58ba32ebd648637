#include "controller/buffer_table.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "base/log.h"
#include "controller/dispatcher.h"

namespace landbridge::ctl {

BufferTable::~BufferTable() {
  for (auto& [id, entry] : table_) {
    delete entry.array;
    delete entry.group;
  }
}

Array* BufferTable::Find(SessionId session, ArrayId id) const {
  auto it = table_.find(id);
  if (it == table_.end() || it->second.array == nullptr || it->second.array->session != session) return nullptr;
  return it->second.array;
}

Group* BufferTable::FindGroup(ArrayId id) const {
  auto it = table_.find(id);
  return it == table_.end() ? nullptr : it->second.group;
}

Group* BufferTable::NewGroup(ArrayId id, uint32_t count, int64_t shard_bytes) {
  Entry& entry = table_[id];
  LB_CHECK(entry.group == nullptr && count > 0);
  auto* group = new Group();
  group->id = id;
  group->count = count;
  group->shard_bytes = shard_bytes;
  if (count > 1) group->many = std::make_unique<Shard[]>(count);
  entry.group = group;
  ++groups_;
  return group;
}

Array* BufferTable::NewArray(ArrayId id, SessionId session, std::shared_ptr<const ArraySpec> spec) {
  Entry& entry = table_[id];
  LB_CHECK(entry.array == nullptr);
  auto* array = new Array();
  array->session = session;
  array->spec = std::move(spec);
  entry.array = array;
  ++arrays_;
  return array;
}

Array* BufferTable::NewWhole(ArrayId id, SessionId session, std::shared_ptr<const ArraySpec> spec, Group* group) {
  Array* array = NewArray(id, session, std::move(spec));
  array->form = Array::Form::kWhole;
  array->group = group;
  ++group->arrays;
  return array;
}

Array* BufferTable::NewOf(ArrayId id, SessionId session, std::shared_ptr<const ArraySpec> spec, ShardRef shard) {
  if (shard.group->count == 1) return NewWhole(id, session, std::move(spec), shard.group);
  Array* array = NewArray(id, session, std::move(spec));
  array->form = Array::Form::kOne;
  array->group = shard.group;
  array->shard = shard.shard;
  ++shard->views;
  ++shard.group->views;
  return array;
}

Array* BufferTable::NewView(ArrayId id, SessionId session, std::shared_ptr<const ArraySpec> spec,
                            std::vector<ShardRef> shards) {
  LB_CHECK(!shards.empty());
  if (shards.size() == 1) return NewOf(id, session, std::move(spec), shards[0]);
  bool whole = shards.size() == shards[0].group->count;
  for (uint32_t i = 0; whole && i < shards.size(); ++i) {
    whole = shards[i].group == shards[0].group && shards[i].shard == i;
  }
  if (whole) return NewWhole(id, session, std::move(spec), shards[0].group);
  Array* array = NewArray(id, session, std::move(spec));
  array->form = Array::Form::kMany;
  for (const ShardRef& shard : shards) {
    ++shard->views;
    ++shard.group->views;
  }
  array->many = std::make_unique<std::vector<ShardRef>>(std::move(shards));
  return array;
}

Array* BufferTable::NewError(ArrayId id, SessionId session, std::shared_ptr<const ArraySpec> spec, absl::Status error) {
  LB_CHECK(!error.ok());
  Array* array = NewArray(id, session, std::move(spec));
  array->error = std::move(error);
  return array;
}

bool BufferTable::Deleted(const Array& array) const {
  if (array.deleted) return true;
  switch (array.form) {
    case Array::Form::kNone: return false;
    case Array::Form::kWhole: return array.group->dead != 0;
    case Array::Form::kOne: return array.at(0)->Is(Shard::kDead);
    case Array::Form::kMany:
      return std::any_of(array.many->begin(), array.many->end(),
                         [](const ShardRef& shard) { return shard->Is(Shard::kDead); });
  }
  return false;
}

absl::Status BufferTable::Error(const Array& array) const {
  if (array.form == Array::Form::kNone) return array.error;
  if (array.form == Array::Form::kWhole && array.group->failed == 0) return absl::OkStatus();
  for (uint32_t i = 0; i < array.size(); ++i) {
    if (ShardRef shard = array.at(i); shard->Is(Shard::kFailed)) return shard->error;
  }
  return absl::OkStatus();
}

bool BufferTable::Ready(const Array& array) const {
  if (array.form == Array::Form::kWhole) return array.group->ready == array.group->count;
  for (uint32_t i = 0; i < array.size(); ++i) {
    if (!array.at(i)->Is(Shard::kReady)) return false;
  }
  return array.form != Array::Form::kNone;
}

void BufferTable::MarkReady(Group* group, uint32_t index) {
  Shard& shard = group->at(index);
  if (shard.Is(Shard::kReady) || shard.Is(Shard::kFailed)) return;
  shard.flags |= Shard::kReady;
  ++group->ready;
}

bool BufferTable::MarkFailed(Group* group, uint32_t index, const absl::Status& error) {
  Shard& shard = group->at(index);
  if (shard.Is(Shard::kFailed) || shard.Is(Shard::kReady)) return false;
  shard.flags |= Shard::kFailed;
  shard.error = error;
  ++group->failed;
  return true;
}

bool BufferTable::Kill(ShardRef shard) {
  if (shard->Is(Shard::kDead)) return false;
  shard->flags |= Shard::kDead;
  ++shard.group->dead;
  return true;
}

void BufferTable::Revive(ShardRef shard) {
  if (!shard->Is(Shard::kDead)) return;
  shard->flags &= static_cast<uint8_t>(~Shard::kDead);
  --shard.group->dead;
}

void BufferTable::FreeShard(Group* group, uint32_t index, SessionId session) {
  Shard& shard = group->at(index);
  if (!Kill({group, index})) return;
  if (shard.life == nullptr || !shard.Is(Shard::kTold)) return;
  if (shard.Is(Shard::kOrphan)) {
    // Nobody frees it with the session.
    if (tell_ || shard.life->up)
      dispatcher_->DeleteShard(shard.life, {group->id, index}, tell_ && !shard.life->up ? session : SessionId());
  } else if (tell_) {
    dispatcher_->DeleteShard(shard.life, {group->id, index}, session);
  }
}

void BufferTable::FreeGroup(Group* group) {
  const ArrayId id = group->id;
  table_.find(id)->second.group = nullptr;
  delete group;
  --groups_;
  Erase(id);
}

void BufferTable::Erase(ArrayId id) {
  auto it = table_.find(id);
  if (it != table_.end() && it->second.array == nullptr && it->second.group == nullptr) table_.erase(it);
}

void BufferTable::Settle(Group* group, SessionId session) {
  if (group->arrays != 0) return;
  if (group->views == 0) {
    bool orphans = false;  // those go one by one: "all of it" would free them a second time
    for (uint32_t i = 0; i < group->count; ++i) orphans |= group->at(i).Is(Shard::kOrphan);
    if (tell_ && group->dead == 0 && !orphans) {
      // All of it at once, one message per worker.
      absl::InlinedVector<Life*, 4> lives;
      for (uint32_t i = 0; i < group->count; ++i) {
        Shard& shard = group->at(i);
        if (shard.life == nullptr || !shard.Is(Shard::kTold)) continue;
        if (std::find(lives.begin(), lives.end(), shard.life) == lives.end()) lives.push_back(shard.life);
      }
      for (Life* life : lives) dispatcher_->DeleteArray(life, group->id, session);
    } else if (group->dead != group->count) {
      for (uint32_t i = 0; i < group->count; ++i) FreeShard(group, i, session);
    }
    FreeGroup(group);
    return;
  }
  for (uint32_t i = 0; i < group->count; ++i) {
    if (group->at(i).views == 0) FreeShard(group, i, session);
  }
}

void BufferTable::Let(Array* array) {
  const Array::Form form = array->form;
  array->form = Array::Form::kNone;
  switch (form) {
    case Array::Form::kNone: return;
    case Array::Form::kWhole: {
      Group* group = array->group;
      array->group = nullptr;
      --group->arrays;
      Settle(group, array->session);
      return;
    }
    case Array::Form::kOne: {
      Group* group = array->group;
      array->group = nullptr;
      --group->at(array->shard).views;
      --group->views;
      if (group->arrays != 0) return;
      if (group->views == 0) return Settle(group, array->session);
      if (group->at(array->shard).views == 0) FreeShard(group, array->shard, array->session);
      return;
    }
    case Array::Form::kMany: {
      const std::unique_ptr<std::vector<ShardRef>> shards = std::move(array->many);
      // Group by group, so that a group that this array alone held goes as a whole.
      absl::InlinedVector<Group*, 8> groups;
      for (const ShardRef& shard : *shards) {
        --shard->views;
        --shard.group->views;
        if (groups.empty() || groups.back() != shard.group) groups.push_back(shard.group);
      }
      std::sort(groups.begin(), groups.end(), [](Group* a, Group* b) { return a->id < b->id; });
      groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
      for (Group* group : groups) Settle(group, array->session);
      return;
    }
  }
}

void BufferTable::Release(SessionId session, ArrayId id) {
  Array* array = Find(session, id);
  if (array == nullptr) return;
  Let(array);
  table_.find(id)->second.array = nullptr;
  delete array;
  --arrays_;
  Erase(id);
}

void BufferTable::Abandon(Array* array) {
  array->deleted = true;
  Let(array);
}

void BufferTable::Destroy(Array* array) {
  if (array->deleted) return;
  array->deleted = true;
  // An array that holds all of a whole and living group costs one message for each worker.
  if (array->form == Array::Form::kWhole && array->group->arrays == 1 && array->group->views == 0) {
    Let(array);
    return;
  }
  for (uint32_t i = 0; i < array->size(); ++i) {
    ShardRef shard = array->at(i);
    FreeShard(shard.group, shard.shard, array->session);
  }
  Let(array);
}

void BufferTable::DropSession(SessionId session) {
  std::vector<ArrayId> ids;
  for (const auto& [id, entry] : table_) {
    if (entry.array != nullptr && entry.array->session == session) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  tell_ = false;
  for (ArrayId id : ids) Release(session, id);
  tell_ = true;
}

void BufferTable::LoseLife(Life* life, const absl::Status& why) {
  for (auto& [id, entry] : table_) {
    if (entry.group == nullptr) continue;
    for (uint32_t i = 0; i < entry.group->count; ++i) {
      Shard& shard = entry.group->at(i);
      if (shard.life != life) continue;
      shard.life = nullptr;
      if (shard.Is(Shard::kFailed)) continue;
      if (shard.Is(Shard::kReady)) {
        shard.flags &= static_cast<uint8_t>(~Shard::kReady);
        --entry.group->ready;
      }
      shard.flags |= Shard::kFailed;
      shard.error = why;
      ++entry.group->failed;
    }
  }
}

void BufferTable::ForEachArray(absl::FunctionRef<void(ArrayId, const Array&)> fn) const {
  for (const auto& [id, entry] : table_) {
    if (entry.array != nullptr) fn(id, *entry.array);
  }
}

void BufferTable::ForEachGroup(absl::FunctionRef<void(const Group&)> fn) const {
  for (const auto& [id, entry] : table_) {
    if (entry.group != nullptr) fn(*entry.group);
  }
}

}  // namespace landbridge::ctl
