// Command lines: one argument a line.
#include "bin/flags.h"

#include "absl/strings/str_split.h"
#include "base/log.h"
#include "testing/fuzz.h"

namespace landbridge::fuzz {

std::vector<std::string> FuzzSeeds() {
  return {"--resource_manager_address=head:29001\n--virtual_slices=cpu:4, cpu:4\n--server_port\n7\n--nometrics",
          "--xla_dump_to=/tmp/x\n--ignored\n--helpfull", "-\n--\n--=\n--no\n--server_port=99999999999999999999",
          "stray", "--ignored=1\n--metrics=maybe\n--resource_manger_address=x"};
}

void FuzzOne(absl::string_view input) {
  std::vector<std::string> args = absl::StrSplit(input, '\n');
  for (std::string& arg : args) arg.resize(std::min(arg.size(), arg.find('\0')));  // as the kernel passes them
  args.insert(args.begin(), "landbridge-proxy");
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  std::string address;
  std::vector<std::string> slices, xla;
  int64_t port = 29000;
  bool metrics = false;
  Flags flags("landbridge-proxy", "Serves clients.");
  flags.Add("resource_manager_address", &address, "Where the RM is.");
  flags.Add("virtual_slices", &slices, "Types.");
  flags.Add("server_port", &port, "Port.");
  flags.Add("metrics", &metrics, "Metrics.");
  flags.AddIgnored("ignored", "nothing of that kind is here");
  flags.AddPrefix("xla_", &xla, "XLA flags.");
  const absl::Status status = flags.Parse(static_cast<int>(argv.size()), argv.data());
  LB_CHECK(status.ok() || (absl::IsInvalidArgument(status) && !status.message().empty()));
  for (const std::string& slice : slices) LB_CHECK(!slice.empty());
  LB_CHECK(!flags.Help().empty());
}

}  // namespace landbridge::fuzz
