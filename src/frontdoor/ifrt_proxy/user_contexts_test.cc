#include "frontdoor/ifrt_proxy/user_contexts.h"

#include "absl/strings/cord.h"
#include "base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using xla::ifrt::proxy::ResponseMetadata;

ResponseMetadata Next(UserContexts& contexts) {
  ResponseMetadata metadata;
  contexts.Number(&metadata);
  return metadata;
}

TEST(UserContexts, TheFirstNumberIsZeroAndCarriesNoIds) {
  UserContexts contexts;
  contexts.Begin(5);
  ResponseMetadata first = Next(contexts);
  EXPECT_TRUE(first.has_seq_num());
  EXPECT_EQ(first.seq_num(), 0);
  EXPECT_THAT(first.destroyed_user_context_ids(), IsEmpty());
  ResponseMetadata second = Next(contexts);
  EXPECT_EQ(second.seq_num(), 1);
  EXPECT_THAT(second.destroyed_user_context_ids(), ElementsAre(5));
  EXPECT_THAT(Next(contexts).destroyed_user_context_ids(), IsEmpty());
}

TEST(UserContexts, AnIdIsNamedOncePerRequestWhenItsLastHoldGoes) {
  UserContexts contexts;
  Next(contexts);
  UserContexts::Hold a = contexts.Begin(7), again = contexts.Begin(7), copy = a;
  EXPECT_EQ(contexts.held(), 2u);
  a.reset();
  EXPECT_THAT(Next(contexts).destroyed_user_context_ids(), IsEmpty());
  copy.reset();
  EXPECT_THAT(Next(contexts).destroyed_user_context_ids(), ElementsAre(7));
  again.reset();
  EXPECT_THAT(Next(contexts).destroyed_user_context_ids(), ElementsAre(7));
  EXPECT_EQ(contexts.held(), 0u);
}

TEST(UserContexts, NothingForZero) {
  UserContexts contexts;
  EXPECT_EQ(contexts.Begin(0), nullptr);
}

TEST(UserContexts, CitedIdsAreKeptBackUpToALimit) {
  UserContexts contexts;
  Next(contexts);
  for (uint64_t id = 1; id <= limits::kCitedContextsMax + 2; ++id) {
    UserContexts::Hold hold = contexts.Begin(id);
    contexts.Cite(WithUserContext(absl::InvalidArgumentError("x"), id));
  }
  EXPECT_EQ(contexts.kept_back(), limits::kCitedContextsMax);
  EXPECT_THAT(Next(contexts).destroyed_user_context_ids(), ElementsAre(1, 2));
}

TEST(UserContexts, AStatusCitesTheFirstContextOnly) {
  const absl::Status status = WithUserContext(WithUserContext(absl::DataLossError("x"), 3), 4);
  EXPECT_EQ(CitedContext(status), 3u);
  EXPECT_EQ(status.GetPayload("type.googleapis.com/ifrt.UserContext").value(), "3");
  EXPECT_EQ(CitedContext(absl::OkStatus()), 0u);
}

}  // namespace
}  // namespace landbridge
