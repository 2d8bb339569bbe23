/* A stand-in for libcuda.so.1: the functions that the launcher uses, on a machine without a GPU.
 *
 * It runs nothing; it writes what it is asked for to the file $STANDIN_LOG, one line a call. An image is a text, the
 * name of its arch; of a real one the log has kind, arch and checksum. The environment says what machine it plays:
 *
 *   STANDIN_CAPABILITY  compute capability of all devices, such as 90
 *   STANDIN_VERSION     CUDA version that the driver is for; default 13000
 *   STANDIN_NAME        name of all devices; default: "stand-in" and the number of the device
 *   STANDIN_COUNT       how many multiprocessors they have; default 100; -1: the driver does not say
 *   STANDIN_RESIDENT    how many threads a multiprocessor can have at once; default: one block
 *   STANDIN_DEVICES     how many devices there are; default 2
 *   STANDIN_FIRST       number of the first device that is one; all attributes of those before it are 0; default 0
 *   STANDIN_SHARED      shared memory that a block can opt in to, in bytes; default 101376
 *   STANDIN_STATIC      static shared memory of each function; default 0
 *   STANDIN_HOLD        "cuInit=PATH": that function is held at a gate: it first reads the named pipe PATH to its end, if
 *                       there is one. Who opens the pipe for writing waits for the call, and holds it until it closes it
 *   STANDIN_POOLS       whether devices have memory pools; default 1
 *   STANDIN_MEMORY      bytes of memory that can be allocated at a time, of all devices together; default: no limit
 *   STANDIN_CAPTURE     handle of a stream from which a graph is captured, in global mode. Then what the driver calls
 *                       potentially unsafe fails with 900 unless the thread's mode is relaxed, and waiting for the
 *                       context fails in any mode, and ends the capture, which is logged
 *   STANDIN_BLOCKING    1: that stream is not non-blocking, so any use of the legacy default stream fails with 906
 *   STANDIN_DESTROYED   handle of a stream that has been destroyed: any use of it fails with 400, and is logged
 *   STANDIN_PARAMETERS  types of the parameters to log at a launch: p pointer, b int8, i int32, l int64, f float32,
 *                       d float64, h float16, t tensor map: the number of the call that made it, and "as made" if no
 *                       bit of it was cleared; w an address and, behind it, two int32 and an int64: a matrix of CuTe DSL;
 *                       of several functions with their names: "first:pi second:ppi"
 *   STANDIN_BYTES       1: a launch logs the bytes of all parameters, as many as the cubin says that they have
 *   STANDIN_FAIL        "cuLaunchKernelEx=700": that function fails with that code
 *
 * Times are made up: a launch takes 5 us, a hundredth of one for each block, and a fiftieth for each thread of a block.
 * Work that sets memory takes 1 us. Events note how much time has passed by such work. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A bit of the second word of a map that drivers up to CUDA 13.1 set wrongly in maps of less than 128 KiB. */
#define WRONG_IN_SMALL_MAPS (1ull << 21)

typedef struct {
  unsigned int grid[3], block[3], shared;
  void *stream;
  struct {
    unsigned int id, pad, value[16];
  } *attributes;
  unsigned int num_attributes;
} launch_config;

typedef struct {
  char name[128], arch[32];
  unsigned int dynamic[64]; /* what the function opted in to on each device */
  uint16_t sizes[512];      /* of the parameters, if the log is to have their bytes; 0: there is no such parameter */
} kernel;

typedef struct {
  char *name;
  unsigned char *cubin; /* a copy, if the log is to have the bytes of parameters */
} image;

static _Atomic long long passed_ns;

static int contexts[64], foreign_contexts[64]; /* the primary ones, and others */
static _Thread_local int *current[16];
static _Thread_local int depth;
static _Thread_local int capture_mode; /* 0 global, 1 of the thread, 2 relaxed */

static int number(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text && *text ? atoi(text) : otherwise;
}

static void say(const char *format, ...) {
  const char *path = getenv("STANDIN_LOG");
  FILE *file = path ? fopen(path, "a") : NULL;
  va_list values;
  if (!file) return;
  va_start(values, format);
  vfprintf(file, format, values);
  va_end(values);
  fclose(file);
}

