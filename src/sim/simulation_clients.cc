#include "sim/simulation_impl.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace landbridge::sim {
namespace {

constexpr int64_t kRows = 8;  // of every simulated array: 8 x 4 elements
constexpr int64_t kColumns = 4;

}  // namespace

// ---------------------------------------------------------------- clients

// Layouts: 0 rows over the slice's devices, 1 columns, 2 replicated, 3 one device (the first). Programs know those; the
// others come from resharding: 4 rows and 5 replicated over this slice and the next, 6 two replicas of each half of the
// rows over both (by turns), 7 columns in the reverse order of devices.
ArraySpec Simulation::SpecOf(int slice, int layout) const {
  ArraySpec spec;
  spec.dtype = DType::kU64;
  spec.dims = {kRows, kColumns};
  std::vector<DeviceId> devices;
  for (int s : SlicesOf(slice, layout)) {
    for (int d = 0; d < (layout == 3 ? 1 : knobs_.devices); ++d) devices.push_back(DeviceId(s * knobs_.devices + d));
  }
  if (layout == 3) {
    spec.sharding = Sharding::SingleDevice(devices[0], MemoryKind::kDevice);
    return spec;
  }
  if (layout == 7) std::reverse(devices.begin(), devices.end());
  const auto count = static_cast<int64_t>(devices.size());
  xla::OpSharding op;
  if (layout == 2 || layout == 5) {
    op.set_type(xla::OpSharding::REPLICATED);
  } else {
    op.set_type(xla::OpSharding::OTHER);
    const bool columns = layout == 1 || layout == 7;
    const int64_t tiles = layout == 6 && count % 2 == 0 ? 2 : count;
    op.add_tile_assignment_dimensions(columns ? 1 : tiles);
    op.add_tile_assignment_dimensions(columns ? tiles : 1);
    op.add_tile_assignment_dimensions(count / tiles);
    op.set_replicate_on_last_tile_dim(true);
    const int64_t copies = count / tiles;
    for (int64_t i = 0; i < count; ++i) {
      op.add_tile_assignment_devices(layout == 6 ? i % copies * tiles + i / copies : i);
    }
  }
  spec.sharding = *Sharding::FromOpSharding(devices, MemoryKind::kDevice, op);
  return spec;
}

std::set<int> Simulation::SlicesOf(int slice, int layout) const {
  if (layout < 4 || layout == 7) return {slice};
  return {slice, (slice + 1) % knobs_.slices};
}

ArrayState* Simulation::PickArray(Client& client, int slice, int layout) {
  std::vector<ArrayState*> fitting;
  for (ArrayState& array : client.arrays) {
    if (array.deleted || (slice >= 0 && array.slice != slice) || (layout >= 0 && array.layout != layout)) continue;
    fitting.push_back(&array);
  }
  if (fitting.empty()) return nullptr;
  return fitting[world_.random().NextBelow(fitting.size())];
}

void Simulation::Forget(Client& client, ArrayState* array) {
  controller_.Release(client.id, array->id);
  client.arrays.erase(client.arrays.begin() + (array - client.arrays.data()));
}

