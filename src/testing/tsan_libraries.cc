// For the tsan preset only: what thread sanitizer must know of libraries that are not instrumented, as Debian builds
// them. This shared library stands before theirs, tells the sanitizer, and calls the real function.
//
// abseil: each lock and unlock; else all that an absl::Mutex guards would look like a race. gRPC's locks are abseil's,
// too. Between "pre" and "post" the sanitizer looks at nothing, so it does not see conditions, which any thread may
// evaluate under the lock. Counters inside abseil that say who comes after whom: Notification's, BlockingCounter's, and
// that of the users of a Status. gRPC: who gets a tag from a queue comes after who gave it away.

#include <dlfcn.h>
#include <grpc/grpc.h>
#include <sanitizer/tsan_interface.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

namespace {

// The definition behind ours of the same name.
template <class Function>
Function Next(const char* name, Function ours) {
  void* const real = name == nullptr ? nullptr : dlsym(RTLD_NEXT, name);
  if (real == nullptr || real == reinterpret_cast<void*>(ours)) {
    std::fputs("tsan_libraries: there is no library behind this one\n", stderr);
    std::abort();
  }
  return reinterpret_cast<Function>(real);
}

// The same for a member, by its mangled name (abseil's inline namespace is part of it).
template <class Result, class Class, class... Arguments>
auto Real(Result (Class::*member)(Arguments...)) {
  using Function = Result (*)(Class*, Arguments...);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpmf-conversions"
  const auto ours = reinterpret_cast<Function>(member);
#pragma GCC diagnostic pop
  Dl_info info = {};
  const bool found = dladdr(reinterpret_cast<void*>(ours), &info) != 0;
  return Next(found ? info.dli_sname : nullptr, ours);
}

template <class Result, class Class, class... Arguments>
auto Real(Result (Class::*member)(Arguments...) const) {
  return Real(reinterpret_cast<Result (Class::*)(Arguments...)>(member));
}

// The lock that this thread is just telling of: abseil's functions call each other, and only the outermost tells.
thread_local const absl::Mutex* told = nullptr;

struct Telling {
  explicit Telling(const absl::Mutex* mutex) : before(std::exchange(told, mutex)) {}
  ~Telling() { told = before; }
  const absl::Mutex* const before;
};

template <class Call>
void Locking(absl::Mutex* mutex, unsigned flags, Call call) {
  if (told == mutex) return call();
  const Telling telling(mutex);
  __tsan_mutex_pre_lock(mutex, flags);
  call();
  __tsan_mutex_post_lock(mutex, flags, 0);
}

template <class Call>
void Unlocking(absl::Mutex* mutex, unsigned flags, Call call) {
  __tsan_mutex_pre_unlock(mutex, flags);
  call();
  __tsan_mutex_post_unlock(mutex, flags);
}

template <class Call>
bool Trying(absl::Mutex* mutex, unsigned flags, Call call) {
  __tsan_mutex_pre_lock(mutex, flags);
  const bool locked = call();
  __tsan_mutex_post_lock(mutex, locked ? flags : flags | __tsan_mutex_try_lock_failed, 0);
  return locked;
}

// Waiting lets go of the lock and takes it again.
template <class Call>
auto Waiting(absl::Mutex* mutex, Call call) {
  struct Again {
    absl::Mutex* mutex;
    ~Again() {
      __tsan_mutex_post_unlock(mutex, 0);
      __tsan_mutex_pre_lock(mutex, 0);
      __tsan_mutex_post_lock(mutex, 0, 0);
    }
  };
  if (told == mutex) return call();
  const Telling telling(mutex);
  __tsan_mutex_pre_unlock(mutex, 0);
  const Again again{mutex};
  return call();
}

// Notification's flag, which its inline HasBeenNotified reads, lies behind its mutex.
void* Flag(const absl::Notification* notification) {
  static_assert(sizeof(absl::Notification) == 2 * sizeof(absl::Mutex));
  return const_cast<char*>(reinterpret_cast<const char*>(notification)) + sizeof(absl::Mutex);
}

}  // namespace

