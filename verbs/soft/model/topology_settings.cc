#include "verbs/soft/model/topology_settings.h"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace sluice::soft {
namespace {

Status Bad(const std::string& where, std::string_view key, const std::string& value,
           const std::string& allowed) {
  return InvalidArgument(where + ": " + std::string(key) + " = " + value + "; allowed: " + allowed);
}

Status SetCount(uint32_t* out, uint64_t low, uint64_t high, std::string_view key, const std::string& value,
                const std::string& where) {
  uint64_t number = 0;
  const auto parsed = std::from_chars(value.data(), value.data() + value.size(), number);
  if (parsed.ec != std::errc() || parsed.ptr != value.data() + value.size() || number < low ||
      number > high) {
    return Bad(where, key, value, std::to_string(low) + " to " + std::to_string(high));
  }
  *out = static_cast<uint32_t>(number);
  return {};
}

Status SetBool(bool* out, std::string_view key, const std::string& value, const std::string& where) {
  if (value != "true" && value != "false") return Bad(where, key, value, "true or false");
  *out = value == "true";
  return {};
}

struct Unit {
  std::string_view name;
  int64_t factor;
};

// A decimal number with up to three digits behind the point, and a unit. Exact: no floating point.
bool ParseQuantity(const std::string& text, const std::vector<Unit>& units, int64_t* out) {
  size_t i = 0;
  int64_t thousandths = 0;
  int decimals = -1;
  for (; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '.' && decimals < 0 && i != 0) {
      decimals = 0;
    } else if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
      if (decimals >= 3 || thousandths > 1'000'000'000) return false;
      if (decimals >= 0) ++decimals;
      thousandths = thousandths * 10 + (c - '0');
    } else {
      break;
    }
  }
  if (i == 0 || decimals == 0) return false;
  for (int d = std::max(decimals, 0); d < 3; ++d) thousandths *= 10;
  const std::string_view unit = std::string_view(text).substr(i);
  for (const Unit& u : units) {
    if (u.name != unit) continue;
    const __int128 scaled = static_cast<__int128>(thousandths) * u.factor / 1000;
    if (scaled > INT64_MAX) return false;
    *out = static_cast<int64_t>(scaled);
    return true;
  }
  return false;
}

Status SetRate(uint64_t* out, std::string_view key, const std::string& value, const std::string& where) {
  const std::vector<Unit> units = {{"M", 1'000'000},        {"Mb/s", 1'000'000},     {"Mbps", 1'000'000},
                                   {"G", 1'000'000'000},    {"Gb/s", 1'000'000'000}, {"Gbps", 1'000'000'000},
                                   {"T", 1'000'000'000'000}};
  int64_t rate = 0;
  if (!ParseQuantity(value, units, &rate) || rate < 1'000'000 || rate > 3'200'000'000'000) {
    return Bad(where, key, value, "1M to 3200G (bits per second), such as 400G");
  }
  *out = static_cast<uint64_t>(rate);
  return {};
}

Status SetDelay(Picos* out, std::string_view key, const std::string& value, const std::string& where) {
  const std::vector<Unit> units = {
      {"ps", 1}, {"ns", kPicosPerNs}, {"us", kPicosPerUs}, {"ms", kPicosPerMs}, {"s", kPicosPerSecond}};
  int64_t delay = 0;
  if (!ParseQuantity(value, units, &delay) || delay > kPicosPerSecond) {
    return Bad(where, key, value, "0ns to 1s, such as 1us or 300ns");
  }
  *out = delay;
  return {};
}

Status SetMtu(uint32_t* out, std::string_view key, const std::string& value, const std::string& where) {
  for (const uint32_t mtu : {256, 512, 1024, 2048, 4096}) {
    if (value == std::to_string(mtu)) {
      *out = mtu;
      return {};
    }
  }
  return Bad(where, key, value, "256, 512, 1024, 2048, 4096");
}

struct LimitKey {
  std::string_view name;
  uint32_t ResourceLimits::*field;
  uint64_t low;
  uint64_t high;
};

constexpr LimitKey kLimitKeys[] = {
    {"max_qp", &ResourceLimits::max_qp, 1, 1 << 22},
    {"max_qp_wr", &ResourceLimits::max_qp_wr, 1, 1 << 20},
    {"max_sge", &ResourceLimits::max_sge, 1, 64},
    {"max_inline", &ResourceLimits::max_inline, 0, 4096},
    {"max_cq", &ResourceLimits::max_cq, 1, 1 << 24},
    {"max_cqe", &ResourceLimits::max_cqe, 1, 1 << 24},
    {"max_mr", &ResourceLimits::max_mr, 1, 1 << 23},
    {"max_pd", &ResourceLimits::max_pd, 1, 1 << 24},
    {"max_srq", &ResourceLimits::max_srq, 1, 1 << 24},
    {"max_srq_wr", &ResourceLimits::max_srq_wr, 1, 1 << 20},
    {"max_srq_sge", &ResourceLimits::max_srq_sge, 1, 64},
    {"max_rd_atomic", &ResourceLimits::max_rd_atomic, 0, 128},
};

}  // namespace

