#include "base/metrics.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/log.h"

namespace landbridge {
namespace {

std::string RenderLabels(const MetricLabels& labels) {
  if (labels.empty()) return "";
  std::string text = "{";
  for (const auto& [name, value] : labels) {
    absl::StrAppend(&text, text.size() > 1 ? "," : "", name, "=\"",
                    absl::StrReplaceAll(value, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}), "\"");
  }
  return text + "}";
}

}  // namespace

MetricsRegistry::Family& MetricsRegistry::GetFamily(absl::string_view name, absl::string_view help, bool counter) {
  auto [it, added] = families_.try_emplace(std::string(name));
  if (added) {
    it->second.counter = counter;
    it->second.help = std::string(help);
  }
  LB_CHECK(it->second.counter == counter);  // one name is either a counter or a gauge
  return it->second;
}

Counter& MetricsRegistry::GetCounter(absl::string_view name, absl::string_view help, MetricLabels labels) {
  absl::MutexLock lock(&mutex_);
  auto& slot = GetFamily(name, help, true).counters[RenderLabels(labels)];
  if (slot == nullptr) slot = std::make_unique<Counter>();
  return *slot;
}

Gauge& MetricsRegistry::GetGauge(absl::string_view name, absl::string_view help, MetricLabels labels) {
  absl::MutexLock lock(&mutex_);
  auto& slot = GetFamily(name, help, false).gauges[RenderLabels(labels)];
  if (slot == nullptr) slot = std::make_unique<Gauge>();
  return *slot;
}

std::string MetricsRegistry::PrometheusText() const {
  absl::MutexLock lock(&mutex_);
  std::string text;
  for (const auto& [name, family] : families_) {
    absl::StrAppend(&text, "# HELP ", name, " ", family.help, "\n# TYPE ", name, " ",
                    family.counter ? "counter" : "gauge", "\n");
    for (const auto& [labels, counter] : family.counters) {
      absl::StrAppend(&text, name, labels, " ", counter->value(), "\n");
    }
    for (const auto& [labels, gauge] : family.gauges) absl::StrAppend(&text, name, labels, " ", gauge->value(), "\n");
  }
  return text;
}

MetricsRegistry& MetricsRegistry::Global() {
  static auto* registry = new MetricsRegistry;
  return *registry;
}

}  // namespace landbridge
