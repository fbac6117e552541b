// Topology files, the one-line form, hosts on demand, and routing over several switches.
#include <gmock/gmock.h>

#include <set>

#include "soft_model_rig.h"
#include "verbs/soft/model/topology_check.h"

namespace sluice::soft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(SoftModelTopology, DefaultIsOneRoceNicPerHostOnDemand) {
  const Topology topology = Topology::Default();
  EXPECT_TRUE(topology.on_demand);
  EXPECT_EQ(256u, topology.hosts.size());
  ASSERT_EQ(1u, topology.hosts[255].nics.size());
  const NicSpec& nic = topology.hosts[255].nics[0];
  EXPECT_EQ("soft0", nic.name);
  ASSERT_EQ(1u, nic.ports.size());
  EXPECT_EQ(LinkLayer::kEthernet, nic.ports[0].link_layer);
  EXPECT_EQ(100'000'000'000u, nic.ports[0].rate_bps);
  EXPECT_EQ(kPicosPerUs, nic.ports[0].delay);
  EXPECT_EQ(4096u, nic.ports[0].mtu_bytes);
}

TEST(SoftModelTopology, OneLine) {
  const Result<Topology> topology = Topology::Parse(
      "hosts=8,nics=2,rate=400G,link=infiniband,mtu=2048,delay=0.3us,pci=false,device=hca,max_qp=77");
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  EXPECT_FALSE(topology->on_demand);
  ASSERT_EQ(8u, topology->hosts.size());
  EXPECT_EQ("host7", topology->hosts[7].name);
  ASSERT_EQ(2u, topology->hosts[7].nics.size());
  const NicSpec& nic = topology->hosts[7].nics[1];
  EXPECT_EQ("hca1", nic.name);
  EXPECT_FALSE(nic.pci);
  EXPECT_EQ(77u, nic.limits.max_qp);
  EXPECT_EQ(LinkLayer::kInfiniBand, nic.ports[0].link_layer);
  EXPECT_EQ(300 * kPicosPerNs, nic.ports[0].delay);
  EXPECT_EQ(2048u, nic.ports[0].mtu_bytes);
  EXPECT_EQ(16u, topology->links.size());
}

TEST(SoftModelTopology, OneLineErrorsNameKeyValueAndRange) {
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"hosts=0", {"hosts = 0", "1 to 8192"}},
      {"hosts=8193", {"8193", "1 to 8192"}},
      {"hosts=8,rate=400", {"rate = 400", "1M to 3200G"}},
      {"rate=4000G", {"4000G", "3200G"}},
      {"delay=2s", {"delay = 2s", "1us"}},
      {"delay=-1us", {"-1us"}},
      {"mtu=9000", {"mtu = 9000", "256, 512, 1024, 2048, 4096"}},
      {"link=token-ring", {"token-ring", "infiniband, roce"}},
      {"nics=17", {"nics = 17", "1 to 16"}},
      {"ports=3", {"ports = 3", "1 to 2"}},
      {"pci=yes", {"yes", "true or false"}},
      {"device=a/b", {"a/b", "letters"}},
      {"colour=red", {"no key colour", "hosts", "max_qp_wr"}},
      {"max_sge=65", {"max_sge = 65", "1 to 64"}},
      {"nonsense", {"nonsense", "KEY=VALUE"}},
      {"hosts=8192,nics=7", {"49151"}},
  };
  for (const auto& [text, parts] : cases) {
    const Result<Topology> topology = Topology::FromText(text);
    ASSERT_FALSE(topology.ok()) << text;
    for (const std::string& part : parts) EXPECT_THAT(topology.status().message(), HasSubstr(part)) << text;
  }
}

TEST(SoftModelTopology, File) {
  const Result<Topology> topology = Topology::FromToml(R"(
[fabric]
hosts = 4
nics = 2
link = "infiniband"
rate = "400G"
[limits]
max_qp = 10
[[host]]
index = 3
rename = "storage"
nics = 1
rate = "200G"
link = "roce"
[[host]]
name = "host1"
device = "mlx5_"
pci = false
)",
                                                       "cluster.toml");
  ASSERT_TRUE(topology.ok()) << topology.status().message();
  EXPECT_EQ("storage", topology->hosts[3].name);
  EXPECT_EQ(1u, topology->hosts[3].nics.size());
  EXPECT_EQ(200'000'000'000u, topology->hosts[3].nics[0].ports[0].rate_bps);
  EXPECT_EQ("mlx5_1", topology->hosts[1].nics[1].name);
  EXPECT_FALSE(topology->hosts[1].nics[0].pci);
  EXPECT_EQ(10u, topology->hosts[0].nics[0].limits.max_qp);
  EXPECT_EQ(7u, topology->links.size());
}

