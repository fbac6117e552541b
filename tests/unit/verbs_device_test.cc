// Discovery, device contexts and queue objects over a library that answers from a description (field cases
// H1, H3, H5 to H8, R3, R4, A8).
#include "verbs/device.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/unit/verbs_fake_library.h"
#include "verbs/gid.h"
#include "verbs/queue_pair.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr uint8_t kIb = IBV_LINK_LAYER_INFINIBAND;
constexpr uint8_t kRoce = IBV_LINK_LAYER_ETHERNET;

class VerbsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    verbs_ = &ResetFakeVerbs();
    root_ = ::testing::TempDir() + "sluice-hca-XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
  }
  void TearDown() override {
    EXPECT_EQ(verbs_->contexts, 0);
    EXPECT_EQ(verbs_->pds, 0);
    EXPECT_EQ(verbs_->cqs, 0);
    EXPECT_EQ(verbs_->srqs, 0);
    EXPECT_EQ(verbs_->qps, 0);
    EXPECT_EQ(verbs_->mrs, 0);
    std::filesystem::remove_all(root_);
  }

  // A device with a directory of its own, behind the PCI function `pci` unless that is empty.
  FakeDevice& Add(const std::string& name, uint8_t link_layer, const std::string& pci = "", int ports = 1) {
    FakeDevice device = MakeFakeDevice(name, link_layer, ports);
    const std::filesystem::path directory = std::filesystem::path(root_) / "infiniband" / name;
    std::filesystem::create_directories(directory);
    if (!pci.empty()) {
      const std::filesystem::path function = std::filesystem::path(root_) / "devices" / pci;
      std::filesystem::create_directories(function);
      std::filesystem::create_symlink(function, directory / "device");
    }
    device.ibdev_path = directory.string();
    return verbs_->devices.emplace_back(std::move(device));
  }

  std::vector<Port> Discover(const DiscoveryOptions& options = {}) {
    warnings_.clear();
    Result<std::vector<Port>> ports =
        DiscoverPorts(options, [this](const std::string& line) { warnings_.push_back(line); });
    EXPECT_TRUE(ports.ok()) << ports.status().message();
    return std::move(*ports);
  }

  static std::vector<std::string> Names(const std::vector<Port>& ports) {
    std::vector<std::string> names;
    for (const Port& port : ports) names.push_back(port.name);
    return names;
  }

  std::shared_ptr<DeviceContext> OpenOne() {
    Add("mlx5_0", kRoce);
    std::vector<Port> ports = Discover();
    EXPECT_EQ(ports.size(), 1U);
    return ports.at(0).device;
  }

  FakeVerbs* verbs_ = nullptr;
  std::string root_;
  std::vector<std::string> warnings_;
};

using Discovery = VerbsTest;

