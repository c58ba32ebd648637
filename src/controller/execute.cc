// Programs, waiting, reading.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "controller/controller_impl.h"
#include "controller/status_proto.h"

namespace landbridge {

absl::StatusOr<ExecutableId> Controller::Impl::AddExecutable(SessionId session,
                                                             std::shared_ptr<const ProgramImage> program,
                                                             std::vector<DeviceId> devices) {
  LB_RETURN_IF_ERROR(CheckSession(session));
  return programs_.Add(session, std::move(program), std::move(devices));
}

absl::StatusOr<ExecuteResult> Controller::Impl::Execute(SessionId session, const ExecuteArgs& args,
                                                        uint64_t user_context, TimeNs now) {
  const auto hints = sessions_.find(session);
  if (hints == sessions_.end()) return CheckSession(session);
  ctl::Executable* executable = programs_.Find(session, args.executable);
  if (executable == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("executable ", args.executable.ToString(), " is not known"));
  }
  ctl::Program* program = executable->program;
  LB_ASSIGN_OR_RETURN(ctl::Placement * placement, programs_.PlaceOn(program, args.devices));
  const ExecutableInfo& info = program->compiled->info;
  const auto parameters = static_cast<size_t>(info.parameters_size());
  if (args.args.size() != parameters) {
    return absl::InvalidArgumentError(absl::StrCat("program '", info.name(), "' takes ", parameters, " arguments, but ",
                                                   args.args.size(), " are given"));
  }

  // What is wrong with the call is an error of the call; what is wrong with its data goes into the results.
  absl::Status doomed;
  args_.clear();
  for (size_t i = 0; i < parameters; ++i) {
    Array* array = buffers_.Find(session, args.args[i]);
    if (array == nullptr || buffers_.Deleted(*array)) {
      return FindLiving(session, args.args[i], absl::StrCat("argument ", i, " of '", info.name(), "'")).status();
    }
    if (placement->checked[i] != array->spec) {
      LB_RETURN_IF_ERROR(ctl::CheckArgument(info, *placement, static_cast<int>(i), *array->spec));
      placement->checked[i] = array->spec;
    }
    if (doomed.ok()) doomed = buffers_.Error(*array);
    args_.push_back(array);
  }

  auto donates = [&](size_t i) {
    if (!program->donated[i]) return false;
    return std::find(args.non_donatable.begin(), args.non_donatable.end(), static_cast<int>(i)) ==
           args.non_donatable.end();
  };
  killed_.clear();
  if (program->donates) {
    absl::Status clash;
    for (size_t i = 0; i < parameters && clash.ok(); ++i) {
      if (!donates(i)) continue;
      for (uint32_t s = 0; s < args_[i]->size(); ++s) {
        const ShardRef shard = args_[i]->at(s);
        if (buffers_.Kill(shard)) {
          killed_.push_back(shard);
        } else {
          clash = absl::InvalidArgumentError(
              absl::StrCat("argument ", i, " of '", info.name(), "' is donated, but the same buffer is donated twice"));
          break;
        }
      }
    }
    for (size_t i = 0; i < parameters && clash.ok() && !killed_.empty(); ++i) {
      if (!donates(i) && buffers_.Deleted(*args_[i])) {
        clash = absl::InvalidArgumentError(
            absl::StrCat("argument ", i, " of '", info.name(), "' is the same buffer as a donated one; pass a copy"));
      }
    }
    if (!clash.ok()) {
      for (const ShardRef& shard : killed_) buffers_.Revive(shard);
      return clash;
    }
  }

