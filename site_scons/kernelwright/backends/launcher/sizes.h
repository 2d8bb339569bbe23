/* Arithmetic of the expressions in the shapes of outputs. */
#ifndef KW_SIZES_H
#define KW_SIZES_H

/* What has no result in int64: an overflow, a division by zero, and whatever is computed from one. */
#define KW_NO_SIZE INT64_MIN

KW_FUNCTION bool kw_are_sizes(int64_t a, int64_t b) { return a != KW_NO_SIZE && b != KW_NO_SIZE; }

KW_FUNCTION int64_t kw_add(int64_t a, int64_t b) {
  int64_t result;
  return kw_are_sizes(a, b) && !__builtin_add_overflow(a, b, &result) ? result : KW_NO_SIZE;
}
KW_FUNCTION int64_t kw_subtract(int64_t a, int64_t b) {
  int64_t result;
  return kw_are_sizes(a, b) && !__builtin_sub_overflow(a, b, &result) ? result : KW_NO_SIZE;
}
KW_FUNCTION int64_t kw_multiply(int64_t a, int64_t b) {
  int64_t result;
  return kw_are_sizes(a, b) && !__builtin_mul_overflow(a, b, &result) ? result : KW_NO_SIZE;
}
/* Python's // and %. */
KW_FUNCTION int64_t kw_floordiv(int64_t a, int64_t b) {
  if (!b || !kw_are_sizes(a, b)) return KW_NO_SIZE;
  return a / b - (a % b && (a < 0) != (b < 0));
}
KW_FUNCTION int64_t kw_floormod(int64_t a, int64_t b) {
  if (!b || !kw_are_sizes(a, b)) return KW_NO_SIZE;
  return a % b + (a % b && (a < 0) != (b < 0) ? b : 0);
}
KW_FUNCTION int64_t kw_min(int64_t a, int64_t b) { return a < b ? a : b; }
KW_FUNCTION int64_t kw_max(int64_t a, int64_t b) { return !kw_are_sizes(a, b) ? KW_NO_SIZE : a > b ? a : b; }

#endif
