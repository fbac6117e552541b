// What the tests of the fabric model share: programs on simulated hosts, in virtual time.
//
//   Rig rig("hosts=2");
//   Node& a = rig.AddNode(0);  Node& b = rig.AddNode(1);
//   auto [qa, qb] = rig.Connect(a, b);
//   a.Send(qa, 1, IBV_WR_SEND, a.Mr(buffer));  rig.Run();
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "verbs/soft/model/addressing.h"
#include "verbs/soft/model/direct_memory.h"
#include "verbs/soft/model/fabric.h"

namespace sluice::soft {

inline constexpr unsigned kAllAccess =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

// How queue pairs are made and connected; the defaults work for most tests.
struct QpOptions {
  uint32_t send_wr = 128;
  uint32_t recv_wr = 128;
  uint32_t sge = 4;
  uint32_t inline_bytes = 256;
  bool sq_sig_all = false;
  bool with_srq = false;
  unsigned access = kAllAccess;
  uint8_t max_rd_atomic = 4;
  uint8_t max_dest_rd_atomic = 4;
  uint8_t timeout = 10;  // 4.2 ms
  uint8_t retry_cnt = 7;
  uint8_t rnr_retry = 7;
  uint8_t min_rnr_timer = 1;  // 10 us
  uint8_t sl = 0;
  uint8_t traffic_class = 0;
  uint8_t gid_index = 3;
  bool with_grh = false;  // InfiniBand: addresses the peer by its GID as well
  ibv_mtu mtu = IBV_MTU_4096;
  uint32_t psn_a = 0x000010;
  uint32_t psn_b = 0xFFFFF0;
};

// Memory of a program, registered.
struct Buffer {
  std::vector<uint8_t> bytes;
  uint32_t key = 0;
  uint64_t address() const { return reinterpret_cast<uint64_t>(bytes.data()); }
  ibv_sge Sge(uint32_t offset, uint32_t length) const { return {address() + offset, length, key}; }
  ibv_sge All() const { return Sge(0, static_cast<uint32_t>(bytes.size())); }
};

// A program on a host: one process, one device.
struct Node {
  Fabric* fabric = nullptr;
  uint32_t host = 0;
  std::unique_ptr<DirectMemory> memory;
  ProcessId process = 0;
  Nic* nic = nullptr;
  PdId pd = 0;
  CqId cq = 0;
  SrqId srq = 0;

  Buffer MakeBuffer(size_t bytes, uint8_t seed, unsigned access = kAllAccess) {
    Buffer buffer;
    buffer.bytes.resize(bytes);
    for (size_t i = 0; i < bytes; ++i) buffer.bytes[i] = static_cast<uint8_t>(seed + i * 7 + (i >> 8) * 13);
    EXPECT_EQ(0, nic->RegMr(process, pd, buffer.address(), bytes, buffer.address(), access, &buffer.key));
    return buffer;
  }
  int Recv(uint32_t qp, uint64_t wr_id, std::vector<ibv_sge> sges) {
    return nic->PostRecv(qp, {wr_id, sges});
  }
  int Post(uint32_t qp, uint64_t wr_id, ibv_wr_opcode opcode, std::vector<ibv_sge> sges, uint64_t remote = 0,
           uint32_t rkey = 0, unsigned flags = IBV_SEND_SIGNALED, uint32_t imm = 0) {
    SendWork work;
    work.wr_id = wr_id;
    work.opcode = opcode;
    work.flags = flags;
    work.imm_data = imm;
    work.sges = sges;
    work.remote_address = remote;
    work.rkey = rkey;
    return nic->PostSend(qp, work);
  }
  int PostAtomic(uint32_t qp, uint64_t wr_id, ibv_wr_opcode opcode, ibv_sge result, uint64_t remote,
                 uint32_t rkey, uint64_t compare_or_add, uint64_t swap) {
    SendWork work;
    work.wr_id = wr_id;
    work.opcode = opcode;
    work.flags = IBV_SEND_SIGNALED;
    work.sges = {&result, 1};
    work.remote_address = remote;
    work.rkey = rkey;
    work.compare_or_add = compare_or_add;
    work.swap = swap;
    return nic->PostSend(qp, work);
  }
  std::vector<Completion> Completions() {
    std::vector<Completion> all;
    Completion completion;
    while (memory->Poll(cq, &completion)) all.push_back(completion);
    return all;
  }
  // The only completion there is.
  Completion One() {
    const std::vector<Completion> all = Completions();
    EXPECT_EQ(1u, all.size());
    return all.empty() ? Completion{.wr_id = UINT64_MAX} : all.front();
  }
  std::vector<ibv_event_type> Events() {
    std::vector<ibv_event_type> all;
    AsyncEvent event;
    while (memory->NextEvent(&event)) all.push_back(event.type);
    return all;
  }
  ibv_qp_state State(uint32_t qp) {
    ibv_qp_attr attr{};
    EXPECT_EQ(0, nic->QueryQp(process, qp, &attr));
    return attr.qp_state;
  }
  const PortCounters& counters(uint32_t port = 1) const { return *nic->counters(port); }
};

class Rig {
 public:
  explicit Rig(const std::string& topology, uint64_t pool_limit_bytes = UINT64_MAX)
      : pool_(pool_limit_bytes) {
    Result<Topology> parsed = Topology::Parse(topology);
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    Result<std::unique_ptr<Fabric>> made = Fabric::Create(*parsed, &pool_);
    EXPECT_TRUE(made.ok()) << made.status().message();
    fabric_ = std::move(*made);
  }

