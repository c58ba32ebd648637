// Random runs of the real cores (RM, workers, proxies) on a simulated network: delays, losses, repetitions,
// partitions, crashes, restarts, pauses and skewed clocks; then a quiet time in which everything must settle.
// A failing seed is printed; LANDBRIDGE_MODEL_SEED=n repeats it, LANDBRIDGE_MODEL_RUNS=n makes more runs.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/holder_lease.h"
#include "cluster/worker_lease.h"
#include "env/clock.h"
#include "gtest/gtest.h"
#include "resource_manager/resource_manager_core.h"

namespace landbridge {
namespace {

struct Shape {
  int slices = 2;
  int workers_per_slice = 2;
  int spares = 0;
  std::vector<int> demands;  // slices wanted by each proxy
  bool only_rm_restarts = false;
};

class World {
 public:
  World(uint64_t seed, Shape shape) : random_(seed), shape_(std::move(shape)) {
    times_.heartbeat = 250 * kMillisecond;
    times_.lease = 2400 * kMillisecond;
    times_.worst_delay = 300 * kMillisecond;
    times_.reconnect = 500 * kMillisecond;
    times_.old_work = 2 * kSecond;
    const int workers = shape_.slices * shape_.workers_per_slice + shape_.spares;
    for (int i = 0; i < workers; ++i) workers_.push_back(std::make_unique<WorkerProcess>(this, i));
    for (size_t i = 0; i < shape_.demands.size(); ++i) {
      proxies_.push_back(std::make_unique<ProxyProcess>(this, static_cast<int>(i)));
    }
    rm_ = std::make_unique<RmProcess>(this);
    rm_->Start();
    for (auto& worker : workers_) At(Random(300 * kMillisecond), [w = worker.get()] { w->Start(); });
    for (auto& proxy : proxies_) At(Random(300 * kMillisecond), [p = proxy.get()] { p->Start(); });
  }

  // Returns what went wrong; empty: nothing.
  std::string Run() {
    const TimeNs warm_up = 4 * kSecond;
    const TimeNs faults_end = warm_up + 12 * kSecond;
    if (shape_.only_rm_restarts) {
      RunUntil(warm_up);
      losses_ = 0;
      for (TimeNs at = warm_up + Random(kSecond); at < faults_end; at += kSecond + Random(3 * kSecond)) {
        At(at - now_, [this] { RestartRm(Random(1500 * kMillisecond)); });
      }
    } else {
      lossy_ = true;
      for (TimeNs at = Random(kSecond); at < faults_end; at += Random(1500 * kMillisecond)) {
        At(at, [this] { RandomFault(); });
      }
    }
    RunUntil(faults_end);
    lossy_ = false;
    blocked_.clear();
    // What is stopped resumes, what is dead comes back, by the faults' own events; then all must settle.
    const TimeNs limit = faults_end + 60 * kSecond;
    TimeNs good_since = 0;
    while (error_.empty() && now_ < limit) {
      RunUntil(now_ + 200 * kMillisecond);
      if (!Settled()) {
        good_since = 0;
      } else if (good_since == 0) {
        good_since = now_;
      } else if (now_ - good_since > kSecond) {
        break;
      }
    }
    if (error_.empty() && (good_since == 0 || now_ >= limit)) {
      error_ = absl::StrCat("not settled 60 s after the last fault:\n", rm_->core->StatusJson(rm_->Local()).dump(1));
    }
    if (error_.empty() && shape_.only_rm_restarts && losses_ > 0) {
      error_ = absl::StrCat(losses_, " losses by restarts of the RM alone: ", last_loss_);
    }
    return error_.empty() ? "" : absl::StrCat(error_, "\n", absl::StrJoin(history_, "\n"));
  }

 private:
  struct Process {
    explicit Process(World* w) : world(w) {}
    virtual ~Process() = default;
    World* world;
    uint64_t life = 0;  // grows with each start
    bool alive = false;
    bool paused = false;
    double rate = 1;
    TimeNs offset = 0;
    std::vector<std::function<void()>> inbox;  // while paused