void Simulation::Upload(Client& client) {
  ArrayState array;
  array.slice = static_cast<int>(world_.random().NextBelow(static_cast<uint64_t>(knobs_.slices)));
  array.layout = static_cast<int>(world_.random().NextBelow(4));
  array.blame.slices = {array.slice};
  const ArraySpec spec = SpecOf(array.slice, array.layout);
  const Dims dims = spec.dims;
  array.expected = Empty(dims);
  for (uint64_t& element : array.expected.elements) element = world_.random().Next();
  std::vector<HostShard> shards;
  const bool late = world_.Chance(0.5);
  auto add = [&](std::vector<uint32_t> indices) {
    HostShard shard;
    const Content content = Cut(array.expected, *spec.sharding->Box(dims, indices[0]));
    shard.shards = std::move(indices);
    shard.key = next_key_++;
    shard.image_bytes = static_cast<int64_t>(content.elements.size() * 8);
    if (!late) {
      shard.bytes = std::make_shared<std::string>(reinterpret_cast<const char*>(content.elements.data()),
                                                  content.elements.size() * 8);
    }
    host_bytes_[shard.key] = content;
    shards.push_back(std::move(shard));
  };
  const uint32_t count = spec.sharding->num_shards();
  if (array.layout == 2) {
    std::vector<uint32_t> all;
    for (uint32_t i = 0; i < count; ++i) all.push_back(i);
    add(all);
  } else {
    for (uint32_t i = 0; i < count; ++i) add({i});
  }
  absl::StatusOr<ArrayId> id = controller_.MakeFromHost(client.id, spec, std::move(shards), 0, world_.now());
  if (!id.ok()) return world_.Violation("upload: " + id.status().ToString());
  array.id = *id;
  client.arrays.push_back(std::move(array));
}

void Simulation::WantHostBytes(uint64_t key) {
  world_.After(world_.Between(0, 2 * kMillisecond), [this, key] {
    auto it = host_bytes_.find(key);
    if (it == host_bytes_.end()) return controller_.OnHostBytes(key, absl::FailedPreconditionError("gone"));
    controller_.OnHostBytes(
        key, std::string(reinterpret_cast<const char*>(it->second.elements.data()), it->second.elements.size() * 8));
  });
}

void Simulation::DropHostBuffer(uint64_t key) { host_bytes_.erase(key); }

void Simulation::AddProgram(Client& client) {
  Program program;
  program.slice = static_cast<int>(world_.random().NextBelow(static_cast<uint64_t>(knobs_.slices)));
  program.layout = static_cast<int>(world_.random().NextBelow(4));
  if (world_.Chance(knobs_.spans)) program.layout = 4 + static_cast<int>(world_.random().NextBelow(3));
  program.arity = 1 + static_cast<int>(world_.random().NextBelow(2));
  program.donates = world_.Chance(0.4);
  program.constant = next_constant_++;
  const ArraySpec spec = SpecOf(program.slice, program.layout);
  auto compiled = std::make_shared<ProgramImage>();
  compiled->envelope = std::make_shared<std::string>(reinterpret_cast<const char*>(&program.constant), 8);
  compiled->sha256 = absl::StrCat("sha", program.constant);
  ExecutableInfo& info = compiled->info;
  info.set_name(absl::StrCat("program", program.constant));
  const int devices = static_cast<int>(spec.sharding->num_shards());
  info.set_num_devices(devices);
  info.set_num_replicas(1);
  info.set_num_partitions(devices);
  info.set_portable(devices == 1);
  info.set_split(SlicesOf(program.slice, program.layout).size() > 1);
  info.set_can_fail_on_one_shard(knobs_.fail_launch > 0);
  auto fill = [&](TensorInfo* tensor) {
    tensor->set_dtype(static_cast<int32_t>(DType::kU64));
    const Dims shard = *spec.sharding->ShardDims(spec.dims, 0);
    for (int64_t d : shard) tensor->add_device_dims(d);
    for (int64_t d : spec.dims) tensor->add_global_dims(d);
    tensor->set_device_bytes(*DeviceBytes(DType::kU64, shard));
    *tensor->mutable_sharding() = *spec.sharding->ToOpSharding();
    tensor->set_memory_kind("device");
  };
  for (int a = 0; a < program.arity; ++a) fill(info.add_parameters());
  fill(info.add_outputs());
  if (program.donates) info.add_donated_parameters(0);
  absl::StatusOr<ExecutableId> id = controller_.AddExecutable(client.id, compiled, spec.sharding->devices());
  if (!id.ok()) return world_.Violation("add executable: " + id.status().ToString());
  program.id = *id;
  client.programs.push_back(program);
}

