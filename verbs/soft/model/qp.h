// An RC queue pair: attributes and state, and its two halves. The requester sends requests and takes
// acknowledgements and responses; the responder takes requests and sends acknowledgements and responses.
//
// PSNs are counted in 64 bits inside (the 24 bits on the wire are the low part), so comparing them is plain
// arithmetic.
//
// Thread rule: single threaded.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "verbs/soft/model/core.h"
#include "verbs/soft/model/dcqcn.h"
#include "verbs/soft/model/packet.h"
#include "verbs/soft/model/port.h"
#include "verbs/soft/model/psn.h"
#include "verbs/soft/model/queues.h"
#include "verbs/soft/model/ring.h"

namespace sluice::soft {

class NicImpl;
class Qp;

inline constexpr uint32_t kSegmentBytes = kMaxPayloadBytes;
// A queue pair reads at most this far ahead of what it has sent, in each role.
inline constexpr uint64_t kGatherAheadBytes = 2 * kSegmentBytes;
inline constexpr uint64_t kGatherAheadSegments = 64;
inline constexpr uint64_t kMaxMessageBytes = uint64_t{1} << 31;
inline constexpr uint32_t kAckInterval = 16;

// A stretch of message bytes read from a process.
struct Segment {
  PayloadRef payload;
  uint64_t owner = 0;   // send work request or response
  uint64_t offset = 0;  // in the message
  uint64_t serial = 0;  // names it while its data is read
  uint32_t length = 0;
  bool ready = false;
};

struct SendWqe {
  uint64_t wr_id = 0;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  unsigned flags = 0;
  uint32_t imm_data = 0;
  uint32_t rkey = 0;
  uint64_t remote_address = 0;
  uint64_t compare_or_add = 0;
  uint64_t swap = 0;
  uint64_t length = 0;
  uint64_t first_psn = 0;
  uint64_t packets = 0;                    // PSNs it takes
  Picos visible_at = 0;                    // to the NIC: behind its doorbell
  ibv_wc_status failure = IBV_WC_SUCCESS;  // found before sending; reported in turn
  bool read_like = false;                  // READ or atomic: done when the response is here
  std::vector<ibv_sge> sges;
  std::vector<std::byte> inline_data;

  uint64_t end_psn() const { return first_psn + packets; }
};

class Requester {
 public:
  explicit Requester(Qp* qp) : qp_(*qp) {}

  void Start(uint32_t psn);  // RTR to RTS
  void Clear();              // to RESET: forgets everything silently
  void Flush();              // to ERR: completes everything as flushed
  int Post(const SendWork& work);
  void Resume();      // SQD to RTS
  void BeginDrain();  // RTS to SQD

  Packet* NextPacket();
  void OnAck(const Packet& packet);
  void OnResponse(const Packet& packet);
  void OnGathered(uint64_t serial, bool ok);
  void OnTransportTimer();
  void OnRnrTimer();
  void RetryPayload();

  bool draining() const { return draining_; }
  uint32_t next_psn() const { return static_cast<uint32_t>(post_psn_ & 0xFFFFFF); }

 private:
  void Prepare(SendWqe* wqe);
  ibv_wc_status Validate(const SendWqe& wqe) const;
  void PumpGathers();
  bool Gather(SendWqe& wqe, uint64_t offset, uint32_t length);
  // Fills FabricCore::ranges. False: a key became invalid.
  bool ListRanges(const SendWqe& wqe, uint64_t offset, uint32_t length) const;
  void DropSegments();
  bool MayStart(const SendWqe& wqe) const;
  Packet* MakeReadLike(const SendWqe& wqe);
  Packet* MakeData(const SendWqe& wqe);
  void Sent(uint64_t psn_end, bool ack_expected);
  // Everything below `end` has arrived; READs and atomics among it count only with their response.
  void AckThrough(uint64_t end);
  void AfterProgress(uint64_t una_before);
  void CompleteFront();
  void FailFront(ibv_wc_status status);
  void FailIfFrontInvalid();
  void GoBack(uint64_t psn);
  bool SpendRetry();
  void ArmTimer();
  void StopTimer() { timer_deadline_ = kNever; }
  void ScheduleTimer();
  void CheckDrained();
  ibv_wc_opcode CompletionOpcode(const SendWqe& wqe) const;

