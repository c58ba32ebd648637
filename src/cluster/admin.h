// Questions that people and tools ask a daemon: {"what": "status"} -> JSON, on the same port as everything else. Each
// daemon registers what it can answer.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/time.h"
#include "env/connection.h"
#include "env/loop.h"
#include "nlohmann/json.hpp"

namespace landbridge {

// The server's side. An answer is {"ok": true, "answer": ...} or {"ok": false, "code": "...", "error": "..."}.
//
// Thread-safety: the loop's thread only.
class AdminTable {
 public:
  using Answer = std::function<void(absl::StatusOr<nlohmann::json>)>;  // call once, on the loop
  using Handler = std::function<void(const nlohmann::json& request, Answer answer)>;

  // "metrics" (the process's Prometheus text), "version" and "log_level" ({"level": "debug"}) are there already.
  AdminTable();
  void Add(const std::string& what, Handler handler);
  // For handlers that have the answer at once.
  void Add(const std::string& what, std::function<absl::StatusOr<nlohmann::json>(const nlohmann::json&)> handler);

  // Answers a kFrameAdminRequest payload through `send` (which must cope with a closed connection).
  void OnRequest(absl::string_view payload, std::function<void(std::string)> send) const;

 private:
  std::map<std::string, Handler> handlers_;
};

// Accepts connections that may only ask (for daemons without another framed port, e.g. the proxy: serve it on a unix
// socket or a second port).
//
// Thread-safety: the loop's thread only.
class AdminServer {
 public:
  static absl::StatusOr<std::unique_ptr<AdminServer>> Listen(Loop* loop, absl::string_view address,
                                                             const AdminTable* table);
  ~AdminServer();
  int port() const;
  std::string address() const;

 private:
  class Impl;
  explicit AdminServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Asks and waits, on a loop of its own. UNAVAILABLE when nobody answers in time (says what and where); otherwise the
// daemon's own error or answer.
//
// Thread-safety: any thread.
absl::StatusOr<nlohmann::json> AskAdmin(absl::string_view address, const nlohmann::json& request,
                                        DurationNs timeout = 5 * kSecond);

}  // namespace landbridge
