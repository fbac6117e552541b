// A directory tree that stands for /sys: per host class/infiniband/<device> with what programs read there, in
// the layout and the words of the kernel. `ibv_device.ibdev_path` points into it.
//
//   SysfsTree tree;  tree.Create("default");
//   std::string root = *tree.HostRoot(fabric, host);    // root + "/class/infiniband/soft0/ports/1/state"
//   tree.Refresh(fabric);                               // port states and GIDs that have changed, and
//                                                       // counters if theirs are of an earlier 10 ms
//
// The tree lies in $XDG_RUNTIME_DIR, $TMPDIR or /tmp, holds a lock while its process lives, and is removed
// with the object; trees without a living owner are removed by the next fabric of the same user. Thread rule:
// one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "verbs/soft/ipc/socket.h"
#include "verbs/soft/model/fabric.h"
#include "verbs/soft/model/port_counters.h"

namespace sluice::soft {

class SysfsTree {
 public:
  SysfsTree() = default;
  ~SysfsTree();
  SysfsTree(const SysfsTree&) = delete;
  SysfsTree& operator=(const SysfsTree&) = delete;

  Status Create(const std::string& instance);
  Result<std::string> HostRoot(Fabric* fabric, uint32_t host);
  void Refresh(Fabric* fabric) { Refresh(fabric, false); }
  // Counters too, whatever their age.
  void RefreshNow(Fabric* fabric) { Refresh(fabric, true); }
  // Model time has entered another period of 10 ms: Refresh has newer counters.
  bool Due(const Fabric& fabric) const { return fabric.Now() / kCounterPeriod != period_; }
  const std::string& root() const { return root_; }

 private:
  struct PortFiles {
    PortCounterView view;
    std::vector<uint64_t> written;  // of view.port(), then view.hardware(); empty: nothing yet
    uint32_t uplink = UINT32_MAX;   // directed link that the port sends on, once looked up
  };
  void Refresh(Fabric* fabric, bool now);
  Status Write(const std::string& path, const std::string& text);
  Status WriteHost(Fabric* fabric, uint32_t host, const std::string& root);
  Status WriteDevice(Nic* nic, const NicSpec& spec, const std::string& root);
  // `spec`: also what never changes; nullptr: what may have changed, without counters.
  Status WritePort(Nic* nic, uint32_t port, const std::string& directory, const PortSpec* spec);
  Status RefreshCounters(Fabric* fabric, const LinkEnd& end, bool now, PortFiles* files,
                         const std::string& directory);
  // Those that differ from the files.
  Status WriteCounters(PortFiles* files, const std::string& directory);

  std::string root_;
  UniqueFd lock_;
  std::map<uint32_t, std::string> hosts_;
  std::map<std::string, std::string> written_;  // path to content, of what may change
  std::map<std::string, PortFiles> ports_;      // by directory
  int64_t period_ = -1;                         // of the counters
};

}  // namespace sluice::soft