  ExecuteResult result;
  result.ticket = nodes_.NextTicket();
  for (const ctl::Placement::Part& part : placement->parts) {
    if (!doomed.ok()) break;
    doomed = programs_.EnsureLoaded(program, cluster_.slots()[static_cast<size_t>(part.slot)].life.get(), session);
  }
  if (!doomed.ok()) {
    // It starts nowhere, the worker need not hear of it. What it would have consumed is gone.
    doomed = ctl::WithOrigin(std::move(doomed), user_context, result.ticket);
    for (const auto& spec : placement->outputs) {
      result.outputs.push_back(buffers_.NextId());
      buffers_.NewError(result.outputs.back(), session, spec, doomed);
    }
    for (const ShardRef& shard : killed_) buffers_.Revive(shard);
    for (size_t i = 0; i < parameters; ++i) {
      if (program->donates && donates(i)) buffers_.Destroy(args_[i]);
    }
    nodes_.KeepFailure(result.ticket, session, doomed);
    return result;
  }

  const auto count = static_cast<uint32_t>(placement->devices.size());
  groups_.clear();
  result.outputs.reserve(placement->outputs.size());
  for (size_t i = 0; i < placement->outputs.size(); ++i) {
    const ArrayId id = buffers_.NextId();
    groups_.push_back(buffers_.NewGroup(id, count, info.outputs(static_cast<int>(i)).device_bytes()));
    buffers_.NewWhole(id, session, placement->outputs[i], groups_.back());
    result.outputs.push_back(id);
  }
  ctl::Span* span = placement->spans() ? &spans_.Add(session) : nullptr;
  absl::InlinedVector<Ticket, 4> tickets{result.ticket};
  if (span != nullptr) {
    while (tickets.size() < placement->parts.size()) tickets.push_back(nodes_.NextTicket());
    for (size_t p = 0; p < tickets.size(); ++p) {
      spans_.AddPart(*span, tickets[p], cluster_.slots()[static_cast<size_t>(placement->parts[p].slot)].life.get());
    }
  }
  for (size_t p = 0; p < placement->parts.size(); ++p) {
    const ctl::Placement::Part& part = placement->parts[p];
    Life* life = cluster_.slots()[static_cast<size_t>(part.slot)].life.get();
    WorkerOp op;
    Launch* launch = op.mutable_launch();
    launch->set_ticket(tickets[p].value());
    launch->set_executable(program->id.value());
    launch->set_session(session.value());
    launch->set_user_context(user_context);
    launch->set_report_at_once(args.end_is_awaited || options_.sequential_dispatch);
    if (!args.call_site.empty()) launch->set_call_site(args.call_site);
    launch->set_priority(args.priority.value_or(hints->second.priority));
    if (hints->second.weight != 1) launch->set_weight(static_cast<float>(hints->second.weight));
    if (span == nullptr) launch->set_phase(args.phase);  // what spans workers waits for nobody's budget
    launch->mutable_devices()->Add(part.ordinals.begin(), part.ordinals.end());
    launch->mutable_args()->Reserve(static_cast<int>(parameters));
    for (size_t i = 0; i < parameters; ++i) {
      LaunchArg* arg = launch->add_args();
      const Array& array = *args_[i];
      if (array.form == Array::Form::kWhole) {
        arg->set_array(array.group->id.value());
      } else {
        for (uint32_t s : part.shards) {
          const ShardRef shard = array.at(s);
          BufferRefProto* ref = arg->add_shards();
          ref->set_array(shard.group->id.value());
          ref->set_shard(shard.shard);
        }
      }
      if (program->donates && donates(i)) launch->add_donated(static_cast<uint32_t>(i));
    }
    if (span != nullptr) NameSpan(*placement, part, launch->mutable_span());
    ctl::Node& node = nodes_.Add(tickets[p], life, session, now);
    if (span != nullptr) node.shards = part.shards;
    for (size_t i = 0; i < groups_.size(); ++i) {
      for (uint32_t s : part.shards) {
        Shard& shard = groups_[i]->at(s);
        shard.life = life;
        shard.flags = Shard::kTold;
      }
      launch->add_outputs(result.outputs[i].value());
      nodes_.AddArray(node, result.outputs[i]);
    }
    ops_.emplace_back(life, std::move(op));
  }
  // All of them are known before the first is sent: it names the others.
  for (auto& [life, op] : ops_) dispatcher_.Send(life, std::move(op), session);
  ops_.clear();
  return result;
}