    TimeNs Local() const { return offset + static_cast<TimeNs>(static_cast<double>(world->now_) * rate); }
    void NewClock() {
      rate = 0.92 + 0.16 * world->random_.NextUnit();
      offset = 1000 * kSecond + static_cast<TimeNs>(world->random_.NextBelow(1000)) * kSecond;
    }
    void Every(DurationNs period, std::function<void()> fn) {
      world->At(static_cast<DurationNs>(static_cast<double>(period) / rate), [this, born = life, period, fn] {
        if (life != born || !alive) return;
        if (!paused) fn();
        Every(period, fn);
      });
    }
    // What reaches the process while it is stopped waits in its sockets.
    void Receive(uint64_t to_life, std::function<void()> fn) {
      if (!alive || life != to_life) return;
      if (paused) {
        inbox.push_back(std::move(fn));
      } else {
        fn();
      }
    }
    void Pause(DurationNs time) {
      if (!alive || paused) return;
      paused = true;
      world->At(time, [this, born = life] {
        if (life != born || !alive) return;
        paused = false;
        // Timers or sockets first: both happen.
        if (world->random_.NextBelow(2) == 0) Tick();
        for (auto& fn : std::exchange(inbox, {})) {
          if (alive && life == born) fn();
        }
      });
    }
    void Die() {
      alive = false;
      paused = false;
      ++life;
      inbox.clear();
    }
    virtual void Tick() = 0;
  };

  struct WorkerProcess : Process, WorkerLeaseSink {
    WorkerProcess(World* w, int i) : Process(w), index(i) {}
    int index;
    Incarnation incarnation;
    std::unique_ptr<WorkerLease> core;
    struct SliceUse {
      GrantNumber newest;                          // ever activated
      std::set<GrantNumber> working;               // work under it has not ended
      std::map<GrantNumber, TimeNs> renewal_sent;  // newest delivered heartbeat's sending, global time
    };
    std::map<PhysicalSliceId, SliceUse> use;

    void Start() {
      ++life;
      alive = true;
      NewClock();
      use.clear();
      incarnation = Incarnation(world->random_.NextNonZero());
      WorkerInfo info;
      info.set_version("1");
      info.set_name(absl::StrCat("w", index));
      info.set_host("h");
      info.set_platform("cpu");
      info.set_device_count(4);
      info.set_control_address(absl::StrCat(index));
      core = std::make_unique<WorkerLease>(incarnation, info, world->times_, this);
      world->Note(absl::StrCat(info.name(), " starts as ", incarnation.ToString()));
      core->OnRmConnected(Local());
      Every(TickPeriod(world->times_), [this] { Tick(); });
      Every(world->times_.heartbeat, [this] { Beat(); });
    }
    void Tick() override { core->OnTick(Local()); }
    void Beat() {
      for (const auto& lease : core->leases()) {
        if (lease.active) world->ToHolder(*this, lease.holder, lease.grant, false);
      }
    }
    void SendReport(MemberReport report) override {
      world->Send(id(), kRmId, [w = world, report = std::move(report)] {
        RmProcess& rm = *w->rm_;
        rm.Receive(rm.life, [w, &rm, report] { w->Check(rm.core->OnMemberReport(report, rm.Local())); });
      });
    }
    void Activated(const Grant& grant, ProxyLife) override {
      SliceUse& slice = use[grant.slice];
      world->Note(absl::StrCat("w", index, " active ", grant.ToString()));
      if (!slice.working.empty()) {
        world->Fail(absl::StrCat("w", index, " acknowledged ", grant.ToString(), " while older work ran"));
      }
      if (grant.number <= slice.newest) world->Fail(absl::StrCat("w", index, " went back to ", grant.ToString()));
      slice.newest = grant.number;
      slice.working.insert(grant.number);
    }
    void Fence(const Grant& grant, const absl::Status& why) override {
      world->Note(absl::StrCat("w", index, " fences ", grant.ToString(), ": ", why.message()));
      world->ToHolder(*this, ProxyLife(), grant, true);
      // Sometimes longer than the limit: then the process restarts itself.
      const DurationNs takes = world->random_.NextBelow(20) == 0 ? 4 * kSecond : world->Random(400 * kMillisecond);
      world->At(takes, [this, grant, born = life] {
        Receive(born, [this, grant] {
          use[grant.slice].working.erase(grant.number);
          core->OnOldWorkEnded(grant.slice, Local());
        });
      });
    }
    void RestartProcess(const std::string& why) override {
      world->Note(absl::StrCat("w", index, " restarts itself: ", why));
      world->At(0, [this, born = life] {
        if (life == born) world->RestartWorker(index, world->Random(300 * kMillisecond));
      });
    }
    void Refused(const std::string& why) override { world->Fail(absl::StrCat("w", index, " refused: ", why)); }
    void Placed(PhysicalSliceId, int) override {}
    int id() const { return 1 + index; }

