/* The FFI functions of a library: the kernel, its variants by number, and its services.
 *
 * The wrapper includes this after its table `kw_this`, and names the kernel with KW_EXPORT_KERNEL and
 * KW_EXPORT_VARIANT. */
#ifndef KW_EXPORTS_H
#define KW_EXPORTS_H

/* Names are pasted right here, where they are not expanded: a kernel may be called like a macro of C (errno, linux). */
#define KW_FFI_PARAMETERS void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result
#define KW_FFI(name) KW_EXPORT int __tvm_ffi_##name(KW_FFI_PARAMETERS)

/* The kernel: runs the first variant that the arguments fit, or what a tuning table has in its place.
 * kw_choice takes the same arguments, and returns a text: the number of the variant that would run, a blank, and why. */
#define KW_EXPORT_KERNEL(name)                                                                          \
  KW_EXPORT int __tvm_ffi_##name(KW_FFI_PARAMETERS) {                                                   \
    (void)self;                                                                                         \
    return kw_dispatch(&kw_this, kw_this.variants, kw_this.num_variants, arguments, count, result);     \
  }                                                                                                     \
  KW_FFI(kw_choice) {                                                                                   \
    (void)self;                                                                                         \
    return kw_tell_choice(&kw_this, kw_this.variants, kw_this.num_variants, arguments, count, result);  \
  }

/* One variant. */
#define KW_EXPORT_VARIANT(name, number)                                                       \
  KW_EXPORT int __tvm_ffi_##name##__##number(KW_FFI_PARAMETERS) {                             \
    (void)self;                                                                               \
    return kw_dispatch(&kw_this, &kw_this.variants[number], 1, arguments, count, result);     \
  }                                                                                           \
  KW_FFI(kw_choice__##number) {                                                               \
    (void)self;                                                                               \
    return kw_tell_choice(&kw_this, &kw_this.variants[number], 1, arguments, count, result);  \
  }

#ifdef KW_APART
const kw_kernel *const kw_kernel_of_library = &kw_this;
#else

/* Checks the signature of a service: that many integers. */
KW_COLD int kw_take_integers(const char *name, const TVMFFIAny *arguments, int32_t count, int32_t expected) {
  bool integers = count == expected;
  for (int32_t i = 0; integers && i < count; ++i) integers = arguments[i].type_index == kTVMFFIInt;
  return integers ? 0 : kw_raise("TypeError", "%s takes %d integers", name, expected);
}

static DLDevice kw_device_of(const TVMFFIAny *arguments) {
  return (DLDevice){(DLDeviceType)arguments[0].v_int64, (int32_t)arguments[1].v_int64};
}

/* kw_preload(device_type, device_id): loads ahead of the first call; raises where a call would. */
KW_FFI(kw_preload) {
  (void)self, (void)result;
  if (kw_take_integers("kw_preload", arguments, count, 2)) return -1;
  return kw_prepare(&kw_this, kw_device_of(arguments), false);
}

/* kw_supported(device_type, device_id) -> str: why the kernel cannot run on the device; empty if it can. */
KW_FFI(kw_supported) {
  kw_text reason = {0};
  (void)self;
  if (kw_take_integers("kw_supported", arguments, count, 2)) return -1;
  if (kw_prepare(&kw_this, kw_device_of(arguments), true)) kw_append_raised(&reason);
  TVMFFIByteArray bytes = {reason.data, reason.used};
  return TVMFFIStringFromByteArray(&bytes, result);
}

/* kw_set_num_threads(n): how many threads a parallel loop uses, for all kernels of the process; 0 is the default. */
KW_FFI(kw_set_num_threads) {
  (void)self, (void)result;
  if (kw_take_integers("kw_set_num_threads", arguments, count, 1)) return -1;
  int64_t threads = arguments[0].v_int64;
  if (threads < 0 || threads > KW_MAX_THREADS)
    return kw_raise("ValueError", "the number of threads is %" PRId64 ", expected 1 to %d",
                    threads, KW_MAX_THREADS);
  kw_shared_pool->set_threads((int)threads);
  return 0;
}