namespace absl {

void Mutex::Lock() {
  static const auto real = Real(&Mutex::Lock);
  Locking(this, 0, [this] { real(this); });
}

void Mutex::Unlock() {
  static const auto real = Real(&Mutex::Unlock);
  Unlocking(this, 0, [this] { real(this); });
}

bool Mutex::TryLock() {
  static const auto real = Real(&Mutex::TryLock);
  return Trying(this, __tsan_mutex_try_lock, [this] { return real(this); });
}

void Mutex::ReaderLock() {
  static const auto real = Real(&Mutex::ReaderLock);
  Locking(this, __tsan_mutex_read_lock, [this] { real(this); });
}

void Mutex::ReaderUnlock() {
  static const auto real = Real(&Mutex::ReaderUnlock);
  Unlocking(this, __tsan_mutex_read_lock, [this] { real(this); });
}

bool Mutex::ReaderTryLock() {
  static const auto real = Real(&Mutex::ReaderTryLock);
  return Trying(this, __tsan_mutex_try_read_lock, [this] { return real(this); });
}

void Mutex::Await(const Condition& condition) {
  static const auto real = Real(&Mutex::Await);
  Waiting(this, [&] { real(this, condition); });
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  static const auto real = Real(&Mutex::AwaitWithTimeout);
  return Waiting(this, [&] { return real(this, condition, timeout); });
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  static const auto real = Real(&Mutex::AwaitWithDeadline);
  return Waiting(this, [&] { return real(this, condition, deadline); });
}

void Mutex::LockWhen(const Condition& condition) {
  static const auto real = Real(&Mutex::LockWhen);
  Locking(this, 0, [&] { real(this, condition); });
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  static const auto real = Real(&Mutex::LockWhenWithDeadline);
  bool held = false;
  Locking(this, 0, [&] { held = real(this, condition, deadline); });
  return held;
}

bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  static const auto real = Real(&Mutex::LockWhenWithTimeout);
  bool held = false;
  Locking(this, 0, [&] { held = real(this, condition, timeout); });
  return held;
}

void CondVar::Wait(Mutex* mutex) {
  static const auto real = Real(&CondVar::Wait);
  Waiting(mutex, [this, mutex] { real(this, mutex); });
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static const auto real = Real(&CondVar::WaitWithTimeout);
  return Waiting(mutex, [this, mutex, timeout] { return real(this, mutex, timeout); });
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static const auto real = Real(&CondVar::WaitWithDeadline);
  return Waiting(mutex, [this, mutex, deadline] { return real(this, mutex, deadline); });
}

void Notification::Notify() {
  static const auto real = Real(&Notification::Notify);
  __tsan_release(Flag(this));
  real(this);
}

void Notification::WaitForNotification() const {
  static const auto real = Real(&Notification::WaitForNotification);
  real(const_cast<Notification*>(this));
  __tsan_acquire(Flag(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  static const auto real = Real(&Notification::WaitForNotificationWithTimeout);
  const bool notified = real(const_cast<Notification*>(this), timeout);
  if (notified) __tsan_acquire(Flag(this));
  return notified;
}

bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  static const auto real = Real(&Notification::WaitForNotificationWithDeadline);
  const bool notified = real(const_cast<Notification*>(this), deadline);
  if (notified) __tsan_acquire(Flag(this));
  return notified;
}

bool BlockingCounter::DecrementCount() {
  static const auto real = Real(&BlockingCounter::DecrementCount);
  __tsan_release(this);
  return real(this);
}

void BlockingCounter::Wait() {
  static const auto real = Real(&BlockingCounter::Wait);
  real(this);
  __tsan_acquire(this);
}

// In place of abseil's, not before it: who deletes comes after all who let go, which only the counting itself says.
void Status::UnrefNonInlined(uintptr_t rep) {
  status_internal::StatusRep* const shared = RepToPointer(rep);
  if (shared->ref.fetch_sub(1, std::memory_order_acq_rel) == 1) delete shared;
}

}  // namespace absl

extern "C" {

grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t count, void* tag, void* reserved) {
  static const auto real = Next("grpc_call_start_batch", &grpc_call_start_batch);
  __tsan_release(tag);
  return real(call, ops, count, tag, reserved);
}

grpc_call_error grpc_server_request_registered_call(grpc_server* server, void* method, grpc_call** call,
                                                    gpr_timespec* deadline, grpc_metadata_array* metadata,
                                                    grpc_byte_buffer** payload, grpc_completion_queue* bound,
                                                    grpc_completion_queue* notified, void* tag) {
  static const auto real = Next("grpc_server_request_registered_call", &grpc_server_request_registered_call);
  __tsan_release(tag);
  return real(server, method, call, deadline, metadata, payload, bound, notified, tag);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline, void* reserved) {
  static const auto real = Next("grpc_completion_queue_next", &grpc_completion_queue_next);
  const grpc_event event = real(queue, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  return event;
}

grpc_event grpc_completion_queue_pluck(grpc_completion_queue* queue, void* tag, gpr_timespec deadline, void* reserved) {
  static const auto real = Next("grpc_completion_queue_pluck", &grpc_completion_queue_pluck);
  const grpc_event event = real(queue, tag, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(tag);
  return event;
}

}  // extern "C"