TEST_F(Discovery, NoDeviceIsNoErrorAndNoWord) {
  EXPECT_THAT(Discover(), IsEmpty());
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_THAT(Discover({.hca_filter = "=mlx5_0"}), IsEmpty());
  EXPECT_THAT(warnings_, IsEmpty());
  verbs_->list_fails = true;  // no RDMA modules
  EXPECT_THAT(Discover(), IsEmpty());
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(Discovery, SortsByPciAddressWithDevicesWithoutOneLast) {
  Add("rxe0", kRoce);
  Add("mlx5_2", kIb, "0000:9a:00.0");
  Add("mlx5_0", kIb, "0001:3b:00.0");
  Add("mlx5_1", kIb, "0000:3b:00.1");
  EXPECT_THAT(Names(Discover()), ElementsAre("mlx5_1", "mlx5_2", "mlx5_0", "rxe0"));
  EXPECT_THAT(Names(Discover({.pci_order = false})), ElementsAre("rxe0", "mlx5_2", "mlx5_0", "mlx5_1"));
}

TEST_F(Discovery, FunctionsOfOneNicShareItsPathAndNumberItsPorts) {
  Add("mlx5_0", kIb, "0000:3b:00.0");
  Add("mlx5_1", kIb, "0000:3b:00.1");
  Add("mlx5_2", kIb, "0000:3b:01.2");  // a virtual function
  Add("rxe0", kRoce);
  std::vector<Port> merged = Discover();
  ASSERT_EQ(merged.size(), 4U);
  EXPECT_THAT(merged[0].device->pci_path(), HasSubstr("0000:3b:00.0"));
  EXPECT_EQ(merged[1].device->pci_path(), merged[0].device->pci_path());
  EXPECT_EQ(merged[2].device->pci_path(), merged[0].device->pci_path());
  EXPECT_EQ(merged[3].device->pci_path(), "");
  EXPECT_EQ(merged[0].nic_port, 1);
  EXPECT_EQ(merged[1].nic_port, 2);
  EXPECT_EQ(merged[2].nic_port, 3);
  EXPECT_EQ(merged[3].nic_port, 1);
  merged.clear();
  const std::vector<Port> apart = Discover({.merge_vfs = false});
  EXPECT_EQ(apart[1].device->pci_path(), apart[0].device->pci_path());
  EXPECT_NE(apart[2].device->pci_path(), apart[0].device->pci_path());
  EXPECT_EQ(apart[2].nic_port, 1);
}

TEST_F(Discovery, NamesPortsOfMultiPortDevicesApart) {
  Add("mlx4_0", kIb, "0000:3b:00.0", 2);
  const std::vector<Port> ports = Discover();
  EXPECT_THAT(Names(ports), ElementsAre("mlx4_0:1", "mlx4_0:2"));
  EXPECT_EQ(ports[0].device, ports[1].device);
  EXPECT_EQ(verbs_->opened, 1);
  EXPECT_EQ(ports[1].number, 2);
  EXPECT_EQ(ports[1].nic_port, 2);
  EXPECT_THAT(Names(Discover({.hca_filter = "mlx4_0:2"})), ElementsAre("mlx4_0:2"));
}

TEST_F(Discovery, TakesOnlyActivePortsThatCarryVerbs) {
  Add("mlx5_0", kIb).ports[0].attributes.state = IBV_PORT_DOWN;
  Add("mlx5_1", kIb).ports[0].attributes.state = IBV_PORT_INIT;
  Add("mlx5_2", 77);
  Add("efa_0", kRoce).transport = IBV_TRANSPORT_UNSPECIFIED;
  FakeDevice& iwarp = Add("siw0", kRoce);
  iwarp.transport = IBV_TRANSPORT_IWARP;
  iwarp.node_type = IBV_NODE_RNIC;
  Add("mlx5_3", kRoce);
  const std::vector<Port> ports = Discover();
  ASSERT_THAT(Names(ports), ElementsAre("mlx5_3"));
  EXPECT_EQ(ports[0].link_layer, LinkLayer::kEthernet);
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_EQ(verbs_->contexts, 1);  // the others are closed again
}

TEST_F(Discovery, FilterSelectsAndRuledOutDevicesStayClosed) {
  Add("mlx5_1", kIb);
  Add("mlx5_11", kIb);
  EXPECT_THAT(Names(Discover({.hca_filter = "mlx5_1"})), ElementsAre("mlx5_1", "mlx5_11"));
  verbs_->opened = 0;
  EXPECT_THAT(Names(Discover({.hca_filter = "=mlx5_1:1:2:3"})), ElementsAre("mlx5_1"));
  EXPECT_EQ(verbs_->opened, 1);
  const std::vector<Port> ports = Discover({.hca_filter = "=mlx5_1:1:2:3"});
  EXPECT_EQ(ports[0].rail, 2);
  EXPECT_EQ(ports[0].plane, 3);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(Discovery, AListThatSelectsNothingIsSaidOnce) {
  Add("mlx5_0", kIb);
  EXPECT_THAT(Discover({.hca_filter = "=mlx5_9", .filter_source = "NCCL_IB_HCA"}), IsEmpty());
  EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr("NCCL_IB_HCA==mlx5_9"), HasSubstr("mlx5_0"))));
}

TEST_F(Discovery, AListThatSelectsOnlyInactivePortsNamesThem) {
  Add("mlx5_0", kIb).ports[0].attributes.state = IBV_PORT_DOWN;
  Add("mlx5_1", kIb);
  EXPECT_THAT(Discover({.hca_filter = "=mlx5_0"}), IsEmpty());
  EXPECT_THAT(warnings_,
              ElementsAre(AllOf(HasSubstr("selected but not active: mlx5_0:1"), HasSubstr("mlx5_1"))));
}

