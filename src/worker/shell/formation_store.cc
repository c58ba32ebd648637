#include "worker/shell/formation_store.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "env/clock.h"
#include "worker/shell/shell_limits.h"

namespace landbridge {

absl::Status FormationStore::Late(absl::string_view key) {
  return absl::DeadlineExceededError(absl::StrCat("no member of the formation has put \"", key.substr(0, 100), "\""));
}

absl::Status FormationStore::Check(absl::string_view key) const {
  if (!closed_.ok()) return closed_;
  if (key.size() <= limits::kFormationKeyBytesMax) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("a key of ", key.size(), " bytes in a formation's store; at most ", limits::kFormationKeyBytesMax));
}

absl::Status FormationStore::Put(absl::string_view key, absl::string_view value) {
  std::vector<Answer> answers;
  {
    absl::MutexLock lock(&mutex_);
    LB_RETURN_IF_ERROR(Check(key));
    if (value.size() > limits::kFormationValueBytesMax) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "a value of ", value.size(), " bytes in a formation's store; at most ", limits::kFormationValueBytesMax));
    }
    if (values_.size() >= limits::kFormationKeysMax || bytes_ + value.size() > limits::kFormationBytesMax) {
      return absl::ResourceExhaustedError(absl::StrCat("a formation's store holds ", values_.size(), " keys and ",
                                                       bytes_, " bytes; at most ", limits::kFormationKeysMax, " and ",
                                                       limits::kFormationBytesMax));
    }
    if (!values_.emplace(std::string(key), std::string(value)).second) {
      return absl::AlreadyExistsError(absl::StrCat("\"", key.substr(0, 100), "\" is in the formation's store already"));
    }
    bytes_ += value.size();
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      if (it->second.key != key) {
        ++it;
        continue;
      }
      answers.push_back(std::move(it->second.answer));
      it = waiting_.erase(it);
    }
  }
  for (Answer& answer : answers) answer(std::string(value));
  return absl::OkStatus();
}

absl::StatusOr<std::string> FormationStore::TryGet(absl::string_view key) {
  absl::MutexLock lock(&mutex_);
  LB_RETURN_IF_ERROR(Check(key));
  auto it = values_.find(key);
  if (it == values_.end()) return absl::NotFoundError(absl::StrCat("nobody has put \"", key.substr(0, 100), "\""));
  return it->second;
}

absl::StatusOr<std::string> FormationStore::Get(absl::string_view key, DurationNs timeout) {
  struct Result {
    absl::Mutex mutex;
    bool there ABSL_GUARDED_BY(mutex) = false;
    absl::StatusOr<std::string> value ABSL_GUARDED_BY(mutex) = absl::UnknownError("");
  };
  auto result = std::make_shared<Result>();
  Wait(key, MonotonicClock().Now() + timeout, [result](absl::StatusOr<std::string> value) {
    absl::MutexLock lock(&result->mutex);
    result->value = std::move(value);
    result->there = true;
  });
  absl::MutexLock lock(&result->mutex);
  result->mutex.AwaitWithTimeout(absl::Condition(&result->there), absl::Nanoseconds(timeout));
  if (!result->there) return Late(key);
  return result->value;
}

void FormationStore::Wait(absl::string_view key, TimeNs deadline, Answer answer) {
  absl::StatusOr<std::string> now = TryGet(key);
  if (absl::IsNotFound(now.status())) {
    absl::MutexLock lock(&mutex_);
    auto it = values_.find(key);  // it may have come since
    if (it != values_.end()) {
      now = it->second;
    } else if (!closed_.ok()) {
      now = closed_;
    } else if (waiting_.size() >= limits::kFormationWaitingMax) {
      now = absl::ResourceExhaustedError(
          absl::StrCat(limits::kFormationWaitingMax, " wait for values of a formation already"));
    } else {
      waiting_.emplace(next_++, Waiting{std::string(key), deadline, std::move(answer)});
      return;
    }
  }
  answer(std::move(now));
}

void FormationStore::Expire(TimeNs now) {
  std::vector<Waiting> late;
  {
    absl::MutexLock lock(&mutex_);
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      if (it->second.deadline > now) {
        ++it;
        continue;
      }
      late.push_back(std::move(it->second));
      it = waiting_.erase(it);
    }
  }
  for (Waiting& waiting : late) waiting.answer(Late(waiting.key));
}

void FormationStore::Close(const absl::Status& why) {
  std::map<uint64_t, Waiting> waiting;
  {
    absl::MutexLock lock(&mutex_);
    if (!closed_.ok()) return;
    closed_ = why;
    waiting.swap(waiting_);
    values_.clear();
    bytes_ = 0;
  }
  for (auto& [id, one] : waiting) one.answer(why);
}

size_t FormationStore::waiting() const {
  absl::MutexLock lock(&mutex_);
  return waiting_.size();
}

}  // namespace landbridge