void Controller::Impl::NameSpan(const ctl::Placement& placement, const ctl::Placement::Part& here, LaunchSpan* span) {
  span->mutable_shards()->Add(here.shards.begin(), here.shards.end());
  span->mutable_worker_of_device()->Resize(static_cast<int>(placement.devices.size()), 0);
  for (size_t p = 0; p < placement.parts.size(); ++p) {
    for (uint32_t s : placement.parts[p].shards) {
      span->set_worker_of_device(static_cast<int>(s), static_cast<uint32_t>(p));
    }
  }
}

// ---------------------------------------------------------------- waiting

void Controller::Impl::WhenReady(SessionId session, RequestId request, absl::Span<const ArrayId> arrays) {
  if (!sessions_.contains(session) || requests_.Taken(request)) return;
  requests_.OpenWait(request, session);
  // One question per worker, whatever is asked.
  std::vector<std::pair<Life*, WorkerOp>> ops;
  auto watch_at = [&](Life* life) {
    for (auto& [at, op] : ops) {
      if (at == life) return op.mutable_watch();
    }
    ops.emplace_back(life, WorkerOp());
    return ops.back().second.mutable_watch();
  };
  for (ArrayId id : arrays) {
    absl::StatusOr<Array*> found = FindLiving(session, id, "wait");
    if (!found.ok()) {
      requests_.AddError(request, found.status());
      continue;
    }
    Array* array = *found;
    if (buffers_.Ready(*array)) continue;
    requests_.AddError(request, buffers_.Error(*array));
    if (array->form == Array::Form::kWhole && array->group->count == 1) {
      const Shard& shard = array->group->one;
      if (!shard.Is(Shard::kFailed) && shard.life != nullptr)
        watch_at(shard.life)->add_arrays(array->group->id.value());
      continue;
    }
    for (uint32_t i = 0; i < array->size(); ++i) {
      const ShardRef shard = array->at(i);
      if (shard->Is(Shard::kFailed) || shard->Is(Shard::kReady) || shard->life == nullptr) continue;
      BufferRefProto* ref = watch_at(shard->life)->add_shards();
      ref->set_array(shard.group->id.value());
      ref->set_shard(shard.shard);
    }
  }
  for (auto& [life, op] : ops) {
    op.mutable_watch()->set_watch(requests_.AddWatch(request, life));
    dispatcher_.Send(life, std::move(op), session);
  }
  requests_.StartWait(request);
}

void Controller::Impl::WhenDone(SessionId session, RequestId request, Ticket launch) {
  if (!sessions_.contains(session) || requests_.Taken(request)) return;
  requests_.OpenWait(request, session);
  const ctl::Node* node = nodes_.Find(launch);
  const std::shared_ptr<ctl::Span> span = spans_.Find(launch);
  if (span != nullptr && span->session == session) {
    for (const ctl::Span::Part& part : span->parts) {
      if (nodes_.Find(part.ticket) != nullptr) {
        requests_.AddPiece(request);
        requests_.WaitForLaunch(request, part.ticket);
      } else {
        requests_.AddError(request, nodes_.Failure(part.ticket, session));
      }
    }
  } else if (node != nullptr && node->session == session) {
    requests_.AddPiece(request);
    requests_.WaitForLaunch(request, launch);
  } else if (!nodes_.Issued(launch)) {
    requests_.AddError(request,
                       absl::InvalidArgumentError(absl::StrCat("launch ", launch.ToString(), " is not known")));
  } else {
    requests_.AddError(request, nodes_.Failure(launch, session));
  }
  requests_.StartWait(request);
}

