// Which message lands where, how large, on which marks, at which MTU, over which ports.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>

#include "tests/fault/rig.h"

namespace sluice::fault {
namespace {

FAULT_ROLE(GroupedReceive) {
  void* const ctx = Init();
  nccl::NetPropertiesV12 properties{};
  SOFT_CHECK(Net().getProperties(0, &properties) == kSuccess);
  EXPECT_EQ(properties.maxRecvs, 8);
  const Wire wire = Connect(ctx, ctx);
  // Every round of the slots, and of the epoch.
  const std::vector<std::vector<int>> orders = {
      {7, 6, 5, 4, 3, 2, 1, 0}, {3, 0, 7, 1, 6, 2, 5, 4}, {0, 1, 2, 3, 4, 5, 6, 7}};
  std::vector<Buffer> from, to;
  for (unsigned i = 0; i < 8; ++i) {
    from.emplace_back(wire.send, 40000, i);
    to.emplace_back(wire.recv, 40000, 100 + i);
  }
  for (int round = 0; round < 90; ++round) {
    const std::vector<int>& order = orders[static_cast<size_t>(round) % orders.size()];
    const int n = round % 8 + 1;
    std::array<void*, 8> data, handles;
    std::array<size_t, 8> capacities;
    std::array<int, 8> tags, sizes;
    for (int i = 0; i < n; ++i) {
      const auto at = static_cast<size_t>(i);
      memset(to[at].data(), 0xee, to[at].size());
      data[at] = to[at].data();
      handles[at] = to[at].handle();
      capacities[at] = 40000;
      tags[at] = 1000 + i;
    }
    sizes.fill(-7);
    void* receiving = nullptr;
    EXPECT_EQ(Net().irecv(wire.recv, n, data.data(), capacities.data(), tags.data(), handles.data(), nullptr,
                          &receiving),
              kSuccess);
    SOFT_CHECK(receiving != nullptr);
    std::vector<void*> sends;
    for (const int i : order) {
      if (i >= n) continue;
      void* request = nullptr;
      void* stranger = nullptr;
      // Also an empty one; a tag that nobody asked for finds no receive.
      const size_t bytes = i == 3 ? 0 : static_cast<size_t>(100 * round + 777 * i);
      EXPECT_EQ(Isend(wire.send, from[static_cast<size_t>(i)], 10, 4711, &stranger), kSuccess);
      EXPECT_EQ(stranger, nullptr);
      Until(
          [&] {
            return Isend(wire.send, from[static_cast<size_t>(i)], bytes, 1000 + i, &request) != kSuccess ||
                   request != nullptr;
          },
          "isend");
      sends.push_back(request);
    }
    int done = 0;
    Until([&] { return Net().test(receiving, &done, sizes.data()) != kSuccess || done != 0; }, "the group");
    for (void* request : sends) {
      done = 0;
      Until([&] { return Net().test(request, &done, nullptr) != kSuccess || done != 0; }, "a send");
    }
    for (int i = 0; i < n; ++i) {
      const size_t bytes = i == 3 ? 0 : static_cast<size_t>(100 * round + 777 * i);
      EXPECT_EQ(sizes[static_cast<size_t>(i)], static_cast<int>(bytes))
          << "round " << round << " buffer " << i;
      EXPECT_EQ(memcmp(to[static_cast<size_t>(i)].data(), from[static_cast<size_t>(i)].data(), bytes), 0);
      EXPECT_EQ(to[static_cast<size_t>(i)].data()[bytes], 0xee) << "more was written than sent";
    }
    for (int i = n; i < 8; ++i) EXPECT_EQ(sizes[static_cast<size_t>(i)], -7);
  }
  from.clear();
  to.clear();
  Close(wire);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}

TEST_F(FaultTest, GroupedReceiveOfEight) {
  RunRole("GroupedReceive", {{"SLUICE_MAX_RECVS", "8"}});
}

FAULT_ROLE(MaxRecvsDiffer) {
  Handle handle;
  void* const ctx = Init();
  void* const listen = Listen(ctx, &handle);
  Peer other = StartPeer("ConnectsOnce", {{"SLUICE_MAX_RECVS", "8"}});
  other.link.Send(handle.data(), nccl::kNetHandleBytes);
  NcclResult result = kSuccess;
  other.link.Receive(&result, sizeof(result));
  EXPECT_EQ(result, nccl::kRemoteError);
  EXPECT_EQ(other.Wait(), 0);
  EXPECT_EQ(Net().closeListen(listen), kSuccess);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}

FAULT_ROLE(ConnectsOnce) {
  void* const ctx = Init();
  Handle handle;
  peer.Receive(handle.data(), nccl::kNetHandleBytes);
  void* comm = nullptr;
  NcclResult result = kSuccess;
  Until(
      [&] {
        return (result = Net().connect(ctx, 0, handle.data(), &comm, nullptr)) != kSuccess || comm != nullptr;
      },
      "connect");
  if (result != kSuccess) {
    EXPECT_FALSE(Lines("on every").empty()) << testing::PrintToString(Lines());
  }
  peer.Send(&result, sizeof(result));
  if (comm != nullptr) (void)Net().closeSend(comm);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}

TEST_F(FaultTest, DifferentGroupSizesAreRefused) {
  RunRole("MaxRecvsDiffer");
}

FAULT_ROLE(Sizes) {
  void* const ctx = Init();
  const Wire wire = Connect(ctx, ctx);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{127}, size_t{128}, size_t{129}, size_t{8191},
                             size_t{8193}, size_t{131072}, size_t{131073}, (size_t{4} << 20) + 13}) {
    Transfer(wire, bytes);
  }
  {
    SCOPED_TRACE("a receive larger than the send reports what was sent");
    Buffer from(wire.send, 5000, 1), to(wire.recv, 100000, 2);
    void* receiving = nullptr;
    void* sending = nullptr;
    int done = 0, size = -1;
    EXPECT_EQ(Irecv(wire.recv, to, 100000, 0, &receiving), kSuccess);
    Until([&] { return Isend(wire.send, from, 4999, 0, &sending) != kSuccess || sending != nullptr; },
          "isend");
    Until([&] { return Net().test(receiving, &done, &size) != kSuccess || done != 0; }, "the receive");
    EXPECT_EQ(size, 4999);
    done = 0;
    Until([&] { return Net().test(sending, &done, nullptr) != kSuccess || done != 0; }, "the send");
  }
  {
    SCOPED_TRACE("empty messages without memory");
    void* receiving = nullptr;
    void* sending = nullptr;
    void* data = nullptr;
    void* handle = nullptr;
    size_t bytes = 0;
    int tag = 0, done = 0, size = -1;
    EXPECT_EQ(Net().irecv(wire.recv, 1, &data, &bytes, &tag, &handle, nullptr, &receiving), kSuccess);
    Until(
        [&] {
          return Net().isend(wire.send, nullptr, 0, 0, nullptr, nullptr, &sending) != kSuccess ||
                 sending != nullptr;
        },
        "isend");
    Until([&] { return Net().test(receiving, &done, &size) != kSuccess || done != 0; }, "the receive");
    EXPECT_EQ(size, 0);
    done = 0;
    Until([&] { return Net().test(sending, &done, nullptr) != kSuccess || done != 0; }, "the send");
  }
  Close(wire);
  // More than an int holds: refused, by the connection that asked; a new one works.
  {
    const Wire large = Connect(ctx, ctx);
    Buffer to(large.recv, 1000);
    void* data = to.data();
    void* handle = to.handle();
    size_t bytes = size_t{1} << 31;
    int tag = 0;
    void* request = nullptr;
    ForgetLines();
    EXPECT_EQ(Net().irecv(large.recv, 1, &data, &bytes, &tag, &handle, nullptr, &request),
              nccl::kInvalidArgument);
    EXPECT_EQ(request, nullptr);
    EXPECT_THAT(Lines("2147483647"), testing::Not(testing::IsEmpty())) << testing::PrintToString(Lines());
    EXPECT_EQ(to.Deregister(), kSuccess);
    (void)Net().closeSend(large.send);
    (void)Net().closeRecv(large.recv);
  }
  {
    const Wire large = Connect(ctx, ctx);
    Buffer from(large.send, 1000), to(large.recv, 1000);
    void* receiving = nullptr;
    void* request = nullptr;
    EXPECT_EQ(Irecv(large.recv, to, 1000, 0, &receiving), kSuccess);
    NcclResult result = kSuccess;
    Until(
        [&] {
          return (result = Isend(large.send, from, size_t{1} << 32, 0, &request)) != kSuccess ||
                 request != nullptr;
        },
        "isend");
    EXPECT_NE(result, kSuccess);
    EXPECT_EQ(request, nullptr);
    EXPECT_EQ(from.Deregister(), kSuccess);
    EXPECT_EQ(to.Deregister(), kSuccess);
    (void)Net().closeSend(large.send);
    (void)Net().closeRecv(large.recv);
  }
  // Before v9 sizes are ints: more than 2 GiB arrives as a negative number.
  {
    const auto& v7 = Table<nccl::NetV7>("ncclNetPlugin_v7");
    const auto& v8 = Table<nccl::NetV8>("ncclNetPlugin_v8");
    const Wire old = Connect(ctx, ctx);
    Buffer from(old.send, 1000), to(old.recv, 1000);
    void* data = to.data();
    void* handle = to.handle();
    int bytes = -2147483647, tag = 0;
    void* request = &tag;
    EXPECT_EQ(v7.irecv(old.recv, 1, &data, &bytes, &tag, &handle, &request), nccl::kInvalidArgument);
    EXPECT_EQ(request, nullptr);
    request = &tag;
    EXPECT_EQ(v8.irecv(old.recv, 1, &data, &bytes, &tag, &handle, &request), nccl::kInvalidArgument);
    EXPECT_EQ(request, nullptr);
    request = &tag;
    EXPECT_EQ(v7.isend(old.send, from.data(), bytes, 0, from.handle(), &request), nccl::kInvalidArgument);
    EXPECT_EQ(request, nullptr);
    request = &tag;
    EXPECT_EQ(v8.isend(old.send, from.data(), bytes, 0, from.handle(), &request), nccl::kInvalidArgument);
    EXPECT_EQ(request, nullptr);
    EXPECT_EQ(from.Deregister(), kSuccess);
    EXPECT_EQ(to.Deregister(), kSuccess);
    Transfer(old, 1000);
    Close(old);
  }
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}