/* What a variable says of a function, behind "NAME="; null, if that is another function or none. */
static const char *said_of(const char *variable, const char *name) {
  const char *text = getenv(variable);
  size_t length = strlen(name);
  return text && !strncmp(text, name, length) && text[length] == '=' ? text + length + 1 : NULL;
}

static void wait_at_gate(const char *name) {
  const char *path = said_of("STANDIN_HOLD", name);
  int gate = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  char byte;
  while (gate >= 0 && (read(gate, &byte, 1) > 0 || errno == EINTR)) errno = 0;
  if (gate >= 0) close(gate);
}

static int status_of(const char *name) {
  const char *status = said_of("STANDIN_FAIL", name);
  return status ? atoi(status) : 0;
}

#define ENTER(name) \
  do { \
    wait_at_gate(name); \
    int status = status_of(name); \
    if (status) return status; \
  } while (0)

static uintptr_t handle(const char *name) {
  const char *text = getenv(name);
  return text && *text ? (uintptr_t)strtoull(text, NULL, 0) : 0;
}

/* What has side effects that a graph would not have. */
#define UNSAFE() \
  do { \
    if (handle("STANDIN_CAPTURE") && capture_mode != 2) return 900; \
  } while (0)

#define STREAM(stream) \
  do { \
    if ((uintptr_t)(stream) <= 1 && handle("STANDIN_CAPTURE") && number("STANDIN_BLOCKING", 0)) return 906; \
    if (!(stream) || (uintptr_t)(stream) != handle("STANDIN_DESTROYED")) break; \
    say("use of a destroyed stream\n"); \
    return 400; \
  } while (0)

int cuInit(unsigned int flags) {
  (void)flags;
  ENTER("cuInit");
  say("init\n");
  return 0;
}

int cuDriverGetVersion(int *version) {
  ENTER("cuDriverGetVersion");
  *version = number("STANDIN_VERSION", 13000);
  return 0;
}

static const char *name_of(int status) {
  switch (status) {
    case 200: return "CUDA_ERROR_INVALID_IMAGE";
    case 209: return "CUDA_ERROR_NO_BINARY_FOR_GPU";
    case 218: return "CUDA_ERROR_INVALID_PTX";
    case 226: return "CUDA_ERROR_CONTAINED";
    case 702: return "CUDA_ERROR_LAUNCH_TIMEOUT";
    case 710: return "CUDA_ERROR_ASSERT";
    case 714: return "CUDA_ERROR_HARDWARE_STACK_ERROR";
    case 715: return "CUDA_ERROR_ILLEGAL_INSTRUCTION";
    case 716: return "CUDA_ERROR_MISALIGNED_ADDRESS";
    case 717: return "CUDA_ERROR_INVALID_ADDRESS_SPACE";
    case 718: return "CUDA_ERROR_INVALID_PC";
    case 719: return "CUDA_ERROR_LAUNCH_FAILED";
    case 721: return "CUDA_ERROR_TENSOR_MEMORY_LEAK";
    case 810: return "CUDA_ERROR_MPS_CLIENT_TERMINATED";
    case 906: return "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT";
    case 911: return "CUDA_ERROR_EXTERNAL_DEVICE";
    default: return NULL;
  }
}

int cuGetErrorName(int status, const char **name) {
  if (name_of(status)) return *name = name_of(status), 0;
  *name = status == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : status == 222 ? "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" : NULL;
  if (status == 2) *name = "CUDA_ERROR_OUT_OF_MEMORY";
  if (status == 900) *name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
  return *name ? 0 : 1;
}

int cuGetErrorString(int status, const char **text) {
  *text = status == 700 ? "an illegal memory access was encountered" : NULL;
  return *text ? 0 : 1;
}

int cuDeviceGetCount(int *count) {
  ENTER("cuDeviceGetCount");
  *count = number("STANDIN_DEVICES", 2);
  return 0;
}

