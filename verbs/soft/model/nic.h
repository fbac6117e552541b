// One simulated RDMA NIC: the verbs of one device, as an HCA with RC transport executes them. Functions that
// a program can call wrongly return 0 or an errno value, the one a real device's driver returns.
//
//   Nic* nic = fabric->nic(host, 0);
//   nic->AllocPd(process, &pd);  nic->CreateCq(process, 256, &cq, &depth);
//   nic->CreateQp(process, init, &qp_num);  nic->ModifyQp(process, qp_num, attr, mask);
//   nic->PostSend(qp_num, work);            // completion arrives by ProcessMemory::PushCompletion
//
// Objects belong to the process that made them; functions that take a ProcessId refuse objects of another
// process (EINVAL). The model copies what it is given. Thread rule: the thread that drives the Fabric.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "verbs/soft/model/memory.h"
#include "verbs/soft/model/topology.h"

namespace sluice::soft {

using ProcessId = uint32_t;  // never 0, never reused

enum class GidType : uint8_t { kInfiniBand, kRoceV1, kRoceV2 };

struct GidEntry {
  ibv_gid gid{};
  GidType type = GidType::kRoceV2;
  bool valid = false;  // an invalid entry reads as zero
};

// What does not change while the fabric lives; names and numbers derive from host and NIC index.
struct NicInfo {
  uint32_t host = 0;
  uint32_t index = 0;              // in the host
  std::string name;                // "soft0"
  std::string netdev;              // "softeth0" for the first port; RoCE only
  std::string pci_address;         // "0000:41:00.0"; empty: no PCI path
  uint64_t node_guid = 0;          // host byte order
  uint64_t system_image_guid = 0;  // equal for the NICs of one adapter card: here, one NIC each
  uint32_t vendor_id = 0;
  uint32_t device_id = 0;
};

struct PortCounters {
  uint64_t tx_bytes = 0, rx_bytes = 0;  // wire bytes, headers and gaps included
  uint64_t tx_packets = 0, rx_packets = 0;
  uint64_t tx_payload_bytes = 0, rx_payload_bytes = 0;
  uint64_t tx_bytes_by_sl[16] = {};  // wire bytes by service level: IB SL; RoCE: traffic class >> 5
  uint64_t tx_bytes_by_traffic_class[256] = {};  // wire bytes; without a GRH class 0
  uint64_t retransmitted_packets = 0;
  uint64_t out_of_sequence = 0;  // responder: gaps seen
  uint64_t packet_seq_err = 0;   // requester: sequence NAKs received
  uint64_t rnr_nak_sent = 0, rnr_nak_received = 0;
  uint64_t local_ack_timeout_err = 0;
  uint64_t duplicate_request = 0;
  uint64_t implied_nak_seq_err = 0;
  uint64_t req_cqe_error = 0, req_cqe_flush_error = 0;
  uint64_t resp_cqe_error = 0, resp_cqe_flush_error = 0;
  uint64_t req_remote_access_errors = 0, req_remote_invalid_request = 0;
  uint64_t resp_local_length_error = 0, resp_remote_access_errors = 0;
  uint64_t rx_write_requests = 0, rx_read_requests = 0, rx_atomic_requests = 0;
  uint64_t dropped_packets = 0;    // unknown queue pair, corrupted, port down
  uint64_t corrupted_packets = 0;  // of these
  uint64_t link_downed = 0;
  Picos transmit_wait = 0;  // something to send, link idle: paused or without credits
  // RoCE congestion: notifications sent for marked packets that arrived (np), and received (rp).
  uint64_t np_cnp_sent = 0, np_ecn_marked_roce_packets = 0, rp_cnp_handled = 0, rp_cnp_ignored = 0;
};

struct QpInit {
  ibv_qp_type type = IBV_QPT_RC;
  PdId pd = 0;
  CqId send_cq = 0;
  CqId recv_cq = 0;
  SrqId srq = 0;  // 0: a receive queue of its own
  ibv_qp_cap cap{};
  bool sq_sig_all = false;
};

struct SendWork {
  uint64_t wr_id = 0;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  unsigned flags = 0;             // IBV_SEND_*
  uint32_t imm_data = 0;          // network byte order; rkey to invalidate for SEND_WITH_INV
  std::span<const ibv_sge> sges;  // empty with IBV_SEND_INLINE
  std::span<const std::byte> inline_data;
  uint64_t remote_address = 0;
  uint32_t rkey = 0;
  uint64_t compare_or_add = 0, swap = 0;  // atomics
};

struct RecvWork {
  uint64_t wr_id = 0;
  std::span<const ibv_sge> sges;
};

class Fabric;

class Nic {
 public:
  virtual ~Nic() = default;

