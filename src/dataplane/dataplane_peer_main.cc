// A peer process for data_plane_process_test: publishes bytes, pulls when told to, over one control socket (fd 3).
//
//   dataplane_peer SELF PARENT TRANSPORTS BYTES
//
// Control messages are packets of text. Out: the address, then one answer per command. In: the parent's address,
// then commands:  pull SPACE ID BYTES | start SPACE ID BYTES | finish | close | ping | quit
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "dataplane/test_pattern.h"
#include "dataplane/socket_data_plane.h"

namespace landbridge::dataplane {
namespace {

constexpr int kControl = 3;

void Say(const std::string& text) {
  if (send(kControl, text.data(), text.size(), MSG_NOSIGNAL) < 0) std::exit(3);
}

std::string Hear() {
  std::string text(8192, '\0');
  const ssize_t n = recv(kControl, text.data(), text.size(), 0);
  if (n <= 0) std::exit(0);
  text.resize(static_cast<size_t>(n));
  return text;
}

struct OpenPull {
  std::vector<std::byte> dst;
  absl::Notification done;
  absl::Status status;
};

std::string Describe(OpenPull& pull, uint64_t seed) {
  pull.done.WaitForNotification();
  if (!pull.status.ok()) return absl::StrCat("error ", std::string(pull.status.message()));
  return pull.dst == TestPattern(pull.dst.size(), seed) ? "ok" : "wrong bytes";
}

int Main(int argc, char** argv) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (argc != 5) return 2;
  DataPlaneOptions options;
  options.self = PeerId(std::strtoull(argv[1], nullptr, 10));
  const PeerId parent(std::strtoull(argv[2], nullptr, 10));
  SocketOptions sockets;
  sockets.local_sockets = std::string(argv[3]) != "tcp";
  sockets.direct_reads = std::string(argv[3]) == "direct";
  auto made = MakeSocketDataPlane(std::move(options), sockets);
  if (!made.ok()) {
    std::cerr << made.status() << "\n";
    return 1;
  }
  std::unique_ptr<DataPlane> plane = *std::move(made);
  auto bytes =
      std::make_shared<std::vector<std::byte>>(TestPattern(std::strtoull(argv[4], nullptr, 10), plane->self().value()));
  plane->PublishSpan({plane->self().value(), 1}, {bytes->data(), bytes->size()}, bytes);
  Say(plane->address());
  if (absl::Status added = plane->AddPeer(parent, Hear()); !added.ok()) {
    std::cerr << added << "\n";
    return 1;
  }
  std::unique_ptr<OpenPull> open;
  uint64_t open_id = 0;
  for (;;) {
    const std::vector<std::string> words = absl::StrSplit(Hear(), ' ');
    if (words[0] == "quit") break;
    if (words[0] == "ping") {
      Say("pong");
    } else if (words[0] == "close") {
      plane->ClosePeer(parent, absl::AbortedError("told to close"));
      Say("closed");
    } else if (words[0] == "finish") {
      Say(Describe(*open, open_id));
    } else if (words[0] == "pull" || words[0] == "start") {
      open = std::make_unique<OpenPull>();
      open->dst.resize(std::strtoull(words[3].c_str(), nullptr, 10));
      open_id = std::strtoull(words[2].c_str(), nullptr, 10);
      OpenPull* pull = open.get();
      plane->Pull(parent, {std::strtoull(words[1].c_str(), nullptr, 10), open_id}, 0, pull->dst.data(),
                  pull->dst.size(), [pull](absl::Status status) {
                    pull->status = std::move(status);
                    pull->done.Notify();
                  });
      Say(words[0] == "pull" ? Describe(*open, open_id) : "started");
    } else {
      return 2;
    }
  }
  plane->Shutdown();
  return 0;
}

}  // namespace
}  // namespace landbridge::dataplane

int main(int argc, char** argv) { return landbridge::dataplane::Main(argc, argv); }
