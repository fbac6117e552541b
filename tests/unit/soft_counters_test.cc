// Counters of a port as sysfs shows them: names, units, widths and age.
#include <gmock/gmock.h>

#include <set>
#include <string>

#include "soft_model_rig.h"
#include "verbs/soft/model/port_counters.h"

namespace sluice::soft {
namespace {

std::set<std::string> Names(std::span<const PortCounterView::Value> values) {
  std::set<std::string> names;
  for (const PortCounterView::Value& value : values)
    EXPECT_TRUE(names.insert(value.name).second) << value.name;
  return names;
}

TEST(SoftCounters, NamesAreThoseOfTheDriver) {
  const PortCounterView roce(LinkLayer::kEthernet, 100'000'000'000);
  const PortCounterView infiniband(LinkLayer::kInfiniBand, 100'000'000'000);
  EXPECT_EQ(Names(roce.port()), Names(infiniband.port()));
  EXPECT_EQ(21u, roce.port().size());
  const auto ethernet = Names(roce.hardware());
  for (const char* name :
       {"duplicate_request", "implied_nak_seq_err", "lifespan", "local_ack_timeout_err", "out_of_buffer",
        "out_of_sequence", "packet_seq_err", "req_cqe_error", "rnr_nak_retry_err", "rx_write_requests"}) {
    EXPECT_TRUE(ethernet.contains(name)) << name;
    EXPECT_TRUE(infiniband.Get(name).has_value()) << name;
  }
  for (const char* name : {"np_cnp_sent", "np_ecn_marked_roce_packets", "rp_cnp_handled", "rp_cnp_ignored",
                           "rx_icrc_encapsulated"}) {
    EXPECT_TRUE(ethernet.contains(name)) << name;
    EXPECT_FALSE(infiniband.Get(name).has_value()) << name;
  }
  // What the transport does not do has no counter that would always be 0.
  for (const char* name : {"roce_adp_retrans", "roce_slow_restart"})
    EXPECT_FALSE(ethernet.contains(name)) << name;
}

TEST(SoftCounters, UnitsAndWidths) {
  PortCounterView view(LinkLayer::kEthernet, 400'000'000'000);
  PortCounters counters;
  counters.tx_packets = 1000;
  counters.tx_bytes = 1000 * (4096 + 82) + (uint64_t{1} << 40);
  counters.transmit_wait = 8 * kPicosPerMs;
  counters.out_of_sequence = (uint64_t{1} << 32) + 5;
  counters.local_ack_timeout_err = 0xFFFFFFFF;
  counters.link_downed = 300;
  counters.corrupted_packets = 70'000;
  counters.np_cnp_sent = 17;
  view.RefreshNow(0, counters);
  EXPECT_EQ((uint64_t{1} << 38) + 1000 * (4096 + 58) / 4, view.Get("port_xmit_data"))
      << "words, without preamble, gap and frame check sequence; 64 bits";
  EXPECT_EQ(1000u, view.Get("port_xmit_packets"));
  EXPECT_EQ(100'000'000u, view.Get("port_xmit_wait")) << "8 ms are so many words at 400 Gb/s";
  EXPECT_EQ(5u, view.Get("out_of_sequence")) << "wraps at 32 bits";
  EXPECT_EQ(0xFFFFFFFFu, view.Get("local_ack_timeout_err"));
  EXPECT_EQ(255u, view.Get("link_downed")) << "stays at its limit";
  EXPECT_EQ(65535u, view.Get("port_rcv_errors"));
  EXPECT_EQ(17u, view.Get("np_cnp_sent"));
  EXPECT_EQ(10u, view.Get("lifespan"));
  EXPECT_FALSE(view.Get("nonsense").has_value());
  counters.transmit_wait = 400 * kPicosPerMs;
  view.RefreshNow(0, counters);
  EXPECT_EQ(5'000'000'000u - (uint64_t{1} << 32), view.Get("port_xmit_wait")) << "wraps as well";
}

TEST(SoftCounters, ValuesAreUpToTenMillisecondsOld) {
  PortCounterView view(LinkLayer::kInfiniBand, 100'000'000'000);
  PortCounters counters;
  counters.tx_packets = 1;
  EXPECT_TRUE(view.Refresh(3 * kPicosPerMs, counters));
  EXPECT_EQ(1u, view.Get("port_xmit_packets"));
  counters.tx_packets = 2;
  EXPECT_FALSE(view.Refresh(10 * kPicosPerMs - 1, counters));
  EXPECT_EQ(1u, view.Get("port_xmit_packets"));
  EXPECT_TRUE(view.Refresh(10 * kPicosPerMs, counters));
  EXPECT_EQ(2u, view.Get("port_xmit_packets"));
  counters.tx_packets = 3;
  EXPECT_FALSE(view.Refresh(19 * kPicosPerMs, counters));
  view.RefreshNow(19 * kPicosPerMs, counters);
  EXPECT_EQ(3u, view.Get("port_xmit_packets"));
}

TEST(SoftCounters, OfARealTransfer) {
  Rig rig("hosts=2,link=infiniband");
  Node& a = rig.AddNode(0);
  Node& b = rig.AddNode(1);
  Buffer from = a.MakeBuffer(1 << 20, 1), to = b.MakeBuffer(1 << 20, 2);
  const auto [qa, qb] = rig.Connect(a, b);
  ASSERT_EQ(0, a.Post(qa, 1, IBV_WR_RDMA_WRITE, {from.All()}, to.address(), to.key));
  rig.Run();
  PortCounterView sent(LinkLayer::kInfiniBand, 100'000'000'000);
  PortCounterView received(LinkLayer::kInfiniBand, 100'000'000'000);
  sent.RefreshNow(rig.fabric()->Now(), a.counters());
  received.RefreshNow(rig.fabric()->Now(), b.counters());
  EXPECT_EQ(sent.Get("port_xmit_data"), received.Get("port_rcv_data"));
  EXPECT_GT(*sent.Get("port_xmit_data"), uint64_t{1} << 18);
  EXPECT_LT(*sent.Get("port_xmit_data"), (uint64_t{1} << 18) * 102 / 100);
  EXPECT_EQ(1u, received.Get("rx_write_requests"));
}

}  // namespace
}  // namespace sluice::soft
