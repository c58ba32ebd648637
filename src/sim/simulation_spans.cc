// Launches that span workers: what these tell each other, their collectives, and whether their orders agree.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/simulation_impl.h"

namespace landbridge::sim {

// Pulled by the reader from the writer, under the grants of both: what one that was given up still says is not heard. Now
// and then something comes twice, or the connection breaks and all that comes later waits.
void Simulation::Mail(Incarnation from, const Grant& grant, Incarnation to, std::string mail) {
  SimWorker* target = WorkerOf(to);
  if (target == nullptr) return;
  ++outcome_.mails;
  TimeNs& at = mail_at_[{from, to}];
  const DurationNs delay = world_.Chance(knobs_.break_stream / 50)
                               ? world_.Between(10 * kMillisecond, kSecond)
                               : world_.Between(knobs_.message_min, knobs_.message_max);
  at = std::max({at, world_.now() + delay, MailCutUntil(from, to)});
  const int copies = world_.Chance(knobs_.repeat_mail) ? 2 : 1;
  world_.After(at - world_.now(), [this, from, grant, to, to_grant = target->grant(), copies, mail = std::move(mail)] {
    SimWorker* sender = WorkerOf(from);
    SimWorker* receiver = WorkerOf(to);
    if (sender == nullptr || receiver == nullptr || !sender->grant().SameNumber(grant)) return;
    if (auto lost = lost_grants_.find(from); lost != lost_grants_.end() && grant.number <= lost->second) return;
    for (int i = 0; i < copies; ++i) {
      receiver->Deliver([this, from, to, to_grant, mail] {
        if (SimWorker* worker = WorkerOf(to)) worker->OnMail(from, to_grant, mail);
      });
    }
  });
}

// ---------------------------------------------------------------- two workers that do not hear each other

TimeNs Simulation::MailCutUntil(Incarnation one, Incarnation other) const {
  auto cut = mail_cut_.find(std::minmax(one, other));
  return cut == mail_cut_.end() ? 0 : cut->second;
}

void Simulation::CutMail(int slice, int other, DurationNs lasts) {
  const Incarnation one = worker_of_slot_[static_cast<size_t>(slice)];
  const Incarnation two = worker_of_slot_[static_cast<size_t>(other)];
  if (one == two || WorkerOf(one) == nullptr || WorkerOf(two) == nullptr) return;
  world_.Trace([&] { return absl::StrCat("no mail between ", one.ToString(), " and ", two.ToString()); });
  TimeNs& until = mail_cut_[std::minmax(one, two)];
  const bool cut_already = until > world_.now();
  until = std::max(until, world_.now() + lasts);
  if (!cut_already) world_.After(knobs_.mail_broken_after, [this, one, two] { MailStaysBroken(one, two); });
}

void Simulation::MailStaysBroken(Incarnation one, Incarnation two) {
  if (MailCutUntil(one, two) <= world_.now()) return;
  mail_was_broken_ = true;
  for (const auto& [reader, writer] : {std::pair(one, two), std::pair(two, one)}) {
    SimWorker* worker = WorkerOf(reader);
    if (worker == nullptr) return;  // the other hears of its loss
    worker->Deliver([this, reader = reader, writer = writer] {
      if (SimWorker* there = WorkerOf(reader)) there->OnMailBroken(writer);
    });
  }
  world_.After(knobs_.mail_broken_after, [this, one, two] { MailStaysBroken(one, two); });
}

// I4: a part of a launch with collectives ends well only if all of them do. (What had ended when a worker was lost stays; parts
// of launches without collectives are programs of their own.)
void Simulation::CheckGangs() {
  if (outcome_.losses > 0) return;
  for (const auto& [number, parts] : gangs_) {
    const auto good = std::count_if(parts.begin(), parts.end(), [](const SpanPart& part) { return part.good; });
    if (good == 0 || !parts.front().collectives || good == parts.front().parts) continue;
    world_.Violation(absl::StrCat("of launch ", number, " that spans ", parts.front().parts, " workers, ", good,
                                  " parts ended well, and ", parts.size() - static_cast<size_t>(good), " badly"));
  }
}

// ---------------------------------------------------------------- launches

void Simulation::MeetSpan(uint64_t space, int parts, Incarnation who, std::function<void()> met) {
  std::map<Incarnation, std::function<void()>>& meeting = meetings_[space];
  meeting[who] = std::move(met);
  if (meeting.size() < static_cast<size_t>(parts)) return;
  auto all = std::move(meeting);
  meetings_.erase(space);
  ++outcome_.spans;
  for (auto& [worker, go_on] : all) {
    world_.After(world_.Between(knobs_.message_min, knobs_.message_max), [this, worker = worker, go_on = go_on] {
      if (SimWorker* there = WorkerOf(worker)) there->Deliver(go_on);
    });
  }
}

void Simulation::LeaveSpan(uint64_t space, Incarnation who) {
  auto meeting = meetings_.find(space);
  if (meeting != meetings_.end()) meeting->second.erase(who);
}

// I2, for what two devices follow each other: no device starts them the other way round.
void Simulation::SpanInLog(Incarnation who, const Grant& grant, uint32_t device, uint64_t number) {
  auto [last, first] = last_span_.try_emplace({who, device}, grant, number);
  if (first) return;
  auto& [last_grant, before] = last->second;
  if (last_grant.SameNumber(grant)) {
    span_before_.insert({before, number});
    if (span_before_.contains({number, before})) {
      world_.Violation(absl::StrCat("launches ", before, " and ", number, " that span workers are in two orders"));
    }
  }
  last->second = {grant, number};
}

}  // namespace landbridge::sim
