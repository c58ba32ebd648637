#include "compiler/cache_entry.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/sha256.h"
#include "compiler/options.h"

namespace landbridge {
namespace {

constexpr uint64_t kEntryMagic = 0x3143'4843'4443'424c;  // "LBCDCHC1"

absl::Status RefuseEntry(absl::string_view why) { return absl::InvalidArgumentError(why); }

}  // namespace

std::string Difference(const CompileKey& have, const CompileKey& want) {
  if (have.plugin_sha256() != want.plugin_sha256()) return "another build of the plugin";
  if (have.compiler_sha256() != want.compiler_sha256()) return "another build of landbridge-compiler";
  if (have.cpu_model() != want.cpu_model() || have.cpu_features() != want.cpu_features()) {
    return absl::StrCat("another CPU ('", have.cpu_model(), "')");
  }
  if (have.xla_flags() != want.xla_flags()) return "other XLA_FLAGS";
  if (have.program_sha256() != want.program_sha256()) return "another program";
  if (SerializeDeterministic(have) != SerializeDeterministic(want)) return "other compile options";
  return "";
}

std::string HashOf(const CompileKey& key) { return Sha256Raw(SerializeDeterministic(key)); }

std::string SealCacheEntry(const CompileKey& key, const CompiledProgram& program) {
  CacheEntryBody body;
  *body.mutable_key() = key;
  *body.mutable_info() = program.info;
  body.set_envelope(program.envelope);
  CacheEntry entry;
  entry.set_magic(kEntryMagic);
  entry.set_format_version(kCacheEntryFormatVersion);
  entry.set_body(body.SerializeAsString());
  body.Clear();
  entry.set_body_sha256(Sha256Raw(entry.body()));
  return entry.SerializeAsString();
}

absl::StatusOr<std::shared_ptr<const CompiledProgram>> OpenCacheEntry(absl::string_view bytes, const CompileKey& key) {
  CacheEntry entry;
  if (!entry.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return RefuseEntry(absl::StrCat("its ", bytes.size(), " bytes are truncated or no compiled program"));
  }
  if (entry.magic() != kEntryMagic) return RefuseEntry("it is no compiled program of Landbridge's");
  if (entry.format_version() != kCacheEntryFormatVersion) {
    return RefuseEntry(
        absl::StrCat("it has format ", entry.format_version(), ", this build reads ", kCacheEntryFormatVersion));
  }
  if (Sha256Raw(entry.body()) != entry.body_sha256()) {
    return RefuseEntry("its checksum does not match: the bytes are corrupt");
  }
  CacheEntryBody body;
  if (!body.ParseFromString(entry.body())) return RefuseEntry("its content does not parse");
  entry.Clear();
  if (const std::string difference = Difference(body.key(), key); !difference.empty()) {
    return RefuseEntry(absl::StrCat("it belongs to ", difference));
  }
  if (body.envelope().empty()) return RefuseEntry("it holds no code");
  auto program = std::make_shared<CompiledProgram>();
  program->info = std::move(*body.mutable_info());
  program->envelope = std::move(*body.mutable_envelope());
  program->envelope_sha256 = Sha256Raw(program->envelope);
  return std::shared_ptr<const CompiledProgram>(std::move(program));
}

}  // namespace landbridge
