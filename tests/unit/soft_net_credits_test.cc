// Who waits for credits is asked again when they come, whatever the link does meanwhile.
#include <gtest/gtest.h>

#include "verbs/soft/model/egress.h"
#include "verbs/soft/model/send_gate.h"

namespace sluice::soft {
namespace {

constexpr uint32_t kBytes = 2 * kCreditBytes;
constexpr Picos kNs = kPicosPerNs;

class Sink final : public PacketSink {
 public:
  explicit Sink(NetworkContext* context) : context_(context) {}
  void Receive(Packet* packet) override {
    context_->packets.Delete(packet);
    ++received;
  }
  int received = 0;

 private:
  NetworkContext* context_;
};

// Packets of kBytes in lane 0, as long as there are any.
class Source final : public PacketSource {
 public:
  explicit Source(NetworkContext* context) : gate_(context), context_(context) {}
  SendGate* gate() override { return &gate_; }
  Packet* NextPacket() override {
    if (left == 0) return nullptr;
    if (!gate_.Allows(0, kBytes)) {
      gate_.Block();
      return nullptr;
    }
    gate_.Unblock();
    gate_.Take(0, kBytes);
    --left;
    return Make();
  }
  bool MayHavePacket() const override { return left != 0; }
  void OnLost(const Packet&) override {}
  Packet* Make() {
    Packet* packet = context_->packets.New();
    packet->wire_bytes = kBytes;
    return packet;
  }
  int left = 0;

 private:
  SendGate gate_;
  NetworkContext* context_;
};

TEST(Credits, ComeWhileTheLinkIsBusyWithSomethingElse) {
  NetworkContext context;
  Sink sink(&context);
  Source source(&context);
  // 1 Gb/s: a packet takes 1024 ns.
  Transmitter link(&context, 0, 1'000'000'000, 0, &source, &sink);
  source.gate()->set_transmitter(&link);
  source.gate()->UseCredits(2);
  source.left = 2;
  const auto at = [&](Picos time) { context.scheduler.Run(time, 1000); };
  link.Kick();  // takes both credits
  at(2000 * kNs);
  EXPECT_EQ(sink.received, 1);
  // One credit comes at 3000: not enough, and the link is busy then.
  source.gate()->ReturnCredits(0, 1, 3000 * kNs);
  at(2900 * kNs);
  Packet* control = source.Make();
  control->kind = PacketKind::kPfcPause;
  link.SendControl(control);
  // Still busy, the first credit here but not looked at, the second is told of.
  at(3500 * kNs);
  source.gate()->ReturnCredits(0, 1, 6000 * kNs);
  at(20'000 * kNs);
  EXPECT_EQ(sink.received, 3) << "the second packet was never sent";
}

// A NIC with one client that sends `data` packets of 65 blocks, and acknowledgements while it owes some.
class Nic final : public PortClient {
 public:
  static constexpr uint32_t kDataBytes = 65 * kCreditBytes;
  static constexpr uint32_t kAckBytes = kCreditBytes / 2;

  explicit Nic(uint32_t blocks)
      : sink_(&context_),
        host_(NicSettings::Instant()),
        egress_(&context_, nullptr, &host_),
        link_(&context_, 0, 400'000'000'000, 0, &egress_, &sink_) {
    data_.client = ack_.client = this;
    egress_.set_transmitter(&link_);
    egress_.gate()->set_transmitter(&link_);
    egress_.gate()->UseCredits(blocks);
    egress_.OnConnected({&link_, nullptr, &settings_, true, true});
  }
  ~Nic() {
    if (data_.linked()) data_.Unlink();
    if (ack_.linked()) ack_.Unlink();
  }
  Packet* NextPacket() override { return data == 0 ? nullptr : (--data, Make(kDataBytes)); }
  Packet* TakeAck() override { return acks == 0 ? nullptr : (--acks, Make(kAckBytes)); }

  void Send(int packets) {
    data += packets;
    egress_.AddData(&data_);
    egress_.Kick();
  }
  void Acknowledge() {
    ++acks;
    egress_.AddAck(&ack_);
    egress_.Kick();
  }
  // The acknowledgement that is due is needed no more.
  void Withdraw() { acks = 0; }
  void WithdrawAndLeave() {
    acks = 0;
    ack_.Unlink();
  }
  void Free(uint32_t blocks, Picos at) { egress_.gate()->ReturnCredits(0, blocks, at); }
  void Until(Picos time) { context_.scheduler.Run(time, 1000); }
  int received() const { return sink_.received; }
  Picos waited() {
    LinkTruth truth = link_.truth();
    egress_.gate()->AddRunning(&truth);
    return truth.transmit_wait;
  }
  int data = 0;
  int acks = 0;

 private:
  Packet* Make(uint32_t bytes) {
    Packet* packet = context_.packets.New();
    packet->wire_bytes = bytes;
    return packet;
  }
  NetworkContext context_;
  SwitchSettings settings_ = SwitchSettings::InfiniBand();
  Sink sink_;
  HostInterface host_;
  Egress egress_;
  Transmitter link_;
  RingHook data_;
  RingHook ack_;
};

// What waited for credits may be gone when they come. What comes later must not be forgotten for that.
TEST(Credits, ComeWhenWhatWaitedIsGone) {
  for (const bool leave : {false, true}) {
    Nic nic(132);
    nic.Send(1);
    nic.Acknowledge();
    nic.Send(1);
    nic.Until(1000 * kNs);
    ASSERT_EQ(3, nic.received());
    // One block is left, too few for another acknowledgement.
    nic.Acknowledge();
    EXPECT_EQ(3, nic.received());
    leave ? nic.WithdrawAndLeave() : nic.Withdraw();
    // The first return wakes, and nothing is there; the second wakes nobody, and is here when the third is told.
    nic.Free(65, 2000 * kNs);
    nic.Free(1, 2100 * kNs);
    nic.Until(3000 * kNs);
    nic.Free(65, 4000 * kNs);
    nic.Until(3500 * kNs);
    // Room for one of two; the other goes with the credits that come at 4000.
    nic.Send(2);
    nic.Until(3900 * kNs);
    EXPECT_EQ(4, nic.received());
    nic.Until(5000 * kNs);
    EXPECT_EQ(5, nic.received()) << "nobody asked the sender again";
  }
}

TEST(Credits, NobodyWaitsWhenNothingIsThere) {
  for (const bool leave : {false, true}) {
    Nic nic(66);
    nic.Send(1);
    nic.Until(1000 * kNs);
    EXPECT_EQ(0, nic.waited());
    nic.Acknowledge();
    nic.Until(1500 * kNs);
    EXPECT_EQ(500 * kNs, nic.waited());
    leave ? nic.WithdrawAndLeave() : nic.Withdraw();
    nic.Free(65, 2000 * kNs);
    nic.Until(9000 * kNs);
    EXPECT_EQ(1000 * kNs, nic.waited()) << "until credits came and nothing was there to send";
  }
  // An acknowledgement that was sent is not one that waits.
  Nic nic(2);
  nic.Acknowledge();
  nic.Until(9000 * kNs);
  EXPECT_EQ(1, nic.received());
  EXPECT_EQ(0, nic.waited());
}

}  // namespace
}  // namespace sluice::soft
