#include "plugin/private_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace sluice {

std::string PrivateDirectoryPath(const std::string& shared_dir) {
  return shared_dir + "/sluice-" + std::to_string(geteuid());
}

Result<int> OpenPrivateDirectory(const std::string& shared_dir) {
  const std::string path = PrivateDirectoryPath(shared_dir);
  const auto refuse = [&](int error) {
    return SystemError("the directory " + path + " cannot be used", error,
                       "SLUICE_SHARED_DIR names another place for it");
  };
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return refuse(errno);
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return refuse(errno);
  struct stat info {};
  const int error = fstat(fd, &info) != 0 ? errno : info.st_uid != geteuid() ? EACCES : 0;
  if (error == 0) return fd;
  close(fd);
  return refuse(error);
}

}  // namespace sluice
