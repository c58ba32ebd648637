#include "worker/shell/image_budget.h"

#include <utility>
#include <vector>

namespace landbridge {

struct ImageBudget::State {
  struct Waiter {
    int64_t bytes;
    Granted granted;
  };
  explicit State(int64_t max) : bytes_max(max) {}
  const int64_t bytes_max;
  absl::Mutex mutex;
  int64_t out ABSL_GUARDED_BY(mutex) = 0;
  uint64_t granted ABSL_GUARDED_BY(mutex) = 0;
  std::deque<Waiter> waiting ABSL_GUARDED_BY(mutex);
};

ImageBudget::ImageBudget(int64_t bytes_max) : state_(std::make_shared<State>(bytes_max)) {}

void ImageBudget::Acquire(int64_t bytes, Granted granted) {
  {
    absl::MutexLock lock(&state_->mutex);
    state_->waiting.push_back({bytes, std::move(granted)});
  }
  GrantAll(state_);
}

void ImageBudget::GrantAll(const std::shared_ptr<State>& state) {
  std::vector<State::Waiter> ready;
  {
    absl::MutexLock lock(&state->mutex);
    while (!state->waiting.empty()) {
      const int64_t bytes = state->waiting.front().bytes;
      if (state->out != 0 && state->out + bytes > state->bytes_max) break;
      state->out += bytes;
      ++state->granted;
      ready.push_back(std::move(state->waiting.front()));
      state->waiting.pop_front();
    }
  }
  for (State::Waiter& waiter : ready) {
    waiter.granted(Grant(static_cast<const void*>(state.get()), [state, bytes = waiter.bytes](const void*) {
      {
        absl::MutexLock lock(&state->mutex);
        state->out -= bytes;
      }
      GrantAll(state);
    }));
  }
}

int64_t ImageBudget::bytes_out() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->out;
}

uint64_t ImageBudget::granted() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->granted;
}

size_t ImageBudget::waiting() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->waiting.size();
}

}  // namespace landbridge