/* kw_num_threads() -> int. */
KW_FFI(kw_num_threads) {
  (void)self;
  if (kw_take_integers("kw_num_threads", arguments, count, 0)) return -1;
  int threads = kw_shared_pool->threads();
  *result = (TVMFFIAny){.type_index = kTVMFFIInt, .v_int64 = threads};
  return threads ? 0 : kw_raise_threads();
}

/* kw_current_stream(device_id) -> int: the stream that tvm-ffi has as the current one of this thread. */
KW_FFI(kw_current_stream) {
  (void)self;
  if (kw_take_integers("kw_current_stream", arguments, count, 1)) return -1;
  void *stream = TVMFFIEnvGetStream(kDLCUDA, (int32_t)arguments[0].v_int64);
  *result = (TVMFFIAny){.type_index = kTVMFFIInt, .v_int64 = (int64_t)(uintptr_t)stream};
  return 0;
}

/* DLPack's number of the default stream is 1, because 0 stands for nothing there. CUDA has both for it. */
static void *kw_stream_of(const TVMFFIAny *number) {
  return (void *)(uintptr_t)(number->v_int64 == 1 ? 0 : number->v_int64);
}

/* kw_order(device_id, from, to): makes a stream wait for what is on another one; see order.h. */
KW_FFI(kw_order) {
  (void)self, (void)result;
  if (kw_take_integers("kw_order", arguments, count, 3)) return -1;
  return kw_order_streams((int)arguments[0].v_int64, kw_stream_of(&arguments[1]), kw_stream_of(&arguments[2]));
}

/* kw_synchronize(device_id, stream): waits for a stream; raises if it is being captured. -1 stands for all streams. */
KW_FFI(kw_synchronize) {
  (void)self, (void)result;
  if (kw_take_integers("kw_synchronize", arguments, count, 2)) return -1;
  if (arguments[1].v_int64 == -1) return kw_synchronize_device((int)arguments[0].v_int64);
  return kw_synchronize_stream((int)arguments[0].v_int64, kw_stream_of(&arguments[1]));
}

/* kw_refuse_captured(device_id, stream): raises if kw_synchronize would, before anything is launched. */
KW_FFI(kw_refuse_captured) {
  (void)self, (void)result;
  if (kw_take_integers("kw_refuse_captured", arguments, count, 2)) return -1;
  return kw_refuse_captured((int)arguments[0].v_int64, kw_stream_of(&arguments[1]));
}

/* kw_for_xla(function) -> function: one that does the same, and leaves none of XLA's streams behind; see xla.h. */
KW_FFI(kw_for_xla) {
  (void)self;
  if (count != 1 || arguments[0].type_index != kTVMFFIFunction)
    return kw_raise("TypeError", "kw_for_xla takes a function");
  TVMFFIObjectHandle made;
  TVMFFIObjectIncRef(arguments[0].v_obj);
  if (TVMFFIFunctionCreate(arguments[0].v_obj, kw_call_from_xla, kw_forget_function, &made)) {
    TVMFFIObjectDecRef(arguments[0].v_obj);
    return -1;
  }
  *result = (TVMFFIAny){.type_index = kTVMFFIFunction, .v_obj = made};
  return 0;
}

#ifdef KW_SPLIT
/* kw_set_provider(function): have device code found by that function, which is kept; see provider.h. */
KW_FFI(kw_set_provider) {
  (void)self, (void)result;
  if (count != 1 || arguments[0].type_index != kTVMFFIFunction)
    return kw_raise("TypeError", "kw_set_provider takes a function");
  TVMFFIObjectIncRef(arguments[0].v_obj);
  TVMFFIObjectHandle before = atomic_exchange(&kw_provider, (TVMFFIObjectHandle)arguments[0].v_obj);
  if (before) TVMFFIObjectDecRef(before);
  return 0;
}
#endif

#endif

#endif
