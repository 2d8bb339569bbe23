/* The C functions of PyTorch's stable ABI, over arrays of TVM-FFI: with them, a library of sources that register
 * operators of PyTorch runs without PyTorch.
 *
 * Such a source registers boxed functions when the library is loaded. A call of a kernel takes the arguments of TVM-FFI
 * apart, gives the boxed function what the operator's schema says, and catches what it throws. An array is a view with
 * a count of references, in memory of the caller or of the allocator that the caller's framework has set.
 *
 * Names, types and meaning of the functions are PyTorch's (torch/csrc/stable/c/shim.h, and what it includes). A source
 * that needs another one is an error when its library is linked. */
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#define KW_ABI extern "C" __attribute__((visibility("hidden")))

namespace {

typedef uint64_t Value;  // what a boxed function gets and gives: 64 bits, of which a small type takes the first
typedef void (*Boxed)(Value *, uint64_t, uint64_t);

// A call that does not fit a schema.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A dtype: what functions of the ABI call it, PyTorch's number, and DLPack's code, bits and lanes. The numbers are no
// part of the ABI: sources ask for them.
#define KW_DTYPES(each)                                                                                          \
  each(uint8, 0, kDLUInt, 8, 1) each(int8, 1, kDLInt, 8, 1) each(int16, 2, kDLInt, 16, 1)                        \
  each(int32, 3, kDLInt, 32, 1) each(int64, 4, kDLInt, 64, 1) each(float16, 5, kDLFloat, 16, 1)                  \
  each(float32, 6, kDLFloat, 32, 1) each(float64, 7, kDLFloat, 64, 1) each(complex32, 8, kDLComplex, 32, 1)      \
  each(complex64, 9, kDLComplex, 64, 1) each(complex128, 10, kDLComplex, 128, 1) each(bool, 11, kDLBool, 8, 1)   \
  each(bfloat16, 15, kDLBfloat, 16, 1) each(float8_e5m2, 23, kDLFloat8_e5m2, 8, 1)                               \
  each(float8_e4m3fn, 24, kDLFloat8_e4m3fn, 8, 1) each(float8_e5m2fnuz, 25, kDLFloat8_e5m2fnuz, 8, 1)            \
  each(float8_e4m3fnuz, 26, kDLFloat8_e4m3fnuz, 8, 1) each(uint16, 27, kDLUInt, 16, 1)                           \
  each(uint32, 28, kDLUInt, 32, 1) each(uint64, 29, kDLUInt, 64, 1)                                              \
  each(float8_e8m0fnu, 44, kDLFloat8_e8m0fnu, 8, 1) each(float4_e2m1fn_x2, 45, kDLFloat4_e2m1fn, 4, 2)

struct Dtype {
  int32_t number;
  DLDataType type;
};

#define KW_DTYPE(name, number, code, bits, lanes) {number, {code, bits, lanes}},
const Dtype DTYPES[] = {KW_DTYPES(KW_DTYPE)};

int32_t number_of(DLDataType type) {
  for (const Dtype &dtype : DTYPES)
    if (dtype.type.code == type.code && dtype.type.bits == type.bits && dtype.type.lanes == type.lanes)
      return dtype.number;
  throw Refused("PyTorch has no dtype for an array of the call");
}

DLDataType type_of(int32_t number) {
  for (const Dtype &dtype : DTYPES)
    if (dtype.number == number) return dtype.type;
  throw Refused("there is no dtype with the number " + std::to_string(number));
}

int64_t bytes_of(DLDataType type) { return (type.bits * type.lanes + 7) / 8; }

struct Array {
  int64_t references = 1;
  DLTensor view = {};
  std::vector<int64_t> sizes, strides;
  TVMFFIObjectHandle owner = nullptr;  // keeps the memory; null: the caller does
  bool defined = true, lent = false;  // lent: in memory that a source passed to from_blob

