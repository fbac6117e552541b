#include "tools/perf/benchmark_parts.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>

namespace sluice::perf {

Shape BaseShape(const Options& options, int rank) {
  Shape shape;
  shape.op = options.op;
  shape.algo = options.algo;
  shape.rank = rank;
  shape.ranks = options.ranks;
  shape.channels = options.channels;
  shape.root = options.root;
  shape.registered = options.registered;
  shape.proto = options.proto.value_or(Proto::kSimple);
  return Supported(shape);
}

Shape ShapeFor(const Options& options, const Shape& base, size_t bytes) {
  return SizedShape(base, !options.proto.has_value(), bytes);
}

Shape SizedShape(const Shape& base, bool choose_proto, size_t bytes) {
  Shape shape = base;
  const size_t blocks =
      shape.op == Op::kAllGather || shape.op == Op::kReduceScatter || shape.op == Op::kAllToAll
          ? static_cast<size_t>(shape.ranks)
          : 1;
  shape.block_elements = std::max<size_t>(1, bytes / kElementBytes / blocks);
  if (choose_proto && !shape.registered) {
    shape.proto = ChooseProto(shape, bytes);
    shape = Supported(shape);
  }
  return shape;
}

size_t NextSize(const Options& options, size_t bytes) {
  if (options.step_bytes != 0) return bytes + options.step_bytes;
  const double next = static_cast<double>(bytes) * options.factor;
  if (next > static_cast<double>(options.max_bytes)) return options.max_bytes + 1;  // may not fit a size_t
  return std::max(static_cast<size_t>(next), bytes + 1);
}

size_t PathsOf(const Shape& shape) {
  size_t paths = 0;
  Shape of_rank = shape;
  for (of_rank.rank = 0; of_rank.rank < shape.ranks; ++of_rank.rank) {
    std::set<int> peers;
    for (const Edge& edge : ConnectionsOf(of_rank).send) peers.insert(edge.peer);
    paths += peers.size();
  }
  return paths;
}

namespace {

std::string WhyNoDevice(const std::string& library_message) {
  if (!library_message.empty()) return ": " + library_message;
  if (const std::string warning = LastPluginWarning(); !warning.empty()) return ": " + warning;
  const char* disabled = getenv("NCCL_IB_DISABLE");
  if (disabled != nullptr && atoi(disabled) != 0)
    return std::string(": NCCL_IB_DISABLE=") + disabled + " turns all off; unset it, or set it to 0";
  return "; NCCL_DEBUG=INFO shows what it looked at";
}

}  // namespace

Result<DeviceChoice> ChooseDevices(const Options& options, NetPlugin* plugin,
                                   const std::function<std::string()>& library_message) {
  int count = 0;
  SLUICE_RETURN_IF_ERROR(plugin->Devices(&count));
  if (count < 1) {
    return SystemError("the plugin " + plugin->name() + " finds no network device" +
                       WhyNoDevice(library_message()));
  }
  DeviceChoice choice;
  for (int i = 0; i < count; ++i) SLUICE_RETURN_IF_ERROR(plugin->Properties(i, &choice.properties));
  choice.count = count;
  if (options.device >= 0) {
    if (options.device >= count) {
      return InvalidArgument("--device " + std::to_string(options.device) + ": the plugin has devices 0 to " +
                             std::to_string(count - 1));
    }
    choice.first = options.device;
    choice.count = 1;
  }
  if (options.merge != 0) {
    if (!plugin->can_merge())
      return InvalidArgument("--merge: the plugin " + plugin->name() + " cannot merge devices");
    if (options.merge > count) {
      return InvalidArgument("--merge " + std::to_string(options.merge) + ": the plugin has " +
                             std::to_string(count) + " devices");
    }
    std::vector<int> members(static_cast<size_t>(options.merge));
    for (size_t i = 0; i < members.size(); ++i) members[i] = static_cast<int>(i);
    SLUICE_RETURN_IF_ERROR(plugin->MakeVDevice(members, &choice.first));
    choice.count = 1;
    SLUICE_RETURN_IF_ERROR(plugin->Devices(&count));
    if (choice.first >= count)
      return InternalError("makeVDevice returned a device that devices() does not count");
  }
  for (int i = choice.count - 1; i >= 0; --i) {
    SLUICE_RETURN_IF_ERROR(plugin->Properties(choice.first + i, &choice.properties));
  }
  choice.max_recvs = options.max_recvs == 0 ? choice.properties.max_recvs
                                            : std::min(options.max_recvs, choice.properties.max_recvs);
  return choice;
}

std::string DescribeRun(const Options& options, const Shape& base, const NetPlugin& plugin,
                        const DeviceChoice& devices, int max_recvs, const std::string& fabric) {
  std::string note;
  if (base.algo != options.algo) note += "; no tree for this operation, using the ring";
  if (options.proto.has_value() && base.proto != *options.proto) {
    note += "; protocol " + std::string(Name(base.proto)) + " instead of " + options.proto_name;
  }
  if (base.registered != options.registered) note += "; this operation does not use registered buffers";
  std::string device = devices.properties.name;
  if (devices.count > 1) device += " and " + std::to_string(devices.count - 1) + " more";
  char speed[32];
  snprintf(speed, sizeof speed, "%g", devices.properties.speed_mbps / 1000.0);
  return "sluice perf " SLUICE_VERSION ": " + std::string(Name(base.op)) + " " +
         std::string(Name(base.algo)) + ", " + std::to_string(base.ranks) +
         (base.ranks == 1 ? " rank, " : " ranks, ") + std::to_string(base.channels) +
         (base.channels == 1 ? " channel" : " channels") +
         (options.communicators > 1 ? ", " + std::to_string(options.communicators) + " communicators" : "") +
         "; plugin " + plugin.name() + " (NET v" + std::to_string(plugin.api()) + "), device " + device +
         " at " + speed + " Gb/s" + (fabric.empty() ? "" : ", " + fabric) +
         (max_recvs > 1 ? ", receives grouped by " + std::to_string(max_recvs) : "") + note;
}

Row MakeRow(const Options& options, const Shape& shape, const std::vector<Outcome>& outcomes) {
  Row row;
  row.shape = shape;
  row.communicators = options.communicators;
  row.bytes = std::max(InputElements(shape), OutputElements(shape)) * kElementBytes;
  row.checked = options.checks > 0;
  for (const Outcome& outcome : outcomes) {
    row.time_us += outcome.time_us / static_cast<double>(outcomes.size());
    row.p50_us = std::max(row.p50_us, outcome.p50_us);
    row.p99_us = std::max(row.p99_us, outcome.p99_us);
    row.wrong += outcome.wrong;
  }
  return row;
}

}  // namespace sluice::perf