void Simulation::Execute(Client& client) {
  if (client.programs.empty()) return AddProgram(client);
  const Program program = client.programs[world_.random().NextBelow(client.programs.size())];
  std::vector<ArrayState> arguments;
  ExecuteArgs args;
  args.executable = program.id;
  ArrayState* donor = nullptr;
  for (int a = 0; a < program.arity; ++a) {
    ArrayState* array = PickArray(client, program.slice, program.layout);
    if (array == nullptr && program.layout >= 4) return ReshardTo(client, program.slice, program.layout);
    if (array == nullptr || (program.donates && donor != nullptr && array->id == donor->id)) return Upload(client);
    if (a == 0 && program.donates) donor = array;
    arguments.push_back(*array);
    args.args.push_back(array->id);
  }
  if (knobs_.policy == POLICY_BACKWARD_FIRST) args.phase = static_cast<PipelinePhase>(world_.random().NextBelow(3));
  if (knobs_.policy == POLICY_PRIORITY && world_.Chance(0.5)) {
    args.priority = static_cast<int32_t>(world_.random().NextBelow(3));
  }
  absl::StatusOr<ExecuteResult> result = controller_.Execute(client.id, args, 0, world_.now());
  if (!result.ok()) {
    // A lost argument may be answered at once.
    Blame blame;
    for (const ArrayState& argument : arguments) {
      blame.slices.insert(argument.blame.slices.begin(), argument.blame.slices.end());
      blame.may_fail |= argument.blame.may_fail;
      blame.spans |= argument.blame.spans;
    }
    if (!FaultsExplain(blame, result.status())) world_.Violation("execute: " + result.status().ToString());
    return;
  }
  ++outcome_.launches;
  ArrayState out;
  out.id = result->outputs.at(0);
  out.slice = program.slice;
  out.layout = program.layout;
  out.blame.may_fail = knobs_.fail_launch > 0 || knobs_.fail_load > 0;
  out.blame.slices = SlicesOf(program.slice, program.layout);
  out.blame.spans = out.blame.slices.size() > 1;
  out.expected = Empty(arguments[0].expected.dims);
  std::vector<uint64_t> row(arguments.size());
  for (size_t e = 0; e < out.expected.elements.size(); ++e) {
    for (size_t a = 0; a < arguments.size(); ++a) row[a] = arguments[a].expected.elements[e];
    out.expected.elements[e] = Combine(program.constant, row);
  }
  for (const ArrayState& argument : arguments) {
    out.blame.slices.insert(argument.blame.slices.begin(), argument.blame.slices.end());
    out.blame.may_fail |= argument.blame.may_fail;
    out.blame.spans |= argument.blame.spans;
  }
  if (donor != nullptr) Forget(client, donor);
  if (world_.Chance(0.3)) {
    const RequestId request(next_request_++);
    Request& state = requests_[request];
    state.array = out;
    controller_.WhenDone(client.id, request, result->ticket);
  }
  client.arrays.push_back(std::move(out));
}

void Simulation::Copy(Client& client) {
  ArrayState* array = PickArray(client);
  if (array == nullptr) return Upload(client);
  const int slice = static_cast<int>(world_.random().NextBelow(static_cast<uint64_t>(knobs_.slices)));
  const ArraySpec target = SpecOf(slice, array->layout);
  std::vector<DeviceId> devices = target.sharding->devices();
  const bool donate = world_.Chance(0.2);
  const CopySemantics semantics = donate ? CopySemantics::kDonate : CopySemantics::kAlwaysCopy;
  absl::StatusOr<std::vector<ArrayId>> ids =
      controller_.Copy(client.id, {array->id}, &devices, nullptr, semantics, 0, world_.now());
  if (!ids.ok()) {
    if (!FaultsExplain(array->blame, ids.status())) world_.Violation("copy: " + ids.status().ToString());
    return;
  }
  ++outcome_.copies;
  ArrayState out = *array;
  out.id = ids->at(0);
  out.slice = slice;
  out.blame.slices.merge(SlicesOf(slice, out.layout));
  if (donate) Forget(client, array);
  client.arrays.push_back(std::move(out));
}