  Array(const DLTensor &of, TVMFFIObjectHandle kept) : view(of), sizes(of.shape, of.shape + of.ndim), owner(kept) {
    if (of.strides) strides.assign(of.strides, of.strides + of.ndim);
    else compact();
    view.data = static_cast<char *>(of.data) + of.byte_offset;
    view.byte_offset = 0;
    point();
    if (owner) TVMFFIObjectIncRef(owner);
  }
  ~Array() {
    if (owner) TVMFFIObjectDecRef(owner);
  }
  void point() {
    view.ndim = static_cast<int32_t>(sizes.size());
    view.shape = sizes.data();
    view.strides = strides.data();
  }
  void compact() {
    strides.assign(sizes.size(), 1);
    for (size_t i = sizes.size(); i-- > 1;) strides[i - 1] = strides[i] * (sizes[i] > 1 ? sizes[i] : 1);
  }
  int64_t elements() const {
    int64_t count = 1;
    for (int64_t size : sizes) count *= size;
    return count;
  }
  bool is_compact() const {
    int64_t expected = 1;
    for (size_t i = sizes.size(); i-- > 0; expected *= sizes[i])
      if (sizes[i] != 1 && strides[i] != expected) return elements() == 0;
    return true;
  }
  size_t dimension(int64_t number) const {
    int64_t count = static_cast<int64_t>(sizes.size());
    if (number < -count || number >= count)
      throw std::out_of_range("dimension " + std::to_string(number) + " of an array with " + std::to_string(count));
    return static_cast<size_t>(number < 0 ? number + count : number);
  }
};

void release(Array *array) {
  if (array && --array->references == 0) delete array;
}

struct Operator {
  std::string space, name;
  Boxed function;
  bool cuda;  // whether it is for arrays on a CUDA device only
};

struct Parameter {
  std::string type, name, preset;
  bool optional = false, list = false, holey = false;  // holey: items of the list may be None
};
struct Schema {
  std::string space, name;
  std::vector<Parameter> parameters, results;
};
struct Library {
  std::string space;
  bool counts, cuda;  // whether it is for a device that calls have; and for none but CUDA
};
struct Stream {
  void *handle;
};
struct Guard {
  int before;
};

// Libraries are registered before the variables of this file are made, so these are made when they are first needed.
std::vector<Operator> &operators() {
  static std::vector<Operator> all;
  return all;
}
std::vector<Schema> &schemas() {
  static std::vector<Schema> all;
  return all;
}

thread_local std::string failed;  // why a function of the ABI failed in this call

int fail(const char *message) {
  failed = message;
  return 1;
}

// Runs what may throw, for a function that returns whether it failed.
template <typename Work>
int guarded(Work work) {
  try {
    work();
    return 0;
  } catch (const std::exception &error) {
    return fail(error.what());
  }
}

DLDevice device_of(int32_t type, int32_t index) {
  if (type != 0 && type != 1) throw std::invalid_argument("arrays are on the CPU or on a CUDA device");
  return {type ? kDLCUDA : kDLCPU, index};
}

Array *allocated(const std::vector<int64_t> &sizes, DLDataType type, DLDevice device) {
  DLTensor like = {};
  like.device = device;
  like.dtype = type;
  like.ndim = static_cast<int32_t>(sizes.size());
  like.shape = const_cast<int64_t *>(sizes.data());
  TVMFFIObjectHandle made = nullptr;
  if (TVMFFIEnvTensorAlloc(&like, &made))
    throw std::runtime_error(
        "the caller's framework gives no memory: pass arrays of one that does, such as PyTorch, or have the operator "
        "write to an output of the call");
  Array *array = new Array(*TVMFFITensorGetDLTensorPtr(made), made);
  TVMFFIObjectDecRef(made);
  return array;
}

// ---- schemas

std::string stripped(const std::string &text) {
  size_t begin = text.find_first_not_of(" \n\t"), end = text.find_last_not_of(" \n\t");
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

// The parts between commas outside of brackets.
std::vector<std::string> parts(const std::string &text) {
  std::vector<std::string> found;
  std::string part;
  int depth = 0;
  for (char letter : text) {
    depth += (letter == '(' || letter == '[') - (letter == ')' || letter == ']');
    if (letter == ',' && !depth) {
      found.push_back(stripped(part));
      part.clear();
    } else {
      part += letter;
    }
  }
  if (!stripped(part).empty()) found.push_back(stripped(part));
  return found;
}

// A parameter such as "Tensor(a!)? bias=None" or "int[2] sizes"; of a result only the type.
Parameter parameter_of(const std::string &text) {
  Parameter parameter;
  size_t i = 0;
  while (i < text.size() && (std::isalnum(text[i]) || text[i] == '_')) parameter.type += text[i++];
  for (; i < text.size() && text[i] != ' '; ++i) {
    if (text[i] == '?') parameter.optional = true;
    if (text[i] == '[') parameter.list = true, std::swap(parameter.holey, parameter.optional);
    if (text[i] == '(') i = std::min(text.find(')', i), text.size() - 1);
  }
  std::string rest = stripped(text.substr(i < text.size() ? i : text.size()));
  size_t equal = rest.find('=');
  parameter.name = stripped(rest.substr(0, equal));
  if (equal != std::string::npos) parameter.preset = stripped(rest.substr(equal + 1));
  return parameter;
}

// name(parameters) -> results. A text without brackets or arrow has none; LINK takes no operator with such a schema.
Schema schema_of(const std::string &space, const std::string &text) {
  size_t open = text.find('('), arrow = text.rfind("->");
  size_t close = arrow == std::string::npos ? arrow : text.rfind(')', arrow);
  Schema schema = {space, stripped(text.substr(0, open)), {}, {}};
  if (open == std::string::npos || close == std::string::npos || close < open) return schema;
  for (const std::string &part : parts(text.substr(open + 1, close - open - 1)))
    if (part != "*") schema.parameters.push_back(parameter_of(part));
  std::string given = stripped(text.substr(arrow + 2));
  if (!given.empty() && given[0] == '(') given = given.substr(1, given.size() - 2);
  for (const std::string &part : parts(given)) schema.results.push_back(parameter_of(part));
  return schema;
}

// ---- from TVM-FFI's values to those of the ABI, and back

Value bits_of(const void *data, size_t size) {
  Value value = 0;
  std::memcpy(&value, data, size);
  return value;
}

template <typename T>
Value as_value(T number) {
  return bits_of(&number, sizeof number);
}

const char *kind_of(const TVMFFIAny &given) {
  switch (given.type_index) {
    case kTVMFFINone: return "None";
    case kTVMFFIBool: return "a bool";
    case kTVMFFIInt: return "an integer";
    case kTVMFFIFloat: return "a number";
    case kTVMFFIDLTensorPtr: case kTVMFFITensor: return "an array";
    case kTVMFFIRawStr: case kTVMFFISmallStr: case kTVMFFIStr: return "a string";
    case kTVMFFIArray: case kTVMFFIList: return "a list";
    default: return "a value of another kind";
  }
}

// What a call gives to a boxed function, which owns it from then on. Until then, the end of this takes it back.
struct Arguments {
  std::vector<Value> values;
  std::vector<Array *> arrays;
  std::vector<Value *> boxes;
  std::vector<std::vector<Value> *> lists;
  std::vector<std::string *> strings;

  ~Arguments() {
    for (Array *array : arrays) release(array);
    for (Value *box : boxes) delete box;
    for (auto *list : lists) delete list;
    for (auto *text : strings) delete text;
  }
  void hand_over() {
    arrays.clear();
    boxes.clear();
    lists.clear();
    strings.clear();
  }

  [[noreturn]] static void refuse(const Parameter &parameter, const std::string &given) {
    std::string expected = parameter.type + (parameter.holey ? "?" : "") + (parameter.list ? "[]" : "") +
                           (parameter.optional ? "?" : "");
    throw Refused("argument " + parameter.name + " is " + given + ", and its schema says " + expected);
  }

  Value array(const DLTensor *tensor, TVMFFIObjectHandle owner) {
    arrays.push_back(new Array(*tensor, owner));
    return as_value(arrays.back());
  }
  Value text(const char *data, size_t size) {
    strings.push_back(new std::string(data, size));
    return as_value(strings.back());
  }

  Value list(const Parameter &parameter, const TVMFFIAny &given) {
    if (given.type_index != kTVMFFIArray && given.type_index != kTVMFFIList) refuse(parameter, kind_of(given));
    auto *cell = reinterpret_cast<TVMFFISeqCell *>(reinterpret_cast<char *>(given.v_obj) + sizeof(TVMFFIObject));
    Parameter item = parameter;
    item.list = item.holey = false;
    item.optional = parameter.holey;
    auto *made = new std::vector<Value>();
    lists.push_back(made);
    for (int64_t i = 0; i < cell->size; ++i) made->push_back(boxed(item, static_cast<TVMFFIAny *>(cell->data)[i]));
    return as_value(made);
  }

  Value single(const Parameter &parameter, const TVMFFIAny &given) {
    const std::string &type = parameter.type;
    int32_t kind = given.type_index;
    bool whole = kind == kTVMFFIInt || kind == kTVMFFIBool;
    if (type == "Tensor" && kind == kTVMFFIDLTensorPtr) return array(static_cast<DLTensor *>(given.v_ptr), nullptr);
    if (type == "Tensor" && kind == kTVMFFITensor)
      return array(TVMFFITensorGetDLTensorPtr(given.v_obj), given.v_obj);
    if ((type == "int" || type == "SymInt") && whole) return as_value(given.v_int64);
    if (type == "float" && kind == kTVMFFIFloat) return as_value(given.v_float64);
    if (type == "float" && whole) return as_value(static_cast<double>(given.v_int64));
    if (type == "bool" && whole) return as_value(given.v_int64 != 0);
    if (type == "ScalarType" && kind == kTVMFFIDataType) return as_value(number_of(given.v_dtype));
    if (type == "str" && kind == kTVMFFIRawStr) return text(given.v_c_str, std::strlen(given.v_c_str));
    if (type == "str" && kind == kTVMFFISmallStr) return text(given.v_bytes, given.small_str_len);
    if (type == "str" && kind == kTVMFFIStr) {
      TVMFFIByteArray *bytes = TVMFFIBytesGetByteArrayPtr(given.v_obj);
      return text(bytes->data, bytes->size);
    }
    refuse(parameter, kind_of(given));
  }

  Value boxed(const Parameter &parameter, const TVMFFIAny &given) {
    if (given.type_index == kTVMFFINone && parameter.optional) return 0;
    Value value = parameter.list ? list(parameter, given) : single(parameter, given);
    if (!parameter.optional) return value;
    boxes.push_back(new Value(value));
    return as_value(boxes.back());
  }
  void add(const Parameter &parameter, const TVMFFIAny &given) { values.push_back(boxed(parameter, given)); }

  void add_preset(const Parameter &parameter) {
    TVMFFIAny given = {};
    char *end = nullptr;
    const std::string &text = parameter.preset;
    if (text.empty()) throw Refused("argument " + parameter.name + " is missing");
    if (text == "None") {
      given.type_index = kTVMFFINone;
    } else if (text == "True" || text == "False") {
      given.type_index = kTVMFFIBool;
      given.v_int64 = text == "True";
    } else if (parameter.type == "float") {
      given.type_index = kTVMFFIFloat;
      given.v_float64 = std::strtod(text.c_str(), &end);
    } else {
      given.type_index = kTVMFFIInt;
      given.v_int64 = std::strtoll(text.c_str(), &end, 10);
    }
    if (end && *end) throw Refused("argument " + parameter.name + " is missing; pass " + text);
    add(parameter, given);
  }
};

// Raises an error if take() has no place for a result.
void require_result(const Parameter &parameter) {
  bool known = false;
  for (const char *type : {"Tensor", "int", "SymInt", "float", "bool"}) known |= parameter.type == type;
  if (!known || parameter.list || parameter.optional)
    throw Refused("it returns neither an array nor a number, but " + parameter.type + (parameter.list ? "[]" : "") +
                  (parameter.optional ? "?" : ""));
}

// Takes what a boxed function gave, and puts it into the result of the call if there is one place for it. An array is
// returned as a view of the one that keeps its memory.
void take(const Parameter &parameter, Value value, TVMFFIAny *result) {
  if (parameter.type == "Tensor") {
    Array *array = reinterpret_cast<Array *>(value);
    TVMFFIObjectHandle made = nullptr;
    bool failed = array->lent || (array->owner && TVMFFITensorCreateUnsafeView(array->owner, &array->view, &made));
    release(array);
    if (failed) throw Refused("it returns an array whose memory nothing keeps, as that of from_blob");
    if (made && result) {
      result->type_index = kTVMFFITensor;
      result->v_obj = static_cast<TVMFFIObject *>(made);
    } else if (made) {
      TVMFFIObjectDecRef(made);
    }
  } else if (result && parameter.type == "float") {
    result->type_index = kTVMFFIFloat;
    std::memcpy(&result->v_float64, &value, sizeof value);
  } else if (result) {
    result->type_index = parameter.type == "bool" ? kTVMFFIBool : kTVMFFIInt;
    result->v_int64 = parameter.type == "bool" ? (value & 0xff) != 0 : static_cast<int64_t>(value);
  }
}

const Operator &operator_of(const char *name) {
  const Operator *found = nullptr;
  for (const Operator &one : operators()) {
    if (one.name != name) continue;
    if (found) throw Refused("its sources register two operators of that name; leave the sources of one out");
    found = &one;
  }
  if (!found) throw Refused(std::string("its sources register no operator ") + name + " for CUDA");
  return *found;
}

void call(const char *name, const TVMFFIAny *given, int32_t count, TVMFFIAny *result) {
  static const Schema unknown;
  const Operator &called = operator_of(name);
  const Schema *schema = &unknown;
  for (const Schema &one : schemas())
    if (one.name == name && one.space == called.space) schema = &one;
  const std::vector<Parameter> &parameters = schema->parameters, &results = schema->results;
  if (parameters.size() < static_cast<size_t>(count))
    throw Refused("it takes " + std::to_string(parameters.size()) + " arguments by its schema, and got " +
                                std::to_string(count));
  for (const Parameter &one : results) require_result(one);
  Arguments arguments;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (i < static_cast<size_t>(count)) arguments.add(parameters[i], given[i]);
    else arguments.add_preset(parameters[i]);
  }
  bool reached = !called.cuda || arguments.arrays.empty();
  for (const Array *array : arguments.arrays) reached |= array->view.device.device_type == kDLCUDA;
  if (!reached) throw Refused("it is registered for CUDA, and its arrays are on the CPU");
  std::vector<Value> stack = arguments.values;
  stack.resize(stack.size() > results.size() ? stack.size() : results.size());
  arguments.hand_over();
  called.function(stack.data(), arguments.values.size(), results.size());
  for (size_t i = 0; i < results.size(); ++i) take(results[i], stack[i], results.size() == 1 ? result : nullptr);
}

}  // namespace

