// A grant: the right of one proxy to one slice, ordered by (RM term, count).
//
// Thread-safety: plain values.
#pragma once

#include <cstdint>
#include <string>

#include "base/ids.h"
#include "proto/landbridge/cluster.pb.h"

namespace landbridge {

// The resource manager's number of a slice, dense from 0 (base/ids.h SliceId is a proxy's virtual slice).
LANDBRIDGE_DEFINE_ID(PhysicalSliceId, "ps", int32_t);
// A random number that a proxy chooses for one life; compared for equality only.
LANDBRIDGE_DEFINE_ID(ProxyLife, "p", uint64_t);

// A term is (generation, low bits of the RM's random life number): a term that an RM did not choose itself is
// recognised as another's even when the generations are equal.
constexpr int kTermLifeBits = 20;

// What orders grants of one slice. {0, 0} is below every grant.
struct GrantNumber {
  uint64_t term = 0;
  uint64_t count = 0;

  bool valid() const { return term != 0; }
  std::string ToString() const;  // "g2.17"
  friend constexpr auto operator<=>(const GrantNumber&, const GrantNumber&) = default;
};

struct Grant {
  PhysicalSliceId slice;
  GrantNumber number;
  std::string secret;  // only authenticates; never compared for order, never logged

  bool valid() const { return number.valid(); }
  std::string ToString() const;  // "ps3/g2.17"; without the secret
  // Same slice, number and secret; the secret in constant time.
  bool Matches(const Grant& other) const;
  // Same slice and number.
  bool SameNumber(const Grant& other) const { return slice == other.slice && number == other.number; }

  GrantProto ToProto() const;
  static Grant FromProto(const GrantProto& proto);
};

// A worker's life under one grant: what the holder's controller and all data planes know it by. A fenced life stays closed
// for ever, while the same process may serve the same holder again under a later grant. Nobody who lacks the grant's
// secret can name it.
Incarnation LifeUnder(const Grant& grant, Incarnation worker);

// Build version; processes of one cluster must agree.
const char* BuildVersion();

}  // namespace landbridge
