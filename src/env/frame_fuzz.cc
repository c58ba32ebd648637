// Frames cut anywhere: however the bytes arrive, the same frames come out, or the same error.
#include "base/log.h"
#include "env/frame.h"
#include "testing/fuzz.h"

namespace landbridge::fuzz {
namespace {

constexpr uint32_t kBytesMax = 4096;

struct Parsed {
  std::vector<std::pair<uint32_t, std::string>> frames;
  absl::Status status;
};

Parsed Parse(absl::string_view bytes, Choices* cuts) {
  FrameParser parser(kBytesMax);
  Parsed parsed;
  while (!bytes.empty() && parsed.status.ok()) {
    const size_t size = cuts == nullptr ? bytes.size() : std::min<size_t>(bytes.size(), 1 + cuts->Byte());
    parsed.status = parser.Feed(bytes.substr(0, size), [&](uint32_t type, absl::string_view payload) {
      parsed.frames.emplace_back(type, std::string(payload));
      return true;
    });
    bytes.remove_prefix(size);
    LB_CHECK(parser.held_bytes() <= kBytesMax + kFrameHeaderBytes + 256);
  }
  return parsed;
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  const std::string frames = EncodeFrame(1, "hello") + EncodeFrame(22, "") + EncodeFrame(7, std::string(300, 'x'));
  std::string bad = EncodeFrame(3, "damaged");
  bad.back() = '!';
  return {WithLength("\x01\x02\x03\x40") + frames, WithLength("") + EncodeFrame(0xffffffff, "a"),
          WithLength("\x10") + bad};
}

void FuzzOne(absl::string_view input) {
  Choices choices(input);
  Choices cuts(choices.Text());
  const absl::string_view bytes = choices.Rest();
  const Parsed whole = Parse(bytes, nullptr);
  const Parsed pieces = Parse(bytes, &cuts);
  LB_CHECK(whole.frames == pieces.frames);
  LB_CHECK(whole.status == pieces.status);
}

}  // namespace landbridge::fuzz