TEST_F(FaultTest, SizesFromZeroToTooLarge) {
  RunRole("Sizes");
}

FAULT_ROLE(Gibibyte) {
  void* const ctx = Init();
  const Wire wire = Connect(ctx, ctx);
  Transfer(wire, size_t{1} << 30);
  Close(wire);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}

TEST_F(FaultTest, OneGibibyte) {
  RunRole("Gibibyte");
}

FAULT_ROLE(SizeMismatch) {
  const Holdings start = HeldAfterWarmUp();
  void* const sender = Init();
  void* const receiver = Init();
  const Wire wire = Connect(sender, receiver);
  Buffer from(wire.send, 70000), to(wire.recv, 70000);
  ForgetLines();
  void* receiving = nullptr;
  void* sending = nullptr;
  EXPECT_EQ(Irecv(wire.recv, to, 65536, 5, &receiving), kSuccess);
  NcclResult result = kSuccess;
  Until(
      [&] { return (result = Isend(wire.send, from, 65537, 5, &sending)) != kSuccess || sending != nullptr; },
      "isend");
  EXPECT_EQ(result, nccl::kInvalidUsage);
  int done = 0;
  Until([&] { return (result = Net().test(receiving, &done, nullptr)) != kSuccess || done != 0; },
        "the receiver");
  EXPECT_EQ(result, nccl::kRemoteError);
  const auto names_both = testing::AllOf(testing::HasSubstr("65537"), testing::HasSubstr("65536"),
                                         testing::HasSubstr("registered its buffer"));
  EXPECT_THAT(Lines(),
              testing::Contains(testing::AllOf(names_both, testing::Not(testing::HasSubstr("reports:")))));
  EXPECT_THAT(Lines("reports:"), testing::Contains(names_both)) << testing::PrintToString(Lines());
  EXPECT_EQ(from.Deregister(), kSuccess);
  EXPECT_EQ(to.Deregister(), kSuccess);
  (void)Net().closeSend(wire.send);
  (void)Net().closeRecv(wire.recv);
  const Wire again = Connect(sender, receiver);
  Transfer(again, 1000);
  Close(again);
  EXPECT_EQ(Net().finalize(sender), kSuccess);
  EXPECT_EQ(Net().finalize(receiver), kSuccess);
  ExpectBackTo(start, "size mismatch");
}

