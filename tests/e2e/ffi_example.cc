// A user's library of custom calls, written as JAX's documentation of jax.ffi shows.
#include <cmath>
#include <cstdint>
#include <string_view>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

// Rows of the last dimension, divided by their root mean square.
ffi::Error RmsNormImpl(float eps, ffi::Buffer<ffi::F32> x, ffi::ResultBuffer<ffi::F32> y) {
  const auto dims = x.dimensions();
  if (dims.size() == 0) return ffi::Error::InvalidArgument("rms_norm wants rows, not a number");
  const int64_t size = dims.back();
  for (int64_t row = 0; row < static_cast<int64_t>(x.element_count()) / (size > 0 ? size : 1); ++row) {
    const float* in = x.typed_data() + row * size;
    float sum = 0;
    for (int64_t i = 0; i < size; ++i) sum += in[i] * in[i];
    const float scale = 1.0f / std::sqrt(sum / static_cast<float>(size) + eps);
    for (int64_t i = 0; i < size; ++i) y->typed_data()[row * size + i] = in[i] * scale;
  }
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(RmsNorm, RmsNormImpl,
                              ffi::Ffi::Bind().Attr<float>("eps").Arg<ffi::Buffer<ffi::F32>>().Ret<ffi::Buffer<ffi::F32>>());

// Every kind of attribute in one call: a * x + sum(list), or an error with the text given.
ffi::Error AttributesImpl(int64_t a, ffi::Span<const double> list, std::string_view text, bool fail,
                          ffi::Buffer<ffi::F64> x, ffi::ResultBuffer<ffi::F64> y) {
  if (fail) return ffi::Error(ffi::ErrorCode::kInvalidArgument, std::string(text));
  double sum = 0;
  for (double value : list) sum += value;
  for (size_t i = 0; i < x.element_count(); ++i) y->typed_data()[i] = static_cast<double>(a) * x.typed_data()[i] + sum;
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(my_attributes, AttributesImpl,
                              ffi::Ffi::Bind()
                                  .Attr<int64_t>("a")
                                  .Attr<ffi::Span<const double>>("list")
                                  .Attr<std::string_view>("text")
                                  .Attr<bool>("fail")
                                  .Arg<ffi::Buffer<ffi::F64>>()
                                  .Ret<ffi::Buffer<ffi::F64>>());
