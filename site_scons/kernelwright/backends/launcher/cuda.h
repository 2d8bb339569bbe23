/* Device code: choosing the image for a device, loading it once, launching functions of it.
 *
 * Images are loaded with cuLibraryLoadData, which belongs to no context, so one load serves every device of the same
 * architecture. What is published in a module is complete and never changes, so launches take no lock. */
#ifndef KW_CUDA_H
#define KW_CUDA_H

#define KW_CUDA_DEVICE 2 /* kDLCUDA */

/* Beyond this, counting its static shared memory too, a function must opt in to dynamic shared memory. */
#define KW_SHARED_LIMIT (48 * 1024)

typedef struct kw_device {
  atomic_bool ready;
  CUdevice device;
  CUcontext context; /* the primary context, retained for the life of the process */
  int capability;
  int shared_limit;
  bool memory_pools;
  kw_identity identity;
} kw_device;

/* The functions of a module on one device. */
typedef struct kw_loaded {
  const kw_image *image;
  struct kw_loaded_function {
    CUkernel kernel;
    int static_shared;
    _Atomic uint32_t shared_limit; /* dynamic shared memory that the function may use so far */
  } functions[];
} kw_loaded;

static kw_device kw_devices[KW_MAX_DEVICES] __attribute__((unused));

/* CUDA does not survive a fork; without this flag a child would crash or hang in the driver. */
static atomic_bool kw_forked_after_cuda;
static atomic_bool kw_cuda_begun; /* cuInit has been called */

/* ---- the lock, which a fork must not leave locked ---- */

static int kw_watch_status;

/* In the child. The thread that held the lock does not exist there. */
static void kw_note_fork(void) {
  pthread_mutex_init(&kw_cuda_lock, NULL);
  if (!atomic_load(&kw_cuda_begun)) return;
  atomic_store(&kw_forked_after_cuda, true);
  for (int id = 0; id < KW_MAX_DEVICES; ++id) atomic_store(&kw_devices[id].ready, false);
}

static void kw_watch_forks(void) { kw_watch_status = pthread_atfork(NULL, NULL, kw_note_fork); }

/* The handler is there before the lock is first taken: another thread may fork at any time. */
KW_COLD void kw_lock_cuda(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, kw_watch_forks);
  pthread_mutex_lock(&kw_cuda_lock);
}

KW_COLD void kw_unlock_cuda(void) { pthread_mutex_unlock(&kw_cuda_lock); }

/* ---- driver and devices; the lock is held ---- */

KW_COLD int kw_raise_forked(void) {
  return kw_raise("RuntimeError",
                  "CUDA was used before this process was forked, and does not survive that\n"
                  "  remedy: start the process with the spawn method, or fork before the first CUDA call");
}

KW_COLD int kw_start_cuda(void) {
  static bool started;
  if (atomic_load(&kw_forked_after_cuda)) return kw_raise_forked();
  if (started) return 0;
  if (kw_watch_status) return kw_raise("MemoryError", "no memory for a fork handler");
  if (kw_resolve_driver(&kw_cuda)) return -1;
  atomic_store(&kw_cuda_begun, true);
  CUresult status = kw_cuda.init(0);
  if (status) return kw_raise_cuda(status, "initialising CUDA");
  started = true;
  return 0;
}

/* ---- graph capture ---- */

/* While a graph is captured, by any thread, the driver refuses most of what a first use does, because the graph would
 * not have it. What the launcher sets up is for the whole process, so the calling thread is allowed it for a while.
 * Returns its mode before. */
KW_COLD int kw_relax_capture(void) {
  int mode = KW_CAPTURE_RELAXED;
  return kw_cuda.capture_mode(&mode) ? -1 : mode;
}

KW_COLD void kw_restore_capture(int mode) {
  if (mode >= 0) kw_cuda.capture_mode(&mode);
}

/* ---- opening a device; the lock is held ---- */

/* What tuning tables know the device by. No call depends on it, so a query that fails is no error. */
KW_COLD void kw_identify_device(kw_device *device) {
  kw_identity *identity = &device->identity;
  bool named = kw_cuda_device_name && !kw_cuda_device_name(identity->name, sizeof identity->name, device->device);
  if (!named) identity->name[0] = 0;
  if (kw_cuda.device_attribute(&identity->count, KW_ATTRIBUTE_MULTIPROCESSORS, device->device)) identity->count = 0;
}