// Calls an operator. Functions that LINK writes, one for each kernel's operator, go on here with its name.
KW_ABI int kw_call_operator(void *, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result, const char *name) {
  try {
    failed.clear();
    call(name, arguments, count, result);
    return 0;
  } catch (const Refused &error) {
    TVMFFIErrorSetRaisedFromCStr("TypeError", (std::string("operator ") + name + ": " + error.what()).c_str());
  } catch (const std::exception &error) {
    // What a source throws does not say why one of our functions failed.
    std::string text = failed.empty() ? "" : "operator " + std::string(name) + ": " + failed + "\n  ";
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", (text + error.what()).c_str());
  } catch (...) {
    std::string text = "operator " + std::string(name) + ": its sources threw what is no std::exception";
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", text.c_str());
  }
  return -1;
}

// ---- the registration of operators

KW_ABI int aoti_torch_library_init_def(const char *space, const char *, uint32_t, Library **made) {
  *made = new Library{space, true, false};
  return 0;
}
KW_ABI int aoti_torch_library_init_fragment(const char *space, const char *, uint32_t, Library **made) {
  *made = new Library{space, true, false};
  return 0;
}
KW_ABI int aoti_torch_library_init_impl(const char *space, const char *key, const char *, uint32_t, Library **made) {
  bool cuda = !std::strcmp(key, "CUDA");
  bool counts = cuda || !std::strncmp(key, "Composite", 9) || !std::strcmp(key, "CatchAll");
  *made = new Library{space, counts, cuda};
  return 0;
}
KW_ABI int aoti_torch_delete_library_object(Library *library) {
  delete library;
  return 0;
}
KW_ABI int aoti_torch_library_def(Library *library, const char *schema) {
  return guarded([&] { schemas().push_back(schema_of(library->space, schema)); });
}
KW_ABI int torch_library_def_with_tags(Library *library, const char *schema, const int32_t *, int32_t) {
  return aoti_torch_library_def(library, schema);
}
KW_ABI int aoti_torch_library_impl(Library *library, const char *name, Boxed function) {
  return guarded([&] {
    if (library->counts) operators().push_back({library->space, name, function, library->cuda});
  });
}
KW_ABI int torch_library_impl(Library *library, const char *name, Boxed function, uint64_t) {
  return aoti_torch_library_impl(library, name, function);
}
KW_ABI int torch_library_set_python_module(Library *, const char *, const char *) { return 0; }

