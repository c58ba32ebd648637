// jaxlib's custom-call handlers, out of a Python that lives inside this process.
//
// The handlers are plain C++ that needs no interpreter; only finding them does (jaxlib hands them out as capsules, and
// takes its LAPACK out of scipy the same way). So Python is started once, at the first need, gives out the pointers, and
// is left alone from then on: the GIL is released for good, nothing is finalised. It installs no signal handlers, reads
// none of Python's environment variables, runs no site customisation, and prints to standard error only.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "custom_calls/python_query.h"

namespace landbridge {

// The handler (an XLA_FFI_Handler) of one of JaxlibTargets(). The first call in a process takes about a second.
// FAILED_PRECONDITION with what is missing and the cure. Once an interpreter has been started, what it said stays; until
// then each call looks again. Any thread.
absl::StatusOr<void*> FindJaxlibHandler(absl::string_view target, const PythonSearch& search);

// Whether Python has been started here. Any thread.
bool PythonStarted();

}  // namespace landbridge
