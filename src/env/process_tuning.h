// Settings of the C++ runtime that every daemon wants.
#pragma once

namespace landbridge {

// First thing in main, before other threads exist.
void TuneProcess();

}  // namespace landbridge
