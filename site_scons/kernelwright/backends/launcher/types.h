/* The tables that a wrapper consists of. They are constant data; they point to what is found out at run time. */
#ifndef KW_TYPES_H
#define KW_TYPES_H

#define KW_CALL_ARGUMENTS 120 /* the most that backends/wrapper.py allows */

/* Packed function as TVM generates it: arguments and result are TVMFFIAny. */
typedef int32_t (*kw_entry)(void *self, void *arguments, int32_t count, void *result);

typedef enum { KW_TENSOR, KW_INT, KW_FLOAT, KW_BOOL, KW_POINTER } kw_kind;

/* A dimension that may have any size. One that has to be a multiple of a number is that number, negative. */
#define KW_ANY (-1)

/* In the place of the dimensions of a tensor: there is none, and callers pass None. No tensor has so many. */
#define KW_NO_TENSOR (-1)

/* The data of what stands for None where host code insists on a tensor. A launch passes a null pointer for it. No array
 * begins there: it is no address that a CPU has, and aligned to anything. */
#define KW_NULL ((void *)(UINT64_C(1) << 63))

/* One argument as one lowering of the kernel expects it. */
typedef struct kw_argument {
  const char *name;
  const char *text; /* for messages, such as "float16[m, 4096]" */
  kw_kind kind;
  bool output;
  bool strided; /* its strides are declared; otherwise it has to be compact */
  bool unique;  /* of one with strides: it is written, so no two elements may have one place */
  bool nullable; /* callers may pass None in place of a tensor */
  const TVMFFIAny *otherwise; /* what a number is in calls that leave it out; or null */
  DLDataType dtype;
  int32_t ndim;
  uint32_t alignment; /* of a tensor's data, in bytes */
  const int64_t *shape;
} kw_argument;

struct kw_call;

/* A dimension of an argument. */
typedef struct kw_place {
  int32_t argument;
  int32_t axis;
} kw_place;

/* Where a call has what a requirement names: the size of a dimension; the argument itself, a number, if the axis is -1;
 * or a symbol that only strides of arrays tell, which is a multiple of `step`. */
typedef struct kw_told {
  const char *name;
  int32_t argument;
  int32_t axis;
  const kw_place *strides;
  int32_t num_strides;
  int64_t step;
  int64_t times, plus; /* a size is so many times the symbol, and so much more */
} kw_told;

/* A size that tells a symbol by more than its name, such as 2 * d + 1: less `plus` it is a multiple of `step`. The last
 * one of several has the step 0. */
typedef struct kw_line {
  int32_t argument;
  int32_t axis;
  int64_t step, plus;
  const char *text;
} kw_line;

/* What a definition requires of a call: a comparison, such as "n <= 4096", and the names in it. */
typedef struct kw_requirement {
  const char *text;
  const kw_told *names;
  int32_t num_names;
} kw_requirement;

/* A size or stride that a device function gets in a type of 32 bits, and what fits that. */
typedef struct kw_limited {
  kw_told told;
  const char *dtype;
  int64_t low, high;
} kw_limited;

/* What a lowering expects of all arguments. */
typedef struct kw_signature {
  const kw_argument *arguments;
  bool int32_sizes; /* the kernel computes with int32 sizes, so tensors have at most KW_INT32_LIMIT elements */
  /* Computes the dimensions of all outputs, one after the other, from the inputs of a call that matches. */
  void (*output_shapes)(const struct kw_call *call, int64_t *dims);
  /* Computes the dimensions of all arguments that may be None, one after the other; null: there are none. */
  void (*nullable_shapes)(const struct kw_call *call, int64_t *dims);
  /* Computes the declared strides of an argument. What only strides tell is as the caller has it. The result is whether
   * that is a multiple of what it has to be. */
  bool (*strides)(const struct kw_call *call, int32_t argument, int64_t *strides);
  /* Whether the sizes of a call that matches fit each other; null: host code sees to it, since no other variant could
   * have been meant. */
  bool (*fits)(const struct kw_call *call);
  const kw_line *lines; /* or null */
  const kw_limited *limited;
  int32_t num_limited;
  const kw_requirement *requirements;
  /* The number of the first requirement that a call of matching ranks does not fulfil, or -1; null: nothing is required. */
  int32_t (*requires)(const struct kw_call *call);
} kw_signature;

