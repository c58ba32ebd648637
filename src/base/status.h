// Status macros and the codes' meaning in Landbridge.
//
// DATA_LOSS: data lost with a worker, slice or pre-emption, and only ever that.
// INVALID_ARGUMENT: the user's program or arguments; a protocol mistake.
// RESOURCE_EXHAUSTED: device or host memory, quota. UNIMPLEMENTED: says what to do instead.
// FAILED_PRECONDITION: closed session, no lease. ABORTED: gave up waiting. INTERNAL: our bug.
// pathwaysutils searches error texts for DATA_LOSS, INTERNAL, NOT_FOUND and DEADLINE_EXCEEDED and
// retries for ever: no text of a user's mistake may hold those words (see FilterForeignText).
#pragma once

#include <string>
#include "absl/strings/string_view.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace landbridge {

// The same code and payloads, with "context: " in front of the message.
absl::Status AddContext(const absl::Status& status, absl::string_view context);

// The same code and payloads, with `text` behind the message.
absl::Status AddToEnd(const absl::Status& status, absl::string_view text);

// Text that comes from a plugin or another library, with the four words that pathwaysutils takes for a
// lost slice spelled apart, e.g. "NOT_FOUND" -> "not found".
std::string FilterForeignText(absl::string_view text);

// The status a *plugin's* error becomes: text filtered, and the codes that mean something else here
// (INTERNAL, NOT_FOUND, DATA_LOSS, DEADLINE_EXCEEDED, UNKNOWN, UNAVAILABLE, CANCELLED, OUT_OF_RANGE, ...)
// mapped to INVALID_ARGUMENT; RESOURCE_EXHAUSTED and UNIMPLEMENTED stay.
absl::Status FromPluginError(const absl::Status& status, absl::string_view context);

}  // namespace landbridge

#define LB_CONCAT_INNER_(a, b) a##b
#define LB_CONCAT_(a, b) LB_CONCAT_INNER_(a, b)

#define LB_RETURN_IF_ERROR(expr)                                               \
  do {                                                                         \
    if (absl::Status lb_status_ = (expr); !lb_status_.ok()) return lb_status_; \
  } while (false)

#define LB_ASSIGN_OR_RETURN(lhs, expr) LB_ASSIGN_OR_RETURN_IMPL_(LB_CONCAT_(lb_statusor_, __LINE__), lhs, expr)
#define LB_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                              \
  if (!tmp.ok()) return std::move(tmp).status();  \
  lhs = std::move(tmp).value()