// ---- constants

#define KW_CONSTANT(name, number) \
  KW_ABI int32_t name() { return number; }
KW_CONSTANT(aoti_torch_device_type_cpu, 0)
KW_CONSTANT(aoti_torch_device_type_cuda, 1)
KW_CONSTANT(aoti_torch_device_type_xpu, 12)
KW_CONSTANT(aoti_torch_device_type_mps, 13)
KW_CONSTANT(aoti_torch_device_type_meta, 14)
KW_CONSTANT(aoti_torch_device_type_privateuse1, 20)
#define KW_DTYPE_CONSTANT(name, number, ...) KW_CONSTANT(aoti_torch_dtype_##name, number)
KW_DTYPES(KW_DTYPE_CONSTANT)
KW_CONSTANT(torch_dtype_float8_e8m0fnu, 44)
KW_CONSTANT(torch_dtype_float4_e2m1fn_x2, 45)
KW_CONSTANT(aoti_torch_layout_strided, 0)
KW_CONSTANT(aoti_torch_layout_sparse_coo, 1)
KW_CONSTANT(aoti_torch_layout_sparse_csr, 2)
KW_CONSTANT(aoti_torch_layout__mkldnn, 3)
KW_CONSTANT(aoti_torch_layout_sparse_csc, 4)
KW_CONSTANT(aoti_torch_layout_sparse_bsr, 5)
KW_CONSTANT(aoti_torch_layout_sparse_bsc, 6)
KW_CONSTANT(aoti_torch_layout_jagged, 7)
KW_CONSTANT(aoti_torch_memory_format_contiguous_format, 0)
KW_CONSTANT(aoti_torch_memory_format_preserve_format, 1)
KW_CONSTANT(aoti_torch_memory_format_channels_last, 2)
KW_CONSTANT(aoti_torch_memory_format_channels_last_3d, 3)

