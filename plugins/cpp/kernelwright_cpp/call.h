/* What the functions of all kernels have in common: numbers and tensors as TVM-FFI passes them, results, and errors.
 *
 * It needs C++17, and of tvm-ffi the C headers and libtvm_ffi.so. All packages have the same text, so a program may
 * include the headers of several. */
#ifndef KERNELWRIGHT_CALL_1
#define KERNELWRIGHT_CALL_1

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <dlpack/dlpack.h>
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

namespace kernelwright {
inline namespace v1 {

/// What a call raises: the message is that of the kernel, and `kind` what Python would raise, such as "ValueError".
class Error : public std::runtime_error {
 public:
  Error(std::string kind, const std::string &message) : std::runtime_error(message), kind(std::move(kind)) {}
  std::string kind;
};

/// A tensor that somebody else owns: data, shape and strides. It is passed where a `const DLTensor *` is expected.
///
/// Arguments: the data; the shape; the dtype, that of the elements if it is left out; the device, the CPU if it is left
/// out; and the strides in elements, those of a compact tensor if they are left out.
class View {
 public:
  template <class Element>
  View(Element *data, std::vector<int64_t> shape, DLDevice device = {kDLCPU, 0}, std::vector<int64_t> strides = {})
      : View(data, std::move(shape), dtype_of<std::remove_cv_t<Element>>(), device, std::move(strides)) {}

  View(const void *data, std::vector<int64_t> shape, DLDataType dtype, DLDevice device = {kDLCPU, 0},
       std::vector<int64_t> strides = {})
      : shape_(std::move(shape)), strides_(std::move(strides)) {
    if (strides_.empty()) {
      strides_.resize(shape_.size());
      int64_t stride = 1;
      for (size_t axis = shape_.size(); axis-- > 0; stride *= shape_[axis]) strides_[axis] = stride;
    }
    if (strides_.size() != shape_.size()) throw Error("ValueError", "a tensor has not as many strides as sizes");
    tensor_ = {const_cast<void *>(data), device, static_cast<int32_t>(shape_.size()), dtype, shape_.data(),
               strides_.data(), 0};
  }

  View(const View &other) : View(other.tensor_.data, other.shape_, other.tensor_.dtype, other.tensor_.device,
                                 other.strides_) {}
  View &operator=(const View &) = delete;

  operator const DLTensor *() const { return &tensor_; }

  /// The dtype of a type of C++; others, such as float16, are given as DLDataType.
  template <class Element>
  static constexpr DLDataType dtype_of() {
    static_assert(std::is_arithmetic_v<Element>, "give the dtype of this element as DLDataType");
    constexpr uint8_t bits = 8 * sizeof(Element);
    if constexpr (std::is_same_v<Element, bool>) return {kDLBool, bits, 1};
    if constexpr (std::is_floating_point_v<Element>) return {kDLFloat, bits, 1};
    return {std::is_signed_v<Element> ? static_cast<uint8_t>(kDLInt) : static_cast<uint8_t>(kDLUInt), bits, 1};
  }

 private:
  std::vector<int64_t> shape_, strides_;
  DLTensor tensor_;
};

/// A tensor that a kernel has made. It owns its memory together with all of its copies.
class Tensor {
 public:
  explicit Tensor(TVMFFIObjectHandle handle) : handle_(handle) {}
  Tensor(const Tensor &other) : handle_(other.handle_) {
    if (handle_) TVMFFIObjectIncRef(handle_);
  }
  Tensor(Tensor &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Tensor &operator=(Tensor other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Tensor() {
    if (handle_) TVMFFIObjectDecRef(handle_);
  }

  operator const DLTensor *() const { return TVMFFITensorGetDLTensorPtr(handle_); }
  const DLTensor *operator->() const { return *this; }

  template <class Element>
  Element *data() const {
    const DLTensor *tensor = *this;
    return reinterpret_cast<Element *>(static_cast<char *>(tensor->data) + tensor->byte_offset);
  }

 private:
  TVMFFIObjectHandle handle_;
};

/// Has calls of this thread on a device use a stream, for as long as it lives.
class Stream {
 public:
  Stream(DLDevice device, void *stream) : device_(device) {
    if (TVMFFIEnvSetStream(device.device_type, device.device_id, stream, &before_))
      throw Error("RuntimeError", "the stream cannot be set");
  }
  ~Stream() { TVMFFIEnvSetStream(device_.device_type, device_.device_id, before_, nullptr); }
  Stream(const Stream &) = delete;
  Stream &operator=(const Stream &) = delete;

 private:
  DLDevice device_;
  TVMFFIStreamHandle before_ = nullptr;
};

/// A number of any kind, where variants of a kernel differ in that.
class Number {
 public:
  template <class Given, class = std::enable_if_t<std::is_arithmetic_v<Given>>>
  Number(Given value) : value_{} {
    value_.type_index = std::is_same_v<Given, bool> ? kTVMFFIBool
                        : std::is_integral_v<Given> ? kTVMFFIInt
                                                    : kTVMFFIFloat;
    if constexpr (std::is_integral_v<Given>) value_.v_int64 = static_cast<int64_t>(value);
    else value_.v_float64 = static_cast<double>(value);
  }

  TVMFFIAny passed() const { return value_; }

 private:
  TVMFFIAny value_;
};

namespace detail {

using Function = int (*)(void *, const TVMFFIAny *, int32_t, TVMFFIAny *);

inline TVMFFIAny none() {
  TVMFFIAny value{};
  value.type_index = kTVMFFINone;
  return value;
}

/// A tensor; null is what Python calls None.
inline TVMFFIAny passed(const DLTensor *tensor) {
  TVMFFIAny value = none();
  if (!tensor) return value;
  value.type_index = kTVMFFIDLTensorPtr;
  value.v_ptr = const_cast<DLTensor *>(tensor);
  return value;
}

inline TVMFFIAny passed(Number number) { return number.passed(); }

/// A number that has a default: that is computed where the kernel is.
template <class Number>
TVMFFIAny passed(const std::optional<Number> &number) {
  return number ? passed(*number) : none();
}

[[noreturn]] inline void raise() {
  TVMFFIObjectHandle handle = nullptr;
  TVMFFIErrorMoveFromRaised(&handle);
  if (!handle) throw Error("RuntimeError", "the kernel failed, and did not say why");
  const TVMFFIErrorCell *cell = TVMFFIErrorGetCellPtr(handle);
  std::string kind(cell->kind.data, cell->kind.size), message(cell->message.data, cell->message.size);
  TVMFFIObjectDecRef(handle);
  throw Error(std::move(kind), message);
}

/// Calls a kernel; what it returns is the caller's.
template <class... Values>
TVMFFIAny call(Function function, const Values &...values) {
  TVMFFIAny arguments[sizeof...(Values) + 1] = {passed(values)..., none()}, result = none();
  if (function(nullptr, arguments, sizeof...(Values), &result)) raise();
  return result;
}

inline Tensor one(TVMFFIAny result) { return Tensor(result.v_obj); }

/// The outputs of a kernel that has several, which TVM-FFI returns as an array.
template <size_t... Numbers>
auto several(TVMFFIAny result, std::index_sequence<Numbers...>) {
  const auto *cell = reinterpret_cast<const TVMFFISeqCell *>(reinterpret_cast<char *>(result.v_obj) + sizeof(TVMFFIObject));
  const auto *items = static_cast<const TVMFFIAny *>(cell->data);
  (TVMFFIObjectIncRef(items[Numbers].v_obj), ...);
  auto tensors = std::make_tuple(Tensor(items[Numbers].v_obj)...);
  TVMFFIObjectDecRef(result.v_obj);
  return tensors;
}

}  // namespace detail
}  // namespace v1
}  // namespace kernelwright

#endif
