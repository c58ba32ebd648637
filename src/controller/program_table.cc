#include "controller/program_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status.h"

namespace landbridge::ctl {
namespace {

absl::StatusOr<std::shared_ptr<const ArraySpec>> OutputSpec(const TensorInfo& info,
                                                            const std::vector<DeviceId>& devices) {
  auto spec = std::make_shared<ArraySpec>();
  spec->dtype = static_cast<DType>(info.dtype());
  spec->dims.assign(info.global_dims().begin(), info.global_dims().end());
  LB_ASSIGN_OR_RETURN(MemoryKind memory, ParseMemoryKind(info.memory_kind()));
  if (devices.size() == 1) {
    spec->sharding = Sharding::SingleDevice(devices[0], memory);
  } else if (info.has_sharding()) {
    LB_ASSIGN_OR_RETURN(spec->sharding, Sharding::FromOpSharding(devices, memory, info.sharding()));
  } else {
    // No partitioning happened: every device holds its own value of the whole shape.
    Dims shard(info.device_dims().begin(), info.device_dims().end());
    spec->dims = shard;
    LB_ASSIGN_OR_RETURN(spec->sharding, Sharding::ConcreteEven(devices, memory, spec->dims, shard, false));
  }
  LB_RETURN_IF_ERROR(spec->sharding->Validate(spec->dims));
  return std::shared_ptr<const ArraySpec>(std::move(spec));
}

}  // namespace

absl::StatusOr<Placement> ProgramTable::MakePlacement(const ProgramImage& compiled,
                                                      std::vector<DeviceId> devices) const {
  const ExecutableInfo& info = compiled.info;
  LB_ASSIGN_OR_RETURN(const bool spans, cluster_->SpansWorkers(devices));
  if (static_cast<int64_t>(devices.size()) != info.num_devices()) {
    return absl::InvalidArgumentError(absl::StrCat("program '", info.name(), "' is for ", info.num_devices(),
                                                   " devices, but ", devices.size(), " are given"));
  }
  if (spans != info.split()) {
    return absl::InternalError(absl::StrCat("program '", info.name(), "' was ", info.split() ? "" : "not ",
                                            "compiled for devices of several workers"));
  }
  Placement placement;
  for (uint32_t shard = 0; shard < devices.size(); ++shard) {
    const ClusterTable::Device& device = cluster_->At(devices[shard]);
    auto part = std::find_if(placement.parts.begin(), placement.parts.end(),
                             [&](const Placement::Part& other) { return other.slot == device.slot; });
    if (part == placement.parts.end()) {
      placement.parts.push_back({device.slot, {}, {}});
      part = placement.parts.end() - 1;
    }
    part->shards.push_back(shard);
    part->ordinals.push_back(device.ordinal);
  }
  for (int i = 0; i < info.outputs_size(); ++i) {
    absl::StatusOr<std::shared_ptr<const ArraySpec>> spec = OutputSpec(info.outputs(i), devices);
    if (!spec.ok()) return AddContext(spec.status(), absl::StrCat("program '", info.name(), "', output ", i));
    placement.outputs.push_back(*std::move(spec));
  }
  placement.checked.resize(static_cast<size_t>(info.parameters_size()));
  placement.devices = std::move(devices);
  return placement;
}

absl::StatusOr<ExecutableId> ProgramTable::Add(SessionId session, std::shared_ptr<const ProgramImage> compiled,
                                               std::vector<DeviceId> devices) {
  if (compiled == nullptr || compiled->envelope == nullptr) {
    return absl::InvalidArgumentError("a program without content");
  }
  Program*& shared = shared_[{compiled.get(), devices}];
  if (shared == nullptr) {
    absl::StatusOr<Placement> home = MakePlacement(*compiled, devices);
    if (!home.ok()) {
      shared_.erase({compiled.get(), devices});
      return home.status();
    }
    auto program = std::make_unique<Program>();
    program->id = ExecutableId(next_++);
    program->home = *std::move(home);
    program->donated.resize(static_cast<size_t>(compiled->info.parameters_size()), false);
    for (int parameter : compiled->info.donated_parameters()) {
      if (parameter < 0 || parameter >= compiled->info.parameters_size()) continue;
      program->donated[static_cast<size_t>(parameter)] = true;
      program->donates = true;
    }
    program->compiled = std::move(compiled);
    shared = program.get();
    programs_.emplace(program->id, std::move(program));
  }
  Program* program = shared;
  ++program->users;
  const ExecutableId id(next_++);
  executables_.emplace(id, Executable{session, program});
  for (const Placement::Part& part : program->home.parts) {
    Life* life = cluster_->slots()[static_cast<size_t>(part.slot)].life.get();
    if (life->up) EnsureLoaded(program, life, session).IgnoreError();
  }
  return id;
}

Executable* ProgramTable::Find(SessionId session, ExecutableId id) {
  auto it = executables_.find(id);
  return it == executables_.end() || it->second.session != session ? nullptr : &it->second;
}

Program* ProgramTable::FindProgram(ExecutableId id) {
  auto it = programs_.find(id);
  return it == programs_.end() ? nullptr : it->second.get();
}

absl::StatusOr<Placement*> ProgramTable::PlaceOn(Program* program, absl::Span<const DeviceId> devices) {
  if (devices.empty() || devices == absl::MakeConstSpan(program->home.devices)) return &program->home;
  const ExecutableInfo& info = program->compiled->info;
  if (!info.portable() || devices.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("program '", info.name(), "' was compiled for its own devices; ",
                                                   "compile it as portable to run it on any one device"));
  }
  for (auto& [device, placement] : program->elsewhere) {
    if (device == devices[0]) return placement.get();
  }
  LB_ASSIGN_OR_RETURN(Placement placement, MakePlacement(*program->compiled, {devices[0]}));
  program->elsewhere.emplace_back(devices[0], std::make_unique<Placement>(std::move(placement)));
  return program->elsewhere.back().second.get();
}

