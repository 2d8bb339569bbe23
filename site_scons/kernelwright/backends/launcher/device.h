/* The driver and its devices: each is opened once in a process, and kept.
 *
 * In the child of a fork CUDA raises an error, because it does not survive that, and no lock stays locked. This file
 * sets things up for the whole process, so it works while a thread captures a graph. */
#ifndef KW_DEVICE_H
#define KW_DEVICE_H

typedef struct kw_device {
  atomic_bool ready;
  CUdevice device;
  CUcontext context; /* the primary context, retained for the life of the process */
  int capability;
  int shared_limit;
  bool memory_pools;
  kw_identity identity;
} kw_device;

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

static void kw_watch_forks(void) { kw_watch_status = kw_at_fork(kw_note_fork); }

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

KW_FUNCTION kw_device *kw_get_device(int id) {
  if (id >= 0 && id < KW_MAX_DEVICES && atomic_load_explicit(&kw_devices[id].ready, memory_order_acquire))
    return &kw_devices[id];
  kw_lock_cuda();
  kw_device *device = kw_open_device(id);
  kw_unlock_cuda();
  return device;
}

KW_COLD const kw_identity *kw_device_identity(int id) {
  const kw_device *device = kw_get_device(id);
  return device ? &device->identity : NULL;
}

#endif
