#include "frontdoor/ifrt_proxy/version.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace landbridge {

absl::StatusOr<xla::ifrt::proxy::IfrtProxyVersion> NegotiateVersion(
    const xla::ifrt::proxy::GrpcGetVersionRequest& request) {
  const auto& low = request.min_version();
  const auto& high = request.max_version();
  const int protocol = std::min(kProtocolVersionMax, high.protocol_version());
  const int serdes = std::min(kSerdesVersionMax, high.ifrt_serdes_version_number());
  if (protocol < std::max(kProtocolVersionMin, low.protocol_version()) ||
      serdes < std::max(kSerdesVersionMin, low.ifrt_serdes_version_number())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Client and landbridge server share no version of the IFRT proxy protocol. The client speaks protocol ",
        low.protocol_version(), " to ", high.protocol_version(), " and serialization ",
        low.ifrt_serdes_version_number(), " to ", high.ifrt_serdes_version_number(), "; this server speaks protocol ",
        kProtocolVersionMin, " to ", kProtocolVersionMax, " and serialization ", kSerdesVersionMin, " to ",
        kSerdesVersionMax, ". Use a jaxlib that fits."));
  }
  xla::ifrt::proxy::IfrtProxyVersion version;
  version.set_protocol_version(protocol);
  version.set_ifrt_serdes_version_number(serdes);
  return version;
}

absl::Status CheckVersion(const xla::ifrt::proxy::IfrtProxyVersion& version) {
  if (version.protocol_version() < kProtocolVersionMin || version.protocol_version() > kProtocolVersionMax ||
      version.ifrt_serdes_version_number() < kSerdesVersionMin ||
      version.ifrt_serdes_version_number() > kSerdesVersionMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("A session of protocol ", version.protocol_version(), " and serialization ",
                     version.ifrt_serdes_version_number(), "; this server speaks protocol ", kProtocolVersionMin,
                     " to ", kProtocolVersionMax, " and serialization ", kSerdesVersionMin, " to ", kSerdesVersionMax));
  }
  return absl::OkStatus();
}

}  // namespace landbridge
