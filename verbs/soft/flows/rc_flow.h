// RC transport without verbs objects and without payload, by the rules that queue pairs of the model obey:
// one order of packets, go-back-N, one NAK per gap, a timer that starts again with every progress, a retry
// count. Both ends live in one object of at most 512 bytes, made when the flow is first used.
//
// Thread rule: single threaded.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "verbs/soft/flows/flow.h"
#include "verbs/soft/model/dcqcn.h"
#include "verbs/soft/model/ring.h"

namespace sluice::soft {

class RcSender final : public PortClient {
 public:
  RcSender(FlowContext* context, FlowId id, const FlowSpec& spec, uint8_t lane, Egress* egress,
           uint64_t link_rate_bps);
  ~RcSender() {
    if (hook_.linked()) hook_.Unlink();
  }
  void Post(uint64_t bytes);
  void OnAnswer(const Packet& packet);
  void OnCongestion();
  void OnRetransmitTimer();
  void Activate();
  Packet* NextPacket() override;
  Packet* TakeAck() override { return nullptr; }

 private:
  struct Message {
    uint64_t bytes = 0;
    uint64_t end_psn = 0;
  };
  bool HeldBack(uint32_t bytes);
  void AckThrough(uint64_t end, Picos rtt);
  void GoBack();
  bool SpendRetry();
  void ArmTimer();
  uint64_t BytesAt(uint64_t psn) const;

  FlowContext& context_;
  Egress* egress_;
  RingHook hook_;
  std::unique_ptr<CongestionControl> control_;
  std::unique_ptr<DcqcnRate> rate_;  // with RateControl::kDcqcn
  Ring<Message> messages_;           // not wholly acknowledged
  uint64_t post_psn_;                // one behind the last packet posted
  uint64_t una_;                     // oldest packet not acknowledged
  uint64_t tx_psn_;                  // next to send
  uint64_t max_sent_;                // one behind the highest ever sent
  uint64_t ack_expected_ = 0;
  uint64_t una_first_;       // first packet of the front message
  uint64_t una_bytes_ = 0;   // payload before the front message
  uint64_t tx_message_ = 0;  // index of the message that tx_psn_ is of
  uint64_t tx_first_;        // its first packet
  uint64_t tx_bytes_ = 0;    // payload before tx_psn_
  Picos timer_deadline_ = kNever;
  Picos timer_event_at_ = kNever;
  uint32_t source_;
  uint32_t destination_;
  uint32_t flow_hash_;
  FlowId id_;
  uint8_t lane_;
  uint8_t sl_;
  uint8_t traffic_class_;
  uint8_t retries_left_;
  bool failed_ = false;
  bool pacing_event_ = false;

  friend class RcFlow;
};

class RcReceiver final : public PortClient {
 public:
  RcReceiver(FlowContext* context, FlowId id, const FlowSpec& spec, uint8_t lane, Egress* egress);
  ~RcReceiver() {
    if (hook_.linked()) hook_.Unlink();
  }
  void OnData(const Packet& packet);
  Packet* NextPacket() override { return nullptr; }
  Packet* TakeAck() override;

 private:
  static constexpr uint32_t kReorderPackets = 256;
  void Accept(bool last);
  void Answer(Syndrome syndrome, uint64_t psn, Picos sent_at);
  bool Store(const Packet& packet, uint64_t psn);
  // An ECN mark came: a CNP goes back, unless one has just gone.
  void Notify();
  Packet* NewPacket(PacketKind kind) const;

  FlowContext& context_;
  Egress* egress_;
  RingHook hook_;
  uint64_t expected_;
  uint64_t messages_ = 0;  // received whole
  uint64_t nak_psn_ = 0;
  CnpNotifier notifier_;
  Picos sent_at_ = 0;  // of the packet that asked for the answer
  uint32_t source_;
  uint32_t destination_;
  uint32_t flow_hash_;
  FlowId id_;
  uint32_t acks_due_ = 0;
  uint32_t stored_ = 0;
  uint8_t lane_;
  uint8_t sl_;
  uint8_t traffic_class_;
  bool nak_due_ = false;
  bool nak_sent_ = false;                              // until the missing packet arrives: one NAK per gap
  bool ack_pending_ = false;                           // asked for by a packet beyond a gap
  std::array<uint64_t, kReorderPackets / 64> here_{};  // beyond the gap, by PSN modulo the window
  std::array<uint64_t, kReorderPackets / 64> last_{};  // of those, ends of messages
};

class RcFlow final : public Flow {
 public:
  RcFlow(FlowContext* context, FlowId id, const FlowSpec& spec, uint8_t lane, Egress* source, Egress* sink,
         uint64_t link_rate_bps);
  void Post(uint64_t bytes) override { sender_.Post(bytes); }
  void OnPacket(const Packet& packet, bool at_source) override;
  void OnTimer(FlowTimer timer) override;

 private:
  RcSender sender_;
  RcReceiver receiver_;
};
static_assert(sizeof(RcFlow) <= 512);

}  // namespace sluice::soft
