// Sizes and times of the UEC transports, which serve as yardsticks in the model only.
#pragma once

#include <cstdint>

#include "verbs/soft/model/clock.h"

namespace sluice::soft {

struct UecSettings {
  uint32_t packet_bytes = 4150;  // of a full data packet on the wire
  uint32_t header_bytes = 64;    // of these; also the size of every control packet
  Picos network_rtt = 0;         // unloaded, data one way and an acknowledgement back, over the longest path
  uint64_t window_bytes = 0;     // at the start; 0: 1.5 bandwidth-delay products
  uint16_t paths = 64;           // entropy values to spray over, a power of two
  uint32_t ack_bytes = 16384;    // received before an acknowledgement that nothing else asks for
  Picos retransmit_timeout = 100 * kPicosPerUs;
  double pull_rate = 0.99;       // of the receiver's link
  uint8_t control_priority = 7;  // where control packets travel, with the headers of trimmed packets

  uint32_t payload_bytes() const { return packet_bytes - header_bytes; }
  uint64_t max_window_bytes(uint64_t rate_bps) const {
    return static_cast<uint64_t>(1.5 * static_cast<double>(network_rtt) * 1e-12 *
                                 static_cast<double>(rate_bps) / 8);
  }
};

// Credit is counted in units of 256 bytes; a pull grants four packets of 4 KiB.
inline constexpr uint64_t kPullUnitBytes = 256;
inline constexpr uint64_t kPullUnits = 4 * 4096 / kPullUnitBytes;

}  // namespace sluice::soft