TEST(SoftModelTopology, FileErrorsNameFileLineKeyAndRange) {
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"[fabric]\nhosts = 4\nrate = \"4x\"\n", {"bad.toml:3", "rate = 4x", "1M to 3200G"}},
      {"[fabric]\nhosts = \"many\"\n", {"bad.toml:2", "hosts = many", "1 to 8192"}},
      {"[fabric]\nhost = 4\n", {"bad.toml:2", "no key host", "hosts"}},
      {"[fabric]\nhosts = 2\n[[host]]\nindex = 2\n", {"bad.toml:4", "index = 2", "0 to 1"}},
      {"[fabric]\nhosts = 2\n[[host]]\nname = \"x\"\n", {"bad.toml:4", "name = x"}},
      {"[[host]]\nnics = 2\n", {"bad.toml:1", "neither name nor index"}},
      {"[fabric]\nhosts = 1.5\n", {"bad.toml:2", "hosts = 1.5", "1 to 8192"}},
      {"[fabric]\nhosts = \n", {"bad.toml:2", "not TOML"}},
      {"[fabrics]\n", {"bad.toml:1", "fabrics", "[topology] (or [fabric]), [limits], [[host]]"}},
      {"[limits]\nmax_cqe = 0\n", {"bad.toml:2", "max_cqe = 0", "1 to"}},
      {"[fabric]\nhosts = 2\n[[host]]\nindex = 0\nrename = \"host1\"\n", {"bad.toml", "host1", "twice"}},
  };
  for (const auto& [text, parts] : cases) {
    const Result<Topology> topology = Topology::FromToml(text, "bad.toml");
    ASSERT_FALSE(topology.ok()) << text;
    for (const std::string& part : parts) EXPECT_THAT(topology.status().message(), HasSubstr(part)) << text;
  }
  const Result<Topology> missing = Topology::Parse("/nonexistent/x.toml");
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.status().message(), AllOf(HasSubstr("/nonexistent/x.toml"), HasSubstr("No such file")));
}

TEST(SoftModelTopology, HostsOnDemand) {
  Rig rig("");
  Fabric* fabric = rig.fabric();
  const Result<uint32_t> first = fabric->AcquireHost("");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(0u, *first);
  DirectMemory memory(fabric);
  const ProcessId process = fabric->AttachProcess(*first, &memory);
  EXPECT_EQ(1u, *fabric->AcquireHost(""));
  const uint32_t named = *fabric->AcquireHost("my-node");
  EXPECT_EQ(1u, named);
  const ProcessId other = fabric->AttachProcess(named, &memory);
  EXPECT_EQ(named, *fabric->AcquireHost("my-node")) << "the same name is the same host";
  EXPECT_EQ(200u, *fabric->AcquireHost("host200"));
  EXPECT_EQ(17u, *fabric->AcquireHost("17"));
  fabric->DetachProcess(process);
  EXPECT_EQ(0u, *fabric->AcquireHost("")) << "free again";
  fabric->DetachProcess(other);
  EXPECT_TRUE(fabric->AcquireHost("").ok());

  Rig two("hosts=2");
  EXPECT_THAT(two.fabric()->AcquireHost("nobody").status().message(),
              AllOf(HasSubstr("nobody"), HasSubstr("2 hosts")));
  two.AddNode(0);
  two.AddNode(1);
  EXPECT_THAT(two.fabric()->AcquireHost("").status().message(), HasSubstr("all 2 hosts have processes"));
}

