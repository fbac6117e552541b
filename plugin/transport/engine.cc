#include "plugin/transport/engine.h"

#include <sys/random.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <numeric>

#include "base/clock.h"
#include "plugin/log.h"
#include "plugin/transport/control.h"
#include "plugin/transport/devices.h"

namespace sluice {
namespace {

// Entries of a shared receive queue and work requests in flight of an engine port, before the device's
// limits.
constexpr uint32_t kReceiveEntries = 4096;
constexpr uint32_t kSendCredits = 4096;
constexpr uint32_t kFlushDepth = 32;

uint64_t RandomUid() {
  uint64_t uid = 0;
  while (getrandom(&uid, sizeof(uid), 0) != sizeof(uid) || uid == 0) continue;
  return uid;
}

}  // namespace

Engine::Engine(int engine_device, const Params& engine_params, const CommConfig& engine_config,
               bool is_infiniband, EventLoop& event_loop)
    : uid(RandomUid()),
      device(engine_device),
      params(engine_params),
      config(engine_config),
      infiniband(is_infiniband),
      loop(event_loop),
      receivers(static_cast<RecvConnection**>(calloc(kConnectionIndices, sizeof(RecvConnection*))),
                [](RecvConnection** table) { free(table); }) {
  for (uint32_t i = 0; i < kReceiveBatch; ++i) {
    receive_chain_[i].wr_id = 0;
    receive_chain_[i].num_sge = 0;
    receive_chain_[i].next = i + 1 < kReceiveBatch ? &receive_chain_[i + 1] : nullptr;
  }
}

Result<Engine*> Engine::Create(int device, const Params& params, const CommConfig& config) {
  Result<DeviceTable*> table = DeviceTable::Get();
  if (!table.ok()) return table.status();
  Result<std::vector<Port>> members = (*table)->Members(device);
  if (!members.ok()) return members.status();
  Result<EventLoop*> loop = EventLoop::Get();
  if (!loop.ok()) return loop.status();
  const bool infiniband = (*members)[0].link_layer == LinkLayer::kInfiniBand;
  const Result<std::shared_ptr<const Policy>>& policy = GetPolicy();
  if (!policy.ok()) return policy.status();
  const Result<std::vector<LaneSpec>> lanes =
      ResolveLanes(params, **policy, config.traffic_class, infiniband);
  if (!lanes.ok()) return lanes.status();
  std::unique_ptr<Engine> engine(new Engine(device, params, config, infiniband, **loop));
  engine->OrderClasses(*lanes);
  if (engine->receivers == nullptr) return SystemError("no memory for the connection table of an engine");
  for (const Port& port : *members) {
    SLUICE_RETURN_IF_ERROR(engine->OpenPort(engine->port_count, port, *lanes));
    engine->devices.push_back(port.device);
    ++engine->port_count;
  }
  SLUICE_RETURN_IF_ERROR(engine->OpenShare(*lanes));
  if (engine->port_count == 1) engine->quick_cq_ = engine->poll_cqs_[0];
  engine->tables.Init(engine->devices, static_cast<uint32_t>(params.max_recvs));
  // Reachable to the end of the process, as its connections must be.
  static std::mutex mutex;
  static auto* const engines = new std::vector<Engine*>;
  std::lock_guard lock(mutex);
  engines->push_back(engine.release());
  return engines->back();
}

void Engine::OrderClasses(const std::vector<LaneSpec>& lanes) {
  // Strict classes by priority, then those that share, background last.
  std::array<int, kMaxServiceClasses> rank;
  rank.fill(8);
  rank[ClassIndex(BuiltInClass::kBackground)] = 9;
  for (const LaneSpec& lane : lanes) {
    if (lane.strict) rank[lane.service_class] = lane.priority;
  }
  std::iota(send_order_.begin(), send_order_.end(), uint8_t{0});
  std::stable_sort(send_order_.begin(), send_order_.end(),
                   [&](uint8_t a, uint8_t b) { return rank[a] < rank[b]; });
}

Status Engine::OpenShare(const std::vector<LaneSpec>& lanes) {
  if (params.scheduler == 0 || lanes.size() <= 2) return Status::Ok();
  TickClock::Use(params.clock_monotonic ? TickClock::Kind::kMonotonic : TickClock::Kind::kAutomatic);
  std::array<PortShare::ClassSetting, kMaxServiceClasses> classes;
  for (const LaneSpec& lane : lanes) {
    const bool background = lane.service_class == ClassIndex(BuiltInClass::kBackground);
    classes[lane.service_class] = {.discipline = lane.strict  ? PortShare::Discipline::kStrict
                                                 : background ? PortShare::Discipline::kBackground
                                                              : PortShare::Discipline::kWeighted,
                                   .weight = static_cast<uint32_t>(lane.weight),
                                   .name = lane.name};
  }
  double bytes_per_ns = 0;
  for (uint32_t i = 0; i < port_count; ++i) bytes_per_ns += std::max(1, ports[i].port.speed_mbps) / 8000.0;
  share.Configure(
      {.bytes_per_tick = bytes_per_ns / TickClock::ticks_per_ns(),
       .hold = TickClock::FromNs(static_cast<uint64_t>(params.activity_hold_us) * 1000),
       .budget_bytes = static_cast<uint64_t>(bytes_per_ns * 1000 * params.shared_budget_us),
       .piece_bytes = static_cast<uint32_t>(params.piece_bytes / kChunkAlignBytes * kChunkAlignBytes),
       .background_floor = params.background_floor_percent / 100.0},
      classes);
  for (uint32_t i = 0; i < port_count; ++i) {
    EnginePort& port = ports[i];
    Result<ActivityFile> file = ActivityFile::Open(params.shared_dir, ActivityFile::NameOf(port.port));
    if (!file.ok()) {
      SLUICE_INFO(kLogNet, "%s: other processes of this host are not seen by the scheduler: %s",
                  port.port.name.c_str(), file.status().message().c_str());
      file = ActivityFile::Private();
      if (!file.ok()) return file.status();
    }
    activity[i] = std::move(*file);
    share.Join(*activity[i].board(), ActivityFile::OwnerOf(uid), TickClock::Now());
  }
  return Status::Ok();
}

Status Engine::OpenPort(uint32_t index, const Port& discovered, const std::vector<LaneSpec>& lanes) {
  EnginePort& port = ports[index];
  port.port = discovered;
  port.device = discovered.device;
  Result<ibv_port_attr> attributes = port.device->QueryPort(discovered.number);
  if (!attributes.ok()) return attributes.status();
  port.attributes = *attributes;
  if (params.ib_pkey_index != 0 && params.ib_pkey_index >= attributes->pkey_tbl_len) {
    return InvalidArgument("NCCL_IB_PKEY=" + std::to_string(params.ib_pkey_index) + ": the P_Key table of " +
                           discovered.name + " has the indices 0 to " +
                           std::to_string(attributes->pkey_tbl_len - 1));
  }
  Result<std::vector<GidEntry>> gids = ReadGidTable(*port.device, discovered.number, attributes->gid_tbl_len);
  if (!gids.ok()) return gids.status();
  Result<GidEntry> gid = ChooseGid(*gids, discovered.link_layer, discovered.name, GidOptionsFrom(params));
  if (!gid.ok()) return gid.status();
  port.gid = *gid;
  port.adaptive_routing = params.ib_adaptive_routing == -2 ? infiniband : params.ib_adaptive_routing != 0;
  // A CTS group or a record; without inline the same bytes are read from registered memory.
  port.max_inline = port.device->ProbeMaxInline(sizeof(CtsEntry) * static_cast<uint32_t>(params.max_recvs));
  if (!port.device->supports_srq()) {
    return SystemError(
        "device " + discovered.name +
        " has no shared receive queues, which Sluice needs; choose another device with NCCL_IB_HCA");
  }
  const auto device_cqe = static_cast<uint32_t>(port.device->attributes().max_cqe);
  Result<CompletionQueue> cq =
      CompletionQueue::Create(*port.device, std::min(device_cqe, kReceiveEntries + kSendCredits));
  if (!cq.ok()) return cq.status();
  port.cq = std::move(*cq);
  poll_cqs_[index] = port.cq.get();
  const uint32_t depth = std::min(port.cq.depth(), kReceiveEntries + kSendCredits);
  Result<SharedReceiveQueue> srq =
      SharedReceiveQueue::Create(*port.device, std::min(kReceiveEntries, depth / 2));
  if (!srq.ok()) return srq.status();
  port.srq = std::move(*srq);
  const uint32_t entries = std::min(port.srq.depth(), std::max(1u, depth / 2));
  port.cq_credits = depth - entries;
  if (port.cq_credits < kMostChunkWrs)
    return TooSmall(discovered.name, "completion queue", "max_cqe", depth, entries + kMostChunkWrs);
  port.cq_credits_low = std::max(port.cq_credits / 2, kMostChunkWrs);
  port.receive_batch = std::clamp(entries / 4, 1u, kReceiveBatch);
  port.srq_consumed = entries;
  SLUICE_RETURN_IF_ERROR(RefillReceives(port));

  const Result<DeviceTable*> table = DeviceTable::Get();
  const Result<NetProperties> properties = table.ok() ? (*table)->Properties(device) : table.status();
  if (!properties.ok()) return properties.status();
  gpu_memory = properties->dmabuf ? "DMA-BUF" : properties->cuda ? "peer memory" : "not announced";
  if (params.gdr_flush_disable || !(params.force_flush || properties->cuda || properties->dmabuf))
    return Status::Ok();
  return OpenFlush(port, lanes[0].sl);
}

Status Engine::OpenFlush(EnginePort& port, int control_sl) {
  const std::shared_ptr<DeviceContext> owner[1] = {port.device};
  Result<std::unique_ptr<MemoryHandle>> memory = MemoryHandle::Register(
      owner, port.flush_target.data(), sizeof(port.flush_target), RegionKind::kPolled, MemoryKind::kHost);
  if (!memory.ok()) return memory.status();
  port.flush_memory = std::move(*memory);
  Result<QueuePair> queue = QueuePair::Create(
      port.device->pd(), {.send_cq = port.cq.get(), .recv_cq = port.cq.get(), .max_send_wr = kFlushDepth});
  if (!queue.ok()) return queue.status();
  port.flush_qp = std::move(*queue);
  SLUICE_RETURN_IF_ERROR(port.flush_qp.ToInit(
      {.port = port.port.number, .pkey_index = static_cast<uint16_t>(params.ib_pkey_index)}));
  RtrParams rtr;
  rtr.dest_qpn = port.flush_qp.number();
  rtr.mtu = port.attributes.active_mtu;
  rtr.sgid_index = static_cast<uint8_t>(port.gid.index);
  rtr.dgid = port.gid.gid;
  rtr.dlid = port.attributes.lid;
  rtr.is_global = !infiniband || (port.attributes.flags & IBV_QPF_GRH_REQUIRED) != 0;
  rtr.sl = static_cast<uint8_t>(control_sl);
  SLUICE_RETURN_IF_ERROR(port.flush_qp.ToRtr(rtr));
  SLUICE_RETURN_IF_ERROR(port.flush_qp.ToRts({.timeout = static_cast<uint8_t>(params.ib_timeout),
                                              .retry_cnt = static_cast<uint8_t>(params.ib_retry_cnt)}));
  port.flush_free_wrs = std::min(kFlushDepth, port.flush_qp.caps().max_send_wr);
  return Status::Ok();
}

Status Engine::RefillReceives(EnginePort& port) {
  while (port.srq_consumed > 0) {
    const uint32_t count = std::min(port.srq_consumed, kReceiveBatch);
    receive_chain_[count - 1].next = nullptr;
    ibv_recv_wr* bad = nullptr;
    const int error = ibv_post_srq_recv(port.srq.get(), receive_chain_.data(), &bad);
    if (count < kReceiveBatch) receive_chain_[count - 1].next = &receive_chain_[count];
    if (error != 0) [[unlikely]] {
      return SystemError("posting receive entries on " + port.port.name, error,
                         "the device was reset or removed, see dmesg");
    }
    port.srq_consumed -= count;
    port.srq_posted += count;
  }
  return Status::Ok();
}

std::array<EnginePort, kMaxMergedPorts> Engine::TakePorts(uint32_t* count) {
  std::array<EnginePort, kMaxMergedPorts> taken;
  *count = std::exchange(port_count, 0);
  quick_cq_ = nullptr;
  for (uint32_t i = 0; i < *count; ++i) {
    taken[i].port = ports[i].port;
    taken[i].cq = std::move(ports[i].cq);
    taken[i].srq = std::move(ports[i].srq);
    taken[i].flush_qp = std::move(ports[i].flush_qp);
    taken[i].flush_memory = std::move(ports[i].flush_memory);
  }
  return taken;
}

std::string Engine::Describe() const {
  std::string names;
  for (uint32_t i = 0; i < port_count; ++i) names += (names.empty() ? "" : "+") + ports[i].port.name;
  return names;
}

PortAddress Engine::AddressOf(uint32_t index) const {
  const EnginePort& port = ports[index];
  PortAddress address;
  address.link_layer = static_cast<uint8_t>(port.port.link_layer);
  address.mtu = static_cast<uint8_t>(port.attributes.active_mtu);
  address.needs_grh = (port.attributes.flags & IBV_QPF_GRH_REQUIRED) != 0;
  address.lid = port.attributes.lid;
  address.speed_mbps = static_cast<uint32_t>(port.port.speed_mbps);
  std::copy(std::begin(port.gid.gid.raw), std::end(port.gid.gid.raw), address.gid.begin());
  address.name = port.port.name;
  return address;
}

}  // namespace sluice
