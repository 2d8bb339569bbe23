/* What the wrapper.c of a kernel's library includes, which backends/wrapper.py writes: the types of its tables, what it
 * calls of the launcher, and macros for generated host code.
 *
 * The launcher is everything in the library that is not the kernel itself. It is compiled once for all kernels, from
 * launcher.c; these headers have none of it. A wrapper includes this file, has the generated host code and its own
 * tables (types.h), and ends with exports.h. It defines
 *
 *   KW_LLVM   only if it links host code: then these headers define how that reaches its runtime (runtime.h)
 *
 * Plain C11 with GNU attributes, for Linux, on top of the stable C ABI of TVM-FFI. */
#ifndef KERNELWRIGHT_H
#define KERNELWRIGHT_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/runtime/c_backend_api.h>

/* Functions in headers: a file that has no use for one should not be warned about it. */
#define KW_FUNCTION static __attribute__((unused))
#define KW_COLD static __attribute__((unused, cold, noinline))
#define KW_HOT static inline __attribute__((unused, always_inline))
#define KW_HIDDEN __attribute__((visibility("hidden")))
#define KW_EXPORT __attribute__((visibility("default")))

#include "types.h"
#include "services.h"
#include "sizes.h"
#include "runtime.h"

/* Generated host code has a variable for each size and number of the kernel, and one may well have such a name. The
 * first two are predefined in GNU dialects. */
#undef linux
#undef unix
#undef errno

#endif
