#include "driver/control_client.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status.h"
#include "env/clock.h"

namespace landbridge {
namespace {

constexpr SessionId kSession(1);
constexpr DurationNs kLook = 20 * kMillisecond;  // between two looks whether the workers are up

}  // namespace

absl::StatusOr<std::unique_ptr<ControlClient>> ControlClient::Connect(Options options) {
  std::unique_ptr<ControlClient> client(new ControlClient());
  client->options_ = std::move(options);
  Loop& loop = client->loop_;
  LB_ASSIGN_OR_RETURN(client->host_, ControllerHost::Open(&loop, client->options_.host));
  client->host_->Join(client.get(), "none: a driver of the controller interface");
  ControllerHost& host = *client->host_;
  const TimeNs until = loop.Now() + client->options_.patience;
  for (;;) {
    const nlohmann::json counts = host.WorkerCounts();
    if (host.has_devices() && counts["up"] == client->workers()) break;
    if (loop.Now() > until) {
      const std::string reason = host.waits_for();
      return absl::FailedPreconditionError(
          absl::StrCat("the cluster at ", client->options_.host.resource_manager_address,
                       " is not ready: ", reason.empty() ? absl::StrCat("workers ", counts.dump()) : reason));
    }
    loop.RunOnce(kLook);
  }
  host.controller().OpenSession(kSession);
  loop.SetSpin(client->options_.spin);
  client->thread_ = std::thread([&loop] { loop.Run(); });
  return client;
}

ControlClient::~ControlClient() {
  if (thread_.joinable()) {
    OnLoop([this] { host_->controller().CloseSession(kSession, absl::CancelledError("the driver is done")); });
    OnLoop([this] { host_->Leave(); });
    loop_.Stop();
    thread_.join();
  }
  host_.reset();
}

void ControlClient::OnDevices(const Fleet& fleet, const std::vector<VirtualDevice>&) { fleet_ = fleet; }

std::vector<DeviceId> ControlClient::DevicesOf(int worker) const {
  std::vector<DeviceId> devices;
  for (int d = 0; d < fleet_.devices_per_worker; ++d) devices.emplace_back(worker * fleet_.devices_per_worker + d);
  return devices;
}

// ---------------------------------------------------------------- at rest

void ControlClient::OnLoop(absl::AnyInvocable<void()> task) {
  absl::Notification done;
  loop_.Post([&] {
    task();
    done.Notify();
  });
  done.WaitForNotification();
}

absl::StatusOr<bool> ControlClient::SpansWorkers(const std::vector<DeviceId>& devices) {
  absl::StatusOr<bool> spans = false;
  OnLoop([&] { spans = host_->controller().SpansWorkers(devices); });
  return spans;
}

absl::StatusOr<GangProgram> ControlClient::AddProgram(const std::shared_ptr<const ProgramImage>& image,
                                                      const std::vector<std::vector<DeviceId>>& gangs) {
  GangProgram program;
  program.outputs = image->info.outputs_size();
  if (image->info.parameters_size() > static_cast<int>(kArgsMax)) {
    return absl::InvalidArgumentError(absl::StrCat("the driver's programs take at most ", kArgsMax, " arguments"));
  }
  absl::Status status;
  OnLoop([&] {
    for (const std::vector<DeviceId>& devices : gangs) {
      absl::StatusOr<ExecutableId> id = host_->controller().AddExecutable(kSession, image, devices);
      if (!id.ok()) {
        status = id.status();
        return;
      }
      program.executables.push_back(*id);
    }
  });
  LB_RETURN_IF_ERROR(status);
  return program;
}

absl::StatusOr<ControlClient::Handle> ControlClient::Put(const std::vector<std::vector<DeviceId>>& gangs,
                                                         const Dims& dims, float value) {
  size_t count = 1;
  for (int64_t dim : dims) count *= static_cast<size_t>(dim);
  const std::vector<float> values(count, value);
  const Handle handle = next_handle_++;
  absl::Status status;
  OnLoop([&] {
    Arrays arrays;
    for (const std::vector<DeviceId>& devices : gangs) {
      absl::StatusOr<Sharding::Ptr> sharding = Sharding::FullyReplicated(devices, MemoryKind::kDevice);
      if (!sharding.ok()) {
        status = sharding.status();
        return;
      }
      HostShard shard;
      for (uint32_t i = 0; i < devices.size(); ++i) shard.shards.push_back(i);
      shard.key = next_upload_++;
      shard.image_bytes = static_cast<int64_t>(count * sizeof(float));
      shard.bytes = std::make_shared<const std::string>(reinterpret_cast<const char*>(values.data()),
                                                        static_cast<size_t>(shard.image_bytes));
      absl::StatusOr<ArrayId> array = host_->controller().MakeFromHost(
          kSession, ArraySpec{DType::kF32, dims, *std::move(sharding)}, {std::move(shard)}, 0, loop_.Now());
      if (!array.ok()) {
        status = array.status();
        return;
      }
      arrays.push_back(*array);
    }
    arrays_.emplace(handle, std::move(arrays));
  });
  LB_RETURN_IF_ERROR(status);
  return handle;
}

absl::StatusOr<std::vector<float>> ControlClient::Read(Handle handle, size_t gang) {
  LB_RETURN_IF_ERROR(Wait(handle));
  absl::StatusOr<ReadResult> result;
  absl::Notification answered;
  OnLoop([&] {
    const ArrayId array = arrays_.at(handle)[gang];
    const ArraySpec* spec = host_->controller().Spec(kSession, array);
    int64_t bytes = sizeof(float);
    for (int64_t dim : spec->dims) bytes *= dim;
    const RequestId request(next_request_++);
    reads_[request] = [&](absl::StatusOr<ReadResult> given) {
      result = std::move(given);
      answered.Notify();
    };
    host_->controller().ReadArray(kSession, request, array, {}, bytes);
  });
  answered.WaitForNotification();
  LB_RETURN_IF_ERROR(result.status());
  if (result->remote) return absl::UnimplementedError("the driver reads small arrays only");
  std::vector<float> values(result->data.size() / sizeof(float));
  std::memcpy(values.data(), result->data.data(), values.size() * sizeof(float));
  return values;
}

nlohmann::json ControlClient::Status() {
  nlohmann::json status;
  OnLoop([&] { host_->AddStatus(&status); });
  return status;
}

// ---------------------------------------------------------------- the client's thread

void ControlClient::Push(const Command& command) {
  mutex_.Lock();
  mutex_.Await(absl::Condition(this, &ControlClient::HasRoom));
  queue_.push_back(command);
  launches_ahead_ += command.count;
  const bool post = !std::exchange(drain_posted_, true);
  mutex_.Unlock();
  if (post) loop_.Post([this] { Drain(); });
}

ControlClient::Command ControlClient::CallCommand(Kind kind, const GangProgram& program,
                                                  absl::Span<const Handle> args) {
  Command command;
  command.kind = kind;
  command.program = &program;
  command.args = static_cast<uint8_t>(args.size());
  std::copy(args.begin(), args.end(), command.arg.begin());
  command.result = next_handle_;
  next_handle_ += static_cast<Handle>(program.outputs);
  return command;
}

ControlClient::Handle ControlClient::Call(const GangProgram& program, absl::Span<const Handle> args) {
  const Command command = CallCommand(Kind::kCall, program, args);
  Push(command);
  return command.result;
}

ControlClient::Handle ControlClient::CallChain(const GangProgram& program, Handle arg, int count) {
  Command command;
  command.kind = Kind::kChain;
  command.program = &program;
  command.args = 1;
  command.arg[0] = arg;
  command.count = count;
  command.result = next_handle_++;
  Push(command);
  return command.result;
}

void ControlClient::Release(Handle handle) {
  Command command;
  command.kind = Kind::kRelease;
  command.result = handle;
  Push(command);
}

absl::Status ControlClient::PushAndWait(const Command& command) {
  {
    absl::MutexLock lock(&mutex_);
    waits_ = true;
  }
  Push(command);
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](bool* waits) { return !*waits; }, &waits_));
  return failure_;
}

