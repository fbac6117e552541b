// Background traffic: a short description that becomes a list of messages, the same for the same seed.
//
//   Result<BackgroundSpec> spec =
//   BackgroundSpec::FromText("storage:hosts=host0..host5,targets=host7,load=0.3");
//   Result<std::vector<BackgroundMessage>> messages = MakeBackground(topology, {*spec}, seed);
//   for (const BackgroundMessage& m : *messages) ...   // in the order of their start
//
// A message travels from one NIC port to another; messages of equal `stream` go through one connection, in
// order. In a TOML file of a topology: [[background]] with `kind` and the same keys.
//
// Thread rule: as a value type.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "verbs/soft/model/clock.h"

namespace sluice::soft {

struct Topology;
struct TextSection;

enum class BackgroundKind : uint8_t {
  kStorage,      // every host reads from and writes to `targets` in blocks, at random times
  kPermutation,  // every host sends to one other, no two to the same
  kIncast,       // every host sends to the one target
  kBursts,       // random pairs, each sends for a while at full speed and then rests
};

struct BackgroundSpec {
  BackgroundKind kind = BackgroundKind::kPermutation;
  std::vector<std::string> hosts;    // who takes part, names or ranges "host0..host7"; empty: all
  std::vector<std::string> targets;  // kStorage: the servers. kIncast: the one receiver
  uint32_t nic = 0;                  // of every host; its port 1
  std::string where;                 // starts the message when the topology lacks a host
  uint64_t bytes = 1 << 20;          // of a message
  uint32_t count = 1;                // kPermutation, kIncast: messages per sender, one after the other
  // kStorage and kBursts: the share of each host's port that is offered, on average.
  double load = 0.3;
  double read_share = 0.5;       // kStorage: of the blocks that are read
  Picos on = 100 * kPicosPerUs;  // kBursts: mean length of a burst, exponential; so is the pause
  Picos start = 0;               // no message starts before
  Picos stop = kPicosPerMs;      // kStorage, kBursts: none starts from here on
  Picos spread = 0;              // kPermutation, kIncast: starts are uniform in [start, start + spread]
  uint8_t sl = 0;
  uint8_t traffic_class = 0;

  // "KIND:key=value,...", lists with "+".
  static Result<BackgroundSpec> FromText(std::string_view one_line);
  // Several, separated by ";". An empty text is none.
  static Result<std::vector<BackgroundSpec>> ListFromText(std::string_view text);
  static Result<BackgroundSpec> FromSection(const TextSection& section);
};

struct BackgroundMessage {
  Picos start = 0;      // when it is handed to its connection
  uint32_t source = 0;  // endpoints: NIC ports in topology order
  uint32_t destination = 0;
  uint32_t stream = 0;  // number of the connection, from 0
  uint64_t bytes = 0;
  uint8_t sl = 0;
  uint8_t traffic_class = 0;
};

// Unknown hosts, and descriptions that cannot be (an incast without senders, a permutation of one host), are
// errors.
Status CheckBackground(const Topology& topology, const std::vector<BackgroundSpec>& specs);
// Messages of all specs, ordered by start; equal starts in the order of the specs.
Result<std::vector<BackgroundMessage>> MakeBackground(const Topology& topology,
                                                      const std::vector<BackgroundSpec>& specs,
                                                      uint64_t seed);

}  // namespace sluice::soft
