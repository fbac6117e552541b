#include "plugin/transport/lane_setup.h"

#include <algorithm>
#include <atomic>

#include "plugin/log.h"
#include "plugin/transport/engine.h"
#include "plugin/transport/wire.h"

namespace sluice {
namespace {

void Truncate(OutPath& path, size_t queues) {
  for (PortPair& pair : path.pairs) {
    while (pair.data.size() > queues) pair.data.pop_back();
  }
}

Status AppendQueues(OutPath& path, uint32_t count) {
  for (PortPair& pair : path.pairs) SLUICE_RETURN_IF_ERROR(CreateData(path.engine, true, count, pair));
  return Status::Ok();
}

}  // namespace

void OrderLanes(std::vector<LaneSpec>& lanes) {
  std::stable_partition(lanes.begin() + 1, lanes.end(), [](const LaneSpec& lane) {
    return lane.service_class == ClassIndex(BuiltInClass::kBulk);
  });
}

Status CreateQueues(OutPath& path, const std::vector<LaneSpec>& lanes) {
  for (PortPair& pair : path.pairs) SLUICE_RETURN_IF_ERROR(CreateControl(path.engine, true, pair));
  for (const LaneSpec& lane : lanes) {
    auto count = static_cast<uint32_t>(lane.queue_pairs);
    const size_t before = path.pairs[0].data.size();
    Status status = AppendQueues(path, count);
    while (!status.ok()) {
      Truncate(path, before);
      const bool is_default = path.classes.size() == 1;
      if (is_default && count <= 1) return status;
      static std::atomic<bool> warned{false};
      if (!warned.exchange(true)) {
        SLUICE_WARN("path to %s: %u queue pairs for class %s do not fit the device (%s); %s",
                    path.peer.c_str(), count, lane.name.c_str(), status.message().c_str(),
                    is_default ? "using fewer" : "its operations use those of the default class");
      }
      count = is_default ? count / 2 : 0;
      status = count == 0 ? Status::Ok() : AppendQueues(path, count);
    }
    path.classes.push_back({.name = lane.name,
                            .sl = static_cast<uint8_t>(lane.sl),
                            .traffic_class = static_cast<uint8_t>(lane.traffic_class),
                            .queue_pairs = static_cast<uint8_t>(count),
                            .flow_labels = static_cast<uint8_t>(lane.flow_labels)});
    path.lane_classes.push_back(lane.service_class);
  }
  return Status::Ok();
}

PathFrame AskFor(OutPath& path) {
  const Engine& engine = path.engine;
  const Params& params = engine.params;
  path.stripes = static_cast<uint16_t>(
      path.pairs.size() * (params.ib_split_data_on_qps
                               ? std::min<uint32_t>(path.classes[1].queue_pairs,
                                                    static_cast<uint32_t>(params.ib_qps_per_connection))
                               : 1u));
  uint32_t port_limit = 0x80000000u;
  for (uint32_t i = 0; i < engine.port_count; ++i)
    port_limit = std::min(port_limit, engine.ports[i].attributes.max_msg_sz);
  PathFrame frame;
  frame.path = path.id;
  frame.stripes = path.stripes;
  frame.max_message_bytes = port_limit / kChunkAlignBytes * kChunkAlignBytes;
  frame.stripe_above_bytes =
      path.stripes > 1
          ? static_cast<uint32_t>(std::min<int64_t>(params.stripe_min_bytes, frame.max_message_bytes))
          : frame.max_message_bytes;
  frame.classes = path.classes;
  for (const PortPair& pair : path.pairs) {
    PairFrame numbers;
    numbers.sender_port = pair.sender_port;
    numbers.receiver_port = pair.receiver_port;
    numbers.mtu = static_cast<uint8_t>(engine.ports[pair.sender_port].attributes.active_mtu);
    numbers.control_qpn = pair.control.number();
    for (const QueuePair& queue : pair.data) numbers.data_qpns.push_back(queue.number());
    for (const ServiceLevels& levels : pair.levels) {
      numbers.service_levels.push_back(levels.forward);
      numbers.service_levels.push_back(levels.back);
    }
    if (params.ib_ece_enable) {
      Result<ibv_ece> ece = pair.control.QueryEce();
      if (ece.ok()) numbers.ece = {ece->vendor_id, ece->options, ece->comp_mask};
    }
    frame.pairs.push_back(std::move(numbers));
  }
  return frame;
}

bool ApplyRefusals(OutPath& path, const PathFrame& answer) {
  if (answer.classes.size() != path.classes.size() || answer.pairs.size() != path.pairs.size()) return false;
  for (size_t i = 0; i < path.classes.size(); ++i) {
    const uint8_t wanted = path.classes[i].queue_pairs;
    if (answer.classes[i].queue_pairs != wanted && (answer.classes[i].queue_pairs != 0 || i < 2))
      return false;
  }
  for (size_t i = 0; i < path.pairs.size(); ++i) {
    if (answer.pairs[i].data_qpns.size() != QueueCount(answer.classes)) return false;
  }
  size_t next = 0;
  for (size_t i = 0; i < path.classes.size(); ++i) {
    ClassFrame& service_class = path.classes[i];
    const size_t count = service_class.queue_pairs;
    if (answer.classes[i].queue_pairs == count) {
      next += count;
      continue;
    }
    static std::atomic<bool> warned{false};
    if (!warned.exchange(true)) {
      SLUICE_WARN(
          "%s refused the lane of class %s (SL %u, traffic class %u); its operations use those of the "
          "default "
          "class. The log of that host has the cause",
          path.peer.c_str(), service_class.name.c_str(), service_class.sl, service_class.traffic_class);
    }
    for (PortPair& pair : path.pairs) {
      const auto first = pair.data.begin() + static_cast<std::ptrdiff_t>(next);
      pair.data.erase(first, first + static_cast<std::ptrdiff_t>(count));
    }
    service_class.queue_pairs = 0;
  }
  return true;
}

void PublishQueues(OutPath& path) {
  Engine& engine = path.engine;
  path.pair_count = static_cast<uint32_t>(path.pairs.size());
  path.queues_per_pair = static_cast<uint32_t>(path.pairs[0].data.size());
  path.queues.resize(size_t{path.pair_count} * path.queues_per_pair);
  for (uint32_t i = 0; i < path.pair_count; ++i) {
    const PortPair& pair = path.pairs[i];
    for (uint32_t j = 0; j < path.queues_per_pair; ++j) {
      DataQueue& queue = path.queues[i * path.queues_per_pair + j];
      queue.qp = pair.data[j].get();
      queue.port = &engine.ports[pair.sender_port];
      queue.engine_port = pair.sender_port;
      queue.peer_port = pair.receiver_port;
      queue.index = i * path.queues_per_pair + j;
      queue.depth = queue.free_wrs = std::min(kDataQueueDepth, pair.data[j].caps().max_send_wr);
      queue.split_above_bytes =
          engine.ports[pair.sender_port].adaptive_routing
              ? static_cast<uint32_t>(std::min<int64_t>(engine.params.ib_ar_threshold_bytes, UINT32_MAX))
              : UINT32_MAX;
      queue.Prepare(pair.data[j].caps().max_inline_data >= sizeof(Record));
    }
  }
  const auto same_marks = [&](size_t a, size_t b) {
    return path.classes[a].traffic_class == path.classes[b].traffic_class &&
           std::all_of(path.pairs.begin(), path.pairs.end(), [&](const PortPair& pair) {
             return LevelsOf(path, pair, a) == LevelsOf(path, pair, b);
           });
  };
  DataQueue* queues = path.queues.data();
  for (size_t i = 1; i < path.classes.size(); ++i) {
    const ClassFrame& service_class = path.classes[i];
    if (service_class.queue_pairs == 0) continue;
    Lane lane{.queues = queues, .count = service_class.queue_pairs};
    for (size_t j = 1; j < path.classes.size(); ++j)
      lane.shared = lane.shared || (j != i && same_marks(i, j));
    if (engine.params.scheduler >= 0) lane.shared = engine.params.scheduler != 0;
    if (i == 1) path.lanes.fill(lane);
    path.lanes[path.lane_classes[i]] = lane;
    queues += lane.count;
  }
  path.usable = true;
}

}  // namespace sluice