Status SetHostKey(HostSettings* settings, std::string_view key, const std::string& value,
                  const std::string& where, bool* known) {
  *known = true;
  if (key == "nics") return SetCount(&settings->nics, 1, 16, key, value, where);
  if (key == "ports") return SetCount(&settings->ports, 1, 2, key, value, where);
  if (key == "rate") return SetRate(&settings->port.rate_bps, key, value, where);
  if (key == "delay") return SetDelay(&settings->port.delay, key, value, where);
  if (key == "mtu") return SetMtu(&settings->port.mtu_bytes, key, value, where);
  if (key == "pci") return SetBool(&settings->pci, key, value, where);
  if (key == "link") {
    if (value == "infiniband" || value == "ib") {
      settings->port.link_layer = LinkLayer::kInfiniBand;
    } else if (value == "roce" || value == "ethernet") {
      settings->port.link_layer = LinkLayer::kEthernet;
    } else {
      return Bad(where, key, value, "infiniband, roce");
    }
    return {};
  }
  if (key == "device") {
    const bool name = !value.empty() && value.size() <= 16 &&
                      std::all_of(value.begin(), value.end(),
                                  [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
    if (!name) return Bad(where, key, value, "1 to 16 letters, digits and underscores");
    settings->device = value;
    return {};
  }
  *known = false;
  return {};
}

Status SetFabricKey(FabricSettings* settings, std::string_view key, const std::string& value,
                    const std::string& where, bool* known) {
  *known = true;
  if (key == "hosts") {
    settings->on_demand = false;
    return SetCount(&settings->hosts, 1, 8192, key, value, where);
  }
  if (key == "on_demand") return SetBool(&settings->on_demand, key, value, where);
  return SetHostKey(&settings->host, key, value, where, known);
}

Status SetLimitKey(ResourceLimits* limits, std::string_view key, const std::string& value,
                   const std::string& where, bool* known) {
  *known = true;
  for (const LimitKey& limit : kLimitKeys) {
    if (limit.name == key) return SetCount(&(limits->*limit.field), limit.low, limit.high, key, value, where);
  }
  *known = false;
  return {};
}

std::string HostKeys() {
  return "nics, ports, link, rate, delay, mtu, device, pci";
}

std::string FabricKeys() {
  return "hosts, on_demand, " + HostKeys();
}

std::string LimitKeys() {
  std::string names;
  for (const LimitKey& limit : kLimitKeys) names += (names.empty() ? "" : ", ") + std::string(limit.name);
  return names;
}

Topology BuildSingleSwitch(const std::vector<NamedHost>& hosts, const ResourceLimits& limits,
                           bool on_demand) {
  Topology topology;
  topology.on_demand = on_demand;
  topology.switches.push_back({"switch0"});
  uint32_t switch_port = 0;
  for (uint32_t h = 0; h < hosts.size(); ++h) {
    const HostSettings& settings = hosts[h].settings;
    HostSpec host;
    host.name = hosts[h].name;
    for (uint32_t n = 0; n < settings.nics; ++n) {
      NicSpec nic;
      nic.name = settings.device + std::to_string(n);
      nic.pci = settings.pci;
      nic.limits = limits;
      nic.ports.assign(settings.ports, settings.port);
      for (uint32_t p = 0; p < settings.ports; ++p) {
        LinkSpec link;
        link.a = {false, h, n, p};
        link.b = {true, 0, 0, switch_port++};
        link.rate_bps = settings.port.rate_bps;
        link.delay = settings.port.delay;
        topology.links.push_back(link);
      }
      host.nics.push_back(std::move(nic));
    }
    topology.hosts.push_back(std::move(host));
  }
  return topology;
}

}  // namespace sluice::soft
