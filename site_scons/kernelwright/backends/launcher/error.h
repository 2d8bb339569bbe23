/* Error messages. All of this is off the hot path. */
#ifndef KW_ERROR_H
#define KW_ERROR_H

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* A text under construction; what does not fit is cut. */
typedef struct kw_text {
  size_t used;
  char data[16384];
} kw_text;

KW_COLD void kw_append_list(kw_text *text, const char *format, va_list values) {
  size_t room = sizeof text->data - text->used;
  int written = vsnprintf(text->data + text->used, room, format, values);
  if (written > 0) text->used += (size_t)written < room ? (size_t)written : room - 1;
}

__attribute__((format(printf, 2, 3))) KW_COLD void kw_append(kw_text *text, const char *format, ...) {
  va_list values;
  va_start(values, format);
  kw_append_list(text, format, values);
  va_end(values);
}

KW_COLD void kw_begin(kw_text *text) {
  text->used = 0;
  text->data[0] = 0;
  kw_append(text, "kernel '%s': ", kw_now.kernel->name);
}

/* Why a call is refused, for programs: an error has it as its extra context, and runtime/refusal.py says what each
 * means. All have more than seven letters, because TVM-FFI makes no object of a shorter text. */
#define KW_BY_KERNEL "by_kernel"
#define KW_NO_VARIANT "no_variant"
#define KW_NO_TARGET "no_target"
#define KW_AMBIGUOUS "ambiguous"
#define KW_MISALIGNED "misaligned"

/* Raises an error with an extra context, which may be null. */
KW_COLD int kw_raise_with(TVMFFIByteArray kind, const kw_text *text, TVMFFIObjectHandle context) {
  TVMFFIByteArray message = {text->data, text->used};
  TVMFFIObjectHandle error = NULL;
  const TVMFFIByteArray *trace = TVMFFIBacktrace(NULL, 0, NULL, 0);
  if (TVMFFIErrorCreateWithCauseAndExtraContext(&kind, &message, trace, NULL, context, &error) || !error) {
    TVMFFIErrorSetRaisedFromCStr("MemoryError", text->data);
    return -1;
  }
  TVMFFIErrorSetRaised(error);
  TVMFFIObjectDecRef(error);
  return -1;
}

KW_COLD int kw_raise_because(const char *kind, const char *refusal, const kw_text *text) {
  TVMFFIByteArray name = {kind, strlen(kind)}, reason = {refusal, strlen(refusal)};
  TVMFFIAny context = {.type_index = kTVMFFINone};
  if (TVMFFIStringFromByteArray(&reason, &context)) return -1;
  kw_raise_with(name, text, context.v_obj);
  TVMFFIObjectDecRef(context.v_obj);
  return -1;
}

KW_COLD int kw_raise_text(const char *kind, const kw_text *text) { return kw_raise_because(kind, KW_BY_KERNEL, text); }

/* Raises a Python exception of the given kind and returns -1, the value by which FFI functions report it. */
__attribute__((cold, noinline)) int kw_raise(const char *kind, const char *format, ...) {
  kw_text text;
  va_list values;
  kw_begin(&text);
  va_start(values, format);
  kw_append_list(&text, format, values);
  va_end(values);
  return kw_raise_text(kind, &text);
}

KW_COLD const TVMFFIErrorCell *kw_error_cell(TVMFFIObjectHandle error) {
  return (const TVMFFIErrorCell *)((const char *)error + sizeof(TVMFFIObject));
}

KW_COLD void kw_append_message(kw_text *text, const TVMFFIErrorCell *cell) {
  kw_append(text, "%.*s", (int)cell->message.size, cell->message.data);
}

/* Takes the raised error back and appends its message. */
KW_COLD void kw_append_raised(kw_text *text) {
  TVMFFIObjectHandle error = NULL;
  TVMFFIErrorMoveFromRaised(&error);
  if (!error) return;
  kw_append_message(text, kw_error_cell(error));
  TVMFFIObjectDecRef(error);
}

#endif
