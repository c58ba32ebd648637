#include <string>
#include <vector>

#include "frontdoor/ifrt_proxy/session_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using xla::ifrt::proxy::IfrtRequest;
using xla::ifrt::proxy::IfrtResponse;

class ContextTest : public SessionTest {
 protected:
  // The ids that all responses so far name back, in the order of their numbers; checks the numbers.
  std::vector<uint64_t> Released() {
    std::vector<uint64_t> ids;
    int64_t next = 0;
    for (uint64_t op : host_.order) {
      const auto& metadata = host_.responses[op].response_metadata();
      if (!metadata.has_seq_num()) continue;
      EXPECT_EQ(metadata.seq_num(), next++);
      EXPECT_EQ(metadata.status().code(), 0);
      ids.insert(ids.end(), metadata.destroyed_user_context_ids().begin(), metadata.destroyed_user_context_ids().end());
    }
    return ids;
  }
  void Flush() {
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(Ready({}).ok());
  }
};

TEST_F(ContextTest, ALaunchKeepsItsContextUntilItIsDone) {
  Make(1, "ab");
  const uint64_t executable = Compile("f", {0}, 2);
  cluster_.paused = true;
  Call(ExecuteRequest(executable, {1}), /*context=*/11);
  Flush();
  EXPECT_THAT(Released(), IsEmpty());
  cluster_.paused = false;
  Pump();
  Flush();
  EXPECT_THAT(Released(), ElementsAre(11));
  Flush();
  EXPECT_THAT(Released(), ElementsAre(11));
  EXPECT_EQ(core_->counts().contexts_held, 0u);
}

TEST_F(ContextTest, AnUploadKeepsItsContextUntilItAndItsUsersAreGone) {
  const uint64_t executable = Compile("f", {0}, 2);
  Make(1, "ab", 0, /*context=*/21);
  Flush();
  EXPECT_THAT(Released(), IsEmpty());
  cluster_.paused = true;
  Call(ExecuteRequest(executable, {1}), /*context=*/22);
  Destruct({1});
  Flush();
  EXPECT_THAT(Released(), IsEmpty());
  cluster_.paused = false;
  Pump();
  Flush();
  EXPECT_THAT(Released(), ::testing::UnorderedElementsAre(21, 22));
}

TEST_F(ContextTest, AFailureIsShownWithItsContextAndKeepsIt) {
  Make(1, "ab");
  const uint64_t executable = Compile("fail", {0}, 2);
  Call(ExecuteRequest(executable, {1}, {5}), /*context=*/31);
  EXPECT_EQ(CitedContext(Ready({5})), 31u);
  Destruct({5});
  Flush();
  EXPECT_THAT(Released(), Not(::testing::Contains(31)));
  EXPECT_EQ(core_->counts().contexts_kept_back, 1u);
}

TEST_F(ContextTest, SixtyThousandCallsLeaveNothing) {
  Make(1, "ab");
  const uint64_t executable = Compile("f", {0}, 2);
  uint64_t previous =
      Call(ExecuteRequest(executable, {1}), 1'000).loaded_executable_execute_response().outputs(0).array_handle();
  for (uint64_t i = 1; i < 60'000; ++i) {
    Send(ExecuteRequest(executable, {previous}, {100 + i}), 1'000 + i);
    IfrtRequest destruct;
    destruct.mutable_destruct_array_request()->add_array_handle(previous);
    Send(destruct, 1'000 + i);
    previous = 100 + i;
    if (i % 1'000 == 0) Pump();
  }
  Pump();
  Destruct({previous});
  Flush();
  const std::vector<uint64_t> released = Released();
  EXPECT_EQ(released.size(), 60'000u);
  EXPECT_EQ(std::set<uint64_t>(released.begin(), released.end()).size(), 60'000u);
  EXPECT_EQ(core_->counts().contexts_held, 0u);
  EXPECT_EQ(cluster_.controller.counts().arrays, 1u);
}

}  // namespace
}  // namespace landbridge