TEST_F(FaultTest, SizeMismatchIsAnErrorAtBothEnds) {
  RunRole("SizeMismatch");
}

// The device that merges the first `members` NICs.
int MergedDevice(int members) {
  if (members == 1) return 0;
  nccl::NetVDevicePropsV12 wanted{};
  wanted.ndevs = members;
  for (int i = 0; i < members; ++i) wanted.devs[i] = i;
  int device = -1;
  SOFT_CHECK(Net().makeVDevice(&device, &wanted) == kSuccess);
  return device;
}

// The other end, in a process of its own: receives what Sending sends, on a device of `members` NICs.
FAULT_ROLE(Receiver) {
  int members = 0;
  uint32_t count = 0;
  peer.Receive(&members, sizeof(members));
  peer.Receive(&count, sizeof(count));
  std::vector<uint64_t> sizes(count);
  peer.Receive(sizes.data(), count * sizeof(uint64_t));
  void* const ctx = Init();
  Handle handle;
  void* const listen = Listen(ctx, &handle, MergedDevice(members));
  peer.Send(handle.data(), nccl::kNetHandleBytes);
  void* recv = nullptr;
  Until([&] { return Net().accept(listen, &recv, nullptr) != kSuccess || recv != nullptr; }, "accept");
  for (const uint64_t bytes : sizes) {
    Buffer expected(recv, bytes, static_cast<unsigned>(bytes));
    Buffer buffer(recv, bytes, static_cast<unsigned>(bytes) + 1);
    void* request = nullptr;
    int done = 0, size = -1;
    EXPECT_EQ(Irecv(recv, buffer, bytes, 0, &request), kSuccess);
    Until([&] { return Net().test(request, &done, &size) != kSuccess || done != 0; }, "a message");
    EXPECT_EQ(size, static_cast<int>(bytes));
    EXPECT_EQ(memcmp(buffer.data(), expected.data(), bytes), 0) << "wrong data in " << bytes << " bytes";
  }
  peer.Barrier();
  EXPECT_EQ(Net().closeRecv(recv), kSuccess);
  EXPECT_EQ(Net().closeListen(listen), kSuccess);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}

