// One direction of a control stream as pure state: numbered messages, cumulative acknowledgement, replay.
// A stream belongs to (proxy life, worker incarnation, grant); it outlives connections, never its grant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"

namespace landbridge {

// Sender. T is the message.
//
// Thread-safety: one thread.
template <typename T>
class StreamSender {
 public:
  explicit StreamSender(size_t replay_bytes_max = limits::kStreamReplayBytesMax)
      : replay_bytes_max_(replay_bytes_max) {}

  // Parked: the replay bound is reached; keep the message and push it again after an acknowledgement. No message is
  // ever dropped: a peer that never acknowledges is ended by its lease, not by this buffer.
  bool parked() const { return bytes_ >= replay_bytes_max_; }

  // Takes the message unless parked (then false, and the message is untouched). One message may overshoot the bound.
  bool TryPush(T& message, size_t bytes) {
    if (fenced_ || parked()) return false;
    buffer_.push_back({std::move(message), bytes});
    bytes_ += bytes;
    return true;
  }

  // The next messages that were not sent on this connection: up to `bytes_max` bytes, at least one if there is one.
  // `first` is the first one's number. Nothing until the connection is resumed.
  struct Batch {
    uint64_t first = 0;  // 0: empty
    std::vector<T> messages;
  };
  Batch Take(size_t bytes_max) {
    Batch batch;
    std::vector<const T*> messages;
    batch.first = TakeInPlace(bytes_max, &messages);
    for (const T* message : messages) batch.messages.push_back(*message);
    return batch;
  }
  // The same without copies: the messages hold until the next call. Returns the first one's number.
  uint64_t TakeInPlace(size_t bytes_max, std::vector<const T*>* messages) {
    messages->clear();
    size_t taken = 0;
    const uint64_t first = sent_ + 1;
    while (resumed_ && sent_ < acked_ + buffer_.size()) {
      const Entry& entry = buffer_[sent_ - acked_];
      if (!messages->empty() && taken + entry.bytes > bytes_max) break;
      taken += entry.bytes;
      messages->push_back(&entry.message);
      ++sent_;
    }
    if (ever_sent_ < sent_) ever_sent_ = sent_;
    return messages->empty() ? 0 : first;
  }
  bool HasUnsent() const { return resumed_ && sent_ < acked_ + buffer_.size(); }

  // Everything up to `number` was applied. INVALID_ARGUMENT: acknowledges what was never sent. An old one is ignored.
  absl::Status OnAck(uint64_t number) {
    if (fenced_) return absl::OkStatus();
    if (number > ever_sent_) {
      return absl::InvalidArgumentError(
          absl::StrCat("the peer acknowledged message ", number, ", but only ", ever_sent_, " were sent"));
    }
    for (; acked_ < number; ++acked_) {
      bytes_ -= buffer_.front().bytes;
      buffer_.pop_front();
    }
    if (sent_ < acked_) sent_ = acked_;
    return absl::OkStatus();
  }

  // The connection broke: nothing is sent until Resume.
  void OnDisconnect() { resumed_ = false; }

  // A new connection of the same stream; the peer has applied `received`. Whatever is newer is sent again.
  // INVALID_ARGUMENT: the peer claims a state that this stream cannot have (it forgot acknowledged messages, or
  // knows ones that were never sent): not the same stream.
  absl::Status Resume(uint64_t received) {
    if (fenced_) return absl::FailedPreconditionError("the stream's grant has ended: it never resumes");
    if (received < acked_) {
      return absl::InvalidArgumentError(
          absl::StrCat("the peer has forgotten acknowledged messages: it has ", received, " of ", acked_));
    }
    resumed_ = false;
    if (absl::Status status = OnAck(received); !status.ok()) return status;
    sent_ = acked_;
    resumed_ = true;
    return absl::OkStatus();
  }

  // The grant has ended: the replay buffer is dropped and nothing is taken any more.
  void Fence() {
    fenced_ = true;
    resumed_ = false;
    acked_ += buffer_.size();
    sent_ = acked_;
    buffer_.clear();
    bytes_ = 0;
  }

  bool fenced() const { return fenced_; }
  bool resumed() const { return resumed_; }
  uint64_t acked() const { return acked_; }
  uint64_t last() const { return acked_ + buffer_.size(); }  // number of the newest message pushed
  size_t replay_bytes() const { return bytes_; }

 private:
  struct Entry {
    T message;
    size_t bytes;
  };

  size_t replay_bytes_max_;
  std::deque<Entry> buffer_;  // messages acked_ + 1 ...
  size_t bytes_ = 0;
  uint64_t acked_ = 0;
  uint64_t sent_ = 0;       // on this connection; >= acked_
  uint64_t ever_sent_ = 0;  // on any connection
  bool resumed_ = false;
  bool fenced_ = false;
};

// Receiver: says which messages of a frame to apply.
//
// Thread-safety: one thread.
class StreamReceiver {
 public:
  explicit StreamReceiver(size_t ack_bytes = limits::kStreamAckBytes) : ack_bytes_(ack_bytes) {}

  // A frame of `bytes` bytes has messages first, first + 1, ...: returns how many at its start to skip (duplicates,
  // acknowledged again); the rest is to be applied now, in order. INVALID_ARGUMENT on a gap (refused: applying past
  // it would lose a message): close the connection; the resume handshake repairs it.
  absl::StatusOr<size_t> OnFrame(uint64_t first, size_t count, size_t bytes) {
    if (fenced_) return absl::FailedPreconditionError("the stream's grant has ended");
    if (count == 0) return size_t{0};
    unacknowledged_bytes_ += bytes;
    repeated_ = repeated_ || first <= applied_;
    if (first == 0 || first > applied_ + 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("message ", first, " came after message ", applied_, ": messages are missing between"));
    }
    const uint64_t known = applied_ + 1 - first;
    if (known >= count) return count;
    applied_ = first + count - 1;
    return static_cast<size_t>(known);
  }

  uint64_t applied() const { return applied_; }  // what to acknowledge
  // Every frame and heartbeat carries an acknowledgement. Whether one is to be sent for its own sake: the sender holds
  // much for us, or repeats what it believes lost.
  bool ack_due() const { return repeated_ || unacknowledged_bytes_ >= ack_bytes_; }
  void AckMade() {
    unacknowledged_bytes_ = 0;
    repeated_ = false;
  }

  void Fence() { fenced_ = true; }

 private:
  size_t ack_bytes_;
  uint64_t applied_ = 0;
  size_t unacknowledged_bytes_ = 0;
  bool repeated_ = false;
  bool fenced_ = false;
};

}  // namespace landbridge