KW_COLD CUresult kw_query_device(kw_device *device, int id) {
  int major = 0, minor = 0, pools = 0;
  CUresult status = kw_cuda.device_get(&device->device, id);
  if (!status) status = kw_cuda.device_attribute(&major, KW_ATTRIBUTE_MAJOR, device->device);
  if (!status) status = kw_cuda.device_attribute(&minor, KW_ATTRIBUTE_MINOR, device->device);
  if (!status) status = kw_cuda.device_attribute(&pools, KW_ATTRIBUTE_MEMORY_POOLS, device->device);
  if (!status) status = kw_cuda.device_attribute(&device->shared_limit, KW_ATTRIBUTE_MAX_SHARED_OPTIN, device->device);
  if (!status) status = kw_cuda.primary_retain(&device->context, device->device);
  device->capability = 10 * major + minor;
  device->memory_pools = pools;
  if (!status) kw_identify_device(device);
  return status;
}

KW_COLD int kw_query_relaxed(kw_device *device, int id) {
  int mode = kw_relax_capture();
  CUresult status = kw_query_device(device, id);
  kw_restore_capture(mode);
  return status ? kw_raise_cuda(status, "opening cuda:%d", id) : 0;
}

/* The device of that number, opened, or null with an error raised. */
KW_COLD kw_device *kw_open_device(int id) {
  int count = 0;
  if (kw_start_cuda()) return NULL;
  CUresult status = kw_cuda.device_count(&count);
  if (status) return kw_raise_cuda(status, "counting CUDA devices"), NULL;
  if (count > KW_MAX_DEVICES) count = KW_MAX_DEVICES;
  if (id < 0 || id >= count)
    return kw_raise("ValueError", "there is no cuda:%d, the process sees %d CUDA devices", id, count), NULL;
  kw_device *device = &kw_devices[id];
  if (!atomic_load(&device->ready) && kw_query_relaxed(device, id)) return NULL;
  atomic_store(&device->ready, true);
  return device;
}

KW_COLD kw_device *kw_find_device(int id) {
  kw_lock_cuda();
  kw_device *device = kw_open_device(id);
  kw_unlock_cuda();
  return device;
}

KW_FUNCTION kw_device *kw_get_device(int id) {
  if (id >= 0 && id < KW_MAX_DEVICES && atomic_load_explicit(&kw_devices[id].ready, memory_order_acquire))
    return &kw_devices[id];
  return kw_find_device(id);
}

KW_COLD const kw_identity *kw_device_identity(int id) {
  const kw_device *device = kw_get_device(id);
  return device ? &device->identity : NULL;
}

/* ---- contexts ---- */

/* The default streams are those of the current context; any other stream knows its context. */
KW_FUNCTION bool kw_is_default_stream(CUstream stream) { return (uintptr_t)stream <= KW_LAST_DEFAULT_STREAM; }

/* Makes a context of the device current for work in a stream; `pushed` tells kw_leave what to undo.
 *
 * Memory of frameworks, and their default stream, belong to the primary context. So a default stream is that of the
 * primary context, also where the application has made another context of the device current. A stream that it has made
 * itself may be of that other context, which is left in place: the driver runs a kernel in the context of its stream
 * (cuda.h, cuLaunchKernelEx). */
KW_FUNCTION CUresult kw_try_enter(const kw_device *device, CUstream stream, bool *pushed) {
  CUcontext current = NULL;
  CUdevice active;
  *pushed = false;
  CUresult status = kw_cuda.context_current(&current);
  if (!status && current == device->context) return 0;
  bool may_stay = !status && current && !kw_is_default_stream(stream);
  if (may_stay && !kw_cuda.context_device(&active) && active == device->device) return 0;
  if (!status) status = kw_cuda.context_push(device->context);
  *pushed = !status;
  return status;
}

KW_FUNCTION int kw_enter(const kw_device *device, CUstream stream, bool *pushed) {
  CUresult status = kw_try_enter(device, stream, pushed);
  if (__builtin_expect(!status, 1)) return 0;
  return kw_raise_cuda(status, "making the context of cuda:%d current", device->device);
}

