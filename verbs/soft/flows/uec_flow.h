// A flow of a UEC transport at packet level: packets are sprayed over paths, arrive in any order and are
// acknowledged one by one; a switch that is full trims a packet, and the receiver asks for it again. How much
// is under way is decided by the sender (NSCC: a window) or the receiver (RCCC: credit).
//
// A yardstick, for switches in QueueMode::kTrim. Thread rule: single threaded.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <vector>

#include "verbs/soft/flows/flow.h"
#include "verbs/soft/flows/uec_nscc.h"
#include "verbs/soft/flows/uec_settings.h"
#include "verbs/soft/flows/uec_spray.h"

namespace sluice::soft {

class UecPullPacer;

class UecSource final : public PortClient {
 public:
  // `credit_bytes` 0: NSCC; else RCCC, starting with that much.
  UecSource(FlowContext* context, const UecSettings& settings, FlowId id, const FlowSpec& spec, uint8_t lane,
            Egress* egress, uint64_t rate_bps, uint64_t credit_bytes);
  ~UecSource();
  void Post(uint64_t bytes);
  void OnPacket(const Packet& packet);
  void OnRetransmitTimer();
  Packet* NextPacket() override;
  Packet* TakeAck() override;

 private:
  enum class State : uint8_t { kNotSent, kInFlight, kToRepeat, kArrived };
  struct Record {
    Picos sent_at = 0;
    uint32_t wire_bytes = 0;
    State state = State::kNotSent;
    uint8_t repeats = 0;
  };
  struct Outstanding {
    Picos sent_at;
    uint32_t psn;
  };

  bool receiver_driven() const { return max_credit_bytes_ != 0; }
  bool MaySend() const;
  void Activate();
  void OnAck(const Packet& packet);
  void OnNack(const Packet& packet);
  void OnPull(const Packet& packet);
  void Arrived(uint32_t psn);
  void StopSpeculating();
  uint64_t PullTarget() const;
  void ArmTimer();
  void CompleteMessages();

  FlowContext& context_;
  UecSettings settings_;
  FlowId id_;
  uint32_t source_;
  uint32_t destination_;
  uint32_t flow_hash_;
  uint8_t lane_;
  Egress* egress_;
  RingHook data_hook_;
  RingHook control_hook_;
  Nscc window_;
  UecSpray spray_;

  std::vector<Record> records_;  // by PSN
  uint32_t cumulative_ = 0;      // all before have arrived
  uint32_t next_psn_ = 0;
  std::set<uint32_t> to_repeat_;
  std::deque<Outstanding> outstanding_;  // in the order of sending; entries out of date are skipped
  std::deque<uint32_t> message_ends_;
  uint64_t messages_done_ = 0;
  uint64_t backlog_bytes_ = 0;  // not yet sent, with headers
  uint64_t repeat_bytes_ = 0;
  int64_t in_flight_bytes_ = 0;
  uint64_t received_bytes_ = 0;  // as the receiver counts
  Picos timer_event_at_ = kNever;
  bool request_due_ = false;

  int64_t credit_bytes_ = 0;
  uint64_t max_credit_bytes_;
  uint64_t pull_units_ = 0;  // granted so far
  bool speculating_ = true;
};

class UecSink final : public PortClient {
 public:
  UecSink(FlowContext* context, const UecSettings& settings, FlowId id, const FlowSpec& spec, Egress* egress,
          UecPullPacer* pacer);
  ~UecSink();
  void OnPacket(const Packet& packet);
  // Messages end behind these PSNs; the sink only counts them.
  void ExpectMessage(uint32_t end_psn) { message_ends_.push_back(end_psn); }
  Packet* NextPacket() override { return nullptr; }
  Packet* TakeAck() override;

  // For the pacer.
  uint64_t Pull();  // grants what is wanted, at most one pull; returns the units granted
  void PullInAdvance(uint64_t units);
  void LeavePullQueue() { in_pull_queue_ = false; }
  uint64_t demand_units() const {
    return wanted_units_ > granted_units_ ? wanted_units_ - granted_units_ : 0;
  }
  uint64_t advance_units() const {
    return granted_units_ > wanted_units_ ? granted_units_ - wanted_units_ : 0;
  }

 private:
  bool Has(uint32_t psn) const { return psn < expected_ || (psn < here_.size() && here_[psn] != 0); }
  void OnTrimmed(const Packet& packet);
  void OnData(const Packet& packet);
  void Want(uint64_t units);
  void RequestPull();
  void SendAck(const Packet& packet, bool selective);
  void SendPull();
  Packet* NewControl(PacketKind kind);
  void Queue(Packet* packet);

  FlowContext& context_;
  UecSettings settings_;
  FlowId id_;
  uint32_t source_;
  uint32_t destination_;
  uint32_t flow_hash_;
  Egress* egress_;
  UecPullPacer* pacer_;
  RingHook hook_;
  PacketQueue control_;
  std::vector<uint8_t> here_;  // by PSN, from expected_ on
  std::deque<uint32_t> message_ends_;
  uint64_t messages_done_ = 0;
  uint32_t expected_ = 0;
  uint32_t gaps_filled_late_ = 0;  // packets beyond expected_
  uint64_t received_bytes_ = 0;
  uint64_t unacknowledged_bytes_ = 0;
  uint64_t wanted_units_ = 0;
  uint64_t granted_units_ = 0;
  uint32_t pulls_ = 0;
  bool in_pull_queue_ = false;
  bool ack_when_whole_ = false;
};

class UecFlow final : public Flow {
 public:
  // `pacer` null: NSCC.
  UecFlow(FlowContext* context, const UecSettings& settings, FlowId id, const FlowSpec& spec, uint8_t lane,
          Egress* source, Egress* sink, uint64_t rate_bps, UecPullPacer* pacer);
  void Post(uint64_t bytes) override;
  void OnPacket(const Packet& packet, bool at_source) override;
  void OnTimer(FlowTimer timer) override;

 private:
  uint32_t payload_bytes_;
  uint32_t posted_packets_ = 0;
  UecSource source_;
  UecSink sink_;
};

}  // namespace sluice::soft