/* ---- calls with a grid, of functions that a program was recorded with ---- */

#define KW_MAX_TENSOR_MAP_RANK 5

/* Behind the tensor of a descriptor are its parts: sizes, strides, whether NaN fills what is out of bounds, and whether
 * copies round to TF32. */
typedef enum {
  KW_PASSED_TENSOR,
  KW_PASSED_INT,
  KW_PASSED_FLOAT,
  KW_PASSED_BOOL,
  KW_PASSED_DESCRIPTOR,
  KW_PASSED_PART,
  KW_FIXED
} kw_passed;

/* What a number or the address of data is: anything, a multiple of KW_DIVISOR, or no multiple. */
typedef enum { KW_ANY_NUMBER, KW_MULTIPLE, KW_NO_MULTIPLE } kw_divisible;

#define KW_DIVISOR 16

/* One parameter of a function, as the code of a variant has it. Of a constant there is its value: the type of the value
 * in TVM-FFI, and the number or text. */
typedef struct kw_parameter_form {
  const char *name;
  const char *text; /* for messages, such as "*float16, a multiple of 16" */
  kw_passed passed;
  bool declared; /* a number is converted to the dtype; otherwise it has to be of the type that the dtype follows from.
                  * A constant is one in the function, too; otherwise it is one because of its value, 1 or None */
  kw_divisible divisible;
  DLDataType dtype;
  int32_t type;
  int64_t integer; /* of a tensor descriptor its dimensions */
  double number;
  const char *string;
} kw_parameter_form;

/* The calls that a variant is for: the forms of all parameters, and behind them of the options of the launch. */
typedef struct kw_form {
  const kw_parameter_form *parameters;
  int32_t num_parameters; /* with the options */
  int32_t num_options;    /* of which None says that a call does not give them */
  bool general; /* for calls that no variant before it is for */
} kw_form;

/* What code that copies by a tensor descriptor needs of its map. */
typedef struct kw_map_form {
  const char *dtype;
  uint32_t box[KW_MAX_TENSOR_MAP_RANK];
  int swizzle;
} kw_map_form;

/* What the launch of such a function has besides its grid. */
typedef struct kw_block {
  uint32_t threads;
  uint32_t cluster; /* blocks of a cluster, along x */
  uint32_t shared;  /* bytes of dynamic shared memory */
  uint64_t scratch; /* bytes of global memory for each block */
  const kw_map_form *maps; /* how the code copies by each tensor descriptor; NULL: by pointers */
  int32_t num_maps;
} kw_block;

/* One CPU build of a variant. */
typedef struct kw_cpu_unit {
  const char *arch;
  int level; /* its rank in its family: 1 for x86-64 up to 4 for x86-64-v4 */
  kw_entry entry;
} kw_cpu_unit;

/* Machine code or PTX of all device functions of a variant, for one arch. */
typedef struct kw_image {
  const char *arch;
  const void *data; /* null: it is in a file */
  int capability;   /* 10 * major + minor */
  bool ptx;
  char suffix;      /* 'a': this capability only, 'f': its family, or 0 */
  int driver;       /* the CUDA version that a driver must be for: 1000 * major + 10 * minor; 0: it is not known */
  const char *file; /* if it is in a file: its path relative to the build folder of the package */
  const char *symbol; /* what its only function is called, if that depends on the arch; or null: by the function's name */
  /* Of a variant with several sources, the one that it is made from: device code, and host code. Otherwise null. */
  const struct kw_module *source;
  kw_entry entry;
} kw_image;

