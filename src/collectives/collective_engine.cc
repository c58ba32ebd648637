#include "collectives/collective_engine.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "collectives/group_layout.h"
#include "collectives/group_call.h"
#include "collectives/outgoing.h"

namespace landbridge {
namespace {

class Run final : public CollectiveRun, public RunContext, public std::enable_shared_from_this<Run> {
 public:
  Run(const CollectiveEngineOptions& options, CollectiveLaunch launch)
      : options_(options), launch_(std::move(launch)), layouts_(launch_.program->groups().size()) {
    for (size_t g = 0; g < layouts_.size(); ++g) layouts_[g].resize(launch_.program->groups()[g].groups.size());
    occurrences_.resize(static_cast<size_t>(launch_.program->num_devices()));
  }

  void Call(CollectiveCall call) override {
    const CollectiveStep& step = launch_.program->steps()[static_cast<size_t>(call.op)];
    if (step.kind == CollectiveOp::PARTITION_ID || step.kind == CollectiveOp::REPLICA_ID) return AnswerId(step, call);
    std::shared_ptr<GroupCall> ready, next;
    absl::Status refused;
    {
      absl::MutexLock lock(&mutex_);
      refused = aborted_;
      if (refused.ok()) refused = Place(step, call, ready, next);
      if (!refused.ok()) ++pending_;
    }
    if (!refused.ok()) return Finish(std::move(call.done), refused);
    if (ready != nullptr) ready->Start();
    if (next != nullptr) next->Prepare();
  }

  void Close() override {
    std::vector<dataplane::PullId> pulls;
    std::map<CallName, std::shared_ptr<GroupCall>> unused;
    {
      absl::MutexLock lock(&mutex_);
      if (closed_ || !aborted_.ok()) return;
      closed_ = true;
      pulls.assign(pulls_.begin(), pulls_.end());
      unused.swap(collecting_);
    }
    for (dataplane::PullId pull : pulls) options_.plane->Cancel(pull, NoMoreCalls());
  }

  void Abort(const absl::Status& why) override {
    std::vector<std::shared_ptr<GroupCall>> calls;
    std::vector<dataplane::PullId> pulls;
    std::vector<absl::AnyInvocable<void(const absl::Status&)>> stalled;
    {
      absl::MutexLock lock(&mutex_);
      if (!aborted_.ok()) return;
      aborted_ = why;
      for (auto& [key, call] : collecting_) calls.push_back(call);
      collecting_.clear();
      pulls.assign(pulls_.begin(), pulls_.end());
      stalled.swap(stalled_);
    }
    // Peers that wait for ours hear it; and when none reads our memory any more, what was published is over.
    options_.plane->CloseSpace(launch_.space, why, [self = shared_from_this()] { self->EndOutgoing(); });
    for (dataplane::PullId pull : pulls) options_.plane->Cancel(pull, why);
    for (auto& done : stalled) done(why);
    for (const auto& call : calls) call->Drop(why);
  }

  absl::Status status() const override {
    absl::MutexLock lock(&mutex_);
    return aborted_;
  }

  int64_t pending() const override {
    absl::MutexLock lock(&mutex_);
    return pending_ + static_cast<int64_t>(outgoing_.size());
  }

  // --- RunContext, for the calls.

  void Execute(absl::AnyInvocable<void()> task) override { options_.executor(std::move(task)); }

  void Finish(absl::AnyInvocable<void(const absl::Status&)> done, const absl::Status& status) override {
    Execute([self = shared_from_this(), done = std::move(done), status]() mutable {
      {
        absl::MutexLock lock(&self->mutex_);
        --self->pending_;
      }
      done(status);
    });
  }