TEST_F(Discovery, AFailedOpenIsTheOnlyWordAboutASelectedDevice) {
  Add("mlx5_0", kIb).open_error = ENOENT;  // device file missing, or not for this user
  Add("mlx5_1", kIb);
  EXPECT_THAT(Discover({.hca_filter = "=mlx5_0"}), IsEmpty());
  EXPECT_THAT(warnings_,
              ElementsAre(AllOf(HasSubstr("ibv_open_device of mlx5_0"), HasSubstr("/dev/infiniband"))));
}

TEST_F(Discovery, AMalformedListIsAnErrorBeforeAnythingIsOpened) {
  Add("mlx5_0", kIb);
  const Result<std::vector<Port>> ports =
      DiscoverPorts({.hca_filter = "^=a,^=b", .filter_source = "NCCL_IB_HCA"}, nullptr);
  ASSERT_FALSE(ports.ok());
  EXPECT_THAT(ports.status().message(), HasSubstr("NCCL_IB_HCA=^=a,^=b"));
  EXPECT_EQ(verbs_->opened, 0);
}

TEST_F(Discovery, ADeviceThatCannotBeOpenedIsNamedAndLeftOut) {
  Add("mlx5_0", kIb);
  Add("mlx5_1", kIb).open_error = EPERM;
  Add("mlx5_2", kIb).query_error = EIO;
  Add("mlx5_3", kIb);
  EXPECT_THAT(Names(Discover()), ElementsAre("mlx5_0", "mlx5_3"));
  EXPECT_THAT(warnings_,
              ElementsAre(AllOf(HasSubstr("mlx5_1"), HasSubstr("errno 1"), HasSubstr("/dev/infiniband")),
                          AllOf(HasSubstr("mlx5_2"), HasSubstr("errno 5"))));
}

TEST_F(Discovery, ADeviceWithoutProtectionDomainIsClosedAgain) {
  Add("mlx5_0", kIb);
  verbs_->alloc_pd_error = ENOMEM;
  EXPECT_THAT(Discover(), IsEmpty());
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("ibv_alloc_pd on mlx5_0")));
}

TEST_F(Discovery, SpeedIsNeverZero) {
  Add("mlx5_0", kIb);
  FakeDevice& unknown = Add("mlx5_1", kIb);
  unknown.ports[0].attributes.active_width = 0;
  unknown.ports[0].attributes.active_speed = 0;
  FakeDevice& sysfs = Add("mlx5_2", kIb);
  sysfs.ports[0].attributes.active_speed = 0;
  std::filesystem::create_directories(sysfs.ibdev_path + "/ports/1");
  std::ofstream(sysfs.ibdev_path + "/ports/1/rate") << "800 Gb/sec (4X XDR)\n";
  std::vector<Port> ports = Discover();
  ASSERT_EQ(ports.size(), 3U);
  EXPECT_EQ(ports[0].speed_mbps, 100000);
  EXPECT_EQ(ports[1].speed_mbps, kFallbackSpeedMbps);
  EXPECT_EQ(ports[2].speed_mbps, 800000);
  for (const Port& port : Discover({.speed_mbps = 25000})) EXPECT_EQ(port.speed_mbps, 25000);
}

TEST_F(Discovery, OneContextPerDeviceAsLongAsItIsUsed) {
  Add("mlx5_0", kIb);
  std::vector<Port> first = Discover();
  const std::vector<Port> second = Discover();
  EXPECT_EQ(first[0].device, second[0].device);
  EXPECT_EQ(verbs_->opened, 1);
  EXPECT_EQ(verbs_->pds, 1);
}