void Simulation::Reshard(Client& client) {
  const int slice = static_cast<int>(world_.random().NextBelow(static_cast<uint64_t>(knobs_.slices)));
  ReshardTo(client, slice, static_cast<int>(world_.random().NextBelow(kLayouts)));
}

void Simulation::ReshardTo(Client& client, int slice, int layout) {
  ArrayState* array = PickArray(client);
  if (array == nullptr) return Upload(client);
  ArrayState out = *array;
  out.slice = slice;
  out.layout = layout;
  out.blame.slices.merge(SlicesOf(out.slice, out.layout));
  const bool donate = world_.Chance(0.2);
  absl::StatusOr<std::vector<ArrayId>> ids =
      controller_.Reshard(client.id, {array->id}, {SpecOf(out.slice, out.layout)},
                          donate ? CopySemantics::kDonate : CopySemantics::kAlwaysCopy, 0, world_.now());
  if (!ids.ok()) {
    if (!FaultsExplain(array->blame, ids.status())) world_.Violation("reshard: " + ids.status().ToString());
    return;
  }
  ++outcome_.copies;
  out.id = ids->at(0);
  if (donate) Forget(client, array);
  client.arrays.push_back(std::move(out));
}

void Simulation::DeleteOne(Client& client) {
  ArrayState* array = PickArray(client);
  if (array == nullptr) return;
  if (world_.Chance(0.3)) {
    if (absl::Status status = controller_.Delete(client.id, array->id); !status.ok()) {
      world_.Violation("delete: " + status.ToString());
    }
  }
  Forget(client, array);
}

void Simulation::ReadOne(Client& client, const ArrayState& array, bool release_before_answer) {
  // Sharded arrays are read shard by shard, as the client does.
  const ArrayState copy = array;
  std::vector<ArrayId> parts{copy.id};
  const ArraySpec spec = SpecOf(copy.slice, copy.layout);
  const bool whole = spec.sharding->IsFullyReplicated();
  if (!whole) {
    absl::StatusOr<std::vector<ArrayId>> singles = controller_.Disassemble(client.id, copy.id, CopySemantics::kReuse);
    if (!singles.ok()) {
      if (!FaultsExplain(copy.blame, singles.status())) world_.Violation("disassemble: " + singles.status().ToString());
      return;
    }
    parts = *singles;
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const RequestId request(next_request_++);
    Request& state = requests_[request];
    state.read = true;
    state.array = copy;
    state.array.expected = Cut(copy.expected, *spec.sharding->Box(spec.dims, static_cast<uint32_t>(i)));
    controller_.ReadArray(client.id, request, parts[i], {},
                          static_cast<int64_t>(state.array.expected.elements.size() * 8));
    if (!whole) controller_.Release(client.id, parts[i]);
  }
  if (release_before_answer) {
    for (ArrayState& mine : client.arrays) {
      if (mine.id == copy.id) return Forget(client, &mine);
    }
  }
}

