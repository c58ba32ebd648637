#include "collectives/collective_handler.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/log.h"
#include "base/status.h"
#include "hlo/rewrite_collectives.h"
#include "pjrt/client.h"
#include "pjrt/ffi_handler.h"
#include "pjrt/plugin.h"

namespace landbridge {
namespace {

struct Launch {
  std::shared_ptr<const CollectiveProgram> program;
  std::shared_ptr<CollectiveRun> run;
  absl::flat_hash_map<int32_t, int32_t> device_of_ordinal;
};

struct Directory {
  absl::Mutex mutex;
  absl::flat_hash_map<int64_t, std::shared_ptr<const Launch>> launches ABSL_GUARDED_BY(mutex);
};

// Never destroyed: the plugin's threads may call until the process ends.
Directory& TheDirectory() {
  static Directory* const directory = new Directory();
  return *directory;
}

std::shared_ptr<const Launch> FindLaunch(int64_t run_id) {
  Directory& directory = TheDirectory();
  absl::MutexLock lock(&directory.mutex);
  auto found = directory.launches.find(run_id);
  return found == directory.launches.end() ? nullptr : found->second;
}

absl::Status CheckBuffer(const pjrt::FfiBuffer& buffer, const CollectiveTensor& wanted, const CollectiveStep& step) {
  if (buffer.bytes == wanted.bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(step.name, " was called with ", buffer.bytes, " bytes where its program has ", wanted.bytes));
}

// Reads the frame into `call` and finds the launch.
absl::StatusOr<std::shared_ptr<const Launch>> Read(const pjrt::FfiCall& frame, CollectiveCall& call) {
  LB_ASSIGN_OR_RETURN(const int64_t run_id, frame.RunId());
  LB_ASSIGN_OR_RETURN(const int32_t ordinal, frame.DeviceOrdinal());
  LB_ASSIGN_OR_RETURN(const int64_t op, frame.IntAttribute(hlo::kCollectiveOpAttribute));
  std::shared_ptr<const Launch> launch = FindLaunch(run_id);
  if (launch == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("launch ", run_id, " has no collectives over workers here"));
  }
  auto device = launch->device_of_ordinal.find(ordinal);
  const auto& steps = launch->program->steps();
  if (device == launch->device_of_ordinal.end() || op < 0 || op >= static_cast<int64_t>(steps.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("launch ", run_id, " has no collective ", op, " for device ", ordinal, " of this worker"));
  }
  call.device = device->second;
  call.op = static_cast<int32_t>(op);
  const CollectiveStep& step = steps[static_cast<size_t>(op)];
  if (frame.num_operands() != static_cast<int64_t>(step.operands.size()) ||
      frame.num_results() != static_cast<int64_t>(step.results.size())) {
    return absl::InvalidArgumentError(absl::StrCat(step.name, " was called with other operands than its program has"));
  }
  for (size_t i = 0; i < step.operands.size(); ++i) {
    LB_ASSIGN_OR_RETURN(const pjrt::FfiBuffer buffer, frame.Operand(static_cast<int64_t>(i)));
    LB_RETURN_IF_ERROR(CheckBuffer(buffer, step.operands[i], step));
    call.operands.push_back(static_cast<const std::byte*>(buffer.data));
  }
  for (size_t i = 0; i < step.results.size(); ++i) {
    LB_ASSIGN_OR_RETURN(const pjrt::FfiBuffer buffer, frame.Result(static_cast<int64_t>(i)));
    LB_RETURN_IF_ERROR(CheckBuffer(buffer, step.results[i], step));
    call.results.push_back(static_cast<std::byte*>(buffer.data));
  }
  return launch;
}

pjrt::XLA_FFI_Error* Handle(pjrt::XLA_FFI_CallFrame* raw) {
  if (pjrt::FfiCall::AnswerMetadata(raw)) return nullptr;
  pjrt::FfiCall frame(raw);
  CollectiveCall call;
  absl::StatusOr<std::shared_ptr<const Launch>> launch = Read(frame, call);
  if (!launch.ok()) return frame.Fail(launch.status());
  const CollectiveOp::Kind kind = (*launch)->program->steps()[static_cast<size_t>(call.op)].kind;
  if (kind == CollectiveOp::PARTITION_ID || kind == CollectiveOp::REPLICA_ID) {
    call.done = [](const absl::Status&) {};
    (*launch)->run->Call(std::move(call));
    return nullptr;
  }
  absl::StatusOr<pjrt::FfiCompletion> completion = frame.Defer();
  if (!completion.ok()) return frame.Fail(completion.status());
  call.done = [completion = *std::move(completion)](const absl::Status& status) mutable {
    completion.Complete(status);
  };
  (*launch)->run->Call(std::move(call));
  return nullptr;
}

}  // namespace

absl::Status RegisterCollectives(pjrt::Client& client) {
  static absl::Mutex mutex(absl::kConstInit);
  static pjrt::Plugin* registered = nullptr;  // plugins live for ever
  absl::MutexLock lock(&mutex);
  if (registered == &client.plugin()) return absl::OkStatus();
  LB_RETURN_IF_ERROR(client.plugin().RegisterFfiHandler(hlo::kCollectiveTarget, reinterpret_cast<void*>(&Handle)));
  LB_RETURN_IF_ERROR(client.CheckCustomCall(hlo::kCollectiveTarget));
  registered = &client.plugin();
  return absl::OkStatus();
}

CollectiveRegistration::CollectiveRegistration(int64_t run_id, std::shared_ptr<const CollectiveProgram> program,
                                               std::shared_ptr<CollectiveRun> run,
                                               absl::flat_hash_map<int32_t, int32_t> device_of_ordinal)
    : run_id_(run_id) {
  auto launch = std::make_shared<Launch>();
  launch->program = std::move(program);
  launch->run = std::move(run);
  launch->device_of_ordinal = std::move(device_of_ordinal);
  Directory& directory = TheDirectory();
  absl::MutexLock lock(&directory.mutex);
  LB_CHECK(directory.launches.try_emplace(run_id, std::move(launch)).second);
}

CollectiveRegistration::CollectiveRegistration(CollectiveRegistration&& other) noexcept
    : run_id_(std::exchange(other.run_id_, 0)) {}

CollectiveRegistration& CollectiveRegistration::operator=(CollectiveRegistration&& other) noexcept {
  std::swap(run_id_, other.run_id_);
  return *this;
}

CollectiveRegistration::~CollectiveRegistration() {
  if (run_id_ == 0) return;
  Directory& directory = TheDirectory();
  absl::MutexLock lock(&directory.mutex);
  directory.launches.erase(run_id_);
}

}  // namespace landbridge
