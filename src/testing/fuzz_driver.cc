// Drives a fuzzer without libFuzzer: the seeds, then every file named (or in a folder named), then mutations of both,
// the same in each run.
//   x_fuzz [--mutations=N] [--from=SEED] [file or folder...]
// The input that is being tried lies in $LANDBRIDGE_FUZZ_INPUT, if that is set, so that a crash leaves it behind.
#include <google/protobuf/stubs/logging.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "testing/fuzz.h"

namespace landbridge::fuzz {
namespace {

constexpr size_t kInputBytesMax = 1u << 16;

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void Try(const std::string& input) {
  static const char* keep = std::getenv("LANDBRIDGE_FUZZ_INPUT");
  if (keep != nullptr) std::ofstream(keep, std::ios::binary) << input;
  FuzzOne(input);
}

// One small change of the kinds that break parsers.
void Mutate(std::string& input, const std::vector<std::string>& all, std::mt19937_64& random) {
  auto below = [&](size_t n) { return static_cast<size_t>(random() % std::max<size_t>(n, 1)); };
  const size_t at = below(input.size() + 1);
  switch (below(8)) {
    case 0:
      if (at < input.size()) input[at] = static_cast<char>(random());
      return;
    case 1:
      if (at < input.size()) input[at] = static_cast<char>(input[at] ^ static_cast<char>(1 << below(8)));
      return;
    case 2: input.insert(at, 1 + below(8), static_cast<char>(random())); return;
    case 3: input.erase(at, 1 + below(8)); return;
    case 4: {  // extreme numbers
      static constexpr uint8_t kBytes[] = {0x00, 0x01, 0x7f, 0x80, 0xff};
      const uint8_t byte = kBytes[below(5)];
      for (size_t i = at; i < std::min(input.size(), at + 1 + below(9)); ++i) input[i] = static_cast<char>(byte);
      return;
    }
    case 5: input.resize(at); return;
    case 6: {  // a piece of itself once more
      const std::string piece = input.substr(at, below(64));
      input.insert(below(input.size() + 1), piece);
      return;
    }
    default: {  // a piece of another
      const std::string& other = all[below(all.size())];
      input.insert(at, other.substr(below(other.size() + 1), below(256)));
      return;
    }
  }
}

int Main(int argc, char** argv) {
  google::protobuf::SetLogHandler(nullptr);  // of what does not parse
  int64_t mutations = 2000, from = 1;
  std::vector<std::string> inputs = FuzzSeeds();
  const size_t seeds = inputs.size();
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    if (absl::ConsumePrefix(&arg, "--mutations=")) {
      if (!absl::SimpleAtoi(arg, &mutations)) return 2;
    } else if (absl::ConsumePrefix(&arg, "--from=")) {
      if (!absl::SimpleAtoi(arg, &from)) return 2;
    } else if (std::filesystem::is_directory(argv[i])) {
      std::vector<std::filesystem::path> files;
      for (const auto& entry : std::filesystem::directory_iterator(argv[i])) files.push_back(entry.path());
      std::sort(files.begin(), files.end());
      for (const auto& file : files) inputs.push_back(ReadFile(file));
    } else if (std::filesystem::exists(argv[i])) {
      inputs.push_back(ReadFile(argv[i]));
    } else if (absl::StartsWith(arg, "--")) {
      std::fprintf(stderr, "usage: %s [--mutations=N] [--from=SEED] [file or folder...]\n", argv[0]);
      return 2;
    }  // a folder that is not there: no input has been kept yet
  }
  if (inputs.empty()) inputs.emplace_back();
  Try("");
  for (const std::string& input : inputs) Try(input);
  for (int64_t n = 0; n < mutations; ++n) {
    std::mt19937_64 random(static_cast<uint64_t>(from + n));
    std::string input = inputs[random() % inputs.size()];
    for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) Mutate(input, inputs, random);
    if (input.size() > kInputBytesMax) input.resize(kInputBytesMax);
    Try(input);
  }
  std::printf("%zu seeds, %zu kept inputs, %lld mutations\n", seeds, inputs.size() - seeds,
              static_cast<long long>(mutations));
  return 0;
}

}  // namespace
}  // namespace landbridge::fuzz

int main(int argc, char** argv) { return landbridge::fuzz::Main(argc, argv); }
