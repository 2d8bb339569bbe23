/* What generated host code calls in place of TVM's runtime; the wrapper redirects it here with macros. Names that the
 * launcher does not know are looked for among TVM-FFI's global functions. */
#ifndef KW_HOST_H
#define KW_HOST_H

int kw_read_attribute(int32_t *value, int32_t attribute, int32_t id) {
  const kw_device *device = kw_get_device(id);
  if (!device) return -1;
  CUresult status = kw_cuda.device_attribute(value, attribute, device->device);
  return status ? kw_raise_cuda(status, "asking for attribute %d of cuda:%d", attribute, id) : 0;
}

int kw_selected_device(void) { return kw_now.device; }

void kw_select_device(int id) { kw_now.device = id; }

/* How many the selected device has; 0: it does not say. */
int64_t kw_count_multiprocessors(void) {
  const kw_identity *identity = kw_device_identity(kw_now.device);
  return identity ? identity->count : 0;
}

/* How many blocks of a launch a multiprocessor can have at once, one at least. */
KW_COLD int kw_ask_occupancy(const kw_launch *launch, struct kw_loaded_function *own, int threads, int *blocks) {
  bool pushed;
  kw_text text;
  if (kw_enter(launch->device, NULL, &pushed)) return -1;
  CUresult status = kw_cuda.occupancy(blocks, (CUfunction)own->kernel, threads, launch->dims[KW_SHARED]);
  kw_leave(pushed);
  if (!status && *blocks > 0) return 0;
  if (status) return kw_raise_launch(status, launch);
  kw_begin(&text);
  kw_append_launch(&text, launch);
  kw_append(&text, ": no multiprocessor has room for a block\n  remedy: call a variant with smaller tiles");
  return kw_raise_text("RuntimeError", &text);
}

/* The same, remembered. What is asked are the number of a function, a block of three dimensions, and dynamic shared memory.
 * The last answer stays with the function: 16 bits for the threads, 16 for the answer, 32 for the memory. */
static int kw_count_blocks(const kw_module *module, const int64_t *asked, int *blocks) {
  kw_launch launch = kw_launch_of(&module->functions[asked[0]]);
  int64_t threads = 1, shared = asked[4];
  *blocks = 1; /* for a launch that is left out, or refused */
  for (int i = 0; i < 3; ++i) {
    int64_t size = asked[1 + i];
    if (size < 1 || size > INT16_MAX || (threads *= size) > INT16_MAX || shared < 0 || shared > INT32_MAX) return 0;
    launch.dims[KW_BLOCK + i] = (unsigned int)size;
  }
  launch.dims[KW_SHARED] = (unsigned int)shared;
  struct kw_loaded_function *own = kw_find_launched(&launch);
  if (!own) return -1;
  uint64_t key = (uint64_t)threads << 48 | (uint64_t)shared, mask = (uint64_t)UINT16_MAX << 32;
  uint64_t known = atomic_load_explicit(&own->occupancy, memory_order_relaxed);
  *blocks = (int)(known >> 32 & UINT16_MAX);
  if ((known & ~mask) == key) return 0;
  if (kw_ask_occupancy(&launch, own, (int)threads, blocks)) return -1;
  atomic_store_explicit(&own->occupancy, key | (uint64_t)*blocks << 32, memory_order_relaxed);
  return 0;
}

/* Host code asks this wherever it needs the number, and has kw_count_blocks raise the error if there is one. */
int64_t kw_occupancy_of(const kw_module *module, const int64_t *asked) {
  int blocks;
  return kw_count_blocks(module, asked, &blocks) ? 1 : blocks;
}

static const char kw_count_handle __attribute__((unused)) = 0;

static const char kw_set_device_handle __attribute__((unused)) = 0;

/* Finds a packed function that generated code calls by name, among TVM-FFI's global functions. */
int kw_lookup(TVMFFIObjectHandle context, const char *name, TVMFFIObjectHandle *result) {
  (void)context;
  TVMFFIByteArray bytes = {name, strlen(name)};
  if (TVMFFIFunctionGetGlobal(&bytes, result)) return -1;
  if (*result) return 0;
  return kw_raise("RuntimeError",
                  "it calls the packed function '%s', which is not registered in this process\n"
                  "  remedy: import the package that registers it before calling the kernel", name);
}

/* Answers the lookup of a packed function: a device function, the selection of a device, or a global function. */
__attribute__((cold)) int kw_cuda_lookup(const kw_module *module, const char *name, TVMFFIObjectHandle *result) {
  if (!strcmp(name, "__tvm_set_device")) {
    *result = (void *)&kw_set_device_handle;
    return 0;
  }
  if (!strcmp(name, "runtime.cuTensorMapEncodeTiled")) {
    *result = (void *)&kw_encode_handle;
    return 0;
  }
  if (!strcmp(name, "kw_count_blocks")) {
    *result = (void *)&kw_count_handle;
    return 0;
  }
  for (int i = 0; i < module->num_functions; ++i) {
    const kw_function *function = &module->functions[i];
    if (!strcmp(name, function->alias ? function->alias : function->name)) {
      *result = (void *)function;
      return 0;
    }
  }
  return kw_lookup(NULL, name, result);
}

int kw_cuda_call(const kw_module *module, void *handle, TVMFFIAny *arguments, int32_t count,
                            TVMFFIAny *result) {
  uintptr_t offset = (uintptr_t)handle - (uintptr_t)module->functions;
  bool own = offset < (uintptr_t)module->num_functions * sizeof(kw_function);
  if (own) return kw_launch_function(handle, arguments, count);
  if (handle == &kw_count_handle) {
    int64_t asked[5];
    int blocks;
    for (int i = 0; i < 5; ++i) asked[i] = arguments[i].v_int64;
    return kw_count_blocks(module, asked, &blocks);
  }
  if (handle == &kw_encode_handle) return kw_encode_tensor_map(arguments, count);
  if (handle != &kw_set_device_handle) return TVMFFIFunctionCall(handle, arguments, count, result);
  kw_now.device = (int)arguments[1].v_int64;
  return 0;
}

#endif
