#include "worker/shell/puller.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"

namespace landbridge {

Puller::Handle Puller::Pull(dataplane::PeerId peer, dataplane::Key key, uint64_t offset, void* dst, uint64_t size,
                            std::shared_ptr<const void> keep, std::function<void(absl::Status)> done) {
  auto open = std::make_unique<Open>();
  *open = Open{peer, key, offset, dst, size, std::move(keep), std::move(done), {}, 0, 0, absl::OkStatus()};
  open->give_up = context_->Now() + limits::kPullRetryTime;
  const Handle handle = ++last_;
  Open& started = *(open_[handle] = std::move(open));
  context_->Begin();
  Start(handle, started);
  return handle;
}

void Puller::Start(Handle handle, Open& open) {
  std::shared_ptr<ShellContext> context = context_->shared_from_this();
  open.pull = context_->data_plane->Pull(open.peer, open.key, open.offset, open.dst, open.size,
                                         [this, context, handle, keep = open.keep](absl::Status status) {
                                           context->Post([this, handle, status] { OnDone(handle, status); });
                                         });
}

void Puller::OnDone(Handle handle, const absl::Status& status) {
  Open& open = *open_.at(handle);
  if (!open.cancelled.ok()) return Finish(handle, open.cancelled);
  if (!absl::IsUnavailable(status)) return Finish(handle, status);
  const TimeNs now = context_->Now();
  if (now >= open.give_up) {
    return Finish(handle, absl::AbortedError(absl::StrCat("gave up pulling ", open.key.ToString(), " from ",
                                                          open.peer.ToString(), ": ", status.message())));
  }
  LogWarning("pull of ", open.key.ToString(), " from ", open.peer.ToString(), " broke (", status.message(),
             "); trying again");
  std::shared_ptr<ShellContext> context = context_->shared_from_this();
  open.retry = context_->loop->RunAfter(limits::kPullRetryPause, [this, context, handle] {
    if (context->closed) return;
    Open& again = *open_.at(handle);
    again.retry = 0;
    Start(handle, again);
  });
}

void Puller::Cancel(Handle handle, const absl::Status& why) {
  auto it = open_.find(handle);
  if (it == open_.end() || !it->second->cancelled.ok()) return;
  Open& open = *it->second;
  open.cancelled = why.ok() ? absl::CancelledError("not needed any more") : why;
  if (open.retry != 0) {  // no byte can land: nothing is asked for
    context_->loop->Cancel(open.retry);
    open.retry = 0;
    context_->Post([this, handle] { Finish(handle, open_.at(handle)->cancelled); });
    return;
  }
  context_->data_plane->Cancel(open.pull, open.cancelled);
}

void Puller::CancelAll(const absl::Status& why) {
  std::vector<Handle> handles;
  for (const auto& [handle, open] : open_) handles.push_back(handle);
  for (Handle handle : handles) Cancel(handle, why);
}

void Puller::Finish(Handle handle, const absl::Status& status) {
  auto it = open_.find(handle);
  std::unique_ptr<Open> open = std::move(it->second);
  open_.erase(it);
  --context_->open;
  open->done(status);
}

}  // namespace landbridge