TEST_F(Discovery, ContextsReportGuidsAndNonBlockingEvents) {
  const std::shared_ptr<DeviceContext> device = OpenOne();
  EXPECT_EQ(device->node_guid(), 1U);
  EXPECT_EQ(device->sys_image_guid(), 1U);  // none of its own
  EXPECT_NE(fcntl(device->async_fd(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_FALSE(device->memory().SupportsDmaBuf());
}

TEST_F(Discovery, RegistrationsOfADeviceAreGivenBackWithIt) {
  std::shared_ptr<DeviceContext> device = OpenOne();
  std::vector<char> buffer(10000);
  ASSERT_TRUE(device->memory().Register(buffer.data(), buffer.size(), RegionKind::kData).ok());
  EXPECT_EQ(verbs_->mrs, 1);
}

ibv_gid_entry Gid(uint32_t port, uint32_t index, uint32_t type, const char* text) {
  return {.gid = *ParseGid(text), .gid_index = index, .port_num = port, .gid_type = type, .ndev_ifindex = 0};
}

TEST_F(VerbsTest, GidTableIsThatOfThePort) {
  FakeDevice& device = Add("mlx4_0", kRoce, "", 2);
  device.ports[0].gids = {Gid(1, 3, IBV_GID_TYPE_ROCE_V2, "10.0.0.1"),
                          Gid(1, 0, IBV_GID_TYPE_ROCE_V1, "fe80::1")};
  device.ports[1].gids = {Gid(2, 6, IBV_GID_TYPE_ROCE_V2, "10.0.1.1")};
  const std::vector<Port> ports = Discover();
  Result<std::vector<GidEntry>> first = ReadGidTable(*ports[0].device, 1, 16);
  ASSERT_TRUE(first.ok()) << first.status().message();
  ASSERT_EQ(first->size(), 2U);
  EXPECT_EQ((*first)[0].index, 0);
  EXPECT_EQ((*first)[0].type, GidType::kRoceV1);
  EXPECT_EQ((*first)[1].index, 3);
  Result<std::vector<GidEntry>> second = ReadGidTable(*ports[1].device, 2, 16);
  ASSERT_TRUE(second.ok());
  ASSERT_EQ(second->size(), 1U);
  EXPECT_EQ((*second)[0].index, 6);
  EXPECT_EQ(ReadGidTable(*ports[0].device, 3, 16).status().code(), Code::kSystem);
}

TEST_F(VerbsTest, GidTableIsReadSinglyWhereTheCallIsMissing) {
  FakeDevice& device = Add("mlx5_0", kRoce);
  device.ports[0].gids = {Gid(1, 0, 0, "fe80::1"), Gid(1, 3, 0, "10.0.0.1")};
  const std::filesystem::path attributes = device.ibdev_path + "/ports/1/gid_attrs";
  std::filesystem::create_directories(attributes / "types");
  std::filesystem::create_directories(attributes / "ndevs");
  std::ofstream(attributes / "types/0") << "IB/RoCE v1\n";
  std::ofstream(attributes / "types/3") << "RoCE v2\n";
  std::ofstream(attributes / "ndevs/3") << "eth0\n";
  verbs_->gid_table_error = EOPNOTSUPP;
  const std::vector<Port> ports = Discover();
  Result<std::vector<GidEntry>> table = ReadGidTable(*ports[0].device, 1, 0);
  ASSERT_TRUE(table.ok()) << table.status().message();
  ASSERT_EQ(table->size(), 2U);
  EXPECT_EQ((*table)[1].index, 3);
  EXPECT_EQ((*table)[1].type, GidType::kRoceV2);
  EXPECT_EQ((*table)[1].ndev, "eth0");
}

TEST_F(VerbsTest, CompletionQueueIsLoweredToTheDevice) {
  const std::shared_ptr<DeviceContext> device = OpenOne();
  Result<CompletionQueue> cq = CompletionQueue::Create(*device, 1U << 30);
  ASSERT_TRUE(cq.ok());
  EXPECT_EQ(cq->depth(), 100000U);
  Result<CompletionQueue> least = CompletionQueue::Create(*device, 0);
  ASSERT_TRUE(least.ok());
  EXPECT_EQ(least->depth(), 1U);
}

TEST_F(VerbsTest, NoMoreCompletionQueuesIsAClearError) {
  const std::shared_ptr<DeviceContext> device = OpenOne();
  verbs_->create_cq_error = ENOSPC;
  const Result<CompletionQueue> cq = CompletionQueue::Create(*device, 64);
  ASSERT_FALSE(cq.ok());
  EXPECT_THAT(cq.status().message(), AllOf(HasSubstr("ibv_create_cq on mlx5_0 with 64 entries"),
                                           HasSubstr("1000 completion"), HasSubstr("fewer connections")));
}

TEST_F(VerbsTest, SharedReceiveQueueIsLoweredOrRefusedByName) {
  FakeDevice& without = Add("rxe0", kRoce);
  without.attributes.max_srq = 0;
  Add("mlx5_0", kRoce);
  const std::vector<Port> ports = Discover();
  const Result<SharedReceiveQueue> none = SharedReceiveQueue::Create(*ports[0].device, 16);
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.status().message(), HasSubstr("rxe0 has no shared receive queues"));
  Result<SharedReceiveQueue> srq = SharedReceiveQueue::Create(*ports[1].device, 1U << 20, 100);
  ASSERT_TRUE(srq.ok());
  EXPECT_EQ(srq->depth(), 4096U);
  EXPECT_EQ(verbs_->last_srq.attr.max_sge, 3U);
  Result<SharedReceiveQueue> without_list = SharedReceiveQueue::Create(*ports[1].device, 16);
  ASSERT_TRUE(without_list.ok());
  EXPECT_EQ(verbs_->last_srq.attr.max_sge, 1U);
  verbs_->create_srq_error = ENOMEM;
  EXPECT_THAT(SharedReceiveQueue::Create(*ports[1].device, 16).status().message(),
              HasSubstr("ibv_create_srq on mlx5_0"));
}

class QueuePairTest : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    device_ = OpenOne();
    Result<CompletionQueue> cq = CompletionQueue::Create(*device_, 16);
    ASSERT_TRUE(cq.ok());
    cq_ = std::move(*cq);
  }
  void TearDown() override {
    cq_ = CompletionQueue();
    device_.reset();
    VerbsTest::TearDown();
  }
  QueuePairOptions Options(uint32_t max_send_wr, uint32_t max_inline = 0) {
    return {.send_cq = cq_.get(), .recv_cq = cq_.get(), .max_send_wr = max_send_wr, .max_inline = max_inline};
  }

  std::shared_ptr<DeviceContext> device_;
  CompletionQueue cq_;
};

