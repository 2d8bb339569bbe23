/* The thread pool behind parallel loops on the CPU.
 *
 * One pool serves all kernel libraries of the process: the first library that is loaded registers its own as a global
 * FFI function, the others find it. Threads start at the first parallel launch. A launch that finds the pool busy
 * (nested, or from another thread) runs in the calling thread.
 *
 * A launch publishes a ticket: generation, number of tasks, next task. Threads claim tasks by counting the ticket up; a
 * thread that wakes late finds a ticket that is used up, or that of the next launch, and can do no harm. Idle threads
 * spin shortly and then sleep on a futex. After fork the child starts with an empty pool. */
#ifndef KW_THREADS_H
#define KW_THREADS_H

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A change of this structure, or of what its functions mean, needs a new name. */
#define KW_POOL_NAME "kernelwright.thread_pool.v1"

/* How a launch ends. The pool may belong to another kernel's library, so it leaves it to its caller to raise errors. */
enum { KW_POOL_DONE, KW_POOL_TASK_RAISED, KW_POOL_TASK_FAILED, KW_POOL_BAD_SETTING };

/* The pool as other libraries see it. */
typedef struct kw_pool_interface {
  int (*launch)(FTVMParallelLambda function, void *closure, int num_tasks);
  void (*set_threads)(int threads); /* 0: the default */
  int (*threads)(void);             /* 0: KERNELWRIGHT_NUM_THREADS is not a valid number */
} kw_pool_interface;

#define KW_MAX_THREADS 1024
#define KW_SPINS 1000 /* some 20 microseconds */

typedef struct kw_pool {
  atomic_int wanted;       /* threads that take part in a launch, the caller included; 0: not decided yet */
  atomic_bool busy;        /* owned by one launch */
  int workers;             /* threads started; guarded by busy */
  bool survives_fork;      /* the handler is installed; guarded by busy */
  _Atomic uint32_t wakes;  /* futex of idle workers: counts launches */
  atomic_int sleepers;     /* how many workers are about to sleep on it */
  _Atomic uint64_t ticket; /* generation << 32 | number of tasks << 16 | next task */
  /* The launch in progress. */
  FTVMParallelLambda function;
  void *closure;
  TVMParallelGroupEnv env;
  _Atomic uint32_t pending; /* futex of the caller: tasks that are not finished */
  atomic_bool waiting;      /* the caller is about to sleep on it */
  _Atomic(TVMFFIObjectHandle) error;
  atomic_bool failed;
  _Atomic uint32_t arrived; /* tasks that have reached the barrier */
  _Atomic uint32_t phase;   /* futex of the barrier: how often it opened */
} kw_pool;

static kw_pool kw_own_pool;
static const kw_pool_interface *kw_shared_pool __attribute__((unused));

