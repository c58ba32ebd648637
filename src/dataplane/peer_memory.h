// Direct reads of another process's memory on the same host (Linux: process_vm_readv).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "dataplane/socket_wire.h"

namespace landbridge::dataplane {

// Reads exactly `size` bytes at `address` of process `pid` into dst. UNAVAILABLE: the process is gone, its memory
// is not there, or the system forbids it.
//
// Who calls this must hear of the other process's end by other means (its socket): process numbers are re-used.
// The kernel closes a dying process's files before its number is free, so a socket that is still open *after* the
// read proves that the bytes were its.
absl::Status ReadPeerMemory(pid_t pid, uint64_t address, void* dst, size_t size);

// Whether the memory of `pid` can be read here and is that of the process that said this hello: tried, not guessed
// (other process namespaces, ptrace restrictions, sandboxes).
bool CanReadPeerMemory(pid_t pid, const Hello& hello);

}  // namespace landbridge::dataplane