    // A holder's heartbeat, and an op beside it.
    void OnBeat(const Grant& grant, int64_t echo_ns, TimeNs sent) {
      core->OnHolderHeartbeat(grant, echo_ns, Local());
      SliceUse& slice = use[grant.slice];
      TimeNs& newest = slice.renewal_sent[grant.number];
      newest = std::max(newest, sent);
      if (!core->Holds(grant, Local())) return;
      if (grant.number != slice.newest) {
        world->Fail(absl::StrCat("w", index, " obeyed ", grant.ToString(), " after ", slice.newest.ToString()));
      }
      const auto views = core->leases();
      const auto held =
          std::find_if(views.begin(), views.end(), [&](const auto& v) { return v.grant.SameNumber(grant); });
      if (held == views.end() || !held->renewed) return;  // its time runs from the activation
      // By the slowest clock, and with the longest way of a message, the lease has ended then.
      const DurationNs bound = static_cast<DurationNs>(static_cast<double>(world->times_.lease) / 0.92) + kDelayMax;
      if (world->now_ - newest > bound) {
        world->Fail(absl::StrCat("w", index, " obeyed ", grant.ToString(), " ", (world->now_ - newest) / kMillisecond,
                                 " ms after its last renewal was sent"));
      }
    }
  };

  struct ProxyProcess : Process, HolderLeaseSink {
    ProxyProcess(World* w, int i) : Process(w), index(i) {}
    int index;
    ProxyLife name;
    std::unique_ptr<HolderLease> core;
    using Key = std::tuple<VirtualSlice, int, Incarnation>;
    struct Link {
      MemberRef ref;
      int worker = 0;
      bool connected = false;
    };
    std::map<Key, Link> links;

    void Start() {
      ++life;
      alive = true;
      NewClock();
      links.clear();
      name = ProxyLife(world->random_.NextNonZero());
      core = std::make_unique<HolderLease>(name, world->times_, this);
      HolderReport info;
      info.set_version("1");
      core->SetInfo(info);
      world->Note(absl::StrCat("proxy ", index, " starts as ", name.ToString()));
      core->OnRmConnected(Local());
      core->Request(std::vector<std::string>(static_cast<size_t>(world->shape_.demands[static_cast<size_t>(index)]),
                                             world->TypeText()),
                    Local());
      Every(TickPeriod(world->times_), [this] { Tick(); });
    }
    void Tick() override {
      core->OnTick(Local());
      for (auto& [key, link] : links) {
        if (!link.connected) world->Hello(*this, link.ref, link.worker);
      }
    }
    Link* Find(const MemberRef& ref) {
      auto it = links.find({ref.slice, ref.index, ref.incarnation});
      return it != links.end() && it->second.ref.grant.SameNumber(ref.grant) ? &it->second : nullptr;
    }
    void SendReport(HolderReport report) override {
      world->Send(id(), kRmId, [w = world, report = std::move(report)] {
        RmProcess& rm = *w->rm_;
        rm.Receive(rm.life, [w, &rm, report] { w->Check(rm.core->OnHolderReport(report, rm.Local())); });
      });
    }
    void FleetKnown(const Fleet&) override {}
    void Refused(const std::string& why) override { world->Fail(absl::StrCat("proxy refused: ", why)); }
    void SliceBound(VirtualSlice slice, const Grant& grant, int) override {
      world->Note(absl::StrCat("proxy ", index, " slice ", slice.index, " bound ", grant.ToString()));
    }
    void SliceLost(VirtualSlice, const Grant&, const absl::Status& why) override { world->Lost(index, why); }
    void ConnectMember(const MemberRef& ref, const WorkerInfo& info) override {
      Link link;
      link.ref = ref;
      EXPECT_TRUE(absl::SimpleAtoi(info.control_address(), &link.worker));
      links[{ref.slice, ref.index, ref.incarnation}] = link;
    }
    void DisconnectMember(const MemberRef& ref) override { links.erase({ref.slice, ref.index, ref.incarnation}); }
    void MemberUp(const MemberRef&, const WorkerInfo&) override {}
    void MemberLost(const MemberRef&, const absl::Status& why) override { world->Lost(index, why); }
    void MemberDraining(const MemberRef&, const std::string&) override {}
    void SendHeartbeat(const MemberRef& ref, uint64_t, int64_t, int64_t echo_ns) override {
      Link* link = Find(ref);
      if (link == nullptr || !link->connected) return;
      WorkerProcess& worker = *world->workers_[static_cast<size_t>(link->worker)];
      world->Send(id(), worker.id(), [ref, echo_ns, &worker, sent = world->now_] {
        if (!worker.alive || worker.incarnation != ref.incarnation) return;
        worker.Receive(worker.life, [ref, echo_ns, &worker, sent] { worker.OnBeat(ref.grant, echo_ns, sent); });
      });
    }
    int id() const { return 100 + index; }
  };