/* Launch arguments: where the integers that follow a device function's own arguments go. */
enum { KW_GRID = 0, KW_BLOCK = 3, KW_CLUSTER = 6, KW_PREFERRED_CLUSTER = 9, KW_DIMS = 12, KW_SHARED = 12, KW_SLOTS };

/* A device function. */
typedef struct kw_member {
  uint32_t offset, bytes;
} kw_member;

/* A parameter that is put together of several values, from the first one on. */
typedef struct kw_structure {
  uint32_t first, count;
  uint32_t bytes;
  const kw_member *members;
} kw_structure;

typedef struct kw_function {
  const char *name;
  const char *alias; /* what the host code calls it; null: by its name */
  const struct kw_module *module;
  const char *parameters; /* one letter each: p pointer, i integer or bool, d float64, f float32, h float16,
                          * t tensor map */
  const kw_structure *structures;
  uint8_t num_structures;
  const uint8_t *slots;   /* one of KW_GRID + 0..2, ..., KW_SHARED for each launch argument */
  uint8_t num_parameters;
  uint8_t num_slots;
  bool clusters;
  bool cooperative;
  bool dependent; /* programmatic dependent launch */
  bool spread;    /* blocks of a cluster go to different multiprocessors, as Triton wants it */
} kw_function;

#define KW_MAX_DEVICES 64

/* The device code of one variant, or of one of its sources, and where there is room for what has been loaded of it. Of
 * a variant with several sources, the module of the variant has the images of all, and nothing else is in it. */
typedef struct kw_module {
  const char *variant;
  const kw_image *images;
  const kw_function *functions;
  struct kw_loaded *_Atomic *loaded; /* for each of KW_MAX_DEVICES, published once complete */
  void **libraries;                  /* CUlibrary of each image, guarded by kw_cuda_lock */
  int num_images;
  const kw_block *block; /* of a function that is called with a grid; otherwise null */
  int num_functions; /* 0: host code of the author's launches them, and the images are not loaded here */
} kw_module;

/* One variant; a target that it was not built for has a null signature. */
typedef struct kw_variant {
  const char *slug;
  const kw_signature *cpu_signature;
  const kw_cpu_unit *cpu_units; /* highest level first */
  int num_cpu_units;
  const kw_signature *cuda_signature;
  kw_entry cuda_entry; /* null: that of the image that suits the device best */
  kw_entry own; /* host code of the author's, which does the work when cuda_entry has checked the arguments; or null */
  const kw_module *module;
  const int32_t *rivals; /* numbers of variants behind it that differ in meaning and may fit the same arrays, then -1 */
  const kw_form *form; /* of a function that is called with a grid; otherwise null */
  uint32_t tabled; /* bits by DLDeviceType: there it only runs where a table says so, though it is declared elsewhere */
} kw_variant;

/* ---- tuning tables, which tables.h looks up ---- */

/* What a device is called, and how many multiprocessors or processors it has. What nobody could say is empty, or 0. */
typedef struct kw_identity {
  int count;
  char name[256];
} kw_identity;

/* Where a call has a size: the number of an argument, and of a dimension; -1 if the argument itself is the size. */
typedef struct kw_size {
  int32_t argument;
  int32_t axis;
  int64_t times, plus; /* as in a kw_told */
} kw_size;

/* The variant for sizes up to that; the last of several ranges has no end, which is INT64_MAX. */
typedef struct kw_range {
  int64_t upto;
  int32_t variant;
} kw_range;

/* What takes the place of one declared variant: by the product of some sizes. Without ranges nothing does. */
typedef struct kw_rules {
  const char *by; /* for messages, such as "m * n" */
  const kw_size *sizes;
  const kw_range *ranges;
  int32_t num_sizes;
  int32_t num_ranges;
} kw_rules;

/* The table of one device. */
typedef struct kw_table {
  DLDeviceType device;
  const char *arch; /* of the code that was measured */
  const char *name; /* empty: what the definition prefers, on devices without a table of their own */
  int count;
  const kw_rules *rules; /* one for each declared variant */
} kw_table;

