// Random operations, orders and losses against a simple model of what arrays hold.
#include <gtest/gtest.h>

#include <set>

#include "controller/fake_world_test_util.h"

namespace landbridge {
namespace {

struct ModelArray {
  ArrayId id;
  ArraySpec spec;
  Values values;
  std::set<int> touched;       // slots of it and of all that it was made from
  bool maybe_lost = false;     // one of those was lost since
  std::set<uint64_t> buffers;  // identities, for aliases
  bool deleted = false;
};

class Model {
 public:
  Model(uint64_t seed, bool losses) : random_(seed * 7919 + 1), world_(seed, losses ? 6 : 4096), losses_(losses) {
    world_.Declare(kSlots, kDevices, static_cast<int>(1 + seed % 3));  // slices of one worker, of two, all in one
    world_.controller.OpenSession(kSession);
    for (int slot = 0; slot < kSlots; ++slot) world_.Start(slot);
  }

  void Run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) {
      Act();
      for (int n = Between(0, 6); n > 0; --n) world_.Step();
    }
    for (int slot = 0; slot < kSlots; ++slot) {
      if (!world_.slots.contains(slot)) world_.Start(slot);
    }
    world_.RunAll();
    for (const auto& [request, array] : waits_) {
      auto it = world_.resolved.find(request);
      ASSERT_TRUE(it != world_.resolved.end()) << "a wait without answer: " << world_.controller.StatusJson(0);
      if (!it->second.ok() && !array) ADD_FAILURE() << it->second;
    }
    for (ModelArray& array : arrays_) Check(array);
    EXPECT_EQ(world_.controller.counts().transfers, 0u);
    EXPECT_EQ(world_.controller.counts().ops_parked, 0u);
    EXPECT_EQ(world_.controller.counts().launches_unfinished, 0u);
    if (Between(0, 1) == 0) {
      // Everything freed one by one leaves nothing either.
      for (ModelArray& array : arrays_) world_.controller.Release(kSession, array.id);
      for (auto& [spec, program] : programs_) world_.controller.ReleaseExecutable(kSession, program);
      world_.RunAll();
      EXPECT_EQ(world_.controller.counts().buffers, 0u);
      EXPECT_EQ(world_.controller.counts().arrays, 0u);
      for (auto& [id, worker] : world_.workers) EXPECT_TRUE(worker->buffers.empty());
    }
    world_.controller.CloseSession(kSession, absl::FailedPreconditionError("closed"));
    world_.RunAll();
    world_.ExpectEmpty();
  }

 private:
  static constexpr int kSlots = 3;
  static constexpr int kDevices = 2;
  static constexpr SessionId kSession{1};

  int Between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  std::set<int> SlotsOf(const ArraySpec& spec) const {
    std::set<int> slots;
    for (DeviceId device : spec.sharding->devices()) slots.insert(device.value() / kDevices);
    return slots;
  }
  ArraySpec RandomSpec() {
    const Dims dims = {4, 2};
    std::vector<DeviceId> devices;
    switch (Between(0, 3)) {
      case 0: return world_.Single(Between(0, kSlots * kDevices - 1), dims);
      case 1: return world_.Rows(world_.Devices(Between(0, kSlots - 1)), dims);
      case 2: return world_.Replicated(world_.Devices(Between(0, kSlots - 1)), dims);
      default: break;
    }
    for (int i = 0; i < kSlots * kDevices; ++i) devices.push_back(DeviceId(i));
    std::shuffle(devices.begin(), devices.end(), random_);
    devices.resize(Between(0, 1) == 0 ? 2 : 4);
    return Between(0, 1) == 0 ? world_.Rows(devices, dims) : world_.Replicated(devices, dims);
  }
  ModelArray* Pick() {
    std::vector<ModelArray*> living;
    for (ModelArray& array : arrays_) {
      if (!array.deleted) living.push_back(&array);
    }
    return living.empty() ? nullptr : living[static_cast<size_t>(Between(0, static_cast<int>(living.size()) - 1))];
  }
  void Add(ArrayId id, const ArraySpec& spec, Values values, std::vector<const ModelArray*> from,
           std::set<uint64_t> buffers = {}) {
    ModelArray array{id, spec, std::move(values), SlotsOf(spec), false, std::move(buffers), false};
    if (array.buffers.empty()) array.buffers.insert(next_buffer_++);
    for (const ModelArray* source : from) {
      array.touched.insert(source->touched.begin(), source->touched.end());
      array.maybe_lost |= source->maybe_lost;
    }
    arrays_.push_back(std::move(array));
  }
  void Kill(const ModelArray& dead) {
    const std::set<uint64_t> buffers = dead.buffers;
    for (ModelArray& array : arrays_) {
      for (uint64_t buffer : buffers) {
        if (array.buffers.contains(buffer)) array.deleted = true;
      }
    }
  }

