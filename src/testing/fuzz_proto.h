// Messages made of choices: every field of a message, by reflection, with ids that meet and now and then anything.
//
// Thread-safety: one thread.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <string>
#include <vector>

#include "testing/fuzz.h"

namespace landbridge::fuzz {

class MessageMaker {
 public:
  // `texts`: what strings and bytes are often (names that the code knows, other messages serialized).
  explicit MessageMaker(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  void Fill(Choices& choices, google::protobuf::Message* message, int depth = 0) const {
    using google::protobuf::FieldDescriptor;
    const google::protobuf::Descriptor* type = message->GetDescriptor();
    for (int i = 0; i < type->real_oneof_decl_count(); ++i) {
      const auto* oneof = type->oneof_decl(i);
      const auto pick = static_cast<int>(choices.Below(static_cast<uint64_t>(oneof->field_count()) + 1));
      if (pick < oneof->field_count()) FillField(choices, message, oneof->field(pick), depth);
    }
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor* field = type->field(i);
      if (field->real_containing_oneof() != nullptr || choices.Below(4) == 0) continue;
      uint64_t count = 1;
      if (field->is_repeated()) count = choices.Below(4);
      for (; count > 0; --count) FillField(choices, message, field, depth);
    }
  }

 private:
  static constexpr int kDepthMax = 6;

  void FillField(Choices& choices, google::protobuf::Message* message, const google::protobuf::FieldDescriptor* field,
                 int depth) const {
    using google::protobuf::FieldDescriptor;
    if (choices.empty()) return;
    const google::protobuf::Reflection* reflection = message->GetReflection();
    const bool repeated = field->is_repeated();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32: {
        const auto value = static_cast<int32_t>(choices.Size());
        repeated ? reflection->AddInt32(message, field, value) : reflection->SetInt32(message, field, value);
        return;
      }
      case FieldDescriptor::CPPTYPE_INT64: {
        const int64_t value = choices.Size();
        repeated ? reflection->AddInt64(message, field, value) : reflection->SetInt64(message, field, value);
        return;
      }
      case FieldDescriptor::CPPTYPE_UINT32: {
        const auto value = static_cast<uint32_t>(choices.Size());
        repeated ? reflection->AddUInt32(message, field, value) : reflection->SetUInt32(message, field, value);
        return;
      }
      case FieldDescriptor::CPPTYPE_UINT64: {
        const uint64_t value = choices.Id();
        repeated ? reflection->AddUInt64(message, field, value) : reflection->SetUInt64(message, field, value);
        return;
      }
      case FieldDescriptor::CPPTYPE_DOUBLE: {
        const auto value = static_cast<double>(choices.Size());
        repeated ? reflection->AddDouble(message, field, value) : reflection->SetDouble(message, field, value);
        return;
      }
      case FieldDescriptor::CPPTYPE_FLOAT: {
        const auto value = static_cast<float>(choices.Size());
        repeated ? reflection->AddFloat(message, field, value) : reflection->SetFloat(message, field, value);
        return;
      }
      case FieldDescriptor::CPPTYPE_BOOL: {
        const bool value = choices.Flag();
        repeated ? reflection->AddBool(message, field, value) : reflection->SetBool(message, field, value);
        return;
      }
      case FieldDescriptor::CPPTYPE_ENUM: {
        const auto value =
            static_cast<int>(choices.Below(static_cast<uint64_t>(field->enum_type()->value_count()) + 1));
        repeated ? reflection->AddEnumValue(message, field, value) : reflection->SetEnumValue(message, field, value);
        return;
      }
      case FieldDescriptor::CPPTYPE_STRING: {
        const uint64_t pick = choices.Below(256);
        std::string value;
        if (!texts_.empty() && pick < 224) {
          value = texts_[pick % texts_.size()];
        } else {
          value = std::string(choices.Text());
        }
        repeated ? reflection->AddString(message, field, std::move(value))
                 : reflection->SetString(message, field, std::move(value));
        return;
      }
      case FieldDescriptor::CPPTYPE_MESSAGE: {
        if (depth >= kDepthMax) return;
        Fill(choices, repeated ? reflection->AddMessage(message, field) : reflection->MutableMessage(message, field),
             depth + 1);
        return;
      }
    }
  }

  const std::vector<std::string> texts_;
};

// Filled field by field, or whatever the input's own bytes parse as.
template <typename Message>
Message Next(Choices& choices, const MessageMaker& maker) {
  Message message;
  if (choices.Flag()) {
    maker.Fill(choices, &message);
  } else {
    const absl::string_view bytes = choices.Text();
    if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) message.Clear();
  }
  return message;
}

}  // namespace landbridge::fuzz