int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  int capability = number("STANDIN_CAPABILITY", 80);
  if (device < number("STANDIN_FIRST", 0)) attribute = *value = 0;
  switch (attribute) {
    case 0: return 0;
    case 75: *value = capability / 10; return 0;
    case 76: *value = capability % 10; return 0;
    case 16: *value = number("STANDIN_COUNT", 100); return *value < 0;
    case 10: *value = 32; return 0;
    case 12: *value = 65536; return 0;
    case 13: case 36: case 37: *value = 1000; return 0; /* clocks, and the width of memory */
    case 38: *value = device ? 40 << 20 : 1 << 20; return 0;
    case 95: *value = 1; return 0;
    case 81: case 97: *value = number("STANDIN_SHARED", 101376); return 0;
    case 115: *value = number("STANDIN_POOLS", 1); return 0;
    default: return 1;
  }
}

int cuDevicePrimaryCtxRetain(int **context, int device) {
  ENTER("cuDevicePrimaryCtxRetain");
  UNSAFE();
  contexts[device] = device;
  *context = &contexts[device];
  return 0;
}

int cuCtxGetCurrent(int **context) {
  *context = depth ? current[depth - 1] : NULL;
  return 0;
}

int cuCtxGetDevice(int *device) {
  if (!depth) return 201;
  *device = *current[depth - 1];
  return 0;
}

int cuCtxSynchronize(void) {
  if (!depth) return 201;
  ENTER("cuCtxSynchronize");
  if (handle("STANDIN_CAPTURE")) {
    say("end a capture\n");
    return 900;
  }
  say("wait for cuda:%d\n", *current[depth - 1]);
  return 0;
}

int cuThreadExchangeStreamCaptureMode(int *mode) {
  int before = capture_mode;
  ENTER("cuThreadExchangeStreamCaptureMode");
  capture_mode = *mode;
  *mode = before;
  return 0;
}

static int is_foreign(const int *context) { return context >= foreign_contexts && context < foreign_contexts + 64; }

/* A context of the application's own. Handles from 0xf000 to 0xffff are streams of it. */
int cuCtxCreate_v2(int **context, unsigned int flags, int device) {
  (void)flags;
  foreign_contexts[device] = device;
  *context = &foreign_contexts[device];
  return 0;
}

/* The context that work in a stream is for. */
static int *context_of(void *stream) {
  uintptr_t number = (uintptr_t)stream;
  int *active = current[depth - 1];
  if (number <= 2) return active;
  return number >> 12 == 0xf ? &foreign_contexts[*active] : &contexts[*active];
}

int cuCtxPushCurrent_v2(int *context) {
  say("push cuda:%d\n", *context);
  current[depth++] = context;
  return 0;
}

int cuCtxPopCurrent_v2(int **context) {
  *context = current[--depth];
  say("pop cuda:%d\n", **context);
  return 0;
}

/* A cubin ends with the table of its segments. */
static size_t cubin_size(const unsigned char *code) {
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)code;
  return header->e_phoff + header->e_phnum * sizeof(Elf64_Phdr);
}

/* A name for an image: the text that it is, or what is in its header. */
static char *describe(const unsigned char *code) {
  const char *target = NULL, *what = NULL;
  size_t size = strlen((const char *)code);
  unsigned int arch = 0, sum = 0;
  char name[256];
  if (!memcmp(code, "\177ELF", 4)) {
    what = "cubin sm_";
    arch = code[8] == 7 ? code[48] : code[49]; /* version 8 of the ABI has other things in the first byte */
    size = cubin_size(code);
  } else if (!memcmp(code, "P\355U\272", 4)) {
    what = code[16] == 1 ? "fatbin compute_" : "fatbin sm_";
    arch = *(const uint32_t *)(code + 44);
    size = 16 + *(const uint64_t *)(code + 8);
  } else if ((target = strstr((const char *)code, ".target sm_"))) {
    what = "ptx compute_";
    arch = (unsigned int)atoi(target + 11);
  }
  for (size_t i = 0; i < size; ++i) sum = sum * 31 + code[i];
  if (!what) return strdup((const char *)code);
  snprintf(name, sizeof name, "%s%u %zu %u", what, arch, size, sum);
  return strdup(name);
}