  void Act() {
    const int what = Between(0, losses_ ? 12 : 10);
    if (arrays_.size() < 3 || what <= 1) {
      const ArraySpec spec = RandomSpec();
      Values values(8);
      for (int64_t& value : values) value = Between(0, 1000);
      Add(world_.Put(kSession, spec, values).value(), spec, values, {});
      return;
    }
    ModelArray* array = Pick();
    if (array == nullptr) return;
    switch (what) {
      case 2:
      case 3: return Execute(*array);
      case 4: return Copy(*array);
      case 5: return Reshard(*array);
      case 6: return Disassemble(*array);
      case 7: {
        const size_t at = static_cast<size_t>(Between(0, static_cast<int>(arrays_.size()) - 1));
        world_.controller.Release(kSession, arrays_[at].id);
        arrays_.erase(arrays_.begin() + static_cast<long>(at));
        return;
      }
      case 8: {
        if (Between(0, 2) != 0) return;
        ASSERT_TRUE(world_.controller.Delete(kSession, array->id).ok());
        Kill(*array);
        array->deleted = true;
        return;
      }
      case 9: waits_.emplace_back(world_.Wait(kSession, {array->id}), array->maybe_lost || losses_); return;
      case 10: return Check(*array);
      case 11: {
        const int slot = Between(0, kSlots - 1);
        if (!world_.slots.contains(slot) || Between(0, 2) != 0) return;
        world_.Kill(slot);
        for (ModelArray& one : arrays_) one.maybe_lost |= one.touched.contains(slot);
        return;
      }
      default: {
        const int slot = Between(0, kSlots - 1);
        if (!world_.slots.contains(slot)) world_.Start(slot);
      }
    }
  }

  void Execute(ModelArray& first) {
    if (SlotsOf(first.spec).size() != 1) return;
    // All living arrays with that very layout may be the second argument.
    std::vector<ModelArray*> seconds;
    for (ModelArray& array : arrays_) {
      if (!array.deleted && array.spec.sharding->devices() == first.spec.sharding->devices() &&
          array.spec.dims == first.spec.dims && *array.spec.sharding == *first.spec.sharding) {
        seconds.push_back(&array);
      }
    }
    ModelArray* second = seconds[static_cast<size_t>(Between(0, static_cast<int>(seconds.size()) - 1))];
    const bool donate = Between(0, 1) == 0;
    ExecutableId program;
    for (auto& [spec, id] : programs_) {
      if (*spec.sharding == *first.spec.sharding && spec.dims == first.spec.dims) program = id;
    }
    if (!program.valid()) {
      program = world_.controller
                    .AddExecutable(kSession, world_.Program(first.spec, 2, 2, {0}), first.spec.sharding->devices())
                    .value();
      programs_.emplace_back(first.spec, program);
    }
    ExecuteArgs call{program, {first.id, second->id}, {}, {}, 0, ""};
    if (!donate) call.non_donatable = {0};
    absl::StatusOr<ExecuteResult> result = world_.controller.Execute(kSession, call, 0, world_.now);
    bool shared = false;
    for (uint64_t buffer : first.buffers) shared |= second->buffers.contains(buffer);
    if (donate && shared && !(result.ok() && first.maybe_lost)) {  // errors from the start share nothing
      ASSERT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
      return;
    }
    ASSERT_TRUE(result.ok()) << result.status();
    std::vector<Values> outputs(2, Values(8));
    for (int k = 0; k < 2; ++k) {
      for (size_t i = 0; i < 8; ++i) outputs[k][i] = Compute({first.values[i], second->values[i]}, k);
    }
    const ModelArray a = first, b = *second;
    if (donate && shared) {
      for (ModelArray& array : arrays_) {
        if (array.maybe_lost) array.deleted = *world_.controller.IsDeleted(kSession, array.id);
      }
    } else if (donate) {
      Kill(a);
    }
    for (int k = 0; k < 2; ++k) Add(result->outputs[static_cast<size_t>(k)], a.spec, outputs[k], {&a, &b});
  }

  // Some, or all shards are where they are wanted: they become part of the result unless a copy is asked for.
  static std::pair<bool, bool> Stays(const ArraySpec& source, const ArraySpec& target) {
    bool any = false, all = true;
    const std::vector<DeviceId>& devices = source.sharding->devices();
    for (uint32_t i = 0; i < target.sharding->num_shards(); ++i) {
      const auto at = std::find(devices.begin(), devices.end(), target.sharding->devices()[i]);
      const bool stays =
          at != devices.end() && *source.sharding->Box(source.dims, static_cast<uint32_t>(at - devices.begin())) ==
                                     *target.sharding->Box(target.dims, i);
      any |= stays;
      all &= stays;
    }
    return {any, all};
  }

