// Reading faults: the keys of each kind, their grammar and ranges.
#include "verbs/soft/model/faults.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>

#include "verbs/soft/model/topology_text.h"

namespace sluice::soft {
namespace {

constexpr Picos kMaxTime = 10'000 * kPicosPerSecond;
constexpr uint32_t kMaxTimes = 100'000;
constexpr uint32_t kLastGidIndex = 7;

struct Kind {
  std::string_view name;
  std::string_view target_key;
  bool needs_duration;
  std::string_view keys;  // besides the target and the times
};

// By FaultKind.
constexpr std::array<Kind, 10> kKinds = {{
    {"loss", "link", false, "probability, count, packets, one_way"},
    {"corruption", "link", false, "probability, count, packets, one_way"},
    {"link-down", "link", false, ""},
    {"port-flap", "port", true, "gid_index, to_index, gid_delay"},
    {"gid-change", "port", false, "gid_index, to_index, gid"},
    {"nic-death", "nic", false, ""},
    {"switch-reboot", "switch", true, ""},
    {"slow-link", "link", false, "rate"},
    {"stalled-receiver", "port", false, ""},
    {"host-pause", "host", true, ""},
}};

const Kind& KindOf(FaultKind kind) {
  return kKinds[static_cast<size_t>(kind)];
}

std::vector<std::string_view> KindNames() {
  std::vector<std::string_view> names;
  for (const Kind& kind : kKinds) names.push_back(kind.name);
  return names;
}

std::string KeysOf(FaultKind kind) {
  const std::string extra(KindOf(kind).keys);
  return "kind, " + std::string(KindOf(kind).target_key) + ", at, for, times, every, mean_gap" +
         (extra.empty() ? "" : ", " + extra);
}

bool HasKey(std::string_view list, std::string_view key) {
  const std::vector<std::string> parts = SplitText(list, ',');
  return std::any_of(parts.begin(), parts.end(),
                     [&](std::string_view part) { return part.substr(part.find_first_not_of(' ')) == key; });
}

Status ReadPackets(const TextEntry& entry, uint8_t* out) {
  *out = 0;
  for (const std::string& part : SplitText(entry.value, '+')) {
    if (part == "data") {
      *out |= kFaultData;
    } else if (part == "ack") {
      *out |= kFaultAck;
    } else if (part == "nak") {
      *out |= kFaultNak;
    } else {
      return BadValue(entry, "data, ack, nak, such as [\"data\", \"nak\"] (in one line data+nak)");
    }
  }
  return *out != 0 ? Status() : BadValue(entry, "at least one of data, ack, nak");
}

Status ReadGidIndex(const TextEntry& entry, uint32_t* out) {
  return ReadCount(entry, 0, kLastGidIndex, out);
}

Status SetKey(FaultSpec* spec, const TextEntry& entry) {
  const std::string& key = entry.key;
  if (key == "at") return ReadTime(entry, kMaxTime, &spec->at);
  if (key == "for") {
    SLUICE_RETURN_IF_ERROR(ReadTime(entry, kMaxTime, &spec->duration));
    return spec->duration > 0 ? Status() : BadValue(entry, "a time above 0");
  }
  if (key == "times") return ReadCount(entry, 1, kMaxTimes, &spec->times);
  if (key == "every") return ReadTime(entry, kMaxTime, &spec->every);
  if (key == "mean_gap") return ReadTime(entry, kMaxTime, &spec->mean_gap);
  if (key == "probability") return ReadFraction(entry, 0, 1, &spec->probability);
  if (key == "count") return ReadCount(entry, 1, INT64_MAX, &spec->count);
  if (key == "packets") return ReadPackets(entry, &spec->packets);
  if (key == "one_way") return ReadBool(entry, &spec->one_way);
  if (key == "rate") return ReadRate(entry, &spec->rate_bps);
  if (key == "gid_index") return ReadGidIndex(entry, &spec->gid_index);
  if (key == "gid_delay") return ReadTime(entry, kMaxTime, &spec->gid_delay);
  if (key == "to_index") {
    uint32_t index = 0;
    SLUICE_RETURN_IF_ERROR(ReadGidIndex(entry, &index));
    spec->to_index = static_cast<int32_t>(index);
    return {};
  }
  in6_addr address{};
  if (inet_pton(AF_INET6, entry.value.c_str(), &address) != 1) {
    return BadValue(entry, "an IPv6 address, such as fe80::1 or ::ffff:10.0.0.9");
  }
  spec->gid = entry.value;
  return {};
}

// What no single key tells.
Status CheckWhole(const FaultSpec& spec, const TextSection& section) {
  const Kind& kind = KindOf(spec.kind);
  const std::string start = section.where + ": fault " + std::string(kind.name);
  const bool random_packets = spec.kind == FaultKind::kLoss || spec.kind == FaultKind::kCorruption;
  if (spec.target.empty() && !random_packets) {
    return InvalidArgument(start + " needs " + std::string(kind.target_key) + ", which says where");
  }
  if (random_packets && section.Find("probability") == nullptr) {
    return InvalidArgument(start +
                           " needs probability, such as 1e-4 (1 with count = 3: the next three packets)");
  }
  if (kind.needs_duration && spec.duration == 0) {
    return InvalidArgument(start + " needs for, how long it lasts, such as for = \"10ms\"");
  }
  if (spec.kind == FaultKind::kSlowLink && spec.rate_bps == 0) {
    return InvalidArgument(start + " needs rate, such as rate = \"10G\"");
  }
  if (spec.one_way && spec.target.empty()) {
    return InvalidArgument(start + ": one_way = true needs link, whose first end is the sender");
  }
  if (spec.times > 1) {
    if ((spec.every == 0) == (spec.mean_gap == 0)) {
      return InvalidArgument(start + ": times = " + std::to_string(spec.times) +
                             " needs either every or mean_gap, such as every = \"10ms\"");
    }
    if (spec.duration == 0) return InvalidArgument(start + ": times above 1 needs for, how long each lasts");
    if (spec.every != 0 && spec.every <= spec.duration) {
      return InvalidArgument(start + ": every = " + TimeText(spec.every) +
                             " is not longer than for = " + TimeText(spec.duration) + "; they would overlap");
    }
  } else if (spec.every != 0 || spec.mean_gap != 0) {
    return InvalidArgument(start + ": every and mean_gap mean nothing without times above 1");
  }
  if (spec.to_index >= 0 && !spec.gid.empty()) {
    return InvalidArgument(start + ": to_index moves the GID, gid replaces it; give one of them");
  }
  if (spec.to_index >= 0 && static_cast<uint32_t>(spec.to_index) == spec.gid_index) {
    return InvalidArgument(start + ": to_index = " + std::to_string(spec.to_index) +
                           " is where the GID is already (gid_index)");
  }
  return {};
}

}  // namespace

std::string_view FaultKindName(FaultKind kind) {
  return KindOf(kind).name;
}

Result<FaultSpec> FaultSpec::FromSection(const TextSection& section) {
  FaultSpec spec;
  spec.where = section.where;
  const TextEntry* kind = section.Find("kind");
  if (kind == nullptr)
    return InvalidArgument(section.where + ": a fault has no kind; give one, such as loss");
  size_t number = 0;
  SLUICE_RETURN_IF_ERROR(ReadChoice(*kind, KindNames(), &number));
  spec.kind = static_cast<FaultKind>(number);
  const Kind& description = KindOf(spec.kind);
  for (const TextEntry& entry : section.entries) {
    if (entry.key == "kind") continue;
    if (entry.key == description.target_key) {
      if (entry.value.empty()) return BadValue(entry, "a name of the topology");
      spec.target = entry.value;
      spec.where = entry.where;
      continue;
    }
    if (!HasKey("at, for, times, every, mean_gap", entry.key) && !HasKey(description.keys, entry.key)) {
      return InvalidArgument(entry.where + ": no key " + entry.key + " in a fault of kind " +
                             std::string(description.name) + "; there are: " + KeysOf(spec.kind));
    }
    SLUICE_RETURN_IF_ERROR(SetKey(&spec, entry));
  }
  SLUICE_RETURN_IF_ERROR(CheckWhole(spec, section));
  return spec;
}

Result<FaultSpec> FaultSpec::FromText(std::string_view one_line) {
  const Result<TextSection> section = SectionOfLine(one_line, "fault");
  return section.ok() ? FromSection(*section) : Result<FaultSpec>(section.status());
}

Result<std::vector<FaultSpec>> FaultSpec::ListFromText(std::string_view text) {
  return SpecsFromText<FaultSpec>(text);
}

}  // namespace sluice::soft
