/* A launcher that is an object of its own, so that it is compiled once and not with each kernel.
 *
 * With KW_ALONE this is that object: kernelwright.h and the services of exports.h, for any kernel. With KW_APART it is
 * a wrapper.c that is linked with it: it has the tables and the host code, and what is declared here. Without either,
 * which is how builds compile, one translation unit has both. Not for libraries with KW_SPLIT or KW_DRIVER, nor for the
 * host code of CuTe DSL. */
#ifndef KW_APART_H
#define KW_APART_H

#if defined(KW_SPLIT) || defined(KW_DRIVER)
#error "such a library has its launcher in wrapper.c"
#endif

/* What the launcher has to know of the kernel. */
extern const char kw_name_of_kernel[] KW_HIDDEN;
extern const int kw_toolkit_of_kernel KW_HIDDEN;
extern const int32_t kw_dims_of_kernel KW_HIDDEN;
extern const struct kw_kernel *const kw_kernel_of_library KW_HIDDEN;

#ifdef KW_ALONE
#define KW_KERNEL kw_name_of_kernel
#define KW_TOOLKIT kw_toolkit_of_kernel
#define KW_MAX_DIMS kw_dims_of_kernel
#define KW_MAX_ARGUMENTS KW_CALL_ARGUMENTS
#define KW_MAX_PARAMETERS KW_CALL_ARGUMENTS
#define KW_MAX_IMAGES /* the array is the last member, and its size known to the wrapper */
#define kw_this (*kw_kernel_of_library)
#else
#ifndef KW_TOOLKIT
#define KW_TOOLKIT 0
#endif
const char kw_name_of_kernel[] = KW_KERNEL;
const int kw_toolkit_of_kernel = KW_TOOLKIT;
const int32_t kw_dims_of_kernel = KW_MAX_DIMS;
_Static_assert(KW_MAX_ARGUMENTS <= KW_CALL_ARGUMENTS, "it has too many arguments");
_Static_assert(KW_MAX_PARAMETERS <= KW_CALL_ARGUMENTS, "a device function of it has too many parameters");
#endif

#endif