KW_FUNCTION void kw_sleep(_Atomic uint32_t *word, uint32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

KW_FUNCTION void kw_wake(_Atomic uint32_t *word, int count) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

/* Waits a short while for the word to change from the value. */
KW_FUNCTION void kw_spin(_Atomic uint32_t *word, uint32_t value) {
  for (int i = 0; i < KW_SPINS && atomic_load_explicit(word, memory_order_acquire) == value; ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* "yield" does nothing on most CPUs, and returns at once */
#endif
  }
}

/* ---- number of threads ---- */

/* The CPUs that this process may run on. The set grows until it holds those of the machine. */
KW_COLD int kw_available_cpus(void) {
  for (int size = 1024; size <= 1 << 20; size *= 2) {
    cpu_set_t *set = CPU_ALLOC(size);
    if (!set) break;
    int status = sched_getaffinity(0, CPU_ALLOC_SIZE(size), set);
    int count = status ? 0 : CPU_COUNT_S(CPU_ALLOC_SIZE(size), set);
    CPU_FREE(set);
    if (count) return count < KW_MAX_THREADS ? count : KW_MAX_THREADS;
    if (errno != EINVAL) break;
  }
  return 1;
}

/* Where a container sees the CPU quota that it was given. */
#ifndef KW_CGROUP
#define KW_CGROUP "/sys/fs/cgroup"
#endif

/* Whether the file starts with that many numbers, one or two, which are read. */
KW_COLD bool kw_read_numbers(const char *path, int count, long long *first, long long *second) {
  FILE *file = fopen(path, "re");
  if (!file) return false;
  int found = fscanf(file, count == 2 ? "%lld %lld" : "%lld", first, second);
  fclose(file);
  return found == count;
}

/* How many CPUs' worth of time the container may use, rounded up; KW_MAX_THREADS without a quota. A cpu.max of cgroup
 * v2 has quota and period, cgroup v1 has a file for each. No quota is "max" in v2 and -1 in v1. */
KW_COLD int kw_cpu_quota(void) {
  long long quota, period;
  bool found = kw_read_numbers(KW_CGROUP "/cpu.max", 2, &quota, &period) ||
               (kw_read_numbers(KW_CGROUP "/cpu/cpu.cfs_quota_us", 1, &quota, NULL) &&
                kw_read_numbers(KW_CGROUP "/cpu/cpu.cfs_period_us", 1, &period, NULL));
  if (!found || quota <= 0 || period <= 0 || quota / period >= KW_MAX_THREADS) return KW_MAX_THREADS;
  return (int)(quota / period + (quota % period > 0));
}

/* More threads than the quota allows would spend it early in each period, and then all stand still. */
KW_COLD int kw_default_threads(void) {
  const char *text = getenv("KERNELWRIGHT_NUM_THREADS");
  if (!text || !*text) {
    int cpus = kw_available_cpus(), quota = kw_cpu_quota();
    return cpus < quota ? cpus : quota;
  }
  char *end;
  long number = strtol(text, &end, 10);
  return *end || number < 1 || number > KW_MAX_THREADS ? 0 : (int)number;
}

KW_FUNCTION int kw_pool_threads(void) {
  int threads = atomic_load_explicit(&kw_own_pool.wanted, memory_order_relaxed);
  if (threads > 0) return threads;
  threads = kw_default_threads();
  if (threads > 0) atomic_store_explicit(&kw_own_pool.wanted, threads, memory_order_relaxed);
  return threads;
}

KW_FUNCTION void kw_pool_set_threads(int threads) { atomic_store(&kw_own_pool.wanted, threads); }

/* ---- running tasks ---- */

static void kw_keep_task_error(kw_pool *pool) {
  TVMFFIObjectHandle error = NULL, none = NULL;
  TVMFFIErrorMoveFromRaised(&error);
  if (error && !atomic_compare_exchange_strong(&pool->error, &none, error)) TVMFFIObjectDecRef(error);
  atomic_store(&pool->failed, true);
  atomic_fetch_add(&pool->phase, 1); /* whoever waits at the barrier waits in vain */
  kw_wake(&pool->phase, INT_MAX);
}

/* Takes a task of the launch of this generation, or returns -1 when there is none left. */
static int kw_claim(kw_pool *pool, uint32_t generation) {
  uint64_t ticket = atomic_load(&pool->ticket);
  while ((uint32_t)(ticket >> 32) == generation && (ticket & 0xffff) < (ticket >> 16 & 0xffff))
    if (atomic_compare_exchange_weak(&pool->ticket, &ticket, ticket + 1)) return (int)(ticket & 0xffff);
  return -1;
}

static void kw_run_task(kw_pool *pool, int task) {
  if (pool->function(task, &pool->env, pool->closure)) kw_keep_task_error(pool);
  if (atomic_fetch_sub(&pool->pending, 1) == 1 && atomic_load(&pool->waiting)) kw_wake(&pool->pending, 1);
}

static void kw_run_tasks(kw_pool *pool, uint32_t generation) {
  for (int task; (task = kw_claim(pool, generation)) >= 0;) kw_run_task(pool, task);
}

static void *kw_worker(void *argument) {
  kw_pool *pool = argument;
  for (;;) {
    uint32_t seen = atomic_load(&pool->wakes);
    kw_run_tasks(pool, (uint32_t)(atomic_load(&pool->ticket) >> 32));
    kw_spin(&pool->wakes, seen);
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(&pool->wakes) == seen) kw_sleep(&pool->wakes, seen);
    atomic_fetch_sub(&pool->sleepers, 1);
  }
  return NULL;
}

/* ---- starting threads; the pool is ours (busy) ---- */

/* Only the forking thread exists in the child: whatever the others were doing is forgotten. */
static void kw_forget_pool(void) {
  int wanted = atomic_load(&kw_own_pool.wanted);
  kw_own_pool = (kw_pool){.wanted = wanted, .survives_fork = true};
}

/* Signals belong to the threads of the application: Python handles them in its main thread. */
static bool kw_start_worker(kw_pool *pool) {
  sigset_t all, before;
  pthread_t thread;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int status = pthread_create(&thread, NULL, kw_worker, pool);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (status) return false;
  pthread_setname_np(thread, "kernelwright");
  pthread_detach(thread);
  return true;
}

/* Returns how many threads can take part; a machine that gives us fewer than we want still computes the right thing. */
static int kw_start_workers(kw_pool *pool, int threads) {
  if (!pool->survives_fork) pool->survives_fork = !kw_at_fork(kw_forget_pool);
  while (pool->survives_fork && pool->workers < threads - 1 && kw_start_worker(pool)) ++pool->workers;
  return pool->workers + 1 < threads ? pool->workers + 1 : threads;
}

/* ---- launching ---- */

static int kw_run_serially(FTVMParallelLambda function, void *closure, int num_tasks) {
  TVMParallelGroupEnv env = {NULL, num_tasks};
  for (int task = 0; task < num_tasks; ++task)
    if (function(task, &env, closure)) return KW_POOL_TASK_RAISED;
  return KW_POOL_DONE;
}

static void kw_publish(kw_pool *pool, int num_tasks) {
  uint64_t generation = (atomic_load(&pool->ticket) >> 32) + 1;
  atomic_store(&pool->pending, (uint32_t)num_tasks);
  atomic_store(&pool->ticket, generation << 32 | (uint64_t)num_tasks << 16);
  atomic_fetch_add(&pool->wakes, 1);
  if (atomic_load(&pool->sleepers) > 0) kw_wake(&pool->wakes, num_tasks - 1);
}

