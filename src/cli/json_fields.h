// Reading what servers answer without ever failing: what is missing or of another type reads as nothing.
//
// Thread-safety: plain functions.
#pragma once

#include <cstdint>
#include <string>

#include "nlohmann/json.hpp"

namespace landbridge::cli {

inline const nlohmann::json& Member(const nlohmann::json& object, const char* key) {
  static const nlohmann::json kNone;
  if (!object.is_object()) return kNone;
  const auto it = object.find(key);
  return it == object.end() ? kNone : *it;
}

// A string as it is, a number in digits, else nothing.
inline std::string FieldText(const nlohmann::json& object, const char* key) {
  const nlohmann::json& value = Member(object, key);
  return value.is_string() ? value.get<std::string>() : value.is_number() ? value.dump() : std::string();
}

inline int64_t FieldNumber(const nlohmann::json& object, const char* key, int64_t otherwise) {
  const nlohmann::json& value = Member(object, key);
  return value.is_number() ? static_cast<int64_t>(value.get<double>()) : otherwise;
}

}  // namespace landbridge::cli