  explicit Rig(std::unique_ptr<Fabric> fabric) : fabric_(std::move(fabric)) {}

  Fabric* fabric() { return fabric_.get(); }
  HeapPayloadPool& pool() { return pool_; }

  Node& AddNode(uint32_t host, uint32_t nic = 0, std::unique_ptr<DirectMemory> memory = nullptr,
                uint32_t cqe = 65536) {
    nodes_.push_back(std::make_unique<Node>());
    Node& node = *nodes_.back();
    node.fabric = fabric_.get();
    node.host = host;
    node.memory = memory != nullptr ? std::move(memory) : std::make_unique<DirectMemory>(fabric_.get());
    node.process = fabric_->AttachProcess(host, node.memory.get());
    node.nic = fabric_->nic(host, nic);
    uint32_t depth = 0;
    EXPECT_EQ(0, node.nic->AllocPd(node.process, &node.pd));
    EXPECT_EQ(0, node.nic->CreateCq(node.process, cqe, &node.cq, &depth));
    return node;
  }

  uint32_t CreateQp(Node& node, const QpOptions& options = {}) {
    QpInit init;
    init.pd = node.pd;
    init.send_cq = init.recv_cq = node.cq;
    init.srq = options.with_srq ? node.srq : 0;
    init.cap = {options.send_wr, options.recv_wr, options.sge, options.sge, options.inline_bytes};
    init.sq_sig_all = options.sq_sig_all;
    uint32_t qp = 0;
    EXPECT_EQ(0, node.nic->CreateQp(node.process, &init, &qp));
    return qp;
  }

  static ibv_qp_attr InitAttr(const QpOptions& options, uint32_t port = 1) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = static_cast<uint8_t>(port);
    attr.qp_access_flags = options.access;
    return attr;
  }
  static constexpr int kInitMask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;

  static ibv_qp_attr RtrAttr(const QpOptions& options, const Node& peer, uint32_t peer_qp, uint32_t psn,
                             uint32_t peer_port = 1) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = options.mtu;
    attr.dest_qp_num = peer_qp;
    attr.rq_psn = psn;
    attr.max_dest_rd_atomic = options.max_dest_rd_atomic;
    attr.min_rnr_timer = options.min_rnr_timer;
    ibv_port_attr port{};
    EXPECT_EQ(0, peer.nic->QueryPort(peer_port, &port));
    attr.ah_attr.sl = options.sl;
    attr.ah_attr.port_num = 1;
    if (port.link_layer == IBV_LINK_LAYER_INFINIBAND) {
      attr.ah_attr.dlid = port.lid;
      if (options.with_grh) {
        GidEntry entry;
        EXPECT_EQ(0, peer.nic->QueryGid(peer_port, 0, &entry));
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.dgid = entry.gid;
      }
    } else {
      GidEntry entry;
      EXPECT_EQ(0, peer.nic->QueryGid(peer_port, options.gid_index, &entry));
      attr.ah_attr.is_global = 1;
      attr.ah_attr.grh.dgid = entry.gid;
      attr.ah_attr.grh.sgid_index = options.gid_index;
      attr.ah_attr.grh.hop_limit = 64;
      attr.ah_attr.grh.traffic_class = options.traffic_class;
    }
    return attr;
  }
  static constexpr int kRtrMask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                  IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;

  static ibv_qp_attr RtsAttr(const QpOptions& options, uint32_t psn) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = options.timeout;
    attr.retry_cnt = options.retry_cnt;
    attr.rnr_retry = options.rnr_retry;
    attr.sq_psn = psn;
    attr.max_rd_atomic = options.max_rd_atomic;
    return attr;
  }
  static constexpr int kRtsMask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;

  // Brings `qp` to RTS towards `peer_qp`.
  static void Establish(Node& node, uint32_t qp, const Node& peer, uint32_t peer_qp, const QpOptions& options,
                        uint32_t own_psn, uint32_t peer_psn) {
    ASSERT_EQ(0, node.nic->ModifyQp(node.process, qp, InitAttr(options), kInitMask));
    ASSERT_EQ(0, node.nic->ModifyQp(node.process, qp, RtrAttr(options, peer, peer_qp, peer_psn), kRtrMask));
    ASSERT_EQ(0, node.nic->ModifyQp(node.process, qp, RtsAttr(options, own_psn), kRtsMask));
  }

  std::pair<uint32_t, uint32_t> Connect(Node& a, Node& b, const QpOptions& options = {}) {
    const uint32_t qa = CreateQp(a, options);
    const uint32_t qb = CreateQp(b, options);
    Establish(a, qa, b, qb, options, options.psn_a, options.psn_b);
    Establish(b, qb, a, qa, options, options.psn_b, options.psn_a);
    return {qa, qb};
  }

  // Until nothing happens any more, or `until`.
  void Run(Picos until = kNever) {
    for (;;) {
      const Picos next = fabric_->NextEventTime();
      if (next == kNever || next > until) return;
      fabric_->Advance(next);
    }
  }

 private:
  HeapPayloadPool pool_;
  std::vector<std::unique_ptr<Node>> nodes_;  // their memory is called while the fabric lives
  std::unique_ptr<Fabric> fabric_;
};

}  // namespace sluice::soft
