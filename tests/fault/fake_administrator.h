// A subnet administrator for the plugin of this process: stands for /dev/infiniband/umad0 of the first device and answers
// PathRecord questions by a function. Definitions of open, opendir and ioctl in the test program stand before the C
// library's; the program must export them (ENABLE_EXPORTS).
//
//   FakeAdministrator administrator("soft0", [](int slid, int dlid, int sl) { return sl < 0 ? 3 : -1; });
//
// One at a time. Threads: the function runs on a thread of its own.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace sluice::fault {

class FakeAdministrator {
 public:
  // The SL of the path, kNoPath, or kSilence. `sl` is that of the question, -1 for any.
  using Answer = std::function<int(int slid, int dlid, int sl)>;
  static constexpr int kNoPath = -1;
  static constexpr int kSilence = -2;

  FakeAdministrator(const std::string& device, Answer answer);
  ~FakeAdministrator();

 private:
  void Serve(const Answer& answer);

  std::string directory_;
  int far_end_ = -1;
  std::thread thread_;
};

}  // namespace sluice::fault
