/* The launcher of a kernel library: everything in the library that is not the kernel itself.
 *
 * A library is one translation unit, the wrapper.c that library/wrapper.py writes. It defines
 *
 *   KW_KERNEL          the kernel's name, a string literal: every error message starts with it
 *   KW_MAX_ARGUMENTS   the number of arguments of the kernel
 *   KW_MAX_DIMS        the number of dimensions of all outputs together, at least 1
 *   KW_MAX_PARAMETERS  the largest number of parameters of a device function, at least 1
 *   KW_MAX_IMAGES      the largest number of device images of a variant, at least 1
 *   KW_NO_CUDA         only if no variant has CUDA code: then what is for CUDA is left out
 *   KW_TOOLKIT         only if it is known: the CUDA version of the compiler that made the device code, 1000 * major
 *                      + 10 * minor
 *   KW_SPLIT           only if the device images are in files of their own
 *   KW_DRIVER          only if they are compressed so that not every driver can read them: the CUDA version, 1000 * major
 *                      + 10 * minor, that it must be for
 *   KW_TENSOR_MAPS     only if a device function has a tensor map among its parameters
 *
 * includes this file, the generated host code and its own tables (types.h), and ends with exports.h.
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

/* Headers of a one-file library: a kernel that has no use for a function should not be warned about it. */
#define KW_FUNCTION static __attribute__((unused))
#define KW_COLD static __attribute__((unused, cold, noinline))
#define KW_HOT static inline __attribute__((unused, always_inline))
#define KW_HIDDEN __attribute__((visibility("hidden")))
#define KW_EXPORT __attribute__((visibility("default")))

/* What wrappers call: it is in another object if the launcher is one of its own. */
#ifdef KW_ALONE
#define KW_SERVICE KW_HIDDEN
#define KW_COLD_SERVICE KW_HIDDEN __attribute__((cold, noinline))
#else
#define KW_SERVICE KW_FUNCTION
#define KW_COLD_SERVICE KW_COLD
#endif
#if defined(KW_ALONE) || defined(KW_APART)
#define KW_CALL_ARGUMENTS 120 /* the most that library/wrapper.py allows */
#include "apart.h"
#else
#define KW_CALL_ARGUMENTS KW_MAX_ARGUMENTS
#endif

#include "types.h"
#if defined(KW_ALONE) || defined(KW_APART)
#include "services.h"
#endif
#ifndef KW_APART
#include "error.h"
#include "share.h"
#include "cpu.h"
#ifdef KW_NO_CUDA
#include "nocuda.h"
#else
#include "driver.h"
#ifdef KW_SPLIT
#include "provider.h"
#endif
#include "cuda.h"
#include "memory.h"
#include "order.h"
#endif
#include "workspace.h"
#include "threads.h"
#include "runtime.h"
#include "mismatch.h"
#include "call.h"
#include "xla.h"
#include "output.h"
#include "tables.h"
#include "dispatch.h"
#else
#include "runtime.h"
#include "output.h"
#endif

/* Generated host code has a variable for each size and number of the kernel, and one may well have such a name. The
 * first two are predefined in GNU dialects. */
#undef linux
#undef unix
#undef errno

#endif
