/* Which of the CPU archs of its family this CPU and operating system support.
 *
 * Those of x86-64 are the levels of its psABI, section "Low-Level System Information". Those of aarch64 are what LLVM
 * uses unasked of the instructions of these CPUs (AArch64Processors.td); the bits are those of Linux's asm/hwcap.h. The
 * environment variable KERNELWRIGHT_CPU_LEVEL (x86-64-v2, armv8-a, ...) lowers the answer; it never raises it. */
#ifndef KW_CPU_H
#define KW_CPU_H

#include <stdlib.h>
#if defined(__x86_64__)
#include <cpuid.h>
static const char *const kw_level_names[] = {"no known CPU", "x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"};
#elif defined(__aarch64__)
#include <sys/auxv.h>
static const char *const kw_level_names[] = {"no known CPU", "armv8-a", "neoverse-n1", "neoverse-v2"};
#else
static const char *const kw_level_names[] = {"no known CPU"};
#endif

#define KW_LEVELS ((int)(sizeof kw_level_names / sizeof *kw_level_names))
#define KW_HAS(word, mask) (((word) & (mask)) == (mask))

#if defined(__x86_64__)

/* The state components that the operating system saves: 0x6 for AVX registers, 0xe6 for AVX-512 ones as well. */
KW_COLD unsigned int kw_saved_state(void) {
  unsigned int low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

KW_COLD int kw_detect_cpu_level(void) {
  unsigned int a, b, c1 = 0, d, b7 = 0, c7, d7, extended = 0;
  if (!__get_cpuid(1, &a, &b, &c1, &d)) return 1;
  __get_cpuid_count(7, 0, &a, &b7, &c7, &d7);
  __get_cpuid(0x80000001u, &a, &b, &extended, &d);
  /* SSE3, SSSE3, CMPXCHG16B, SSE4.1, SSE4.2, POPCNT; LAHF */
  if (!KW_HAS(c1, 1u | 1u << 9 | 1u << 13 | 1u << 19 | 1u << 20 | 1u << 23) || !KW_HAS(extended, 1u)) return 1;
  /* FMA, MOVBE, OSXSAVE, AVX, F16C; BMI1, AVX2, BMI2; LZCNT */
  if (!KW_HAS(c1, 1u << 12 | 1u << 22 | 1u << 27 | 1u << 28 | 1u << 29)) return 2;
  if (!KW_HAS(b7, 1u << 3 | 1u << 5 | 1u << 8) || !KW_HAS(extended, 1u << 5)) return 2;
  unsigned int saved = kw_saved_state();
  if (!KW_HAS(saved, 0x6u)) return 2;
  /* AVX512F, DQ, CD, BW, VL */
  if (!KW_HAS(b7, 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31) || !KW_HAS(saved, 0xe6u)) return 3;
  return 4;
}
#elif defined(__aarch64__)
KW_COLD int kw_detect_cpu_level(void) {
  unsigned long has = getauxval(AT_HWCAP), more = getauxval(AT_HWCAP2);
  /* CRC32, ATOMICS, FPHP, ASIMDHP, ASIMDRDM, LRCPC, ASIMDDP */
  if (!KW_HAS(has, 1u << 7 | 1u << 8 | 1u << 9 | 1u << 10 | 1u << 12 | 1u << 15 | 1u << 20)) return 1;
  /* FCMA, SVE, ASIMDFHM, ILRCPC, FLAGM; SVE2, FLAGM2, FRINT, SVEI8MM, SVEBF16, I8MM, BF16 */
  if (!KW_HAS(has, 1u << 14 | 1u << 22 | 1u << 23 | 1u << 26 | 1u << 27)) return 2;
  if (!KW_HAS(more, 1u << 1 | 1u << 7 | 1u << 8 | 1u << 9 | 1u << 12 | 1u << 13 | 1u << 14)) return 2;
  return 3;
}
#else
KW_COLD int kw_detect_cpu_level(void) { return 0; }
#endif

KW_COLD int kw_capped_cpu_level(void) {
  int level = kw_detect_cpu_level();
  const char *cap = getenv("KERNELWRIGHT_CPU_LEVEL");
  if (!cap || !*cap) return level;
  for (int i = 1; i < KW_LEVELS; ++i)
    if (!strcmp(cap, kw_level_names[i])) return i < level ? i : level;
  kw_text text;
  kw_begin(&text);
  kw_append(&text, "KERNELWRIGHT_CPU_LEVEL is '%s', expected ", cap);
  for (int i = 1; i < KW_LEVELS; ++i)
    kw_append(&text, "%s%s", i == 1 ? "" : i < KW_LEVELS - 1 ? ", " : " or ", kw_level_names[i]);
  return kw_raise_text("ValueError", &text);
}

/* The level of this CPU, or -1 with an error raised. */
KW_FUNCTION int kw_cpu_level(void) {
  static atomic_int known = -1;
  int level = atomic_load_explicit(&known, memory_order_relaxed);
  if (__builtin_expect(level >= 0, 1)) return level;
  level = kw_capped_cpu_level();
  atomic_store_explicit(&known, level, memory_order_relaxed);
  return level;
}

KW_COLD int kw_raise_cpu(const kw_variant *variant, int level) {
  kw_text text;
  kw_begin(&text);
  kw_append(&text, "this CPU supports %s, and variant %s was built for ", kw_level_names[level], variant->slug);
  for (int i = 0; i < variant->num_cpu_units; ++i)
    kw_append(&text, "%s%s", i ? ", " : "", variant->cpu_units[i].arch);
  kw_append(&text, " only\n  remedy: add %s to its archs", kw_level_names[level ? level : KW_LEVELS - 1]);
  return kw_raise_text("RuntimeError", &text);
}

/* The best build of the variant for this CPU, or null with an error raised. */
KW_FUNCTION const kw_cpu_unit *kw_cpu_pick(const kw_variant *variant) {
  int level = kw_cpu_level();
  if (level < 0) return NULL;
  for (int i = 0; i < variant->num_cpu_units; ++i)
    if (variant->cpu_units[i].level <= level) return &variant->cpu_units[i];
  kw_raise_cpu(variant, level);
  return NULL;
}

#endif