TEST_F(QueuePairTest, SizesAreLoweredToTheDeviceFirst) {
  Result<QueuePair> qp = QueuePair::Create(device_->pd(), Options(1U << 20));
  ASSERT_TRUE(qp.ok());
  EXPECT_EQ(qp->caps().max_send_wr, 8192U);
  EXPECT_EQ(verbs_->created_qps, 1);
  EXPECT_EQ(verbs_->last_qp.qp_type, IBV_QPT_RC);
}

TEST_F(QueuePairTest, SmallDevicesGetSmallQueues) {
  verbs_->devices[0].attributes.max_qp_wr = 63;
  verbs_->largest_inline = 60;
  Result<QueuePair> qp = QueuePair::Create(device_->pd(), Options(256, 128));
  ASSERT_TRUE(qp.ok());
  EXPECT_EQ(qp->caps().max_send_wr, 63U);
  EXPECT_EQ(qp->caps().max_inline_data, 32U);
}

TEST_F(QueuePairTest, AQueueThatCannotBeLaidOutIsHalved) {
  verbs_->largest_send_wr = 100;
  verbs_->largest_inline = 0;
  Result<QueuePair> qp = QueuePair::Create(device_->pd(), Options(256, 64));
  ASSERT_TRUE(qp.ok());
  EXPECT_EQ(qp->caps().max_send_wr, 64U);
  EXPECT_EQ(qp->caps().max_inline_data, 0U);
}

TEST_F(QueuePairTest, RefusalForGoodNamesTheFirstCause) {
  verbs_->create_qp_error = ENOMEM;
  const Result<QueuePair> qp = QueuePair::Create(device_->pd(), Options(256, 64));
  ASSERT_FALSE(qp.ok());
  EXPECT_THAT(qp.status().message(), AllOf(HasSubstr("ibv_create_qp on mlx5_0 with 256 send entries"),
                                           HasSubstr("errno 12"), HasSubstr("memory lock limit")));
  EXPECT_EQ(QueuePair::Create(device_->pd(), {}).status().code(), Code::kInvalidArgument);
}