  // Description.
  virtual const NicInfo& info() const = 0;
  virtual void QueryDevice(ibv_device_attr* attr) const = 0;
  virtual uint32_t max_inline() const = 0;
  virtual uint32_t port_count() const = 0;
  // `port` counts from 1. EINVAL when there is no such port, GID or P_Key.
  virtual int QueryPort(uint32_t port, ibv_port_attr* attr) const = 0;
  virtual int QueryGid(uint32_t port, uint32_t gid_index, GidEntry* entry) const = 0;
  virtual int QueryPkey(uint32_t port, uint32_t index, uint16_t* pkey) const = 0;  // network byte order
  virtual const PortCounters* counters(uint32_t port) const = 0;                   // nullptr: no such port

  // Protection domains and memory.
  virtual int AllocPd(ProcessId process, PdId* pd) = 0;
  virtual int DeallocPd(ProcessId process, PdId pd) = 0;  // EBUSY while used
  // The program addresses the region by [iova, iova + length); `address` is where it lies in the process.
  // lkey == rkey.
  virtual int RegMr(ProcessId process, PdId pd, uint64_t address, uint64_t length, uint64_t iova,
                    unsigned access, uint32_t* key) = 0;
  virtual int DeregMr(ProcessId process, uint32_t key) = 0;

  // Completion queues. `depth` receives the real capacity (at least `cqe`).
  virtual int CreateCq(ProcessId process, uint32_t cqe, CqId* cq, uint32_t* depth) = 0;
  virtual int ResizeCq(ProcessId process, CqId cq, uint32_t cqe, uint32_t* depth) = 0;
  virtual int DestroyCq(ProcessId process, CqId cq) = 0;  // EBUSY while used

  // Shared receive queues.
  virtual int CreateSrq(ProcessId process, PdId pd, const ibv_srq_attr& attr, SrqId* srq,
                        ibv_srq_attr* actual) = 0;
  virtual int ModifySrq(ProcessId process, SrqId srq, const ibv_srq_attr& attr, int mask) = 0;
  virtual int QuerySrq(ProcessId process, SrqId srq, ibv_srq_attr* attr) = 0;
  virtual int DestroySrq(ProcessId process, SrqId srq) = 0;  // EBUSY while used
  virtual int PostSrqRecv(SrqId srq, const RecvWork& work) = 0;

  // Queue pairs. `init->cap` receives the real capacities. UD and others: EOPNOTSUPP.
  virtual int CreateQp(ProcessId process, QpInit* init, uint32_t* qp_num) = 0;
  virtual int ModifyQp(ProcessId process, uint32_t qp_num, const ibv_qp_attr& attr, int mask) = 0;
  virtual int QueryQp(ProcessId process, uint32_t qp_num, ibv_qp_attr* attr) = 0;
  virtual int DestroyQp(ProcessId process, uint32_t qp_num) = 0;
  // ENOMEM: queue full; EINVAL: wrong state, too many elements, bad opcode or flags. In ERR work is flushed.
  virtual int PostSend(uint32_t qp_num, const SendWork& work) = 0;
  virtual int PostRecv(uint32_t qp_num, const RecvWork& work) = 0;
  // The process of the queue pair at the other end of `qp_num`; 0 when there is none.
  virtual ProcessId PeerProcess(uint32_t qp_num) = 0;

  // Faults (each raises the async event a real device raises).
  virtual int SetPortUp(uint32_t port, bool up) = 0;                                 // PORT_ERR, PORT_ACTIVE
  virtual int SetGid(uint32_t port, uint32_t gid_index, const GidEntry& entry) = 0;  // GID_CHANGE
  virtual void Die() = 0;  // DEVICE_FATAL: all queue pairs to ERR, nothing is sent or received any more
};

}  // namespace sluice::soft
