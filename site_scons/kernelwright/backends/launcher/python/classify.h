/* Decides, once for each Python type, how its objects become arguments. */
#ifndef KW_PYTHON_CLASSIFY_H
#define KW_PYTHON_CLASSIFY_H

#define KW_TYPES 64 /* a power of two */

/* Types that were seen, kept alive so that no other type gets their address. What does not fit is looked at again. */
static kw_type kw_types[KW_TYPES];
static int kw_num_types;

/* Whether the type has an attribute; errors of its getter mean that it has none. */
KW_COLD bool kw_has(PyObject *type, const char *name) {
  PyObject *found = PyObject_GetAttrString(type, name);
  if (!found) PyErr_Clear();
  Py_XDECREF(found);
  return found != NULL;
}

/* The functions that a type has for DLPack (dlpack.h, "fast exchange protocol"), or null. */
KW_COLD const DLPackExchangeAPI *kw_exchange_of(PyObject *type) {
  PyObject *capsule = PyObject_GetAttrString(type, "__dlpack_c_exchange_api__");
  const DLPackExchangeAPIHeader *header = capsule ? PyCapsule_GetPointer(capsule, "dlpack_exchange_api") : NULL;
  if (!header) PyErr_Clear();
  Py_XDECREF(capsule);
  while (header && header->version.major > DLPACK_MAJOR_VERSION) header = header->prev_api;
  return header && header->version.major == DLPACK_MAJOR_VERSION ? (const DLPackExchangeAPI *)header : NULL;
}

/* Whether `object` is an instance of a class of the module `numbers`; -1 with an exception. */
KW_COLD int kw_is_number(PyObject *object, const char *name) {
  PyObject *numbers = PyImport_ImportModule("numbers");
  PyObject *class = numbers ? PyObject_GetAttrString(numbers, name) : NULL;
  int is_one = class ? PyObject_IsInstance(object, class) : -1;
  Py_XDECREF(class);
  Py_XDECREF(numbers);
  return is_one;
}

/* NumPy's arrays can be asked for a buffer too, which is faster, and says whether they are read-only. */
KW_COLD kw_kind kw_kind_of_array(PyObject *object, PyObject *type) {
  return PyObject_CheckBuffer(object) && kw_has(type, "__array_interface__") ? KW_AS_BUFFER : KW_AS_DLPACK;
}

/* Whether the arrays come from JAX. They are immutable, and DLPack is not told. */
KW_COLD bool kw_is_immutable(PyObject *type) {
  PyObject *module = PyObject_GetAttrString(type, "__module__");
  const char *text = module && PyUnicode_Check(module) ? PyUnicode_AsUTF8AndSize(module, NULL) : NULL;
  bool found = text && !strncmp(text, "jaxlib", 6) && (!text[6] || text[6] == '.');
  PyErr_Clear();
  Py_XDECREF(module);
  return found;
}

/* The order is that of tvm-ffi: tensors before numbers, because some tensors are registered as numbers. */
KW_COLD int kw_classify(PyObject *object, kw_type *found) {
  PyObject *type = (PyObject *)Py_TYPE(object);
  found->type = Py_TYPE(object);
  found->exchange = NULL;
  found->is_immutable = kw_is_immutable(type);
  found->is_computed = kw_has(type, "is_neg");
  int is_integral = 0, is_real = 0;
  if (object == Py_None) found->kind = KW_AS_NONE;
  else if (PyFloat_CheckExact(object)) found->kind = KW_AS_FLOAT;
  else if (PyBool_Check(object)) found->kind = KW_AS_BOOL;
  else if (PyLong_CheckExact(object)) found->kind = KW_AS_INT;
  else if ((found->exchange = kw_exchange_of(type))) found->kind = KW_AS_EXCHANGE;
  else if (kw_has(type, "__dlpack__")) found->kind = kw_kind_of_array(object, type);
  else if ((is_integral = kw_is_number(object, "Integral"))) found->kind = KW_AS_INTEGRAL;
  else if ((is_real = kw_is_number(object, "Real"))) found->kind = KW_AS_REAL;
  else if (PyUnicode_Check(object)) found->kind = KW_AS_STRING;
  else found->kind = PyObject_CheckBuffer(object) ? KW_AS_BUFFER : KW_AS_OBJECT;
  return is_integral < 0 || is_real < 0 ? -1 : 0;
}

KW_FUNCTION size_t kw_hash(const PyTypeObject *type) { return ((uintptr_t)type >> 4) * 0x9e3779b9u >> 8; }

/* The slot of a type, or the free one that is for it. */
KW_FUNCTION kw_type *kw_slot_of(const PyTypeObject *type) {
  for (size_t i = kw_hash(type);; ++i) {
    kw_type *slot = &kw_types[i % KW_TYPES];
    if (KW_LIKELY(slot->type == type || !slot->type)) return slot;
  }
}

KW_COLD const kw_type *kw_learn_type(PyObject *object) {
  static kw_type found; /* used before anything else can be found */
  kw_type learnt;
  if (kw_classify(object, &learnt)) return NULL;
  kw_type *slot = kw_slot_of(learnt.type); /* looked up again: another thread may have come in between */
  found = learnt;
  if (slot->type || kw_num_types >= KW_TYPES / 2) return &found;
  Py_INCREF((PyObject *)learnt.type);
  ++kw_num_types;
  *slot = learnt;
  return slot;
}

/* How an object becomes an argument; null with an exception. Called with the GIL held, as all of this. */
KW_FUNCTION const kw_type *kw_type_of(PyObject *object) {
  const kw_type *slot = kw_slot_of(Py_TYPE(object));
  return KW_LIKELY(slot->type != NULL) ? slot : kw_learn_type(object);
}

#endif