/* The sizes of a function's parameters: a cubin has a section of attributes for each function. An attribute has a
 * format, a kind and a number of two bytes, which in format 4 says how many bytes follow. Those of kind 0x17 are
 * parameters: four bytes that say nothing here, two each for their number and their place, and in the upper 14 of 32 bits
 * their size (that is how cuobjdump --dump-elf prints them as KPARAM_INFO). tileiras' code with tensor maps has kind 0x45
 * in its place, with the size in the lower 16 bits. */
static void read_sizes(const unsigned char *cubin, const char *function, uint16_t *sizes) {
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)cubin;
  const Elf64_Shdr *sections = (const Elf64_Shdr *)(cubin + header->e_shoff);
  const char *names = (const char *)cubin + sections[header->e_shstrndx].sh_offset;
  char wanted[1024]; /* names that cuTile makes are long */
  snprintf(wanted, sizeof wanted, ".nv.info.%s", function);
  for (int i = 0; i < header->e_shnum; ++i) {
    if (strcmp(names + sections[i].sh_name, wanted)) continue;
    const unsigned char *at = cubin + sections[i].sh_offset, *end = at + sections[i].sh_size;
    for (; at < end; at += 4 + (at[0] == 4 ? at[2] + 256 * at[3] : 0)) {
      if (at[0] != 4 || (at[1] != 0x17 && at[1] != 0x45) || at[8] + 256 * at[9] >= 512) continue;
      const uint32_t last = *(const uint32_t *)(at + 12);
      sizes[at[8] + 256 * at[9]] = (uint16_t)(at[1] == 0x17 ? last >> 18 : last & 0xffff);
    }
  }
}

