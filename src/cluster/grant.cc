#include "cluster/grant.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "base/hmac.h"

#ifndef LANDBRIDGE_VERSION
#error "the build defines LANDBRIDGE_VERSION"
#endif

namespace landbridge {

std::string GrantNumber::ToString() const {
  // The low bits of a term only tell two resource managers of the same generation apart.
  return absl::StrCat("g", term >> kTermLifeBits, ".", count);
}

std::string Grant::ToString() const { return absl::StrCat(slice.ToString(), "/", number.ToString()); }

bool Grant::Matches(const Grant& other) const {
  return SameNumber(other) && EqualConstantTime(secret, other.secret);
}

GrantProto Grant::ToProto() const {
  GrantProto proto;
  proto.set_slice(slice.value());
  proto.set_term(number.term);
  proto.set_count(number.count);
  proto.set_secret(secret);
  return proto;
}

Grant Grant::FromProto(const GrantProto& proto) {
  return Grant{PhysicalSliceId(proto.slice()), {proto.term(), proto.count()}, proto.secret()};
}

const char* BuildVersion() {
  // The variable is for tests of mixed versions.
  static const char* version = [] {
    const char* other = std::getenv("LANDBRIDGE_VERSION_FOR_TESTS");
    return other != nullptr ? other : LANDBRIDGE_VERSION;
  }();
  return version;
}

}  // namespace landbridge
