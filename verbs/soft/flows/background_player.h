// Plays the background traffic of a topology over the ports of a fabric, by RC flows. Times count from the
// start of the fabric. A message whose retries are used up ends its connection; the others go on.
//
//   Result<std::unique_ptr<Fabric>> fabric = Fabric::Create(std::move(topology), &pool, MakeBackgroundPlayer);
//
// Equal topologies and seeds give equal packets at equal times. Thread rule: the thread that drives the fabric.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "verbs/soft/flows/rc_flow.h"
#include "verbs/soft/model/background.h"
#include "verbs/soft/model/model_traffic.h"
#include "verbs/soft/model/scheduler.h"

namespace sluice::soft {

// A TrafficMaker for Topology::background.
Result<std::unique_ptr<ModelTraffic>> MakeBackgroundPlayer(const TrafficGround& ground);

class BackgroundPlayer final : public ModelTraffic, public EventTarget, public FlowObserver {
 public:
  // `messages` by start, as MakeBackground orders them.
  BackgroundPlayer(TrafficGround ground, std::vector<BackgroundMessage> messages);
  ~BackgroundPlayer() override;

  void Deliver(const Packet& packet) override;
  void EndpointDied(uint32_t endpoint) override;
  void OnEvent(uint32_t kind, uint64_t argument) override;

 private:
  static constexpr uint32_t kPost = 1000;  // beside the kinds of FlowTimer

  struct Stream {
    std::unique_ptr<RcFlow> flow;  // made with the first message
    uint32_t source = 0;
    uint32_t destination = 0;
  };
  // Flows between ports of one kind share their settings.
  FlowContext* ContextFor(const Port& source, const Port& destination);
  void Post(const BackgroundMessage& message);
  void ScheduleNext();

  TrafficGround ground_;
  std::vector<BackgroundMessage> messages_;
  size_t next_ = 0;
  std::map<std::pair<bool, uint32_t>, std::unique_ptr<FlowContext>> contexts_;  // InfiniBand, payload bytes
  std::vector<bool> dead_;                                                      // by endpoint
  std::vector<Stream> streams_;  // by BackgroundMessage::stream; destroyed before what their flows use
};

}  // namespace sluice::soft
