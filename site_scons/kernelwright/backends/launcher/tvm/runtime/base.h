/* Stand-in for TVM's header of this name, which the host code that TVM generates includes.
 *
 * It declares what that code uses and nothing else, so that a kernel library compiles without TVM's headers. */
#ifndef KW_TVM_RUNTIME_BASE_H
#define KW_TVM_RUNTIME_BASE_H

#include <tvm/ffi/c_api.h>

/* The entry functions are reached through the wrapper's tables; they are not exported. */
#define TVM_DLL __attribute__((visibility("hidden")))

/* TVM's C code generator writes `half` for float16. A compiler without _Float16 can still pass pointers; arithmetic on
 * an incomplete type is then an error, which is better than a wrong number. */
#ifdef __FLT16_MANT_DIG__
typedef _Float16 half;
#else
typedef struct kw_half half;
#endif

#endif
