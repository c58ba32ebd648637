// Attribute lists of the C ABI, in and out. For this room only.
#pragma once

#include <vector>

#include "pjrt/c_api.h"
#include "pjrt/plugin.h"

namespace landbridge::pjrt {

// Copies; entries of a type that is not known are left out.
AttributeMap ReadAttributes(const PJRT_NamedValue* values, size_t count);

// A view of `map` as the plugin wants it; `map` must outlive it.
class NamedValues {
 public:
  explicit NamedValues(const AttributeMap& map);
  const PJRT_NamedValue* data() const { return values_.data(); }
  size_t size() const { return values_.size(); }

 private:
  std::vector<PJRT_NamedValue> values_;
};

}  // namespace landbridge::pjrt