void Controller::Impl::ReadArray(SessionId session, RequestId request, ArrayId id, std::vector<int64_t> byte_strides,
                                 int64_t image_bytes) {
  if (!sessions_.contains(session) || requests_.Taken(request)) return;
  auto refuse = [&](absl::Status status) { requests_.AnswerRead(request, std::move(status)); };
  absl::StatusOr<Array*> found = FindLiving(session, id, "read");
  if (!found.ok()) return refuse(found.status());
  const Array& array = **found;
  const ArraySpec& spec = *array.spec;
  if (!spec.sharding->IsFullyReplicated()) {
    return refuse(absl::InvalidArgumentError(
        absl::StrCat("array ", id.ToString(), " is ", spec.sharding->ToString(),
                     "; only arrays of one device or fully replicated ones can be read as a whole: read its shards")));
  }
  absl::StatusOr<int64_t> bytes = StridedImageBytes(spec.dtype, spec.dims, byte_strides);
  if (!bytes.ok()) return refuse(bytes.status());
  if (*bytes != image_bytes) {
    return refuse(absl::InvalidArgumentError(absl::StrCat("array ", id.ToString(), " has an image of ", *bytes,
                                                          " bytes, but ", image_bytes, " are asked for")));
  }
  if (array.form == Array::Form::kNone) return refuse(array.error);
  // Any replica that is not lost will do; one that is there already is best.
  uint32_t chosen = array.size();
  for (uint32_t i = 0; i < array.size(); ++i) {
    if (array.at(i)->Is(Shard::kFailed)) continue;
    if (chosen == array.size()) chosen = i;
    if (!array.at(i)->Is(Shard::kReady)) continue;
    chosen = i;
    break;
  }
  if (chosen == array.size()) return refuse(buffers_.Error(array));
  const ShardRef shard = array.at(chosen);
  requests_.OpenRead(request, session, shard->life, image_bytes);
  WorkerOp op;
  Read* read = op.mutable_read();
  read->set_read(request.value());
  read->mutable_ref()->set_array(shard.group->id.value());
  read->mutable_ref()->set_shard(shard.shard);
  read->mutable_dims()->Add(spec.dims.begin(), spec.dims.end());
  read->set_dtype(static_cast<int32_t>(spec.dtype));
  read->mutable_byte_strides()->Add(byte_strides.begin(), byte_strides.end());
  read->set_image_bytes(image_bytes);
  read->set_session(session.value());
  dispatcher_.Send(shard->life, std::move(op), session);
}

void Controller::Impl::AskMemory(SessionId session, RequestId request, DeviceId device) {
  if (!sessions_.contains(session) || requests_.Taken(request)) return;
  absl::StatusOr<ctl::ClusterTable::Device> found = cluster_.Find(device);
  if (!found.ok()) return requests_.AnswerRead(request, found.status());
  ctl::ClusterTable::Slot& slot = cluster_.slots()[static_cast<size_t>(found->slot)];
  Life* life = slot.life.get();
  if (!life->up) {
    return requests_.AnswerRead(
        request, absl::FailedPreconditionError(absl::StrCat("device ", device.value(), ": no worker serves ",
                                                            slot.id.ToString(), " at the moment")));
  }
  requests_.OpenMemory(request, session, life, found->ordinal);
  dispatcher_.FlushCollected(life);
  WorkerOp op;
  op.mutable_ask_memory()->set_request(request.value());
  dispatcher_.SendNow(life, std::move(op));
}

void Controller::Impl::ReleaseRead(RequestId request) {
  const ctl::Requests::Released released = requests_.ReleaseRead(request);
  if (released.life == nullptr) return;
  if (!released.answered) {
    bool waited = false;
    dispatcher_.EditWaiting(released.life, [&](ctl::ParkedOp* entry, std::vector<ctl::ParkedOp>*) {
      const bool it = entry->op.has_read() && entry->op.read().read() == request.value();
      waited |= it;
      return !it;
    });
    if (waited) return dispatcher_.Recheck(released.life);
  }
  WorkerOp op;
  op.mutable_release_read()->set_read(request.value());
  dispatcher_.SendNow(released.life, std::move(op));
}

}  // namespace landbridge
