// The JSON programs of pathwaysutils (ifrt-proxy.md 13), of which reshardRequest is served, and questions of the landbridge
// package, for which the protocol has no message: they are compiled when the answer
// is there, and their text is the answer. (The client waits for a compile without holding Python's lock.)
//
// Thread-safety: pure functions.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "base/ids.h"
#include "sharding/sharding.h"

namespace landbridge {

struct ReshardProgram {
  bool donate = false;
  std::vector<Sharding::Ptr> in, out;  // equally many, at least one
};

// {"landbridgeQuestion":{"memoryStats":{"device_id":3}}}: the answer is {"bytes_in_use":..., ...}, as it is when what the
// session sent before is done or under way.
struct MemoryQuestion {
  DeviceId device;
};
// {"landbridgeQuestion":{"hostCallsOver":{}}}: the answer, {}, comes when every launch sent before that calls its client has
// ended.
struct HostCallsOverQuestion {};
// {"landbridgeQuestion":{"serialize":{"fingerprint":"HEX"}}}: the answer is the program of the session that has this
// fingerprint, in the form in which clients keep it (compiler/client_program.h), as {"program":"BASE64"}.
struct SerializeQuestion {
  std::string fingerprint;  // bytes
};
using Question = std::variant<MemoryQuestion, HostCallsOverQuestion, SerializeQuestion>;

// landbridgeExecutable {"options":"BASE64","device_ids":[...]}, a line feed, and the bytes of such a program: they become an
// executable. `options` is a serialized xla.CompileOptionsProto, which may be left out; the program then goes to the devices
// where it was, or to `device_ids`.
struct ReturnedExecutable {
  std::optional<std::string> options;
  std::vector<DeviceId> devices;
  absl::Cord bytes;
};

// landbridgeProgram {"options":"BASE64"}, a line feed, and MLIR bytes: an XLA program like any other, in a newer version of
// StableHLO than the one in which the client's own message has it.
struct NewerProgram {
  std::string options;
  absl::Cord bytes;
};

// landbridgeShardings {"options":"BASE64"}, a line feed, and MLIR bytes: a question about an XLA program. The answer says how the
// values that it marks (hlo/inspected_shardings.h) are divided: {"shardings":[["name","OpSharding in BASE64"],...]}.
struct ShardingsQuestion {
  NewerProgram program;
};

// {"landbridgeWitness":{"devices":8}}: takes one array over so many devices, gives nothing and does nothing. A client does not
// know what it did to the array, and therefore asks whether it is deleted when it is to say so; of other arrays it says what
// itself has seen, which misses those that share their buffers with one that was deleted.
struct WitnessProgram {
  int devices = 1;
};

using PluginProgram =
    std::variant<ReshardProgram, Question, ReturnedExecutable, NewerProgram, ShardingsQuestion, WitnessProgram>;

// `data` is the serialized program. Anything else than a well-formed one of those is an error whose text contains
// "Bad PluginProgram": clients look for it. Bytes of programs are taken over from `data`, not copied: they may be many.
absl::StatusOr<PluginProgram> ParsePluginProgram(std::string data);

}  // namespace landbridge
