/* The FFI functions of a library: the kernel, its variants by number, and its services.
 *
 * The wrapper includes this after its table `kw_this`, and names the kernel with KW_EXPORT_KERNEL and
 * KW_EXPORT_VARIANT. With device images in files of their own, KW_EXPORT_PROVIDER follows. */
#ifndef KW_EXPORTS_H
#define KW_EXPORTS_H

/* Names are pasted right here, where they are not expanded: a kernel may be called like a macro of C (errno, linux). */
#define KW_FFI_PARAMETERS void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result
#define KW_FFI(name) KW_EXPORT int __tvm_ffi_##name(KW_FFI_PARAMETERS)

/* Generated host code declares and calls this one. */
KW_HIDDEN int64_t kw_multiprocessors(void) { return kw_count_multiprocessors(); }

/* For callers who can tell whether tensors are views that are computed when they are read: where one may be, this returns
 * true and has done nothing (computed.h). */
#define KW_LOOKING(function)                                                                            \
  {                                                                                                     \
    return kw_look(arguments, count, result) ? 0 : function(self, arguments, count, result);            \
  }

/* The kernel: runs the first variant that the arguments fit, or what a tuning table has in its place.
 * kw_choice takes the same arguments, and returns a text: the number of the variant that would run, a blank, and why. */
#define KW_EXPORT_KERNEL(name)                                                                          \
  KW_EXPORT int __tvm_ffi_##name(KW_FFI_PARAMETERS) {                                                   \
    (void)self;                                                                                         \
    return kw_dispatch(&kw_this, kw_this.variants, kw_this.num_variants, arguments, count, result);     \
  }                                                                                                     \
  KW_FFI(kw_looking) KW_LOOKING(__tvm_ffi_##name)                                                       \
  KW_FFI(kw_choice) {                                                                                   \
    (void)self;                                                                                         \
    return kw_tell_choice(&kw_this, kw_this.variants, kw_this.num_variants, arguments, count, result);  \
  }                                                                                                     \
  KW_SERVICES(KW_EXPORT_SERVICE)

/* One variant. */
#define KW_EXPORT_VARIANT(name, number)                                                       \
  KW_EXPORT int __tvm_ffi_##name##__##number(KW_FFI_PARAMETERS) {                             \
    (void)self;                                                                               \
    return kw_dispatch(&kw_this, &kw_this.variants[number], 1, arguments, count, result);     \
  }                                                                                           \
  KW_FFI(kw_looking__##number) KW_LOOKING(__tvm_ffi_##name##__##number)                                 \
  KW_FFI(kw_choice__##number) {                                                               \
    (void)self;                                                                               \
    return kw_tell_choice(&kw_this, &kw_this.variants[number], 1, arguments, count, result);  \
  }

/* The same two for a kernel whose arguments are not known: calls are handed through to host code of the author's. */
#define KW_EXPORT_OPAQUE_KERNEL(name)                                                                   \
  KW_EXPORT int __tvm_ffi_##name(KW_FFI_PARAMETERS) {                                                   \
    (void)self;                                                                                         \
    return kw_hand_over(&kw_this, kw_this.variants, arguments, count, result);                          \
  }                                                                                                     \
  KW_EXPORT_HANDED_OVER(kw_choice, "0 it is the default, and its arguments are not declared")           \
  KW_SERVICES(KW_EXPORT_SERVICE)

#define KW_EXPORT_OPAQUE_VARIANT(name, number)                                                          \
  KW_EXPORT int __tvm_ffi_##name##__##number(KW_FFI_PARAMETERS) {                                       \
    (void)self;                                                                                         \
    return kw_hand_over(&kw_this, &kw_this.variants[number], arguments, count, result);                 \
  }                                                                                                     \
  KW_EXPORT_HANDED_OVER(kw_choice__##number, #number " it is the variant that was asked for")

/* The same for a kernel that is called with a grid: the first three arguments are the blocks along x, y and z. Its
 * variants are not called by number, because each is for calls of another form. */
#define KW_EXPORT_GRIDDED_KERNEL(name)                                                                  \
  KW_EXPORT int __tvm_ffi_##name(KW_FFI_PARAMETERS) {                                                   \
    (void)self;                                                                                         \
    return kw_run_gridded(&kw_this, arguments, count, result);                                          \
  }                                                                                                     \
  KW_FFI(kw_arch) {                                                                                     \
    (void)self;                                                                                         \
    return kw_tell_arch(&kw_this, arguments, count, result);                                            \
  }                                                                                                     \
  KW_FFI(kw_find) {                                                                                     \
    (void)self;                                                                                         \
    return kw_find_gridded(&kw_this, arguments, count, result);                                         \
  }                                                                                                     \
  KW_SERVICES(KW_EXPORT_SERVICE)

#define KW_EXPORT_GRIDDED_VARIANT(name, number)

#define KW_EXPORT_HANDED_OVER(name, choice)                                                             \
  KW_FFI(name) {                                                                                        \
    static const char text[] = choice;                                                                  \
    TVMFFIByteArray bytes = {text, sizeof text - 1};                                                    \
    (void)self, (void)arguments, (void)count;                                                           \
    return TVMFFIStringFromByteArray(&bytes, result);                                                   \
  }

#define KW_EXPORT_SERVICE(name)                                                 \
  KW_FFI(kw_##name) {                                                           \
    (void)self;                                                                 \
    return kw_serve(&kw_this, KW_SERVE_##name, arguments, count, result);       \
  }

#define KW_EXPORT_PROVIDER KW_SPLIT_SERVICES(KW_EXPORT_SERVICE)

#endif
