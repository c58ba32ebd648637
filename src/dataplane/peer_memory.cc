#include "dataplane/peer_memory.h"

#include <sys/uio.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace landbridge::dataplane {

absl::Status ReadPeerMemory(pid_t pid, uint64_t address, void* dst, size_t size) {
  size_t done = 0;
  while (done < size) {
    iovec here = {static_cast<char*>(dst) + done, size - done};
    iovec there = {reinterpret_cast<void*>(address + done), size - done};
    const ssize_t n = process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (n <= 0) {
      return absl::UnavailableError(
          absl::StrCat("reading the memory of process ", pid, ": ", n == 0 ? "nothing there" : std::strerror(errno)));
    }
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

bool CanReadPeerMemory(pid_t pid, const Hello& hello) {
  if (pid <= 0 || hello.probe_address == 0) return false;
  Nonce found = {};
  return ReadPeerMemory(pid, hello.probe_address, found.data(), found.size()).ok() && found == hello.probe;
}

}  // namespace landbridge::dataplane