/* Which table counts is found once for each declared variant: on the CPU, and behind that on each GPU. */
#define KW_TABLE_PLACES (1 + KW_MAX_DEVICES)

typedef struct kw_tuning {
  const kw_table *tables;
  int32_t num_tables;
  const kw_table *_Atomic *found; /* by place and declared variant; null: not looked for yet */
} kw_tuning;

/* How the leading dimensions of an argument fold: into a size of that name, in front of so many dimensions. */
typedef struct kw_fold {
  const char *name; /* null: it does not fold */
  int32_t trailing;
} kw_fold;

typedef struct kw_kernel {
  const char *name;    /* every error message starts with it */
  const char *outline; /* "a, b, [c]": the arguments, outputs in brackets */
  const char *built;   /* "llvm (x86-64-v3), cuda (sm_80, sm_90a)" */
  const kw_argument *arguments; /* those of some lowering: names, kinds and outputs are the same in all of them */
  int32_t num_arguments;
  int32_t num_outputs;
  int32_t num_optional; /* the last inputs that a call may leave out, for None or a default */
  const int32_t *returned; /* the numbers of the outputs among the arguments, as new ones are returned; null: in order */
  int32_t num_dims; /* of all outputs together */
  int32_t toolkit;  /* the CUDA version of the compiler that made the device code: 1000 * major + 10 * minor; 0: unknown */
  int32_t driver;   /* the CUDA version that a driver must be for to read compressed images; 0: any will do */
  const kw_variant *variants;
  int32_t num_variants;
  int32_t num_declared; /* those behind them are not compared with a call, and run where a table says so; 0: all are */
  const kw_tuning *tuning; /* null: there are no tables */
  _Atomic(TVMFFIObjectHandle) *provider; /* room for what finds images that are in files; null: the library has them */
  _Atomic(int32_t) *last; /* of a kernel that is called with a grid: the number of the variant that ran last */
  bool by_strides; /* some of several variants declare strides, so a variant is chosen by strides, too */
  const char *gaps; /* of a partial package: what failed and is not there; otherwise null */
  const kw_fold *folds; /* of each argument; null: none folds */
  int32_t num_folded;   /* dimensions of all that fold, once they have */
} kw_kernel;

/* Numbers that the views of tensors that fold take in a call. */
#define KW_ROOM(kernel) (2 * (kernel)->num_folded + 1)

/* A call in progress: the caller's arguments, laid out by argument position. An output that the caller left out has
 * null in both arrays, and None no tensor. */
typedef struct kw_call {
  const kw_kernel *kernel;
  const TVMFFIAny *passed;
  const struct kw_before *before; /* what the thread was at */
  bool complete;  /* outputs were passed */
  bool adapted; /* the host code is shown some tensor, passed or new, in another way: it has no elements, or an offset,
                 * or declared strides that do not matter for a size of 1, or is None; or a number; known once it has
                 * been checked */
  DLDevice device;
  const TVMFFIAny *values[KW_CALL_ARGUMENTS];
  TVMFFIAny numbers[KW_CALL_ARGUMENTS]; /* in place of numbers that host code cannot take as they are; see numbers.h */
  const DLTensor *tensors[KW_CALL_ARGUMENTS];
  DLTensor views[KW_CALL_ARGUMENTS]; /* of tensors that fold, which are their tensors from then on */
  TVMFFIAny completed[KW_CALL_ARGUMENTS]; /* what was passed, with None for each input that was left out */
} kw_call;

/* The tensor in a value, or null: either an FFI tensor object, or a plain DLTensor that lives as long as the call. */
KW_FUNCTION const DLTensor *kw_tensor_of(const TVMFFIAny *value) {
  if (value->type_index == kTVMFFITensor) return (const DLTensor *)((const char *)value->v_ptr + sizeof(TVMFFIObject));
  return value->type_index == kTVMFFIDLTensorPtr ? value->v_ptr : NULL;
}

