// Frames of the TCP link between a sending engine S and a receiving engine R, and the handle that names a
// listener. Order of a first connection: Hello, HelloOk, Path, PathOk, PathUp, Open, Conn; a later one on the
// same path: Open, Conn.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "plugin/net.h"
#include "plugin/transport/codec.h"

namespace sluice {

enum class FrameType : uint16_t {
  kHello = 1,
  kHelloOk = 2,
  kReject = 3,
  kPath = 4,
  kPathOk = 5,
  kPathFail = 6,
  kPathUp = 7,
  kOpen = 8,
  kConn = 9,
  kOpenFail = 10,
  kClose = 11,
  kBye = 12,
  kByeOk = 13,
  kAbort = 14,
};

struct FrameHeader {
  FrameType type;
  uint16_t version;
  uint32_t length;  // payload bytes, at most kMaxFrameBytes
};
static_assert(sizeof(FrameHeader) == 8);
inline constexpr uint16_t kFrameVersion = 2;

using Secret = std::array<uint8_t, 16>;

// What Listen writes and Connect reads. `attempt` belongs to the connecting side: it survives between
// retries.
struct ListenHandle {
  uint32_t magic;  // kHandleMagic
  uint16_t version;
  uint16_t family;  // AF_INET or AF_INET6
  uint64_t engine_uid;
  uint32_t listen_id;
  uint16_t port;  // host order
  uint8_t link_layer;
  uint8_t reserved;
  uint32_t scope_id;
  uint32_t attempt;
  std::array<uint8_t, 16> address;
  Secret secret;
};
inline constexpr uint32_t kHandleMagic = 0x45434c53;  // "SLCE"
static_assert(sizeof(ListenHandle) <= kHandleBytes);

// One port of an engine, as the other side must know it.
struct PortAddress {
  uint8_t link_layer = 0;  // verbs::LinkLayer
  uint8_t mtu = 0;         // ibv_mtu
  uint8_t needs_grh = 0;
  uint16_t lid = 0;
  uint32_t speed_mbps = 0;
  std::array<uint8_t, 16> gid{};
  std::string name;

  template <class A>
  void Fields(A& a) {
    a(link_layer, mtu, needs_grh, lid, speed_mbps, gid, name);
  }
};

struct HelloFrame {
  uint16_t min_version = 0;
  uint16_t max_version = 0;
  uint64_t sender_uid = 0;
  uint64_t receiver_uid = 0;
  uint32_t listen_id = 0;
  Secret secret{};
  std::string library;  // Sluice release
  std::string host;     // "name:pid", for messages
  std::vector<PortAddress> ports;

  template <class A>
  void Fields(A& a) {
    a(min_version, max_version, sender_uid, receiver_uid, listen_id, secret, library, host, ports);
  }
};

struct HelloOkFrame {
  uint16_t version = 0;
  std::string library;
  std::string host;
  std::vector<PortAddress> ports;

  template <class A>
  void Fields(A& a) {
    a(version, library, host, ports);
  }
};

struct EceInfo {
  uint32_t vendor_id = 0;
  uint32_t options = 0;
  uint32_t comp_mask = 0;

  template <class A>
  void Fields(A& a) {
    a(vendor_id, options, comp_mask);
  }
};

// Queue pairs of one port pair. Initial PSNs follow from the frame's base_psn (path.h, PsnOf).
struct PairFrame {
  uint8_t sender_port = 0;
  uint8_t receiver_port = 0;
  uint8_t mtu = 0;
  uint32_t control_qpn = 0;
  EceInfo ece;
  std::vector<uint32_t> data_qpns;  // by class, then by queue of the class
  // Two for each class, from the sender to the receiver and back, where the subnet administrator gave them; empty:
  // those of the classes.
  std::vector<uint8_t> service_levels;

  template <class A>
  void Fields(A& a) {
    a(sender_port, receiver_port, mtu, control_qpn, ece, data_qpns, service_levels);
  }
};

// A service class as both ends use it on this path: the sender's table wins. The first one is control: its SL and
// traffic class are those of the control queue pairs, and it has no data queue pairs. In PATH_OK a class whose
// queue pairs are 0 was refused; the sender then uses the default class for it.
struct ClassFrame {
  std::string name;
  uint8_t sl = 0;
  uint8_t traffic_class = 0;
  uint8_t queue_pairs = 0;
  uint8_t flow_labels = 0;  // distinct ones over the queue pairs; 0: one for each

  template <class A>
  void Fields(A& a) {
    a(name, sl, traffic_class, queue_pairs, flow_labels);
  }
};

struct PathFrame {  // kPath and kPathOk
  uint32_t path = 0;
  uint32_t base_psn = 0;
  uint16_t stripes = 0;             // chunks a message above stripe_above_bytes is cut into
  uint32_t stripe_above_bytes = 0;  // at most max_message_bytes
  uint32_t max_message_bytes = 0;   // of one work request
  std::vector<ClassFrame> classes;
  std::vector<PairFrame> pairs;

  template <class A>
  void Fields(A& a) {
    a(path, base_psn, stripes, stripe_above_bytes, max_message_bytes, classes, pairs);
  }
};

struct PathIdFrame {  // kPathUp, kBye, kByeOk
  uint32_t path = 0;

  template <class A>
  void Fields(A& a) {
    a(path);
  }
};

struct OpenFrame {
  uint32_t path = 0;
  uint32_t sender_connection = 0;
  uint32_t listen_id = 0;
  Secret secret{};
  uint64_t cts_ring = 0;
  uint8_t max_recvs = 0;
  std::vector<uint32_t> rkeys;  // of the ring, one per port of S

  template <class A>
  void Fields(A& a) {
    a(path, sender_connection, listen_id, secret, cts_ring, max_recvs, rkeys);
  }
};

struct ConnFrame {
  uint32_t path = 0;
  uint32_t sender_connection = 0;
  uint16_t index = 0;
  uint8_t max_recvs = 0;
  uint64_t record_ring = 0;
  std::vector<uint32_t> rkeys;  // of the ring, one per port of R

  template <class A>
  void Fields(A& a) {
    a(path, sender_connection, index, max_recvs, record_ring, rkeys);
  }
};

struct CloseFrame {
  uint32_t path = 0;
  uint16_t index = 0;
  uint8_t by_sender = 0;

  template <class A>
  void Fields(A& a) {
    a(path, index, by_sender);
  }
};

struct TextFrame {  // kReject (id unused), kPathFail and kAbort (path), kOpenFail (sender_connection)
  uint32_t id = 0;
  std::string text;

  template <class A>
  void Fields(A& a) {
    a(id, text);
  }
};

}  // namespace sluice