  void Publish(const CollectiveKey& key, std::shared_ptr<Outgoing> outgoing,
               absl::AnyInvocable<void()> drained) override {
    const dataplane::Key name{launch_.space, key.Pack()};
    outgoing->OnDrained([self = shared_from_this(), name, drained = std::move(drained)]() mutable {
      self->Withdraw(name);
      if (drained) drained();
    });
    {
      absl::MutexLock lock(&mutex_);
      if (aborted_.ok()) {
        outgoing_.emplace(name, outgoing);
        options_.plane->Publish(name, std::move(outgoing));  // under the lock: before the space is closed, or never
        return;
      }
    }
    outgoing->End();
  }

  void Pull(int32_t device, const CollectiveKey& key, int64_t offset, std::byte* into, int64_t bytes,
            absl::AnyInvocable<void(const absl::Status&)> done) override {
    const Incarnation peer = launch_.worker_of_device[static_cast<size_t>(device)];
    auto entry = std::make_shared<PullEntry>();
    entry->done = std::move(done);
    auto self = shared_from_this();
    const dataplane::PullId pull = options_.plane->Pull(
        peer, {launch_.space, key.Pack()}, static_cast<uint64_t>(offset), into, static_cast<uint64_t>(bytes),
        [self, entry](const absl::Status& status) { self->Pulled(*entry, status); });
    absl::Status aborted;
    {
      absl::MutexLock lock(&mutex_);
      if (!entry->over) {
        entry->id = pull;
        pulls_.insert(pull);
        aborted = closed_ ? NoMoreCalls() : aborted_;  // it came between: its list of pulls was without this one
      }
    }
    if (!aborted.ok()) options_.plane->Cancel(pull, aborted);
  }

  void Fail(const absl::Status& why) override { Abort(why); }

  const GroupLayout& layout(const CollectiveStep& step, int group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    auto& slot = layouts_[static_cast<size_t>(step.groups)][static_cast<size_t>(group)];
    if (slot == nullptr) {
      const auto& members =
          launch_.program->groups()[static_cast<size_t>(step.groups)].groups[static_cast<size_t>(group)];
      slot = std::make_unique<GroupLayout>(
          GroupLayout::Make(members, launch_.worker_of_device, options_.plane->self(), launch_.slice_of_device));
    }
    return *slot;
  }

 private:
  struct PullEntry {
    std::optional<dataplane::PullId> id;
    bool over = false;
    absl::AnyInvocable<void(const absl::Status&)> done;
  };
  using CallName = std::tuple<int32_t, int32_t, int64_t>;  // op, group, occurrence

  void AnswerId(const CollectiveStep& step, CollectiveCall& call) {
    const int partitions = launch_.program->num_partitions();
    const auto id = static_cast<uint32_t>(step.kind == CollectiveOp::PARTITION_ID ? call.device % partitions
                                                                                  : call.device / partitions);
    std::memcpy(call.results[0], &id, sizeof(id));
    call.done(absl::OkStatus());
  }

  static absl::Status NoMoreCalls() { return absl::CancelledError("the programs have ended"); }

  // `ready`: set when this was the last of our members. `next`: set when what it will need the next time is worth asking for
  // now, to be had as soon as it is there.
  absl::Status Place(const CollectiveStep& step, CollectiveCall& call, std::shared_ptr<GroupCall>& ready,
                     std::shared_ptr<GroupCall>& next) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto& groups = launch_.program->groups()[static_cast<size_t>(step.groups)];
    const CollectiveProgram::Place place = groups.place_of_device[static_cast<size_t>(call.device)];
    if (place.group < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("device ", call.device, " of the program calls ", step.name, ", in whose groups it is not"));
    }
    int64_t& occurrence = occurrences_[static_cast<size_t>(call.device)][call.op];
    if (occurrence >= kCollectiveOccurrencesMax) {
      return absl::ResourceExhaustedError(
          absl::StrCat(step.name, " ran more than ", kCollectiveOccurrencesMax,
                       " times in one launch: call the program more often, for fewer steps"));
    }
    const CallName name{call.op, place.group, occurrence++};
    const GroupLayout& where = layout(step, place.group);
    const int32_t op = call.op;
    auto call_named = [&](int64_t number) {
      std::shared_ptr<GroupCall>& slot = collecting_[{op, place.group, number}];
      const bool is_new = slot == nullptr;
      if (is_new) slot = std::make_shared<GroupCall>(shared_from_this(), step, where, op, number);
      return std::pair(slot, is_new);
    };
    const int64_t number = std::get<2>(name);
    const std::shared_ptr<GroupCall> slot = call_named(number).first;
    ++pending_;
    if (!slot->Join(place.rank, std::move(call))) return absl::OkStatus();
    ready = slot;
    collecting_.erase(name);
    // Called again, so in a loop. The one that asks in vain at its end costs a message and its taking back.
    if (number > 0 && number + 1 < kCollectiveOccurrencesMax && slot->CanPrepare()) {
      if (auto [following, is_new] = call_named(number + 1); is_new) next = following;
    }
    return absl::OkStatus();
  }

