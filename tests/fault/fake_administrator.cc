#include "tests/fault/fake_administrator.h"

#undef _FORTIFY_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <rdma/ib_user_mad.h>
#include <rdma/rdma_user_ioctl.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace {

constexpr char kClass[] = "/infiniband_mad";
constexpr char kDevice[] = "/dev/infiniband/umad0";
std::string class_directory;  // empty: there is no administrator
int near_end = -1;

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

std::string Redirected(const char* path) {
  const char* at = class_directory.empty() ? nullptr : strstr(path, kClass);
  return at == nullptr ? path : class_directory + (at + sizeof(kClass) - 1);
}

unsigned Get(const unsigned char* at) {
  return static_cast<unsigned>(at[0] << 8 | at[1]);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE) {
    va_list arguments;
    va_start(arguments, flags);
    mode = va_arg(arguments, mode_t);
    va_end(arguments);
  }
  if (near_end >= 0 && strcmp(path, kDevice) == 0) return near_end;
  return Next<int(const char*, int, ...)>("open")(Redirected(path).c_str(), flags, mode);
}

extern "C" __attribute__((visibility("default"))) DIR* opendir(const char* path) {
  return Next<DIR*(const char*)>("opendir")(Redirected(path).c_str());
}

extern "C" __attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list arguments;
  va_start(arguments, request);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  if (fd != near_end || fd < 0) return Next<int(int, unsigned long, ...)>("ioctl")(fd, request, argument);
  if (request == IB_USER_MAD_REGISTER_AGENT) static_cast<ib_user_mad_reg_req*>(argument)->id = 1;
  return 0;
}

namespace sluice::fault {

FakeAdministrator::FakeAdministrator(const std::string& device, Answer answer) {
  char name[] = "/tmp/sluice-umad-XXXXXX";
  directory_ = mkdtemp(name);
  std::filesystem::create_directory(directory_ + "/umad0");
  std::ofstream(directory_ + "/umad0/ibdev") << device << "\n";
  std::ofstream(directory_ + "/umad0/port") << "1\n";
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) abort();
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  near_end = ends[0];
  far_end_ = ends[1];
  class_directory = directory_;
  thread_ = std::thread([this, answer = std::move(answer)] { Serve(answer); });
}

FakeAdministrator::~FakeAdministrator() {
  class_directory.clear();
  shutdown(far_end_, SHUT_RDWR);
  thread_.join();
  close(far_end_);
  std::filesystem::remove_all(directory_);
}

void FakeAdministrator::Serve(const Answer& answer) {
  unsigned char packet[64 + 256];
  unsigned char* const mad = packet + 64;
  while (read(far_end_, packet, sizeof(packet)) == static_cast<ssize_t>(sizeof(packet))) {
    const bool with_sl = (mad[48 + 6] & 0x80) != 0;  // bit 15 of the component mask
    const int sl = answer(static_cast<int>(Get(mad + 98)), static_cast<int>(Get(mad + 96)),
                          with_sl ? mad[109] & 15 : -1);
    if (sl == kSilence) continue;
    memset(packet, 0, 64);
    mad[3] = 0x81;
    if (sl == kNoPath) mad[4] = 3;
    mad[109] = static_cast<unsigned char>(sl & 15);
    if (write(far_end_, packet, sizeof(packet)) < 0) return;
  }
}

}  // namespace sluice::fault
