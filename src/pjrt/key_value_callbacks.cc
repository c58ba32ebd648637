#include "pjrt/key_value_callbacks.h"

#include <cstring>
#include <string>

#include "absl/status/statusor.h"

namespace landbridge::pjrt {
namespace {

KeyValueStore& StoreOf(void* user_arg) { return *static_cast<KeyValueStore*>(user_arg); }

PJRT_Error* ToError(const absl::Status& status, PJRT_CallbackError* make) {
  if (status.ok()) return nullptr;
  return (*make)(static_cast<PJRT_Error_Code>(status.code()), status.message().data(), status.message().size());
}

// The plugin copies the value, then calls the deleter.
template <typename T>
PJRT_Error* GiveValue(const absl::StatusOr<std::string>& value, T* args) {
  if (!value.ok()) return ToError(value.status(), args->callback_error);
  args->value = new char[value->size() + 1];  // never of no size
  std::memcpy(args->value, value->data(), value->size());
  args->value_size = value->size();
  args->value_deleter_callback = [](char* bytes) { delete[] bytes; };
  return nullptr;
}

PJRT_Error* GetValue(PJRT_KeyValueGetCallback_Args* args) {
  const absl::string_view key(args->key, args->key_size);
  return GiveValue(StoreOf(args->user_arg).Get(key, args->timeout_in_ms * kMillisecond), args);
}

PJRT_Error* TryGetValue(PJRT_KeyValueTryGetCallback_Args* args) {
  return GiveValue(StoreOf(args->user_arg).TryGet({args->key, args->key_size}), args);
}

PJRT_Error* PutValue(PJRT_KeyValuePutCallback_Args* args) {
  return ToError(StoreOf(args->user_arg).Put({args->key, args->key_size}, {args->value, args->value_size}),
                 args->callback_error);
}

}  // namespace

void SetKeyValueCallbacks(KeyValueStore* store, PJRT_Client_Create_Args* args) {
  args->kv_get_callback = &GetValue;
  args->kv_try_get_callback = &TryGetValue;
  args->kv_put_callback = &PutValue;
  args->kv_get_user_arg = args->kv_try_get_user_arg = args->kv_put_user_arg = store;
}

}  // namespace landbridge::pjrt
