#include "collectives/collective_engine.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "collectives/group_call.h"
#include "collectives/group_layout.h"
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

  ~Run() override {
    if (!over_) options_.plane->Unlisten(launch_.space);
  }

  // Tells peers that what they push for this launch is welcome.
  void Open() {
    absl::flat_hash_set<Incarnation> peers;
    absl::flat_hash_set<int> looked_at;
    for (const CollectiveStep& step : launch_.program->steps()) {
      if (!step.pushed || !looked_at.insert(step.groups).second) continue;
      for (const auto& group : launch_.program->groups()[static_cast<size_t>(step.groups)].groups)
        AddPeers(group, peers);
    }
    if (peers.empty()) return;
    {
      absl::MutexLock lock(&mutex_);
      over_ = false;
    }
    dataplane::PushListener listener;
    listener.value = [weak = weak_from_this()](dataplane::PeerId peer, const dataplane::Key& key,
                                               absl::Span<const std::byte> value) {
      if (auto self = weak.lock()) self->Came(peer, CollectiveKey::Unpack(key.id), value);
    };
    listener.ended = [weak = weak_from_this()](dataplane::PeerId, const absl::Status& why) {
      if (auto self = weak.lock()) self->PeerEnded(why);
    };
    options_.plane->Listen(launch_.space, {peers.begin(), peers.end()}, std::move(listener));
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
    Calls unused, awaiting, held;
    bool unlisten = false;
    {
      absl::MutexLock lock(&mutex_);
      if (closed_ || !aborted_.ok()) return;
      closed_ = true;
      unlisten = !std::exchange(over_, true);
      pulls.assign(pulls_.begin(), pulls_.end());
      unused.swap(collecting_);
      awaiting.swap(awaiting_);
      held.swap(held_);
    }
    if (unlisten) options_.plane->Unlisten(launch_.space);
    for (dataplane::PullId pull : pulls) options_.plane->Cancel(pull, NoMoreCalls());
  }

  void Abort(const absl::Status& why) override {
    std::vector<std::shared_ptr<GroupCall>> calls, begun;
    Calls held;
    std::vector<dataplane::PullId> pulls;
    std::vector<absl::AnyInvocable<void(const absl::Status&)>> stalled;
    {
      absl::MutexLock lock(&mutex_);
      if (!aborted_.ok()) return;
      aborted_ = why;
      over_ = true;  // CloseSpace says it, too
      for (auto& [name, call] : awaiting_) {
        if (!collecting_.contains(name)) begun.push_back(call);
      }
      awaiting_.clear();
      held.swap(held_);
      for (auto& [key, call] : collecting_) calls.push_back(call);
      collecting_.clear();
      pulls.assign(pulls_.begin(), pulls_.end());
      stalled.swap(stalled_);
    }
    // Peers that wait for ours hear it; and when none reads our memory any more, what was published is over.
    options_.plane->CloseSpace(launch_.space, why, [self = shared_from_this()] { self->EndOutgoing(); });
    for (dataplane::PullId pull : pulls) options_.plane->Cancel(pull, why);
    for (auto& done : stalled) done(why);
    for (const auto& call : begun) call->EndPushes(why);
    for (const auto& call : calls) call->Drop(why);
  }

  absl::Status status() const override {
    absl::MutexLock lock(&mutex_);
    return aborted_;
  }

  int64_t pending() const override {
    absl::MutexLock lock(&mutex_);
    return pending_ + static_cast<int64_t>(outgoing_.size()) + pushes_waiting_.load();
  }

  // --- RunContext, for the calls.

  void Execute(absl::AnyInvocable<void()> task) override { options_.executor(std::move(task)); }

  void Finish(absl::AnyInvocable<void(const absl::Status&)> done, const absl::Status& status) override {
    Execute([self = shared_from_this(), done = std::move(done), status]() mutable {
      self->FinishHere(std::move(done), status);
    });
  }

  void FinishHere(absl::AnyInvocable<void(const absl::Status&)> done, const absl::Status& status) override {
    {
      absl::MutexLock lock(&mutex_);
      --pending_;
    }
    done(status);
  }

  void Push(int32_t device, const CollectiveKey& key, std::shared_ptr<std::vector<std::byte>> values) override {
    const Incarnation peer = launch_.worker_of_device[static_cast<size_t>(device)];
    pushes_waiting_.fetch_add(1);
    auto gone = [self = shared_from_this()] { self->pushes_waiting_.fetch_sub(1); };
    const dataplane::Chunk chunk{values->data(), values->size(), values};
    if (options_.plane->Push(peer, {launch_.space, key.Pack()}, chunk, std::move(gone))) pushes_waiting_.fetch_sub(1);
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
  using Calls = absl::flat_hash_map<CallName, std::shared_ptr<GroupCall>>;

  // The other workers of a group in which we have members.
  void AddPeers(const CollectiveProgram::Group& group, absl::flat_hash_set<Incarnation>& peers) const {
    const Incarnation self = options_.plane->self();
    auto worker = [this](int32_t device) { return launch_.worker_of_device[static_cast<size_t>(device)]; };
    if (std::none_of(group.begin(), group.end(), [&](int32_t device) { return worker(device) == self; })) return;
    for (int32_t device : group) {
      if (worker(device) != self) peers.insert(worker(device));
    }
  }

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
    const int64_t number = std::get<2>(name);
    const std::shared_ptr<GroupCall> slot = CallNamed(name, step, where).first;
    ++pending_;
    if (!slot->Join(place.rank, std::move(call))) return absl::OkStatus();
    ready = slot;
    collecting_.erase(name);
    if (slot->pushed()) {
      begun_[{op, place.group}] = number + 1;
      LetSend(name, slot);
      return absl::OkStatus();
    }
    // Called again, so in a loop. The one that asks in vain at its end costs a message and its taking back.
    if (number > 0 && number + 1 < kCollectiveOccurrencesMax && slot->CanPrepare()) {
      if (auto [following, is_new] = CallNamed({op, place.group, number + 1}, step, where); is_new) next = following;
    }
    return absl::OkStatus();
  }

  // The call of that name, and whether it was made just now. Of calls that have not begun.
  std::pair<std::shared_ptr<GroupCall>, bool> CallNamed(const CallName& name, const CollectiveStep& step,
                                                        const GroupLayout& where)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::shared_ptr<GroupCall>& slot = collecting_[name];
    const bool is_new = slot == nullptr;
    if (is_new) {
      slot = std::make_shared<GroupCall>(shared_from_this(), step, where, std::get<0>(name), std::get<2>(name));
      if (slot->pushed()) awaiting_.emplace(name, slot);
    }
    return {slot, is_new};
  }

  // A call sends its values when all that the occurrence before it waits for has come. So has every receiver begun that one,
  // and holds values of one occurrence at most for members that have not called.
  void LetSend(const CallName& name, const std::shared_ptr<GroupCall>& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto [op, group, number] = name;
    if (awaiting_.contains({op, group, number - 1})) {
      held_.emplace(name, call);
    } else {
      call->MaySend();  // when it starts
    }
  }

  void Came(dataplane::PeerId peer, const CollectiveKey& key, absl::Span<const std::byte> value) {
    std::shared_ptr<GroupCall> complete, next;
    absl::Status placed;
    {
      absl::MutexLock lock(&mutex_);
      if (closed_ || !aborted_.ok()) return;
      placed = PlaceValue(peer, key, value, complete, next);
    }
    if (!placed.ok()) return Abort(placed);
    if (complete != nullptr) complete->OthersCame();
    if (next != nullptr) next->MaySend();
  }

  // `complete`: set when it was the last that this call waits for; `next`: when that lets another one send.
  absl::Status PlaceValue(dataplane::PeerId peer, const CollectiveKey& key, absl::Span<const std::byte> value,
                          std::shared_ptr<GroupCall>& complete, std::shared_ptr<GroupCall>& next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto bad = [&] {
      return absl::InternalError(absl::StrCat("worker ", peer.ToString(), " sent a value that nobody here waits for"));
    };
    const auto& steps = launch_.program->steps();
    if (key.op >= static_cast<int32_t>(steps.size()) || key.device >= launch_.program->num_devices()) return bad();
    const CollectiveStep& step = steps[static_cast<size_t>(key.op)];
    if (!step.pushed || key.phase != 0 || launch_.worker_of_device[static_cast<size_t>(key.device)] != peer)
      return bad();
    const auto& groups = launch_.program->groups()[static_cast<size_t>(step.groups)];
    const CollectiveProgram::Place place = groups.place_of_device[static_cast<size_t>(key.device)];
    if (place.group < 0) return bad();
    const GroupLayout& where = layout(step, place.group);
    const int64_t begun = begun_[{key.op, place.group}];
    if (where.self < 0 || key.occurrence > begun) return bad();
    const CallName name{key.op, place.group, key.occurrence};
    if (key.occurrence == begun) CallNamed(name, step, where);
    auto found = awaiting_.find(name);
    if (found == awaiting_.end()) return bad();
    LB_RETURN_IF_ERROR(found->second->Bring(place.rank, key.operand, value));
    if (!found->second->AllCame()) return absl::OkStatus();
    complete = std::move(found->second);
    awaiting_.erase(found);
    auto held = held_.find({key.op, place.group, key.occurrence + 1});
    if (held == held_.end()) return absl::OkStatus();
    next = std::move(held->second);
    held_.erase(held);
    return absl::OkStatus();
  }

  // Nothing comes from a worker any more that others may wait for.
  void PeerEnded(const absl::Status& why) {
    {
      absl::MutexLock lock(&mutex_);
      if (closed_ || !aborted_.ok()) return;
    }
    if (absl::IsUnavailable(why) && options_.on_broken) return options_.on_broken(why);
    Abort(why);
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
  Calls collecting_ ABSL_GUARDED_BY(mutex_);  // not all members have called
  // Of calls whose values are pushed: those that others' values have not all come for; those that may not send yet; how many
  // occurrences all our members have called.
  Calls awaiting_ ABSL_GUARDED_BY(mutex_), held_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::pair<int32_t, int32_t>, int64_t> begun_ ABSL_GUARDED_BY(mutex_);  // by op and group
  std::atomic<int64_t> pushes_waiting_{0};
  bool over_ = true;  // nobody listens; written under the lock
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
  auto run = std::make_shared<Run>(options, std::move(launch));
  run->Open();
  return std::shared_ptr<CollectiveRun>(std::move(run));
}

}  // namespace landbridge