int cuLibraryLoadData(image **library, const void *code, void *a, void **b, unsigned int c, void *d, void **e,
                      unsigned int f) {
  (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
  ENTER("cuLibraryLoadData");
  UNSAFE();
  *library = calloc(1, sizeof **library);
  (*library)->name = describe(code);
  if (number("STANDIN_BYTES", 0) && !memcmp(code, ELFMAG, SELFMAG)) {
    (*library)->cubin = malloc(cubin_size(code));
    memcpy((*library)->cubin, code, cubin_size(code));
  }
  say("load %s\n", (*library)->name);
  return 0;
}

int cuLibraryGetKernel(kernel **result, image *library, const char *name) {
  ENTER("cuLibraryGetKernel");
  *result = calloc(1, sizeof **result);
  snprintf((*result)->name, sizeof (*result)->name, "%s", name);
  snprintf((*result)->arch, sizeof (*result)->arch, "%s", library->name);
  if (library->cubin) read_sizes(library->cubin, name, (*result)->sizes);
  return 0;
}

int cuKernelGetFunction(void **function, kernel *own) {
  if (!depth) return 201;
  ENTER("cuKernelGetFunction");
  UNSAFE();
  *function = own;
  return 0;
}

int cuKernelGetAttribute(int *value, int attribute, kernel *own, int device) {
  (void)own, (void)device;
  *value = attribute == 1 ? number("STANDIN_STATIC", 0) : 0;
  return 0;
}

int cuKernelSetAttribute(int attribute, int value, kernel *own, int device) {
  ENTER("cuKernelSetAttribute");
  UNSAFE();
  if (value + number("STANDIN_STATIC", 0) > number("STANDIN_SHARED", 101376)) return 1;
  own->dynamic[device] = value;
  say("set %s attribute %d to %d on cuda:%d\n", own->name, attribute, value, device);
  return 0;
}

static void say_parameter(FILE *line, char type, const void *value) {
  switch (type) {
    case 'p': fprintf(line, " %#llx", *(unsigned long long *)value); break;
    case 'b': fprintf(line, " %d", *(int8_t *)value); break;
    case 'i': fprintf(line, " %d", *(int32_t *)value); break;
    case 'l': fprintf(line, " %lld", *(long long *)value); break;
    case 'f': fprintf(line, " %g", *(float *)value); break;
    case 'd': fprintf(line, " %g", *(double *)value); break;
    case 't': {
      const unsigned long long *map = value;
      fprintf(line, " map %llu%s", map[0], map[1] & WRONG_IN_SMALL_MAPS ? " as made" : "");
      break;
    }
    case 'w':
      fprintf(line, " %llu/%d/%d/%lld", *(unsigned long long *)value, ((int32_t *)value)[2], ((int32_t *)value)[3],
              ((long long *)value)[2]);
      break;
    default: fprintf(line, " %#x", *(uint16_t *)value); break;
  }
}

/* The types of a function's parameters, up to a blank or the end; NULL: nobody has asked for them. */
static const char *types_of(const char *function) {
  const char *types = getenv("STANDIN_PARAMETERS");
  const size_t length = strlen(function);
  if (!types || !strchr(types, ':')) return types;
  for (; types; types = strchr(types, ' '), types += types != NULL)
    if (!strncmp(types, function, length) && types[length] == ':') return types + length + 1;
  return NULL;
}

/* Attribute 4 is the size of a cluster, along three axes. */
static void say_attribute(FILE *line, unsigned int id, const unsigned int *value) {
  fprintf(line, " attribute %u: %u", id, value[0]);
  if (id == 4 && (value[1] != 1 || value[2] != 1)) fprintf(line, " %u %u", value[1], value[2]);
}

/* Threads launch at the same time: the line is written as a whole. */
static void say_launch(const launch_config *config, const kernel *own, void **parameters) {
  if (!getenv("STANDIN_LOG")) return; /* benchmarks time launches */
  const unsigned int *g = config->grid, *b = config->block;
  const char *types = types_of(own->name);
  char text[4096];
  FILE *line = fmemopen(text, sizeof text, "w");
  fprintf(line, "launch %s %s grid %u %u %u block %u %u %u ", own->name, own->arch, g[0], g[1], g[2], b[0], b[1], b[2]);
  fprintf(line, "shared %u stream %#llx on cuda:%d", config->shared, (unsigned long long)(uintptr_t)config->stream,
          *current[depth - 1]);
  if (is_foreign(context_of(config->stream))) fprintf(line, " in a context of its own");
  for (unsigned int i = 0; i < config->num_attributes; ++i)
    say_attribute(line, config->attributes[i].id, config->attributes[i].value);
  for (int i = 0; types && types[i] && types[i] != ' '; ++i) {
    if (!i) fprintf(line, " parameters");
    say_parameter(line, types[i], parameters[i]);
  }
  if (own->sizes[0]) fprintf(line, " bytes");
  for (int i = 0; own->sizes[i]; ++i) {
    fprintf(line, " ");
    for (int j = 0; j < own->sizes[i]; ++j) fprintf(line, "%02x", ((const unsigned char *)parameters[i])[j]);
  }
  fclose(line);
  say("%s\n", text);
}

int cuLaunchKernelEx(const launch_config *config, kernel *own, void **parameters, void **extra) {
  (void)extra;
  if (!depth) return 201;
  ENTER("cuLaunchKernelEx");
  STREAM(config->stream);
  unsigned int fixed = number("STANDIN_STATIC", 0), device = *current[depth - 1];
  if (config->shared > own->dynamic[device] && config->shared + fixed > 48 * 1024) return 1;
  say_launch(config, own, parameters);
  const unsigned int *grid = config->grid, *block = config->block;
  passed_ns += 5000 + 10LL * grid[0] * grid[1] * grid[2] + 20LL * block[0] * block[1] * block[2];
  return 0;
}

/* ---- tensor maps ---- */

static void say_numbers(FILE *line, const char *name, const void *numbers, unsigned int count, size_t bytes) {
  fprintf(line, " %s", name);
  for (unsigned int i = 0; i < count; ++i) {
    unsigned long long value = 0;
    memcpy(&value, (const char *)numbers + i * bytes, bytes);
    fprintf(line, "%s%llu", i ? "," : " ", value);
  }
}

/* A map has 128 bytes; here all words are the number of the call that made it, but for a bit. */
int cuTensorMapEncodeTiled(uint64_t *map, int dtype, uint32_t rank, void *data, const uint64_t *sizes,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                           int swizzle, int promotion, int fill) {
  static _Atomic uint64_t made;
  ENTER("cuTensorMapEncodeTiled");
  if (!depth) return 201;
  if ((uintptr_t)map % 64 || (uintptr_t)data % 16 || !rank || rank > 5) return 1;
  uint64_t number = ++made;
  for (int i = 0; i < 16; ++i) map[i] = number;
  map[1] |= WRONG_IN_SMALL_MAPS;
  char text[1024];
  FILE *line = fmemopen(text, sizeof text, "w");
  fprintf(line, "encode map %llu of dtype %d at %#llx", (unsigned long long)number, dtype,
          (unsigned long long)(uintptr_t)data);
  say_numbers(line, "sizes", sizes, rank, 8), say_numbers(line, "strides", strides, rank - 1, 8);
  say_numbers(line, "box", box, rank, 4), say_numbers(line, "steps", steps, rank, 4);
  fprintf(line, " modes %d %d %d %d", interleave, swizzle, promotion, fill);
  fclose(line);
  say("%s\n", text);
  return 0;
}

/* ---- memory ---- */

/* Memory that is allocated has its size before it. */
static _Atomic size_t allocated;

static int take(unsigned long long *pointer, size_t bytes) {
  const char *limit = getenv("STANDIN_MEMORY");
  if (limit && *limit && allocated + bytes > strtoull(limit, NULL, 0)) return 2;
  size_t *block = malloc(64 + bytes);
  *block = bytes;
  allocated += bytes;
  *pointer = (unsigned long long)(uintptr_t)block + 64;
  return 0;
}

static void give_back(unsigned long long pointer) {
  size_t *block = (size_t *)(uintptr_t)(pointer - 64);
  allocated -= *block;
  free(block);
}

/* A pool begins with the number of its device. Those that are not a device's default pool have a number. */
typedef struct {
  int device, number;
} pool;

static pool pools[64];

static int allocate_from(const pool *from, unsigned long long *pointer, size_t bytes, void *stream) {
  if (!depth) return 201;
  STREAM(stream);
  int status = take(pointer, bytes);
  if (status) return status;
  unsigned long long where = (unsigned long long)(uintptr_t)stream;
  if (from->number)
    say("allocate %zu in stream %#llx from pool %d of cuda:%d\n", bytes, where, from->number, from->device);
  else
    say("allocate %zu in stream %#llx\n", bytes, where);
  return 0;
}

int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes) {
  if (!depth) return 201;
  ENTER("cuMemAlloc_v2");
  UNSAFE();
  int status = take(pointer, bytes);
  if (!status) say("allocate %zu\n", bytes);
  return status;
}

