/* What a kernel object knows of its kernel, and what one call holds. */
#ifndef KW_PYTHON_TYPES_H
#define KW_PYTHON_TYPES_H

/* One parameter: what the kernel takes there, whether callers may leave it out, as an output or because it is None then,
 * and whether the kernel writes it. */
typedef struct kw_parameter {
  const char *name;
  enum { KW_TENSOR, KW_FLOAT, KW_INT, KW_BOOL, KW_POINTER } kind;
  bool is_output, is_optional, is_written;
} kw_parameter;

/* Marks an integer of 64 bits that has no sign, from 2**63 on, in what is otherwise 0 (numbers.h of the launcher). */
#define KW_UNSIGNED 1

/* A kernel, or one variant of it. */
typedef struct kw_kernel {
  const char *name;
  const kw_parameter *parameters;
  int32_t num_parameters, num_outputs, num_optional;
  kw_entry entry;
  void *library;
} kw_kernel;

/* How an object of some Python type becomes an argument. */
typedef enum kw_kind {
  KW_AS_OBJECT, /* not at all; the kernel's library says so */
  KW_AS_NONE,
  KW_AS_FLOAT,
  KW_AS_INT,
  KW_AS_BOOL,
  KW_AS_INTEGRAL, /* a number of another library */
  KW_AS_REAL,
  KW_AS_STRING,
  KW_AS_EXCHANGE, /* by the C functions that the type has for DLPack */
  KW_AS_BUFFER,   /* by the buffer protocol */
  KW_AS_DLPACK,   /* by __dlpack__ */
} kw_kind;

typedef struct kw_type {
  PyTypeObject *type;
  kw_kind kind;
  bool is_immutable;
  bool is_computed; /* perhaps: it has views whose numbers are computed from those in memory, and DLPack is not told */
  const DLPackExchangeAPI *exchange;
} kw_type;

/* Most dimensions of a buffer (PyBUF_MAX_NDIM). */
#define KW_BUFFER_DIMS 64

/* A tensor argument, and what has to be given back after the call. */
typedef struct kw_tensor {
  enum { KW_HOLDS_NOTHING, KW_HOLDS_BUFFER, KW_HOLDS_VERSIONED, KW_HOLDS_MANAGED } holds;
  union {
    DLManagedTensorVersioned *versioned;
    DLManagedTensor *managed;
    Py_buffer buffer;
  };
  DLTensor tensor;
  int64_t strides[KW_BUFFER_DIMS];
} kw_tensor;

typedef struct kw_call {
  PyObject *self;
  const kw_kernel *kernel;
  PyObject *given[KW_MAX_ARGUMENTS]; /* by parameter, borrowed; null: left out */
  TVMFFIAny values[KW_MAX_ARGUMENTS];
  kw_tensor tensors[KW_MAX_ARGUMENTS];
  int32_t num_values, num_tensors;
  bool has_stream, sets_stream; /* the caller gave a stream; the device that the call is on has to be told one */
  bool waits;                   /* before it returns, because an input may be freed as soon as it has */
  void *stream;
  PyObject *stream_object;           /* what had that number, and keeps the stream alive; owned, or null */
  DLDevice device;                   /* the first that is not the CPU, otherwise the CPU */
  const DLPackExchangeAPI *exchange; /* of the first tensor that has one; it makes outputs */
  PyObject *exchanged;               /* that tensor, borrowed */
  PyObject *first;                   /* the first tensor, borrowed */
} kw_call;

#endif
