// The verbs of the command-line tool. Each returns the exit code; errors are printed to standard error.
//
// Thread-safety: the main thread only.
#pragma once

#include <string>
#include <vector>

#include "cli/cluster_options.h"

namespace landbridge::cli {

constexpr int kExitError = 1;
constexpr int kExitNotRunning = 3;    // status: no cluster there
constexpr int kExitClusterLost = 70;  // run: a server ended under the command

struct RunArguments {
  ClusterOptions cluster;
  std::string state_dir;  // empty: a temporary one, kept only when something went wrong
  bool quiet = false;
  std::vector<std::string> command;
};
int Run(RunArguments arguments);

struct UpArguments {
  ClusterOptions cluster;
  std::string state_dir;
  bool json = false;
};
int Up(UpArguments arguments);

int Down(const std::string& state_dir);
int Restart(const std::string& state_dir, const std::string& name);
int ShowStatus(const std::string& state_dir, bool json);
// `what`: "" (everything), a session ("s1") or a launch ("t9" or "9").
int ShowWhy(const std::string& state_dir, const std::string& what, bool json);
// The live dataflow graph.
enum class GraphForm { kText, kJson, kDot, kSvg };
int ShowGraph(const std::string& state_dir, GraphForm form);
int ShowDevices(const std::string& state_dir, bool json);

}  // namespace landbridge::cli
