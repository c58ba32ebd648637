#include "worker/shell/formation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/hmac.h"
#include "base/status.h"
#include "env/clock.h"
#include "worker/shell/shell_limits.h"

namespace landbridge {
namespace {

using nlohmann::json;

std::string EpochOf(const std::vector<FormationMember>& members) {
  std::string epoch;
  for (const FormationMember& member : members) {
    absl::StrAppend(&epoch, epoch.empty() ? "" : "-", absl::Hex(member.incarnation()));
  }
  return epoch;
}

std::string ProofOf(absl::string_view secret, const std::string& epoch) {
  return absl::BytesToHexString(HmacSha256(secret.empty() ? "no secret" : secret, absl::StrCat("formation ", epoch)));
}

std::string TextOf(const json& request, const char* field) {
  return request.contains(field) && request[field].is_string() ? request[field].get<std::string>() : std::string();
}

bool IsHex(const std::string& text) {
  return text.size() % 2 == 0 && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isxdigit(static_cast<unsigned char>(c));
         });
}

}  // namespace

Formation::Formation(std::vector<FormationMember> members, Incarnation self, absl::string_view cluster_secret)
    : members_(std::move(members)), epoch_(EpochOf(members_)), proof_(ProofOf(cluster_secret, epoch_)) {
  for (size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].incarnation() == self.value()) index_ = static_cast<int>(i);
  }
  if (index_ == 0) store_ = std::make_unique<FormationStore>();
}

absl::Status Formation::closed() const {
  absl::MutexLock lock(&mutex_);
  return closed_;
}

absl::Status Formation::Put(absl::string_view key, absl::string_view value) {
  if (store_ != nullptr) return store_->Put(key, value);
  if (value.size() > limits::kFormationAskedValueBytesMax || key.size() > limits::kFormationKeyBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("a value of ", value.size(), " bytes under a key of ", key.size(),
                                                     " in a formation's store; members other than the first may put ",
                                                     limits::kFormationAskedValueBytesMax));
  }
  return Ask("put", key, value, limits::kFormationPutTimeout).status();
}

absl::StatusOr<std::string> Formation::Get(absl::string_view key, DurationNs timeout) {
  timeout = std::clamp<DurationNs>(timeout, 0, limits::kFormationGetTimeoutMax);
  if (store_ != nullptr) return store_->Get(key, timeout);
  return Ask("get", key, "", timeout);
}

absl::StatusOr<std::string> Formation::TryGet(absl::string_view key) {
  if (store_ != nullptr) return store_->TryGet(key);
  return Ask("try_get", key, "", limits::kFormationPutTimeout);
}

absl::StatusOr<std::string> Formation::Ask(const char* op, absl::string_view key, absl::string_view value,
                                           DurationNs timeout) {
  const TimeNs deadline = MonotonicClock().Now() + timeout;
  absl::Status last;
  for (DurationNs left = timeout; left > 0; left = deadline - MonotonicClock().Now()) {
    LB_RETURN_IF_ERROR(closed());
    // In short turns, so that the end of the formation is noticed also when the first member's machine is gone.
    const DurationNs turn = std::min(left, limits::kFormationTurn);
    absl::StatusOr<json> answer = AskAdmin(members_[0].address(),
                                           {{"what", "formation"},
                                            {"op", op},
                                            {"epoch", epoch_},
                                            {"proof", proof_},
                                            {"key", absl::BytesToHexString(key)},
                                            {"value", absl::BytesToHexString(value)},
                                            {"timeout_ms", turn / kMillisecond}},
                                           turn + limits::kFormationAnswerGrace);
    if (answer.ok()) {
      const std::string text = answer->is_string() ? answer->get<std::string>() : "";
      if (!IsHex(text)) return absl::UnavailableError("the first member of the formation answered nonsense");
      return absl::HexStringToBytes(text);
    }
    last = answer.status();
    const bool may_come =
        absl::IsUnavailable(last) || (absl::IsDeadlineExceeded(last) && op == absl::string_view("get"));
    if (!may_come) return last;
    if (absl::IsUnavailable(last)) {
      // It is not that far, or not there any more: ask again, but not all the time.
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(
                                  +[](absl::Status* status) { return !status->ok(); }, &closed_),
                              absl::Nanoseconds(std::min(left, limits::kFormationAskPause)));
    }
  }
  if (last.ok() || absl::IsDeadlineExceeded(last)) {
    return FormationStore::Late(key);
  }
  return absl::Status(absl::StatusCode::kUnavailable,
                      absl::StrCat("the first member of the formation at ", members_[0].address(),
                                   " cannot be asked: ", last.message()));
}

void Formation::OnRequest(const json& request, TimeNs now, AdminTable::Answer answer,
                          std::function<void(std::function<void()>)> post) {
  if (TextOf(request, "epoch") != epoch_ || store_ == nullptr) {
    return answer(absl::FailedPreconditionError("this worker keeps the store of another formation"));
  }
  if (TextOf(request, "proof") != proof_) {
    return answer(absl::UnauthenticatedError("only members of the formation may ask"));
  }
  const std::string op = TextOf(request, "op"), key_text = TextOf(request, "key"),
                    value_text = TextOf(request, "value");
  if (!IsHex(key_text) || !IsHex(value_text))
    return answer(absl::InvalidArgumentError("key or value are not hexadecimal"));
  const std::string key = absl::HexStringToBytes(key_text);
  auto give = [answer, post = std::move(post)](absl::StatusOr<std::string> value) {
    post([answer, value = std::move(value)] {
      if (!value.ok()) return answer(value.status());
      answer(json(absl::BytesToHexString(*value)));
    });
  };
  if (op == "put") {
    const absl::Status put = store_->Put(key, absl::HexStringToBytes(value_text));
    return put.ok() ? answer(json("")) : answer(put);
  }
  if (op == "try_get") return give(store_->TryGet(key));
  if (op != "get") return answer(absl::InvalidArgumentError("\"op\" must be put, get or try_get"));
  const int64_t wanted = request.contains("timeout_ms") && request["timeout_ms"].is_number_integer()
                             ? request["timeout_ms"].get<int64_t>()
                             : 0;
  const DurationNs timeout = std::clamp<int64_t>(wanted, 0, limits::kFormationTurn / kMillisecond) * kMillisecond;
  store_->Wait(key, now + timeout, std::move(give));
}

void Formation::OnTick(TimeNs now) {
  if (store_ != nullptr) store_->Expire(now);
}

void Formation::Close(const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    if (closed_.ok()) closed_ = why;
  }
  if (store_ != nullptr) store_->Close(why);
}

}  // namespace landbridge
