/* Launches of device functions, on tvm-ffi's current stream or on the one that was asked for. A launch takes no lock once
 * its code is loaded, except the first that needs more shared memory. */
#ifndef KW_LAUNCH_H
#define KW_LAUNCH_H

static kw_launch kw_launch_of(const kw_function *function) {
  kw_launch launch = {.function = function};
  for (int i = 0; i < KW_DIMS; ++i) launch.dims[i] = 1;
  return launch;
}

/* Reads the launch arguments. Returns 1 when there is nothing to do because a dimension is zero. */
static int kw_read_launch(kw_launch *launch, const TVMFFIAny *arguments) {
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

static void kw_set_dims(kw_launch_attribute *attribute, unsigned int id, const unsigned int *dims) {
  attribute->id = id;
  memcpy(attribute->value.dims, dims, 3 * sizeof *dims);
}

/* Writes the attributes of a launch, and returns how many there are. */
static unsigned int kw_write_attributes(kw_launch_attribute *attributes, const kw_launch *launch) {
  kw_launch_attribute *next = attributes;
  const kw_function *function = launch->function;
  const unsigned int *preferred = launch->dims + KW_PREFERRED_CLUSTER;
  if (function->clusters) kw_set_dims(next++, KW_LAUNCH_CLUSTER, launch->dims + KW_CLUSTER);
  bool prefers = preferred[0] > 1 || preferred[1] > 1 || preferred[2] > 1;
  if (prefers) kw_set_dims(next++, KW_LAUNCH_PREFERRED_CLUSTER, preferred);
  if (function->spread)
    *next++ = (kw_launch_attribute){.id = KW_LAUNCH_CLUSTER_SCHEDULING, .value.flag = KW_SPREAD_CLUSTERS};
  if (function->dependent) *next++ = (kw_launch_attribute){.id = KW_LAUNCH_DEPENDENT, .value.flag = 1};
  if (function->cooperative) *next++ = (kw_launch_attribute){.id = KW_LAUNCH_COOPERATIVE, .value.flag = 1};
  return (unsigned int)(next - attributes);
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
    static void *const null = NULL;
    bool is_null = arguments[i].v_ptr == KW_NULL && function->parameters[i] == 'p';
    parameters[i] = (void *)(__builtin_expect(is_null, 0) ? (const void *)&null : &arguments[i].v_int64);
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

/* The bytes that the structures of a launch take. */
KW_FUNCTION size_t kw_structure_bytes(const kw_function *function) {
  size_t bytes = 0;
  for (int i = 0; i < function->num_structures; ++i) bytes += function->structures[i].bytes;
  return bytes;
}

/* Puts the structures together in some memory, which then are one parameter each. */
KW_FUNCTION void kw_join_parameters(const kw_function *function, void **parameters, char *memory) {
  uint32_t from = 0, to = 0;
  for (int i = 0; i < function->num_structures; ++i) {
    const kw_structure *structure = &function->structures[i];
    while (from < structure->first) parameters[to++] = parameters[from++];
    for (uint32_t j = 0; j < structure->count; ++j)
      memcpy(memory + structure->members[j].offset, parameters[from++], structure->members[j].bytes);
    parameters[to++] = memory;
    memory += structure->bytes;
  }
  while (from < function->num_parameters) parameters[to++] = parameters[from++];
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "integer parameters are passed by their low bytes");

/* The function, loaded, with all the shared memory that the launch needs; null with an error raised. */
static struct kw_loaded_function *kw_find_launched(kw_launch *launch) {
  const kw_function *function = launch->function;
  kw_loaded *loaded = kw_get_loaded(function->module, kw_now.device);
  if (!loaded) return NULL;
  launch->device = &kw_devices[kw_now.device];
  struct kw_loaded_function *own = &loaded->functions[function - function->module->functions];
  bool fits = launch->dims[KW_SHARED] <= atomic_load_explicit(&own->shared_limit, memory_order_acquire);
  return fits || !kw_extend_shared(launch, own) ? own : NULL;
}

/* Launches a function. Without a stream that is on tvm-ffi's current one. */
static int kw_start(kw_launch *launch, CUstream stream, kw_launch_attribute *attributes, unsigned int count,
                    void **parameters) {
  bool pushed;
  const unsigned int *d = launch->dims;
  kw_now.done |= KW_LAUNCHED;
  struct kw_loaded_function *own = kw_find_launched(launch);
  if (!own) return -1;
  if (!stream) stream = TVMFFIEnvGetStream(kDLCUDA, kw_now.device);
  kw_launch_config config = {{d[0], d[1], d[2]}, {d[3], d[4], d[5]}, d[KW_SHARED], stream, attributes, count};
  if (kw_enter(launch->device, stream, &pushed)) return -1;
  CUresult status = kw_cuda.launch(&config, (CUfunction)own->kernel, parameters, NULL);
  kw_leave(pushed);
  return __builtin_expect(status, 0) ? kw_raise_launch(status, launch) : 0;
}

static int kw_launch_function(const kw_function *function, const TVMFFIAny *arguments, int32_t count) {
  void *parameters[KW_CALL_ARGUMENTS];
  kw_parameter converted[KW_CALL_ARGUMENTS];
  kw_launch_attribute attributes[5];
  kw_launch launch = kw_launch_of(function);
  if (count != function->num_parameters + function->num_slots)
    return kw_raise("RuntimeError", "device function %s was given %d arguments, it has %d", function->name, count,
                    function->num_parameters + function->num_slots);
  int status = kw_read_launch(&launch, arguments + function->num_parameters);
  if (status) return status < 0 ? -1 : kw_skip_launch(&launch);
  kw_read_parameters(function, arguments, converted, parameters);
  char structures[kw_structure_bytes(function) + 1];
  memset(structures, 0, sizeof structures);
  if (function->num_structures) kw_join_parameters(function, parameters, structures);
  return kw_start(&launch, NULL, attributes, kw_write_attributes(attributes, &launch), parameters);
}

/* Launches a function for code that asks as it would ask CUDA's runtime. */
int kw_launch_configured(const kw_runtime_config *asked, const kw_function *function, void **parameters) {
  kw_launch launch = kw_launch_of(function);
  memcpy(launch.dims + KW_GRID, asked->grid, sizeof asked->grid);
  memcpy(launch.dims + KW_BLOCK, asked->block, sizeof asked->block);
  launch.dims[KW_SHARED] = (unsigned int)asked->shared_bytes;
  for (int i = KW_GRID; i < KW_CLUSTER; ++i)
    if (!launch.dims[i]) return kw_skip_launch(&launch);
  return kw_start(&launch, asked->stream, asked->attributes, asked->num_attributes, parameters);
}

#endif
