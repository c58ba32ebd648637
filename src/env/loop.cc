#include "env/loop.h"

#include <uv.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "env/connection_impl.h"

namespace landbridge {

struct Loop::Timer {
  uv_timer_t handle;
  Loop* loop;
  TimerId id;
  bool periodic;
  Task task;
};

struct Loop::Signal {
  uv_signal_t handle;
  Loop* loop;
  std::shared_ptr<Task> task;
};

struct Loop::Handles {
  uv_async_t wake;
  uv_prepare_t before_blocking;
};

Loop::Loop() : uv_(std::make_unique<uv_loop_t>()), handles_(std::make_unique<Handles>()) {
  // libuv's writes to a connection that is gone would end the process.
  static const auto ignored = std::signal(SIGPIPE, SIG_IGN);
  static_cast<void>(ignored);
  LB_CHECK(uv_loop_init(uv_.get()) == 0);
  LB_CHECK(uv_loop_configure(uv_.get(), UV_METRICS_IDLE_TIME) == 0);
  LB_CHECK(uv_async_init(uv_.get(), &handles_->wake,
                         [](uv_async_t* handle) { static_cast<Loop*>(handle->data)->RunPosted(); }) == 0);
  handles_->wake.data = this;
  LB_CHECK(uv_prepare_init(uv_.get(), &handles_->before_blocking) == 0);
  handles_->before_blocking.data = this;
  LB_CHECK(uv_prepare_start(&handles_->before_blocking,
                            [](uv_prepare_t* handle) { static_cast<Loop*>(handle->data)->BeforeBlocking(); }) == 0);
}

Loop::~Loop() {
  std::vector<Task> dropped;
  {
    absl::MutexLock lock(&mutex_);
    dropped.swap(posted_);
  }
  dropped.clear();  // their captures may use this loop
  while (!timers_.empty()) Cancel(timers_.begin()->first);
  for (auto& [number, signal] : signals_) {
    uv_close(reinterpret_cast<uv_handle_t*>(&signal->handle),
             [](uv_handle_t* handle) { delete static_cast<Signal*>(handle->data); });
  }
  uv_close(reinterpret_cast<uv_handle_t*>(&handles_->wake), nullptr);
  uv_close(reinterpret_cast<uv_handle_t*>(&handles_->before_blocking), nullptr);
  while (uv_loop_close(uv_.get()) == UV_EBUSY) uv_run(uv_.get(), UV_RUN_ONCE);
}

char* Loop::read_buffer() {
  if (read_buffer_ == nullptr) read_buffer_ = std::make_unique<char[]>(kReadBufferBytes);
  return read_buffer_.get();
}

void Loop::Post(Task task) {
  bool first;
  {
    absl::MutexLock lock(&mutex_);
    first = posted_.empty();
    posted_.push_back(std::move(task));
  }
  // The loop looks before it blocks, so its own thread need not wake it.
  if (first && runs_on_.load(std::memory_order_relaxed) != std::this_thread::get_id()) uv_async_send(&handles_->wake);
}

void Loop::RunPosted() {
  std::vector<Task> tasks;
  {
    absl::MutexLock lock(&mutex_);
    tasks.swap(posted_);
  }
  if (tasks.empty()) return;
  CountEvent();
  for (Task& task : tasks) task();
}

void Loop::BeginTurn() {
  turn_began_ns_ = uv_hrtime();
  idle_before_ns_ = uv_metrics_idle_time(uv_.get());
}

// One thread serves everybody, and says by its heartbeats that it lives: a turn that takes long is a fault, or a machine with
// too much to do.
void Loop::EndTurn() {
  const uint64_t began = turn_began_ns_, idle = idle_before_ns_;
  BeginTurn();
  const auto took = static_cast<DurationNs>((turn_began_ns_ - began) - (idle_before_ns_ - idle));
  longest_turn_ = std::max(longest_turn_, took);
  if (took > kLongTurn)
    LogWarning("this process served nobody for ", took / kMillisecond, " ms: one turn took so long");
}

void Loop::BeforeBlocking() {
  RunPosted();
  FlushAll();
  EndTurn();
  // What these tasks posted runs in the next turn: sockets and timers have theirs in between.
  absl::MutexLock lock(&mutex_);
  if (!posted_.empty()) uv_async_send(&handles_->wake);
}

TimeNs Loop::Now() { return MonotonicClock().Now(); }

Loop::TimerId Loop::StartTimer(DurationNs delay, DurationNs period, Task task) {
  auto round_up = [](DurationNs time) {
    return static_cast<uint64_t>(time <= 0 ? 0 : (time + kMillisecond - 1) / kMillisecond);
  };
  auto* timer = new Timer{{}, this, next_timer_++, period > 0, std::move(task)};
  uv_timer_init(uv_.get(), &timer->handle);
  timer->handle.data = timer;
  timers_[timer->id] = timer;
  uv_update_time(uv_.get());  // else the delay would count from the start of this turn
  uv_timer_start(
      &timer->handle,
      [](uv_timer_t* handle) {
        auto* fired = static_cast<Timer*>(handle->data);
        Loop* loop = fired->loop;
        loop->CountEvent();
        if (fired->periodic) {
          Task running = fired->task;  // it may cancel itself
          running();
        } else {
          Task running = std::move(fired->task);
          loop->Cancel(fired->id);
          running();
        }
      },
      // libuv's time is cut to whole milliseconds: one more, or the timer would fire up to one early.
      period > 0 ? round_up(delay) : round_up(delay) + (delay > 0 ? 1 : 0), round_up(period));
  return timer->id;
}

Loop::TimerId Loop::RunAfter(DurationNs delay, Task task) { return StartTimer(delay, 0, std::move(task)); }
Loop::TimerId Loop::RunEvery(DurationNs period, Task task) { return StartTimer(period, period, std::move(task)); }

void Loop::Cancel(TimerId id) {
  auto it = timers_.find(id);
  if (it == timers_.end()) return;
  Timer* timer = it->second;
  timers_.erase(it);
  uv_close(reinterpret_cast<uv_handle_t*>(&timer->handle),
           [](uv_handle_t* handle) { delete static_cast<Timer*>(handle->data); });
}

absl::Status Loop::OnSignal(int signal_number, Task task) {
  auto shared = std::make_shared<Task>(std::move(task));
  auto it = signals_.find(signal_number);
  if (it != signals_.end()) {
    it->second->task = std::move(shared);
    return absl::OkStatus();
  }
  auto* signal = new Signal{{}, this, std::move(shared)};
  uv_signal_init(uv_.get(), &signal->handle);
  signal->handle.data = signal;
  int error = uv_signal_start(
      &signal->handle,
      [](uv_signal_t* handle, int) {
        auto* fired = static_cast<Signal*>(handle->data);
        fired->loop->CountEvent();
        std::shared_ptr<Task> running = fired->task;  // it may install another one
        (*running)();
      },
      signal_number);
  if (error != 0) {
    uv_close(reinterpret_cast<uv_handle_t*>(&signal->handle),
             [](uv_handle_t* handle) { delete static_cast<Signal*>(handle->data); });
    return absl::InvalidArgumentError(absl::StrCat("signal ", signal_number, ": ", uv_strerror(error)));
  }
  signals_[signal_number] = signal;
  return absl::OkStatus();
}

void Loop::FlushAll() {
  while (!to_flush_.empty()) {
    ConnectionImpl* connection = *to_flush_.begin();
    to_flush_.erase(to_flush_.begin());
    connection->FlushNow();
  }
}

// Marks the thread that runs the loop. Loops nest: RunOnce may be called by a task of Run.
class Loop::Running {
 public:
  explicit Running(Loop* loop) : loop_(loop), before_(loop->runs_on_.exchange(std::this_thread::get_id())) {
    loop->BeginTurn();  // what came before was no turn of it
  }
  ~Running() { loop_->runs_on_.store(before_); }

 private:
  Loop* const loop_;
  const std::thread::id before_;
};

bool Loop::TakeStop() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(stop_, false);
}

void Loop::Run() {
  Running running(this);
  while (!TakeStop()) {
    if (spin_ > 0) {
      bool stopped = false;
      TimeNs until = Now() + spin_;
      while (!stopped && Now() < until) {
        const uint64_t before = events_;
        uv_run(uv_.get(), UV_RUN_NOWAIT);
        stopped = TakeStop();
        if (events_ != before) {
          until = Now() + spin_;
        } else {
          std::this_thread::yield();  // whoever makes the next event may wait for this very core
        }
      }
      if (stopped) break;
    }
    uv_run(uv_.get(), UV_RUN_ONCE);
  }
  FlushAll();
}

void Loop::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  uv_async_send(&handles_->wake);
}

void Loop::RunOnce(DurationNs wait) {
  Running running(this);
  const uint64_t before = events_;
  uv_run(uv_.get(), UV_RUN_NOWAIT);
  if (events_ != before || wait <= 0) return;
  TimerId limit = RunAfter(wait, [] {});
  uv_run(uv_.get(), UV_RUN_ONCE);
  Cancel(limit);
}

}  // namespace landbridge
