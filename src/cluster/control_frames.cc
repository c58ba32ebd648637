#include "cluster/control_frames.h"

namespace landbridge {
namespace {

void AppendVarint(uint64_t value, std::string* out) {
  while (value >= 0x80) {
    out->push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out->push_back(static_cast<char>(value));
}

void AppendFixed64(int field, uint64_t value, std::string* out) {
  if (value == 0) return;
  AppendVarint(static_cast<uint64_t>(field) << 3 | 1, out);
  for (int i = 0; i < 8; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

void AppendBytes(int field, absl::string_view bytes, std::string* out) {
  AppendVarint(static_cast<uint64_t>(field) << 3 | 2, out);
  AppendVarint(bytes.size(), out);
  out->append(bytes.data(), bytes.size());
}

const std::string& Bytes(const std::string& message) { return message; }
const std::string& Bytes(const std::string* message) { return *message; }

template <typename Messages>
std::string Join(uint64_t first_seq, uint64_t ack, int field, const Messages& messages, absl::string_view heartbeat) {
  size_t bytes = 32 + heartbeat.size();
  for (const auto& message : messages) bytes += Bytes(message).size() + 8;
  std::string out;
  out.reserve(bytes);
  if (!messages.empty()) AppendFixed64(1, first_seq, &out);
  AppendFixed64(2, ack, &out);
  for (const auto& message : messages) AppendBytes(field, Bytes(message), &out);
  if (!heartbeat.empty()) AppendBytes(5, heartbeat, &out);
  return out;
}

}  // namespace

std::string JoinControlFrame(uint64_t first_seq, uint64_t ack, int field, const std::vector<std::string>& messages,
                             absl::string_view heartbeat) {
  return Join(first_seq, ack, field, messages, heartbeat);
}

std::string JoinControlFrame(uint64_t first_seq, uint64_t ack, int field,
                             const std::vector<const std::string*>& messages) {
  return Join(first_seq, ack, field, messages, "");
}

}  // namespace landbridge