// Sends messages of `sizes` to a Receiver that runs with `variables`; looks at the fabric with both still
// there.
void SendToReceiver(
    void* ctx, const Variables& variables, const std::vector<uint64_t>& sizes, int own_members = 1,
    int peer_members = 1, const std::function<void()>& look = [] {}) {
  Peer receiver = StartPeer("Receiver", variables);
  const auto count = static_cast<uint32_t>(sizes.size());
  receiver.link.Send(&peer_members, sizeof(peer_members));
  receiver.link.Send(&count, sizeof(count));
  receiver.link.Send(sizes.data(), sizes.size() * sizeof(uint64_t));
  Handle handle;
  receiver.link.Receive(handle.data(), nccl::kNetHandleBytes);
  void* comm = nullptr;
  const int device = MergedDevice(own_members);
  Until(
      [&] {
        return Net().connect(ctx, device, handle.data(), &comm, nullptr) != kSuccess || comm != nullptr;
      },
      "connect");
  for (const uint64_t bytes : sizes) {
    Buffer buffer(comm, bytes, static_cast<unsigned>(bytes));
    void* request = nullptr;
    int done = 0;
    Until([&] { return Isend(comm, buffer, bytes, 0, &request) != kSuccess || request != nullptr; }, "isend");
    Until([&] { return Net().test(request, &done, nullptr) != kSuccess || done != 0; }, "a message");
    EXPECT_EQ(done, 1) << testing::PrintToString(Lines());
  }
  receiver.link.Barrier();
  look();
  EXPECT_EQ(Net().closeSend(comm), kSuccess);
  EXPECT_EQ(receiver.Wait(), 0);
}

