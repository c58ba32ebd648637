#include "base/ascending_map.h"

#include <map>
#include <memory>
#include <random>
#include <string>

#include "base/ids.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

// The same as std::map under any mixture of calls, and pointers hold.
TEST(AscendingMap, IsAMap) {
  std::mt19937 random(7);
  AscendingMap<Ticket, std::unique_ptr<std::string>> map;
  std::map<uint64_t, std::string*> model;
  uint64_t next = 1;
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t id = random() % 4 == 0 ? random() % (next + 100) : next++;
    auto [value, added] = map.TryEmplace(Ticket(id));
    ASSERT_EQ(added, !model.contains(id));
    if (added) {
      *value = std::make_unique<std::string>(std::to_string(id));
      model[id] = value->get();
    }
    const uint64_t gone = random() % 3 == 0 ? random() % next : next - next / 3;
    ASSERT_EQ(map.Erase(Ticket(gone)), model.erase(gone) == 1);
    ASSERT_FALSE(map.Contains(Ticket(gone)));
    ASSERT_EQ(map.size(), model.size());
  }
  map.EraseIf([&](Ticket id, const auto&) { return id.value() % 3 == 0 && model.erase(id.value()) == 1; });
  ASSERT_EQ(map.First(), Ticket(model.begin()->first));
  size_t seen = 0;
  map.ForEach([&](Ticket id, const std::unique_ptr<std::string>& value) {
    ++seen;
    EXPECT_EQ(model.at(id.value()), value.get());
    EXPECT_EQ(*value, std::to_string(id.value()));
    EXPECT_EQ(map.Find(id)->get(), value.get());
  });
  EXPECT_EQ(seen, model.size());
  map.EraseIf([](Ticket, const auto&) { return true; });
  EXPECT_TRUE(map.empty());
}

}  // namespace
}  // namespace landbridge
