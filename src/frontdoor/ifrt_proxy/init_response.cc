#include "frontdoor/ifrt_proxy/init_response.h"

#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "frontdoor/ifrt_proxy/wire.h"

namespace landbridge {
namespace {

// "cpu" -> "CpuDevice", as XLA names its own.
std::string ClassName(absl::string_view platform) {
  std::string name(platform);
  if (!name.empty()) name[0] = absl::ascii_toupper(static_cast<unsigned char>(name[0]));
  return name + "Device";
}

uint64_t PlatformId(absl::string_view name) {  // any stable number will do
  uint64_t hash = 0xcbf29ce484222325ull;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

}  // namespace

xla::ifrt::proxy::InitResponse MakeInitResponse(const DeviceCatalog& catalog, uint64_t session_wire_id,
                                                bool serializes) {
  xla::ifrt::proxy::InitResponse response;
  response.set_session_id(session_wire_id);
  response.set_platform_name(catalog.platform_name);
  response.set_platform_version(catalog.platform_version.empty() ? "landbridge" : catalog.platform_version);
  response.set_platform_id(PlatformId(catalog.platform_name));
  response.set_process_index(0);
  response.set_runtime_type("landbridge");  // shown as proxy/landbridge

  auto* client = response.mutable_client_attributes();
  client->set_version_number(0);
  wire::SetAttribute(client, "supports_executable_serialization", serializes);
  wire::SetAttribute(client, "serialize_with_sdy", true);
  wire::SetAttribute(client, "stablehlo_current_version", absl::MakeConstSpan(catalog.stablehlo_version));
  if (catalog.pjrt_api_minor != 0 || catalog.pjrt_api_major != 0) {
    wire::SetAttribute(client, "pjrt_c_api_major_version", static_cast<int64_t>(catalog.pjrt_api_major));
    wire::SetAttribute(client, "pjrt_c_api_minor_version", static_cast<int64_t>(catalog.pjrt_api_minor));
  }

  int32_t next_memory = 0;
  for (const CatalogDevice& device : catalog.devices) {
    const int32_t id = device.id.value();
    std::vector<int64_t> coords = device.coords;
    if (coords.empty()) coords = {device.local_ordinal, 0, 0, 0};
    auto* out = response.add_all_devices();
    out->set_id(id);
    out->set_local_hardware_id(device.local_ordinal);
    out->set_local_device_id(id);
    out->set_device_kind(device.device_kind);
    out->set_platform_name(catalog.platform_name);
    out->set_debug_string(absl::StrCat(catalog.platform_name, ":", id));
    // Other projects read vtask=, slice= and coords=[ out of this text.
    out->set_to_string(absl::StrCat(ClassName(catalog.platform_name), "(id=", id, ", process_index=0, coords=[",
                                    absl::StrJoin(coords, ","), "], core_on_chip=", device.core_on_chip,
                                    ", vtask=", device.worker_index, ", slice=", device.slice_index, ")"));
    auto* attributes = out->mutable_attributes();
    attributes->set_version_number(0);
    wire::SetAttribute(attributes, "slice_index", static_cast<int64_t>(device.slice_index));
    wire::SetAttribute(attributes, "task_id", static_cast<int64_t>(device.worker_index));
    wire::SetAttribute(attributes, "virtual_task_index", static_cast<int64_t>(device.worker_index));
    wire::SetAttribute(attributes, "colocation_id", static_cast<int64_t>(id));
    wire::SetAttribute(attributes, "coords", absl::MakeConstSpan(coords));
    wire::SetAttribute(attributes, "core_on_chip", static_cast<int64_t>(device.core_on_chip));
    response.add_addressable_device_ids(id);
    response.add_primary_device_ids(id);
    std::vector<MemoryKind> memories = device.memories;
    if (memories.empty()) memories.push_back(MemoryKind::kDevice);
    for (size_t i = 0; i < memories.size(); ++i) {
      auto* memory = response.add_memories();
      const std::string kind(MemoryKindName(memories[i]));
      memory->set_id(next_memory);
      memory->set_memory_space_kind(kind);
      memory->set_kind_id(static_cast<int32_t>(memories[i]));
      memory->add_device_ids(id);
      memory->set_debug_string(absl::StrCat(kind, " of ", catalog.platform_name, ":", id));
      memory->set_to_string(absl::StrCat("Memory(kind=", kind, ", device=", id, ")"));
      out->add_memory_ids(next_memory);
      if (i == 0) out->set_default_memory_id(next_memory);
      ++next_memory;
    }
  }
  return response;
}

}  // namespace landbridge