KW_FUNCTION void kw_leave(bool pushed) {
  CUcontext context;
  if (pushed) kw_cuda.context_pop(&context);
}

/* ---- choosing an image ---- */

/* How well an image suits a device: 0 not at all, otherwise more is better. Machine code runs on devices of the same
 * major capability with the same or a higher minor one, PTX on all that are not older than it. With suffix 'a' code
 * runs on exactly its capability, with 'f' on the same major from its minor on.
 * Machine code goes before PTX; then exact with 'a', exact, family, and the highest capability. */
KW_COLD int kw_suitability(const kw_image *image, int capability) {
  int score = 1 + 2 * image->capability + (image->ptx ? 0 : 10000);
  bool same_major = image->capability / 10 == capability / 10;
  if (image->capability > capability) return 0;
  if (image->suffix == 'a') return image->capability == capability ? score + 2000 : 0;
  if (image->suffix == 'f') return same_major ? score + 500 : 0;
  if (image->capability == capability) return score + 1000;
  return same_major || image->ptx ? score : 0;
}

KW_COLD int kw_raise_no_image(const kw_module *module, int capability, int id) {
  kw_text text;
  kw_begin(&text);
  kw_append(&text, "cuda:%d is an sm_%d, and variant %s was built for ", id, capability, module->variant);
  for (int i = 0; i < module->num_images; ++i) kw_append(&text, "%s%s", i ? ", " : "", module->images[i].arch);
  kw_append(&text, "%s\n  remedy: add sm_%d to its archs", module->num_images ? "" : "no arch", capability);
  return kw_raise_text("RuntimeError", &text);
}

/* The index of the best image for the device, or -1 with an error raised. */
KW_COLD int kw_choose_image(const kw_module *module, int capability, int id) {
  int best = -1, best_score = 0;
  for (int i = 0; i < module->num_images; ++i) {
    int score = kw_suitability(&module->images[i], capability);
    if (score > best_score) best = i, best_score = score;
  }
  return best >= 0 ? best : kw_raise_no_image(module, capability, id);
}

/* The image to load on a device. */
typedef struct kw_choice {
  int index;
  kw_text path; /* of the file that it is in, if it is in one */
} kw_choice;

KW_COLD int kw_index_of(const kw_module *module, const char *arch, size_t length) {
  for (int i = 0; i < module->num_images; ++i) {
    const char *name = module->images[i].arch;
    if (strlen(name) == length && !strncmp(name, arch, length)) return i;
  }
  return -1;
}

/* The archs that suit a device, best first, with blanks between them. */
KW_COLD void kw_list_suitable(const kw_module *module, int capability, kw_text *names) {
  int below = INT32_MAX, best;
  names->used = 0;
  do {
    best = 0;
    for (int i = 0; i < module->num_images; ++i) {
      int score = kw_suitability(&module->images[i], capability);
      if (score < below && score > best) best = score;
    }
    for (int i = 0; best && i < module->num_images; ++i)
      if (kw_suitability(&module->images[i], capability) == best)
        kw_append(names, "%s%s", names->used ? " " : "", module->images[i].arch);
    below = best;
  } while (best);
}

/* Asks the provider for one of the images that suit the device; without a provider it is the best one. */
KW_COLD int kw_find_file(const kw_module *module, int capability, int id, kw_choice *choice) {
  kw_text names, answer;
  if (!atomic_load(kw_now.kernel->provider)) return kw_path_in_build(module->images[choice->index].file, &choice->path);
  kw_list_suitable(module, capability, &names);
  if (kw_ask_provider(module->variant, &names, id, capability, &answer)) return -1;
  if (*answer.data == ' ') return kw_raise("RuntimeError", "%s", answer.data + 1);
  const char *blank = strchr(answer.data, ' ');
  choice->index = blank ? kw_index_of(module, answer.data, (size_t)(blank - answer.data)) : -1;
  if (choice->index < 0) return kw_raise("RuntimeError", "the provider of device code returned '%s'", answer.data);
  choice->path.used = 0;
  kw_append(&choice->path, "%s", blank + 1);
  return 0;
}

