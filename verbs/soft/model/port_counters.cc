#include "verbs/soft/model/port_counters.h"

#include <algorithm>

namespace sluice::soft {
namespace {

// What of a packet's wire bytes port_xmit_data leaves out: preamble, gap and frame check sequence, or VCRC.
constexpr uint64_t kEthernetOutside = 24;
constexpr uint64_t kInfiniBandOutside = 2;

struct Port {
  const PortCounters& c;
  LinkLayer link_layer;
  uint64_t rate_bps;

  uint64_t Words(uint64_t bytes, uint64_t packets) const {
    const uint64_t outside =
        packets * (link_layer == LinkLayer::kEthernet ? kEthernetOutside : kInfiniBandOutside);
    return bytes <= outside ? 0 : (bytes - outside) / 4;
  }
  uint64_t WaitTicks() const {
    const auto bits = static_cast<unsigned __int128>(c.transmit_wait) * rate_bps;
    return static_cast<uint64_t>(bits / (32 * static_cast<uint64_t>(kPicosPerSecond)));
  }
};

enum class Width : uint8_t { kSticky8, kSticky16, kWrap32, kWide };

uint64_t Fit(uint64_t value, Width width) {
  switch (width) {
    case Width::kSticky8:
      return std::min<uint64_t>(value, 0xFF);
    case Width::kSticky16:
      return std::min<uint64_t>(value, 0xFFFF);
    case Width::kWrap32:
      return value & 0xFFFFFFFF;
    case Width::kWide:
      break;
  }
  return value;
}

struct Counter {
  const char* name;
  Width width;
  uint64_t (*read)(const Port& port);
};

uint64_t Zero(const Port&) {
  return 0;
}

constexpr Counter kPortCounters[] = {
    {"port_xmit_data", Width::kWide, [](const Port& p) { return p.Words(p.c.tx_bytes, p.c.tx_packets); }},
    {"port_rcv_data", Width::kWide, [](const Port& p) { return p.Words(p.c.rx_bytes, p.c.rx_packets); }},
    {"port_xmit_packets", Width::kWide, [](const Port& p) { return p.c.tx_packets; }},
    {"port_rcv_packets", Width::kWide, [](const Port& p) { return p.c.rx_packets; }},
    {"unicast_xmit_packets", Width::kWide, [](const Port& p) { return p.c.tx_packets; }},
    {"unicast_rcv_packets", Width::kWide, [](const Port& p) { return p.c.rx_packets; }},
    {"multicast_xmit_packets", Width::kWide, Zero},
    {"multicast_rcv_packets", Width::kWide, Zero},
    {"port_xmit_wait", Width::kWrap32, [](const Port& p) { return p.WaitTicks(); }},
    {"port_xmit_discards", Width::kSticky16, Zero},
    {"port_rcv_errors", Width::kSticky16, [](const Port& p) { return p.c.corrupted_packets; }},
    {"port_rcv_remote_physical_errors", Width::kSticky16, Zero},
    {"port_rcv_switch_relay_errors", Width::kSticky16, Zero},
    {"port_rcv_constraint_errors", Width::kSticky8, Zero},
    {"port_xmit_constraint_errors", Width::kSticky8, Zero},
    {"symbol_error", Width::kSticky16, Zero},
    {"link_error_recovery", Width::kSticky8, Zero},
    {"link_downed", Width::kSticky8, [](const Port& p) { return p.c.link_downed; }},
    {"local_link_integrity_errors", Width::kSticky8, Zero},
    {"excessive_buffer_overrun_errors", Width::kSticky8, Zero},
    {"VL15_dropped", Width::kSticky16, Zero},
};

constexpr Counter kHardwareCounters[] = {
    {"duplicate_request", Width::kWrap32, [](const Port& p) { return p.c.duplicate_request; }},
    {"implied_nak_seq_err", Width::kWrap32, [](const Port& p) { return p.c.implied_nak_seq_err; }},
    {"local_ack_timeout_err", Width::kWrap32, [](const Port& p) { return p.c.local_ack_timeout_err; }},
    {"out_of_buffer", Width::kWrap32, [](const Port& p) { return p.c.rnr_nak_sent; }},
    {"out_of_sequence", Width::kWrap32, [](const Port& p) { return p.c.out_of_sequence; }},
    {"packet_seq_err", Width::kWrap32, [](const Port& p) { return p.c.packet_seq_err; }},
    {"req_cqe_error", Width::kWrap32, [](const Port& p) { return p.c.req_cqe_error; }},
    {"req_cqe_flush_error", Width::kWrap32, [](const Port& p) { return p.c.req_cqe_flush_error; }},
    {"req_remote_access_errors", Width::kWrap32, [](const Port& p) { return p.c.req_remote_access_errors; }},
    {"req_remote_invalid_request", Width::kWrap32,
     [](const Port& p) { return p.c.req_remote_invalid_request; }},
    {"resp_cqe_error", Width::kWrap32, [](const Port& p) { return p.c.resp_cqe_error; }},
    {"resp_cqe_flush_error", Width::kWrap32, [](const Port& p) { return p.c.resp_cqe_flush_error; }},
    {"resp_local_length_error", Width::kWrap32, [](const Port& p) { return p.c.resp_local_length_error; }},
    {"resp_remote_access_errors", Width::kWrap32,
     [](const Port& p) { return p.c.resp_remote_access_errors; }},
    {"rnr_nak_retry_err", Width::kWrap32, [](const Port& p) { return p.c.rnr_nak_received; }},
    {"rx_atomic_requests", Width::kWrap32, [](const Port& p) { return p.c.rx_atomic_requests; }},
    {"rx_dct_connect", Width::kWrap32, Zero},
    {"rx_read_requests", Width::kWrap32, [](const Port& p) { return p.c.rx_read_requests; }},
    {"rx_write_requests", Width::kWrap32, [](const Port& p) { return p.c.rx_write_requests; }},
};

// Ethernet ports only. An mlx5 port has roce_adp_* and roce_slow_restart* too: they count what this transport
// does not do (it has no adaptive timer and no slow restart), so these files are left out.
constexpr Counter kRoceCounters[] = {
    {"np_cnp_sent", Width::kWrap32, [](const Port& p) { return p.c.np_cnp_sent; }},
    {"np_ecn_marked_roce_packets", Width::kWrap32,
     [](const Port& p) { return p.c.np_ecn_marked_roce_packets; }},
    {"rp_cnp_handled", Width::kWrap32, [](const Port& p) { return p.c.rp_cnp_handled; }},
    {"rp_cnp_ignored", Width::kWrap32, [](const Port& p) { return p.c.rp_cnp_ignored; }},
    {"rx_icrc_encapsulated", Width::kWrap32, Zero},
};

void Read(std::span<const Counter> counters, const Port& port, std::vector<PortCounterView::Value>* values) {
  for (const Counter& counter : counters) {
    values->push_back({counter.name, Fit(counter.read(port), counter.width)});
  }
}

}  // namespace

PortCounterView::PortCounterView(LinkLayer link_layer, uint64_t rate_bps)
    : link_layer_(link_layer), rate_bps_(rate_bps) {
  RefreshNow(0, {});
  period_ = -1;
}

bool PortCounterView::Refresh(Picos now, const PortCounters& counters) {
  if (now / kCounterPeriod == period_) return false;
  RefreshNow(now, counters);
  return true;
}

void PortCounterView::RefreshNow(Picos now, const PortCounters& counters) {
  period_ = now / kCounterPeriod;
  const Port port{counters, link_layer_, rate_bps_};
  port_.clear();
  hardware_.clear();
  Read(kPortCounters, port, &port_);
  Read(kHardwareCounters, port, &hardware_);
  if (link_layer_ == LinkLayer::kEthernet) Read(kRoceCounters, port, &hardware_);
  hardware_.push_back({"lifespan", static_cast<uint64_t>(kCounterPeriod / kPicosPerMs)});
}

std::optional<uint64_t> PortCounterView::Get(std::string_view name) const {
  for (const auto* values : {&port_, &hardware_}) {
    for (const Value& value : *values) {
      if (value.name == name) return value.value;
    }
  }
  return std::nullopt;
}

}  // namespace sluice::soft