  struct RmProcess : Process, ResourceManagerSink {
    explicit RmProcess(World* w) : Process(w) {}
    std::unique_ptr<ResourceManagerCore> core;
    void Start() {
      ++life;
      alive = true;
      NewClock();
      ResourceManagerOptions options;
      options.type = *ParseInstanceType(world->TypeText());
      options.slice_count = world->shape_.slices;
      options.times = world->times_;
      options.cluster_secret = "s";
      options.version = "1";
      options.life = world->random_.NextNonZero();
      core = std::make_unique<ResourceManagerCore>(options, this, Local());
      world->Note("RM starts");
      Every(TickPeriod(world->times_), [this] { Tick(); });
      // The others connect again within their back-off.
      for (auto& worker : world->workers_) {
        world->At(world->Random(world->times_.reconnect), [w = worker.get(), born = worker->life] {
          w->Receive(born, [w] { w->core->OnRmConnected(w->Local()); });
        });
      }
      for (auto& proxy : world->proxies_) {
        world->At(world->Random(world->times_.reconnect), [p = proxy.get(), born = proxy->life] {
          p->Receive(born, [p] { p->core->OnRmConnected(p->Local()); });
        });
      }
    }
    void Tick() override { core->OnTick(Local()); }
    void SendToMember(Incarnation incarnation, MemberUpdate update) override {
      for (auto& worker : world->workers_) {
        if (!worker->alive || worker->incarnation != incarnation) continue;
        world->Send(kRmId, worker->id(), [w = worker.get(), born = worker->life, update] {
          w->Receive(born, [w, update] { w->core->OnUpdate(update, w->Local()); });
        });
      }
    }
    void SendToHolder(ProxyLife name, HolderUpdate update) override {
      for (auto& proxy : world->proxies_) {
        if (!proxy->alive || proxy->name != name) continue;
        world->Send(kRmId, proxy->id(), [p = proxy.get(), born = proxy->life, update] {
          p->Receive(born, [p, update] { p->core->OnUpdate(update, p->Local()); });
        });
      }
    }
    void Log(const std::string& line) override { world->Note("rm: " + line); }
  };

  static constexpr int kRmId = 0;
  static constexpr DurationNs kDelayMax = 120 * kMillisecond;

