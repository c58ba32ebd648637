// Counters and gauges, and their text for a Prometheus scraper.
//
// Thread-safety: everything here may be used from any thread; Counter and Gauge are single atomics.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace landbridge {

class Counter {  // only grows
 public:
  void Add(int64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

class Gauge {  // goes up and down
 public:
  void Set(int64_t value) { value_.store(value, std::memory_order_relaxed); }
  void Add(int64_t amount) { value_.fetch_add(amount, std::memory_order_relaxed); }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

class MetricsRegistry {
 public:
  MetricsRegistry() = default;
  MetricsRegistry(const MetricsRegistry&) = delete;
  MetricsRegistry& operator=(const MetricsRegistry&) = delete;

  // The same name and labels give the same object again; it lives as long as the registry. Names are
  // [a-z_][a-z0-9_]*, e.g. "landbridge_rm_workers"; counters end in "_total".
  Counter& GetCounter(absl::string_view name, absl::string_view help, MetricLabels labels = {});
  Gauge& GetGauge(absl::string_view name, absl::string_view help, MetricLabels labels = {});

  // Text format 0.0.4, families and series in sorted order.
  std::string PrometheusText() const;

  static MetricsRegistry& Global();

 private:
  struct Family {
    bool counter = false;
    std::string help;
    std::map<std::string, std::unique_ptr<Counter>> counters;  // by rendered labels
    std::map<std::string, std::unique_ptr<Gauge>> gauges;
  };
  Family& GetFamily(absl::string_view name, absl::string_view help, bool counter) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::map<std::string, Family> families_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace landbridge