// Bytes that the ports of the fabric sent per mark: "sl3" or "tc104", summed over the ports.
std::map<std::string, uint64_t> BytesByMark(const std::string& host = "") {
  std::map<std::string, uint64_t> bytes;
  std::istringstream words(soft::RunFabricTool("--status"));
  std::string current;
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) continue;
    const std::string key = word.substr(0, equals);
    if (key == "host") current = word.substr(equals + 1);
    const bool mark = (key.starts_with("sl") || key.starts_with("tc")) &&
                      key.find_first_not_of("0123456789", 2) == std::string::npos;
    if (mark && (host.empty() || host == current))
      bytes[key] += strtoull(word.c_str() + equals + 1, nullptr, 10);
  }
  return bytes;
}

std::string Marks(const std::string& host) {
  std::string marks;
  for (const auto& [mark, bytes] : BytesByMark(host)) marks += (marks.empty() ? "" : " ") + mark;
  return marks;
}

// SLUICE_TEST_COMM_CLASS: the communicator's trafficClass; SLUICE_TEST_MARKS: what the fabric shall see from
// both ends; the receiver itself has no settings.
FAULT_ROLE(Marked) {
  const int comm_class =
      getenv("SLUICE_TEST_COMM_CLASS") != nullptr ? atoi(getenv("SLUICE_TEST_COMM_CLASS")) : -1;
  void* const ctx = Init(comm_class);
  const Variables plain = {{"SLUICE_FABRIC_HOST", "host1"},
                           {"NCCL_IB_TC", ""},
                           {"NCCL_IB_SL", ""},
                           {"NCCL_IB_FIFO_TC", ""},
                           {"SLUICE_TC", ""}};
  SendToReceiver(ctx, plain, {10000, 10000, 10000, 10000, 10000}, 1, 1, [] {
    EXPECT_EQ(Marks("host0"), getenv("SLUICE_TEST_MARKS"));
    EXPECT_EQ(Marks("host1"), getenv("SLUICE_TEST_MARKS"));
  });
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}

struct MarkCase {
  Variables variables;
  const char* marks;
};

// Data, acknowledgements and grants alike carry the values: nothing else is on the wire.
const std::vector<MarkCase>& MarkCases() {
  const std::pair<std::string, std::string> ib = {"SLUICE_FABRIC_TOPOLOGY", "hosts=2,link=infiniband"};
  static const std::vector<MarkCase> cases = {
      {{{"NCCL_IB_TC", "104"}}, "sl0 tc104"},
      {{{"NCCL_IB_TC", "255"}, {"NCCL_IB_SL", "15"}}, "sl15 tc255"},
      {{{"NCCL_IB_TC", "0"}, {"NCCL_IB_SL", "0"}}, "sl0 tc0"},
      {{{"NCCL_IB_TC", "96"}, {"NCCL_IB_FIFO_TC", "160"}}, "sl0 tc160 tc96"},
      {{{"SLUICE_TC", "32"}, {"NCCL_IB_TC", "96"}}, "sl0 tc32"},
      {{{"SLUICE_TEST_COMM_CLASS", "88"}}, "sl0 tc88"},
      {{{"SLUICE_TEST_COMM_CLASS", "88"}, {"NCCL_IB_TC", "16"}}, "sl0 tc16"},
      {{{"SLUICE_TEST_COMM_CLASS", "-2147483648"}}, "sl0 tc0"},
      {{ib, {"NCCL_IB_SL", "7"}}, "sl7 tc0"},
      {{ib, {"SLUICE_TEST_COMM_CLASS", "9"}}, "sl9 tc0"},
  };
  return cases;
}

