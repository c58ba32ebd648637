// Mail that is handed to a worker keeps until its core listens to the peer, as on the data plane, where the reader asks for it.
// For shells without one.
//
// Not thread-safe.
#pragma once

#include <deque>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/ids.h"

namespace landbridge {

class MailGate {
 public:
  void Listen(Incarnation peer) { peers_[peer].open = true; }
  void Add(Incarnation peer, std::string mail) { peers_[peer].mails.push_back(std::move(mail)); }
  // The next of the peer, if it may be read.
  bool Next(Incarnation peer, std::string* mail) {
    Peer& from = peers_[peer];
    if (!from.open || from.mails.empty()) return false;
    *mail = std::move(from.mails.front());
    from.mails.pop_front();
    return true;
  }
  void Close(Incarnation peer) { peers_.erase(peer); }

 private:
  struct Peer {
    bool open = false;
    std::deque<std::string> mails;
  };
  absl::flat_hash_map<Incarnation, Peer> peers_;
};

}  // namespace landbridge