/* Compressed code needs a driver that can decompress it. */
KW_COLD int kw_check_driver(const kw_module *module, const kw_image *image) {
  int has = 0, needed = kw_now.kernel->driver;
  CUresult status = needed ? kw_cuda.version(&has) : 0;
  if (status) return kw_raise_cuda(status, "asking for the version of the driver");
  if (has >= needed) return 0;
  return kw_raise("RuntimeError",
                  "%s of variant %s is compressed, and needs a driver for CUDA %d.%d or newer; this one is for CUDA %d.%d\n"
                  "  remedy: install a newer NVIDIA driver, or compress it less, with compress = speed",
                  image->arch, module->variant, needed / 1000, needed % 1000 / 10, has / 1000, has % 1000 / 10);
}

/* Chooses what is loaded on a device, and makes sure that its driver can read that; the lock is not held. Returns -1
 * with an error raised if there is nothing. */
KW_COLD int kw_choose(const kw_module *module, int id, kw_choice *choice) {
  const kw_device *device = kw_get_device(id);
  choice->index = device ? kw_choose_image(module, device->capability, id) : -1;
  if (choice->index < 0) return -1;
  bool in_file = !module->images[choice->index].data;
  if (in_file && kw_find_file(module, device->capability, id, choice)) return -1;
  return kw_check_driver(module, &module->images[choice->index]);
}

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

#include "tensormap.h"

/* ---- launching ---- */

/* A launch as the host code asks for it. */
typedef struct kw_launch {
  const kw_function *function;
  const kw_device *device;
  unsigned int dims[KW_SLOTS];
} kw_launch;

KW_COLD void kw_append_dims(kw_text *text, const kw_launch *launch) {
  const unsigned int *d = launch->dims;
  kw_append(text, "grid (%u, %u, %u), block (%u, %u, %u)", d[0], d[1], d[2], d[3], d[4], d[5]);
  if (launch->function->clusters) kw_append(text, ", cluster (%u, %u, %u)", d[6], d[7], d[8]);
}

KW_COLD void kw_append_launch(kw_text *text, const kw_launch *launch) {
  const kw_loaded *loaded = atomic_load(&launch->function->module->loaded[launch->device - kw_devices]);
  kw_append(text, "device function %s, ", kw_name_in(loaded->image, launch->function));
  kw_append_dims(text, launch);
  kw_append(text, ", %u bytes of dynamic shared memory, cuda:%d (sm_%d)", launch->dims[KW_SHARED],
            launch->device->device, launch->device->capability);
}

KW_COLD int kw_raise_launch(CUresult status, const kw_launch *launch) {
  kw_text text = {0};
  kw_append_launch(&text, launch);
  return kw_raise_cuda(status, "launching %s", text.data);
}

KW_COLD int kw_raise_shared(const kw_launch *launch, int static_shared) {
  kw_text text;
  kw_begin(&text);
  kw_append_launch(&text, launch);
  kw_append(&text, ": with %d bytes of static shared memory that is more than the %d bytes of a block on this device",
            static_shared, launch->device->shared_limit);
  kw_append(&text, "\n  remedy: call a variant with smaller tiles");
  return kw_raise_text("RuntimeError", &text);
}

/* Opts a function in to more dynamic shared memory than every function gets; the lock is held. */
KW_COLD int kw_opt_in_shared(const kw_launch *launch, struct kw_loaded_function *function) {
  const kw_device *device = launch->device;
  uint32_t wanted = launch->dims[KW_SHARED];
  if (wanted <= atomic_load(&function->shared_limit)) return 0;
  if ((int64_t)wanted + function->static_shared > device->shared_limit)
    return kw_raise_shared(launch, function->static_shared);
  int mode = kw_relax_capture();
  CUresult status = kw_cuda.kernel_set(KW_FUNCTION_MAX_DYNAMIC_SHARED, (int)wanted, function->kernel, device->device);
  kw_restore_capture(mode);
  if (status) return kw_raise_launch(status, launch);
  atomic_store_explicit(&function->shared_limit, wanted, memory_order_release);
  return 0;
}

KW_COLD int kw_extend_shared(const kw_launch *launch, struct kw_loaded_function *function) {
  kw_lock_cuda();
  int status = kw_opt_in_shared(launch, function);
  kw_unlock_cuda();
  return status;
}

