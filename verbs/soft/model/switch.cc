#include "verbs/soft/model/switch.h"

#include <bit>
#include <utility>

#include "verbs/soft/model/network.h"
#include "verbs/soft/model/topology_network_check.h"

namespace sluice::soft {
namespace {

constexpr uint64_t kEcnPurpose = 0x45434E;  // ECN marks and which of two packets is trimmed
constexpr uint32_t kMaxMtuBytes = 4096;
constexpr uint64_t kEcnReferenceRate = 25'000'000'000;

}  // namespace

Switch::Switch(NetworkContext* context, Network* network, uint32_t index, const SwitchSettings* settings,
               uint64_t seed)
    : context_(context),
      network_(network),
      index_(index),
      settings_(settings),
      random_(seed, kEcnPurpose, index) {}

SwitchPort* Switch::AddPort(uint32_t index, bool infiniband, bool credits) {
  if (ports_.size() <= index) ports_.resize(index + 1);
  ports_[index] = std::make_unique<SwitchPort>(context_, this, index, settings_, infiniband, credits);
  return ports_[index].get();
}

void Switch::Configure() {
  uint64_t headroom_bytes = 0;
  uint32_t count = 0;
  const auto lossless = static_cast<uint64_t>(std::popcount(settings_->lossless_priorities));
  for (const auto& port : ports_) {
    if (port == nullptr) continue;
    ++count;
    if (port->uses_credits()) continue;
    const Transmitter& link = *port->transmitter();
    // The frame itself takes its time too.
    port->ingress().headroom_limit_bytes =
        HeadroomBytes(link.rate_bps(), link.delay(), kMaxMtuBytes, settings_->pause_response) +
        kPauseWireBytes;
    headroom_bytes += port->ingress().headroom_limit_bytes * lossless;
  }
  buffer_.Configure(settings_, count, headroom_bytes);
}

void Switch::Forward(SwitchPort* in, Packet* packet) {
  packet->ingress = static_cast<uint16_t>(in->index());
  ++packet->hops;
  const uint32_t out_index = network_->Route(*this, *packet);
  SwitchPort* out = port(out_index);
  if (out == nullptr) {
    Drop(in, nullptr, packet);
    return;
  }
  // A link that is faster than the packet comes would run out of bytes: stored first.
  const Picos tail = in->incoming()->TailTime(packet->wire_bytes);
  if (tail != 0 && out->transmitter()->rate_bps() > in->incoming()->rate_bps()) {
    packet->egress = static_cast<uint16_t>(out_index);
    in->TailAwaited(*packet);
    context_->scheduler.At(context_->scheduler.Now() + tail, this, kTailArrived,
                           reinterpret_cast<uint64_t>(packet));
    return;
  }
  Queue(in, out, packet);
}

void Switch::OnEvent(uint32_t kind, uint64_t argument) {
  if (kind == kTailArrived) {
    auto* packet = reinterpret_cast<Packet*>(argument);
    SwitchPort* in = port(packet->ingress);
    in->TailArrived(*packet);
    Queue(in, port(packet->egress), packet);
    return;
  }
  const Passing first = passing_.front();
  passing_.PopFront();
  Append(first.out, first.packet);
  if (!passing_.empty()) context_->scheduler.At(context_->scheduler.Now(), this, kPassed);
}

void Switch::Queue(SwitchPort* in, SwitchPort* out, Packet* packet) {
  if (!in->uses_credits() && settings_->queue != QueueMode::kUnbounded) {
    const bool admitted =
        settings_->queue == QueueMode::kLossless ? AdmitLossless(in, out, packet) : AdmitOrTrim(out, packet);
    if (!admitted) {
      Drop(in, out, packet);
      return;
    }
  }
  if (!context_->staged_events) {
    Append(out, packet);
    return;
  }
  passing_.PushBack() = {packet, out};
  if (passing_.size() == 1) context_->scheduler.At(context_->scheduler.Now(), this, kPassed);
}

void Switch::Append(SwitchPort* out, Packet* packet) {
  if (settings_->ecn.enabled && !settings_->ecn.at_dequeue) {
    MaybeMark(&out->queue(packet->lane), out->transmitter()->rate_bps(), packet);
  }
  network_->JoinedSwitch(*packet);
  out->Enqueue(packet, context_->scheduler.Now());
  out->transmitter()->Kick();
}

bool Switch::AdmitLossless(SwitchPort* in, SwitchPort* out, Packet* packet) {
  const uint32_t lane = packet->lane;
  const uint32_t bytes = packet->wire_bytes;
  if (!buffer_.lossless(lane)) {
    const uint64_t queued = out->queue(lane).bytes;
    if (settings_->queue_bytes != 0 && queued + bytes > settings_->queue_bytes) return false;
    return buffer_.AdmitLossy(bytes, queued) != Admission::kDrop;
  }
  const bool paused = (in->pauses().paused() >> lane & 1) != 0;
  // Buffers of packets that have just left are freed when somebody looks: now it matters.
  if (!paused && buffer_.WouldPause(in->ingress(), lane, bytes)) SettlePorts();
  const Admission admission = buffer_.Admit(&in->ingress(), lane, bytes, paused);
  if (admission == Admission::kAcceptAndPause && !paused) {
    in->pauses().Pause(lane);
    for (const auto& port : ports_) {
      if (port != nullptr) port->WatchRelease(in->index());
    }
  }
  return admission != Admission::kDrop;
}

bool Switch::AdmitOrTrim(SwitchPort* out, Packet* packet) {
  const bool trims = settings_->queue == QueueMode::kTrim;
  if (trims && packet->payload_bytes == 0) return QueueTrimmed(out, packet);
  LaneQueue& queue = out->queue(packet->lane);
  if (queue.bytes + packet->wire_bytes <= settings_->queue_bytes) return true;
  if (!trims) return false;
  ++queue.trims;
  if (!queue.packets.empty() && (random_.Next() & 1) != 0) {
    // The newest packet of the queue is cut instead, and the one that came takes its place.
    out->ReplaceNewest(packet, context_->scheduler.Now());
  }
  packet->wire_bytes = settings_->trim_bytes;
  packet->payload_bytes = 0;
  packet->payload = PayloadRef();
  packet->trimmed = true;
  return QueueTrimmed(out, packet);
}

bool Switch::QueueTrimmed(SwitchPort* out, Packet* packet) {
  packet->lane = settings_->trim_priority;
  return out->queue(packet->lane).bytes + packet->wire_bytes <= 2 * settings_->queue_bytes;
}

void Switch::MaybeMark(LaneQueue* queue, uint64_t rate_bps, Packet* packet) {
  const EcnSettings& ecn = settings_->ecn;
  if (packet->ecn != kEcnCapable) return;
  const double scale =
      ecn.per_25g ? static_cast<double>(rate_bps) / static_cast<double>(kEcnReferenceRate) : 1.0;
  const double low = scale * static_cast<double>(ecn.k_min_bytes);
  const double high = scale * static_cast<double>(ecn.k_max_bytes);
  const auto bytes = static_cast<double>(queue->bytes);
  if (bytes <= low) return;
  if (bytes < high && random_.Unit() >= ecn.p_max * (bytes - low) / (high - low)) return;
  packet->ecn = kEcnCongestion;
  ++queue->ecn_marks;
}

void Switch::Release(uint32_t ingress, uint32_t lane, uint32_t bytes) {
  SwitchPort& in = *ports_[ingress];
  if (!buffer_.lossless(lane)) {
    buffer_.ReleaseLossy(bytes);
  } else if (buffer_.Release(&in.ingress(), lane, bytes)) {
    in.pauses().Resume(lane);
  }
}

void Switch::Reset() {
  const Picos now = context_->scheduler.Now();
  for (const auto& port : ports_) {
    for (uint32_t lane = 0; port != nullptr && lane < kLanes; ++lane) {
      while (Packet* packet = port->Dequeue(lane, now)) {
        SwitchPort* in = ports_[packet->ingress].get();
        if (!in->uses_credits() && settings_->queue == QueueMode::kLossless) {
          Release(packet->ingress, lane, packet->wire_bytes);
        }
        Drop(in, port.get(), packet);
      }
    }
    // Nothing is left that waits.
    if (port != nullptr) port->gate()->Unblock();
  }
}

uint32_t Switch::QueuedBlocks(uint32_t ingress, uint32_t lane) const {
  const auto blocks_of = [&](const Packet& packet) {
    return packet.ingress == ingress && packet.lane == lane ? CreditsOf(packet.wire_bytes) : 0;
  };
  uint32_t blocks = 0;
  for (const auto& port : ports_) {
    if (port == nullptr) continue;
    for (const Packet* p = std::as_const(*port).queue(lane).packets.front(); p != nullptr; p = p->next) {
      blocks += blocks_of(*p);
    }
  }
  for (uint64_t i = passing_.begin(); i != passing_.end(); ++i) blocks += blocks_of(*passing_[i].packet);
  return blocks;
}

void Switch::SettlePorts() {
  const Picos now = context_->scheduler.Now();
  for (const auto& port : ports_) {
    if (port != nullptr) port->Settle(now);
  }
}

void Switch::Drop(SwitchPort* in, SwitchPort* out, Packet* packet) {
  if (out != nullptr) ++out->queue(packet->lane).drops;
  ++context_->statistics.dropped_packets;
  if (in->uses_credits()) in->ReturnCredits(packet->lane, packet->wire_bytes, context_->scheduler.Now());
  context_->packets.Delete(packet);
}

}  // namespace sluice::soft
