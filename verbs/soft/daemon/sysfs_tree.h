// A directory tree that stands for /sys: per host class/infiniband/<device> with what programs read there, in
// the layout and the words of the kernel. `ibv_device.ibdev_path` points into it.
//
//   SysfsTree tree;  tree.Create("default");
//   std::string root = *tree.HostRoot(fabric, host);    // root + "/class/infiniband/soft0/ports/1/state"
//   tree.Refresh(fabric);                               // counters and port states that have changed
//
// The tree lies in $XDG_RUNTIME_DIR, $TMPDIR or /tmp, holds a lock while its process lives, and is removed
// with the object; trees without a living owner are removed by the next fabric of the same user. Thread rule:
// one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/status.h"
#include "verbs/soft/ipc/socket.h"
#include "verbs/soft/model/fabric.h"

namespace sluice::soft {

class SysfsTree {
 public:
  SysfsTree() = default;
  ~SysfsTree();
  SysfsTree(const SysfsTree&) = delete;
  SysfsTree& operator=(const SysfsTree&) = delete;

  Status Create(const std::string& instance);
  Result<std::string> HostRoot(Fabric* fabric, uint32_t host);
  void Refresh(Fabric* fabric);
  const std::string& root() const { return root_; }

 private:
  Status Write(const std::string& path, const std::string& text);
  Status WriteHost(Fabric* fabric, uint32_t host, const std::string& root);
  Status WriteDevice(Nic* nic, const std::string& root);
  Status WritePort(Nic* nic, uint32_t port, const std::string& directory, bool all);

  std::string root_;
  UniqueFd lock_;
  std::map<uint32_t, std::string> hosts_;
  std::map<std::string, std::string> written_;  // path to content, of what may change
};

}  // namespace sluice::soft
