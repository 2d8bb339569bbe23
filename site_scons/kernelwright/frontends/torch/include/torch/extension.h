/* In place of PyTorch's header of this name, for sources with PYBIND11_MODULE: the functions of the module become
 * operators of PyTorch, so that the library depends on no version of Python. The namespace is the module's name. A
 * function whose signature no operator can have does not compile, nor does a class. */
#pragma once

#include <torch/all.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

/* What sources say beside the functions. */
namespace pybind11 {

struct none {};
struct gil_scoped_release {};
struct gil_scoped_acquire {};
template <typename...> struct call_guard {};

/* The name of an argument, and its default. */
struct arg {
  explicit arg(const char *name) : name(name) {}
  template <typename T> arg operator=(T &&given) const {
    arg with = *this;
    if constexpr (std::is_same_v<std::decay_t<T>, none> || std::is_same_v<std::decay_t<T>, std::nullopt_t>)
      with.value = c10::IValue();
    else if constexpr (std::is_integral_v<std::decay_t<T>> && !std::is_same_v<std::decay_t<T>, bool>)
      with.value = c10::IValue(static_cast<int64_t>(given));
    else if constexpr (std::is_floating_point_v<std::decay_t<T>>)
      with.value = c10::IValue(static_cast<double>(given));
    else
      with.value = c10::IValue(std::forward<T>(given));
    return with;
  }
  const char *name;
  std::optional<c10::IValue> value;
};

inline namespace literals {
inline arg operator""_a(const char *name, size_t) { return arg(name); }
}

}  // namespace pybind11

namespace py = pybind11;

namespace torch {
template <typename F> F wrap_pybind_function(F function) { return function; }
}

namespace kernelwright {

/* The type in which PyTorch passes a type of C++: it has int64_t and double only. */
template <typename T> struct Passed {
  using type = T;
};
template <typename T>
  requires(std::is_integral_v<T> && !std::is_same_v<T, bool>)
struct Passed<T> {
  using type = int64_t;
};
template <typename T>
  requires std::is_floating_point_v<T>
struct Passed<T> {
  using type = double;
};
template <typename T> struct Passed<std::optional<T>> {
  using type = std::optional<typename Passed<T>::type>;
};
template <typename T> struct Passed<std::vector<T>> {
  using type = std::vector<typename Passed<T>::type>;
};
template <typename... T> struct Passed<std::tuple<T...>> {
  using type = std::tuple<typename Passed<T>::type...>;
};
template <typename First, typename Second> struct Passed<std::pair<First, Second>> {
  using type = std::tuple<typename Passed<First>::type, typename Passed<Second>::type>;
};
template <> struct Passed<const char *> {
  using type = std::string;
};
template <typename T> using passed = typename Passed<std::decay_t<T>>::type;

/* The same value in another type; an integer that does not fit is an error. */
template <typename To, typename From> To converted(From &&value) {
  using Given = std::decay_t<From>;
  if constexpr (std::is_same_v<To, Given>) {
    return std::forward<From>(value);
  } else if constexpr (std::is_integral_v<To>) {
    TORCH_CHECK_VALUE(std::in_range<To>(value), "the argument ", value, " does not fit the integer of the function");
    return static_cast<To>(value);
  } else if constexpr (std::is_floating_point_v<To>) {
    return static_cast<To>(value);
  } else if constexpr (requires { value.has_value(); }) {
    return value ? To(converted<typename To::value_type>(*value)) : To();
  } else if constexpr (requires { value.begin(); To().push_back(*value.begin()); }) {
    To made;
    for (auto &&one : value) made.push_back(converted<typename To::value_type>(one));
    return made;
  } else if constexpr (requires { std::tuple_size<Given>::value; }) {
    return [&]<size_t... I>(std::index_sequence<I...>) {
      return To(converted<std::tuple_element_t<I, To>>(std::get<I>(value))...);
    }(std::make_index_sequence<std::tuple_size_v<Given>>());
  } else {
    return To(value);
  }
}

/* Calls a function with arguments as PyTorch passes them. The function may take references, so values are kept. */
template <typename R, typename... A> auto operator_of(R (*function)(A...)) {
  return [function](passed<A>... given) -> std::conditional_t<std::is_void_v<R>, void, passed<R>> {
    std::tuple<std::decay_t<A>...> values{converted<std::decay_t<A>>(std::move(given))...};
    auto call = [&](auto &...value) -> R { return function(static_cast<A &&>(value)...); };
    if constexpr (std::is_void_v<R>)
      std::apply(call, values);
    else
      return converted<passed<R>>(std::apply(call, values));
  };
}
template <typename F>
  requires requires { &F::operator(); }
auto operator_of(F function) {
  return operator_of(+function);
}

/* What a source calls m. */
class Module {
 public:
  explicit Module(torch::Library &library) : library_(library) {}

  template <typename F, typename... Extra> Module &def(const char *name, F function, const Extra &...extra) {
    std::vector<pybind11::arg> named;
    (add(named, extra), ...);
    auto inferred = c10::detail::inferFunctionSchemaFromFunctor<decltype(operator_of(function))>();
    library_.def(text_of(name, *inferred, named).c_str());
    const auto &arguments = inferred->arguments();
    if (std::any_of(arguments.begin(), arguments.end(), has_tensors))
      for (auto key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA})
        library_.impl(name, torch::dispatch(key, operator_of(function)));
    else /* PyTorch chooses a function by the devices of tensors, and would find none */
      library_.impl(name, operator_of(function));
    return *this;
  }

  std::string &doc() { return doc_; }

 private:
  static bool has_tensors(const c10::Argument &argument) { return argument.type()->str().starts_with("Tensor"); }

  /* The schema. C++ does not say which tensors a function writes, so each counts as written: PyTorch may neither leave a
   * call out, nor move one beyond another. */
  static std::string text_of(const char *name, const c10::FunctionSchema &inferred,
                             const std::vector<pybind11::arg> &named) {
    std::ostringstream text, made;
    for (size_t i = 0; i < inferred.arguments().size(); ++i) {
      std::ostringstream argument;
      bool has = i < named.size();
      argument << c10::Argument(has ? named[i].name : "arg" + std::to_string(i), inferred.arguments()[i].real_type(),
                                std::nullopt, has ? named[i].value : std::nullopt);
      std::string word = argument.str();
      if (has_tensors(inferred.arguments()[i])) word.insert(6, "(a" + std::to_string(i) + "!)");
      text << (i ? ", " : "") << word;
    }
    for (const c10::Argument &one : inferred.returns())
      made << (made.tellp() > 0 ? ", " : "") << one.real_type()->str();
    return std::string(name) + "(" + text.str() + ") -> (" + made.str() + ")";
  }

  template <typename T> static void add(std::vector<pybind11::arg> &named, const T &extra) {
    if constexpr (std::is_same_v<T, pybind11::arg>) named.push_back(extra);
  }

  torch::Library &library_;
  std::string doc_;
};

}  // namespace kernelwright

#ifdef TORCH_EXTENSION_NAME
#define PYBIND11_MODULE(name, variable, ...) KW_MODULE(name, variable)
#else
#define PYBIND11_MODULE(name, variable, ...) \
  static_assert(false, "say what the namespace of the operators is: flags=['-DTORCH_EXTENSION_NAME=acme']")
#endif
#define KW_MODULE(name, variable) \
  static void kw_define_##name(kernelwright::Module &); \
  TORCH_LIBRARY_FRAGMENT(name, library) { \
    kernelwright::Module module(library); \
    kw_define_##name(module); \
  } \
  static void kw_define_##name(kernelwright::Module &variable)