absl::Status ProgramTable::EnsureLoaded(Program* program, Life* life, SessionId session) {
  auto it = std::find_if(program->loads.begin(), program->loads.end(),
                         [life](const Program::Load& load) { return load.life == life; });
  if (it != program->loads.end()) {
    // Memory may be there next time; other reasons do not go away.
    if (it->error.code() != absl::StatusCode::kResourceExhausted) return it->error;
    WorkerOp unload;
    unload.mutable_unload()->set_executable(program->id.value());
    dispatcher_->Send(life, std::move(unload), SessionId());
    program->loads.erase(it);
  }
  program->loads.push_back(Program::Load{life, false, false, absl::OkStatus()});
  const ProgramImage& compiled = *program->compiled;
  WorkerOp op;
  LoadExecutable* load = op.mutable_load();
  load->set_executable(program->id.value());
  load->set_size(static_cast<int64_t>(compiled.envelope->size()));
  load->set_sha256(compiled.sha256);
  if (!compiled.info.portable() && !compiled.info.split()) {
    for (uint32_t ordinal : program->home.parts[0].ordinals) load->add_devices(ordinal);
  }
  if (compiled.info.native()) {
    // All its workers are of one slice, and each has as many devices.
    for (DeviceId device : program->home.devices) load->add_global_devices(cluster_->NumberInSlice(device));
  }
  *load->mutable_info() = compiled.info;
  if (compiled.envelope->size() <= limits::kInlineBytesMax) load->set_inline_envelope(*compiled.envelope);
  (void)session;  // shared by sessions: it outlasts the one that needed it first
  dispatcher_->Send(life, std::move(op), SessionId());
  return absl::OkStatus();
}

void ProgramTable::BeforeLoadSent(Life* life, ExecutableId id) {
  Program* program = FindProgram(id);
  if (program == nullptr || program->compiled->envelope->size() <= limits::kInlineBytesMax) return;
  for (Program::Load& load : program->loads) {
    if (load.life != life || load.done) continue;
    load.serving = true;
    sink_->ServeExecutable(life->incarnation, id, program->compiled->envelope);
  }
}

