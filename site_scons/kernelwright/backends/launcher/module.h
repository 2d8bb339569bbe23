/* Device code, loaded once for each device.
 *
 * Images are loaded with cuLibraryLoadData, which belongs to no context, so one load serves every device of the same
 * architecture. What is published in a module is complete and never changes, so launches take no lock. */
#ifndef KW_MODULE_H
#define KW_MODULE_H

/* Beyond this, counting its static shared memory too, a function must opt in to dynamic shared memory. */
#define KW_SHARED_LIMIT (48 * 1024)

/* The functions of a module on one device. */
typedef struct kw_loaded {
  const kw_image *image;
  struct kw_loaded_function {
    CUkernel kernel;
    int static_shared;
    _Atomic uint32_t shared_limit; /* dynamic shared memory that the function may use so far */
    _Atomic uint64_t occupancy;    /* see kw_count_blocks */
  } functions[];
} kw_loaded;

/* ---- loading; the lock is held ---- */

KW_COLD CUlibrary kw_load_data(const kw_module *module, int index, const void *data) {
  const kw_image *image = &module->images[index];
  CUlibrary library = NULL;
  CUresult status = kw_cuda.library_load(&library, data, NULL, NULL, 0, NULL, NULL, 0);
  if (status) return kw_raise_cuda(status, "loading %s of variant %s", image->arch, module->variant), NULL;
  return module->libraries[index] = library;
}

KW_COLD CUlibrary kw_load_image(const kw_module *module, const kw_choice *choice) {
  int index = choice->index;
  if (module->libraries[index]) return module->libraries[index];
  if (module->images[index].data) return kw_load_data(module, index, module->images[index].data);
  void *data = kw_read_file(choice->path.data);
  CUlibrary library = data ? kw_load_data(module, index, data) : NULL;
  free(data); /* the driver has its own copy */
  return library;
}

/* What a function is called in an image: the compiler makes the name of its types, which may depend on the arch. */
KW_COLD const char *kw_name_in(const kw_image *image, const kw_function *function) {
  return image->symbol ? image->symbol : function->name;
}

/* Looks a function up, in the current context as well: that makes the driver load its code now and not in the middle of
 * a graph capture. */
KW_COLD CUresult kw_find_function(const char *name, CUlibrary library, CUdevice device,
                                  struct kw_loaded_function *found) {
  CUfunction function;
  CUresult status = kw_cuda.library_kernel(&found->kernel, library, name);
  if (!status) status = kw_cuda.kernel_function(&function, found->kernel);
  if (!status) status = kw_cuda.kernel_get(&found->static_shared, KW_FUNCTION_STATIC_SHARED, found->kernel, device);
  if (status) return status;
  int fixed = found->static_shared;
  atomic_store(&found->shared_limit, fixed < KW_SHARED_LIMIT ? (uint32_t)(KW_SHARED_LIMIT - fixed) : 0);
  return 0;
}

KW_COLD int kw_find_functions(const kw_module *module, CUlibrary library, CUdevice device, kw_loaded *loaded) {
  for (int i = 0; i < module->num_functions; ++i) {
    const char *name = kw_name_in(loaded->image, &module->functions[i]);
    CUresult status = kw_find_function(name, library, device, &loaded->functions[i]);
    if (status) return kw_raise_cuda(status, "finding the device function %s in %s", name, loaded->image->arch);
  }
  return 0;
}

KW_COLD kw_loaded *kw_load_entered(const kw_module *module, const kw_device *device, const kw_choice *choice) {
  kw_loaded *loaded = calloc(1, sizeof *loaded + (size_t)module->num_functions * sizeof loaded->functions[0]);
  bool loads = module->num_functions;
  CUlibrary library = loaded && loads ? kw_load_image(module, choice) : NULL;
  if (!loaded) kw_raise("MemoryError", "no memory");
  if (loaded) loaded->image = &module->images[choice->index];
  if ((loads && !library) || kw_find_functions(module, library, device->device, loaded)) {
    free(loaded);
    loaded = NULL;
  }
  return loaded;
}

KW_COLD kw_loaded *kw_load_on(const kw_module *module, const kw_device *device, const kw_choice *choice) {
  bool pushed;
  if (kw_enter(device, NULL, &pushed)) return NULL;
  int mode = kw_relax_capture();
  kw_loaded *loaded = kw_load_entered(module, device, choice);
  kw_restore_capture(mode);
  kw_leave(pushed);
  return loaded;
}

KW_COLD kw_loaded *kw_load_locked(const kw_module *module, int id, const kw_choice *choice) {
  kw_device *device = kw_open_device(id);
  if (!device) return NULL;
  kw_loaded *loaded = atomic_load(&module->loaded[id]);
  if (!loaded) loaded = kw_load_on(module, device, choice);
  if (loaded) atomic_store(&module->loaded[id], loaded);
  return loaded;
}

KW_COLD kw_loaded *kw_load(const kw_module *module, int id) {
  kw_choice choice;
  if (kw_choose(module, id, &choice)) return NULL;
  const kw_module *source = module->images[choice.index].source;
  if (source && source != module) {
    kw_loaded *of_source = kw_load(source, id); /* which chooses the same image */
    if (of_source) atomic_store(&module->loaded[id], of_source);
    return of_source;
  }
  kw_lock_cuda();
  kw_loaded *loaded = kw_load_locked(module, id, &choice);
  kw_unlock_cuda();
  return loaded;
}

/* The module on the device, loaded at the first call, or null with an error raised. */
KW_FUNCTION kw_loaded *kw_get_loaded(const kw_module *module, int id) {
  if (__builtin_expect(atomic_load_explicit(&kw_forked_after_cuda, memory_order_relaxed), 0))
    return kw_raise_forked(), NULL;
  kw_loaded *loaded = NULL;
  if (id >= 0 && id < KW_MAX_DEVICES) loaded = atomic_load_explicit(&module->loaded[id], memory_order_acquire);
  return __builtin_expect(loaded != NULL, 1) ? loaded : kw_load(module, id);
}

/* The host code that launches what suits the device best, or null with an error raised. */
KW_FUNCTION kw_entry kw_cuda_pick(const kw_variant *variant, int id) {
  if (variant->cuda_entry) return variant->cuda_entry;
  const kw_loaded *loaded = kw_get_loaded(variant->module, id);
  return loaded ? loaded->image->entry : NULL;
}

#endif
