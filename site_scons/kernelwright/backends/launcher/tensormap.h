/* Tensor maps, which describe an array to the copy engine of a GPU (TMA). Host code has one made for each launch, and
 * passes it to a device function by value.
 *
 * Host code in C has plain memory for them (frontends/tir/tensor_maps.py), of which the aligned part is used. */
#ifndef KW_TENSORMAP_H
#define KW_TENSORMAP_H

/* CUtensorMap (cuda.h). */
#define KW_TENSOR_MAP_BYTES 128
#define KW_TENSOR_MAP_ALIGNMENT 64

/* The memory that host code has for a map, in values of 8 bytes: enough wherever it begins. */
#define KW_TENSOR_MAP_WORDS ((KW_TENSOR_MAP_BYTES + KW_TENSOR_MAP_ALIGNMENT) / 8)

#define KW_PROMOTION_128 2

/* The aligned part of the memory that host code has for a tensor map. */
KW_FUNCTION void *kw_tensor_map_in(void *memory) {
  return (void *)(((uintptr_t)memory + KW_TENSOR_MAP_ALIGNMENT - 1) & ~(uintptr_t)(KW_TENSOR_MAP_ALIGNMENT - 1));
}

static const char kw_encode_handle __attribute__((unused)) = 0;

/* CUtensorMapDataType of a dtype; -1: there is none. Copies do not look at integers, so their sign does not matter, and
 * other elements of a byte are integers to them. */
KW_FUNCTION int kw_tensor_map_dtype(const char *dtype) {
  static const struct {
    const char *name;
    int value;
  } known[] = {{"float16", 6}, {"bfloat16", 9}, {"float32", 7}, {"float64", 8}, {"uint8", 0},  {"int8", 0},
               {"uint16", 1},  {"int16", 1},    {"uint32", 2},  {"int32", 3},   {"uint64", 4}, {"int64", 5},
               {"bool", 0},    {"float8_e4m3fn", 0}, {"float8_e5m2", 0}};
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
    if (!strcmp(known[i].name, dtype)) return known[i].value;
  return strcmp(dtype, "tfloat32") ? -1 : 11; /* no type of arrays: copies of float32 that round */
}

/* A tensor map as host code asks for it. */
typedef struct kw_tensor_map {
  void *to;
  const char *dtype;
  uint32_t rank;
  void *data;
  uint64_t sizes[KW_MAX_TENSOR_MAP_RANK], strides[KW_MAX_TENSOR_MAP_RANK];
  uint32_t box[KW_MAX_TENSOR_MAP_RANK], steps[KW_MAX_TENSOR_MAP_RANK];
  int interleave, swizzle, promotion, fill;
} kw_tensor_map;

/* Reads the arguments of runtime.cuTensorMapEncodeTiled (TVM 0.27): those of cuTensorMapEncodeTiled, with its arrays
 * one number after the other. */
KW_FUNCTION int kw_read_tensor_map(kw_tensor_map *map, const TVMFFIAny *a, int32_t count) {
  int64_t rank = count > 4 ? a[2].v_int64 : 0;
  if (rank < 1 || rank > KW_MAX_TENSOR_MAP_RANK || count != 7 + 4 * rank || a[1].type_index != kTVMFFIRawStr)
    return kw_raise("RuntimeError", "the host code makes a tensor map of %d dimensions with %d arguments", (int)rank,
                    count);
  map->to = kw_tensor_map_in(a[0].v_ptr), map->dtype = a[1].v_c_str, map->rank = (uint32_t)rank, map->data = a[3].v_ptr;
  a += 4;
  for (int i = 0; i < rank; ++i) map->sizes[i] = (uint64_t)a++->v_int64;
  for (int i = 1; i < rank; ++i) map->strides[i - 1] = (uint64_t)a++->v_int64;
  for (int i = 0; i < rank; ++i) map->box[i] = (uint32_t)a++->v_int64;
  for (int i = 0; i < rank; ++i) map->steps[i] = (uint32_t)a++->v_int64;
  map->interleave = (int)a[0].v_int64, map->swizzle = (int)a[1].v_int64;
  map->promotion = (int)a[2].v_int64, map->fill = (int)a[3].v_int64;
  return 0;
}

