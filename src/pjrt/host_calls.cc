#include "pjrt/host_calls.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/log.h"
#include "base/status.h"
#include "pjrt/client.h"
#include "pjrt/plugin.h"

namespace landbridge::pjrt {
namespace {

struct HostCallDirectory {
  absl::Mutex mutex;
  absl::flat_hash_map<int64_t, std::shared_ptr<const HostCallRegistration::Sink>> sinks ABSL_GUARDED_BY(mutex);
};

// Never destroyed: the plugin's threads may call until the process ends.
HostCallDirectory& HostCallLaunches() {
  static HostCallDirectory* const directory = new HostCallDirectory();
  return *directory;
}

// Reads the frame into `call` and finds who serves its launch.
absl::StatusOr<std::shared_ptr<const HostCallRegistration::Sink>> ReadHostCall(FfiCall& frame, bool by_parts,
                                                                               HostCall& call) {
  LB_ASSIGN_OR_RETURN(const int64_t run_id, frame.RunId());
  LB_ASSIGN_OR_RETURN(call.device, frame.DeviceOrdinal());
  LB_ASSIGN_OR_RETURN(const int64_t function, frame.IntAttribute(kHostCallFunctionAttribute));
  call.function = static_cast<uint64_t>(function);
  for (int64_t i = 0; i < frame.num_operands(); ++i) {
    LB_ASSIGN_OR_RETURN(const FfiBuffer buffer, frame.Operand(i));
    call.operands.emplace_back(static_cast<const std::byte*>(buffer.data), static_cast<size_t>(buffer.bytes));
    if (by_parts) call.dims.insert(call.dims.end(), buffer.dims.begin(), buffer.dims.end());
  }
  if (by_parts)
    call.operands.insert(
        call.operands.begin(),
        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(call.dims.data()), call.dims.size() * sizeof(int64_t)));
  for (int64_t i = 0; i < frame.num_results(); ++i) {
    LB_ASSIGN_OR_RETURN(const FfiBuffer buffer, frame.Result(i));
    call.results.emplace_back(static_cast<std::byte*>(buffer.data), static_cast<size_t>(buffer.bytes));
  }
  HostCallDirectory& directory = HostCallLaunches();
  absl::MutexLock lock(&directory.mutex);
  auto found = directory.sinks.find(run_id);
  if (found == directory.sinks.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("launch ", run_id, " has no client whose functions it could call"));
  }
  return found->second;
}

template <bool kByParts>
XLA_FFI_Error* HandleHostCall(XLA_FFI_CallFrame* raw) {
  if (FfiCall::AnswerMetadata(raw)) return nullptr;
  FfiCall frame(raw);
  HostCall call;
  absl::StatusOr<std::shared_ptr<const HostCallRegistration::Sink>> sink = ReadHostCall(frame, kByParts, call);
  if (!sink.ok()) return frame.Fail(sink.status());
  absl::StatusOr<FfiCompletion> completion = frame.Defer();
  if (!completion.ok()) return frame.Fail(completion.status());
  call.completion = *std::move(completion);
  (**sink)(std::move(call));
  return nullptr;
}

template <typename Spans>
int64_t BytesOf(const Spans& spans) {
  return std::accumulate(spans.begin(), spans.end(), int64_t{0},
                         [](int64_t sum, const auto& span) { return sum + static_cast<int64_t>(span.size()); });
}

}  // namespace

int64_t HostCall::operand_bytes() const { return BytesOf(operands); }
int64_t HostCall::result_bytes() const { return BytesOf(results); }

absl::Status RegisterHostCalls(Plugin& plugin) {
  for (const char* target : kHostCallTargets) {
    const bool by_parts = absl::string_view(target) == kPartitionedHostCallTarget;
    auto* handler = by_parts ? &HandleHostCall<true> : &HandleHostCall<false>;
    LB_RETURN_IF_ERROR(plugin.RegisterFfiHandler(target, reinterpret_cast<void*>(handler)));
  }
  return absl::OkStatus();
}

bool IsHostCall(absl::string_view target) {
  return std::find(std::begin(kHostCallTargets), std::end(kHostCallTargets), target) != std::end(kHostCallTargets);
}

absl::Status RegisterAndCheckHostCalls(Client& client) {
  LB_RETURN_IF_ERROR(RegisterHostCalls(client.plugin()));
  for (const char* target : kHostCallTargets) LB_RETURN_IF_ERROR(client.CheckCustomCall(target));
  return absl::OkStatus();
}

HostCallRegistration::HostCallRegistration(int64_t run_id, Sink sink) : run_id_(run_id) {
  HostCallDirectory& directory = HostCallLaunches();
  absl::MutexLock lock(&directory.mutex);
  LB_CHECK(directory.sinks.try_emplace(run_id, std::make_shared<const Sink>(std::move(sink))).second);
}

HostCallRegistration::HostCallRegistration(HostCallRegistration&& other) noexcept
    : run_id_(std::exchange(other.run_id_, 0)) {}

HostCallRegistration& HostCallRegistration::operator=(HostCallRegistration&& other) noexcept {
  std::swap(run_id_, other.run_id_);
  return *this;
}

HostCallRegistration::~HostCallRegistration() {
  if (run_id_ == 0) return;
  HostCallDirectory& directory = HostCallLaunches();
  absl::MutexLock lock(&directory.mutex);
  directory.sinks.erase(run_id_);
}

}  // namespace landbridge::pjrt
