#include "cli/admin_query.h"

#include "cluster/admin.h"

namespace landbridge::cli {

absl::StatusOr<nlohmann::json> QueryServer(const std::string& address, std::chrono::milliseconds timeout,
                                           const std::string& what) {
  if (address.empty()) return absl::UnavailableError("it does not answer questions yet");
  return AskAdmin(address, {{"what", what}}, std::chrono::duration_cast<std::chrono::nanoseconds>(timeout).count());
}

}  // namespace landbridge::cli
