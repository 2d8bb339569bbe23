/* Times calls of kernel libraries, batch by batch in turn: lookup RUNTIME CALLS SIZES LIBRARY...; prints the ns of a call
 * of each, by the clock of the thread, which stands still while something else has the CPU.
 *
 * A library has the function `gemm` of c = a @ b for float16, whose host code does nothing. SIZES is how many different
 * sizes m the calls have in turn. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tvm/ffi/c_api.h>

enum { BATCHES = 41, MOST = 8, MOST_SIZES = 64 };

typedef int (*function)(void *, const TVMFFIAny *, int32_t, TVMFFIAny *);

static double now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}

static int by_value(const void *a, const void *b) {
  double first = *(const double *)a, second = *(const double *)b;
  return (first > second) - (first < second);
}

static void *opened(const char *path, int flags) {
  void *library = dlopen(path, flags);
  if (!library) fprintf(stderr, "%s\n", dlerror()), exit(1);
  return library;
}

static int64_t sizes[MOST_SIZES];
static long num_sizes;
static int64_t shapes[3][2] = {{1, 1024}, {1024, 1024}, {1, 1024}};

static double batch(function called, long calls) {
  static char memory[64] __attribute__((aligned(64)));
  DLTensor tensors[3];
  TVMFFIAny arguments[3];
  memset(arguments, 0, sizeof arguments);
  for (int i = 0; i < 3; ++i) {
    tensors[i] = (DLTensor){memory, {kDLCPU, 0}, 2, {kDLFloat, 16, 1}, shapes[i], NULL, 0};
    arguments[i].type_index = kTVMFFIDLTensorPtr;
    arguments[i].v_ptr = &tensors[i];
  }
  double start = now_ns();
  for (long i = 0; i < calls; ++i) {
    TVMFFIAny result = {.type_index = kTVMFFINone};
    shapes[0][0] = shapes[2][0] = sizes[i % num_sizes];
    if (called(NULL, arguments, 3, &result)) fprintf(stderr, "a call has failed\n"), exit(1);
  }
  return (now_ns() - start) / (double)calls;
}

int main(int count, char **words) {
  function called[MOST];
  double times[MOST][BATCHES];
  int libraries = count - 4;
  num_sizes = atol(words[3]);
  long calls = atol(words[2]) / BATCHES;
  opened(words[1], RTLD_NOW | RTLD_GLOBAL);
  srand(1);
  for (int i = 0; i < MOST_SIZES; ++i) sizes[i] = 1 + rand() % 8192;
  for (int i = 0; i < libraries; ++i)
    *(void **)&called[i] = dlsym(opened(words[4 + i], RTLD_NOW | RTLD_LOCAL), "__tvm_ffi_gemm");
  for (int number = -1; number < BATCHES; ++number) /* the first one warms up */
    for (int i = 0; i < libraries; ++i) {
      double took = batch(called[i], calls);
      if (number >= 0) times[i][number] = took;
    }
  for (int i = 0; i < libraries; ++i) {
    qsort(times[i], BATCHES, sizeof times[i][0], by_value);
    printf("%s%.3f", i ? " " : "", times[i][BATCHES / 2]);
  }
  printf("\n");
  return 0;
}