/* The launch that a thread skipped last, for messages. */
static _Thread_local kw_launch kw_skipped __attribute__((unused));

/* A launch without a block or a thread is left out. If it is the only one, the call may be a mistake. */
KW_COLD int kw_skip_launch(const kw_launch *launch) {
  kw_skipped = *launch;
  kw_now.done |= KW_SKIPPED;
  return 0;
}

/* Reads the launch arguments. Returns 1 when there is nothing to do because a dimension is zero. */
static int kw_read_launch(kw_launch *launch, const TVMFFIAny *arguments) {
  for (int i = 0; i < KW_DIMS; ++i) launch->dims[i] = 1;
  launch->dims[KW_SHARED] = 0;
  bool empty = false;
  for (int i = 0; i < launch->function->num_slots; ++i) {
    int slot = launch->function->slots[i];
    int64_t value = arguments[i].v_int64;
    if ((value < 0 || value > UINT32_MAX) && !empty)
      return kw_raise("ValueError", "device function %s would be launched with a dimension of %" PRId64,
                      launch->function->name, value);
    empty |= !value && slot != KW_SHARED;
    launch->dims[slot] = (unsigned int)value;
  }
  return empty;
}

static void kw_add_flag(kw_launch_config *config, unsigned int id) {
  kw_launch_attribute *attribute = &config->attributes[config->num_attributes++];
  attribute->id = id;
  attribute->value.flag = 1;
}

static void kw_add_dims(kw_launch_config *config, unsigned int id, const unsigned int *dims) {
  kw_launch_attribute *attribute = &config->attributes[config->num_attributes++];
  attribute->id = id;
  memcpy(attribute->value.dims, dims, 3 * sizeof *dims);
}

static void kw_add_attributes(kw_launch_config *config, const kw_launch *launch) {
  const unsigned int *preferred = launch->dims + KW_PREFERRED_CLUSTER;
  if (launch->function->clusters) kw_add_dims(config, KW_LAUNCH_CLUSTER, launch->dims + KW_CLUSTER);
  bool prefers = preferred[0] > 1 || preferred[1] > 1 || preferred[2] > 1;
  if (prefers) kw_add_dims(config, KW_LAUNCH_PREFERRED_CLUSTER, preferred);
  if (launch->function->dependent) kw_add_flag(config, KW_LAUNCH_DEPENDENT);
  if (launch->function->cooperative) kw_add_flag(config, KW_LAUNCH_COOPERATIVE);
}

typedef union kw_parameter {
  float float32;
#ifdef __FLT16_MANT_DIG__
  _Float16 float16;
#endif
} kw_parameter;

/* Points at each parameter with the type the device function has. An integer's low bytes come first in memory. */
static void kw_read_parameters(const kw_function *function, const TVMFFIAny *arguments, kw_parameter *converted,
                               void **parameters) {
  for (int i = 0; i < function->num_parameters; ++i) {
    parameters[i] = (void *)&arguments[i].v_int64;
    if (function->parameters[i] == 'f') {
      converted[i].float32 = (float)arguments[i].v_float64;
      parameters[i] = &converted[i];
    }
    if (function->parameters[i] == 't') parameters[i] = kw_tensor_map_in(arguments[i].v_ptr);
#ifdef __FLT16_MANT_DIG__
    if (function->parameters[i] == 'h') {
      converted[i].float16 = (_Float16)arguments[i].v_float64;
      parameters[i] = &converted[i];
    }
#endif
  }
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "integer parameters are passed by their low bytes");

static int kw_start_function(const kw_launch *launch, CUkernel kernel, int id, const TVMFFIAny *arguments) {
  void *parameters[KW_CALL_ARGUMENTS];
  kw_parameter converted[KW_CALL_ARGUMENTS];
  kw_launch_attribute attributes[4];
  const unsigned int *d = launch->dims;
  kw_launch_config config = {{d[0], d[1], d[2]}, {d[3], d[4], d[5]}, d[KW_SHARED], NULL, attributes, 0};
  bool pushed;
  config.stream = TVMFFIEnvGetStream(KW_CUDA_DEVICE, id);
  kw_read_parameters(launch->function, arguments, converted, parameters);
  kw_add_attributes(&config, launch);
  if (kw_enter(launch->device, config.stream, &pushed)) return -1;
  CUresult status = kw_cuda.launch(&config, (CUfunction)kernel, parameters, NULL);
  kw_leave(pushed);
  return __builtin_expect(status, 0) ? kw_raise_launch(status, launch) : 0;
}