TEST_F(QueuePairTest, InlineIsProbedOnce) {
  verbs_->largest_inline = 100;
  EXPECT_EQ(device_->ProbeMaxInline(128), 64U);
  EXPECT_EQ(verbs_->qps, 0);
  const int created = verbs_->created_qps;
  EXPECT_EQ(device_->ProbeMaxInline(64), 64U);
  EXPECT_EQ(device_->ProbeMaxInline(16), 16U);
  EXPECT_EQ(verbs_->created_qps, created);
}

TEST_F(QueuePairTest, GoesThroughItsStatesWithTheParametersGiven) {
  Result<QueuePair> qp = QueuePair::Create(device_->pd(), Options(16));
  ASSERT_TRUE(qp.ok());
  ASSERT_TRUE(qp->ToInit({.port = 1, .pkey_index = 2}).ok());
  EXPECT_EQ(verbs_->last_attr.pkey_index, 2);
  EXPECT_EQ(verbs_->last_mask, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS);
  ASSERT_TRUE(qp->ToRtr({.dest_qpn = 77,
                         .psn = 0x12345678,
                         .mtu = IBV_MTU_2048,
                         .sl = 3,
                         .traffic_class = 106,
                         .flow_label = 0xfffffff,
                         .sgid_index = 3,
                         .dgid = *ParseGid("10.0.0.2"),
                         .is_global = true})
                  .ok());
  const ibv_qp_attr& attr = verbs_->last_attr;
  EXPECT_EQ(attr.dest_qp_num, 77U);
  EXPECT_EQ(attr.rq_psn, 0x345678U);
  EXPECT_EQ(attr.path_mtu, IBV_MTU_2048);
  EXPECT_EQ(attr.min_rnr_timer, 12);
  EXPECT_EQ(attr.ah_attr.port_num, 1);
  EXPECT_EQ(attr.ah_attr.sl, 3);
  EXPECT_EQ(attr.ah_attr.is_global, 1);
  EXPECT_EQ(attr.ah_attr.grh.traffic_class, 106);
  EXPECT_EQ(attr.ah_attr.grh.flow_label, 0xfffffU);
  EXPECT_EQ(attr.ah_attr.grh.hop_limit, 255);
  EXPECT_EQ(attr.ah_attr.grh.sgid_index, 3);
  EXPECT_EQ(qp->remote(), "queue pair 77 at GID 10.0.0.2");
  ASSERT_TRUE(qp->ToRts({.psn = 0xff000001, .timeout = 18, .retry_cnt = 5}).ok());
  EXPECT_EQ(verbs_->last_attr.sq_psn, 1U);
  EXPECT_EQ(verbs_->last_attr.timeout, 18);
  EXPECT_EQ(verbs_->last_attr.retry_cnt, 5);
  EXPECT_EQ(verbs_->last_attr.rnr_retry, 7);
  Result<ibv_qp_state> state = qp->QueryState();
  ASSERT_TRUE(state.ok());
  EXPECT_EQ(*state, IBV_QPS_RTS);
  ASSERT_TRUE(qp->ToError().ok());
  ASSERT_TRUE(qp->ToReset().ok());
  EXPECT_EQ(qp->remote(), "");
}

TEST_F(QueuePairTest, WithoutGrhNothingOfItIsSet) {
  Result<QueuePair> qp = QueuePair::Create(device_->pd(), Options(16));
  ASSERT_TRUE(qp.ok());
  ASSERT_TRUE(qp->ToInit({}).ok());
  ASSERT_TRUE(qp->ToRtr({.dest_qpn = 77, .traffic_class = 106, .dlid = 9, .path_bits = 1}).ok());
  EXPECT_EQ(verbs_->last_attr.ah_attr.is_global, 0);
  EXPECT_EQ(verbs_->last_attr.ah_attr.grh.traffic_class, 0);
  EXPECT_EQ(verbs_->last_attr.ah_attr.dlid, 9);
  EXPECT_EQ(verbs_->last_attr.ah_attr.src_path_bits, 1);
  EXPECT_EQ(qp->remote(), "queue pair 77 at LID 9");
}

class Unreachable : public QueuePairTest, public ::testing::WithParamInterface<int> {};

