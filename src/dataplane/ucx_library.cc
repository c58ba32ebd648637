#include "dataplane/ucx_library.h"

#include <arpa/inet.h>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <unistd.h>

#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "base/limits.h"
#include "base/log.h"

extern "C" {
#include <ucs/config/global_opts.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>
}

namespace landbridge::dataplane {
namespace {

// UCX tells about an option that no transport took in its log only.
absl::Mutex warning_mutex(absl::kConstInit);
std::string* configuration_warning ABSL_GUARDED_BY(warning_mutex) = nullptr;

ucs_log_func_rc_t LogHandler(const char*, unsigned, const char* function, ucs_log_level_t level,
                             const ucs_log_component_config_t*, const char* format, va_list arguments) {
  // Connections that break are events here, told by status; UCX's own words are for the debug log.
  const LogLevel ours = level <= UCS_LOG_LEVEL_FATAL ? LogLevel::kError : LogLevel::kDebug;
  if (level > UCS_LOG_LEVEL_WARN && !LogEnabled(ours)) return UCS_LOG_FUNC_RC_STOP;
  char text[512];
  std::vsnprintf(text, sizeof(text), format, arguments);
  if (level == UCS_LOG_LEVEL_WARN && absl::StartsWith(text, "invalid configuration")) {
    absl::MutexLock lock(&warning_mutex);
    if (configuration_warning == nullptr) configuration_warning = new std::string(text);
  }
  if (LogEnabled(ours)) LogLine(ours, absl::StrCat("ucx: ", function, ": ", text));
  return UCS_LOG_FUNC_RC_STOP;
}

// libucs installs handlers for SEGV, BUS, FPE, ILL and HUP when it is loaded, prints to standard output and, on
// HUP, stops for a debugger. Undone before main, so that a handler that the program sets is left alone.
const bool kQuiet = [] {
  for (int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGHUP}) ucs_debug_disable_signal(signal);
  ucs_global_opts_set_value("HANDLE_ERRORS", "none");
  ucs_log_push_handler(LogHandler);
  return true;
}();

}  // namespace

absl::Status CheckUcxOptionsTaken() {
  absl::MutexLock lock(&warning_mutex);
  if (configuration_warning == nullptr) return absl::OkStatus();
  absl::Status status = absl::FailedPreconditionError(
      absl::StrCat("this version of UCX does not know an option that the data plane's safety rests on: ",
                   *configuration_warning));
  delete std::exchange(configuration_warning, nullptr);
  return status;
}

std::string UcxText(ucs_status_t status) { return ucs_status_string(status); }

absl::StatusOr<std::string> NetworkDevices(absl::string_view listen_address) {
  if (listen_address == "0.0.0.0" || listen_address == "::") return std::string("all");
  if (listen_address == "localhost") listen_address = "127.0.0.1";
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return absl::InternalError("getifaddrs failed");
  std::set<std::string> names;
  std::set<std::string> known;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr) continue;
    char text[INET6_ADDRSTRLEN] = {};
    const void* address = nullptr;
    if (at->ifa_addr->sa_family == AF_INET) {
      address = &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr;
    } else if (at->ifa_addr->sa_family == AF_INET6) {
      address = &reinterpret_cast<const sockaddr_in6*>(at->ifa_addr)->sin6_addr;
    } else {
      continue;
    }
    inet_ntop(at->ifa_addr->sa_family, address, text, sizeof(text));
    known.insert(text);
    if (listen_address == text) names.insert(at->ifa_name);
  }
  freeifaddrs(list);
  if (names.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("no network interface of this host has the address ",
                                                      std::string(listen_address), "; it has ",
                                                      absl::StrJoin(known, ", ")));
  }
  return absl::StrJoin(names, ",");
}

absl::StatusOr<ucp_context_h> MakeUcxContext(absl::string_view listen_address, absl::string_view transports) {
  LB_CHECK(kQuiet);
  auto devices = NetworkDevices(listen_address);
  if (!devices.ok()) return devices.status();
  ucp_config_t* config = nullptr;
  if (ucs_status_t s = ucp_config_read(nullptr, nullptr, &config); s != UCS_OK) {
    return absl::FailedPreconditionError(absl::StrCat("UCX configuration: ", UcxText(s)));
  }
  const std::string keep_alive = absl::StrCat(limits::kTransferKeepAlive / kMillisecond, "ms");
  std::vector<std::pair<const char*, std::string>> options = {
      // No shared-memory queues: a sender that is killed while it writes leaves a hole that the receiver waits at for
      // ever, and with it everybody who sends to it. (UCX refuses them with failure handling for a reason.) Messages
      // go through sockets, bulk through CMA, which the receiver alone drives.
      {"TLS", transports == "auto" ? std::string("^sysv,posix") : std::string(transports)},
      {"NET_DEVICES", *devices},
      {"KEEPALIVE_INTERVAL", keep_alive},
      // The receiver reads from the source: after its endpoint is closed nobody else writes into its memory.
      {"RNDV_SCHEME", "get_zcopy"},
  };
  // Options of transports go without their environment name's prefix here, and UCX only warns about those that no
  // transport in use takes: see CheckUcxOptionsTaken.
  const auto uses = [&](absl::string_view transport) {
    return transports == "auto" || absl::StrContains(transports, transport);
  };
  // Without it UCX leaves CMA out where failures are handled: it wants a source to be able to revoke access, which CMA
  // cannot. Here an endpoint on one host only fails when the peer is dead or given up, and nobody accepts what a given-up
  // peer reads.
  if (uses("cma")) options.emplace_back("MEMORY_INVALIDATE", "y");
  // TCP's put lets the peer name an address in our memory, and a late one would land there.
  if (uses("tcp")) options.emplace_back("PUT_ENABLE", "n");
  for (const auto& [name, value] : options) {
    const ucs_status_t s = ucp_config_modify(config, name, value.c_str());
    if (s != UCS_OK) {
      ucp_config_release(config);
      return absl::FailedPreconditionError(absl::StrCat("UCX option ", name, "=", value, ": ", UcxText(s)));
    }
  }
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "landbridge";
  ucp_context_h context = nullptr;
  const ucs_status_t s = ucp_init(&params, config, &context);
  ucp_config_release(config);
  if (s != UCS_OK) {
    return absl::FailedPreconditionError(absl::StrCat("UCX cannot start with transports ", std::string(transports),
                                                      " on ", *devices, ": ", UcxText(s)));
  }
  return context;
}

}  // namespace landbridge::dataplane