// Two leaves of two hosts, two spines.
Topology LeafSpine() {
  Topology topology = *Topology::FromText("hosts=4");
  topology.switches = {{"leaf0"}, {"leaf1"}, {"spine0"}, {"spine1"}};
  topology.links.clear();
  const auto link = [&](LinkEnd a, LinkEnd b) {
    topology.links.push_back({a, b, 100'000'000'000, kPicosPerUs});
  };
  for (uint32_t host = 0; host < 4; ++host) link({false, host, 0, 0}, {true, host / 2, 0, host % 2});
  for (uint32_t leaf = 0; leaf < 2; ++leaf) {
    for (uint32_t spine = 0; spine < 2; ++spine) link({true, leaf, 0, 2 + spine}, {true, 2 + spine, 0, leaf});
  }
  return topology;
}

TEST(SoftModelTopology, LeafSpineRoutesFlowsOverAllShortestPaths) {
  HeapPayloadPool pool;
  Result<std::unique_ptr<Fabric>> fabric = Fabric::Create(LeafSpine(), &pool);
  ASSERT_TRUE(fabric.ok()) << fabric.status().message();
  Rig rig(std::move(*fabric));
  Node& a = rig.AddNode(0);
  Node& near = rig.AddNode(1);
  Node& far = rig.AddNode(3);
  Buffer from = a.MakeBuffer(8, 1);
  Buffer to_near = near.MakeBuffer(8, 2);
  Buffer to_far = far.MakeBuffer(8, 2);
  std::map<uint32_t, uint32_t> link_of_flow;  // by destination queue pair: the leaf's uplink
  std::set<uint32_t> uplinks;
  rig.fabric()->SetFaultHook([&](const PacketView& view) {
    if (!view.from_host && !view.is_ack && view.link >= 8 && view.link % 2 == 0) {
      const auto [flow, added] = link_of_flow.emplace(view.destination_qp, view.link);
      EXPECT_EQ(flow->second, view.link) << "a flow changed its path";
      uplinks.insert(view.link);
    }
    return PacketFate::kDeliver;
  });
  const auto [qn, rn] = rig.Connect(a, near);
  ASSERT_EQ(0, a.Post(qn, 1, IBV_WR_RDMA_WRITE, {from.All()}, to_near.address(), to_near.key));
  rig.Run();
  const Picos near_time = a.One().timestamp;
  EXPECT_TRUE(uplinks.empty()) << "hosts on one leaf talk through it";
  EXPECT_NEAR(4.0, static_cast<double>(near_time) / kPicosPerUs, 0.1);
  for (int i = 0; i < 32; ++i) {
    const auto [qa, qb] = rig.Connect(a, far);
    for (int repeat = 0; repeat < 2; ++repeat) {
      const Picos start = rig.fabric()->Now();
      ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_WRITE, {from.All()}, to_far.address(), to_far.key));
      rig.Run();
      EXPECT_NEAR(8.0, static_cast<double>(a.One().timestamp - start) / kPicosPerUs, 0.1)
          << "four links each way";
    }
  }
  EXPECT_EQ(2u, uplinks.size()) << "both spines are used";
  EXPECT_EQ(32u, link_of_flow.size());
}

TEST(SoftModelTopology, ImpossibleTopologiesAreRefused) {
  HeapPayloadPool pool;
  const auto message = [&](const Topology& topology) {
    return Fabric::Create(topology, &pool).status().message();
  };
  Topology topology = LeafSpine();
  topology.links[3].b.port = 0;
  EXPECT_THAT(message(topology), HasSubstr("two links"));
  topology = LeafSpine();
  topology.links.pop_back();
  topology.links.pop_back();
  EXPECT_THAT(message(topology), HasSubstr("cannot reach"));
  topology = LeafSpine();
  topology.links.erase(topology.links.begin());
  EXPECT_THAT(message(topology), HasSubstr("has no link"));
  topology = LeafSpine();
  topology.links[0].a.nic = 4;
  EXPECT_THAT(message(topology), HasSubstr("does not exist"));
  topology = LeafSpine();
  topology.links[0].rate_bps = 0;
  EXPECT_THAT(message(topology), HasSubstr("no rate"));
}

TEST(SoftModelTopology, SeveralNicsAndPortsReachEachOther) {
  for (const char* text : {"hosts=2,nics=2,ports=2", "hosts=2,nics=2,ports=2,link=infiniband"}) {
    Rig rig(text);
    Node& a = rig.AddNode(0, 1);
    Node& b = rig.AddNode(1, 0);
    const QpOptions options;
    const uint32_t qa = rig.CreateQp(a);
    const uint32_t qb = rig.CreateQp(b);
    // From port 1 of one NIC to port 2 of another.
    ASSERT_EQ(0, a.nic->ModifyQp(a.process, qa, Rig::InitAttr(options, 1), Rig::kInitMask));
    ASSERT_EQ(0, a.nic->ModifyQp(a.process, qa, Rig::RtrAttr(options, b, qb, 2, 2), Rig::kRtrMask));
    ASSERT_EQ(0, a.nic->ModifyQp(a.process, qa, Rig::RtsAttr(options, 1), Rig::kRtsMask));
    ASSERT_EQ(0, b.nic->ModifyQp(b.process, qb, Rig::InitAttr(options, 2), Rig::kInitMask));
    ASSERT_EQ(0, b.nic->ModifyQp(b.process, qb, Rig::RtrAttr(options, a, qa, 1, 1), Rig::kRtrMask));
    ASSERT_EQ(0, b.nic->ModifyQp(b.process, qb, Rig::RtsAttr(options, 2), Rig::kRtsMask));
    ASSERT_EQ(0, b.Recv(qb, 1, {}));
    ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_SEND, {}));
    rig.Run();
    EXPECT_EQ(IBV_WC_SUCCESS, a.One().status) << text;
    EXPECT_EQ(1u, b.counters(2).rx_packets);
    EXPECT_EQ(0u, b.counters(1).rx_packets);
  }
}

}  // namespace
}  // namespace sluice::soft
