// Port counters that drivers publish in sysfs.
//
//   PortCounters counters = ReadPortCounters(device.ibdev_path(), 1);
//   uint64_t cnps = counters.Get("np_cnp_sent").value_or(0);
//
// Names are the drivers' own: counters/ is common to all (port_xmit_data, port_xmit_wait, ...), hw_counters/
// differs (out_of_sequence, rnr_nak_retry_err, local_ack_timeout_err, np_ecn_marked_roce_packets,
// rp_cnp_handled, ...). Missing directories give an empty set: not every device has counters.
//
// Thread rule: any thread; opens and reads files, so never on the data path.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

class PortCounters {
 public:
  std::optional<uint64_t> Get(std::string_view name) const;
  // port_xmit_data and port_rcv_data count 4-byte words; these are bytes.
  std::optional<uint64_t> TransmittedBytes() const;
  std::optional<uint64_t> ReceivedBytes() const;

  const std::map<std::string, uint64_t, std::less<>>& values() const { return values_; }
  bool empty() const { return values_.empty(); }

  // What grew since `before`, by name. A counter that is smaller than before has wrapped, when it stood in
  // the upper half of 32 bits (queue-pair counters, port_xmit_wait), or else was reset and counts from zero.
  PortCounters Since(const PortCounters& before) const;

 private:
  friend PortCounters ReadPortCounters(const std::string& ibdev_path, uint8_t port);
  std::map<std::string, uint64_t, std::less<>> values_;
};

// <ibdev_path>/ports/<port>/counters and hw_counters; also <ibdev_path>/hw_counters, where some drivers have
// per-device ones (prefixed "device/"). Unreadable and non-numeric files are left out.
PortCounters ReadPortCounters(const std::string& ibdev_path, uint8_t port);

}  // namespace sluice