  Qp& qp_;
  Ring<SendWqe> wqes_;
  uint64_t post_psn_ = 0;  // of the next work request posted
  uint64_t una_ = 0;       // oldest PSN not acknowledged
  uint64_t tx_psn_ = 0;    // next to send
  uint64_t tx_wqe_ = 0;
  uint64_t max_sent_ = 0;  // one behind the highest PSN ever sent
  uint64_t started_ = 0;   // one behind the last work request of which a packet was sent
  uint32_t reads_before_tx_ = 0;

  Ring<Segment> segments_;  // read, not yet sent
  uint64_t segment_serial_ = 0;
  uint64_t gather_wqe_ = 0;  // everything before is validated and read
  uint64_t gather_offset_ = 0;
  uint64_t last_read_ = 0;  // one behind the last READ or atomic before gather_wqe_
  uint64_t ahead_bytes_ = 0;
  uint32_t gathers_pending_ = 0;
  bool waits_for_payload_ = false;

  uint64_t ack_expected_ = 0;  // one behind the last PSN sent that demands an answer
  uint64_t implied_nak_at_ = 0;
  Picos timer_deadline_ = kNever;
  Picos timer_event_at_ = kNever;
  Picos rnr_until_ = 0;
  uint8_t retries_left_ = 0;
  uint8_t rnr_retries_left_ = 0;
  bool draining_ = false;
};

class Responder {
 public:
  explicit Responder(Qp* qp) : qp_(*qp) {}

  void Start(uint32_t psn);  // INIT to RTR
  void Clear();
  void Flush();
  void OnRequest(const Packet& packet);
  void OnGathered(uint64_t serial, bool ok);
  void OnAtomic(uint64_t serial, bool ok, uint64_t before);
  Packet* NextPacket();
  // The acknowledgement that is due, or nullptr (none, or responses must go first).
  Packet* TakeAck();
  void RetryPayload();
  // A memory access or a buffer is awaited, so silence is no sign of loss.
  bool WaitsForHost() const { return gathers_pending_ != 0 || atomics_pending_ != 0 || waits_for_payload_; }
  uint32_t expected_psn() const { return static_cast<uint32_t>(expected_ & 0xFFFFFF); }

 private:
  struct Response {
    uint64_t psn = 0;
    uint64_t packets = 0;
    uint64_t sent = 0;  // packets
    uint64_t address = 0;
    uint64_t length = 0;
    uint64_t gathered = 0;
    uint32_t rkey = 0;
    uint64_t result = 0;
    bool atomic = false;
    bool ready = false;  // atomics
  };
  struct AtomicResult {
    uint64_t psn;
    uint64_t serial;
    uint64_t before;
    bool done;
  };

  void OnInOrder(const Packet& packet, uint64_t psn);
  // Places a write that came before an earlier packet and keeps what else it says. False: it is a gap.
  bool PlaceEarly(const Packet& packet, uint64_t psn);
  void OnSend(const Packet& packet);
  void OnWrite(const Packet& packet);
  void OnRead(const Packet& packet, uint64_t psn, bool duplicate);
  void OnAtomicRequest(const Packet& packet);
  void OnDuplicate(const Packet& packet, uint64_t psn);
  // A receive entry for the message; answers RNR itself when there is none.
  bool TakeReceive();
  bool ReceiveIsValid(uint64_t* capacity);
  void ScatterToReceive(uint64_t offset, const Packet& packet);
  void CompleteReceive(const Packet& packet, ibv_wc_opcode opcode, uint64_t length);
  void FailReceive(ibv_wc_status status);
  void Accept(const Packet& packet);
  void Acknowledge();
  void Nak(Syndrome syndrome, uint64_t psn);
  // NAK, async event, ERR.
  void Refuse(Syndrome syndrome, uint64_t psn);
  void Refuse(Syndrome syndrome) { Refuse(syndrome, expected_); }
  bool CheckRemote(uint64_t address, uint64_t length, uint32_t rkey, unsigned access, uint64_t* local) const;
  void DropResponsesFrom(uint64_t psn);
  void PumpGathers();

