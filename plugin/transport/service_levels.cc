#include "plugin/transport/service_levels.h"

#include <endian.h>
#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "plugin/log.h"
#include "plugin/transport/engine.h"
#include "verbs/sa_client.h"

namespace sluice {
namespace {

// A client with its descriptor and timer on the event loop. Lives to the end of the process.
struct Administrator {
  Administrator(EventLoop& event_loop, UmadPort port, const SaClient::Options& options)
      : loop(event_loop), client(std::move(port), options) {}

  void Arm() {
    if (timer != 0) loop.Cancel(timer);
    timer = 0;
    const auto next = client.next();
    if (!next) return;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - SaClient::Clock::now());
    timer = loop.After(std::max(left, std::chrono::milliseconds(0)), [this] {
      timer = 0;
      client.OnTime(SaClient::Clock::now());
      Arm();
    });
  }
  void Ask(const PathQuestion& question, const SaAddress& sa, SaClient::Callback callback) {
    client.Ask(question, sa, SaClient::Clock::now(), std::move(callback));
    Arm();
  }

  EventLoop& loop;
  SaClient client;
  EventLoop::TimerId timer = 0;
};

std::string ClassDirectory(const EnginePort& port) {
  std::string path = port.device->ibdev_path();  // .../class/infiniband/mlx5_0
  for (int i = 0; i < 2; ++i) path.erase(std::min(path.rfind('/'), path.size()));
  return path + "/infiniband_mad";
}

const char* StateName(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return "down";
    case IBV_PORT_INIT:
      return "initializing";
    case IBV_PORT_ARMED:
      return "armed";
    case IBV_PORT_ACTIVE:
      return "active";
    default:
      return "unknown";
  }
}

// By device and port. A device that went away is opened again.
Result<Administrator*> AdministratorOf(const Engine& engine, const EnginePort& port) {
  static auto* const all = new std::map<std::pair<std::string, int>, std::unique_ptr<Administrator>>;
  std::unique_ptr<Administrator>& known = (*all)[{port.device->name(), port.port.number}];
  if (known != nullptr && !known->client.dead()) return known.get();
  Result<UmadPort> device = UmadPort::Open(ClassDirectory(port), port.device->name(), port.port.number);
  if (!device.ok()) return device.status();
  SaClient::Options options;
  // Before the deadline of the whole connect, which cannot name the remedy.
  options.deadline = std::chrono::milliseconds(engine.params.connect_timeout_ms / 2);
  options.first_wait = std::min(options.first_wait, options.deadline);
  if (known != nullptr) (void)known.release();  // its callbacks may be on the stack
  known = std::make_unique<Administrator>(engine.loop, std::move(*device), options);
  Administrator* self = known.get();
  const int fd = self->client.fd();
  const Status watched = engine.loop.Watch(fd, EPOLLIN, [self, fd](uint32_t) {
    self->client.OnReadable(SaClient::Clock::now());
    if (self->client.dead()) self->loop.Unwatch(fd);
    self->Arm();
  });
  if (!watched.ok()) {
    known.reset();
    return watched;
  }
  return self;
}

// What is still open of one AskServiceLevels.
struct Inquiry : std::enable_shared_from_this<Inquiry> {
  Inquiry(Engine& owner, std::string peer_name, std::vector<LaneSpec> wanted, size_t pairs,
          ServiceLevelsDone call)
      : engine(owner),
        peer(std::move(peer_name)),
        lanes(std::move(wanted)),
        levels(pairs, std::vector<ServiceLevels>(lanes.size())),
        done(std::move(call)) {}

  void Start(const std::vector<PortAddress>& peer_ports, const std::vector<PortMatch>& matched);
  void AskLane(size_t pair, size_t lane, bool named);
  void Refused(size_t pair, size_t lane);
  void Ask(size_t pair, bool back, int sl, std::function<void(const SaPath&)> next);
  void Fail(const Status& cause) {
    if (failure.ok()) failure = cause;
  }
  void Release() {
    if (--open != 0) return;
    const ServiceLevelsDone call = std::move(done);
    call(failure, std::move(lanes), std::move(levels));
  }

  struct Pair {
    Administrator* administrator = nullptr;
    SaAddress sa;
    PathQuestion there;
    bool routed = false;  // through a router: the administrator knows this subnet's direction only
  };
  Engine& engine;
  const std::string peer;
  std::vector<LaneSpec> lanes;
  PairLevels levels;
  ServiceLevelsDone done;
  std::vector<Pair> pairs;
  Status failure;
  size_t open = 1;  // answers to come, and Start itself
};

