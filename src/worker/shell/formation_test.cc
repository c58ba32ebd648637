// The store of a formation, and who may ask it.
#include "worker/shell/formation_store.h"

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/shell/formation.h"
#include "worker/shell/shell_limits.h"

namespace landbridge {
namespace {

using ::testing::HasSubstr;

constexpr DurationNs kLong = 600 * kSecond;

struct Heard {
  std::optional<absl::StatusOr<std::string>> value;
  FormationStore::Answer Answer() {
    return [this](absl::StatusOr<std::string> got) {
      EXPECT_FALSE(value.has_value()) << "answered twice";
      value = std::move(got);
    };
  }
};

TEST(FormationStore, AKeyIsPutOnceAndGivenToAllWhoWait) {
  FormationStore store;
  Heard first, other;
  store.Wait("id", kLong, first.Answer());
  store.Wait("other", kLong, other.Answer());
  EXPECT_TRUE(absl::IsNotFound(store.TryGet("id").status()));
  std::thread puts([&] { EXPECT_TRUE(store.Put("id", std::string("\0v", 2)).ok()); });
  EXPECT_EQ(*store.Get("id", kLong), std::string("\0v", 2));
  puts.join();
  EXPECT_EQ(**first.value, std::string("\0v", 2));
  EXPECT_FALSE(other.value.has_value());
  EXPECT_TRUE(absl::IsAlreadyExists(store.Put("id", "again")));
  EXPECT_EQ(*store.TryGet("id"), std::string("\0v", 2));
}

TEST(FormationStore, WaitsAreBounded) {
  FormationStore store;
  Heard heard;
  store.Wait("never", 10, heard.Answer());
  store.Expire(9);
  EXPECT_FALSE(heard.value.has_value());
  store.Expire(10);
  EXPECT_TRUE(absl::IsDeadlineExceeded(heard.value->status()));
  EXPECT_THAT(heard.value->status().message(), HasSubstr("never"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(store.Get("never", 0).status()));
}

TEST(FormationStore, TheEndIsHeardByAll) {
  FormationStore store;
  ASSERT_TRUE(store.Put("k", "v").ok());
  Heard heard;
  store.Wait("never", kLong, heard.Answer());
  std::thread closes([&] { store.Close(absl::UnavailableError("over")); });
  EXPECT_EQ(store.Get("nor this", kLong).status().message(), "over");
  closes.join();
  EXPECT_EQ(heard.value->status().message(), "over");
  EXPECT_EQ(store.Put("k2", "v").message(), "over");
  EXPECT_EQ(store.TryGet("k").status().message(), "over") << "nothing is ever read of a formation that has ended";
}

TEST(FormationStore, SizesAndNumbersAreBounded) {
  FormationStore store;
  EXPECT_TRUE(absl::IsResourceExhausted(store.Put(std::string(limits::kFormationKeyBytesMax + 1, 'k'), "")));
  const std::string large(limits::kFormationValueBytesMax, 'v');
  EXPECT_TRUE(absl::IsResourceExhausted(store.Put("k", large + "v")));
  size_t puts = 0;
  while (store.Put(std::to_string(puts), large).ok()) ++puts;
  EXPECT_EQ(puts, limits::kFormationBytesMax / limits::kFormationValueBytesMax);
  while (store.Put(std::to_string(puts), "").ok()) ++puts;
  EXPECT_EQ(puts, limits::kFormationKeysMax);
  int refused = 0;
  for (size_t i = 0; i <= limits::kFormationWaitingMax; ++i) {
    store.Wait("never", kLong, [&](const absl::StatusOr<std::string>& value) {
      refused += absl::IsResourceExhausted(value.status()) ? 1 : 0;
    });
  }
  EXPECT_EQ(refused, 1);
  EXPECT_EQ(store.waiting(), limits::kFormationWaitingMax);
}

// What arrives at the first member's port.
class FormationTest : public ::testing::Test {
 protected:
  static std::vector<FormationMember> Members() {
    std::vector<FormationMember> members(2);
    members[0].set_incarnation(7);
    members[0].set_address("127.0.0.1:9");
    members[1].set_incarnation(8);
    return members;
  }
  static Formation FirstOf(const std::string& secret) { return Formation(Members(), Incarnation(7), secret); }

  absl::StatusOr<nlohmann::json> Ask(Formation& formation, nlohmann::json request) {
    std::optional<absl::StatusOr<nlohmann::json>> got;
    formation.OnRequest(
        request, 0, [&](absl::StatusOr<nlohmann::json> answer) { got = std::move(answer); },
        [](const std::function<void()>& task) { task(); });
    EXPECT_TRUE(got.has_value());
    return *got;
  }
};

TEST_F(FormationTest, OnlyItsMembersAreAnswered) {
  Formation formation = FirstOf("secret");
  EXPECT_EQ(formation.index(), 0);
  EXPECT_EQ(formation.epoch(), "7-8");
  ASSERT_TRUE(formation.Put("k", "v").ok());
  const std::string proof = formation.proof();
  EXPECT_NE(proof, FirstOf("another secret").proof());
  nlohmann::json request = {{"op", "try_get"}, {"epoch", "7-8"}, {"proof", proof}, {"key", "6b"}, {"value", ""}};
  EXPECT_EQ(*Ask(formation, request), "76");
  auto refusal = [&](const char* field, nlohmann::json value) {
    nlohmann::json changed = request;
    changed[field] = std::move(value);
    return Ask(formation, changed).status().code();
  };
  EXPECT_EQ(refusal("epoch", "7-9"), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(refusal("proof", "00"), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(refusal("proof", 5), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(refusal("key", "6"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal("key", "xx"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal("op", "delete"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refusal("key", "6c"), absl::StatusCode::kNotFound);
  formation.Close(absl::UnavailableError("over"));
  EXPECT_EQ(Ask(formation, request).status().message(), "over");
}

TEST_F(FormationTest, WhoAsksHearsOfItsEnd) {
  Formation other(Members(), Incarnation(8), "secret");
  EXPECT_EQ(other.index(), 1);
  EXPECT_TRUE(absl::IsResourceExhausted(other.Put("k", std::string(limits::kFormationAskedValueBytesMax + 1, 'v'))));
  std::thread closes([&] { other.Close(absl::UnavailableError("over")); });
  EXPECT_EQ(other.Get("k", 600 * kSecond).status().message(), "over") << "nobody is at the first member's address";
  closes.join();
}

}  // namespace
}  // namespace landbridge