class MarksTest : public FaultTest, public testing::WithParamInterface<size_t> {};
TEST_P(MarksTest, OnEveryQueuePairOfBothEnds) {
  const MarkCase& marks = MarkCases()[GetParam()];
  SCOPED_TRACE(marks.marks);
  Variables variables = marks.variables;
  variables.emplace_back("SLUICE_TEST_MARKS", marks.marks);
  variables.emplace_back("SLUICE_FABRIC_HOST", "host0");
  RunRole("Marked", variables);
}
INSTANTIATE_TEST_SUITE_P(Cases, MarksTest, testing::Range(size_t{0}, MarkCases().size()));

FAULT_ROLE(BadMark) {
  void* ctx = nullptr;
  nccl::NetCommConfig config{
      getenv("SLUICE_TEST_COMM_CLASS") != nullptr ? atoi(getenv("SLUICE_TEST_COMM_CLASS")) : -1};
  EXPECT_NE(Net().init(&ctx, 1, &config, Log, nullptr), kSuccess);
  EXPECT_EQ(ctx, nullptr);
  EXPECT_THAT(Lines(getenv("SLUICE_TEST_NAMES")), testing::SizeIs(1)) << testing::PrintToString(Lines());
}

TEST_F(FaultTest, MarksOutOfRangeAreRefused) {
  for (const MarkCase& c :
       {MarkCase{{{"NCCL_IB_SL", "16"}}, "NCCL_IB_SL"}, MarkCase{{{"NCCL_IB_SL", "135"}}, "NCCL_IB_SL"},
        MarkCase{{{"NCCL_IB_TC", "256"}}, "NCCL_IB_TC"}, MarkCase{{{"NCCL_IB_TC", "300"}}, "NCCL_IB_TC"},
        MarkCase{{{"SLUICE_TEST_COMM_CLASS", "256"}}, "trafficClass 256"},
        MarkCase{{{"SLUICE_TEST_COMM_CLASS", "300"}}, "trafficClass 300"}}) {
    SCOPED_TRACE(c.variables[0].first + "=" + c.variables[0].second);
    Variables variables = c.variables;
    variables.emplace_back("SLUICE_TEST_NAMES", c.marks);
    RunRole("BadMark", variables);
  }
}

// Three hosts, one at MTU 1024: it lowers its own paths, and no other.
FAULT_ROLE(MtuSender) {
  void* const ctx = Init();
  for (const auto& [host, mtu] : {std::pair{"host1", 1024}, std::pair{"host2", 4096}}) {
    ForgetLines();
    SendToReceiver(ctx, {{"SLUICE_FABRIC_HOST", host}}, {100000});
    EXPECT_THAT(Lines("MTU " + std::to_string(mtu)), testing::SizeIs(1)) << testing::PrintToString(Lines());
  }
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}

TEST_F(FaultTest, MtuIsTheMinimumOfEachPair) {
  const std::string file = directory_ + "/mtu.toml";
  std::ofstream(file) << "[fabric]\nhosts = 3\nmtu = 4096\n[[host]]\nindex = 1\nmtu = 1024\n";
  RunRole("MtuSender", {{"SLUICE_FABRIC_TOPOLOGY", file}, {"SLUICE_FABRIC_HOST", "host0"}});
  unlink(file.c_str());
}

// InfiniBand at one end, RoCE at the other: refused with both named.
FAULT_ROLE(MixedLinks) {
  void* const ctx = Init();
  Handle handle;
  void* const listen = Listen(ctx, &handle);
  Peer other = StartPeer("ConnectsOnce", {{"SLUICE_FABRIC_HOST", "host1"}});
  other.link.Send(handle.data(), nccl::kNetHandleBytes);
  NcclResult result = kSuccess;
  other.link.Receive(&result, sizeof(result));
  EXPECT_EQ(result, nccl::kInvalidUsage);
  EXPECT_EQ(other.Wait(), 0);
  EXPECT_EQ(Net().closeListen(listen), kSuccess);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}

