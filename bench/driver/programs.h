// Programs for the driver: made by hand for workers that run nothing, or compiled for those that do.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "compiler/compile_service.h"
#include "controller/controller.h"

namespace landbridge {

struct ProgramShape {
  int devices = 1;
  int parameters = 1;
  int outputs = 1;
  int adds = 1;         // output i = first parameter + adds; each add is an operation of the program
  int64_t step_us = 0;  // virtual compute before the result is there; 0: none. Compiled programs only.
  bool split = false;   // the devices belong to several workers
};

// f32[] everywhere, replicated. Simulated workers never open the envelope.
std::shared_ptr<const ProgramImage> NullProgram(const ProgramShape& shape);
// Waits for the compiler.
absl::StatusOr<std::shared_ptr<const ProgramImage>> CompileProgram(CompileService& compiler, const ProgramShape& shape);

}  // namespace landbridge