int cuMemFree_v2(unsigned long long pointer) {
  if (!depth) return 201;
  UNSAFE();
  give_back(pointer);
  say("free\n");
  return 0;
}

int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t bytes) {
  if (!depth) return 201;
  ENTER("cuMemcpyHtoD_v2");
  memcpy((void *)(uintptr_t)to, from, bytes);
  return 0;
}

int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes) {
  if (!depth) return 201;
  ENTER("cuMemcpyDtoH_v2");
  memcpy(to, (void *)(uintptr_t)from, bytes);
  return 0;
}

int cuMemsetD8Async(unsigned long long pointer, unsigned char value, size_t bytes, void *stream) {
  (void)pointer;
  if (!depth) return 201;
  STREAM(stream);
  passed_ns += 1000;
  say("fill %zu bytes with %d in stream %#llx\n", bytes, value, (unsigned long long)(uintptr_t)stream);
  return 0;
}

int cuMemAllocAsync(unsigned long long *pointer, size_t bytes, void *stream) {
  ENTER("cuMemAllocAsync");
  return allocate_from(&(pool){0, 0}, pointer, bytes, stream);
}

int cuMemAllocFromPoolAsync(unsigned long long *pointer, size_t bytes, pool *from, void *stream) {
  ENTER("cuMemAllocFromPoolAsync");
  return allocate_from(from, pointer, bytes, stream);
}

int cuMemFreeAsync(unsigned long long pointer, void *stream) {
  if (!depth) return 201;
  STREAM(stream);
  give_back(pointer);
  say("free in stream %#llx\n", (unsigned long long)(uintptr_t)stream);
  return 0;
}

