#include "verbs/soft/model/network_settings.h"

#include <string>

namespace sluice::soft {

SwitchSettings SwitchSettings::Shared64() {
  SwitchSettings settings;
  settings.ecn.enabled = true;
  return settings;
}

SwitchSettings SwitchSettings::Htsim() {
  constexpr uint64_t kPacketBytes = 4000;
  SwitchSettings settings;
  settings.buffer = BufferMode::kStatic;
  settings.lossless_priorities = 0xFF;
  settings.xoff_bytes = 15 * kPacketBytes;
  settings.xon_bytes = 12 * kPacketBytes;
  settings.queue_bytes = 200 * kPacketBytes;
  settings.strict_priorities = 0;
  settings.pause_on_wire = false;
  settings.staged_events = true;
  settings.pause_response = 0;
  return settings;
}

SwitchSettings SwitchSettings::Deep() {
  SwitchSettings settings = Shared64();
  settings.pool_bytes = uint64_t{8} << 30;
  return settings;
}

SwitchSettings SwitchSettings::InfiniBand() {
  SwitchSettings settings;
  settings.vl_low = {{0, 64}, {1, 64}, {2, 64}, {3, 64}};
  settings.sl_to_vl = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
  return settings;
}

SwitchSettings SwitchSettings::Unbounded() {
  SwitchSettings settings;
  settings.queue = QueueMode::kUnbounded;
  return settings;
}

Result<SwitchSettings> SwitchSettings::Preset(std::string_view name) {
  if (name == "shared64") return Shared64();
  if (name == "htsim") return Htsim();
  if (name == "deep") return Deep();
  if (name == "infiniband") return InfiniBand();
  if (name == "unbounded") return Unbounded();
  return InvalidArgument("switch preset \"" + std::string(name) +
                         "\" does not exist; allowed: shared64, htsim, deep, infiniband, unbounded");
}

NicSettings NicSettings::Realistic() {
  NicSettings settings;
  settings.doorbell = 300 * kPicosPerNs;
  settings.pcie_read = 700 * kPicosPerNs;
  settings.pcie_read_bps = 440'000'000'000;
  settings.pcie_write_bps = 440'000'000'000;
  settings.work_requests_per_second_qp = 16'000'000;
  settings.work_requests_per_second = 200'000'000;
  return settings;
}

Result<NicSettings> NicSettings::Preset(std::string_view name) {
  if (name == "instant") return Instant();
  if (name == "realistic") return Realistic();
  return InvalidArgument("NIC preset \"" + std::string(name) +
                         "\" does not exist; allowed: instant, realistic");
}

}  // namespace sluice::soft
