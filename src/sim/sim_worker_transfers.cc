#include "sim/sim_worker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sim/messages.h"

namespace landbridge::sim {

// ---------------------------------------------------------------- uploads

void SimWorker::StartUpload(std::shared_ptr<const Upload> upload) {
  uploads_[upload->key()] = upload;
  for (const Target& target : upload->targets()) Told(ToRef(target.ref()));
  if (!upload->pulled()) return;  // UploadBytes follows
  Later(world_->Between(50 * kMicrosecond, 2 * kMillisecond), [this, key = upload->key(), generation = generation_] {
    if (generation != generation_) return;
    const Content* bytes = fabric_->HostBytes(key);
    if (bytes == nullptr) {
      auto it = uploads_.find(key);
      if (it == uploads_.end()) return;
      uploads_.erase(it);
      core_->OnUploadDone(key, absl::FailedPreconditionError("the client is gone"), world_->now());
      FlushSoon();
      CheckOldWork();
      return;
    }
    UploadBytes(key, Pack(*bytes));
  });
}

void SimWorker::UploadBytes(uint64_t key, std::string data) {
  auto it = uploads_.find(key);
  if (it == uploads_.end()) return;
  std::shared_ptr<const Upload> upload = it->second;
  uploads_.erase(it);
  Content content = Empty(ToDims(upload->dims()));
  if (data.size() != content.elements.size() * 8) return world_->Violation("an upload of the wrong size");
  std::memcpy(content.elements.data(), data.data(), data.size());
  // Made from inside the core's call at times: answer as an event of its own.
  Later(world_->Between(1 * kMicrosecond, 100 * kMicrosecond), [this, upload, content, generation = generation_] {
    if (generation != generation_) return;
    for (const Target& target : upload->targets()) Put(ToRef(target.ref()), target.device(), content);
    core_->OnUploadDone(upload->key(), absl::OkStatus(), world_->now());
    FlushSoon();
    CheckOldWork();
  });
}

void SimWorker::CancelUpload(uint64_t key, const absl::Status& why) {
  auto it = uploads_.find(key);
  if (it == uploads_.end()) return;  // its end is under way
  uploads_.erase(it);
  Later(10 * kMicrosecond, [this, key, why, generation = generation_] {
    if (generation != generation_) return;
    core_->OnUploadDone(key, why, world_->now());
    FlushSoon();
    CheckOldWork();
  });
}

// ---------------------------------------------------------------- makes

void SimWorker::StartMake(std::shared_ptr<const MakeBuffers> op, int index) {
  auto make = std::make_shared<Make>();
  make->op = op;
  make->started = world_->now();
  Told(ToRef(op->buffers(index).target().ref()));
  make->index = index;
  const MakeBuffer& buffer = op->buffers(index);
  make->content = Empty(ToDims(buffer.dims()));
  makes_[{op->ticket(), index}] = make;
  make->open = 1;
  const uint64_t generation = generation_;
  for (const Piece& piece : buffer.pieces()) {
    const IndexBox target = ToBox(piece.target_box(), make->content.dims);
    ++make->open;
    if (piece.has_remote()) {
      StartPull(make, piece, target);
    } else {
      const Content* source = Find(ToRef(piece.local()));
      if (source == nullptr) {
        world_->Violation(absl::StrCat(name_, ": make t", op->ticket(), " needs ", ToRef(piece.local()).ToString()));
        return;
      }
      Paste(Cut(*source, ToBox(piece.source_box(), source->dims)), target, &make->content);
      --make->open;
    }
  }
  Later(world_->Between(5 * kMicrosecond, 200 * kMicrosecond), [this, make, generation] {
    if (generation == generation_) FinishMake(make);
  });
}

void SimWorker::StartPull(const std::shared_ptr<Make>& make, const Piece& piece, const IndexBox& target) {
  const uint64_t generation = generation_;
  auto landed = [this, make, &piece, target, generation](absl::StatusOr<Content> bytes) {
    if (fabric_->WorkerOf(self_) != this) return;
    Deliver([this, make, &piece, target, generation, bytes = std::move(bytes)] {
      if (generation != generation_) return;
      if (!bytes.ok() && absl::IsUnavailable(bytes.status()) && !make->cancelled && !fenced_ &&
          world_->now() - make->started < limits::kPullRetryTime) {
        // The connection broke. What that means, the controller says (PeerLost, hence CancelMake).
        return Later(limits::kPullRetryPause, [this, make, &piece, target, generation] {
          if (generation == generation_) StartPull(make, piece, target);
        });
      }
      if (!bytes.ok()) {
        if (make->status.ok()) make->status = bytes.status();
      } else if (!make->cancelled) {
        Paste(*bytes, target, &make->content);
      }
      FinishMake(make);
    });
  };
  SimWorker* peer = make->cancelled ? nullptr : fabric_->WorkerOf(Incarnation(piece.remote().incarnation()));
  if (peer == nullptr) {
    Later(world_->Between(50 * kMicrosecond, kMillisecond),
          [landed] { landed(absl::UnavailableError("the peer is gone")); });
  } else {
    peer->Pull(self_, TransferId(piece.remote().transfer()), landed);
  }
}

void SimWorker::FinishMake(const std::shared_ptr<Make>& make) {
  if (--make->open > 0) return;
  makes_.erase({make->op->ticket(), make->index});
  const Target& target = make->op->buffers(make->index).target();
  if (make->status.ok()) Put(ToRef(target.ref()), target.device(), make->content);
  core_->OnMakeDone(Ticket(make->op->ticket()), make->index, make->status, world_->now());
  FlushSoon();
  CheckOldWork();
}

void SimWorker::CancelMake(Ticket ticket, int index, const absl::Status& why) {
  auto it = makes_.find({ticket.value(), index});
  if (it == makes_.end()) return;
  // Quarantine: the destination stays until the pull has ended. One whose bytes travel does so by itself.
  const std::shared_ptr<Make> make = it->second;
  make->cancelled = true;
  make->status = why;
  for (const Piece& piece : make->op->buffers(index).pieces()) {
    if (!piece.has_remote()) continue;
    if (SimWorker* peer = fabric_->WorkerOf(Incarnation(piece.remote().incarnation()))) {
      peer->CancelPull(self_, TransferId(piece.remote().transfer()));
    }
  }
}

// ---------------------------------------------------------------- publications and reads

void SimWorker::StartPublish(const Publish& publish) {
  Published& published = published_[publish.transfer()];
  published.ref = ToRef(publish.ref());
  published.box = ToBox(publish.box(), ToDims(publish.dims()));
  published.peer = Incarnation(publish.peer());
  auto early = early_pulls_.find(publish.transfer());
  if (early == early_pulls_.end()) return;
  auto waiting = std::move(early->second);
  early_pulls_.erase(early);
  for (auto& [peer, done] : waiting) Pull(peer, TransferId(publish.transfer()), std::move(done));
}

void SimWorker::FailPublish(TransferId transfer, const absl::Status& why) {
  Published& published = published_[transfer.value()];
  published.failed = true;
  published.why = why;
  AnswerEarlyPulls(transfer.value(), why);
}

void SimWorker::AnswerEarlyPulls(uint64_t transfer, const absl::Status& why) {
  auto early = early_pulls_.find(transfer);
  if (early == early_pulls_.end()) return;
  auto waiting = std::move(early->second);
  early_pulls_.erase(early);
  for (auto& [peer, done] : waiting) {
    world_->After(world_->Between(20 * kMicrosecond, 2 * kMillisecond), [done = std::move(done), why] { done(why); });
  }
}

void SimWorker::CancelPull(Incarnation peer, TransferId transfer) {
  auto early = early_pulls_.find(transfer.value());
  if (early == early_pulls_.end()) return;
  for (const auto& [from, done] : early->second) {
    if (from == peer) return AnswerEarlyPulls(transfer.value(), absl::CancelledError("not wanted any more"));
  }
}

void SimWorker::PeerDied(Incarnation peer) {
  for (auto it = early_pulls_.begin(); it != early_pulls_.end();) {
    std::erase_if(it->second, [peer](const auto& waiting) { return waiting.first == peer; });
    it = it->second.empty() ? early_pulls_.erase(it) : std::next(it);
  }
}

void SimWorker::Die() {
  while (!early_pulls_.empty())
    AnswerEarlyPulls(early_pulls_.begin()->first, absl::UnavailableError("the peer is gone"));
}

void SimWorker::StopPublish(TransferId transfer, const absl::Status& why) {
  unpublished_.emplace(transfer.value(), why);
  AnswerEarlyPulls(transfer.value(), why);
  auto it = published_.find(transfer.value());
  if (it == published_.end()) return;  // never started
  it->second.stopping = true;
  it->second.why = why;
  if (it->second.pulling == 0) EndPublication(transfer);
}

void SimWorker::EndPublication(TransferId transfer) {
  Later(5 * kMicrosecond, [this, transfer, generation = generation_] {
    if (generation != generation_ || published_.erase(transfer.value()) == 0) return;
    core_->OnPublishQuiet(transfer, world_->now());
    FlushSoon();
    CheckOldWork();
  });
}

void SimWorker::Pull(Incarnation peer, TransferId transfer, std::function<void(absl::StatusOr<Content>)> done) {
  auto answer = [this, done](absl::StatusOr<Content> bytes) {
    world_->After(world_->Between(20 * kMicrosecond, 2 * kMillisecond), [done, bytes] { done(bytes); });
  };
  if (core_ == nullptr || fenced_) return answer(absl::UnavailableError("fenced"));
  if (auto ended = unpublished_.find(transfer.value()); ended != unpublished_.end()) return answer(ended->second);
  auto it = published_.find(transfer.value());
  if (it == published_.end()) {  // the pin has not come yet: wait
    early_pulls_[transfer.value()].emplace_back(peer, std::move(done));
    return;
  }
  Published& published = it->second;
  if (published.failed) return answer(published.why);
  if (published.peer != peer) {
    world_->Violation(absl::StrCat(name_, ": ", transfer.ToString(), " is pulled by a stranger"));
    return;
  }
  ++published.pulling;
  fabric_->PullStarted(self_, peer);
  const Incarnation self = self_;
  Fabric* fabric = fabric_;
  world_->After(world_->Between(20 * kMicrosecond, 2 * kMillisecond),
                [this, self, fabric, transfer, done, generation = generation_] {
                  if (fabric->WorkerOf(self) != this || generation != generation_)
                    return done(absl::UnavailableError("the peer is gone"));
                  // A stopped process still serves: its memory is read by the peer.
                  auto at = published_.find(transfer.value());
                  if (at == published_.end()) return done(absl::UnavailableError("unpublished"));
                  --at->second.pulling;
                  const Content* content = at->second.copy.has_value() ? &*at->second.copy : Find(at->second.ref);
                  if (content == nullptr) {
                    if (!fenced_)
                      world_->Violation(absl::StrCat(name_, ": ", at->second.ref.ToString(), " vanished under a pull"));
                    done(absl::UnavailableError("fenced"));
                  } else {
                    done(Cut(*content, at->second.box));
                  }
                  at = published_.find(transfer.value());
                  if (at != published_.end() && at->second.stopping && at->second.pulling == 0)
                    EndPublication(transfer);
                });
}

void SimWorker::SnapshotPublish(TransferId transfer) {
  Later(world_->Between(5 * kMicrosecond, 5 * kMillisecond), [this, transfer, generation = generation_] {
    auto it = published_.find(transfer.value());
    if (generation != generation_ || it == published_.end() || it->second.stopping) return;
    const Content* content = Find(it->second.ref);
    if (content == nullptr) return world_->Violation(absl::StrCat(name_, ": copy of ", it->second.ref.ToString()));
    it->second.copy = *content;
    core_->OnPublishQuiet(transfer, world_->now());
    FlushSoon();
  });
}

void SimWorker::StartRead(const Read& read, bool snapshot) {
  OpenRead& open = reads_[read.read()];
  open.ref = ToRef(read.ref());
  const Content* content = Find(open.ref);
  if (content == nullptr) return world_->Violation(absl::StrCat(name_, ": read of ", open.ref.ToString()));
  open.content = *content;
  open.published = world_->Chance(0.5);
  Later(world_->Between(2 * kMicrosecond, 100 * kMicrosecond),
        [this, id = read.read(), snapshot, generation = generation_] {
          auto it = reads_.find(id);
          if (generation != generation_ || it == reads_.end()) return;
          const bool published = it->second.published;
          std::string bytes = published ? "" : Pack(it->second.content);
          if (!published) reads_.erase(it);  // the answer is its end
          core_->OnReadDone(id, absl::OkStatus(), std::move(bytes), published, world_->now());
          if (published && snapshot) SnapshotRead(id);
          CheckOldWork();
          FlushSoon();
        });
}

void SimWorker::SnapshotRead(uint64_t read) {
  Later(5 * kMicrosecond, [this, read, generation = generation_] {
    auto it = reads_.find(read);
    if (generation != generation_ || it == reads_.end() || !it->second.holds_buffer) return;
    it->second.holds_buffer = false;
    core_->OnReadQuiet(read, world_->now());
    FlushSoon();
  });
}

void SimWorker::StopRead(uint64_t read) {
  Later(5 * kMicrosecond, [this, read, generation = generation_] {
    auto it = reads_.find(read);
    if (generation != generation_ || it == reads_.end()) return;
    const bool held = it->second.holds_buffer;
    reads_.erase(it);
    if (held) core_->OnReadQuiet(read, world_->now());
    FlushSoon();
    CheckOldWork();
  });
}

absl::StatusOr<Content> SimWorker::ReadPublished(uint64_t read) {
  auto it = reads_.find(read);
  if (it == reads_.end() || fenced_) return absl::UnavailableError("no such read");
  return it->second.content;
}

}  // namespace landbridge::sim