int cuMemPoolCreate(pool **made, const int *properties) {
  static _Atomic int count;
  ENTER("cuMemPoolCreate");
  UNSAFE();
  if (properties[0] != 1 || properties[2] != 1) return 1;
  *made = calloc(1, sizeof **made);
  **made = (pool){properties[3], ++count};
  say("pool %d of cuda:%d\n", (*made)->number, (*made)->device);
  return 0;
}

int cuMemPoolDestroy(pool *own) {
  say("destroy pool %d\n", own->number);
  return 0;
}

int cuMemPoolSetAttribute(pool *own, int attribute, const void *value) {
  ENTER("cuMemPoolSetAttribute");
  if (own->number && attribute == 4) say("pool %d keeps %#llx\n", own->number, *(const unsigned long long *)value);
  return 0;
}

int cuMemPoolGetAttribute(pool *own, int attribute, void *value) {
  (void)own, (void)attribute;
  *(uint64_t *)value = 0;
  return 0;
}

int cuDeviceGetMemPool(pool **found, int device) {
  pools[device].device = device;
  *found = &pools[device];
  return 0;
}

int cuDeviceGetDefaultMemPool(pool **found, int device) { return cuDeviceGetMemPool(found, device); }

/* ---- streams ---- */

int cuStreamIsCapturing(void *stream, int *status) {
  if (!depth) return 201;
  ENTER("cuStreamIsCapturing");
  STREAM(stream);
  *status = stream && (uintptr_t)stream == handle("STANDIN_CAPTURE");
  return 0;
}

int cuStreamGetCtx(void *stream, int **context) {
  if (!depth) return 201;
  STREAM(stream);
  *context = context_of(stream);
  return 0;
}

/* ---- what cuda.bindings and cuda.core ask for besides ---- */

/* Finds a function by its plain name, as drivers since CUDA 12 do: of several versions the newest. */
int cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status) {
  char name[256];
  Dl_info self;
  (void)version, (void)flags;
  if (!dladdr((void *)&cuGetProcAddress_v2, &self)) return 999;
  void *library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  snprintf(name, sizeof name, "%s_v2", symbol);
  *function = dlsym(library, name);
  if (!*function) *function = dlsym(library, symbol);
  dlclose(library);
  if (status) *status = *function ? 0 : 1;
  return *function ? 0 : 500;
}

int cuCtxSetCurrent(int *context) {
  if (!depth) depth = 1;
  current[depth - 1] = context;
  if (!context) --depth;
  return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
  (void)device;
  return 0;
}

#ifndef STANDIN_NAMELESS /* a driver that lacks what the launcher can do without */
int cuDeviceGetName(char *name, int length, int device) {
  const char *text = getenv("STANDIN_NAME");
  ENTER("cuDeviceGetName");
  if (text && *text) snprintf(name, (size_t)length, "%s", text);
  else snprintf(name, (size_t)length, "stand-in %d", device);
  return 0;
}
#endif

int cuLibraryUnload(void *library) {
  (void)library;
  return 0;
}

/* Memory belongs to the first device, as the addresses of the tests are made up. */
int cuPointerGetAttribute(void *value, int attribute, unsigned long long pointer) {
  if (attribute == 3) return *(unsigned long long *)value = pointer, 0;
  if (attribute != 9) return 1;
  *(int *)value = 0;
  return 0;
}

static _Atomic int events;

/* How many events there are, for tests. */
int standin_events(void) { return events; }

int cuEventCreate(void **event, unsigned int flags) {
  (void)flags;
  *event = calloc(1, sizeof(long long));
  ++events;
  return 0;
}

int cuEventDestroy_v2(void *event) {
  free(event);
  --events;
  return 0;
}

int cuEventRecord(void *event, void *stream) {
  ENTER("cuEventRecord");
  STREAM(stream);
  *(long long *)event = passed_ns;
  say("record in stream %#llx\n", (unsigned long long)(uintptr_t)stream);
  return 0;
}

int cuEventElapsedTime(float *ms, void *start, void *end) {
  ENTER("cuEventElapsedTime");
  *ms = (float)((double)(*(long long *)end - *(long long *)start) / 1e6);
  return 0;
}

