#include "cluster/grant.h"

#include <gtest/gtest.h>

#include <set>

namespace landbridge {
namespace {

TEST(GrantTest, ALifeIsOfOneProcessUnderOneGrant) {
  const Grant grant{PhysicalSliceId(1), {5, 6}, "secret"};
  const Incarnation worker(77);
  const Incarnation life = LifeUnder(grant, worker);
  EXPECT_TRUE(life.valid());
  EXPECT_EQ(LifeUnder(grant, worker), life);  // holder and worker find the same one
  std::set<Incarnation> others = {life};
  others.insert(LifeUnder(grant, Incarnation(78)));
  others.insert(LifeUnder({PhysicalSliceId(2), {5, 6}, "secret"}, worker));
  others.insert(LifeUnder({PhysicalSliceId(1), {5, 7}, "secret"}, worker));
  others.insert(LifeUnder({PhysicalSliceId(1), {6, 6}, "secret"}, worker));
  others.insert(LifeUnder({PhysicalSliceId(1), {5, 6}, "guessed"}, worker));
  EXPECT_EQ(others.size(), 6u);
}

}  // namespace
}  // namespace landbridge