KW_COLD int kw_raise_tensor_map(CUresult status, const kw_tensor_map *map) {
  kw_text text = {0};
  for (uint32_t i = map->rank; i--;) kw_append(&text, "%s%" PRIu64, text.used ? ", " : "", map->sizes[i]);
  return kw_raise_cuda(status, "making a tensor map of %s[%s] at %p", map->dtype, text.data, map->data);
}

/* Without elements there is nothing to copy, and the driver refuses. No launch has blocks then, or none that copy. */
KW_FUNCTION bool kw_maps_nothing(const kw_tensor_map *map) {
  for (uint32_t i = 0; i < map->rank; ++i)
    if (!map->sizes[i]) return true;
  return false;
}

/* Drivers up to CUDA 13.1 set a bit in maps of less than 128 KiB that has to be 0, and so CUTLASS 4 and Triton 3.9 clear
 * it. */
#define KW_LAST_WRONG_MAPS 13010
#define KW_SMALL_MAP (128 << 10)

KW_FUNCTION void kw_correct_tensor_map(const kw_tensor_map *map, int dtype) {
  static const uint8_t bytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4}; /* by CUtensorMapDataType */
  int version = 0;
  uint64_t last = (map->sizes[0] - 1) * bytes[dtype];
  for (uint32_t i = 1; i < map->rank; ++i) last += (map->sizes[i] - 1) * map->strides[i - 1];
  kw_cuda.version(&version);
  if (version <= KW_LAST_WRONG_MAPS && last + 1 < KW_SMALL_MAP) ((uint64_t *)map->to)[1] &= ~(1ull << 21);
}

/* What strides have to be multiples of and below, in bytes (cuTensorMapEncodeTiled in cuda.h). */
#define KW_STRIDE_UNIT(interleave) ((interleave) == 2 ? 32 : 16)
#define KW_STRIDE_END ((uint64_t)1 << 40)

/* Over a single element nothing strides, so its stride need not be one that the driver takes; give it one. */
KW_FUNCTION void kw_allow_strides(kw_tensor_map *map) {
  const uint64_t unit = KW_STRIDE_UNIT(map->interleave);
  for (uint32_t i = 1; i < map->rank; ++i) {
    const uint64_t stride = map->strides[i - 1];
    if (map->sizes[i] == 1 && (!stride || stride % unit || stride >= KW_STRIDE_END)) map->strides[i - 1] = unit;
  }
}

KW_FUNCTION int kw_make_tensor_map(kw_tensor_map *map) {
  bool pushed;
  memset(map->to, 0, KW_TENSOR_MAP_BYTES);
  if (kw_maps_nothing(map)) return 0;
  int dtype = kw_tensor_map_dtype(map->dtype);
  if (dtype < 0) return kw_raise("RuntimeError", "there are no tensor maps of %s", map->dtype);
  const kw_device *device = kw_get_device(kw_now.device);
  if (!device || kw_enter(device, NULL, &pushed)) return -1;
  kw_allow_strides(map);
  CUresult status =
      kw_cuda.encode_tiled(map->to, dtype, map->rank, map->data, map->sizes, map->strides, map->box, map->steps,
                           map->interleave, map->swizzle, map->promotion, map->fill);
  kw_leave(pushed);
  if (status) return kw_raise_tensor_map(status, map);
  kw_correct_tensor_map(map, dtype);
  return 0;
}

KW_FUNCTION int kw_encode_tensor_map(const TVMFFIAny *arguments, int32_t count) {
  kw_tensor_map map = {0};
  return kw_read_tensor_map(&map, arguments, count) ? -1 : kw_make_tensor_map(&map);
}

#endif