absl::Status ControlClient::Wait(Handle handle) {
  Command command;
  command.kind = Kind::kWait;
  command.result = handle;
  return PushAndWait(command);
}

absl::Status ControlClient::CallAndWait(const GangProgram& program, absl::Span<const Handle> args, Handle* result) {
  const Command command = CallCommand(Kind::kCallAndWait, program, args);
  *result = command.result;
  return PushAndWait(command);
}

void ControlClient::Settle() {
  for (bool taken = false; !taken;) {
    OnLoop([&] {
      absl::MutexLock lock(&mutex_);
      taken = queue_.empty() && run_ == running_.size();
    });
  }
  OnLoop([] {});  // the turn of the loop that sends
}

absl::StatusOr<std::vector<int64_t>> ControlClient::CallAndWaitOnLoop(const GangProgram& program, Handle* array,
                                                                      int count) {
  std::vector<int64_t> samples;
  {
    absl::MutexLock lock(&mutex_);
    waits_ = true;
  }
  loop_.Post([this, &program, array, count] {
    looping_ = std::make_unique<Looping>(Looping{&program, array, count, 0, {}});
    looping_->samples.reserve(static_cast<size_t>(count));
    NextOnLoop();
  });
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](bool* waits) { return !*waits; }, &waits_));
    status = failure_;
  }
  OnLoop([&] { samples = std::move(std::exchange(looping_, nullptr)->samples); });
  LB_RETURN_IF_ERROR(status);
  return samples;
}

// ---------------------------------------------------------------- the loop

