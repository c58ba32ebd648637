// Random programs, losses, withdrawals and moves of the writers, in the world of ordering_world_test_util.h. One seed,
// one run; LANDBRIDGE_SEED=n repeats one with its trace, LANDBRIDGE_SEEDS=n runs so many.
#include <cstdlib>
#include <iostream>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "worker/ordering_world_test_util.h"

namespace landbridge::ordering {
namespace {

struct Mix {
  double spanning = 0.5;
  double cancel = 0;  // per launch
  double fail = 0;
  int losses = 0;
  int moves = 0;  // of sequencers and of the spanner, without a loss
  double duplicates = 0;
  int64_t memory = 3;
  uint32_t members = 2;
  uint32_t devices = 1;
  int slices = 2;
  int launches = 40;
};

class RandomProgram {
 public:
  RandomProgram(uint64_t seed, const Mix& mix) : mix_(mix), options_(Options(seed, mix)), world_(options_) {}

  World& world() { return world_; }

  bool Run() {
    for (int i = 0; i < mix_.launches; ++i) {
      at_ += Below(150) * kMicrosecond;
      world_.After(at_, [this] { IssueOne(); });
    }
    auto sometime = [&] { return static_cast<DurationNs>(Below(static_cast<uint64_t>(at_) + 1)); };
    const int workers = options_.slices * static_cast<int>(options_.members);
    for (int i = 0; i < mix_.losses; ++i) {
      const int worker = static_cast<int>(Below(static_cast<uint64_t>(workers)));
      world_.After(sometime(), [this, worker] { world_.Kill(worker); });
    }
    for (int i = 0; i < mix_.moves; ++i) {
      const int slice = static_cast<int>(Below(static_cast<uint64_t>(options_.slices)));
      const int worker = slice * static_cast<int>(options_.members) + static_cast<int>(Below(options_.members));
      const int any = static_cast<int>(Below(static_cast<uint64_t>(workers)));
      world_.After(sometime(), [this, slice, worker] { world_.MoveSequencer(slice, worker); });
      if (Chance(0.5)) world_.After(sometime(), [this, any] { world_.MoveSpanner(any); });
    }
    return world_.Run();
  }

 private:
  static WorldOptions Options(uint64_t seed, const Mix& mix) {
    WorldOptions options;
    options.seed = seed;
    options.slices = mix.slices;
    options.members = mix.members;
    options.devices = mix.devices;
    options.memory = mix.memory;
    options.duplicates = mix.duplicates;
    return options;
  }
  uint64_t Below(uint64_t n) { return world_.random().NextBelow(n); }
  bool Chance(double p) { return world_.random().NextUnit() < p; }

  std::vector<At> Devices() {
    std::vector<At> all;
    for (int s = 0; s < options_.slices; ++s) {
      for (uint32_t d = 0; d < options_.members * options_.devices; ++d) {
        if (!world_.KnownLost(world_.WorkerOf({s, d}))) all.push_back({s, d});
      }
    }
    if (all.empty()) return {};
    const bool spanning = Chance(mix_.spanning);
    const At first = all[Below(all.size())];
    std::set<At> chosen{first};
    const uint64_t more = Below(4) + (spanning ? 1 : 0);
    for (uint64_t i = 0; i < more; ++i) {
      const At other = all[Below(all.size())];
      if (spanning || other.slice == first.slice) chosen.insert(other);
    }
    return {chosen.begin(), chosen.end()};
  }