// That of PyTorch 2.13, the newest whose functions are here.
KW_ABI uint64_t aoti_torch_abi_version() { return 2ull << 56 | 13ull << 48; }
KW_ABI const char *torch_exception_get_what() { return failed.c_str(); }
KW_ABI const char *torch_exception_get_what_without_backtrace() { return failed.c_str(); }

// ---- arrays

#define KW_GET(name, type, value)              \
  KW_ABI int name(Array *array, type *result) { \
    *result = value;                           \
    return 0;                                  \
  }
KW_GET(aoti_torch_get_data_ptr, void *, array->view.data)
KW_GET(torch_get_mutable_data_ptr, void *, array->view.data)
KW_GET(torch_get_const_data_ptr, const void *, array->view.data)
KW_GET(aoti_torch_get_dim, int64_t, static_cast<int64_t>(array->sizes.size()))
KW_GET(aoti_torch_get_numel, int64_t, array->elements())
KW_GET(aoti_torch_get_sizes, int64_t *, array->sizes.data())
KW_GET(aoti_torch_get_strides, int64_t *, array->strides.data())
KW_GET(aoti_torch_get_device_type, int32_t, array->view.device.device_type == kDLCPU ? 0 : 1)
KW_GET(aoti_torch_get_device_index, int32_t, array->view.device.device_id)
// Of memory that others have, only what the array spans is known.
KW_GET(aoti_torch_get_storage_size, int64_t, array->elements() * bytes_of(array->view.dtype))
KW_GET(aoti_torch_is_contiguous, bool, array->is_compact())
KW_GET(aoti_torch_is_defined, bool, array->defined)