TEST_P(Unreachable, NamesTheRemoteAddressAndBlamesTheNetwork) {
  Result<QueuePair> qp = QueuePair::Create(device_->pd(), Options(16));
  ASSERT_TRUE(qp.ok());
  ASSERT_TRUE(qp->ToInit({}).ok());
  verbs_->modify_error = GetParam();
  const Status status = qp->ToRtr({.dest_qpn = 77,
                                   .mtu = IBV_MTU_4096,
                                   .sgid_index = 3,
                                   .dgid = *ParseGid("10.0.0.2"),
                                   .is_global = true});
  EXPECT_EQ(status.code(), Code::kRemote);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("ibv_modify_qp to RTR on mlx5_0:1, queue pair 101"),
                    HasSubstr("towards queue pair 77 at GID 10.0.0.2"), HasSubstr("own GID index 3"),
                    HasSubstr("errno " + std::to_string(GetParam())), HasSubstr("; "), Not(HasSubstr("\n"))));
}

INSTANTIATE_TEST_SUITE_P(Errors, Unreachable, ::testing::Values(ENETUNREACH, ETIMEDOUT, EHOSTUNREACH));

TEST_F(QueuePairTest, OtherRefusalsAreThisHosts) {
  Result<QueuePair> qp = QueuePair::Create(device_->pd(), Options(16));
  ASSERT_TRUE(qp.ok());
  verbs_->modify_error = EINVAL;
  EXPECT_EQ(qp->ToRtr({.dest_qpn = 77, .dlid = 9}).code(), Code::kSystem);
  verbs_->modify_error_state = IBV_QPS_RTS;
  EXPECT_THAT(qp->ToRts({}).message(), AllOf(HasSubstr("to RTS"), HasSubstr("queue pair 77 at LID 9")));
  verbs_->modify_error_state = IBV_QPS_INIT;
  EXPECT_THAT(qp->ToInit({.pkey_index = 9}).message(),
              AllOf(HasSubstr("to INIT"), HasSubstr("P_Key index 9")));
}

TEST_F(QueuePairTest, EceIsOptional) {
  Result<QueuePair> qp = QueuePair::Create(device_->pd(), Options(16));
  ASSERT_TRUE(qp.ok());
  Result<ibv_ece> ece = qp->QueryEce();
  ASSERT_TRUE(ece.ok());
  EXPECT_EQ(ece->vendor_id, 0x15b3U);
  ASSERT_TRUE(qp->SetEce(*ece).ok());
  EXPECT_EQ(verbs_->last_ece.options, 3U);
  verbs_->ece_error = EOPNOTSUPP;
  Result<ibv_ece> none = qp->QueryEce();
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->vendor_id, 0U);
  EXPECT_TRUE(qp->SetEce(*ece).ok());
  EXPECT_TRUE(qp->SetEce(*none).ok());
  verbs_->ece_error = EINVAL;
  EXPECT_FALSE(qp->QueryEce().ok());
  EXPECT_THAT(qp->SetEce(*ece).message(), HasSubstr("ibv_set_ece on mlx5_0"));
}

TEST_F(QueuePairTest, MovesLeaveOneOwner) {
  Result<QueuePair> made = QueuePair::Create(device_->pd(), Options(16));
  ASSERT_TRUE(made.ok());
  QueuePair first = std::move(*made);
  QueuePair second;
  second = std::move(first);
  EXPECT_EQ(verbs_->qps, 1);
  EXPECT_TRUE(static_cast<bool>(second));
  EXPECT_TRUE(second.Close().ok());
  EXPECT_EQ(verbs_->qps, 0);
  EXPECT_TRUE(second.Close().ok());
}

TEST_F(QueuePairTest, AFailedDestructionIsReportedAndCanBeRepeated) {
  Result<QueuePair> qp = QueuePair::Create(device_->pd(), Options(16));
  ASSERT_TRUE(qp.ok());
  verbs_->destroy_qp_error = EBUSY;
  EXPECT_THAT(qp->Close().message(),
              AllOf(HasSubstr("ibv_destroy_qp on mlx5_0"), HasSubstr("queue pair 101")));
  verbs_->destroy_qp_error = 0;
  EXPECT_TRUE(qp->Close().ok());
}

}  // namespace
}  // namespace sluice
