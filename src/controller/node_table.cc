#include "controller/node_table.h"

namespace landbridge::ctl {

Node& NodeTable::Add(Ticket ticket, Life* life, SessionId session, TimeNs now) {
  Node& node = nodes_[ticket];
  node.life = life;
  node.session = session;
  node.since = now;
  return node;
}

void NodeTable::AddArray(Node& node, ArrayId id) {
  node.makes.push_back(id);
  if (track_) ++unfinished_[id];
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
