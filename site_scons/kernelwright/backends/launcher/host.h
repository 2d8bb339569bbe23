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
  if (handle == &kw_encode_handle) return kw_encode_tensor_map(arguments, count);
  if (handle != &kw_set_device_handle) return TVMFFIFunctionCall(handle, arguments, count, result);
  kw_now.device = (int)arguments[1].v_int64;
  return 0;
}

#endif
