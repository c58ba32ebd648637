#include "base/sha256.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace landbridge {
namespace {

constexpr size_t kDigestBytes = 32;

std::string ToHex(absl::string_view raw) { return absl::BytesToHexString(raw); }

}  // namespace

std::string Sha256Raw(absl::string_view bytes) {
  std::string digest(kDigestBytes, '\0');
  unsigned size = 0;
  EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()), &size, EVP_sha256(), nullptr);
  return digest;
}

std::string Sha256Hex(absl::string_view bytes) { return ToHex(Sha256Raw(bytes)); }

absl::StatusOr<std::string> Sha256FileHex(const std::string& path) {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return absl::FailedPreconditionError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  }
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr);
  std::vector<unsigned char> chunk(1u << 20);
  for (;;) {
    ssize_t n = ::read(fd, chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      int error = errno;
      ::close(fd);
      return absl::FailedPreconditionError(absl::StrCat("cannot read ", path, ": ", std::strerror(error)));
    }
    if (n == 0) break;
    EVP_DigestUpdate(context.get(), chunk.data(), static_cast<size_t>(n));
  }
  ::close(fd);
  std::string digest(kDigestBytes, '\0');
  unsigned size = 0;
  EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(digest.data()), &size);
  return ToHex(digest);
}

}  // namespace landbridge
