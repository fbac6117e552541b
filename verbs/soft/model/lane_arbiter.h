// Which lane of a port sends next.
//
// Ethernet (802.1Qaz): strict priorities first, the highest before all; the others share by deficit round
// robin over their weights, a quantum being a weight's part of the smallest turn in which every lane sends at
// least one packet. InfiniBand (IBTA volume 1, 7.6.9): two tables of (lane, weight). An entry sends packets
// until its weight, in units of 64 bytes, is used up: the last packet may exceed it, so a turn is ceil(64 x
// weight / packet) packets. The high table goes first; after `limit` x 4 KB of it one packet of the low table
// is let through.
//
// Thread rule: single threaded.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "verbs/soft/model/network_settings.h"
#include "verbs/soft/model/packet.h"

namespace sluice::soft {

class LaneArbiter {
 public:
  // `settings` outlives the arbiter.
  LaneArbiter(const SwitchSettings* settings, bool infiniband)
      : settings_(settings), infiniband_(infiniband) {}

  // `eligible`: a bit per lane that has a packet and may send it; not 0. Lanes of no table and no weight
  // never send: kLanes then.
  uint32_t Pick(uint32_t eligible) {
    return infiniband_ ? PickVirtualLane(eligible) : PickPriority(eligible);
  }
  // A packet of the lane that Pick named was sent.
  void Sent(uint32_t lane, uint32_t bytes);

 private:
  struct Turn {
    uint32_t entry = 0;
    int32_t left_bytes = 0;
  };
  uint32_t PickPriority(uint32_t eligible);
  uint32_t PickVirtualLane(uint32_t eligible);
  static uint32_t PickFrom(const std::vector<VlWeight>& table, uint32_t eligible, Turn* turn);

  const SwitchSettings* settings_;
  Turn turns_[2];  // low (Ethernet: the only one), high
  std::array<int32_t, kLanes> deficit_{};
  uint32_t high_bytes_ = 0;  // since a low packet had its chance
  uint32_t table_ = 0;       // of the last pick
  bool infiniband_;
};

}  // namespace sluice::soft
