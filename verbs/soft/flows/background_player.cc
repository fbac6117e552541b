#include "verbs/soft/flows/background_player.h"

#include <algorithm>

#include "verbs/soft/model/topology.h"

namespace sluice::soft {
namespace {

// Background traffic survives what faults do to it for seconds.
constexpr uint8_t kRetries = 255;
constexpr uint32_t kMaxReorderPackets = 256;

}  // namespace

Result<std::unique_ptr<ModelTraffic>> MakeBackgroundPlayer(const TrafficGround& ground) {
  const Topology& topology = *ground.topology;
  Result<std::vector<BackgroundMessage>> messages =
      MakeBackground(topology, topology.background, topology.seed);
  if (!messages.ok()) return messages.status();
  return std::unique_ptr<ModelTraffic>(new BackgroundPlayer(ground, std::move(*messages)));
}

BackgroundPlayer::BackgroundPlayer(TrafficGround ground, std::vector<BackgroundMessage> messages)
    : ground_(std::move(ground)), messages_(std::move(messages)), dead_(ground_.ports.size()) {
  uint32_t streams = 0;
  for (const BackgroundMessage& message : messages_) streams = std::max(streams, message.stream + 1);
  streams_.resize(streams);
  ScheduleNext();
}

BackgroundPlayer::~BackgroundPlayer() = default;

FlowContext* BackgroundPlayer::ContextFor(const Port& source, const Port& destination) {
  const bool infiniband = source.spec().link_layer == LinkLayer::kInfiniBand;
  const uint32_t payload_bytes = std::min(source.spec().mtu_bytes, destination.spec().mtu_bytes);
  std::unique_ptr<FlowContext>& context = contexts_[{infiniband, payload_bytes}];
  if (context == nullptr) {
    const NicSettings& nic = ground_.topology->nic_settings;
    context = std::make_unique<FlowContext>();
    context->network = ground_.network;
    context->observer = this;
    context->timers = this;
    context->rc = infiniband ? RcSettings::InfiniBand() : RcSettings::Roce();
    context->rc.payload_bytes = payload_bytes;
    context->rc.retry_count = kRetries;
    context->rc.timer_factor = nic.timer_factor;
    context->rc.reorder_packets = std::min(nic.reorder_packets, kMaxReorderPackets);
    context->nic = &nic;
    context->seed = ground_.topology->seed;
    context->first_number = kFirstTrafficNumber;
  }
  return context.get();
}

void BackgroundPlayer::ScheduleNext() {
  if (next_ < messages_.size()) ground_.network->scheduler.At(messages_[next_].start, this, kPost);
}

void BackgroundPlayer::Post(const BackgroundMessage& message) {
  if (dead_[message.source] || dead_[message.destination]) return;
  Stream& stream = streams_[message.stream];
  if (stream.flow == nullptr) {
    Port& source = *ground_.ports[message.source];
    Port& destination = *ground_.ports[message.destination];
    stream.source = message.source;
    stream.destination = message.destination;
    const bool loop = message.source == message.destination;
    FlowSpec spec;
    spec.source = message.source;
    spec.destination = message.destination;
    spec.sl = message.sl;
    spec.traffic_class = message.traffic_class;
    stream.flow = std::make_unique<RcFlow>(
        ContextFor(source, destination), message.stream, spec,
        source.LaneOf(message.sl, message.traffic_class), loop ? source.loop() : source.wire(),
        loop ? destination.loop() : destination.wire(), source.spec().rate_bps);
  }
  stream.flow->Post(message.bytes);
}

void BackgroundPlayer::OnEvent(uint32_t kind, uint64_t argument) {
  if (kind != kPost) {
    if (RcFlow* flow = streams_[argument].flow.get()) flow->OnTimer(static_cast<FlowTimer>(kind));
    return;
  }
  const Picos now = ground_.network->scheduler.Now();
  while (next_ < messages_.size() && messages_[next_].start <= now) Post(messages_[next_++]);
  ScheduleNext();
}

void BackgroundPlayer::Deliver(const Packet& packet) {
  const uint32_t number = packet.destination_qp - kFirstTrafficNumber;
  RcFlow* flow = streams_[number >> 1].flow.get();
  if (flow != nullptr) flow->OnPacket(packet, (number & 1) == 0);
}

void BackgroundPlayer::EndpointDied(uint32_t endpoint) {
  dead_[endpoint] = true;
  for (Stream& stream : streams_) {
    if (stream.source == endpoint || stream.destination == endpoint) stream.flow.reset();
  }
}

}  // namespace sluice::soft