// One of it is posted (drain_posted_) or suspended as long as there are calls to be taken.
void ControlClient::Drain() {
  for (int64_t launches = 0; launches < kLaunchesPerTurn;) {
    if (paused_) {
      suspended_ = true;
      return;
    }
    if (run_ == running_.size()) {
      running_.clear();
      run_ = 0;
      absl::MutexLock lock(&mutex_);
      running_.swap(queue_);
      launches_ahead_ = 0;
      if (running_.empty()) {
        drain_posted_ = false;
        return;
      }
    }
    launches += running_[run_].count;
    Run(running_[run_++]);
  }
  loop_.Post([this] { Drain(); });
}

void ControlClient::PauseSession(SessionId, bool paused) {
  paused_ = paused;
  if (!paused && std::exchange(suspended_, false)) loop_.Post([this] { Drain(); });
}

const ControlClient::Arrays* ControlClient::Find(Handle handle) {
  auto it = arrays_.find(handle);
  if (it != arrays_.end()) return &it->second;
  Fail(absl::InvalidArgumentError(absl::StrCat("handle ", handle, " names nothing")));
  return nullptr;
}

void ControlClient::ReleaseArrays(Handle handle) {
  auto it = arrays_.find(handle);
  if (it == arrays_.end())
    return Fail(absl::InvalidArgumentError(absl::StrCat("handle ", handle, " is released twice")));
  for (ArrayId array : it->second) host_->controller().Release(kSession, array);
  arrays_.erase(it);
}

void ControlClient::Execute(const Command& command) {
  Controller& controller = host_->controller();
  const TimeNs now = loop_.Now();
  const Arrays* given[kArgsMax];
  for (size_t i = 0; i < command.args; ++i) {
    given[i] = Find(command.arg[i]);
    if (given[i] == nullptr) return;
  }
  const bool awaited = command.kind == Kind::kCallAndWait;
  absl::InlinedVector<Arrays, 2> made(static_cast<size_t>(command.program->outputs));
  for (size_t gang = 0; gang < command.program->executables.size(); ++gang) {
    args_.executable = command.program->executables[gang];
    args_.end_is_awaited = awaited;
    args_.args.clear();
    for (size_t i = 0; i < command.args; ++i) args_.args.push_back((*given[i])[gang]);
    for (int n = 0; n < command.count; ++n) {
      absl::StatusOr<ExecuteResult> result = controller.Execute(kSession, args_, 0, now);
      if (!result.ok()) return Fail(result.status());
      if (n > 0) controller.Release(kSession, args_.args[0]);
      if (n + 1 < command.count) {
        args_.args[0] = result->outputs[0];
        continue;
      }
      for (size_t o = 0; o < made.size(); ++o) made[o].push_back(result->outputs[o]);
      if (!awaited) continue;
      ++wait_left_;
      controller.WhenDone(kSession, RequestId(next_request_++), result->ticket);
    }
  }
  for (size_t o = 0; o < made.size(); ++o) arrays_.emplace(command.result + o, std::move(made[o]));
}

void ControlClient::Run(const Command& command) {
  switch (command.kind) {
    case Kind::kRelease: return ReleaseArrays(command.result);
    case Kind::kCall:
    case Kind::kChain: return Execute(command);
    case Kind::kCallAndWait: return Execute(command);
    case Kind::kWait: {
      const Arrays* arrays = Find(command.result);
      if (arrays == nullptr) return;
      ++wait_left_;
      return host_->controller().WhenReady(kSession, RequestId(next_request_++), *arrays);
    }
  }
}

void ControlClient::NextOnLoop() {
  Looping& looping = *looping_;
  const TimeNs now = loop_.Now();
  if (looping.since != 0) looping.samples.push_back(now - looping.since);
  if (looping.left-- == 0) {
    absl::MutexLock lock(&mutex_);
    waits_ = false;
    return;
  }
  looping.since = now;
  const Handle before = *looping.array;
  Command command;
  command.kind = Kind::kCallAndWait;
  command.program = looping.program;
  command.args = 1;
  command.arg[0] = before;
  command.result = next_handle_++;  // the client's thread waits
  *looping.array = command.result;
  Execute(command);
  ReleaseArrays(before);
}

void ControlClient::OnResolve(RequestId, const absl::Status& status) {
  if (!status.ok()) Fail(status);
  if (--wait_left_ > 0) return;
  if (looping_ != nullptr) return loop_.Post([this] { NextOnLoop(); });  // not from inside the controller
  absl::MutexLock lock(&mutex_);
  waits_ = false;
}

void ControlClient::OnResolveRead(RequestId request, absl::StatusOr<ReadResult> result) {
  auto it = reads_.find(request);
  if (it == reads_.end()) return;
  auto answer = std::move(it->second);
  reads_.erase(it);
  answer(std::move(result));
}

// The first failure is what every later wait returns; whoever waits now does not go on waiting.
void ControlClient::Fail(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (failure_.ok()) failure_ = status;
  waits_ = false;
}

}  // namespace landbridge
