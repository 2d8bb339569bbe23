/* Temporary memory that generated host code asks for.
 *
 * Each thread keeps a list of memory that is not yet freed: generated code returns at the first failing call without
 * freeing (TVM 0.27), so the launcher frees what a failed call has left. */
#ifndef KW_WORKSPACE_H
#define KW_WORKSPACE_H

#include <stdlib.h>

#define KW_ALIGNMENT 64

typedef struct kw_workspace {
  struct kw_workspace *previous, *next;
  void *data;
  int device_type, device_id;
} __attribute__((aligned(KW_ALIGNMENT))) kw_workspace;

KW_FUNCTION kw_workspace *kw_link_workspace(kw_workspace *workspace, void *data, int device_type, int device_id) {
  *workspace = (kw_workspace){kw_now.workspaces, NULL, data, device_type, device_id};
  if (kw_now.workspaces) kw_now.workspaces->next = workspace;
  return kw_now.workspaces = workspace;
}

KW_FUNCTION void kw_unlink_workspace(kw_workspace *workspace) {
  if (workspace->previous) workspace->previous->next = workspace->next;
  if (workspace->next) workspace->next->previous = workspace->previous;
  else kw_now.workspaces = workspace->previous;
}

/* Header and data of CPU memory are one block; a header for device memory stands alone. Memory of words is filled with
 * zeros (core/signature.py). */
void *kw_allocate_workspace(int device_type, int device_id, uint64_t bytes, int code, int bits) {
  bool zeroed = code == kDLUInt && bits == 64;
  void *block = NULL, *data = NULL;
  bool cpu = device_type == kDLCPU;
  if (bytes > SIZE_MAX / 2) {
    kw_raise("ValueError", "the size of a workspace is negative, or too large, in this call"
                           "\n  remedy: pass other sizes and numbers");
    return NULL;
  }
  if (posix_memalign(&block, KW_ALIGNMENT, sizeof(kw_workspace) + (cpu ? bytes : 0))) {
    kw_raise("MemoryError", "no memory for a workspace of %" PRIu64 " bytes", bytes);
    return NULL;
  }
  if (!cpu) data = kw_cuda_allocate_workspace(device_id, bytes, zeroed);
  else data = (char *)block + sizeof(kw_workspace);
  if (cpu && zeroed) memset(data, 0, bytes);
  if (data) return kw_link_workspace(block, data, device_type, device_id)->data;
  free(block);
  return NULL;
}

KW_FUNCTION int kw_release_workspace(kw_workspace *workspace) {
  int status = 0;
  kw_unlink_workspace(workspace);
  if (workspace->device_type != kDLCPU) status = kw_cuda_free_workspace(workspace->device_id, workspace->data);
  free(workspace);
  return status;
}

int kw_free_workspace(int device_type, int device_id, void *data) {
  (void)device_id;
  if (device_type == kDLCPU) return kw_release_workspace((kw_workspace *)((char *)data - sizeof(kw_workspace)));
  for (kw_workspace *workspace = kw_now.workspaces; workspace; workspace = workspace->previous)
    if (workspace->data == data) return kw_release_workspace(workspace);
  return kw_raise("RuntimeError", "a workspace was freed that this thread did not allocate");
}

/* Frees what was allocated since `mark` was the newest workspace, after a failure; the error raised by it is kept. */
KW_COLD void kw_drop_workspaces(kw_workspace *mark) {
  TVMFFIObjectHandle error = NULL;
  TVMFFIErrorMoveFromRaised(&error);
  while (kw_now.workspaces && kw_now.workspaces != mark) kw_release_workspace(kw_now.workspaces);
  if (!error) return;
  TVMFFIErrorSetRaised(error);
  TVMFFIObjectDecRef(error);
}

#endif