KW_ABI int aoti_torch_get_layout(Array *, int32_t *result) {
  *result = 0;
  return 0;
}
KW_ABI int aoti_torch_get_storage_offset(Array *, int64_t *result) {
  *result = 0;
  return 0;
}
KW_ABI int aoti_torch_get_dtype(Array *array, int32_t *result) {
  return guarded([&] { *result = number_of(array->view.dtype); });
}
KW_ABI size_t aoti_torch_dtype_element_size(int32_t number) { return static_cast<size_t>(bytes_of(type_of(number))); }
KW_ABI int aoti_torch_get_size(Array *array, int64_t dimension, int64_t *result) {
  return guarded([&] { *result = array->sizes[array->dimension(dimension)]; });
}
KW_ABI int aoti_torch_get_stride(Array *array, int64_t dimension, int64_t *result) {
  return guarded([&] { *result = array->strides[array->dimension(dimension)]; });
}
KW_ABI int aoti_torch_new_tensor_handle(Array *array, Array **made) {
  ++array->references;
  *made = array;
  return 0;
}
KW_ABI int aoti_torch_new_uninitialized_tensor(Array **made) {
  return guarded([&] {
    *made = new Array(DLTensor{}, nullptr);
    (*made)->defined = false;
  });
}
KW_ABI int aoti_torch_delete_tensor_object(Array *array) {
  release(array);
  return 0;
}

KW_ABI int aoti_torch_create_tensor_from_blob_v2(void *data, int64_t count, const int64_t *sizes,
                                                 const int64_t *strides, int64_t offset, int32_t dtype,
                                                 int32_t device, int32_t index, Array **made, int32_t,
                                                 const uint8_t *, int64_t) {
  return guarded([&] {
    DLTensor view = {};
    view.dtype = type_of(dtype);
    view.data = static_cast<char *>(data) + offset * bytes_of(view.dtype);
    view.device = device_of(device, index);
    view.ndim = static_cast<int32_t>(count);
    view.shape = const_cast<int64_t *>(sizes);
    view.strides = const_cast<int64_t *>(strides);
    *made = new Array(view, nullptr);
    (*made)->lent = true;
  });
}

static Array *new_empty(Array *like, const int64_t *sizes, int64_t count, int32_t *dtype, int32_t *device,
                        int32_t index) {
  DLDevice place = device ? device_of(*device, index) : like->view.device;
  return allocated({sizes, sizes + count}, dtype ? type_of(*dtype) : like->view.dtype, place);
}

// ---- operators of PyTorch that sources call by their names

typedef std::vector<Value> List;

extern "C" int cudaMemsetAsync(void *data, int value, size_t size, void *stream);
extern "C" const char *cudaGetErrorString(int error);

static Array *zeroed(Array *array) {
  if (!array->is_compact()) throw std::runtime_error("zeros are for contiguous arrays here");
  size_t size = static_cast<size_t>(array->elements() * bytes_of(array->view.dtype));
  DLDevice place = array->view.device;
  if (place.device_type == kDLCPU) {
    std::memset(array->view.data, 0, size);
  } else if (int error = cudaMemsetAsync(array->view.data, 0, size,
                                         TVMFFIEnvGetStream(place.device_type, place.device_id))) {
    throw std::runtime_error(cudaGetErrorString(error));
  }
  return array;
}

// Channels of images are last in PyTorch's formats from 2 on.
static void require_row_major(Value format) {
  if (static_cast<int32_t>(format) > 1) throw std::runtime_error("memory is contiguous here, in no other format");
}

// Strides of a like array are those of PyTorch if its own strides do not grow; PyTorch keeps the order of dimensions.
static Array *empty_like(const Array *like) {
  int64_t last = INT64_MAX;
  for (size_t i = 0; i < like->sizes.size(); ++i) {
    if (like->sizes[i] == 1 || !like->strides[i]) continue;
    if (like->strides[i] > last) throw std::runtime_error("empty_like is for arrays in row-major order here");
    last = like->strides[i];
  }
  return allocated(like->sizes, like->view.dtype, like->view.device);
}

// A new array, of whose size, dtype, layout, device and two more options the stack has the first at a place. What it
// does not say of dtype and device is that of another array.
static Array *empty(const Value *stack, int options, DLDataType type, DLDevice place) {
  List *sizes = reinterpret_cast<List *>(stack[0]);
  const Value *dtype = reinterpret_cast<Value *>(stack[1]), *device = reinterpret_cast<Value *>(stack[3]);
  if (options > 5 && stack[5]) require_row_major(*reinterpret_cast<Value *>(stack[5]));
  std::vector<int64_t> numbers(sizes->begin(), sizes->end());
  if (device) place = device_of(static_cast<int32_t>(*device >> 32), static_cast<int32_t>(*device));
  if (dtype) type = type_of(static_cast<int32_t>(*dtype));
  delete sizes;
  for (int i = 1; i < options; ++i) delete reinterpret_cast<Value *>(stack[i]);
  return allocated(numbers, type, place);
}