  void Pulled(PullEntry& entry, const absl::Status& status) {
    absl::Status known = status;
    absl::AnyInvocable<void(const absl::Status&)> dropped;  // goes without the lock
    {
      absl::MutexLock lock(&mutex_);
      entry.over = true;
      if (entry.id.has_value()) pulls_.erase(*entry.id);
      if (closed_ && !status.ok()) {  // of a call that will not be
        dropped = std::move(entry.done);
        return;
      }
      if (!status.ok() && !aborted_.ok()) known = aborted_;
      if (absl::IsUnavailable(known) && aborted_.ok() && options_.on_broken) {
        stalled_.push_back(std::move(entry.done));
        known = absl::OkStatus();
      }
    }
    if (entry.done) return entry.done(known);
    options_.on_broken(status);
  }

  void Withdraw(const dataplane::Key& name) {
    {
      absl::MutexLock lock(&mutex_);
      if (outgoing_.erase(name) == 0 || !aborted_.ok()) return;
    }
    options_.plane->Unpublish(name, absl::FailedPreconditionError("this part of a collective was taken by all"));
  }

  void EndOutgoing() {
    std::vector<std::shared_ptr<Outgoing>> all;
    {
      absl::MutexLock lock(&mutex_);
      for (auto& [name, outgoing] : outgoing_) all.push_back(outgoing);
    }
    for (const auto& outgoing : all) outgoing->End();
  }

  const CollectiveEngineOptions options_;
  const CollectiveLaunch launch_;
  mutable absl::Mutex mutex_;
  std::vector<std::vector<std::unique_ptr<GroupLayout>>> layouts_ ABSL_GUARDED_BY(mutex_);  // made when first used
  std::vector<absl::flat_hash_map<int32_t, int64_t>> occurrences_ ABSL_GUARDED_BY(mutex_);  // by device, then op
  std::map<CallName, std::shared_ptr<GroupCall>> collecting_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<dataplane::Key, std::shared_ptr<Outgoing>> outgoing_ ABSL_GUARDED_BY(mutex_);
  std::set<dataplane::PullId> pulls_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::AnyInvocable<void(const absl::Status&)>> stalled_ ABSL_GUARDED_BY(mutex_);  // pulls that broke
  absl::Status aborted_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t pending_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

absl::StatusOr<std::shared_ptr<CollectiveRun>> StartCollectives(const CollectiveEngineOptions& options,
                                                                CollectiveLaunch launch) {
  if (launch.worker_of_device.size() != static_cast<size_t>(launch.program->num_devices())) {
    return absl::InvalidArgumentError(absl::StrCat("a launch over ", launch.worker_of_device.size(),
                                                   " devices of a program for ", launch.program->num_devices()));
  }
  if (!launch.slice_of_device.empty() && launch.slice_of_device.size() != launch.worker_of_device.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a launch names the slices of ", launch.slice_of_device.size(),
                                                   " of its ", launch.worker_of_device.size(), " devices"));
  }
  return std::shared_ptr<CollectiveRun>(std::make_shared<Run>(options, std::move(launch)));
}

}  // namespace landbridge
