#include "controller/node_table.h"

namespace landbridge::ctl {

Node& NodeTable::Add(Ticket ticket, Node node) {
  Node& added = nodes_.emplace(ticket, std::move(node)).first->second;
  if (track_) {
    for (ArrayId id : added.makes) ++unfinished_[id];
  }
  return added;
}

void NodeTable::Erase(Ticket ticket) {
  auto it = nodes_.find(ticket);
  if (it == nodes_.end()) return;
  if (track_) {
    for (ArrayId id : it->second.makes) {
      auto count = unfinished_.find(id);
      if (--count->second == 0) unfinished_.erase(count);
    }
  }
  nodes_.erase(it);
}

}  // namespace landbridge::ctl