  std::string TypeText() const { return absl::StrCat("cpu:", shape_.workers_per_slice, "x4"); }
  DurationNs Random(DurationNs below) {
    return static_cast<DurationNs>(random_.NextBelow(static_cast<uint64_t>(below)));
  }
  void At(DurationNs delay, std::function<void()> fn) { events_.push({now_ + delay, ++order_, std::move(fn)}); }
  void RunUntil(TimeNs end) {
    while (error_.empty() && !events_.empty() && events_.top().at <= end) {
      auto fn = std::move(const_cast<Event&>(events_.top()).fn);
      now_ = events_.top().at;
      events_.pop();
      fn();
    }
    now_ = std::max(now_, end);
  }
  void Send(int from, int to, std::function<void()> deliver) {
    if (blocked_.count({from, to}) > 0) return;
    if (lossy_ && random_.NextBelow(50) == 0) return;
    const bool twice = lossy_ && random_.NextBelow(50) == 0;
    if (twice) At(kMillisecond + Random(kDelayMax - kMillisecond), deliver);
    At(kMillisecond + Random(kDelayMax - kMillisecond), std::move(deliver));
  }
  // A worker's heartbeat, or its word that the grant has ended.
  void ToHolder(WorkerProcess& worker, ProxyLife holder, const Grant& grant, bool fenced) {
    for (auto& proxy : proxies_) {
      if (!proxy->alive || (!fenced && proxy->name != holder)) continue;
      ProxyProcess* p = proxy.get();
      for (const auto& [key, link] : p->links) {
        if (link.ref.incarnation != worker.incarnation || !link.ref.grant.SameNumber(grant) || !link.connected)
          continue;
        Send(worker.id(), p->id(), [p, ref = link.ref, born = p->life, sent_ns = worker.Local(), fenced] {
          p->Receive(born, [p, ref, sent_ns, fenced] {
            if (fenced) {
              p->core->OnMemberFenced(ref, p->Local());
            } else {
              p->core->OnMemberHeartbeat(ref, sent_ns, p->Local());
            }
          });
        });
      }
    }
  }
  void Hello(ProxyProcess& proxy, const MemberRef& ref, int worker_index) {
    WorkerProcess* worker = workers_[static_cast<size_t>(worker_index)].get();
    ProxyProcess* p = &proxy;
    ControlHello hello;
    hello.set_version("1");
    hello.set_life(proxy.name.value());
    hello.set_incarnation(ref.incarnation.value());
    *hello.mutable_grant() = ref.grant.ToProto();
    Send(p->id(), worker->id(), [this, p, ref, worker, hello, born = p->life] {
      if (!worker->alive) {
        Send(worker->id(), p->id(),
             [p, ref, born] { p->Receive(born, [p, ref] { p->core->OnMemberRefused(ref, p->Local()); }); });
        return;
      }
      worker->Receive(worker->life, [this, p, ref, worker, hello, born] {
        const ControlWelcome welcome = worker->core->OnHello(hello, worker->Local());
        Send(worker->id(), p->id(), [p, ref, welcome, born] {
          p->Receive(born, [p, ref, welcome] {
            if (ProxyProcess::Link* link = p->Find(ref)) link->connected = welcome.refusal() == ControlWelcome::NONE;
            p->core->OnMemberWelcome(ref, welcome, p->Local());
          });
        });
      });
    });
  }
  void Disconnect(WorkerProcess& worker) {  // its sockets close
    for (auto& proxy : proxies_) {
      for (auto& [key, link] : proxy->links) {
        if (link.ref.incarnation != worker.incarnation || !link.connected) continue;
        At(Random(kDelayMax), [p = proxy.get(), ref = link.ref, born = proxy->life] {
          p->Receive(born, [p, ref] {
            if (ProxyProcess::Link* now = p->Find(ref)) now->connected = false;
            p->core->OnMemberDisconnected(ref, p->Local());
          });
        });
      }
    }
  }
  void RestartWorker(int index, DurationNs down) {
    WorkerProcess& worker = *workers_[static_cast<size_t>(index)];
    if (!worker.alive) return;
    Note(absl::StrCat("w", index, " dies"));
    Disconnect(worker);
    At(Random(kDelayMax), [this, old = worker.incarnation, born = rm_->life] {
      rm_->Receive(born, [this, old] { rm_->core->OnMemberGone(old, rm_->Local()); });
    });
    worker.Die();
    At(down, [&worker] {
      if (!worker.alive) worker.Start();
    });
  }
  void RestartRm(DurationNs down) {
    if (!rm_->alive) return;
    Note("RM dies");
    rm_->Die();
    At(down, [this] {
      if (!rm_->alive) rm_->Start();
    });
  }
  void RandomFault() {
    const size_t w = random_.NextBelow(workers_.size());
    const size_t p = random_.NextBelow(proxies_.size());
    switch (random_.NextBelow(9)) {
      case 0: RestartWorker(static_cast<int>(w), Random(4 * kSecond)); break;
      case 1: {
        ProxyProcess& proxy = *proxies_[p];
        if (!proxy.alive) break;
        Note(absl::StrCat("proxy ", p, " dies"));
        At(Random(kDelayMax), [this, old = proxy.name, born = rm_->life] {
          rm_->Receive(born, [this, old] { rm_->core->OnHolderGone(old, rm_->Local()); });
        });
        proxy.Die();
        At(Random(4 * kSecond), [&proxy] {
          if (!proxy.alive) proxy.Start();
        });
        break;
      }
      case 2: RestartRm(Random(3 * kSecond)); break;
      case 3: PauseNoted(*workers_[w], absl::StrCat("w", w)); break;
      case 4: PauseNoted(*proxies_[p], absl::StrCat("proxy ", p)); break;
      case 5: PauseNoted(*rm_, "RM"); break;
      default: {
        std::vector<int> ids = {kRmId, workers_[w]->id(), proxies_[p]->id()};
        const int from = ids[random_.NextBelow(3)];
        const int to = ids[random_.NextBelow(3)];
        if (from == to) break;
        const bool both = random_.NextBelow(2) == 0;
        Note(absl::StrCat("partition ", from, both ? "<->" : "->", to));
        blocked_.insert({from, to});
        if (both) blocked_.insert({to, from});
        At(Random(5 * kSecond), [this, from, to] {
          blocked_.erase({from, to});
          blocked_.erase({to, from});
        });
      }
    }
  }
  void PauseNoted(Process& process, const std::string& name) {
    const DurationNs time = Random(6 * kSecond);
    Note(absl::StrCat(name, " stopped for ", time / kMillisecond, " ms"));
    process.Pause(time);
  }
  bool Settled() const {
    if (!rm_->alive || rm_->paused || !rm_->core->settled()) return false;
    int wanted = 0;
    int up = 0;
    for (const auto& proxy : proxies_) {
      if (!proxy->alive || proxy->paused) return false;
      for (const auto& slice : proxy->core->slices()) {
        ++wanted;
        const bool whole =
            !slice.members.empty() && std::all_of(slice.members.begin(), slice.members.end(), [](const auto& member) {
              return member.up && member.connected && member.ref.incarnation.valid();
            });
        if (whole) ++up;
      }
    }
    return up == std::min(wanted, shape_.slices);
  }
  void Lost(int proxy, const absl::Status& why) {
    ++losses_;
    last_loss_ = std::string(why.message());
    Note(absl::StrCat("proxy ", proxy, ": ", why.message()));
  }
  void Note(const std::string& text) { history_.push_back(absl::StrCat(now_ / kMillisecond, " ms ", text)); }
  void Fail(const std::string& text) {
    if (error_.empty()) error_ = absl::StrCat("at ", now_ / kMillisecond, " ms: ", text);
  }
  void Check(const absl::Status& status) {
    if (!status.ok()) Fail(std::string(status.message()));
  }

