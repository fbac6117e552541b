#include "tools/perf/plugin_copy.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "tools/perf/socket.h"

namespace sluice::perf {
namespace {

// End of what the loader maps of an ELF file, in bytes of the file; all of it when the file is of another
// kind.
off_t LoadedBytes(int fd, off_t size) {
  ElfW(Ehdr) header{};
  if (pread(fd, &header, sizeof header, 0) != sizeof header) return size;
  if (memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_phentsize != sizeof(ElfW(Phdr))) return size;
  std::vector<ElfW(Phdr)> parts(header.e_phnum);
  const auto bytes = static_cast<ssize_t>(parts.size() * sizeof(ElfW(Phdr)));
  if (pread(fd, parts.data(), static_cast<size_t>(bytes), static_cast<off_t>(header.e_phoff)) != bytes)
    return size;
  off_t end = static_cast<off_t>(header.e_phoff) + bytes;
  for (const ElfW(Phdr) & part : parts) {
    if (part.p_type == PT_LOAD) end = std::max(end, static_cast<off_t>(part.p_offset + part.p_filesz));
  }
  return std::min(end, size);
}

}  // namespace

Result<std::string> FindPlugin(const std::string& plugin) {
  if (plugin.find('/') != std::string::npos) return plugin;
  std::string cause;
  for (const std::string& name : {plugin, "libnccl-net-" + plugin + ".so"}) {
    void* library = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) {
      if (cause.empty()) cause = dlerror();
      continue;
    }
    const link_map* map = nullptr;
    std::string path;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != nullptr) path = map->l_name;
    dlclose(library);
    if (!path.empty()) return path;
  }
  return SystemError("cannot load the plugin " + plugin + ": " + cause);
}

Result<PluginCopy> PluginCopy::Make(const std::string& file, const std::string& label) {
  const FileDescriptor from(open(file.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (from.get() < 0 || fstat(from.get(), &status) != 0) return SystemError("the plugin " + file, errno);
  PluginCopy copy(memfd_create(("plugin of " + label).c_str(), MFD_CLOEXEC));
  if (copy.fd_ < 0) {
    return SystemError("cannot copy the plugin for " + label, errno,
                       "raise the limit of open files (ulimit -n)");
  }
  const off_t bytes = LoadedBytes(from.get(), status.st_size);
  for (off_t at = 0; at < bytes;) {
    const ssize_t n = sendfile(copy.fd_, from.get(), &at, static_cast<size_t>(bytes - at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      return SystemError("cannot copy the plugin " + file + " for " + label, n == 0 ? EIO : errno,
                         "free memory");
  }
  // The loader looks at nothing behind it, but the section table must not seem to begin inside.
  if (ftruncate(copy.fd_, status.st_size) != 0)
    return SystemError("cannot copy the plugin " + file, errno, "free memory");
  return copy;
}

PluginCopy::~PluginCopy() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace sluice::perf
