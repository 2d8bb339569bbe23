/* Stand-in for TVM's header of this name: the services that generated host code asks its runtime for.
 *
 * The launcher implements them in threads.h and workspace.h. The signatures are those of TVM 0.27. */
#ifndef KW_TVM_RUNTIME_C_BACKEND_API_H
#define KW_TVM_RUNTIME_C_BACKEND_API_H

#include <tvm/runtime/base.h>

/* What a parallel task is told about the others: how many there are, and a handle for the barrier. */
typedef struct {
  void *sync_handle;
  int32_t num_task;
} TVMParallelGroupEnv;

typedef int (*FTVMParallelLambda)(int task_id, TVMParallelGroupEnv *env, void *closure);

#endif