  struct Event {
    TimeNs at;
    uint64_t order;
    std::function<void()> fn;
    bool operator<(const Event& other) const { return std::tie(other.at, other.order) < std::tie(at, order); }
  };

  SeededRandom random_;
  const Shape shape_;
  LeaseTimes times_;
  TimeNs now_ = 0;
  uint64_t order_ = 0;
  std::priority_queue<Event> events_;
  std::vector<std::unique_ptr<WorkerProcess>> workers_;
  std::vector<std::unique_ptr<ProxyProcess>> proxies_;
  std::unique_ptr<RmProcess> rm_;
  bool lossy_ = false;
  std::set<std::pair<int, int>> blocked_;
  int losses_ = 0;
  std::string last_loss_, error_;
  std::vector<std::string> history_;
};

Shape ShapeOf(uint64_t seed, bool only_rm_restarts) {
  SeededRandom random(seed * 7919);
  Shape shape;
  shape.slices = 1 + static_cast<int>(random.NextBelow(3));
  shape.workers_per_slice = 1 + static_cast<int>(random.NextBelow(2));
  shape.spares = static_cast<int>(random.NextBelow(2));
  const int proxies = 1 + static_cast<int>(random.NextBelow(3));
  for (int i = 0; i < proxies; ++i) shape.demands.push_back(1 + static_cast<int>(random.NextBelow(2)));
  shape.only_rm_restarts = only_rm_restarts;
  return shape;
}

void RunSeeds(uint64_t default_runs, bool only_rm_restarts) {
  uint64_t first = 1;
  uint64_t runs = default_runs;
  if (const char* text = std::getenv("LANDBRIDGE_MODEL_RUNS")) {
    ASSERT_TRUE(absl::SimpleAtoi(text, &runs));
  }
  if (const char* text = std::getenv("LANDBRIDGE_MODEL_SEED")) {
    ASSERT_TRUE(absl::SimpleAtoi(text, &first));
    runs = 1;
  }
  for (uint64_t seed = first; seed < first + runs; ++seed) {
    const std::string error = World(seed, ShapeOf(seed, only_rm_restarts)).Run();
    ASSERT_EQ(error, "") << "LANDBRIDGE_MODEL_SEED=" << seed;
  }
}

TEST(LeaseModel, RandomFaults) { RunSeeds(600, false); }

// Restarts of the RM alone, however many, lose no lease and no member.
TEST(LeaseModel, RmRestartsLoseNothing) { RunSeeds(300, true); }

}  // namespace
}  // namespace landbridge