  CopySemantics RandomSemantics() { return static_cast<CopySemantics>(Between(0, 2)); }

  // What the array stands on is gone for it; others that hold the same buffers go with it unless the result took them.
  void Donate(ArrayId id, bool aliased) {
    for (ModelArray& array : arrays_) {
      if (array.id != id) continue;
      if (!aliased) Kill(ModelArray(array));
      array.deleted = true;
      return;
    }
  }

  void Copy(ModelArray& source) {
    std::vector<DeviceId> devices;
    for (int i = 0; i < kSlots * kDevices; ++i) devices.push_back(DeviceId(i));
    std::shuffle(devices.begin(), devices.end(), random_);
    devices.resize(source.spec.sharding->num_shards());
    if (Between(0, 3) == 0) devices = source.spec.sharding->devices();
    // Mixed moves and aliases have mixed fates; keep to all or nothing here.
    ArraySpec spec = source.spec;
    spec.sharding = source.spec.sharding->WithDevices(devices).value();
    const auto [any, all] = Stays(source.spec, spec);
    if (any && !all) return;
    const CopySemantics semantics = RandomSemantics();
    const ArrayId id =
        world_.controller.Copy(kSession, {source.id}, &devices, nullptr, semantics, 0, world_.now).value()[0];
    const bool aliased = all && semantics != CopySemantics::kAlwaysCopy;
    const ModelArray from = source;
    if (semantics == CopySemantics::kDonate) Donate(from.id, aliased);
    Add(id, spec, from.values, {&from}, aliased ? from.buffers : std::set<uint64_t>());
  }

  void Reshard(ModelArray& source) {
    if (!source.spec.sharding->HasBoxes()) return;
    const ArraySpec spec = RandomSpec();
    if (spec.dims != source.spec.dims) return;
    const bool donate = !Stays(source.spec, spec).first && Between(0, 1) == 0;
    const ArrayId id = world_.controller
                           .Reshard(kSession, {source.id}, {spec},
                                    donate ? CopySemantics::kDonate : CopySemantics::kAlwaysCopy, 0, world_.now)
                           .value()[0];
    const ModelArray from = source;
    if (donate) Donate(from.id, false);
    Add(id, spec, from.values, {&from});
  }

  void Disassemble(ModelArray& source) {
    if (source.spec.sharding->num_shards() < 2) return;
    const ModelArray from = source;
    const std::vector<ArrayId> parts = world_.controller.Disassemble(kSession, from.id, CopySemantics::kReuse).value();
    const ArrayId again = world_.controller.Assemble(kSession, from.spec, parts, CopySemantics::kReuse).value();
    for (ArrayId part : parts) world_.controller.Release(kSession, part);
    Add(again, from.spec, from.values, {&from}, from.buffers);
  }

  void Check(ModelArray& array) {
    const bool deleted = *world_.controller.IsDeleted(kSession, array.id);
    if (array.deleted && !deleted) {
      // Aliases of what was in error from the start share nothing: each is just that error.
      ASSERT_TRUE(array.maybe_lost) << array.id;
      const RequestId wait = world_.Wait(kSession, {array.id});
      ASSERT_EQ(world_.resolved.at(wait).code(), absl::StatusCode::kDataLoss);
      return;
    }
    ASSERT_EQ(deleted, array.deleted) << array.id;
    if (deleted) return;
    // Reading needs all workers that may have a hand in it.
    for (int slot : array.touched) {
      if (!world_.slots.contains(slot)) return;
    }
    absl::StatusOr<Values> values = world_.ReadWhole(kSession, array.id);
    if (values.ok()) {
      ASSERT_EQ(*values, array.values) << array.id;
    } else if (values.status().code() == absl::StatusCode::kAborted) {
      // Its makers wait for an absent worker that it depends on by another way (a slot that came and went).
      ASSERT_TRUE(losses_) << values.status();
      ASSERT_LT(world_.slots.size(), static_cast<size_t>(kSlots));
    } else {
      ASSERT_TRUE(array.maybe_lost) << array.id << ": " << values.status();
      ASSERT_EQ(values.status().code(), absl::StatusCode::kDataLoss);
    }
  }

  std::mt19937_64 random_;
  FakeWorld world_;
  const bool losses_;
  std::vector<ModelArray> arrays_;
  std::vector<std::pair<ArraySpec, ExecutableId>> programs_;
  std::vector<std::pair<RequestId, bool>> waits_;
  uint64_t next_buffer_ = 1;
};

TEST(ControllerProperty, RandomOperations) {
  for (uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(seed);
    Model(seed, false).Run(80);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(ControllerProperty, RandomOperationsAndLosses) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    Model(seed, true).Run(80);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace landbridge
