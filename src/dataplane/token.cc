#include "base/hmac.h"
#include "dataplane/data_plane.h"
#include "dataplane/integers.h"

namespace landbridge::dataplane {

Token TokenFromSecret(absl::string_view cluster_secret) {
  if (cluster_secret.empty()) return {};
  const std::string bytes = HmacSha256(cluster_secret, "landbridge data plane token");
  const std::byte* at = reinterpret_cast<const std::byte*>(bytes.data());
  Token token;
  token.high = GetInteger(at, 8);
  token.low = GetInteger(at, 8);
  return token;
}

}  // namespace landbridge::dataplane
