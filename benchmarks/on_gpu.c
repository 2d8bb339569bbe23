/* Has tensors of PyTorch on the CPU exported as tensors on a GPU, where a launch is timed against a library that stands in
 * for the driver. */
#include <dlpack/dlpack.h>

static DLPackExchangeAPI real, changed;

static int view(void *object, DLTensor *tensor) {
  int status = real.dltensor_from_py_object_no_sync(object, tensor);
  tensor->device = (DLDevice){kDLCUDA, 0};
  return status;
}

static int export(void *object, DLManagedTensorVersioned **managed) {
  int status = real.managed_tensor_from_py_object_no_sync(object, managed);
  if (!status) (*managed)->dl_tensor.device = (DLDevice){kDLCUDA, 0};
  return status;
}

static int default_stream(DLDeviceType type, int32_t device, void **stream) {
  return (void)type, (void)device, *stream = 0, 0;
}

/* The functions that export such tensors, from those of PyTorch. */
const DLPackExchangeAPI *on_gpu(const DLPackExchangeAPI *pytorch) {
  real = changed = *pytorch;
  changed.header.prev_api = 0;
  if (real.dltensor_from_py_object_no_sync) changed.dltensor_from_py_object_no_sync = view;
  changed.managed_tensor_from_py_object_no_sync = export;
  changed.current_work_stream = default_stream;
  return &changed;
}
