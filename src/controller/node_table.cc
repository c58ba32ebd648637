#include "controller/node_table.h"

namespace landbridge::ctl {

Node& NodeTable::Add(Ticket ticket, Life* life, SessionId session, TimeNs now) {
  Node& node = *nodes_.TryEmplace(ticket).first;
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
  const Node* node = nodes_.Find(ticket);
  if (node == nullptr) return;
  if (track_) {
    for (ArrayId id : node->makes) {
      auto count = unfinished_.find(id);
      if (--count->second == 0) unfinished_.erase(count);
    }
  }
  nodes_.Erase(ticket);
}

}  // namespace landbridge::ctl
