// What the resource manager, holders and members say to the lease machines of a worker and a proxy: in any order, with
// anything in it.
#include "base/log.h"
#include "cluster/holder_lease.h"
#include "cluster/worker_lease.h"
#include "testing/fuzz.h"
#include "testing/fuzz_proto.h"

namespace landbridge::fuzz {
namespace {

class WorkerSide final : public WorkerLeaseSink {
 public:
  void SendReport(MemberReport report) override {
    LB_CHECK(report.number() > last_report_number);
    last_report_number = report.number();
  }
  void Activated(const Grant& grant, ProxyLife) override {
    // Nobody is let in while the old holder's work goes on.
    LB_CHECK(old_work[grant.slice] == 0);
  }
  void Fence(const Grant& grant, const absl::Status& why) override {
    LB_CHECK(!why.ok());
    ++old_work[grant.slice];
  }
  void RestartProcess(const std::string&) override {}
  void Refused(const std::string&) override {}
  void Placed(PhysicalSliceId, int) override {}

  uint64_t last_report_number = 0;
  std::map<PhysicalSliceId, int> old_work;
};

class ProxySide final : public HolderLeaseSink {
 public:
  void SendReport(HolderReport) override {}
  void FleetKnown(const Fleet& fleet) override {
    LB_CHECK(fleet.slice_count > 0 && fleet.workers_per_slice > 0 && fleet.devices_per_worker > 0);
    LB_CHECK(static_cast<int64_t>(fleet.slice_count) * fleet.workers_per_slice * fleet.devices_per_worker <=
             limits::kDevicesMax);
  }
  void Refused(const std::string&) override {}
  void SliceBound(VirtualSlice, const Grant&, int) override {}
  void SliceLost(VirtualSlice, const Grant&, const absl::Status& why) override { LB_CHECK(absl::IsDataLoss(why)); }
  void ConnectMember(const MemberRef& member, const WorkerInfo&) override { members.push_back(member); }
  void DisconnectMember(const MemberRef& member) override { LB_CHECK(member.incarnation.valid()); }
  void MemberUp(const MemberRef&, const WorkerInfo&) override { ++up; }
  void MemberLost(const MemberRef&, const absl::Status& why) override {
    LB_CHECK(absl::IsDataLoss(why));
    LB_CHECK(up-- > 0);
  }
  void MemberDraining(const MemberRef&, const std::string&) override {}
  void SendHeartbeat(const MemberRef&, uint64_t, int64_t, int64_t) override {}

  std::vector<MemberRef> members;
  int up = 0;
};

}  // namespace

std::vector<std::string> FuzzSeeds() {
  MemberUpdate update;
  update.set_term(1);
  update.set_number(1);
  update.set_incarnation(7);
  update.set_placed(true);
  MemberOffer* offer = update.add_offers();
  offer->mutable_grant()->set_term(1);
  offer->mutable_grant()->set_count(1);
  offer->mutable_grant()->set_secret("s");
  offer->set_holder(5);
  ControlHello hello;
  hello.set_version("v");
  hello.set_life(5);
  hello.set_incarnation(7);
  *hello.mutable_grant() = offer->grant();
  HolderUpdate holder;
  holder.set_term(1);
  holder.set_number(1);
  holder.set_life(5);
  holder.set_settled(true);
  holder.set_answers(1);
  holder.set_slice_type("cpu:4");
  holder.set_slice_count(1);
  holder.set_workers_per_slice(1);
  holder.set_devices_per_worker(4);
  RequestUpdate* request = holder.add_requests();
  request->set_id(1);
  *request->add_slices()->mutable_grant() = offer->grant();
  MemberUpdateForHolder* member = request->mutable_slices(0)->add_members();
  member->set_incarnation(7);
  member->mutable_info()->set_name("w");
  auto text = [](const google::protobuf::Message& message) { return WithLength(message.SerializeAsString()); };
  const std::string zero(1, '\0');
  std::string steps;
  steps += zero + zero + text(update);
  steps += "\x01" + zero + text(hello);
  steps += "\x02\x09\x01";
  steps += "\x03" + zero + text(holder);
  steps += "\x04" + zero + zero + zero + zero;
  steps += "\x05\x20";
  std::string random;
  for (int i = 0; i < 400; ++i) random.push_back(static_cast<char>(i * 7919 >> 3));
  return {steps, steps + steps, random};
}

void FuzzOne(absl::string_view input) {
  static const MessageMaker maker({"s", "v", "cpu:4", "w"});
  Choices choices(input);
  TimeNs now = 100 * kSecond;
  WorkerInfo info;
  info.set_version("v");
  info.set_name("w");
  WorkerSide worker_sink;
  WorkerLease worker(Incarnation(7), info, LeaseTimes{}, &worker_sink);
  worker.OnRmConnected(now);
  ProxySide proxy_sink;
  HolderLease proxy(ProxyLife(5), LeaseTimes{}, &proxy_sink);
  proxy.OnRmConnected(now);
  proxy.Request({"cpu:4", "cpu:4"}, now);
  proxy.Request({}, now);
  Grant grant;
  while (!choices.empty()) {
    auto ref = [&]() -> MemberRef {
      return proxy_sink.members.empty() ? MemberRef{} : proxy_sink.members[choices.Byte() % proxy_sink.members.size()];
    };
    switch (choices.Below(13)) {
      case 0: worker.OnUpdate(Next<MemberUpdate>(choices, maker), now); break;
      case 1: {
        const ControlHello hello = Next<ControlHello>(choices, maker);
        grant = Grant::FromProto(hello.grant());
        if (worker.OnHello(hello, now).refusal() == ControlWelcome::NONE) LB_CHECK(worker.Holds(grant, now));
        break;
      }
      case 2: worker.OnHolderHeartbeat(grant, choices.Size(), now); break;
      case 3: proxy.OnUpdate(Next<HolderUpdate>(choices, maker), now); break;
      case 4: {
        const MemberRef member = ref();
        proxy.OnMemberWelcome(member, Next<ControlWelcome>(choices, maker), now);
        break;
      }
      case 5:
        now += static_cast<DurationNs>(choices.Byte()) * 20 * kMillisecond;
        worker.OnTick(now);
        proxy.OnTick(now);
        break;
      case 6: proxy.OnMemberHeartbeat(ref(), choices.Size(), now); break;
      case 7: proxy.OnMemberRefused(ref(), now); break;
      case 8: proxy.OnMemberDisconnected(ref(), now); break;
      case 9: proxy.OnMemberFenced(ref(), now); break;
      case 10:
        for (auto& [slice, open] : worker_sink.old_work) {
          if (open == 0) continue;
          --open;
          worker.OnOldWorkEnded(slice, now);
          break;
        }
        break;
      case 11: proxy.Release({1 + choices.Below(2), static_cast<int>(choices.Below(3))}, now); break;
      default:
        worker.OnRmConnected(now);
        proxy.OnRmConnected(now);
        break;
    }
  }
  proxy.OnLeaving(now);
  worker.OnLeaving(now);
}

}  // namespace landbridge::fuzz
