// LD_PRELOAD shim for plugins that read /sys/class/infiniband by its fixed name: a path below /sys that
// exists in the fake tree $NULLVERBS_SYSFS is opened there instead. A plugin that follows
// ibv_device.ibdev_path does not need it.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char* Root(void) {
  return getenv("NULLVERBS_SYSFS");
}

static const char* Redirect(const char* path, char buffer[PATH_MAX]) {
  struct stat st;
  if (!path || strncmp(path, "/sys/", 5) || !Root()) return path;
  snprintf(buffer, PATH_MAX, "%s%s", Root(), path + 4);
  return fstatat(AT_FDCWD, buffer, &st, AT_SYMLINK_NOFOLLOW) == 0 ? buffer : path;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define PATH(p) Redirect(p, (char[PATH_MAX]){0})

#define OPEN(name)                                          \
  int name(const char* path, int flags, ...) {              \
    va_list ap;                                             \
    va_start(ap, flags);                                    \
    mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0; \
    va_end(ap);                                             \
    return REAL(name)(PATH(path), flags, mode);             \
  }
OPEN(open)
OPEN(open64)

int openat(int dir, const char* path, int flags, ...) {
  va_list ap;
  va_start(ap, flags);
  mode_t mode = flags & O_CREAT ? va_arg(ap, mode_t) : 0;
  va_end(ap);
  return REAL(openat)(dir, PATH(path), flags, mode);
}

FILE* fopen(const char* path, const char* mode) {
  return REAL(fopen)(PATH(path), mode);
}
FILE* fopen64(const char* path, const char* mode) {
  return REAL(fopen64)(PATH(path), mode);
}
int access(const char* path, int mode) {
  return REAL(access)(PATH(path), mode);
}
int stat(const char* path, struct stat* st) {
  return REAL(stat)(PATH(path), st);
}
int lstat(const char* path, struct stat* st) {
  return REAL(lstat)(PATH(path), st);
}
ssize_t readlink(const char* path, char* buffer, size_t n) {
  return REAL(readlink)(PATH(path), buffer, n);
}
DIR* opendir(const char* path) {
  return REAL(opendir)(PATH(path));
}

char* realpath(const char* path, char* out) {
  char* p = REAL(realpath)(PATH(path), out);
  size_t n = Root() ? strlen(Root()) : 0;
  if (p && n && !strncmp(p, Root(), n) && p[n] == '/') {  // show the caller a path below /sys again
    memmove(p + 4, p + n, strlen(p + n) + 1);
    memcpy(p, "/sys", 4);
  }
  return p;
}

char* __realpath_chk(const char* path, char* out, size_t n);
char* __realpath_chk(const char* path, char* out, size_t n) {
  (void)n;
  return realpath(path, out);
}