TEST_F(FaultTest, MixedLinkLayersAreRefused) {
  const std::string file = directory_ + "/mixed.toml";
  std::ofstream(file) << "[fabric]\nhosts = 2\n[[host]]\nindex = 1\nlink = \"infiniband\"\n";
  RunRole("MixedLinks", {{"SLUICE_FABRIC_TOPOLOGY", file}, {"SLUICE_FABRIC_HOST", "host0"}});
  unlink(file.c_str());
}

// The fabric's RoCE ports have {v1, v2} link-local and {v1, v2} IPv4 entries: the routable v2 one is taken.
FAULT_ROLE(GidChoice) {
  void* const ctx = Init();
  const Wire wire = Connect(ctx, ctx);
  Transfer(wire, 1000);
  EXPECT_THAT(Lines(" index " + std::string(getenv("SLUICE_TEST_INDEX"))), testing::Not(testing::IsEmpty()))
      << testing::PrintToString(Lines("path"));
  Close(wire);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}

FAULT_ROLE(GidMissing) {
  void* const ctx = Init();
  Handle handle;
  void* listen = nullptr;
  EXPECT_NE(Net().listen(ctx, 0, handle.data(), &listen), kSuccess);
  EXPECT_THAT(Lines("soft0"), testing::Contains(testing::HasSubstr("77"))) << testing::PrintToString(Lines());
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}

TEST_F(FaultTest, GidIsTheRoutableOne) {
  RunRole("GidChoice", {{"SLUICE_TEST_INDEX", "3"}});
  RunRole("GidChoice", {{"SLUICE_TEST_INDEX", "1"}, {"NCCL_IB_GID_INDEX", "1"}});
  RunRole("GidMissing", {{"NCCL_IB_GID_INDEX", "77"}});
}

// Merged NICs: every member carries data, and all of it is right; also to a single NIC, and from one.
FAULT_ROLE(Merged) {
  const int members = atoi(getenv("SLUICE_TEST_MEMBERS"));
  void* const ctx = Init();
  const Variables there = {{"SLUICE_FABRIC_HOST", "host1"}};
  SendToReceiver(ctx, there, {0, 1, 4096, 131072, 131073, 1000003, 8 << 20}, members, members, [&] {
    int sending_ports = 0;
    std::istringstream lines(soft::RunFabricTool("--status"));
    for (std::string line; std::getline(lines, line);) {
      const std::string key = " tx_payload_bytes=";
      const size_t at = line.find(key);
      if (at != std::string::npos && strtoull(line.c_str() + at + key.size(), nullptr, 10) > 500'000)
        ++sending_ports;
    }
    EXPECT_EQ(sending_ports, members);
  });
  SendToReceiver(ctx, there, {0, 1, 70000, 3 << 20}, members, 1);
  SendToReceiver(ctx, there, {0, 1, 70000, 3 << 20}, 1, members);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
  // And in one process.
  void* const both = Init();
  const Wire wire = Connect(both, both, MergedDevice(members), MergedDevice(members));
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{131073}, size_t{8} << 20}) Transfer(wire, bytes);
  Close(wire);
  EXPECT_EQ(Net().finalize(both), kSuccess);
  Until([] { return LiveObjects().queue_pairs == 0; }, "the queue pairs to go");
}

class MergedTest : public FaultTest, public testing::WithParamInterface<std::tuple<int, const char*>> {};
TEST_P(MergedTest, MovesDataRight) {
  const auto& [members, link] = GetParam();
  RunRole("Merged", {{"SLUICE_TEST_MEMBERS", std::to_string(members)},
                     {"SLUICE_FABRIC_HOST", "host0"},
                     {"SLUICE_FABRIC_TOPOLOGY", "hosts=2,nics=8,link=" + std::string(link)},
                     {"NCCL_IB_SPLIT_DATA_ON_QPS", "1"},
                     {"NCCL_IB_QPS_PER_CONNECTION", "4"}});
}
INSTANTIATE_TEST_SUITE_P(Sizes, MergedTest,
                         testing::Combine(testing::Values(2, 8), testing::Values("roce", "infiniband")));

}  // namespace
}  // namespace sluice::fault
