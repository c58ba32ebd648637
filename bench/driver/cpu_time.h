// CPU time of whole processes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace landbridge {

// Nanoseconds that the living threads of a process have run; 0 if there is no such process.
int64_t CpuTimeOf(pid_t pid);

// Between Start and End: per process, and in all.
//
// Thread-safety: one thread.
class CpuMeter {
 public:
  explicit CpuMeter(std::map<std::string, pid_t> processes) : processes_(std::move(processes)) {}
  void Start();
  // Microseconds per operation by name, and "all". A process that ended meanwhile counts nothing.
  nlohmann::json PerOperation(double operations) const;

 private:
  std::map<std::string, pid_t> processes_;
  std::map<std::string, int64_t> before_;
};

}  // namespace landbridge
