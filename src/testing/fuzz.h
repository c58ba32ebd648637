// For fuzzers (x_fuzz.cc): each defines FuzzSeeds and FuzzOne. In PRESET=asan libFuzzer drives them (tools/fuzz.sh); in
// every other build fuzz_driver.cc does, with the seeds, the kept inputs of tests/fuzz/NAME and a few thousand
// mutations that are the same each time, so that ctest runs them.
//
// Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace landbridge::fuzz {

// Inputs of the real kind, made by the code under test: what mutation starts from.
std::vector<std::string> FuzzSeeds();

// One input. Whatever the bytes are, it must return; LB_CHECK what must hold then.
void FuzzOne(absl::string_view input);

// Takes an input apart, for fuzzers of more than bytes: choices come from its front, zero when it has run out.
class Choices {
 public:
  explicit Choices(absl::string_view input) : input_(input) {}

  bool empty() const { return input_.empty(); }
  uint8_t Byte() {
    if (input_.empty()) return 0;
    const auto byte = static_cast<uint8_t>(input_.front());
    input_.remove_prefix(1);
    return byte;
  }
  bool Flag() { return (Byte() & 1) != 0; }
  // 0 .. n-1, of one byte: n at most 256.
  uint64_t Below(uint64_t n) { return Byte() % n; }
  uint64_t U64() {
    uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | Byte();
    return value;
  }
  // Small ones that meet each other mostly, now and then anything.
  uint64_t Id() {
    const uint8_t byte = Byte();
    return byte < 0xf0 ? byte % 12 : U64();
  }
  int64_t Size() {
    const uint8_t byte = Byte();
    return byte < 0xe0 ? byte % 9 : static_cast<int64_t>(U64());
  }
  // A string with its length in front: at most 65,535 bytes.
  absl::string_view Text() {
    const size_t low = Byte();
    return Take(low | static_cast<size_t>(Byte()) << 8);
  }
  absl::string_view Rest() { return Take(input_.size()); }

 private:
  absl::string_view Take(size_t size) {
    const absl::string_view text = input_.substr(0, size);
    input_.remove_prefix(text.size());
    return text;
  }
  absl::string_view input_;
};

// The form that Choices::Text reads, for seeds.
inline std::string WithLength(absl::string_view text) {
  std::string out;
  out.push_back(static_cast<char>(text.size() & 0xff));
  out.push_back(static_cast<char>(text.size() >> 8 & 0xff));
  out.append(text.data(), text.size());
  return out;
}

}  // namespace landbridge::fuzz