/* The function on the device, loaded, with all the shared memory that the launch needs; null with an error raised. */
static struct kw_loaded_function *kw_find_launched(kw_launch *launch, int id) {
  const kw_function *function = launch->function;
  kw_loaded *loaded = kw_get_loaded(function->module, id);
  if (!loaded) return NULL;
  launch->device = &kw_devices[id];
  struct kw_loaded_function *own = &loaded->functions[function - function->module->functions];
  bool fits = launch->dims[KW_SHARED] <= atomic_load_explicit(&own->shared_limit, memory_order_acquire);
  return fits || !kw_extend_shared(launch, own) ? own : NULL;
}

static int kw_launch_function(const kw_function *function, const TVMFFIAny *arguments, int32_t count) {
  int id = kw_now.device;
  kw_launch launch = {.function = function};
  if (count != function->num_parameters + function->num_slots)
    return kw_raise("RuntimeError", "device function %s was given %d arguments, it has %d", function->name, count,
                    function->num_parameters + function->num_slots);
  int status = kw_read_launch(&launch, arguments + function->num_parameters);
  if (status) return status < 0 ? -1 : kw_skip_launch(&launch);
  kw_now.done |= KW_LAUNCHED;
  struct kw_loaded_function *own = kw_find_launched(&launch, id);
  return own ? kw_start_function(&launch, own->kernel, id, arguments) : -1;
}

/* ---- launching for code that asks as it would ask CUDA's runtime ---- */

/* Fills in what messages and the limit of shared memory need to know. */
static void kw_describe_launch(kw_launch *launch, const kw_runtime_config *asked) {
  for (int i = 0; i < KW_DIMS; ++i) launch->dims[i] = 1;
  memcpy(launch->dims + KW_GRID, asked->grid, sizeof asked->grid);
  memcpy(launch->dims + KW_BLOCK, asked->block, sizeof asked->block);
  launch->dims[KW_SHARED] = (unsigned int)asked->shared_bytes;
}

static int kw_start_configured(const kw_launch *launch, const kw_runtime_config *asked, CUkernel kernel,
                               void **parameters) {
  const unsigned int *grid = asked->grid, *block = asked->block;
  kw_launch_config config = {
      {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, launch->dims[KW_SHARED], asked->stream,
      asked->attributes, asked->num_attributes};
  bool pushed;
  if (!config.stream) config.stream = TVMFFIEnvGetStream(KW_CUDA_DEVICE, kw_now.device);
  if (kw_enter(launch->device, config.stream, &pushed)) return -1;
  CUresult status = kw_cuda.launch(&config, (CUfunction)kernel, parameters, NULL);
  kw_leave(pushed);
  return status ? kw_raise_launch(status, launch) : 0;
}

int kw_launch_configured(const kw_runtime_config *asked, const kw_function *function, void **parameters) {
  kw_launch launch = {.function = function};
  kw_describe_launch(&launch, asked);
  for (int i = KW_GRID; i < KW_CLUSTER; ++i)
    if (!launch.dims[i]) return kw_skip_launch(&launch);
  kw_now.done |= KW_LAUNCHED;
  struct kw_loaded_function *own = kw_find_launched(&launch, kw_now.device);
  return own ? kw_start_configured(&launch, asked, own->kernel, parameters) : -1;
}

int kw_read_attribute(int32_t *value, int32_t attribute, int32_t id) {
  const kw_device *device = kw_get_device(id);
  if (!device) return -1;
  CUresult status = kw_cuda.device_attribute(value, attribute, device->device);
  return status ? kw_raise_cuda(status, "asking for attribute %d of cuda:%d", attribute, id) : 0;
}

int kw_selected_device(void) { return kw_now.device; }

void kw_select_device(int id) { kw_now.device = id; }

/* ---- what generated host code calls; the wrapper redirects it here with macros ---- */

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
