// Under libFuzzer: `x_fuzz -write_seeds=FOLDER` writes the seeds there, as files; everything else is libFuzzer's.
#include <google/protobuf/stubs/logging.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "testing/fuzz.h"

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  google::protobuf::SetLogHandler(nullptr);  // of what does not parse
  constexpr absl::string_view kWriteSeeds = "-write_seeds=";
  for (int i = 1; i < *argc; ++i) {
    const absl::string_view arg = (*argv)[i];
    if (arg.substr(0, kWriteSeeds.size()) != kWriteSeeds) continue;
    int number = 0;
    for (const std::string& seed : landbridge::fuzz::FuzzSeeds()) {
      std::ofstream file(absl::StrCat(arg.substr(kWriteSeeds.size()), "/seed", ++number), std::ios::binary);
      file << seed;
      if (!file.flush()) {
        std::fprintf(stderr, "cannot write a seed to %s\n", (*argv)[i]);
        std::exit(1);
      }
    }
    std::exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  landbridge::fuzz::FuzzOne(absl::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