  Qp& qp_;
  uint64_t expected_ = 0;
  bool nak_sent_ = false;  // until the expected packet arrives: one NAK per gap
  bool ack_due_ = false;
  Syndrome ack_syndrome_ = Syndrome::kAck;
  uint64_t nak_psn_ = 0;
  bool refusing_ = false;  // the NAK that ends this queue pair is due
  bool established_ = false;

  // The message being received.
  enum class Message : uint8_t { kNone, kSend, kWrite } message_ = Message::kNone;
  uint64_t received_ = 0;
  uint64_t message_length_ = 0;  // RDMA writes: announced
  uint64_t write_address_ = 0;   // in the process
  uint64_t write_remote_ = 0;    // as the peer named it
  uint32_t write_rkey_ = 0;
  uint64_t write_epoch_ = 0;
  bool has_receive_ = false;
  ReceiveWqe receive_;
  uint64_t receive_capacity_ = 0;

  Ring<Response> responses_;
  uint64_t gather_response_ = 0;
  Ring<Segment> segments_;
  uint64_t segment_serial_ = 0;
  uint64_t ahead_bytes_ = 0;
  uint32_t gathers_pending_ = 0;
  uint32_t atomics_pending_ = 0;
  bool waits_for_payload_ = false;
  std::deque<AtomicResult> atomics_;
  std::map<uint64_t, Packet> early_;  // by PSN, without payload: that is in place
  bool placed_early_ = false;         // the packet in hand is one of them
};

class Qp final : public PortClient {
 public:
  Qp(NicImpl* owner, FabricCore* fabric_core, ProcessId owner_process, uint32_t qp_number);
  ~Qp();
  Qp(const Qp&) = delete;
  Qp& operator=(const Qp&) = delete;

  int Modify(const ibv_qp_attr& change, int mask);
  void Query(ibv_qp_attr* out) const;
  int PostSend(const SendWork& work);
  int PostRecv(const RecvWork& work);

  // The next packet of either half; nullptr: nothing can be sent now.
  Packet* NextPacket() override;
  Packet* TakeAck() override { return responder.TakeAck(); }
  void OnPacket(const Packet& packet);
  void RetryPayload();

  // Asks the port for a turn.
  void Activate();
  void ActivateAck();
  // To ERR; everything outstanding is flushed.
  void EnterError();
  Packet* NewPacket(PacketKind kind, uint64_t psn);
  // Adds payload (padded to 4 bytes, as on the wire) and extension headers to the wire size.
  static void AddBytes(Packet* packet, uint32_t payload_bytes, uint32_t extension_bytes);
  void PushCompletion(CompletionQueue* cq, Completion completion);
  void PushEvent(ibv_event_type type);
  PortCounters& counters() const { return port->counters(); }
  bool responds() const { return state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQD; }
  bool requests() const { return state == IBV_QPS_RTS || state == IBV_QPS_SQD; }

  NicImpl& nic;
  FabricCore& core;
  const ProcessId process;
  ProcessMemory* const memory;
  const uint32_t number;
  PdId pd = 0;
  CompletionQueue* send_cq = nullptr;
  CompletionQueue* recv_cq = nullptr;
  SharedReceiveQueue* srq = nullptr;
  ReceiveQueue receive_queue;
  bool sq_sig_all = false;

  ibv_qp_state state = IBV_QPS_RESET;
  ibv_qp_attr attr{};
  Port* port = nullptr;
  Egress* egress = nullptr;
  uint32_t remote_endpoint = kNoEndpoint;
  uint32_t mtu = 256;
  uint32_t header_bytes = 0;  // on the wire, of a packet with nothing but the base transport header
  uint32_t flow = 0;
  uint8_t lane = 0;

  Requester requester;
  Responder responder;

 private:
  int CheckAttributes(const ibv_qp_attr& change, int mask) const;
  void Apply(const ibv_qp_attr& change, int mask);
  void Disconnect();

  // An ECN mark came: a CNP goes back, unless one has just gone.
  void Notify();
  RingHook data_hook_;
  RingHook ack_hook_;
  std::unique_ptr<DcqcnRate> rate_;  // with RateControl::kDcqcn
  CnpNotifier notifier_;
  bool response_turn_ = false;
};

}  // namespace sluice::soft