void Simulation::Step(int index) {
  Client& client = clients_[static_cast<size_t>(index)];
  if (!client.open) return;
  if (client.steps_left-- <= 0) return;
  double dice = world_.random().NextUnit();
  if (knobs_.only_reshards && dice >= 0.15 && dice < 0.60) dice = 0.74;  // moves in place of programs
  if (dice < 0.15) {
    Upload(client);
  } else if (dice < 0.20) {
    AddProgram(client);
  } else if (dice < 0.60) {
    Execute(client);
  } else if (dice < 0.70) {
    knobs_.only_reshards ? Reshard(client) : Copy(client);
  } else if (dice < 0.75 || (knobs_.only_reshards && dice < 0.83)) {
    Reshard(client);
  } else if (dice < 0.83) {
    DeleteOne(client);
  } else if (dice < 0.93) {
    if (ArrayState* array = PickArray(client)) ReadOne(client, *array, world_.Chance(0.2));
  } else if (dice < 0.97) {
    if (ArrayState* array = PickArray(client)) {
      const RequestId request(next_request_++);
      requests_[request].array = *array;
      controller_.WhenReady(client.id, request, {array->id});
    }
  } else if (!client.programs.empty()) {
    controller_.ReleaseExecutable(client.id, client.programs.back().id);
    client.programs.pop_back();
  }
  if (knobs_.tight_memory) {
    while (client.arrays.size() > 6) Forget(client, &client.arrays.front());
  }
  const bool idle = knobs_.idle_max > 0 && world_.Chance(0.1);
  world_.After(
      idle ? world_.Between(kMillisecond, knobs_.idle_max) : world_.Between(2 * kMicrosecond, 2 * kMillisecond),
      [this, index] { Step(index); });
}

// ---------------------------------------------------------------- answers

bool Simulation::FaultsExplain(const Blame& blame, const absl::Status& status) const {
  switch (status.code()) {
    case absl::StatusCode::kDataLoss:
      for (int slice : blame.slices) {
        if (slices_hurt_.count(slice) > 0) return true;
      }
      return false;
    case absl::StatusCode::kInvalidArgument: return blame.may_fail && absl::StrContains(status.message(), "injected");
    case absl::StatusCode::kResourceExhausted: return knobs_.tight_memory;
    case absl::StatusCode::kAborted: return mail_was_broken_ && blame.spans;
    default: return false;
  }
}

void Simulation::CheckError(const Request& request, const absl::Status& status) {
  ++outcome_.reads_failed;
  if (!FaultsExplain(request.array.blame, status))
    world_.Violation("an error that nothing explains: " + status.ToString());
}

void Simulation::CheckValue(const Request& request, const Content& shard) {
  ++outcome_.reads_ok;
  if (shard.elements != request.array.expected.elements) {
    world_.Violation(absl::StrCat("array ", request.array.id.ToString(), " has wrong bytes"));
  }
}

void Simulation::Resolve(RequestId id, const absl::Status& status) {
  auto it = requests_.find(id);
  if (it == requests_.end()) return world_.Violation("an answer to no request");
  if (++it->second.answers > 1) return world_.Violation("a request is answered twice");
  if (!status.ok()) CheckError(it->second, status);
}

void Simulation::ResolveRead(RequestId id, absl::StatusOr<ReadResult> result) {
  auto it = requests_.find(id);
  if (it == requests_.end()) return world_.Violation("an answer to no request");
  if (++it->second.answers > 1) return world_.Violation("a read is answered twice");
  if (!result.ok()) return CheckError(it->second, result.status());
  if (!result->remote) {
    Content content = it->second.array.expected;
    if (result->data.size() != content.elements.size() * 8) return world_.Violation("a read of the wrong size");
    std::memcpy(content.elements.data(), result->data.data(), result->data.size());
    CheckValue(it->second, content);
    return;
  }
  world_.After(world_.Between(50 * kMicrosecond, kMillisecond), [this, id, worker = result->worker, read = result->id] {
    const Request& request = requests_[id];
    SimWorker* source = WorkerOf(worker);
    absl::StatusOr<Content> content =
        source == nullptr ? absl::UnavailableError("gone") : source->ReadPublished(read & ((uint64_t{1} << 60) - 1));
    if (content.ok()) {
      CheckValue(request, *content);
    } else {
      ++outcome_.reads_failed;
      if (!FaultsExplain({SlicesOf(request.array.slice, request.array.layout)}, absl::DataLossError("")))
        world_.Violation("the bytes of a read are not there: " + content.status().ToString());
    }
    controller_.ReleaseRead(id);
  });
}

}  // namespace landbridge::sim
