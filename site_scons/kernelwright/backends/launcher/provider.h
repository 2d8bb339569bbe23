/* Device code that is not in the library: each image is a file, which a wheel of its own may have brought.
 *
 * The package's loader knows which file that is. It registers a function, the provider, which is called once for each
 * variant and device. The lock is taken after that, because the provider may wait for other threads. A library that was
 * loaded without its package looks where the build has the files. */
#ifndef KW_PROVIDER_H
#define KW_PROVIDER_H

#include <fcntl.h>
#include <unistd.h>

/* Takes the text that an FFI function returned. Returns -1 if it is none. */
KW_COLD int kw_take_text(TVMFFIAny *value, kw_text *text) {
  text->used = 0;
  if (value->type_index == kTVMFFISmallStr) { /* of up to seven bytes */
    kw_append(text, "%.*s", (int)value->small_str_len, value->v_bytes);
    return 0;
  }
  if (value->type_index != kTVMFFIStr) return -1;
  const TVMFFIByteArray *bytes = (const TVMFFIByteArray *)((const char *)value->v_obj + sizeof(TVMFFIObject));
  kw_append(text, "%.*s", (int)bytes->size, bytes->data);
  TVMFFIObjectDecRef(value->v_obj);
  return 0;
}

/* The provider takes the variant, the archs that suit, best first and with blanks between them, the number of the device
 * and its capability. It returns the arch to use and, after a blank, the path of its image; or, behind a blank, what is
 * wrong. */
KW_COLD int kw_ask_provider(const char *variant, const kw_text *archs, int id, int capability, kw_text *answer) {
  TVMFFIAny result = {.type_index = kTVMFFINone};
  TVMFFIAny arguments[] = {
      {.type_index = kTVMFFIRawStr, .v_c_str = variant},
      {.type_index = kTVMFFIRawStr, .v_c_str = archs->data},
      {.type_index = kTVMFFIInt, .v_int64 = id},
      {.type_index = kTVMFFIInt, .v_int64 = capability},
  };
  if (TVMFFIFunctionCall(atomic_load(kw_now.kernel->provider), arguments, 4, &result)) return -1;
  return kw_take_text(&result, answer) ? kw_raise("RuntimeError", "the provider of device code returned no text") : 0;
}

/* The path of an image in the build folder: its name is relative to the parent of the folder that the library is in. */
KW_COLD int kw_path_in_build(const char *name, kw_text *path) {
  Dl_info own;
  if (!dladdr((const void *)kw_now.kernel->provider, &own) || !own.dli_fname)
    return kw_raise("RuntimeError", "the path of the kernel's library is not known");
  const char *slash = strrchr(own.dli_fname, '/');
  path->used = 0;
  kw_append(path, "%.*s../%s", slash ? (int)(slash - own.dli_fname) + 1 : 0, own.dli_fname, name);
  return 0;
}

KW_COLD int kw_raise_unread(const char *path) {
  return kw_raise("RuntimeError",
                  "its device code, %s, cannot be read: %s\n"
                  "  remedy: install the wheel of that arch again, or import the kernel from its package",
                  path, strerror(errno));
}

/* Reads all of an open file, as one block with a zero behind it, which PTX needs. */
KW_COLD void *kw_read_open(int file, size_t size) {
  void *block = NULL;
  size_t done = 0;
  errno = posix_memalign(&block, 64, size + 1);
  if (errno) return NULL;
  char *data = block;
  while (done < size) {
    ssize_t got = read(file, data + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      free(data);
      if (!got) errno = EIO;
      return NULL;
    }
    done += (size_t)got;
  }
  data[size] = 0;
  return data;
}

/* The content of a file, to be freed; null with an error raised. fstat and aligned_alloc would do as well, but not in the
 * glibc of every system that a library without them runs on. */
KW_COLD void *kw_read_file(const char *path) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  off_t size = file < 0 ? -1 : lseek(file, 0, SEEK_END);
  void *data = size < 0 || lseek(file, 0, SEEK_SET) ? NULL : kw_read_open(file, (size_t)size);
  if (!data) kw_raise_unread(path);
  if (file >= 0) close(file);
  return data;
}

#endif
