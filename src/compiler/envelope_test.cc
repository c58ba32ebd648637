#include "compiler/envelope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace landbridge {
namespace {

using testing::HasSubstr;

HostIdentity Identity() {
  HostIdentity identity;
  identity.plugin_sha256 = std::string(64, 'a');
  identity.platform = "cpu";
  identity.cpu_model = "Some CPU";
  identity.cpu_features = "avx avx2 sse4_2";
  return identity;
}

std::string Sealed() {
  ExecutableBody body;
  body.set_serialized("native code");
  body.mutable_info()->set_name("jit_f");
  return SealEnvelope(body, Identity());
}

std::string Refusal(absl::string_view bytes, const HostIdentity& identity) {
  auto body = OpenEnvelope(bytes, identity);
  EXPECT_EQ(body.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(body.status().message());
}

TEST(Envelope, RoundTrip) {
  auto body = OpenEnvelope(Sealed(), Identity());
  ASSERT_TRUE(body.ok()) << body.status();
  EXPECT_EQ(body->serialized(), "native code");
  EXPECT_EQ(body->info().name(), "jit_f");
  EXPECT_EQ(body->plugin_sha256(), std::string(64, 'a'));
}

TEST(Envelope, EveryFlippedBitIsRefused) {
  const std::string sealed = Sealed();
  for (size_t i = 0; i < sealed.size() * 8; ++i) {
    std::string bad = sealed;
    bad[i / 8] = static_cast<char>(bad[i / 8] ^ (1 << (i % 8)));
    auto body = OpenEnvelope(bad, Identity());
    if (body.ok()) {
      // Only bits that carry nothing: the content is unchanged.
      EXPECT_EQ(body->serialized(), "native code") << "bit " << i;
      EXPECT_EQ(body->info().name(), "jit_f") << "bit " << i;
    }
  }
  std::string bad = sealed;
  bad[bad.find("native")] = 'N';
  EXPECT_THAT(Refusal(bad, Identity()), HasSubstr("corrupt"));
}

TEST(Envelope, EveryTruncationIsRefused) {
  const std::string sealed = Sealed();
  for (size_t size = 0; size < sealed.size(); ++size) {
    EXPECT_FALSE(OpenEnvelope(sealed.substr(0, size), Identity()).ok()) << size;
  }
  EXPECT_THAT(Refusal(sealed.substr(0, sealed.size() - 1), Identity()), HasSubstr("truncated"));
  EXPECT_THAT(Refusal("", Identity()), HasSubstr("no envelope"));
}

TEST(Envelope, ForeignOnesAreRefusedByName) {
  HostIdentity other = Identity();
  other.plugin_sha256 = std::string(64, 'b');
  EXPECT_THAT(Refusal(Sealed(), other), HasSubstr("another build of the plugin (aaaaaaaaaaaa..."));
  other = Identity();
  other.platform = "cuda";
  EXPECT_THAT(Refusal(Sealed(), other), HasSubstr("platform 'cpu'"));
  other = Identity();
  other.cpu_features = "avx sse4_2 extra";
  EXPECT_THAT(Refusal(Sealed(), other), HasSubstr("lacks: avx2"));
  other.cpu_features = "avx avx2 sse4_2 avx512f";
  EXPECT_TRUE(OpenEnvelope(Sealed(), other).ok());  // more than needed is fine

  ExecutableEnvelope envelope;
  ASSERT_TRUE(envelope.ParseFromString(Sealed()));
  envelope.set_format_version(kEnvelopeFormatVersion + 1);
  EXPECT_THAT(Refusal(envelope.SerializeAsString(), Identity()),
              HasSubstr(absl::StrCat("format ", kEnvelopeFormatVersion + 1)));
  EXPECT_THAT(Refusal(SealEnvelope(ExecutableBody(), Identity()), Identity()), HasSubstr("no code"));
}

TEST(Envelope, CurrentHost) {
  HostIdentity cpu = HostIdentity::Current("abc", "cpu");
  EXPECT_FALSE(cpu.cpu_features.empty());
  EXPECT_THAT(cpu.cpu_features, testing::Not(HasSubstr("hypervisor")));
  EXPECT_TRUE(HostIdentity::Current("abc", "cuda").cpu_features.empty());
}

}  // namespace
}  // namespace landbridge
