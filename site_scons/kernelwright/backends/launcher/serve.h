/* The services of a library: FFI functions that are the same for all kernels. */
#ifndef KW_SERVE_H
#define KW_SERVE_H

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
static int kw_serve_preload(const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  (void)result;
  if (kw_take_integers("kw_preload", arguments, count, 2)) return -1;
  return kw_prepare(kw_now.kernel, kw_device_of(arguments), false);
}

/* kw_supported(device_type, device_id) -> str: why the kernel cannot run on the device; empty if it can. */
static int kw_serve_supported(const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  kw_text reason = {0};
  if (kw_take_integers("kw_supported", arguments, count, 2)) return -1;
  if (kw_prepare(kw_now.kernel, kw_device_of(arguments), true)) kw_append_raised(&reason);
  TVMFFIByteArray bytes = {reason.data, reason.used};
  return TVMFFIStringFromByteArray(&bytes, result);
}

/* kw_set_num_threads(n): how many threads a parallel loop uses, for all kernels of the process; 0 is the default. */
static int kw_serve_set_num_threads(const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  (void)result;
  if (kw_take_integers("kw_set_num_threads", arguments, count, 1)) return -1;
  int64_t threads = arguments[0].v_int64;
  if (threads < 0 || threads > KW_MAX_THREADS)
    return kw_raise("ValueError", "the number of threads is %" PRId64 ", expected 1 to %d",
                    threads, KW_MAX_THREADS);
  kw_shared_pool->set_threads((int)threads);
  return 0;
}

/* kw_num_threads() -> int. */
static int kw_serve_num_threads(const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  if (kw_take_integers("kw_num_threads", arguments, count, 0)) return -1;
  int threads = kw_shared_pool->threads();
  *result = (TVMFFIAny){.type_index = kTVMFFIInt, .v_int64 = threads};
  return threads ? 0 : kw_raise_threads();
}

/* kw_current_stream(device_id) -> int: the stream that tvm-ffi has as the current one of this thread. */
static int kw_serve_current_stream(const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  if (kw_take_integers("kw_current_stream", arguments, count, 1)) return -1;
  void *stream = TVMFFIEnvGetStream(kDLCUDA, (int32_t)arguments[0].v_int64);
  *result = (TVMFFIAny){.type_index = kTVMFFIInt, .v_int64 = (int64_t)(uintptr_t)stream};
  return 0;
}

/* DLPack's number of the default stream is 1, because 0 stands for nothing there. CUDA has both for it. */
static void *kw_stream_of(const TVMFFIAny *number) {
  return (void *)(uintptr_t)(number->v_int64 == 1 ? 0 : number->v_int64);
}

/* Whether the kernel has code for CUDA. Without any, nothing of it runs on a GPU, so no stream is ever to be waited for,
 * and no driver is looked for: a call with CUDA arrays fails with an error of its own. */
KW_COLD bool kw_has_cuda(const kw_kernel *kernel) {
  for (int32_t i = 0; i < kernel->num_variants; ++i)
    if (kernel->variants[i].module) return true;
  return false;
}

/* kw_order(device_id, from, to): makes a stream wait for what is on another one; see order.h. */
static int kw_serve_order(const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  (void)result;
  if (kw_take_integers("kw_order", arguments, count, 3)) return -1;
  if (!kw_has_cuda(kw_now.kernel)) return 0;
  return kw_order_streams((int)arguments[0].v_int64, kw_stream_of(&arguments[1]), kw_stream_of(&arguments[2]));
}

/* kw_synchronize(device_id, stream): waits for a stream; raises if it is being captured. -1 stands for all streams. */
static int kw_serve_synchronize(const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  (void)result;
  if (kw_take_integers("kw_synchronize", arguments, count, 2)) return -1;
  if (!kw_has_cuda(kw_now.kernel)) return 0;
  if (arguments[1].v_int64 == -1) return kw_synchronize_device((int)arguments[0].v_int64);
  return kw_synchronize_stream((int)arguments[0].v_int64, kw_stream_of(&arguments[1]));
}

/* kw_refuse_captured(device_id, stream): raises if kw_synchronize would, before anything is launched. */
static int kw_serve_refuse_captured(const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  (void)result;
  if (kw_take_integers("kw_refuse_captured", arguments, count, 2)) return -1;
  if (!kw_has_cuda(kw_now.kernel)) return 0;
  return kw_refuse_captured((int)arguments[0].v_int64, kw_stream_of(&arguments[1]));
}

/* kw_for_xla(function) -> function: one that does the same, and leaves none of XLA's streams behind; see xla.h. */
static int kw_serve_for_xla(const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
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

/* kw_set_provider(function): have device code found by that function, which is kept; see provider.h. */
static int kw_serve_set_provider(const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  (void)result;
  if (count != 1 || arguments[0].type_index != kTVMFFIFunction)
    return kw_raise("TypeError", "kw_set_provider takes a function");
  TVMFFIObjectIncRef(arguments[0].v_obj);
  TVMFFIObjectHandle before = atomic_exchange(kw_now.kernel->provider, (TVMFFIObjectHandle)arguments[0].v_obj);
  if (before) TVMFFIObjectDecRef(before);
  return 0;
}

typedef int (*kw_server)(const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result);

#define KW_SERVER(name) kw_serve_##name,
static const kw_server kw_servers[] = {KW_SERVICES(KW_SERVER) KW_SPLIT_SERVICES(KW_SERVER)};

int kw_serve(const kw_kernel *kernel, kw_service service, const TVMFFIAny *arguments, int32_t count,
             TVMFFIAny *result) {
  kw_before before = kw_begin_kernel(kernel);
  int status = kw_servers[service](arguments, count, result);
  kw_end_kernel(&before);
  return status;
}

#endif
