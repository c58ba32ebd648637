// Reports of workers and proxies that may say anything: the resource manager answers, places and leases as before.
#include "base/log.h"
#include "resource_manager/resource_manager_core.h"
#include "testing/fuzz.h"
#include "testing/fuzz_proto.h"

namespace landbridge::fuzz {
namespace {

class Sink final : public ResourceManagerSink {
 public:
  void SendToMember(Incarnation, MemberUpdate update) override { last_member = std::move(update); }
  void SendToHolder(ProxyLife, HolderUpdate update) override { last_holder = std::move(update); }
  void Log(const std::string&) override {}
  MemberUpdate last_member;
  HolderUpdate last_holder;
};

WorkerInfo Info() {
  WorkerInfo info;
  info.set_version("v");
  info.set_name("w");
  info.set_platform("cpu");
  info.set_device_count(2);
  info.set_control_address("h:1");
  return info;
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  MemberReport member;
  member.set_incarnation(7);
  member.set_number(1);
  *member.mutable_info() = Info();
  MemberReport claims = member;
  claims.set_number(2);
  claims.set_placed(true);
  MemberLease* lease = claims.add_leases();
  lease->mutable_grant()->set_term(1);
  lease->mutable_grant()->set_count(1);
  lease->set_holder(5);
  lease->set_state(MemberLease::ACTIVE);
  claims.add_ended()->set_slice(1);
  HolderReport holder;
  holder.set_life(5);
  holder.set_number(1);
  holder.set_version("v");
  SliceRequest* request = holder.add_requests();
  request->set_id(1);
  request->add_slices()->set_type("cpu:2x2");
  holder.add_dead(8);
  const std::string zero(1, '\0');
  const std::string steps = zero + zero + WithLength(member.SerializeAsString()) + "\x01" + zero +
                            WithLength(holder.SerializeAsString()) + "\x02\x40" + zero + zero +
                            WithLength(claims.SerializeAsString()) + "\x03\x07\x04\x07\x05";
  std::string random;
  for (int i = 0; i < 600; ++i) random.push_back(static_cast<char>(i * 7919 >> 3));
  return {steps, steps + "\x05\x02\xff" + steps, random};
}

void FuzzOne(absl::string_view input) {
  static const MessageMaker maker({"v", "w", "w2", "cpu", "cpu:2x2", "h:1"});
  Choices choices(input);
  TimeNs now = 100 * kSecond;
  ResourceManagerOptions options;
  options.type = *ParseInstanceType("cpu:2x2");
  options.slice_count = 2;
  options.cluster_secret = "secret";
  options.version = "v";
  Sink sink;
  ResourceManagerCore rm(options, &sink, now);
  uint64_t term = rm.term();
  while (!choices.empty()) {
    switch (choices.Below(8)) {
      case 0: {
        MemberReport report;
        if (choices.Flag()) {
          maker.Fill(choices, &report);
          if (choices.Flag()) *report.mutable_info() = Info();
          if (choices.Flag()) report.set_promised_term(rm.term());
        } else {
          const absl::string_view bytes = choices.Text();
          if (!report.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) break;
        }
        rm.OnMemberReport(report, now).IgnoreError();
        break;
      }
      case 1: {
        HolderReport report;
        if (choices.Flag()) {
          maker.Fill(choices, &report);
          if (choices.Flag()) report.set_promised_term(rm.term());
        } else {
          const absl::string_view bytes = choices.Text();
          if (!report.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) break;
        }
        rm.OnHolderReport(report, now).IgnoreError();
        break;
      }
      case 2:
        now += static_cast<DurationNs>(choices.Byte()) * 50 * kMillisecond;
        rm.OnTick(now);
        break;
      case 3: rm.OnMemberGone(Incarnation(choices.Id()), now); break;
      case 4: rm.OnHolderGone(ProxyLife(choices.Id()), now); break;
      case 5:
        LB_CHECK(!rm.StatusJson(now).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).empty());
        break;
      case 6: {  // a worker does as it was told
        MemberReport report;
        report.set_incarnation(sink.last_member.incarnation());
        report.set_number(choices.U64() >> 8);
        report.set_promised_term(sink.last_member.term());
        *report.mutable_info() = Info();
        report.mutable_info()->set_name(choices.Flag() ? "w" : "w2");
        report.set_placed(sink.last_member.placed());
        report.set_slice(sink.last_member.slice());
        report.set_index(sink.last_member.index());
        for (const MemberOffer& offer : sink.last_member.offers()) {
          MemberLease* lease = report.add_leases();
          *lease->mutable_grant() = offer.grant();
          lease->set_holder(offer.holder());
          lease->set_request(offer.request());
          lease->set_virtual_slice(offer.virtual_slice());
          lease->set_state(MemberLease::ACTIVE);
        }
        rm.OnMemberReport(report, now).IgnoreError();
        break;
      }
      default: {  // a proxy does as it was told
        HolderReport report;
        report.set_life(sink.last_holder.life());
        report.set_number(choices.U64() >> 8);
        report.set_version("v");
        report.set_promised_term(sink.last_holder.term());
        for (const RequestUpdate& told : sink.last_holder.requests()) {
          SliceRequest* request = report.add_requests();
          request->set_id(told.id());
          if (told.has_stamp()) *request->mutable_stamp() = told.stamp();
          for (const VirtualSliceUpdate& slice : told.slices()) {
            VirtualSliceReport* said = request->add_slices();
            said->set_type("cpu:2x2");
            if (slice.has_grant()) *said->mutable_grant() = slice.grant();
            for (const auto& member : slice.members()) said->add_members(member.incarnation());
          }
        }
        rm.OnHolderReport(report, now).IgnoreError();
        break;
      }
    }
    LB_CHECK(rm.term() >= term);  // grants are ordered by it
    term = rm.term();
    const auto counts = rm.counts(now);
    LB_CHECK(counts.slices_leased + counts.slices_free <= 2);
  }
}

}  // namespace landbridge::fuzz
