/* XLA for GPUs, as far as a custom call sees of it: calls a handler of x: f32[n], a new array of that type and the
 * attribute alpha, on a stream. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <xla/ffi/api/c_api.h>

static XLA_FFI_Error *get_stream(XLA_FFI_Stream_Get_Args *asked) {
  asked->stream = (void *)asked->ctx;
  return NULL;
}

static XLA_FFI_Error *get_device(XLA_FFI_DeviceOrdinal_Get_Args *asked) {
  asked->device_ordinal = 0;
  return NULL;
}

/* What is wrong is printed, and an error that is not null is all that a handler needs. */
static XLA_FFI_Error *create_error(XLA_FFI_Error_Create_Args *made) {
  fprintf(stderr, "%s\n", made->message);
  return (XLA_FFI_Error *)made;
}

/* Returns 0, or 1 if the handler failed. The execution context stands for the stream. */
int call_handler(XLA_FFI_Handler *handler, void *stream, void *x, void *y, int64_t n) {
  static XLA_FFI_Api api = {.struct_size = sizeof api, .api_version = {.struct_size = sizeof(XLA_FFI_Api_Version)}};
  api.XLA_FFI_Stream_Get = get_stream;
  api.XLA_FFI_DeviceOrdinal_Get = get_device;
  api.XLA_FFI_Error_Create = create_error;
  XLA_FFI_Buffer input = {.struct_size = sizeof input, .dtype = XLA_FFI_DataType_F32, .data = x, .rank = 1, .dims = &n};
  XLA_FFI_Buffer output = {.struct_size = sizeof output, .dtype = XLA_FFI_DataType_F32, .data = y, .rank = 1, .dims = &n};
  void *inputs[] = {&input}, *outputs[] = {&output};
  XLA_FFI_ArgType input_types[] = {XLA_FFI_ArgType_BUFFER};
  XLA_FFI_RetType output_types[] = {XLA_FFI_RetType_BUFFER};
  double alpha = 1;
  XLA_FFI_Scalar number = {XLA_FFI_DataType_F64, &alpha};
  XLA_FFI_ByteSpan name = {"alpha", 5}, *names[] = {&name};
  XLA_FFI_AttrType types[] = {XLA_FFI_AttrType_SCALAR};
  void *values[] = {&number};
  XLA_FFI_CallFrame frame = {
      .struct_size = sizeof frame,
      .api = &api,
      .ctx = stream,
      .stage = XLA_FFI_ExecutionStage_EXECUTE,
      .args = {sizeof(XLA_FFI_Args), NULL, 1, input_types, inputs},
      .rets = {sizeof(XLA_FFI_Rets), NULL, 1, output_types, outputs},
      .attrs = {sizeof(XLA_FFI_Attrs), NULL, 1, types, names, values},
  };
  return handler(&frame) != NULL;
}