void Inquiry::Ask(size_t pair, bool back, int sl, std::function<void(const SaPath&)> next) {
  PathQuestion question = pairs[pair].there;
  question.sl = sl;
  if (back) {
    std::swap(question.slid, question.dlid);
    std::swap(question.sgid, question.dgid);
  }
  ++open;
  pairs[pair].administrator->Ask(
      question, pairs[pair].sa,
      [self = shared_from_this(), question, next = std::move(next)](const Result<SaPath>& path) {
        if (!path.ok()) {
          self->Fail(path.status());
        } else if (!path->found && question.sl < 0) {
          self->Fail(RemoteError("the subnet administrator knows no path " + question.Describe() + " (to " +
                                 self->peer +
                                 "); check the routing tables and partitions of the subnet manager"));
        } else {
          next(*path);
        }
        self->Release();
      });
}

void Inquiry::AskLane(size_t pair, size_t lane, bool named) {
  if (named) {
    return Ask(pair, false, lanes[lane].sl, [this, pair, lane](const SaPath& path) {
      if (!path.found) return Refused(pair, lane);
      // A reversible path: the same in both directions.
      levels[pair][lane] = {path.sl, path.sl};
    });
  }
  Ask(pair, false, -1, [this, pair, lane](const SaPath& path) {
    levels[pair][lane] = {path.sl, path.sl};
    if (pairs[pair].routed) return;
    Ask(pair, true, -1, [this, pair, lane](const SaPath& reverse) { levels[pair][lane].back = reverse.sl; });
  });
}

void Inquiry::Refused(size_t pair, size_t index) {
  LaneSpec& lane = lanes[index];
  const bool needed = index < 2;  // control and the default class
  static std::atomic<bool> warned{false};
  if (!warned.exchange(true)) {
    SLUICE_WARN(
        "path to %s: the route does not allow SL %d, which %s gives class %s; %s. Name an SL that the subnet "
        "manager's routing allows, or none, so that the class takes the route's",
        peer.c_str(), lane.sl, lane.sl_source, lane.name.c_str(),
        needed ? "it takes the route's" : "its operations use the lane of the default class");
  }
  if (needed) return AskLane(pair, index, false);
  lane.queue_pairs = 0;
}

void Inquiry::Start(const std::vector<PortAddress>& peer_ports, const std::vector<PortMatch>& matched) {
  for (const auto& [own, theirs] : matched) {
    const EnginePort& port = engine.ports[own];
    const PortAddress& peer_port = peer_ports[theirs];
    if (port.attributes.sm_lid == 0) {
      return Fail(SystemError(
          "port " + port.port.name + " knows no subnet manager (LID " + std::to_string(port.attributes.lid) +
          ", state " + StateName(port.attributes.state) + "); start one, or set SLUICE_SL_SOURCE=static"));
    }
    Result<Administrator*> administrator = AdministratorOf(engine, port);
    if (!administrator.ok())
      return Fail(SystemError(administrator.status().message() + ", or set SLUICE_SL_SOURCE=static"));
    Pair pair;
    pair.administrator = *administrator;
    pair.sa = {port.attributes.sm_lid, port.attributes.sm_sl};
    ibv_gid peer_gid;
    std::copy(peer_port.gid.begin(), peer_port.gid.end(), peer_gid.raw);
    pair.routed = SubnetPrefix(port.gid.gid) != SubnetPrefix(peer_gid);
    if (pair.routed || port.attributes.lid == 0 || peer_port.lid == 0) {
      std::copy_n(port.gid.gid.raw, 16, pair.there.sgid.begin());
      pair.there.dgid = peer_port.gid;
    } else {
      pair.there.slid = port.attributes.lid;
      pair.there.dlid = peer_port.lid;
    }
    __be16 pkey = 0;
    if (ibv_query_pkey(port.device->context(), port.port.number, engine.params.ib_pkey_index, &pkey) == 0)
      pair.there.pkey = be16toh(pkey);
    pairs.push_back(pair);
  }
  for (size_t pair = 0; pair < pairs.size(); ++pair) {
    for (size_t lane = 0; lane < lanes.size(); ++lane)
      AskLane(pair, lane, std::string_view(lanes[lane].sl_source) != "default");
  }
}

}  // namespace

void AskServiceLevels(Engine& engine, const std::string& peer, const std::vector<PortAddress>& peer_ports,
                      const std::vector<PortMatch>& matched, std::vector<LaneSpec> lanes,
                      ServiceLevelsDone done) {
  const auto inquiry =
      std::make_shared<Inquiry>(engine, peer, std::move(lanes), matched.size(), std::move(done));
  inquiry->Start(peer_ports, matched);
  inquiry->Release();
}

}  // namespace sluice
