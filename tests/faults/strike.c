/* Counts what a process does to the files below one folder, and strikes at the n-th: a kill, Ctrl-C, a stop, or an
   error of the disk. It is loaded before the C library (LD_PRELOAD), so that it also sees what libraries written in C,
   C++ and Rust do. A fork arms it by `strike_arm`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { COUNT, KILL, INTERRUPT, STOP, ONCE, EVER };
static char root[PATH_MAX];
static size_t root_length;
static long struck_at, done;
static int action, fault;

void strike_arm(const char *folder, long place, int what, int error) {
  strncpy(root, folder, sizeof root - 1);
  root_length = strlen(root);
  struck_at = place;
  done = 0;
  action = what;
  fault = error;
}
long strike_count(void) { return done; }

static int below(const char *path) {
  char here[PATH_MAX];
  if (!root_length || !path) return 0;
  if (path[0] != '/') {
    if (!getcwd(here, sizeof here - 1)) return 0;
    path = strcat(here, "/");
  }
  return strncmp(path, root, root_length) == 0;
}
static int of_file(int handle) {
  char name[64], path[PATH_MAX];
  if (!root_length) return 0;
  snprintf(name, sizeof name, "/proc/self/fd/%d", handle);
  ssize_t length = readlink(name, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return path[0] == '/' && below(path);
}
/* Returns whether the call has to fail. What only removes succeeds on a full disk. */
static int strike(int takes_room) {
  long place = __sync_add_and_fetch(&done, 1);
  if (action == COUNT || place < struck_at) return 0;
  if (action == EVER) return takes_room ? (errno = fault, 1) : 0;
  if (place != struck_at) return 0;
  if (action == KILL) kill(getpid(), SIGKILL);
  if (action == INTERRUPT) kill(getpid(), SIGINT);
  if (action == STOP) kill(getpid(), SIGSTOP);
  return action == ONCE ? (errno = fault, 1) : 0;
}
#define REAL(type, name, ...) \
  static type (*real)(__VA_ARGS__); \
  if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)
#define WRITES(flags) ((flags) & (O_CREAT | O_WRONLY | O_RDWR | O_TRUNC))
#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    va_list more; va_start(more, flags); mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0; va_end(more); \
    REAL(int, name, const char *, int, ...); \
    if (WRITES(flags) && below(path) && strike(1)) return -1; \
    return real(path, flags, mode); \
  }
OPEN(open) OPEN(open64)
#define OPENAT(name) \
  int name(int folder, const char *path, int flags, ...) { \
    va_list more; va_start(more, flags); mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0; va_end(more); \
    REAL(int, name, int, const char *, int, ...); \
    if (WRITES(flags) && (path[0] == '/' || folder == AT_FDCWD ? below(path) : of_file(folder)) && strike(1)) return -1; \
    return real(folder, path, flags, mode); \
  }
OPENAT(openat) OPENAT(openat64)
#define ON_FILE(type, name, room, parameters, arguments, handle, failed) \
  type name parameters { \
    static type(*real) parameters; \
    if (!real) real = (type(*) parameters)dlsym(RTLD_NEXT, #name); \
    if (of_file(handle) && strike(room)) return failed; \
    return real arguments; \
  }
ON_FILE(ssize_t, write, 1, (int file, const void *bytes, size_t size), (file, bytes, size), file, -1)
ON_FILE(ssize_t, pwrite, 1, (int file, const void *bytes, size_t size, off_t at), (file, bytes, size, at), file, -1)
ON_FILE(ssize_t, pwrite64, 1, (int file, const void *bytes, size_t size, off64_t at), (file, bytes, size, at), file, -1)
ON_FILE(ssize_t, writev, 1, (int file, const struct iovec *parts, int count), (file, parts, count), file, -1)
ON_FILE(int, fsync, 1, (int file), (file), file, -1)
ON_FILE(int, fdatasync, 1, (int file), (file), file, -1)
ON_FILE(int, ftruncate, 1, (int file, off_t size), (file, size), file, -1)
ON_FILE(int, ftruncate64, 1, (int file, off64_t size), (file, size), file, -1)
ON_FILE(ssize_t, sendfile, 1, (int to, int from, off_t *at, size_t size), (to, from, at, size), to, -1)
ON_FILE(ssize_t, sendfile64, 1, (int to, int from, off64_t *at, size_t size), (to, from, at, size), to, -1)
ON_FILE(ssize_t, copy_file_range, 1, (int from, off64_t *a, int to, off64_t *b, size_t size, unsigned flags),
        (from, a, to, b, size, flags), to, -1)
ON_FILE(size_t, fwrite, 1, (const void *bytes, size_t size, size_t count, FILE *file), (bytes, size, count, file),
        fileno(file), 0)
#define ON_PATH(name, room, parameters, arguments, path) \
  int name parameters { \
    static int(*real) parameters; \
    if (!real) real = (int(*) parameters)dlsym(RTLD_NEXT, #name); \
    if (below(path) && strike(room)) return -1; \
    return real arguments; \
  }
ON_PATH(rename, 1, (const char *from, const char *to), (from, to), to)
ON_PATH(renameat, 1, (int a, const char *from, int b, const char *to), (a, from, b, to), to)
ON_PATH(renameat2, 1, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags), to)
ON_PATH(link, 1, (const char *from, const char *to), (from, to), to)
ON_PATH(linkat, 1, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags), to)
ON_PATH(mkdir, 1, (const char *path, mode_t mode), (path, mode), path)
ON_PATH(truncate, 1, (const char *path, off_t size), (path, size), path)
ON_PATH(truncate64, 1, (const char *path, off64_t size), (path, size), path)
ON_PATH(unlink, 0, (const char *path), (path), path)
ON_PATH(rmdir, 0, (const char *path), (path), path)
int unlinkat(int folder, const char *path, int flags) {
  REAL(int, unlinkat, int, const char *, int);
  if ((path[0] == '/' || folder == AT_FDCWD ? below(path) : of_file(folder)) && strike(0)) return -1;
  return real(folder, path, flags);
}
