#include <string>

#include "absl/strings/escaping.h"
#include "base/crc32c.h"
#include "base/hmac.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

TEST(Crc32c, KnownValues) {  // RFC 3720, appendix B.4
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(""), 0u);
}

TEST(Crc32c, Continues) {
  const std::string text = "a frame of some length, cut anywhere";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(Crc32c(text.substr(cut), Crc32c(text.substr(0, cut))), Crc32c(text));
  }
}

TEST(Hmac, KnownValues) {  // RFC 4231, cases 2 and 6
  EXPECT_EQ(absl::BytesToHexString(HmacSha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(absl::BytesToHexString(
                HmacSha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(EqualConstantTime, Compares) {
  EXPECT_TRUE(EqualConstantTime("", ""));
  EXPECT_TRUE(EqualConstantTime("secret", "secret"));
  EXPECT_FALSE(EqualConstantTime("secret", "secreT"));
  EXPECT_FALSE(EqualConstantTime("secret", "secret2"));
}

}  // namespace
}  // namespace landbridge
