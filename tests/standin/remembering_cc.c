/* A C compiler that compiles equal sources once in a test run: gcc takes most of a second for each library's launcher.

   What it is asked for the first time, the real compiler does. A later compilation of the same preprocessed source with
   the same options gets a copy of what came out, and so does one of the same assembler text. It hardly optimises, which
   takes two thirds of the time. Everything else, such as linking objects, and whatever fails or warns, is always the
   real compiler's. tests/support/project.py compiles it as "cc", with the macros COMPILER and MEMORY. It is written in C
   because Python would take longer to start than all that this program does. */

#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* Kernels of this repository's library that are always compiled as users have them. */
static const char *const AS_SHIPPED[] = {"saxpy", "top_k"};

typedef struct {
  char *bytes;
  size_t size;
  bool ok;
} Text;

/* Two FNV-1a sums from different starts: equal ones of different texts are as good as impossible among hundreds. */
typedef struct {
  uint64_t sums[2];
} Key;

static void add(Key *key, const void *bytes, size_t size) {
  for (size_t i = 0; i < size; ++i)
    for (int k = 0; k < 2; ++k) key->sums[k] = (key->sums[k] ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3u;
}

/* A word with its end, so that "a b" is not "ab". */
static void add_word(Key *key, const char *word) { add(key, word, strlen(word) + 1); }

static bool starts(const char *word, const char *with) { return strncmp(word, with, strlen(with)) == 0; }

static bool ends(const char *word, const char *with) {
  size_t size = strlen(word), tail = strlen(with);
  return size >= tail && strcmp(word + size - tail, with) == 0;
}

/* All that can be read from a descriptor, which is closed. */
static Text read_all(int file) {
  Text text = {malloc(1 << 16), 0, file >= 0};
  size_t room = 1 << 16;
  ssize_t got;
  while (text.ok && (got = read(file, text.bytes + text.size, room - text.size)) != 0) {
    text.ok = got > 0;
    text.size += got > 0 ? (size_t)got : 0;
    if (text.size == room) text.bytes = realloc(text.bytes, room *= 2);
  }
  if (file >= 0) close(file);
  return text;
}

static Text content(const char *file) { return read_all(open(file, O_RDONLY)); }

/* Run a command; what it writes to some of its streams. */
static Text output(char **command, bool with_stdout, int *status) {
  int ends_of_pipe[2];
  pid_t process;
  posix_spawn_file_actions_t actions;
  if (pipe2(ends_of_pipe, O_CLOEXEC)) exit(1);
  posix_spawn_file_actions_init(&actions);
  if (with_stdout) posix_spawn_file_actions_adddup2(&actions, ends_of_pipe[1], 1);
  posix_spawn_file_actions_adddup2(&actions, ends_of_pipe[1], 2);
  if (posix_spawn(&process, COMPILER, &actions, NULL, command, environ)) exit(1);
  close(ends_of_pipe[1]);
  Text text = read_all(ends_of_pipe[0]);
  waitpid(process, status, 0);
  return text;
}

static bool of_linking(const char *word) {
  return starts(word, "-Wl,") || starts(word, "-L") || starts(word, "-l") ||
         ((starts(word, "-s") || starts(word, "-c")) && !starts(word, "-std"));
}

/* What the preprocessor makes of a source, and what it warns of; not ok if it fails. */
static Text preprocessed(char *source, char **options) {
  int count = 0, used = 0, status;
  while (options[count]) ++count;
  char **command = calloc((size_t)count + 5, sizeof *command);
  command[used++] = COMPILER;
  command[used++] = "-E";
  command[used++] = "-P";
  command[used++] = source;
  for (char **word = options; *word; ++word)
    if (!of_linking(*word)) command[used++] = *word;
  Text text = output(command, true, &status);
  text.ok = text.ok && status == 0;
  return text;
}

/* Cython writes the path of its output, a new folder each time, into a string that is not used. */
static void add_without(Key *key, Text text, const char *left_out) {
  char *from = text.bytes, *end = text.bytes + text.size, *found;
  while ((found = memmem(from, (size_t)(end - from), left_out, strlen(left_out)))) {
    add(key, from, (size_t)(found - from));
    from = found + strlen(left_out);
  }
  add(key, from, (size_t)(end - from));
}

static bool add_file(Key *key, const char *file) {
  Text text = content(file);
  add(key, &text.size, sizeof text.size);
  add(key, text.bytes, text.size);
  return text.ok;
}

/* The content of the files of a folder. */
static bool add_folder(Key *key, const char *folder) {
  struct dirent **entries;
  char path[4096];
  bool ok = true;
  int count = scandir(folder, &entries, NULL, alphasort);
  for (int i = 0; i < count; ++i) {
    snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
    if (strcmp(entries[i]->d_name, ".") && strcmp(entries[i]->d_name, "..")) ok = add_file(key, path) && ok;
  }
  return ok && count >= 0;
}

/* What the result of a compilation depends on; false if that cannot be read. The options are without the source. */
static bool key_of(Key *key, char *source, char **options) {
  bool assembles = ends(source, ".s"), ok = true;
  if (assembles) {
    ok = add_file(key, source);
  } else {
    Text text = preprocessed(source, options);
    if (!text.ok) return false;
    add_without(key, text, source);
  }
  for (char **word = options; *word; ++word) {
    if (!assembles && starts(*word, "-L")) {
      ok = add_folder(key, *word + 2) && ok;
      continue;
    }
    if (assembles || !starts(*word, "-I")) add_word(key, *word);
    if (assembles && starts(*word, "-Wl,--version-script=")) ok = add_file(key, strchr(*word, '=') + 1) && ok;
  }
  return ok;
}

/* Write a file with the content of another, and the mode that a compiler's output has; false if it cannot be read. */
static bool copy(const char *source, const char *target) {
  struct stat about;
  Text text = content(source);
  if (!text.ok || stat(source, &about)) return false;
  int file = open(target, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  for (size_t done = 0; done < text.size;) {
    ssize_t wrote = write(file, text.bytes + done, text.size - done);
    if (wrote < 0) {
      perror(target);
      exit(1);
    }
    done += (size_t)wrote;
  }
  if (file < 0 || fchmod(file, about.st_mode & 0777) || close(file)) {
    perror(target);
    exit(1);
  }
  return true;
}

/* Whether a part of a path is the name of such a kernel: a wrapper is in its folder, an extension is named after it. */
static bool is_as_shipped(const char *source) {
  for (const char *part = source; part; part = strchr(part, '/')) {
    part += strspn(part, "/_");
    size_t size = strcspn(part, "./");
    for (size_t i = 0; i < sizeof AS_SHIPPED / sizeof *AS_SHIPPED; ++i)
      if (size == strlen(AS_SHIPPED[i]) && !strncmp(part, AS_SHIPPED[i], size)) return true;
  }
  return false;
}

/* Have the real compiler do all of it. */
static _Noreturn void do_as_asked(char **command) {
  execv(COMPILER, command);
  perror(COMPILER);
  exit(127);
}

int main(int count, char **command) {
  char **options = calloc((size_t)count + 2, sizeof *options), *source = NULL, *target = NULL, kept[4096], fresh[4200];
  int used = 0, sources = 0, targets = 0, status;
  bool compiles = false, shared = false, is_known = true;
  command[0] = COMPILER;
  for (int i = 1; i < count; ++i) {
    char *word = command[i];
    if (!strcmp(word, "-o") && i + 1 < count) {
      target = command[++i];
      ++targets;
      continue;
    }
    shared |= !strcmp(word, "-shared");
    compiles |= !strcmp(word, "-c");
    is_known &= !starts(word, "-M") && !starts(word, "-g") && (!starts(word, "-W") || starts(word, "-Wl,"));
    is_known &= !ends(word, ".o") && !ends(word, ".a");
    if (ends(word, ".c") || ends(word, ".s")) {
      source = word;
      ++sources;
    } else {
      options[used++] = word;
    }
  }
  Key key = {{0xcbf29ce484222325u, 0x84222325cbf29ce4u}};
  is_known &= sources == 1 && targets == 1 && (compiles || shared);
  if (!is_known || is_as_shipped(source) || !key_of(&key, source, options)) do_as_asked(command);
  snprintf(kept, sizeof kept, "%s/%016lx%016lx", MEMORY, (long)key.sums[0], (long)key.sums[1]);
  if (copy(kept, target)) return 0;
  char **all = calloc((size_t)count + 3, sizeof *all), prefix[4200];
  memcpy(all, command, (size_t)count * sizeof *all);
  all[count] = "-O0";
  /* Without any optimisation an unused string stays in an extension, with the path of Cython's output. */
  snprintf(prefix, sizeof prefix, "-fmacro-prefix-map=%s=source", source);
  if (shared) all[count + 1] = prefix;
  Text errors = output(all, false, &status);
  if (write(2, errors.bytes, errors.size) < 0) return 1;
  if (status == 0 && errors.size == 0) {
    snprintf(fresh, sizeof fresh, "%s.%d", kept, (int)getpid());
    if (copy(target, fresh)) rename(fresh, kept);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
