#include "base/hmac.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/log.h"

namespace landbridge {

std::string HmacSha256(absl::string_view key, absl::string_view data) {
  std::string result(32, '\0');
  unsigned int size = 0;
  LB_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                reinterpret_cast<const unsigned char*>(data.data()), data.size(),
                reinterpret_cast<unsigned char*>(result.data()), &size) != nullptr &&
           size == result.size());
  return result;
}

bool EqualConstantTime(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace landbridge
