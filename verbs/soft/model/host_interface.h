// What lies between a NIC's ports and host memory: PCIe and the work-request engine. Shared by the ports of a
// NIC.
//
// Reads overlap: each takes its share of the bandwidth in turn and arrives one latency later. Writes are
// posted: they take bandwidth and nothing waits for them, unless they come faster than they go.
//
// Thread rule: single threaded.
#pragma once

#include <algorithm>
#include <cstdint>

#include "verbs/soft/model/clock.h"
#include "verbs/soft/model/network_settings.h"

namespace sluice::soft {

class HostInterface {
 public:
  explicit HostInterface(const NicSettings& settings) : settings_(settings) {
    if (settings.work_requests_per_second != 0) {
      request_time_ = kPicosPerSecond / settings.work_requests_per_second;
    }
    if (settings.work_requests_per_second_qp != 0) {
      client_request_time_ = kPicosPerSecond / settings.work_requests_per_second_qp;
    }
  }
  const NicSettings& settings() const { return settings_; }
  // Whether sending costs anything here.
  bool stages() const {
    return settings_.pcie_read != 0 || settings_.pcie_read_bps != 0 || request_time_ != 0 ||
           client_request_time_ != 0;
  }

  // A read of host memory asked for now: when its last byte is in the NIC.
  Picos Read(Picos now, uint32_t bytes) {
    if (settings_.pcie_read_bps != 0) {
      read_free_ = std::max(read_free_, now) + SerialisationTime(bytes, settings_.pcie_read_bps);
    }
    return std::max(read_free_, now) + settings_.pcie_read;
  }
  // A client whose engine is free at *client_free starts a work request: when the NIC gets to it.
  Picos StartRequest(Picos now, Picos* client_free) {
    const Picos start = std::max({now, request_free_, *client_free});
    request_free_ = std::max(request_free_, now) + request_time_;
    *client_free = start + client_request_time_;
    return start;
  }
  // Before that moment writes to host memory have to wait.
  Picos write_free() const { return write_free_; }
  // When the write is done that is handed over now.
  Picos Write(Picos now, uint32_t bytes) {
    write_free_ = std::max(write_free_, now);
    if (settings_.pcie_write_bps != 0) write_free_ += SerialisationTime(bytes, settings_.pcie_write_bps);
    return write_free_;
  }

 private:
  NicSettings settings_;
  Picos request_time_ = 0;
  Picos client_request_time_ = 0;
  Picos read_free_ = 0;
  Picos write_free_ = 0;
  Picos request_free_ = 0;
};

}  // namespace sluice::soft
