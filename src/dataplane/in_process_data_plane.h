// The data plane inside one process: the same protocol and rules, memcpy instead of sockets. For running everything
// in one process and for tests.
#pragma once

#include <memory>

#include "dataplane/data_plane.h"

namespace landbridge::dataplane {

// Connects the data planes of one process. One thread carries the events of all of them.
//
// Thread-safety: any thread. Outlives nothing: planes keep what they need alive.
class InProcessFabric {
 public:
  InProcessFabric();
  ~InProcessFabric();
  InProcessFabric(const InProcessFabric&) = delete;
  InProcessFabric& operator=(const InProcessFabric&) = delete;

  std::unique_ptr<DataPlane> MakeDataPlane(DataPlaneOptions options);

  // For tests: a paused peer neither sends nor receives nor fetches (SIGSTOP); its events wait.
  void SetPaused(PeerId peer, bool paused);

  class Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace landbridge::dataplane
