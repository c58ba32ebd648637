// The flags of the daemons: Pathways' names and forms (--name=value, --name value, --bool, --nobool), ours beside
// them, --help and --helpfull, and errors that name near matches.
//
// Thread-safety: one thread, at start.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace landbridge {

// A program's exit code for flags that make no sense.
inline constexpr int kExitUsage = 2;

class Flags {
 public:
  // `usage`: a paragraph for --help.
  Flags(std::string program, std::string usage);

  void Add(std::string name, std::string* value, std::string help);
  void Add(std::string name, std::vector<std::string>* comma_list, std::string help);
  void Add(std::string name, int64_t* value, std::string help);
  void Add(std::string name, bool* value, std::string help);
  // Taken for the sake of Pathways' manifests: does nothing here, and a log line says so.
  void AddIgnored(std::string name, std::string why);
  // --PREFIXanything=value is collected whole ("--xla_dump_to=/x").
  void AddPrefix(std::string prefix, std::vector<std::string>* whole, std::string help);

  // INVALID_ARGUMENT names the flag, what is wrong, and near matches.
  absl::Status Parse(int argc, char** argv);
  // --help or --helpfull was given: print Help() and exit 0.
  bool help() const { return help_; }
  std::string Help() const;
  // What ignored flags were given, one sentence each.
  const std::vector<std::string>& notices() const { return notices_; }

  // Parses, and does what --help wants. A value: the program ends with it (kExitUsage after a line on standard error).
  std::optional<int> ParseOrExplain(int argc, char** argv);
  // The first lines of a server's log: version, arguments, notices.
  void LogStart(int argc, char** argv) const;

 private:
  enum class Kind { kString, kList, kInt, kBool, kIgnored };
  struct Flag {
    std::string name;
    Kind kind;
    void* value;
    std::string help;
    std::string default_text;
  };
  const Flag* Find(absl::string_view name) const;
  absl::Status Set(const Flag& flag, absl::string_view text);
  std::string NearMatches(absl::string_view name) const;

  std::string program_;
  std::string usage_;
  std::vector<Flag> flags_;
  struct Prefix {
    std::string prefix;
    std::vector<std::string>* whole;
    std::string help;
  };
  std::vector<Prefix> prefixes_;
  std::vector<std::string> notices_;
  bool help_ = false;
  bool help_full_ = false;
};

// How far apart two names are (insertions, deletions, substitutions, swaps of neighbours).
int EditDistance(absl::string_view a, absl::string_view b);

// The cluster's secret from the environment (LANDBRIDGE_CLUSTER_SECRET), which then forgets it, so that processes that we
// start do not inherit it. Empty: there is none. Before threads are started.
std::string TakeClusterSecret();

}  // namespace landbridge
