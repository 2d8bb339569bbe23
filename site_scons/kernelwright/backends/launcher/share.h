/* Objects that the kernel libraries of a process share: each library has one of its own, and all use that of the first.
 *
 * The first library that is loaded registers a global FFI function that returns its object, and the others find it.
 * Libraries are never unloaded, so the object stays. Two libraries may be of different versions of Kernelwright: the
 * name of an object stands for its layout and its meaning. */
#ifndef KW_SHARE_H
#define KW_SHARE_H

static int kw_answer_shared(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  (void)arguments, (void)count;
  result->type_index = kTVMFFIOpaquePtr;
  result->v_ptr = self;
  return 0;
}

KW_COLD void kw_offer(const TVMFFIByteArray *name, void *own) {
  TVMFFIObjectHandle function = NULL;
  if (TVMFFIFunctionCreate(own, kw_answer_shared, NULL, &function)) return;
  TVMFFIFunctionSetGlobal(name, function, 0);
  TVMFFIObjectDecRef(function);
}

/* The object of the first library, which may be our own. To be called by constructors: the table of global functions
 * has no lock, but the loader's lock is held while they run, so two libraries cannot register at once. */
KW_COLD void *kw_share(const char *text, void *own) {
  const TVMFFIByteArray name = {text, strlen(text)};
  TVMFFIObjectHandle function = NULL;
  TVMFFIAny answer = {.type_index = kTVMFFINone};
  if (TVMFFIFunctionGetGlobal(&name, &function)) return own;
  if (!function) return kw_offer(&name, own), own;
  bool found = !TVMFFIFunctionCall(function, NULL, 0, &answer) && answer.v_ptr;
  TVMFFIObjectDecRef(function);
  return found ? answer.v_ptr : own;
}

#endif
