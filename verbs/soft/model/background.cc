#include "verbs/soft/model/background.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_map>

#include "verbs/soft/model/random.h"
#include "verbs/soft/model/topology.h"
#include "verbs/soft/model/topology_check.h"
#include "verbs/soft/model/topology_names.h"
#include "verbs/soft/model/topology_text.h"

namespace sluice::soft {
namespace {

constexpr Picos kMaxTime = 10'000 * kPicosPerSecond;
constexpr double kMaxMessages = 10'000'000;
constexpr uint64_t kMaxMessageBytes = 1 << 30;

enum Purpose : uint64_t { kRandomPermutation = 0x42474430, kRandomStart, kRandomBlocks, kRandomBursts };

struct Kind {
  std::string_view name;
  std::string_view keys;
};

// By BackgroundKind.
constexpr std::array<Kind, 4> kKinds = {{
    {"storage", "hosts, targets, bytes, load, read_share, start, stop, nic, sl, traffic_class"},
    {"permutation", "hosts, bytes, count, start, spread, nic, sl, traffic_class"},
    {"incast", "hosts, targets, bytes, count, start, spread, nic, sl, traffic_class"},
    {"bursts", "hosts, load, on, start, stop, nic, sl, traffic_class"},
}};

bool HasKey(std::string_view keys, const std::string& key) {
  return (", " + std::string(keys) + ", ").find(", " + key + ", ") != std::string::npos;
}

Status SetKey(BackgroundSpec* spec, const TextEntry& entry) {
  const std::string& key = entry.key;
  uint32_t number = 0;
  if (key == "hosts" || key == "targets") {
    std::vector<std::string>& names = key == "hosts" ? spec->hosts : spec->targets;
    names = SplitText(entry.value, '+');
    return names.empty() ? BadValue(entry, "names of hosts, such as [\"host0\", \"host4..host7\"]")
                         : Status();
  }
  if (key == "bytes") return ReadBytes(entry, 1, kMaxMessageBytes, &spec->bytes);
  if (key == "count") return ReadCount(entry, 1, 1'000'000, &spec->count);
  if (key == "load") return ReadFraction(entry, 0.001, 1, &spec->load);
  if (key == "read_share") return ReadFraction(entry, 0, 1, &spec->read_share);
  if (key == "start") return ReadTime(entry, kMaxTime, &spec->start);
  if (key == "stop") return ReadTime(entry, kMaxTime, &spec->stop);
  if (key == "spread") return ReadTime(entry, kMaxTime, &spec->spread);
  if (key == "nic") return ReadCount(entry, 0, 15, &spec->nic);
  if (key == "on") {
    SLUICE_RETURN_IF_ERROR(ReadTime(entry, kMaxTime, &spec->on));
    return spec->on > 0 ? Status() : BadValue(entry, "a time above 0");
  }
  SLUICE_RETURN_IF_ERROR(ReadCount(entry, 0, key == "sl" ? 15 : 255, &number));
  (key == "sl" ? spec->sl : spec->traffic_class) = static_cast<uint8_t>(number);
  return {};
}

// Who takes part, as hosts of the topology.
struct Members {
  std::vector<uint32_t> hosts;
  std::vector<uint32_t> targets;
};

class Maker {
 public:
  Maker(const Topology& topology, uint64_t seed)
      : topology_(topology), names_(topology), endpoints_(topology), seed_(seed) {}

  Status Check(const BackgroundSpec& spec, Members* members) const;
  void Make(const BackgroundSpec& spec, const Members& members, uint32_t index);
  std::vector<BackgroundMessage> Take();

 private:
  static double Exponential(Random* random, double mean) { return -std::log1p(-random->Unit()) * mean; }
  uint64_t RateOf(const BackgroundSpec& spec, uint32_t host) const {
    return topology_.hosts[host].nics[spec.nic].ports[0].rate_bps;
  }
  // From one host to another; equal pairs of one spec share a stream.
  void Add(const BackgroundSpec& spec, uint32_t from, uint32_t to, Picos start, uint64_t bytes);
  void MakePermutation(const BackgroundSpec& spec, const Members& members, uint32_t index);
  void MakeIncast(const BackgroundSpec& spec, const Members& members, uint32_t index);
  void MakeStorage(const BackgroundSpec& spec, const Members& members, uint32_t index);
  void MakeBursts(const BackgroundSpec& spec, const Members& members, uint32_t index);