static void kw_wait_for_tasks(kw_pool *pool) {
  uint32_t left;
  while ((left = atomic_load(&pool->pending))) {
    kw_spin(&pool->pending, left);
    atomic_store(&pool->waiting, true);
    if ((left = atomic_load(&pool->pending))) kw_sleep(&pool->pending, left);
  }
  atomic_store(&pool->waiting, false);
}

/* Raises the error of the first task that failed in this thread, the one that waits for the result. */
static int kw_raise_task_error(kw_pool *pool) {
  TVMFFIObjectHandle error = atomic_exchange(&pool->error, NULL);
  if (!error) return KW_POOL_TASK_FAILED;
  TVMFFIErrorSetRaised(error);
  TVMFFIObjectDecRef(error);
  return KW_POOL_TASK_RAISED;
}

static int kw_run_in_parallel(kw_pool *pool, FTVMParallelLambda function, void *closure, int num_tasks, int threads) {
  pool->function = function;
  pool->closure = closure;
  pool->env = (TVMParallelGroupEnv){num_tasks <= threads ? pool : NULL, num_tasks};
  atomic_store(&pool->failed, false);
  atomic_store(&pool->arrived, 0);
  kw_publish(pool, num_tasks);
  kw_run_tasks(pool, (uint32_t)(atomic_load(&pool->ticket) >> 32));
  kw_wait_for_tasks(pool);
  return atomic_load(&pool->failed) ? kw_raise_task_error(pool) : KW_POOL_DONE;
}

/* With num_tasks 0 there are as many tasks as threads take part: one if the pool is busy. */
static int kw_pool_launch(FTVMParallelLambda function, void *closure, int num_tasks) {
  kw_pool *pool = &kw_own_pool;
  int threads = kw_pool_threads();
  if (!threads) return KW_POOL_BAD_SETTING;
  bool alone = threads == 1 || num_tasks == 1 || num_tasks > 0xffff;
  if (alone || atomic_exchange(&pool->busy, true)) return kw_run_serially(function, closure, num_tasks ? num_tasks : 1);
  threads = kw_start_workers(pool, threads);
  int status = kw_run_in_parallel(pool, function, closure, num_tasks ? num_tasks : threads, threads);
  atomic_store(&pool->busy, false);
  return status;
}

/* ---- what generated code calls ---- */

KW_COLD int kw_raise_threads(void) {
  return kw_raise("ValueError", "KERNELWRIGHT_NUM_THREADS is '%s', expected a number from 1 to %d",
                  getenv("KERNELWRIGHT_NUM_THREADS"), KW_MAX_THREADS);
}

/* A task in its own launcher's hands: that is where the list of workspaces is, and which kernel runs. */
typedef struct kw_task {
  const kw_kernel *kernel;
  FTVMParallelLambda function;
  void *closure;
} kw_task;

static int kw_run_own_task(int number, TVMParallelGroupEnv *env, void *closure) {
  const kw_task *task = closure;
  kw_before before = kw_begin_kernel(task->kernel);
  int status = task->function(number, env, task->closure);
  if (status) kw_drop_workspaces(before.state.workspaces);
  kw_end_kernel(&before);
  return status;
}

int kw_parallel_launch(FTVMParallelLambda function, void *closure, int num_tasks) {
  kw_task task = {kw_now.kernel, function, closure};
  switch (kw_shared_pool->launch(kw_run_own_task, &task, num_tasks)) {
    case KW_POOL_DONE: return 0;
    case KW_POOL_BAD_SETTING: return kw_raise_threads();
    case KW_POOL_TASK_FAILED: return kw_raise("RuntimeError", "a parallel task failed without saying why");
    default: return -1;
  }
}

/* The environment's handle is the pool of the library that owns it, which may not be this library's. */
int kw_parallel_barrier(int task, TVMParallelGroupEnv *env) {
  (void)task;
  kw_pool *pool = env->sync_handle;
  if (env->num_task == 1) return 0;
  if (!pool) return kw_raise("RuntimeError", "a parallel barrier needs as many threads as the %d tasks", env->num_task);
  uint32_t phase = atomic_load(&pool->phase);
  if (atomic_fetch_add(&pool->arrived, 1) + 1 == (uint32_t)env->num_task) {
    atomic_store(&pool->arrived, 0);
    atomic_fetch_add(&pool->phase, 1);
    kw_wake(&pool->phase, INT_MAX);
  }
  kw_spin(&pool->phase, phase);
  while (atomic_load(&pool->phase) == phase && !atomic_load(&pool->failed)) kw_sleep(&pool->phase, phase);
  return atomic_load(&pool->failed) ? kw_raise("RuntimeError", "another task of the parallel loop failed") : 0;
}

/* ---- one pool for the process ---- */

static const kw_pool_interface kw_own_interface = {kw_pool_launch, kw_pool_set_threads, kw_pool_threads};

__attribute__((constructor)) static void kw_join_pool(void) {
  kw_shared_pool = kw_share(KW_POOL_NAME, (void *)&kw_own_interface);
}

#endif
