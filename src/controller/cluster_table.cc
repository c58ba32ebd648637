#include "controller/cluster_table.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status.h"

namespace landbridge::ctl {

void ClusterTable::Declare(std::vector<VirtualDevice> devices) {
  for (const VirtualDevice& device : devices) {
    LB_CHECK(device.id.value() >= 0 && device.id.value() < limits::kDevicesMax);
    by_slot_.emplace(device.slot, 0);
  }
  LB_CHECK(slots_.empty());  // declared once
  int index = 0;
  for (auto& [id, slot_index] : by_slot_) {
    slot_index = index++;
    Slot slot;
    slot.id = id;
    slot.life = std::make_unique<Life>();
    slot.life->slot = slot_index;
    slots_.push_back(std::move(slot));
  }
  for (const VirtualDevice& device : devices) {
    const auto at = static_cast<size_t>(device.id.value());
    if (devices_.size() <= at) devices_.resize(at + 1);
    LB_CHECK(devices_[at].slot == -1);
    devices_[at] = Device{by_slot_.at(device.slot), device.local_ordinal};
  }
}

bool ClusterTable::Known(DeviceId device) const {
  return device.value() >= 0 && static_cast<size_t>(device.value()) < devices_.size() && At(device).slot >= 0;
}

absl::StatusOr<ClusterTable::Device> ClusterTable::Find(DeviceId device) const {
  if (!Known(device)) {
    return absl::InvalidArgumentError(
        absl::StrCat("device ", device.value(), " does not exist; there are ", devices_.size(), " devices"));
  }
  return At(device);
}

DeviceLocation ClusterTable::LocationOf(DeviceId device) const {
  const int slot = At(device).slot;
  return {slots_[static_cast<size_t>(slot)].id.slice.value(), slot};
}

absl::Status ClusterTable::CheckDevices(const Sharding& sharding) const {
  for (DeviceId device : sharding.devices()) {
    if (!Known(device)) return Find(device).status();
  }
  return absl::OkStatus();
}

uint32_t ClusterTable::NumberInSlice(DeviceId device) const {
  const Device& at = At(device);
  const SlotId slot = slots_[static_cast<size_t>(at.slot)].id;
  uint32_t before = at.ordinal;
  for (const Device& other : devices_) {
    if (other.slot < 0) continue;
    const SlotId of_other = slots_[static_cast<size_t>(other.slot)].id;
    before += of_other.slice == slot.slice && of_other.index < slot.index ? 1 : 0;
  }
  return before;
}

absl::StatusOr<bool> ClusterTable::SpansWorkers(absl::Span<const DeviceId> devices) const {
  if (devices.empty()) return absl::InvalidArgumentError("a program needs at least one device");
  bool spans = false;
  for (DeviceId device : devices) {
    if (!Known(device)) return Find(device).status();
    spans |= At(device).slot != At(devices[0]).slot;
  }
  return spans;
}

ClusterTable::Slot* ClusterTable::FindSlot(SlotId id) {
  auto it = by_slot_.find(id);
  return it == by_slot_.end() ? nullptr : &slots_[static_cast<size_t>(it->second)];
}

Life* ClusterTable::FindLife(Incarnation incarnation) const {
  auto it = by_incarnation_.find(incarnation);
  return it == by_incarnation_.end() ? nullptr : it->second;
}

void ClusterTable::SetUp(Life* life, Incarnation incarnation, std::string data_address, std::string name) {
  life->up = true;
  life->incarnation = incarnation;
  life->data_address = std::move(data_address);
  life->name = std::move(name);
  slots_[static_cast<size_t>(life->slot)].last_name = life->name;
  by_incarnation_[incarnation] = life;
}

std::unique_ptr<Life> ClusterTable::End(Life* life) {
  by_incarnation_.erase(life->incarnation);
  auto next = std::make_unique<Life>();
  next->slot = life->slot;
  std::unique_ptr<Life>& current = slots_[static_cast<size_t>(life->slot)].life;
  LB_CHECK(current.get() == life);
  std::swap(current, next);
  return next;
}

}  // namespace landbridge::ctl
