// What arithmetic says, without any other simulator.
#include <algorithm>
#include <cmath>
#include <string>

#include "tools/scenario/flow_network.h"
#include "tools/scenario/runs.h"
#include "tools/scenario/validate.h"
#include "verbs/soft/flows/random.h"

namespace sluice::scenario {
namespace {

using soft::FlowId;
using soft::Picos;
using soft::Simulation;
using soft::Topology;

double Seconds(Picos time) {
  return static_cast<double>(time) * 1e-12;
}

Result<std::unique_ptr<Simulation>> Make(const std::string& text, const soft::SwitchSettings& switches,
                                         const soft::NicSettings& nic, const soft::RcSettings& rc) {
  Result<Topology> topology = Topology::FromText(text);
  if (!topology.ok()) return topology.status();
  topology->switch_settings = switches;
  topology->nic_settings = nic;
  soft::SimulationSettings settings;
  settings.rc = rc;
  return Simulation::Create(std::move(*topology), settings);
}

Status CheckOneFlow(Checks* out) {
  RunConfig config;
  config.size = Size::kCi;
  Result<Outcome> outcome = RunUncontended(config);
  if (!outcome.ok()) return outcome.status();
  double low = 1;
  double high = 1;
  for (const Metric& metric : outcome->metrics) {
    if (metric.name.find("closed form") == std::string::npos) continue;
    low = std::min(low, metric.value);
    high = std::max(high, metric.value);
  }
  out->Within("closed form", "one flow, 64 B to 16 MiB, least latency / formula", low, 1, 0.01);
  out->Within("closed form", "one flow, 64 B to 16 MiB, most latency / formula", high, 1, 0.01);
  return Status::Ok();
}

// Loss so frequent that more than 1000 packets are lost and more than 30 times the timer must help.
Status CheckGoBackN(Checks* out) {
  constexpr double kLoss = 0.005;
  constexpr uint8_t kTimeout = 6;
  constexpr uint64_t kPackets = 800'000;
  soft::RcSettings rc;
  rc.timeout = kTimeout;
  rc.retry_count = 255;
  rc.first_bytes = rc.last_bytes = 0;
  Result<std::unique_ptr<Simulation>> made = Make(
      "hosts=2,rate=400G,delay=1us", soft::SwitchSettings::Unbounded(), soft::NicSettings::Instant(), rc);
  if (!made.ok()) return made.status();
  Simulation& simulation = **made;
  soft::Random random(1, soft::kRandomLoss, kTimeout);
  simulation.context().fault_hook = [&](const soft::PacketView& view) {
    return view.from_host && random.Unit() < kLoss ? soft::PacketFate::kDrop : soft::PacketFate::kDeliver;
  };
  const FlowId flow = simulation.AddFlow({.source = 0, .destination = 1});
  simulation.PostAt(0, flow, kPackets * rc.payload_bytes);
  simulation.Run();
  const double packet = Seconds(soft::SerialisationTime(rc.payload_bytes + rc.header_bytes, 400'000'000'000));
  const double answer = Seconds(soft::SerialisationTime(rc.ack_bytes, 400'000'000'000));
  const double wasted = (4e-6 + 3 * packet + 2 * answer) / packet;
  const double timer = std::ldexp(4.096e-6, kTimeout) / packet;
  const double formula = 1 / (1 + kLoss * wasted + kLoss * 2 * kLoss * timer);
  const double share = static_cast<double>(kPackets) * packet / Seconds(simulation.FinishTime(flow));
  out->Within("closed form", "go-back-N at 0.5 % loss, goodput / lossless", share, formula, 0.1);
  return Status::Ok();
}

// Two senders keep two lanes of one link full; bytes received of each in `time`.
Result<std::pair<double, double>> TwoSenders(const std::string& text, const soft::SwitchSettings& switches,
                                             const soft::NicSettings& nic, uint8_t second_sl, Picos from,
                                             Picos to, Checks* out) {
  const bool infiniband = text.find("infiniband") != std::string::npos;
  Result<std::unique_ptr<Simulation>> made =
      Make(text, switches, nic, infiniband ? soft::RcSettings::InfiniBand() : soft::RcSettings::Roce());
  if (!made.ok()) return made.status();
  Simulation& simulation = **made;
  constexpr uint64_t kPieceBytes = 1 << 14;
  const auto pieces = static_cast<uint64_t>(static_cast<double>(RateOf(simulation.topology())) * Seconds(to) /
                                            8 / static_cast<double>(kPieceBytes));
  for (uint32_t i = 0; i < 2; ++i) {
    const FlowId flow = simulation.AddFlow(
        {.source = i, .destination = 2, .sl = i == 0 ? uint8_t{0} : second_sl, .control = StaticControl()});
    for (uint64_t piece = 0; piece < pieces; ++piece) simulation.PostAt(0, flow, kPieceBytes);
  }
  simulation.Run(from);
  const uint64_t first = simulation.ReceivedMessages(0);
  const uint64_t second = simulation.ReceivedMessages(1);
  simulation.Run(to);
  if (simulation.statistics().dropped_packets != 0) {
    out->Within("closed form", "packets dropped in a lossless network (" + text + ")",
                static_cast<double>(simulation.statistics().dropped_packets), 0, 0);
  }
  return std::make_pair(static_cast<double>((simulation.ReceivedMessages(0) - first) * kPieceBytes),
                        static_cast<double>((simulation.ReceivedMessages(1) - second) * kPieceBytes));
}

Status CheckLanes(Checks* out) {
  soft::SwitchSettings switches = soft::SwitchSettings::InfiniBand();
  switches.vl_high.clear();
  switches.vl_low = {{0, 64}, {1, 96}, {2, 1}, {3, 1}};
  Result<std::pair<double, double>> bytes =
      TwoSenders("hosts=3,rate=100G,delay=100ns,link=infiniband", switches, soft::NicSettings::Instant(), 1,
                 soft::kPicosPerMs, 20 * soft::kPicosPerMs, out);
  if (!bytes.ok()) return bytes.status();
  // ceil(64 w / packet) packets a turn: 1 of 4122 bytes for weight 64, 2 for weight 96.
  out->Within("closed form", "VL weights 64:96 with 4 KiB packets, share of the second / first",
              bytes->second / bytes->first, 2, 0.01);
  return Status::Ok();
}

Status CheckCredits(Checks* out) {
  soft::SwitchSettings switches = soft::SwitchSettings::InfiniBand();
  switches.vl_buffer_bytes = 32 << 10;
  switches.credit_processing = 0;
  soft::RcSettings rc = soft::RcSettings::InfiniBand();
  rc.payload_bytes = 1024 - rc.header_bytes;  // 1 KiB on the wire
  rc.first_bytes = rc.last_bytes = 0;
  Result<std::unique_ptr<Simulation>> made =
      Make("hosts=2,rate=400G,delay=1us,link=infiniband", switches, soft::NicSettings::Instant(), rc);
  if (!made.ok()) return made.status();
  const FlowId flow = (*made)->AddFlow({.source = 0, .destination = 1});
  constexpr uint64_t kPackets = 50'000;
  (*made)->PostAt(0, flow, kPackets * rc.payload_bytes);
  (*made)->Run();
  const double rate = static_cast<double>(kPackets * 1024) * 8e-9 / Seconds((*made)->ReceiveTime(flow));
  // A buffer is taken from a packet's start on one link to its end on the next; its credit takes the way
  // back.
  const double loop = 2e-6 + 2 * 1024 * 8 / 400e9;
  out->Within("closed form", "InfiniBand below the knee, 32 KiB / loop, Gb/s", rate, (32 << 10) * 8e-9 / loop,
              0.01);
  return Status::Ok();
}

}  // namespace

void CheckClosedForms(Checks* out) {
  for (const Status& status : {CheckOneFlow(out), CheckGoBackN(out), CheckLanes(out), CheckCredits(out)}) {
    if (!status.ok()) out->failures.push_back(status.message());
  }
}

}  // namespace sluice::scenario
