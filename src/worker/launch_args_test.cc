#include "worker/launch_args.h"

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "controller/launch_args.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

// One executable with `args` arguments whose ids begin at `first`, and as many outputs from `outputs` on.
Launch Step(uint64_t first, int args, uint64_t outputs, bool donate) {
  Launch launch;
  launch.set_ticket(outputs);
  launch.set_executable(7);
  launch.add_devices(0);
  for (int i = 0; i < args; ++i) {
    launch.add_args()->set_array(first + static_cast<uint64_t>(i));
    launch.add_outputs(outputs + static_cast<uint64_t>(i));
    if (donate) launch.add_donated(static_cast<uint32_t>(i));
  }
  return launch;
}

struct Ends {
  ctl::LaunchDifferences sender;
  LaunchBase receiver;
  // Sends it and checks that the other end sees the same; returns the bytes that travel.
  size_t Pass(const Launch& launch) {
    Launch wire = launch;
    sender.Encode(&wire);
    const std::string bytes = wire.SerializeAsString();
    Launch received;
    EXPECT_TRUE(received.ParseFromString(bytes));
    EXPECT_TRUE(ExpandLaunch(&receiver, &received).ok());
    EXPECT_EQ(received.SerializeAsString(), launch.SerializeAsString());
    return bytes.size();
  }
};

// A training step takes what the step before it made.
TEST(LaunchArgsTest, AStepOfAThousandArgumentsIsAFewBytes) {
  Ends ends;
  EXPECT_GT(ends.Pass(Step(1, 1000, 5000, true)), 9000u);  // the first one names all
  ends.Pass(Step(5000, 1000, 6000, true));
  for (uint64_t step = 6; step < 100; ++step) {
    EXPECT_LT(ends.Pass(Step(step * 1000, 1000, (step + 1) * 1000, true)), 80u);
  }
}

TEST(LaunchArgsTest, OneNewArgumentAmongThousandCostsOneArgument) {
  Ends ends;
  ends.Pass(Step(1, 1000, 5000, false));
  Launch next = Step(1, 1000, 6000, false);
  next.mutable_args(500)->set_array(777'777);
  EXPECT_LT(ends.Pass(next), 90u);
}

TEST(LaunchArgsTest, ShortListsTravelAsTheyAre) {
  Ends ends;
  const Launch launch = Step(1, limits::kLaunchDifferenceArgsMin - 1, 100, false);
  EXPECT_EQ(ends.Pass(launch), launch.ByteSizeLong());
  EXPECT_EQ(ends.Pass(launch), launch.ByteSizeLong());
  EXPECT_EQ(ends.sender.size(), 0u);
}

TEST(LaunchArgsTest, ForgottenExecutablesBeginAnew) {
  Ends ends;
  const Launch launch = Step(1, 100, 1000, false);
  const size_t full = ends.Pass(launch);
  EXPECT_LT(ends.Pass(launch), full / 10);
  ends.sender.Forget(ExecutableId(7));
  EXPECT_EQ(ends.Pass(launch), full);
}

TEST(LaunchArgsTest, RandomListsArriveAsTheyWereSent) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    Ends ends;
    Launch launch = Step(1, static_cast<int>(1 + random() % 60), 1000, random() % 2 == 0);
    for (int step = 0; step < 30; ++step) {
      for (int i = 0; i < launch.args_size(); ++i) {
        LaunchArg* arg = launch.mutable_args(i);
        switch (random() % 6) {
          case 0: arg->set_array(random() % 5000); break;
          case 1: arg->set_array(arg->array() + 60); break;
          case 2:
            arg->clear_array();
            arg->add_shards()->set_array(random() % 5000);
            break;
          case 3: arg->clear_shards(); break;
          default: break;
        }
      }
      if (random() % 4 == 0) launch.clear_donated();
      if (random() % 4 == 0) launch.mutable_outputs()->Set(0, random());
      ends.Pass(launch);
    }
  }
}

TEST(LaunchArgsTest, NonsenseIsRefusedAndEndsTheAgreement) {
  auto refused = [](auto change) {
    LaunchBase base;
    Launch first = Step(1, 20, 100, true);
    EXPECT_TRUE(ExpandLaunch(&base, &first).ok());
    Launch launch;
    launch.set_executable(7);
    change(&launch);
    const absl::Status status = ExpandLaunch(&base, &launch);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(launch.args_size(), 0);
    EXPECT_TRUE(base.args.empty());
  };
  refused([](Launch* l) {
    l->add_arg_runs(2 * 21);
    l->add_arg_deltas(0);
  });  // more than there were
  refused([](Launch* l) {
    l->add_arg_runs(2 * 19);
    l->add_arg_deltas(0);
  });                                                       // fewer
  refused([](Launch* l) { l->add_arg_runs(2 * 20); });      // no difference given
  refused([](Launch* l) { l->add_arg_runs(UINT32_MAX); });  // as many in full, and none there
  refused([](Launch* l) {
    l->add_arg_runs(2 * 20);
    l->add_arg_deltas(0);
    l->add_arg_deltas(1);
  });
  refused([](Launch* l) {
    l->set_outputs_first(1);
    l->set_outputs_count(limits::kLaunchOutputsRangeMax + 1);
  });
  refused([](Launch* l) {
    l->add_arg_runs(2 * 20);
    l->add_arg_deltas(0);
    l->set_donated_as_before(true);
    l->add_donated(3);
  });
}

}  // namespace
}  // namespace landbridge
