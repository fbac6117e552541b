// The counters of a NIC port as software on a real host sees them: the names, units, widths and age of an
// mlx5 device's sysfs files counters/ and hw_counters/.
//
//   PortCounterView view(LinkLayer::kEthernet, 400'000'000'000);
//   if (view.Refresh(fabric->Now(), *nic->counters(1))) ...    // at most once per 10 ms of model time
//   for (const PortCounterView::Value& v : view.port()) ...    // {"port_xmit_data", 1234}
//
// Data counters are in 4-byte words without preamble, gap and outer checksum, 64 bits wide. Error counters of
// the port are as wide as in the management packet they come from (8 or 16 bits) and stay at their limit.
// Counters of queue pairs and port_xmit_wait have 32 bits and wrap. A tick of port_xmit_wait is the time of
// one word, so that wait / (wait + data) is a share of time. Thread rule: as a value type.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "verbs/soft/model/clock.h"
#include "verbs/soft/model/nic.h"

namespace sluice::soft {

// How old a value may be: the kernel's RDMA_HW_STATS_DEFAULT_LIFESPAN.
inline constexpr Picos kCounterPeriod = 10 * kPicosPerMs;

class PortCounterView {
 public:
  struct Value {
    const char* name;
    uint64_t value;
  };

  PortCounterView(LinkLayer link_layer, uint64_t rate_bps);

  // Takes over the present values if those it has are of an earlier period of 10 ms; true if it did.
  bool Refresh(Picos now, const PortCounters& counters);
  // Whatever their age.
  void RefreshNow(Picos now, const PortCounters& counters);

  // The files of counters/ and hw_counters/, always the same ones in the same order.
  std::span<const Value> port() const { return port_; }
  std::span<const Value> hardware() const { return hardware_; }
  std::optional<uint64_t> Get(std::string_view name) const;

 private:
  LinkLayer link_layer_;
  uint64_t rate_bps_;
  int64_t period_ = -1;  // of the values
  std::vector<Value> port_;
  std::vector<Value> hardware_;
};

}  // namespace sluice::soft
