#include "pjrt/attributes.h"

namespace landbridge::pjrt {

AttributeMap ReadAttributes(const PJRT_NamedValue* values, size_t count) {
  AttributeMap map;
  const char* cursor = reinterpret_cast<const char*>(values);
  for (size_t i = 0; i < count; ++i) {
    auto& value = *reinterpret_cast<const PJRT_NamedValue*>(cursor);
    // The plugin's own size is the stride, should its struct have grown.
    cursor += value.struct_size > sizeof(PJRT_NamedValue) ? (value.struct_size + 7) / 8 * 8 : sizeof(PJRT_NamedValue);
    std::string name(value.name, value.name_size);
    switch (value.type) {
      case PJRT_NamedValue_kString: map[name] = std::string(value.string_value, value.value_size); break;
      case PJRT_NamedValue_kInt64: map[name] = value.int64_value; break;
      case PJRT_NamedValue_kInt64List:
        map[name] = std::vector<int64_t>(value.int64_array_value, value.int64_array_value + value.value_size);
        break;
      case PJRT_NamedValue_kFloat: map[name] = value.float_value; break;
      case PJRT_NamedValue_kBool: map[name] = value.bool_value; break;
    }
  }
  return map;
}

NamedValues::NamedValues(const AttributeMap& map) {
  for (const auto& [name, attribute] : map) {
    PJRT_NamedValue value{};
    value.struct_size = sizeof(PJRT_NamedValue);  // an array: no guard bytes here
    value.name = name.data();
    value.name_size = name.size();
    value.value_size = 1;
    if (auto* text = std::get_if<std::string>(&attribute)) {
      value.type = PJRT_NamedValue_kString;
      value.string_value = text->data();
      value.value_size = text->size();
    } else if (auto* integer = std::get_if<int64_t>(&attribute)) {
      value.type = PJRT_NamedValue_kInt64;
      value.int64_value = *integer;
    } else if (auto* list = std::get_if<std::vector<int64_t>>(&attribute)) {
      value.type = PJRT_NamedValue_kInt64List;
      value.int64_array_value = list->data();
      value.value_size = list->size();
    } else if (auto* number = std::get_if<float>(&attribute)) {
      value.type = PJRT_NamedValue_kFloat;
      value.float_value = *number;
    } else {
      value.type = PJRT_NamedValue_kBool;
      value.bool_value = std::get<bool>(attribute);
    }
    values_.push_back(value);
  }
}

}  // namespace landbridge::pjrt