bool ProgramTable::OnLoadDone(Life* life, ExecutableId id, const absl::Status& status) {
  Program* program = FindProgram(id);
  if (program == nullptr) return false;
  for (Program::Load& load : program->loads) {
    if (load.life != life) continue;
    load.done = true;
    load.error = status;
    if (std::exchange(load.serving, false)) sink_->StopServingExecutable(life->incarnation, id);
    return true;
  }
  return false;
}

void ProgramTable::Unload(Program* program) {
  for (Program::Load& load : program->loads) {
    if (load.serving) sink_->StopServingExecutable(load.life->incarnation, program->id);
    if (!load.life->up && dispatcher_->DropWaitingLoad(load.life, program->id)) continue;
    WorkerOp op;
    op.mutable_unload()->set_executable(program->id.value());
    dispatcher_->Send(load.life, std::move(op), SessionId());
  }
  shared_.erase({program->compiled.get(), program->home.devices});
  programs_.erase(program->id);
}

void ProgramTable::Release(SessionId session, ExecutableId id) {
  Executable* executable = Find(session, id);
  if (executable == nullptr) return;
  Program* program = executable->program;
  executables_.erase(id);
  if (--program->users == 0) Unload(program);
}

void ProgramTable::DropSession(SessionId session) {
  std::vector<ExecutableId> ids;
  for (const auto& [id, executable] : executables_) {
    if (executable.session == session) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  for (ExecutableId id : ids) Release(session, id);
}

void ProgramTable::LoseLife(Life* life) {
  std::vector<ExecutableId> serving;
  for (auto& [id, program] : programs_) {
    for (auto it = program->loads.begin(); it != program->loads.end();) {
      if (it->life != life) {
        ++it;
        continue;
      }
      if (it->serving) serving.push_back(id);
      it = program->loads.erase(it);
    }
  }
  std::sort(serving.begin(), serving.end());
  for (ExecutableId id : serving) sink_->StopServingExecutable(life->incarnation, id);
}

size_t ProgramTable::of(SessionId session) const {
  size_t count = 0;
  for (const auto& [id, executable] : executables_) count += executable.session == session;
  return count;
}

absl::Status CheckArgument(const ExecutableInfo& info, const Placement& placement, int parameter,
                           const ArraySpec& spec) {
  const TensorInfo& want = info.parameters(parameter);
  auto name = [&] { return absl::StrCat("argument ", parameter, " of '", info.name(), "'"); };
  if (spec.sharding->devices() != placement.devices) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), " is ", spec.sharding->ToString(), ", but the program runs on ", placement.devices.size(),
                     " devices from ", placement.devices[0].ToString(), " on; move it there with jax.device_put"));
  }
  const auto dtype = static_cast<DType>(want.dtype());
  if (dtype == DType::kToken) return absl::OkStatus();  // carries nothing
  if (spec.dtype != dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat(name(), " has dtype ", DTypeName(spec.dtype), ", but ", DTypeName(dtype), " is needed"));
  }
  const absl::Span<const int64_t> dims(want.device_dims().data(), static_cast<size_t>(want.device_dims_size()));
  for (uint32_t shard = 0; shard < spec.sharding->num_shards(); ++shard) {
    LB_ASSIGN_OR_RETURN(Dims have, spec.sharding->ShardDims(spec.dims, shard));
    if (absl::MakeConstSpan(have) != dims) {
      return absl::InvalidArgumentError(
          absl::StrCat(name(), " has shape ", DimsToString(spec.dims), ", ", DimsToString(have), " on device ",
                       spec.sharding->devices()[shard].value(), ", but ", DimsToString(dims), " is needed there"));
    }
  }
  return absl::OkStatus();
}

std::string ProgramTable::NameOf(ExecutableId program) const {
  auto it = programs_.find(program);
  return it == programs_.end() ? "" : it->second->compiled->info.name();
}

}  // namespace landbridge::ctl
