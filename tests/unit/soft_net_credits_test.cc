// Who waits for credits is asked again when they come, whatever the link does meanwhile.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace sluice::soft
