#include "cluster/rm_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"

namespace landbridge {
namespace {

constexpr DurationNs kSayEvery = 10 * kSecond;

}  // namespace

RmLink::RmLink(Loop* loop, std::string address, Handlers handlers)
    : loop_(loop),
      address_(std::move(address)),
      handlers_(std::move(handlers)),
      backoff_(limits::kReconnectBackoffMin) {}

RmLink::~RmLink() { loop_->Cancel(retry_); }

void RmLink::Start() {
  down_since_ = loop_->Now();
  Connect();
}

void RmLink::Connect() {
  retry_ = 0;
  Connection::Handlers handlers;
  handlers.on_connected = [this] {
    up_ = true;
    last_heard_ = loop_->Now();
    trouble_ = "connected; it has not answered yet";
    handlers_.on_up();
  };
  handlers.on_frame = [this](uint32_t type, absl::string_view payload) {
    last_heard_ = loop_->Now();
    if (!greeted_) {
      greeted_ = true;
      backoff_ = limits::kReconnectBackoffMin;
      last_said_ = 0;
      trouble_.clear();
      LogInfo("connected to the resource manager at ", address_);
    }
    handlers_.on_frame(type, payload);
  };
  handlers.on_close = [this](const absl::Status& status) { OnClosed(status); };
  connection_ = Connection::Connect(loop_, address_, std::move(handlers));
}

void RmLink::OnClosed(const absl::Status& status) {
  connection_.reset();
  const TimeNs now = loop_->Now();
  trouble_ = std::string(status.message());
  if (up_ && greeted_) {
    down_since_ = now;
    LogWarning("lost the resource manager at ", address_, ": ", status.message());
  } else if (up_) {
    trouble_ = absl::StrCat("what listens there is no resource manager of Landbridge, or one of another version: ",
                            status.message());
  }
  greeted_ = false;
  if (std::exchange(up_, false)) handlers_.on_down();
  if (last_said_ == 0 || now - last_said_ >= kSayEvery) {
    last_said_ = now;
    LogInfo("waiting for ", waits_for(), ", for ", (now - down_since_) / kSecond, " s now");
  }
  retry_ = loop_->RunAfter(backoff_, [this] { Connect(); });
  backoff_ = std::min(2 * backoff_, limits::kReconnectBackoffMax);
}

std::string RmLink::waits_for() const {
  return trouble_.empty() ? "" : absl::StrCat("the resource manager at ", address_, " (", trouble_, ")");
}

bool RmLink::Send(uint32_t type, std::string payload) {
  return up_ && connection_ != nullptr && connection_->Send(type, std::move(payload));
}

void RmLink::CheckSilence(DurationNs limit, DurationNs pause) {
  const TimeNs now = loop_->Now();
  if (now - std::exchange(last_check_, now) > pause) last_heard_ = now;
  if (up_ && now - last_heard_ > limit) Reconnect("it has been silent");
}

void RmLink::Reconnect(const std::string& why) {
  if (connection_ == nullptr) return;
  OnClosed(absl::UnavailableError(why));
}

}  // namespace landbridge
