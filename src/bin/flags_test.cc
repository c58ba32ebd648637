#include "bin/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "bin/spin_flag.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

struct Parsed {
  std::string address = "none";
  std::vector<std::string> slices, xla;
  int64_t port = 29000;
  bool metrics = false;
  std::vector<std::string> notices;
  std::string help;
  absl::Status status;
};

Parsed Parse(std::vector<std::string> args) {
  Parsed out;
  Flags flags("landbridge-proxy", "Serves clients.");
  flags.Add("resource_manager_address", &out.address, "Where the RM is.");
  flags.Add("virtual_slices", &out.slices, "Types.");
  flags.Add("server_port", &out.port, "Port.");
  flags.Add("enable_metrics_collection", &out.metrics, "Metrics.");
  flags.AddIgnored("megascale_port", "there is no megascale here");
  flags.AddPrefix("xla_", &out.xla, "XLA flags.");
  args.insert(args.begin(), "landbridge-proxy");
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  out.status = flags.Parse(static_cast<int>(argv.size()), argv.data());
  out.notices = flags.notices();
  out.help = flags.Help();
  return out;
}

TEST(FlagsTest, FormsThatPathwaysManifestsUse) {
  Parsed p = Parse({"--resource_manager_address=head:29001", "--virtual_slices=cpu:4, cpu:4", "--server_port", "7",
                    "--enable_metrics_collection", "--xla_dump_to=/tmp/x", "--xla_cpu_foo", "--megascale_port=9"});
  ASSERT_TRUE(p.status.ok()) << p.status;
  EXPECT_EQ(p.address, "head:29001");
  EXPECT_THAT(p.slices, ElementsAre("cpu:4", "cpu:4"));
  EXPECT_EQ(p.port, 7);
  EXPECT_TRUE(p.metrics);
  EXPECT_THAT(p.xla, ElementsAre("--xla_dump_to=/tmp/x", "--xla_cpu_foo"));
  EXPECT_THAT(p.notices, ElementsAre(HasSubstr("megascale_port=9 has no effect")));
  EXPECT_FALSE(Parse({"--noenable_metrics_collection"}).metrics);
  EXPECT_THAT(Parse({"--megascale_port"}).notices, ElementsAre(HasSubstr("--megascale_port has no effect")));
  EXPECT_THAT(Parse({"--nomegascale_port"}).notices, ElementsAre(HasSubstr("--megascale_port=false has no effect")));
  EXPECT_FALSE(Parse({"--enable_metrics_collection=false"}).metrics);
}

TEST(FlagsTest, MistakesNameTheFlagAndWhatIsNear) {
  EXPECT_THAT(std::string(Parse({"--resource_manger_address=x"}).status.message()),
              HasSubstr("did you mean --resource_manager_address?"));
  EXPECT_THAT(std::string(Parse({"--frobnicate"}).status.message()), HasSubstr("unknown flag --frobnicate"));
  EXPECT_THAT(std::string(Parse({"--server_port=abc"}).status.message()), HasSubstr("--server_port=abc"));
  EXPECT_THAT(std::string(Parse({"--server_port"}).status.message()), HasSubstr("needs a value"));
  EXPECT_THAT(std::string(Parse({"stray"}).status.message()), HasSubstr("\"stray\""));
}

TEST(FlagsTest, HelpHidesIgnoredOnesUnlessFull) {
  EXPECT_THAT(Parse({"--help"}).help, Not(HasSubstr("megascale")));
  EXPECT_THAT(Parse({"--helpfull"}).help, HasSubstr("megascale_port"));
  EXPECT_THAT(Parse({"--help"}).help, HasSubstr("(default 29000)"));
}

TEST(FlagsTest, EditDistance) {
  EXPECT_EQ(EditDistance("abc", "abc"), 0);
  EXPECT_EQ(EditDistance("abc", "acb"), 1);
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
}

TEST(SpinFlagTest, IsWithinASecond) {
  EXPECT_EQ(*SpinOf(0), 0);
  EXPECT_EQ(*SpinOf(200), 200 * kMicrosecond);
  for (int64_t wrong : {int64_t{-1}, int64_t{1'000'001}}) {
    EXPECT_THAT(std::string(SpinOf(wrong).status().message()), HasSubstr(absl::StrCat("--spin_us=", wrong)));
  }
}

}  // namespace
}  // namespace landbridge
