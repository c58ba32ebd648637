#include "driver/cpu_time.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace landbridge {

int64_t CpuTimeOf(pid_t pid) {
  int64_t total = 0;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task", error)) {
    std::ifstream file(task.path() / "schedstat");
    int64_t nanoseconds = 0;
    if (file >> nanoseconds) total += nanoseconds;
  }
  return total;
}

void CpuMeter::Start() {
  for (const auto& [name, pid] : processes_) before_[name] = CpuTimeOf(pid);
}

nlohmann::json CpuMeter::PerOperation(double operations) const {
  nlohmann::json out;
  double all = 0;
  for (const auto& [name, pid] : processes_) {
    const int64_t used = std::max<int64_t>(CpuTimeOf(pid) - before_.at(name), 0);
    out[name] = static_cast<double>(used) / 1e3 / operations;
    all += static_cast<double>(used) / 1e3 / operations;
  }
  out["all"] = all;
  return out;
}

}  // namespace landbridge