  const Topology& topology_;
  const TopologyNames names_;
  const EndpointIndex endpoints_;
  const uint64_t seed_;
  std::vector<BackgroundMessage> messages_;
  std::unordered_map<uint64_t, uint32_t> streams_;  // of the present spec, by pair of hosts
  uint32_t next_stream_ = 0;
};

Status Maker::Check(const BackgroundSpec& spec, Members* members) const {
  const std::string start =
      spec.where + ": background " + std::string(kKinds[static_cast<size_t>(spec.kind)].name);
  Result<std::vector<uint32_t>> hosts = names_.Hosts(spec.hosts);
  if (!hosts.ok()) return InvalidArgument(start + ": hosts: " + hosts.status().message());
  const bool with_targets = spec.kind == BackgroundKind::kStorage || spec.kind == BackgroundKind::kIncast;
  if (with_targets) {
    if (spec.targets.empty()) {
      return InvalidArgument(start + " needs targets, who receives, such as targets = [\"host7\"]");
    }
    Result<std::vector<uint32_t>> targets = names_.Hosts(spec.targets);
    if (!targets.ok()) return InvalidArgument(start + ": targets: " + targets.status().message());
    members->targets = std::move(*targets);
  }
  if (spec.kind == BackgroundKind::kIncast && members->targets.size() != 1) {
    return InvalidArgument(start + ": " + std::to_string(members->targets.size()) +
                           " targets; an incast has one receiver");
  }
  // A server does not talk to itself.
  for (const uint32_t host : *hosts) {
    const auto& targets = members->targets;
    if (std::find(targets.begin(), targets.end(), host) == targets.end()) members->hosts.push_back(host);
  }
  const size_t needed = with_targets ? 1 : 2;
  if (members->hosts.size() < needed) {
    return InvalidArgument(start + ": " + std::to_string(members->hosts.size()) +
                           " hosts take part besides the targets; it needs at least " +
                           std::to_string(needed));
  }
  for (const auto* group : {&members->hosts, &members->targets}) {
    for (const uint32_t host : *group) {
      if (spec.nic < topology_.hosts[host].nics.size()) continue;
      return InvalidArgument(start + ": nic = " + std::to_string(spec.nic) + ", but host " +
                             topology_.hosts[host].name + " has " +
                             std::to_string(topology_.hosts[host].nics.size()) + " NICs, counted from 0");
    }
  }
  double messages = static_cast<double>(members->hosts.size()) * spec.count;
  if (spec.kind == BackgroundKind::kStorage || spec.kind == BackgroundKind::kBursts) {
    if (spec.stop <= spec.start) {
      return InvalidArgument(start + ": stop = " + TimeText(spec.stop) +
                             " is not after start = " + TimeText(spec.start) + "; nothing would be sent");
    }
    messages = 0;
    for (const uint32_t host : members->hosts) {
      const double message_seconds =
          spec.kind == BackgroundKind::kStorage
              ? 8.0 * static_cast<double>(spec.bytes) / static_cast<double>(RateOf(spec, host))
              : static_cast<double>(spec.on) / kPicosPerSecond;
      messages += spec.load * static_cast<double>(spec.stop - spec.start) / kPicosPerSecond / message_seconds;
    }
  }
  if (messages > kMaxMessages) {
    return InvalidArgument(
        start + ": about " + std::to_string(static_cast<uint64_t>(messages)) +
        " messages; at most 10 million, use larger messages, fewer hosts or an earlier stop");
  }
  return {};
}

void Maker::Add(const BackgroundSpec& spec, uint32_t from, uint32_t to, Picos start, uint64_t bytes) {
  const auto [stream, added] = streams_.emplace(uint64_t{from} << 32 | to, next_stream_);
  if (added) ++next_stream_;
  messages_.push_back({start, endpoints_.Find({false, from, spec.nic, 0}),
                       endpoints_.Find({false, to, spec.nic, 0}), stream->second, bytes, spec.sl,
                       spec.traffic_class});
}

void Maker::MakePermutation(const BackgroundSpec& spec, const Members& members, uint32_t index) {
  // Sattolo: one cycle through everybody, so nobody sends to itself.
  std::vector<uint32_t> to = members.hosts;
  Random random(seed_, kRandomPermutation, index);
  for (size_t i = to.size() - 1; i > 0; --i) std::swap(to[i], to[random.Below(i)]);
  for (size_t i = 0; i < to.size(); ++i) {
    Random starts(seed_, kRandomStart, uint64_t{index} << 32 | i);
    const Picos start = spec.start + static_cast<Picos>(starts.Below(static_cast<uint64_t>(spec.spread) + 1));
    for (uint32_t m = 0; m < spec.count; ++m) Add(spec, members.hosts[i], to[i], start, spec.bytes);
  }
}

void Maker::MakeIncast(const BackgroundSpec& spec, const Members& members, uint32_t index) {
  for (size_t i = 0; i < members.hosts.size(); ++i) {
    Random starts(seed_, kRandomStart, uint64_t{index} << 32 | i);
    const Picos start = spec.start + static_cast<Picos>(starts.Below(static_cast<uint64_t>(spec.spread) + 1));
    for (uint32_t m = 0; m < spec.count; ++m)
      Add(spec, members.hosts[i], members.targets[0], start, spec.bytes);
  }
}

void Maker::MakeStorage(const BackgroundSpec& spec, const Members& members, uint32_t index) {
  for (size_t i = 0; i < members.hosts.size(); ++i) {
    const uint32_t host = members.hosts[i];
    Random random(seed_, kRandomBlocks, uint64_t{index} << 32 | i);
    const double mean_gap =
        static_cast<double>(SerialisationTime(spec.bytes, RateOf(spec, host))) / spec.load;
    double at = static_cast<double>(spec.start);
    for (;;) {
      at += Exponential(&random, mean_gap);
      if (at >= static_cast<double>(spec.stop)) break;
      const uint32_t target = members.targets[random.Below(members.targets.size())];
      const bool read = random.Unit() < spec.read_share;
      Add(spec, read ? target : host, read ? host : target, static_cast<Picos>(at), spec.bytes);
    }
  }
}

void Maker::MakeBursts(const BackgroundSpec& spec, const Members& members, uint32_t index) {
  for (size_t i = 0; i < members.hosts.size(); ++i) {
    const uint32_t host = members.hosts[i];
    Random random(seed_, kRandomBursts, uint64_t{index} << 32 | i);
    const double mean_on = static_cast<double>(spec.on);
    const double mean_off = mean_on * (1 - spec.load) / spec.load;
    double at = static_cast<double>(spec.start);
    for (;;) {
      at += Exponential(&random, mean_off);
      if (at >= static_cast<double>(spec.stop)) break;
      const double on = std::max(Exponential(&random, mean_on), 1.0);
      const double bytes = on / kPicosPerSecond * static_cast<double>(RateOf(spec, host)) / 8;
      size_t to = random.Below(members.hosts.size() - 1);
      if (to >= i) ++to;
      Add(spec, host, members.hosts[to], static_cast<Picos>(at),
          std::clamp<uint64_t>(static_cast<uint64_t>(bytes), 1, kMaxMessageBytes));
      at += on;
    }
  }
}

void Maker::Make(const BackgroundSpec& spec, const Members& members, uint32_t index) {
  streams_.clear();
  switch (spec.kind) {
    case BackgroundKind::kStorage:
      return MakeStorage(spec, members, index);
    case BackgroundKind::kPermutation:
      return MakePermutation(spec, members, index);
    case BackgroundKind::kIncast:
      return MakeIncast(spec, members, index);
    case BackgroundKind::kBursts:
      return MakeBursts(spec, members, index);
  }
}

std::vector<BackgroundMessage> Maker::Take() {
  std::stable_sort(messages_.begin(), messages_.end(),
                   [](const BackgroundMessage& a, const BackgroundMessage& b) { return a.start < b.start; });
  return std::move(messages_);
}

}  // namespace

Result<BackgroundSpec> BackgroundSpec::FromSection(const TextSection& section) {
  BackgroundSpec spec;
  spec.where = section.where;
  const TextEntry* kind = section.Find("kind");
  if (kind == nullptr) {
    return InvalidArgument(section.where + ": background traffic has no kind; give one, such as permutation");
  }
  std::vector<std::string_view> names;
  for (const Kind& k : kKinds) names.push_back(k.name);
  size_t number = 0;
  SLUICE_RETURN_IF_ERROR(ReadChoice(*kind, names, &number));
  spec.kind = static_cast<BackgroundKind>(number);
  for (const TextEntry& entry : section.entries) {
    if (entry.key == "kind") continue;
    if (!HasKey(kKinds[number].keys, entry.key)) {
      return InvalidArgument(entry.where + ": no key " + entry.key + " in background traffic of kind " +
                             kind->value + "; there are: kind, " + std::string(kKinds[number].keys));
    }
    SLUICE_RETURN_IF_ERROR(SetKey(&spec, entry));
  }
  return spec;
}

Result<BackgroundSpec> BackgroundSpec::FromText(std::string_view one_line) {
  const Result<TextSection> section = SectionOfLine(one_line, "background");
  return section.ok() ? FromSection(*section) : Result<BackgroundSpec>(section.status());
}

Result<std::vector<BackgroundSpec>> BackgroundSpec::ListFromText(std::string_view text) {
  return SpecsFromText<BackgroundSpec>(text);
}

Status CheckBackground(const Topology& topology, const std::vector<BackgroundSpec>& specs) {
  if (specs.empty()) return {};
  const Maker maker(topology, 0);
  for (const BackgroundSpec& spec : specs) {
    Members members;
    SLUICE_RETURN_IF_ERROR(maker.Check(spec, &members));
  }
  return {};
}

Result<std::vector<BackgroundMessage>> MakeBackground(const Topology& topology,
                                                      const std::vector<BackgroundSpec>& specs,
                                                      uint64_t seed) {
  Maker maker(topology, seed);
  for (uint32_t index = 0; index < specs.size(); ++index) {
    Members members;
    SLUICE_RETURN_IF_ERROR(maker.Check(specs[index], &members));
    maker.Make(specs[index], members, index);
  }
  return maker.Take();
}

}  // namespace sluice::soft