  void IssueOne() {
    Spec spec;
    spec.devices = Devices();
    if (spec.devices.empty()) return;
    spec.session = 1 + Below(3);
    spec.run = static_cast<DurationNs>(20 + Below(200)) * kMicrosecond;
    spec.collective = !Chance(0.15);
    spec.side_effects = Chance(0.1);
    spec.stand_ins = !spec.side_effects && !Chance(0.1);
    spec.fails = spec.devices.size() == 1 && Chance(mix_.fail);
    std::vector<uint64_t> donated;
    for (uint64_t n = Below(3); n > 0 && !issued_.empty(); --n) {
      const uint64_t producer = issued_[issued_.size() - 1 - Below(std::min<uint64_t>(issued_.size(), 6))];
      if (gone_.contains(producer) || world_.Poisoned(producer)) continue;
      const std::vector<At>& made = devices_of_[producer];
      bool usable = true, all_same = true;
      std::vector<Spec::Input> inputs;
      for (const At& to : spec.devices) {
        Spec::Input input;
        input.producer = producer;
        input.to = to;
        input.from = std::find(made.begin(), made.end(), to) != made.end() ? to : made[Below(made.size())];
        all_same = all_same && input.same_device();
        usable = usable && !world_.KnownLost(world_.WorkerOf(input.from));
        inputs.push_back(input);
      }
      if (!usable) continue;
      bool twice = false;
      for (const Spec::Input& other : spec.inputs) twice = twice || other.producer == producer;
      if (twice) continue;
      if (all_same && Chance(0.4)) {
        for (Spec::Input& input : inputs) input.donate = true;
        donated.push_back(producer);
      }
      spec.inputs.insert(spec.inputs.end(), inputs.begin(), inputs.end());
    }
    for (uint64_t producer : donated) gone_.insert(producer);
    const std::vector<At> devices = spec.devices;
    const uint64_t session = spec.session;
    const uint64_t ticket = world_.Issue(std::move(spec));
    devices_of_[ticket] = devices;
    issued_.push_back(ticket);
    by_session_[session].push_back(ticket);
    if (!Chance(mix_.cancel)) return;
    // A session goes: what it has not finished is withdrawn.
    const uint64_t victim = 1 + Below(3);
    std::vector<uint64_t> open;
    for (uint64_t t : by_session_[victim]) {
      if (!world_.Over(t)) open.push_back(t);
    }
    world_.Cancel(open);
  }

  const Mix mix_;
  const WorldOptions options_;
  World world_;
  DurationNs at_ = 0;
  std::vector<uint64_t> issued_;
  std::map<uint64_t, std::vector<At>> devices_of_;
  std::map<uint64_t, std::vector<uint64_t>> by_session_;
  std::set<uint64_t> gone_;
};

Mix MixOf(uint64_t seed) {
  SeededRandom random(seed * 7919 + 13);
  auto below = [&](uint64_t n) { return random.NextBelow(n); };
  Mix mix;
  mix.slices = 2 + static_cast<int>(below(3));
  mix.members = 1 + static_cast<uint32_t>(below(3));
  mix.devices = 1 + static_cast<uint32_t>(below(2));
  mix.launches = 10 + static_cast<int>(below(40));
  mix.memory = 1 + static_cast<int64_t>(below(4));
  mix.spanning = 0.2 + 0.2 * static_cast<double>(below(4));
  if (below(2) == 0) mix.cancel = 0.1;
  if (below(2) == 0) mix.fail = 0.15;
  if (below(2) == 0) mix.losses = 1 + static_cast<int>(below(3));
  if (below(3) == 0) mix.moves = 1 + static_cast<int>(below(4));
  if (below(2) == 0) mix.duplicates = 0.1;
  return mix;
}

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

constexpr uint64_t kSeeds = 300;

TEST(OrderingRandomTest, KeepsTheInvariants) {
  const uint64_t one = FromEnvironment("LANDBRIDGE_SEED", 0);
  const uint64_t count = FromEnvironment("LANDBRIDGE_SEEDS", kSeeds);
  World::Seen all;
  for (uint64_t seed = one != 0 ? one : 1; seed <= (one != 0 ? one : count); ++seed) {
    RandomProgram program(seed, MixOf(seed));
    const bool fine = program.Run();
    if (one != 0) {
      for (const std::string& line : program.world().trace()) std::cout << line << "\n";
    }
    ASSERT_TRUE(fine) << "seed " << seed << ": " << program.world().violation() << "\n" << program.world().Explain();
    const World::Seen& seen = program.world().seen();
    all.drops += seen.drops;
    all.releases += seen.releases;
    all.finishes += seen.finishes;
    all.aborts += seen.aborts;
    all.voids += seen.voids;
    all.losses += seen.losses;
    all.epochs += seen.epochs;
    all.conditional += seen.conditional;
  }
  if (one != 0 || count < kSeeds) return;
  std::cout << absl::StrCat(all.drops, " dropped, ", all.releases, " released, ", all.finishes,
                            " finished on stand-ins, ", all.aborts, " aborted, ", all.voids, " void, ", all.losses,
                            " losses, ", all.epochs, " epochs, ", all.conditional, " conditional\n");
  // The runs come to where the rules matter.
  EXPECT_GT(all.drops, 30);
  EXPECT_GT(all.releases, 30);
  EXPECT_GT(all.finishes, 30);
  EXPECT_GT(all.aborts, 30);
  EXPECT_GT(all.voids, 0);
  EXPECT_GT(all.conditional, 30);
}

}  // namespace
}  // namespace landbridge::ordering