// A view of an array, which is taken, with other sizes and strides.
static Array *viewed(Array *array, std::vector<int64_t> sizes, std::vector<int64_t> strides, int64_t offset) {
  Array *made = new Array(array->view, array->owner);
  made->view.data = static_cast<char *>(array->view.data) + offset * bytes_of(array->view.dtype);
  made->sizes = sizes;
  made->strides = strides;
  made->lent = array->lent;
  if (strides.empty()) made->compact();
  made->point();
  release(array);
  return made;
}

static Array *reshaped(Value *stack) {
  Array *array = reinterpret_cast<Array *>(stack[0]);
  List *list = reinterpret_cast<List *>(stack[1]);
  std::vector<int64_t> sizes(list->begin(), list->end());
  int64_t known = 1, open = -1;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < -1 || (sizes[i] < 0 && open >= 0)) throw std::runtime_error("a view has sizes from 0, and one -1");
    if (sizes[i] == -1) open = static_cast<int64_t>(i);
    else known *= sizes[i];
  }
  if (open >= 0) known *= sizes[open] = known ? array->elements() / known : 0;
  if (!array->is_compact()) throw std::runtime_error("view and reshape are for contiguous arrays here");
  if (known != array->elements()) throw std::runtime_error("a view has as many elements as its array");
  delete list;
  return viewed(array, sizes, {}, 0);
}

static Array *flattened(Value *stack) {
  Array *array = reinterpret_cast<Array *>(stack[0]);
  if (!array->is_compact()) throw std::runtime_error("flatten is for contiguous arrays here");
  if (array->sizes.empty()) return viewed(array, {1}, {}, 0);
  size_t first = array->dimension(static_cast<int64_t>(stack[1]));
  size_t last = array->dimension(static_cast<int64_t>(stack[2]));
  std::vector<int64_t> sizes(array->sizes.begin(), array->sizes.begin() + first);
  sizes.push_back(1);
  for (size_t i = first; i < array->sizes.size(); ++i) {
    if (i <= last) sizes[first] *= array->sizes[i];
    else sizes.push_back(array->sizes[i]);
  }
  return viewed(array, sizes, {}, 0);
}

static Array *transposed(Value *stack) {
  Array *array = reinterpret_cast<Array *>(stack[0]);
  std::vector<int64_t> sizes = array->sizes, strides = array->strides;
  size_t one = array->dimension(static_cast<int64_t>(stack[1]));
  size_t other = array->dimension(static_cast<int64_t>(stack[2]));
  std::swap(sizes[one], sizes[other]);
  std::swap(strides[one], strides[other]);
  return viewed(array, sizes, strides, 0);
}

KW_ABI int aoti_torch_aten_narrow(Array *array, int64_t dimension, int64_t start, int64_t length, Array **made) {
  return guarded([&] {
    std::vector<int64_t> sizes = array->sizes, strides = array->strides;
    size_t place = array->dimension(dimension);
    if (start < 0) start += sizes[place];
    if (start < 0 || length < 0 || start + length > sizes[place]) throw std::out_of_range("narrow leaves the array");
    sizes[place] = length;
    ++array->references;
    *made = viewed(array, sizes, strides, start * strides[place]);
  });
}

KW_ABI int aoti_torch_aten_new_empty(Array *like, const int64_t *sizes, int64_t count, int32_t *dtype, int32_t *,
                                     int32_t *device, int32_t index, int32_t *, Array **made) {
  return guarded([&] { *made = new_empty(like, sizes, count, dtype, device, index); });
}
KW_ABI int aoti_torch_aten_new_zeros(Array *like, const int64_t *sizes, int64_t count, int32_t *dtype, int32_t *,
                                     int32_t *device, int32_t index, int32_t *, Array **made) {
  return guarded([&] { *made = zeroed(new_empty(like, sizes, count, dtype, device, index)); });
}

static Array *called(const std::string &name, Value *stack) {
  Array *array = reinterpret_cast<Array *>(stack[0]);
  if (name == "aten::empty") return empty(stack, 6, {kDLFloat, 32, 1}, {kDLCPU, 0});
  if (name == "aten::view" || name == "aten::reshape") return reshaped(stack);
  if (name == "aten::flatten") return flattened(stack);
  if (name == "aten::transpose") return transposed(stack);
  if (name == "aten::zero_") return zeroed(array);
  if (name == "aten::contiguous") require_row_major(stack[1]);
  if (name == "aten::contiguous" && array->is_compact()) return array;
  Array *made = nullptr;
  if (name == "aten::new_empty") made = empty(stack + 1, 5, array->view.dtype, array->view.device);
  if (name == "aten::new_zeros") made = zeroed(empty(stack + 1, 5, array->view.dtype, array->view.device));
  if (name == "aten::empty_like") made = empty_like(array);
  if (!made) throw std::runtime_error("its sources call " + name + ", which needs PyTorch");
  release(array);
  return made;
}

