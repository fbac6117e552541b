// The ActivityBoard of one port as a file in shared memory: what the scheduler sees of other engines, communicators
// and processes of the host.
//
// The file is <dir>/sluice-<uid>/port-<version>-<key>, where the key stands for the device (GUID and sysfs directory)
// and the port. It belongs to one user: others neither read nor write it. The last one to close it removes it; after a crash the
// next one gives the seats of the dead free and removes it.
//
// Threads: one at a time; the board itself is shared.
#pragma once

#include <string>

#include "base/status.h"
#include "tuner/port_share.h"
#include "verbs/device.h"

namespace sluice {

class ActivityFile {
 public:
  ActivityFile() = default;
  ActivityFile(ActivityFile&& other) noexcept { *this = std::move(other); }
  ActivityFile& operator=(ActivityFile&& other) noexcept;
  ~ActivityFile() { Close(); }

  // `dir`: a directory in memory, such as /dev/shm. `port`: what names the port on this host, as NameOf.
  static Result<ActivityFile> Open(const std::string& dir, const std::string& port);
  static std::string NameOf(const Port& port);
  // A board that nobody else sees.
  static Result<ActivityFile> Private();

  ActivityBoard* board() const { return board_; }
  // This process, for the seat of the engine `uid`.
  static PortShare::Owner OwnerOf(uint64_t uid);
  // Nobody may use the board of this object after it.
  void Close();

 private:
  ActivityBoard* board_ = nullptr;
  std::string path_;  // empty: private
};

}  // namespace sluice
