// Faults by schedule and by chance: reading them, what the plan makes of them, and what they do to a fabric.
#include <gmock/gmock.h>

#include <map>

#include "soft_model_rig.h"
#include "verbs/soft/model/faults_plan.h"

namespace sluice::soft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<FaultSpec> Faults(const std::string& text) {
  Result<std::vector<FaultSpec>> specs = FaultSpec::ListFromText(text);
  EXPECT_TRUE(specs.ok()) << text << ": " << specs.status().message();
  return std::move(*specs);
}

// Writes down what a plan does to it.
class Recorder final : public FaultTarget {
 public:
  void CallAt(Picos when, std::function<void()> call) override { calls_.emplace(when, std::move(call)); }
  void SetFaultHook(FaultHook fault_hook) override { hook = std::move(fault_hook); }
  void SetLinkUp(uint32_t link, bool up) override { Note((up ? "up " : "down ") + std::to_string(link)); }
  void SetLinkRate(uint32_t link, uint64_t rate_bps) override {
    Note("rate " + std::to_string(link) + " " + std::to_string(rate_bps / 1'000'000'000));
  }
  void SetReceiverStalled(uint32_t endpoint, bool stalled) override {
    Note((stalled ? "stall " : "go on ") + std::to_string(endpoint));
  }
  void ResetSwitch(uint32_t switch_index) override { Note("reset " + std::to_string(switch_index)); }
  void KillNic(uint32_t host, uint32_t nic) override {
    Note("kill " + std::to_string(host) + "/" + std::to_string(nic));
  }
  void PauseHost(uint32_t host, Picos until) override {
    Note("pause " + std::to_string(host) + " until " + std::to_string(until / kPicosPerUs));
  }
  GidEntry Gid(uint32_t, uint32_t, uint32_t, uint32_t index) override { return gids[index]; }
  void SetGid(uint32_t, uint32_t, uint32_t, uint32_t index, const GidEntry& entry) override {
    gids[index] = entry;
    Note((entry.valid ? "gid " : "no gid ") + std::to_string(index));
  }

  void Run() {
    while (!calls_.empty()) {
      const auto first = calls_.begin();
      now_ = first->first;
      const std::function<void()> call = std::move(first->second);
      calls_.erase(first);
      call();
    }
  }
  FaultHook hook;
  std::map<uint32_t, GidEntry> gids;
  std::vector<std::string> notes;  // "<microseconds> <what>"

 private:
  void Note(const std::string& what) { notes.push_back(std::to_string(now_ / kPicosPerUs) + " " + what); }
  std::multimap<Picos, std::function<void()>> calls_;
  Picos now_ = 0;
};

std::vector<std::string> NotesOf(const Topology& topology, const std::string& faults, uint64_t seed = 1) {
  Recorder recorder;
  recorder.gids[3] = {{}, GidType::kRoceV2, true};
  Result<std::unique_ptr<FaultPlan>> plan = FaultPlan::Make(topology, Faults(faults), seed);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  if (!plan.ok()) return {};
  (*plan)->Start(&recorder);
  recorder.Run();
  return recorder.notes;
}

TEST(SoftFaults, SchedulesAreCarriedOut) {
  const Topology topology = *Topology::FromText("leaf-spine:hosts=4");  // links: 4 hosts, then leaf x spine
  EXPECT_THAT(NotesOf(topology, "link-down:link=leaf0-spine1,at=2us,for=3us"),
              ElementsAre("2 down 5", "5 up 5"));
  EXPECT_THAT(NotesOf(topology, "link-down:link=host2,at=0us"), ElementsAre("0 down 2"));
  EXPECT_THAT(NotesOf(topology, "port-flap:port=host1,at=1us,for=2us,times=2,every=10us"),
              ElementsAre("1 down 1", "3 up 1", "11 down 1", "13 up 1"));
  EXPECT_THAT(NotesOf(topology, "slow-link:link=host3-leaf1,rate=10G,at=1us,for=1us"),
              ElementsAre("1 rate 3 10", "2 rate 3 100"));
  EXPECT_THAT(NotesOf(topology, "stalled-receiver:port=host3/soft0/1,at=1us,for=4us"),
              ElementsAre("1 stall 3", "5 go on 3"));
  EXPECT_THAT(NotesOf(topology, "switch-reboot:switch=spine1,at=1us,for=5us"),
              ElementsAre("1 down 5", "1 down 7", "1 reset 3", "6 up 5", "6 up 7"));
  EXPECT_THAT(NotesOf(topology, "nic-death:nic=host1/soft0,at=7us;host-pause:host=host2,at=3us,for=2us"),
              ElementsAre("3 pause 2 until 5", "7 kill 1/0"));
}

TEST(SoftFaults, FaultsThatOverlapHoldALinkDownTogether) {
  const Topology topology = *Topology::FromText("leaf-spine:hosts=4");
  EXPECT_THAT(
      NotesOf(topology,
              "link-down:link=leaf0-spine0,at=1us,for=10us;switch-reboot:switch=spine0,at=5us,for=20us"),
      ElementsAre("1 down 4", "5 down 6", "5 reset 2", "25 up 4", "25 up 6"));
}

TEST(SoftFaults, GidsMoveVanishAndComeBack) {
  const Topology topology = *Topology::FromText("hosts=2");
  EXPECT_THAT(NotesOf(topology, "gid-change:port=host0,gid_index=3,to_index=5,at=1us,for=4us"),
              ElementsAre("1 no gid 3", "1 gid 5", "5 no gid 5", "5 gid 3"));
  EXPECT_THAT(NotesOf(topology, "gid-change:port=host0,at=1us,for=4us"),
              ElementsAre("1 no gid 3", "5 gid 3"));
  EXPECT_THAT(NotesOf(topology, "gid-change:port=host0,gid=::ffff:10.0.0.9,at=1us"), ElementsAre("1 gid 3"));
  // Away with the port, back at another index 2 us after it is up; the second flap brings it home.
  EXPECT_THAT(
      NotesOf(topology, "port-flap:port=host0,to_index=6,gid_delay=2us,at=1us,for=1us,times=2,every=10us"),
      ElementsAre("1 down 0", "1 no gid 3", "2 up 0", "4 gid 6", "11 down 0", "11 no gid 6", "12 up 0",
                  "14 gid 3"));
}

TEST(SoftFaults, RandomTimesFollowTheSeed) {
  const Topology topology = *Topology::FromText("hosts=2");
  const std::string faults = "link-down:link=host0,at=1ms,for=10us,times=2000,mean_gap=100us";
  const auto notes = NotesOf(topology, faults, 7);
  EXPECT_EQ(notes, NotesOf(topology, faults, 7));
  EXPECT_NE(notes, NotesOf(topology, faults, 8));
  ASSERT_EQ(4000u, notes.size());
  // 2000 gaps of mean 100 us and 2000 times 10 us: 220 ms, standard deviation 4.5 ms.
  EXPECT_NEAR(221e3, std::stod(notes.back()), 5 * 4.5e3);
}

// Sends `count` packets of each kind over link 0 and counts what is hit: data, ACK, NAK.
std::vector<int> Hits(FaultHook& hook, int count, uint32_t link = 0) {
  std::vector<int> hits(3);
  for (int i = 0; i < count; ++i) {
    for (int kind = 0; kind < 3; ++kind) {
      PacketView view;
      view.link = link;
      view.is_ack = kind > 0;
      view.is_nak = kind == 2;
      if (hook && hook(view) != PacketFate::kDeliver) ++hits[kind];
    }
  }
  return hits;
}

TEST(SoftFaults, LossFindsItsPacketsWithItsProbability) {
  const Topology topology = *Topology::FromText("leaf-spine:hosts=4");
  const auto make = [&](const std::string& text, uint64_t seed = 1) {
    return std::move(*FaultPlan::Make(topology, Faults(text), seed));
  };
  Recorder recorder;
  auto plan = make("loss:probability=0.01,packets=data+nak");
  plan->Start(&recorder);
  const auto hits = Hits(recorder.hook, 100'000);
  EXPECT_NEAR(1000, hits[0], 5 * 32);
  EXPECT_EQ(0, hits[1]);
  EXPECT_NEAR(1000, hits[2], 5 * 32);
  EXPECT_THAT(plan->PacketsHit(), ElementsAre(hits[0] + hits[2]));
  // The same again from the same seed, whatever passes on another link in between.
  auto again = make("loss:probability=0.01,packets=data+nak");
  again->Start(&recorder);
  std::vector<int> sums(3);
  for (int i = 0; i < 100; ++i) {
    const auto part = Hits(recorder.hook, 1000);
    for (int k = 0; k < 3; ++k) sums[k] += part[k];
    Hits(recorder.hook, 10, 3);
  }
  EXPECT_EQ(hits, sums);

  auto one = make("corruption:link=leaf0-spine1,probability=1,count=3,one_way=true");
  one->Start(&recorder);
  EXPECT_THAT(Hits(recorder.hook, 5, 11), ElementsAre(0, 0, 0)) << "the other direction";
  EXPECT_THAT(Hits(recorder.hook, 5, 8), ElementsAre(0, 0, 0)) << "another link";
  EXPECT_THAT(Hits(recorder.hook, 5, 10), ElementsAre(1, 1, 1));
}

TEST(SoftFaults, WithoutAnActiveRulePacketsPayNothing) {
  const Topology topology = *Topology::FromText("hosts=2");
  auto plan = std::move(*FaultPlan::Make(topology, Faults("loss:probability=1,at=1us,for=1us"), 1));
  Recorder recorder;
  plan->Start(&recorder);
  EXPECT_FALSE(recorder.hook);
  recorder.Run();
  EXPECT_FALSE(recorder.hook);
  EXPECT_THAT(plan->Describe(), ElementsAre("1us loss for 1us"));
}

TEST(SoftFaults, ErrorsNameKindKeyAndRange) {
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"fire:link=host0", {"kind = fire", "loss, corruption, link-down", "host-pause"}},
      {"link=host0", {"no kind"}},
      {"loss", {"needs probability"}},
      {"loss:probability=2", {"probability = 2", "0 to 1"}},
      {"loss:probability=-1", {"probability = -1"}},
      {"loss:probability=x", {"probability = x"}},
      {"loss:probability=0.1,packets=syn", {"packets = syn", "data, ack, nak"}},
      {"loss:probability=0.1,count=0", {"count = 0"}},
      {"loss:probability=0.1,one_way=true", {"one_way", "needs link"}},
      {"loss:probability=0.1,rate=1G", {"no key rate in a fault of kind loss", "packets"}},
      {"loss:probability", {"\"probability\"", "KEY=VALUE"}},
      {"link-down:at=1us", {"needs link"}},
      {"link-down:link=host0,at=-1us", {"at = -1us"}},
      {"link-down:link=host0,for=0us", {"for = 0us", "above 0"}},
      {"link-down:link=host0,times=3,for=1us", {"times = 3", "every or mean_gap"}},
      {"link-down:link=host0,times=3,every=10us", {"needs for"}},
      {"link-down:link=host0,times=3,every=1us,for=1us", {"every = 1us", "overlap"}},
      {"link-down:link=host0,every=1us", {"without times"}},
      {"link-down:link=host0,times=3,every=5us,mean_gap=5us,for=1us", {"either every or mean_gap"}},
      {"port-flap:port=host0", {"needs for"}},
      {"switch-reboot:switch=leaf0", {"needs for"}},
      {"host-pause:host=host0", {"needs for"}},
      {"host-pause:link=host0,for=1us", {"no key link", "host"}},
      {"slow-link:link=host0", {"needs rate"}},
      {"gid-change:port=host0,gid_index=8", {"gid_index = 8", "0 to 7"}},
      {"gid-change:port=host0,to_index=3", {"to_index = 3", "already"}},
      {"gid-change:port=host0,gid=nonsense", {"gid = nonsense", "IPv6"}},
      {"gid-change:port=host0,gid=fe80::1,to_index=5", {"one of them"}},
  };
  for (const auto& [text, parts] : cases) {
    const Result<FaultSpec> spec = FaultSpec::FromText(text);
    ASSERT_FALSE(spec.ok()) << text;
    for (const std::string& part : parts) EXPECT_THAT(spec.status().message(), HasSubstr(part)) << text;
  }
}

TEST(SoftFaults, UnknownNamesAreRefusedWithTheirLine) {
  const std::string start = "[topology]\nkind = \"leaf-spine\"\nhosts = 4\n[[fault]]\n";  // 4 lines
  const std::pair<std::string, std::vector<std::string>> cases[] = {
      {"kind = \"link-down\"\nlink = \"host9\"\n", {"bad.toml:6", "no host or switch \"host9\""}},
      {"kind = \"link-down\"\nlink = \"host0-spine0\"\n", {"bad.toml:6", "nothing connects"}},
      {"kind = \"loss\"\nprobability = 0.1\nlink = \"x\"\n", {"bad.toml:7", "fault loss", "\"x\""}},
      {"kind = \"switch-reboot\"\nswitch = \"host0\"\nfor = \"1us\"\n", {"bad.toml:6", "no switch"}},
      {"kind = \"host-pause\"\nhost = \"leaf0\"\nfor = \"1us\"\n", {"bad.toml:6", "no host \"leaf0\""}},
      {"kind = \"nic-death\"\nnic = \"host0/soft1\"\n", {"bad.toml:6", "no NIC \"soft1\""}},
      {"kind = \"port-flap\"\nport = \"host0/soft0/2\"\nfor = \"1us\"\n", {"bad.toml:6", "1 to 1"}},
      {"kind = \"stalled-receiver\"\nport = \"leaf0\"\n", {"bad.toml:6", "is a switch", "host0/soft0/1"}},
      {"kind = \"slow-link\"\nlink = \"host0\"\nrate = \"800G\"\n",
       {"bad.toml:6", "fault slow-link", "800G", "not below the rate"}},
      {"link = \"host0\"\n", {"bad.toml:4", "no kind"}},
      {"kind = \"loss\"\nprobability = 2\n", {"bad.toml:6", "probability = 2", "0 to 1"}},
  };
  for (const auto& [text, parts] : cases) {
    const Result<Topology> topology = Topology::FromToml(start + text, "bad.toml");
    ASSERT_FALSE(topology.ok()) << text;
    for (const std::string& part : parts) EXPECT_THAT(topology.status().message(), HasSubstr(part)) << text;
  }
}

// A fabric whose topology has faults, with a program on each of two hosts.
struct Faulty {
  explicit Faulty(const std::string& faults, const std::string& text = "hosts=2") {
    Topology topology = *Topology::FromText(text);
    topology.faults = Faults(faults);
    Result<std::unique_ptr<Fabric>> made = Fabric::Create(std::move(topology), &pool);
    EXPECT_TRUE(made.ok()) << made.status().message();
    rig = std::make_unique<Rig>(std::move(*made));
    a = &rig->AddNode(0);
    b = &rig->AddNode(1);
    from = a->MakeBuffer(1 << 20, 1);
    to = b->MakeBuffer(1 << 20, 2);
  }
  // Writes a megabyte; how long it took.
  Picos Write(ibv_wc_status expected = IBV_WC_SUCCESS) {
    QpOptions options;
    options.timeout = 8;
    const auto [qa, qb] = rig->Connect(*a, *b, options);
    const Picos start = rig->fabric()->Now();
    EXPECT_EQ(0, a->Post(qa, 1, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
    Completion done{};
    while (!a->memory->Poll(a->cq, &done) && rig->fabric()->NextEventTime() != kNever) {
      rig->fabric()->Advance(rig->fabric()->NextEventTime());
    }
    EXPECT_EQ(expected, done.status);
    if (expected == IBV_WC_SUCCESS) {
      EXPECT_EQ(from.bytes, to.bytes);
    }
    return rig->fabric()->Now() - start;
  }
  HeapPayloadPool pool;
  std::unique_ptr<Rig> rig;
  Node* a;
  Node* b;
  Buffer from, to;
};

TEST(SoftFaults, LossAndCorruptionCostRetransmissionsNotData) {
  for (const char* kind : {"loss", "corruption"}) {
    // A megabyte is 257 data packets, but few acknowledgements.
    for (const char* packets :
         {"data,probability=0.02", "ack,probability=0.5", "data+ack+nak,probability=0.02"}) {
      Faulty faulty(std::string(kind) + ":packets=" + packets);
      faulty.Write();
      EXPECT_GT(faulty.a->counters().retransmitted_packets + faulty.b->counters().dropped_packets +
                    faulty.rig->fabric()->statistics().dropped_packets,
                0u)
          << kind << " " << packets;
    }
  }
}

TEST(SoftFaults, LinkDownDelaysAndThenGoesOn) {
  Faulty faulty("link-down:link=host1,at=20us,for=1ms");
  const Picos time = faulty.Write();
  EXPECT_GT(time, kPicosPerMs);
  EXPECT_EQ(1u, faulty.b->counters().link_downed);
  EXPECT_THAT(faulty.b->Events(), ElementsAre(IBV_EVENT_PORT_ERR, IBV_EVENT_PORT_ACTIVE));
}

TEST(SoftFaults, ASlowLinkIsSlow) {
  Faulty faulty("slow-link:link=host1,rate=10G,at=0us");
  const double seconds = static_cast<double>(faulty.Write()) / kPicosPerSecond;
  EXPECT_NEAR(10e9, (1 << 20) * 8 / seconds, 0.5e9);
  Faulty healed("slow-link:link=host1,rate=10G,at=0us,for=1us");
  EXPECT_LT(healed.Write(), 110 * kPicosPerUs);
}

TEST(SoftFaults, AStalledReceiverLosesNothing) {
  // Shorter than the transport timer: what has arrived waits, and is acknowledged afterwards.
  Faulty faulty("stalled-receiver:port=host1,at=20us,for=300us");
  const Picos time = faulty.Write();
  EXPECT_GT(time, 300 * kPicosPerUs);
  EXPECT_LT(time, 450 * kPicosPerUs);
  EXPECT_EQ(0u, faulty.a->counters().retransmitted_packets);
}

TEST(SoftFaults, AStalledReceiverStopsItsNeighbours) {
  // 16 MB towards a receiver that stops: more than the switches take in before they pause.
  for (const std::string link : {"roce,switch=htsim", "infiniband"}) {
    Topology topology = *Topology::FromText("leaf-spine:hosts=4,link=" + link);
    topology.faults = Faults("stalled-receiver:port=host3,at=0us,for=2ms");
    HeapPayloadPool pool;
    Rig rig(std::move(*Fabric::Create(std::move(topology), &pool)));
    Node& a = rig.AddNode(0);
    Node& b = rig.AddNode(3);
    Buffer from = a.MakeBuffer(16 << 20, 1), to = b.MakeBuffer(16 << 20, 2);
    QpOptions options;
    options.timeout = 14;
    const auto [qa, qb] = rig.Connect(a, b, options);
    ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
    rig.Run(1900 * kPicosPerUs);
    const uint64_t sent = a.counters().tx_bytes;
    EXPECT_LT(sent, uint64_t{16} << 20) << link << ": the sender was stopped";
    rig.Run();
    EXPECT_EQ(IBV_WC_SUCCESS, a.One().status) << link;
    EXPECT_EQ(from.bytes, to.bytes) << link;
    EXPECT_EQ(0u, rig.fabric()->statistics().dropped_packets) << link;
    EXPECT_EQ(0u, a.counters().retransmitted_packets) << link;
  }
}

TEST(SoftFaults, ASwitchRebootLosesWhatIsInIt) {
  Faulty faulty("switch-reboot:switch=switch0,at=40us,for=200us");
  const Picos time = faulty.Write();
  EXPECT_GT(time, 200 * kPicosPerUs);
  EXPECT_GT(faulty.rig->fabric()->statistics().dropped_packets, 0u);
  EXPECT_EQ(1u, faulty.a->counters().link_downed);
}

TEST(SoftFaults, ADeadNicFailsItsWork) {
  Faulty faulty("nic-death:nic=host0/soft0,at=20us");
  faulty.Write(IBV_WC_WR_FLUSH_ERR);
  EXPECT_THAT(faulty.a->Events(), ::testing::Contains(IBV_EVENT_DEVICE_FATAL));
}

TEST(SoftFaults, AGidMovesAndIsAnnounced) {
  Faulty faulty("gid-change:port=host1,to_index=5,at=5us");
  GidEntry before, after;
  ASSERT_EQ(0, faulty.b->nic->QueryGid(1, 3, &before));
  faulty.rig->fabric()->Advance(10 * kPicosPerUs);
  ASSERT_EQ(0, faulty.b->nic->QueryGid(1, 5, &after));
  EXPECT_EQ(0, memcmp(&before.gid, &after.gid, sizeof(before.gid)));
  ASSERT_EQ(0, faulty.b->nic->QueryGid(1, 3, &after));
  EXPECT_FALSE(after.valid);
  EXPECT_THAT(faulty.b->Events(), ::testing::Contains(IBV_EVENT_GID_CHANGE));
}

TEST(SoftFaults, APausedHostIsInTheBook) {
  Faulty faulty("host-pause:host=host1,at=5us,for=7us");
  faulty.rig->fabric()->Advance(4 * kPicosPerUs);
  EXPECT_EQ(0, faulty.rig->fabric()->HostPausedUntil(1));
  faulty.rig->fabric()->Advance(6 * kPicosPerUs);
  EXPECT_EQ(12 * kPicosPerUs, faulty.rig->fabric()->HostPausedUntil(1));
  EXPECT_EQ(0, faulty.rig->fabric()->HostPausedUntil(0));
}

TEST(SoftFaults, TheCallersHookComesFirst) {
  Faulty faulty("loss:probability=1,packets=data,count=2");
  int seen = 0;
  faulty.rig->fabric()->SetFaultHook([&](const PacketView&) {
    ++seen;
    return PacketFate::kDeliver;
  });
  faulty.Write();
  EXPECT_GT(seen, 257);
  EXPECT_EQ(2u, faulty.rig->fabric()->statistics().dropped_packets) << "the topology's own fault as well";
}

TEST(SoftFaults, EqualSeedsGiveEqualRuns) {
  const auto hash = [](uint64_t seed) {
    Topology topology = *Topology::FromText("hosts=2");
    topology.faults = Faults("loss:probability=0.05;link-down:link=host0,for=5us,times=3,mean_gap=50us");
    topology.seed = seed;
    HeapPayloadPool pool;
    Rig rig(std::move(*Fabric::Create(std::move(topology), &pool)));
    Node& a = rig.AddNode(0);
    Node& b = rig.AddNode(1);
    Buffer from = a.MakeBuffer(1 << 18, 1), to = b.MakeBuffer(1 << 18, 2);
    const auto [qa, qb] = rig.Connect(a, b);
    EXPECT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
    rig.Run();
    EXPECT_EQ(IBV_WC_SUCCESS, a.One().status);
    return rig.fabric()->statistics().trace_hash;
  };
  EXPECT_EQ(hash(3), hash(3));
  EXPECT_NE(hash(3), hash(4));
}

}  // namespace
}  // namespace sluice::soft