int cuStreamWaitEvent(void *stream, void *event, unsigned int flags) {
  (void)event, (void)flags;
  ENTER("cuStreamWaitEvent");
  STREAM(stream);
  say("wait in stream %#llx\n", (unsigned long long)(uintptr_t)stream);
  return 0;
}

int cuStreamSynchronize(void *stream) {
  if (!depth) return 201;
  ENTER("cuStreamSynchronize");
  STREAM(stream);
  say("synchronize stream %#llx\n", (unsigned long long)(uintptr_t)stream);
  return 0;
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, kernel *own, int threads, size_t shared) {
  ENTER("cuOccupancyMaxActiveBlocksPerMultiprocessor");
  int resident = number("STANDIN_RESIDENT", -1);
  if (threads > 1024 || !depth) return threads > 1024 ? 1 : 201;
  *blocks = resident < 0 ? 1 : resident / threads;
  if (resident >= 0) say("occupancy %s %d threads %zu bytes\n", own->name, threads, shared);
  return 0;
}

/* ---- modules, which Triton's own launcher loads ---- */

int cuModuleLoadData(image **module, const void *code) { return cuLibraryLoadData(module, code, 0, 0, 0, 0, 0, 0); }

int cuModuleGetFunction(kernel **result, image *module, const char *name) {
  return cuLibraryGetKernel(result, module, name);
}

int cuModuleUnload(void *module) { return (void)module, 0; }

int cuFuncGetAttribute(int *value, int attribute, kernel *own) {
  if (attribute == 0) return *value = 1024, 0; /* the most threads of a block */
  return cuKernelGetAttribute(value, attribute, own, 0);
}

int cuFuncSetAttribute(kernel *own, int attribute, int value) {
  if (attribute == 17) return 1; /* more shared memory than a GPU of today has */
  return cuKernelSetAttribute(attribute, value, own, 0);
}

int cuFuncSetCacheConfig(kernel *own, int config) { return (void)own, (void)config, 0; }

int cuCtxSetLimit(int limit, size_t value) { return (void)limit, (void)value, 0; }

int cuCtxGetLimit(size_t *value, int limit) { return (void)limit, *value = 0, 0; }

/* ---- what cuTile's own launcher asks for besides ---- */

int cuLaunchKernel(kernel *own, unsigned int x, unsigned int y, unsigned int z, unsigned int block_x,
                   unsigned int block_y, unsigned int block_z, unsigned int shared, void *stream, void **parameters,
                   void **extra) {
  const launch_config config = {{x, y, z}, {block_x, block_y, block_z}, shared, stream, NULL, 0};
  return cuLaunchKernelEx(&config, own, parameters, extra);
}

/* One context for each device, so its number is that of the device. */
int cuCtxGetId(int *context, unsigned long long *id) {
  if (!context && !depth) return 201;
  *id = (unsigned long long)*(context ? context : current[depth - 1]) + 1;
  return 0;
}

int cuStreamGetId(void *stream, unsigned long long *id) { return *id = (uintptr_t)stream, 0; }

/* It wants to find these, and a launch needs none of them. */
#define UNUSED(name) \
  int name(void) { return 801; }
UNUSED(cuEventQuery)
UNUSED(cuMemAllocHost)
UNUSED(cuMemFreeHost)
UNUSED(cuMemGetAddressRange)
UNUSED(cuIpcGetMemHandle)
UNUSED(cuIpcOpenMemHandle)
UNUSED(cuIpcCloseMemHandle)
UNUSED(cuMemcpyHtoDAsync)
UNUSED(cuStreamCreate)
UNUSED(cuStreamDestroy)
UNUSED(cuGraphCreate)
UNUSED(cuGraphDestroy)
UNUSED(cuGraphAddEventRecordNode)
UNUSED(cuGraphAddKernelNode)
UNUSED(cuGraphAddMemsetNode)
UNUSED(cuGraphAddMemAllocNode)
UNUSED(cuGraphAddMemFreeNode)
UNUSED(cuGraphInstantiateWithFlags)
UNUSED(cuGraphExecDestroy)
UNUSED(cuGraphLaunch)