KW_ABI int torch_call_dispatcher(const char *name, const char *, Value *stack, uint64_t) {
  return guarded([&] { stack[0] = as_value(called(name, stack)); });
}
KW_ABI int aoti_torch_call_dispatcher(const char *name, const char *overload, Value *stack) {
  return torch_call_dispatcher(name, overload, stack, 0);
}

// ---- lists, strings and boxes

KW_ABI int torch_new_list_reserve_size(size_t size, List **made) {
  return guarded([&] {
    *made = new List();
    (*made)->reserve(size);
  });
}
KW_ABI int torch_list_size(List *list, size_t *size) {
  *size = list->size();
  return 0;
}
KW_ABI int torch_list_get_item(List *list, size_t index, Value *value) {
  return guarded([&] { *value = list->at(index); });
}
KW_ABI int torch_list_set_item(List *list, size_t index, Value value) {
  return guarded([&] { list->at(index) = value; });
}
KW_ABI int torch_list_push_back(List *list, Value value) {
  return guarded([&] { list->push_back(value); });
}
KW_ABI int torch_delete_list(List *list) {
  delete list;
  return 0;
}
KW_ABI int torch_new_string_handle(const char *data, size_t size, std::string **made) {
  return guarded([&] { *made = new std::string(data, size); });
}
KW_ABI int torch_delete_string(std::string *text) {
  delete text;
  return 0;
}
KW_ABI int torch_string_length(std::string *text, size_t *size) {
  *size = text->size();
  return 0;
}
KW_ABI int torch_string_c_str(std::string *text, const char **data) {
  *data = text->c_str();
  return 0;
}
KW_ABI int torch_new_stable_ivalue(Value **made) {
  return guarded([&] { *made = new Value(0); });
}
KW_ABI int torch_delete_stable_ivalue(Value *value) {
  delete value;
  return 0;
}

// ---- devices and streams

extern "C" int cuCtxGetDevice(int *device);
extern "C" int cudaGetDevice(int *device);
extern "C" int cudaSetDevice(int device);

// The launcher has made the device of a call current, so for that one there is nothing to do.
static void set_device(int index) {
  int now = -1;
  if (!cuCtxGetDevice(&now) && now == index) return;
  if (int error = cudaSetDevice(index)) throw std::runtime_error(cudaGetErrorString(error));
}
KW_ABI int aoti_torch_get_current_device_index(int32_t *index) {
  int now = -1;
  *index = !cuCtxGetDevice(&now) || !cudaGetDevice(&now) ? now : 0;
  return 0;
}
KW_ABI int aoti_torch_create_device_guard(int32_t index, Guard **made) {
  return guarded([&] {
    int before = -1;
    if (cuCtxGetDevice(&before)) before = -1;
    set_device(index);
    *made = new Guard{before};
  });
}
KW_ABI int aoti_torch_device_guard_set_index(Guard *, int32_t index) {
  return guarded([&] { set_device(index); });
}
KW_ABI int aoti_torch_delete_device_guard(Guard *guard) {
  int before = guard->before;
  delete guard;
  return before < 0 ? 0 : guarded([&] { set_device(before); });
}
KW_ABI int aoti_torch_create_cuda_guard(int32_t index, Guard **made) {
  return aoti_torch_create_device_guard(index, made);
}
KW_ABI int aoti_torch_cuda_guard_set_index(Guard *guard, int32_t index) {
  return aoti_torch_device_guard_set_index(guard, index);
}
KW_ABI int aoti_torch_delete_cuda_guard(Guard *guard) { return aoti_torch_delete_device_guard(guard); }
KW_ABI int aoti_torch_get_current_cuda_stream(int32_t index, void **stream) {
  *stream = TVMFFIEnvGetStream(kDLCUDA, index);
  return 0;
}
KW_ABI int aoti_torch_get_current_stream(int32_t index, Stream **made) {
  *made = new Stream{TVMFFIEnvGetStream(kDLCUDA, index)};
  return 0;
}
KW_ABI int aoti_torch_delete_stream(Stream *stream) {
  delete stream;
  return 0;
}
KW_ABI int aoti_torch_stream_id(Stream *stream, int64_t *number) {
  *number = reinterpret_cast<int64_t>(stream->handle);
  return 0;
}
KW_ABI int torch_stream_native_handle(Stream *stream, void **handle) {
  *handle = stream->handle;
  return 0;
}
KW_ABI int torch_c10_cuda_check_msg(int32_t error, const char *file, const char *function, uint32_t line, bool,
                                    char **message) {
  *message = nullptr;
  if (!error) return 0;
  std::string text = std::string("CUDA error: ") + cudaGetErrorString(error) + " (" + function + " at " + file + ":" +
                     std::to_string(line) + ")";
  *message = strdup(text.c_str());
  return 0;
}
KW_ABI void torch_c10_cuda_free_error_msg(char *message) { std::free(message); }
