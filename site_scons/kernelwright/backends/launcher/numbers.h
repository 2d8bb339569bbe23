/* Converts numbers that TVM's host code cannot take as the caller has them: integers from 2**63 on, and floats of
 * dtypes that a call cannot hold. Python has the same in runtime/dtype.py. */
#ifndef KW_NUMBERS_H
#define KW_NUMBERS_H

#include <math.h>
#include <string.h>

/* ---- integers that int64 does not have ---- */

/* Since 0.1.15, TVM-FFI passes them as objects; an extension module, as an int with a mark in what is otherwise 0. */
#define KW_BIG_INT 78 /* kTVMFFIBigInt */
#define KW_UNSIGNED 1

/* Its words of 64 bits, the lowest first, in two's complement. An older TVM-FFI has neither that nor such objects. */
extern TVMFFIByteArray TVMFFIBigIntGetContentByteArray(const TVMFFIAny *value) __attribute__((weak));

KW_FUNCTION bool kw_is_large(const TVMFFIAny *value) {
  return value->type_index == KW_BIG_INT || (value->type_index == kTVMFFIInt && value->zero_padding == KW_UNSIGNED);
}

/* The words of a large integer, and their number. */
KW_COLD int32_t kw_words_of(const TVMFFIAny *value, uint64_t *words, int32_t most) {
  if (value->type_index != KW_BIG_INT) return words[0] = (uint64_t)value->v_int64, words[1] = 0, 2;
  TVMFFIByteArray bytes = TVMFFIBigIntGetContentByteArray(value);
  int32_t count = (int32_t)(bytes.size / sizeof *words);
  memcpy(words, bytes.data, (size_t)(count < most ? count : most) * sizeof *words);
  return count;
}

/* Whether a large integer is one that uint64 has. */
KW_COLD bool kw_is_uint64(const TVMFFIAny *value, uint64_t *number) {
  uint64_t words[2] = {0, 1};
  int32_t count = kw_words_of(value, words, 2);
  *number = words[0];
  return count == 2 && !words[1];
}

KW_COLD double kw_double_of_large(const TVMFFIAny *value) {
  uint64_t words[17]; /* beyond 2**1024 there is no double */
  int32_t count = kw_words_of(value, words, 17);
  double sum = 0;
  if (count > 17) return HUGE_VAL;
  for (int32_t i = count - 1; i >= 0; --i)
    sum = sum * 0x1p64 + (i == count - 1 ? (double)(int64_t)words[i] : (double)words[i]);
  return sum;
}

/* ---- floats that are passed as float32 ---- */

typedef struct kw_narrow {
  uint8_t code, bits;
  int8_t mantissa, least; /* bits of the mantissa; exponent of the least normal number */
  float most;             /* greatest number */
  bool infinite;          /* what is beyond it is infinite, and no NaN */
  bool negative_zero, positive;
} kw_narrow;

/* Source: https://github.com/jax-ml/ml_dtypes, "Specifications"; codes as of dlpack.h. */
static const kw_narrow kw_narrow_floats[] = {
    {4, 16, 7, -126, 0x1.fep127f, true, true, false}, /* bfloat16 */
    {7, 8, 4, -2, 15.5f, true, true, false},          /* e3m4 */
    {8, 8, 3, -6, 240, true, true, false},            /* e4m3 */
    {9, 8, 3, -10, 30, false, false, false},          /* e4m3b11fnuz */
    {10, 8, 3, -6, 448, false, true, false},          /* e4m3fn */
    {11, 8, 3, -7, 240, false, false, false},         /* e4m3fnuz */
    {12, 8, 2, -14, 57344, true, true, false},        /* e5m2 */
    {13, 8, 2, -15, 57344, false, false, false},      /* e5m2fnuz */
    {14, 8, 0, -127, 0x1p127f, false, false, true},   /* e8m0fnu */
};

/* The float that a dtype is, if it is one of these; otherwise null. */
KW_FUNCTION const kw_narrow *kw_narrow_of(DLDataType dtype) {
  if (__builtin_expect(dtype.code == kDLFloat || dtype.lanes != 1, 1)) return NULL;
  for (size_t i = 0; i < sizeof kw_narrow_floats / sizeof *kw_narrow_floats; ++i)
    if (kw_narrow_floats[i].code == dtype.code && kw_narrow_floats[i].bits == dtype.bits) return &kw_narrow_floats[i];
  return NULL;
}

/* 2**exponent, of a normal double. */
KW_FUNCTION double kw_power(int exponent) {
  uint64_t bits = (uint64_t)(exponent + 1023) << 52;
  double power;
  return memcpy(&power, &bits, sizeof power), power;
}

/* The nearest number of the dtype, an even one where two are as near. */
KW_COLD double kw_rounded(double value, const kw_narrow *narrow) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  double size = value < 0 ? -value : value, sign = bits >> 63 ? -1 : 1;
  if (value != value || (narrow->positive && !(value > 0))) return NAN;
  int exponent = (int)(bits >> 52 & 0x7ff) - 1023;
  if (exponent < 1024) {
    double step = kw_power((exponent < narrow->least ? narrow->least : exponent) - narrow->mantissa);
    /* With so large a number in front of it, a double has no room for more than whole steps. */
    volatile double whole = size / step + 0x1p52;
    size = (whole - 0x1p52) * step;
    if (narrow->positive && size < kw_power(narrow->least)) size = kw_power(narrow->least);
  }
  if (size > narrow->most) return narrow->infinite ? sign * HUGE_VAL : NAN;
  return size || narrow->negative_zero ? sign * size : 0;
}

#endif
