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

KW_COLD int kw_raise_text(const char *kind, const kw_text *text) {
  TVMFFIErrorSetRaisedFromCStr(kind, text->data);
  return -1;
}

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

/* Takes the raised error back and appends its message. */
KW_COLD void kw_append_raised(kw_text *text) {
  TVMFFIObjectHandle error = NULL;
  TVMFFIErrorMoveFromRaised(&error);
  if (!error) return;
  const TVMFFIErrorCell *cell = (const TVMFFIErrorCell *)((const char *)error + sizeof(TVMFFIObject));
  kw_append(text, "%.*s", (int)cell->message.size, cell->message.data);
  TVMFFIObjectDecRef(error);
}

#endif