/* The data of an image that is in the objects of sources with host code of their own: CUDA's runtime in them loads it. */
#define KW_IN_OBJECTS ""

/* A stride of a tensor in elements. */
static inline int64_t kw_stride(const DLTensor *tensor, int32_t axis) {
  int64_t stride = 1;
  if (tensor->strides) return tensor->strides[axis];
  for (int32_t i = axis + 1; i < tensor->ndim; ++i) stride = (int64_t)((uint64_t)stride * (uint64_t)tensor->shape[i]);
  return stride;
}

/* What the arrays of a call tell of such a symbol. The first one counts that has several elements along the dimension.
 * Over a single one nothing strides: if all are so, the symbol is what it is in a compact array, as a multiple of `step`. */
static inline int64_t kw_told_stride(const kw_call *call, const kw_place *places, int32_t count, int64_t step) {
  int64_t compact = 0;
  for (const kw_place *place = places + count; place-- > places;) {
    const DLTensor *tensor = call->tensors[place->argument];
    if (!tensor || place->axis >= tensor->ndim) continue;
    DLTensor plain = *tensor;
    plain.strides = NULL;
    compact = kw_stride(&plain, place->axis);
  }
  for (const kw_place *place = places; place < places + count; ++place) {
    const DLTensor *tensor = call->tensors[place->argument];
    bool counts = tensor && place->axis < tensor->ndim && tensor->shape[place->axis] > 1;
    for (int32_t i = 0; counts && i < tensor->ndim; ++i) counts = tensor->shape[i] != 0;
    if (counts) return kw_stride(tensor, place->axis);
  }
  return compact - compact % step;
}

/* The symbol of which a size is `times`, and `plus`. */
static inline int64_t kw_on_line(int64_t size, int64_t times, int64_t plus) {
  int64_t rest = (int64_t)((uint64_t)size - (uint64_t)plus);
  return __builtin_expect(times == 1, 1) ? rest : rest / times; /* most sizes are symbols, and a division is slow */
}

/* What a call has for a name: a size, a stride or an integer; that is no size if int64 does not have it. */
static inline int64_t kw_told_value(const kw_call *call, kw_told told) {
  const TVMFFIAny *value = call->values[told.argument];
  if (told.num_strides) return kw_told_stride(call, told.strides, told.num_strides, told.step);
  if (told.axis >= 0) return kw_on_line(call->tensors[told.argument]->shape[told.axis], told.times, told.plus);
  return value->type_index > kTVMFFIBool || value->zero_padding ? INT64_MIN : value->v_int64;
}

KW_FUNCTION bool kw_is_empty(const DLTensor *tensor) {
  for (int32_t i = 0; i < tensor->ndim; ++i)
    if (!tensor->shape[i]) return true;
  return false;
}

/* Names an image of device code, which images.s embeds. */
#define KW_IMAGE(symbol) extern const unsigned char symbol[] KW_HIDDEN

/* Around generated host code, whose style is not ours to warn about. */
#define KW_HOST_BEGIN                                                                                            \
  _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wunused-variable\"")                         \
      _Pragma("GCC diagnostic ignored \"-Wunused-parameter\"") _Pragma("GCC diagnostic ignored \"-Wtype-limits\"") \
          _Pragma("GCC diagnostic ignored \"-Wsign-compare\"") _Pragma("GCC diagnostic ignored \"-Wparentheses\"")
/* What host code declares and calls for the occupancy of a launch of its module. */
#define KW_OCCUPANCY(function, module)                                                                            \
  KW_FUNCTION int64_t function(int64_t index, int64_t x, int64_t y, int64_t z, int64_t shared) {                     \
    return kw_occupancy_of(module, (const int64_t[]){index, x, y, z, shared});                                    \
  }
#define KW_HOST_END _Pragma("GCC diagnostic pop")

#endif
