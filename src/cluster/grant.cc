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

bool Grant::Matches(const Grant& other) const { return SameNumber(other) && EqualConstantTime(secret, other.secret); }

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

Incarnation LifeUnder(const Grant& grant, Incarnation worker) {
  const std::string bytes = HmacSha256(grant.secret, absl::StrCat("life ", worker.value(), " ", grant.slice.value(),
                                                                  " ", grant.number.term, " ", grant.number.count));
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(value); ++i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return Incarnation(value != 0 ? value : 1);  // 0 means "none"
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
