// Plugins that look for RDMA devices below /sys/class/infiniband by that fixed name, instead of following what libibverbs
// says, find the tree of the software fabric there: this program's definitions of the functions that take paths stand
// before the C library's. Paths that the tree does not have, and all other paths, are left alone; so is everything
// when the loaded libibverbs is that of the system.
//
// Threads: any.
#undef _FORTIFY_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#define SLUICE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr char kSys[] = "/sys";
constexpr char kDevices[] = "/sys/class/infiniband";

template <typename Function>
Function* Next(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}
#define SLUICE_NEXT(name) Next(static_cast<decltype(&name)>(nullptr), #name)

// What stands for /sys; nullptr: nothing does.
const char* FabricRoot() {
  static std::atomic<const char* (*)()> get{nullptr};
  auto* function = get.load(std::memory_order_acquire);
  if (function == nullptr) {
    void* library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) return nullptr;
    function = reinterpret_cast<const char* (*)()>(dlsym(library, "ibv_get_sysfs_path"));
    if (function == nullptr) return nullptr;
    get.store(function, std::memory_order_release);
  }
  const char* root = function();
  return root == nullptr || strcmp(root, kSys) == 0 ? nullptr : root;
}

class Path {
 public:
  explicit Path(const char* path) : path_(path) {
    if (path == nullptr || strncmp(path, kDevices, sizeof kDevices - 1) != 0) return;
    const int error = errno;
    const char* root = FabricRoot();
    struct stat status;
    if (root != nullptr &&
        snprintf(redirected_, sizeof redirected_, "%s%s", root, path + sizeof kSys - 1) < PATH_MAX &&
        fstatat(AT_FDCWD, redirected_, &status, AT_SYMLINK_NOFOLLOW) == 0) {
      path_ = redirected_;
    }
    errno = error;
  }
  const char* get() const { return path_; }

 private:
  const char* path_;
  char redirected_[PATH_MAX];
};

}  // namespace

#define SLUICE_OPEN(name)                                             \
  SLUICE_EXPORT int name(const char* path, int flags, ...) {          \
    mode_t mode = 0;                                                  \
    if ((flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE) { \
      va_list arguments;                                              \
      va_start(arguments, flags);                                     \
      mode = va_arg(arguments, mode_t);                               \
      va_end(arguments);                                              \
    }                                                                 \
    return SLUICE_NEXT(name)(Path(path).get(), flags, mode);          \
  }
SLUICE_OPEN(open)
SLUICE_OPEN(open64)

SLUICE_EXPORT FILE* fopen(const char* path, const char* mode) {
  return SLUICE_NEXT(fopen)(Path(path).get(), mode);
}
SLUICE_EXPORT FILE* fopen64(const char* path, const char* mode) {
  return SLUICE_NEXT(fopen64)(Path(path).get(), mode);
}
SLUICE_EXPORT DIR* opendir(const char* path) {
  return SLUICE_NEXT(opendir)(Path(path).get());
}
SLUICE_EXPORT char* realpath(const char* path, char* resolved) noexcept {
  return SLUICE_NEXT(realpath)(Path(path).get(), resolved);
}
// What fortified programs call.
SLUICE_EXPORT char* __realpath_chk(const char* path, char* resolved, size_t) {
  return realpath(path, resolved);
}
SLUICE_EXPORT int __open_2(const char* path, int flags) {
  return open(path, flags);
}
SLUICE_EXPORT int __open64_2(const char* path, int flags) {
  return open64(path, flags);
}
