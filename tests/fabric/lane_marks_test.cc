// Lanes on the wire: two hosts, one message class at a time, and what the fabric counted under each service level (InfiniBand)
// and traffic class (RoCE) at both of them: data one way, acknowledgements and clear-to-send the other.
#include <map>
#include <sstream>

#include "tests/fault/rig.h"

namespace sluice::fault {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr size_t kBytes = 300000;
constexpr int kMessages = 8;

FAULT_ROLE(Sender) {
  void* const ctx = Init(atoi(getenv("TEST_TRAFFIC_CLASS")));
  Handle handle;
  peer.Receive(handle.data(), handle.bytes.size());
  void* send = nullptr;
  NcclResult result = kSuccess;
  Until(
      [&] {
        return (result = Net().connect(ctx, 0, handle.data(), &send, nullptr)) != kSuccess || send != nullptr;
      },
      "connect");
  ASSERT_EQ(result, kSuccess) << testing::PrintToString(Lines());
  if (const char* line = getenv("TEST_ONE_LINE")) {
    EXPECT_THAT(Lines(line), SizeIs(1));
  }
  Buffer buffer(send, kBytes, 3);
  for (int i = 0; i < kMessages; ++i) {
    void* request = nullptr;
    int done = 0;
    Until([&] { return Isend(send, buffer, kBytes, 0, &request) != kSuccess || request != nullptr; },
          "isend");
    Until([&] { return Net().test(request, &done, nullptr) != kSuccess || done != 0; }, "a send");
  }
  peer.Barrier();
  peer.Barrier();
  EXPECT_EQ(Net().closeSend(send), kSuccess);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}

FAULT_ROLE(Receiver) {
  void* const ctx = Init(atoi(getenv("TEST_TRAFFIC_CLASS")));
  Handle handle;
  void* const listen = Listen(ctx, &handle);
  peer.Send(handle.data(), handle.bytes.size());
  void* recv = nullptr;
  Until([&] { return Net().accept(listen, &recv, nullptr) != kSuccess || recv != nullptr; }, "accept");
  Buffer buffer(recv, kBytes, 4);
  const Buffer expected(recv, kBytes, 3);
  for (int i = 0; i < kMessages; ++i) {
    void* request = nullptr;
    int done = 0;
    Until([&] { return Irecv(recv, buffer, kBytes, 0, &request) != kSuccess || request != nullptr; },
          "irecv");
    Until([&] { return Net().test(request, &done, nullptr) != kSuccess || done != 0; }, "a receive");
  }
  EXPECT_TRUE(std::equal(buffer.data(), buffer.data() + kBytes, const_cast<Buffer&>(expected).data()));
  peer.Barrier();
  peer.Barrier();
  EXPECT_EQ(Net().closeRecv(recv), kSuccess);
  EXPECT_EQ(Net().closeListen(listen), kSuccess);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}

// Bytes sent under each mark: {"sl2", 1234}.
using Marks = std::map<std::string, uint64_t>;

class LaneMarksTest : public FaultTest {
 protected:
  // A fabric that has counted nothing yet.
  void NewFabric() {
    static int count = 0;
    setenv("SLUICE_FABRIC", ("marks-" + std::to_string(getpid()) + "-" + std::to_string(++count)).c_str(), 1);
  }

  // Moves the messages between two hosts; what each of them sent.
  void Move(const std::string& link, Variables variables, Marks* sender, Marks* receiver) {
    NewFabric();
    variables.emplace_back("SLUICE_FABRIC_TOPOLOGY", "hosts=2,link=" + link);
    bool traffic_class = false;
    for (const auto& [name, value] : variables) traffic_class |= name == "TEST_TRAFFIC_CLASS";
    if (!traffic_class) variables.emplace_back("TEST_TRAFFIC_CLASS", "-1");
    Variables first = variables, second = variables;
    first.emplace_back("SLUICE_FABRIC_HOST", "0");
    second.emplace_back("SLUICE_FABRIC_HOST", "1");
    Peer from = StartPeer("Sender", first);
    Peer to = StartPeer("Receiver", second);
    Handle handle;
    to.link.Receive(handle.data(), handle.bytes.size());
    from.link.Send(handle.data(), handle.bytes.size());
    from.link.Barrier();
    to.link.Barrier();
    const std::string status = soft::RunFabricTool("--status");
    from.link.Barrier();
    to.link.Barrier();
    EXPECT_EQ(from.Wait(), 0);
    EXPECT_EQ(to.Wait(), 0);
    const std::string mark = link.starts_with("roce") ? "tc" : "sl";
    std::istringstream lines(status);
    Marks* marks = sender;
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("port host=")) continue;
      std::istringstream words(line);
      for (std::string word; words >> word;) {
        const size_t equals = word.find('=');
        if (word.starts_with(mark) && equals <= 5 && isdigit(static_cast<unsigned char>(word[2])) != 0)
          (*marks)[word.substr(2, equals - 2)] += std::stoull(word.substr(equals + 1));
      }
      marks = receiver;
    }
    EXPECT_THAT(*sender, testing::Not(IsEmpty())) << status;
    EXPECT_THAT(*receiver, testing::Not(IsEmpty())) << status;
  }

  static std::string Keys(const Marks& marks) {
    std::string keys;
    for (const auto& [key, bytes] : marks) keys += (keys.empty() ? "" : " ") + key;
    return keys;
  }

  // All messages on `name`, whose mark is `data`, with clear-to-send on `control`.
  void ExpectMarks(const std::string& link, const Variables& variables, const std::string& data,
                   const std::string& control) {
    SCOPED_TRACE(link + " " + testing::PrintToString(variables));
    Marks sender, receiver;
    Move(link, variables, &sender, &receiver);
    // Data and the acknowledgements of clear-to-send; acknowledgements of data and clear-to-send.
    std::map<std::string, uint64_t> both{{data, 1}, {control, 1}};
    EXPECT_EQ(Keys(sender), Keys(both));
    EXPECT_EQ(Keys(receiver), Keys(both));
    EXPECT_GE(sender[data], kMessages * kBytes);
    EXPECT_LT(sender[data], kMessages * kBytes * 5 / 4);
    if (data == control) return;
    EXPECT_GT(receiver[control], 0u);
    EXPECT_LT(sender[control], 20000u);
    EXPECT_LT(receiver[data], 100000u);
  }
};

std::string Policy(const std::string& chosen, const std::string& marks) {
  return "class = [" + marks + "]\nrule = [{class = \"" + chosen + "\"}]\n";
}

TEST_F(LaneMarksTest, EveryClassUnderItsServiceLevel) {
  const std::string marks =
      R"({name = "control", sl = 1}, {name = "latency", sl = 2}, {name = "bulk", sl = 3}, {name = "background", sl = 15})";
  for (const auto& [name, sl] : {std::pair{"latency", "2"}, {"bulk", "3"}, {"background", "15"}})
    ExpectMarks("infiniband", {{"SLUICE_POLICY", Policy(name, marks)}}, sl, "1");
}

TEST_F(LaneMarksTest, EveryClassUnderItsTrafficClass) {
  const std::string marks =
      R"({name = "control", dscp = 48}, {name = "latency", dscp = 34, ecn = "not-ect"}, {name = "bulk", traffic_class = 106},)"
      R"( {name = "background", traffic_class = 255})";
  for (const auto& [name, tc] : {std::pair{"latency", "136"}, {"bulk", "106"}, {"background", "255"}})
    ExpectMarks("roce", {{"SLUICE_POLICY", Policy(name, marks)}}, tc, "194");
}

// Row Q1: what is in range arrives on every queue pair of both ends, control included; unset means 0.
TEST_F(LaneMarksTest, ValuesInRangeAndUnset) {
  for (const char* sl : {"0", "15"}) ExpectMarks("infiniband", {{"NCCL_IB_SL", sl}}, sl, sl);
  ExpectMarks("infiniband", {{"NCCL_IB_SL", "-1"}}, "0", "0");
  for (const char* tc : {"0", "255"}) ExpectMarks("roce", {{"NCCL_IB_TC", tc}}, tc, tc);
  ExpectMarks("roce", {{"NCCL_IB_TC", "-1"}}, "0", "0");
  for (const char* undefined : {"-1", "-2147483648"})
    ExpectMarks("roce", {{"TEST_TRAFFIC_CLASS", undefined}}, "0", "0");
}

// Row Q2: one order of precedence, seen on the wire.
TEST_F(LaneMarksTest, SourcesThatDisagree) {
  const Variables communicator = {{"TEST_TRAFFIC_CLASS", "12"}};
  ExpectMarks("infiniband", communicator, "12", "12");
  ExpectMarks("roce", communicator, "12", "12");
  Variables nccl = communicator;
  nccl.insert(nccl.end(), {{"NCCL_IB_SL", "5"}, {"NCCL_IB_TC", "20"}, {"NCCL_IB_FIFO_TC", "24"}});
  ExpectMarks("infiniband", nccl, "5", "5");
  ExpectMarks("roce", nccl, "20", "24");
  Variables sluice = nccl;
  sluice.insert(sluice.end(), {{"SLUICE_SL", "6"}, {"SLUICE_TC", "28"}});
  ExpectMarks("infiniband", sluice, "6", "6");
  ExpectMarks("roce", sluice, "28", "28");
  Variables policy = sluice;
  policy.emplace_back("SLUICE_POLICY", R"(class = [{name = "bulk", sl = 7, traffic_class = 32}])"
                                       "\nrule = [{class = \"bulk\"}]\n");
  ExpectMarks("infiniband", policy, "7", "6");
  ExpectMarks("roce", policy, "32", "28");
}

// Row Q3: two service levels on one virtual lane; the packets keep their levels, and lanes work, shared in software or not.
TEST_F(LaneMarksTest, TwoServiceLevelsOnOneVirtualLane) {
  const std::string marks =
      R"({name = "control", sl = 1}, {name = "latency", sl = 2}, {name = "bulk", sl = 3})";
  for (const char* scheduler : {"-1", "1"}) {
    for (const auto& [name, sl] : {std::pair{"latency", "2"}, {"bulk", "3"}}) {
      ExpectMarks("infiniband,switches.sl2vl=0/0/0/0",
                  {{"SLUICE_POLICY", Policy(name, marks)}, {"SLUICE_SCHEDULER", scheduler}}, sl, "1");
    }
  }
}

// Row Q1: what is out of range stops the plugin, or the communicator whose number it is, with the range.
FAULT_ROLE(OutOfRange) {
  void* ctx = nullptr;
  nccl::NetCommConfig config{atoi(getenv("TEST_TRAFFIC_CLASS"))};
  NcclResult result = Net().init(&ctx, 1, &config, Log, nullptr);
  if (result == kSuccess) {
    Handle handle;
    void* listen = nullptr;
    result = Net().listen(ctx, 0, handle.data(), &listen);
  }
  EXPECT_NE(result, kSuccess);
  EXPECT_THAT(Lines(getenv("TEST_MESSAGE")), SizeIs(testing::Ge(1u))) << testing::PrintToString(Lines());
}

TEST_F(LaneMarksTest, ValuesOutOfRangeAreRefused) {
  const auto refuse = [&](const char* link, const char* name, const char* value, const char* message) {
    SCOPED_TRACE(std::string(name) + "=" + value);
    NewFabric();
    Variables variables = {{"SLUICE_FABRIC_TOPOLOGY", std::string("hosts=1,link=") + link},
                           {name, value},
                           {"TEST_MESSAGE", message}};
    if (std::string(name) != "TEST_TRAFFIC_CLASS") variables.emplace_back("TEST_TRAFFIC_CLASS", "-1");
    RunRole("OutOfRange", variables);
  };
  for (const char* sl : {"16", "135", "-2"}) refuse("infiniband", "NCCL_IB_SL", sl, "NCCL_IB_SL");
  for (const char* tc : {"256", "300"}) {
    refuse("roce", "NCCL_IB_TC", tc, "NCCL_IB_TC");
    refuse("roce", "TEST_TRAFFIC_CLASS", tc, "out of range 0..255");
  }
  refuse("roce", "TEST_TRAFFIC_CLASS", "-5", "out of range 0..255");
  for (const char* sl : {"16", "106"}) refuse("infiniband", "TEST_TRAFFIC_CLASS", sl, "out of range 0..15");
  refuse("infiniband", "SLUICE_POLICY", "class = [{name = \"bulk\", sl = 16}]", "0..15");
  refuse("roce", "SLUICE_POLICY", "class = [{name = \"bulk\", traffic_class = 256}]", "0..255");
}

// Queue pairs are those of the classes in use, at any number of channels.
FAULT_ROLE(Channels) {
  void* const ctx = Init();
  std::vector<Wire> wires;
  wires.push_back(Connect(ctx, ctx));
  // Both ends: control 1, latency 1, bulk 4, background 2.
  EXPECT_EQ(LiveObjects().queue_pairs, 2 * (1 + 1 + 4 + 2));
  while (wires.size() < 32) wires.push_back(Connect(ctx, ctx));
  EXPECT_EQ(LiveObjects().queue_pairs, 2 * (1 + 1 + 4 + 2));
  for (const Wire& wire : wires) Transfer(wire, 5000);
  for (const Wire& wire : wires) Close(wire);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}
TEST_F(LaneMarksTest, QueuePairsDoNotGrowWithChannels) {
  for (const char* link : {"roce", "infiniband"}) {
    NewFabric();
    RunRole("Channels", {{"SLUICE_FABRIC_TOPOLOGY", std::string("hosts=1,link=") + link},
                         {"SLUICE_POLICY",
                          "class = [{name = \"background\", queue_pairs = 2}]\ndefault_rules = true\n"
                          "rule = [{communicator = \"io*\", class = \"background\"}]\n"}});
  }
}

constexpr const char* kThreeClasses =
    "class = [{name = \"latency\", queue_pairs = 2, dscp = 34}, {name = \"background\", queue_pairs = 2, "
    "dscp = 8}]\n"
    "rule = [{nodes = 64, class = \"background\"}, {class = \"latency\"}]\n";

// A device without room for every lane, which takes 7 queue pairs at each end: fewer lanes, one warning, and all arrives.
TEST_F(LaneMarksTest, ADeviceWithFewQueuePairsHasFewerLanes) {
  // Of the sender: room for control and bulk; then for latency too.
  for (const auto& [most, data] : {std::pair{"3", "0"}, {"4", "0"}, {"5", "138"}, {"6", "138"}}) {
    SCOPED_TRACE(most);
    Marks sender, receiver;
    Move(std::string("roce,max_qp=") + most,
         {{"SLUICE_QPS_PER_CLASS", "2"},
          {"SLUICE_POLICY", kThreeClasses},
          {"TEST_ONE_LINE", "do not fit the device"}},
         &sender, &receiver);
    EXPECT_GE(sender[data], kMessages * kBytes);
  }
}

// The same at the receiver: both ends share one device here, and the sender's queue pairs come first.
FAULT_ROLE(RefusingReceiver) {
  void* const ctx = Init();
  const Wire wire = Connect(ctx, ctx);
  const bool room_for_latency = atoi(getenv("TEST_ROOM")) >= 12;
  EXPECT_THAT(Lines("is refused: ibv_create_qp"), SizeIs(room_for_latency ? 1 : 2));
  EXPECT_THAT(Lines("refused the lane of class"),
              testing::ElementsAre(HasSubstr(std::string("refused the lane of class ") +
                                             (room_for_latency ? "background" : "latency"))));
  EXPECT_EQ(LiveObjects().queue_pairs, room_for_latency ? 10 : 6);  // the sender gave its own up
  for (const size_t bytes : {size_t{0}, size_t{100}, size_t{1} << 20}) Transfer(wire, bytes);
  Close(wire);
  EXPECT_EQ(Net().finalize(ctx), kSuccess);
}
TEST_F(LaneMarksTest, AReceiverMayRefuseAClass) {
  for (const char* room : {"10", "11", "12", "13"}) {
    SCOPED_TRACE(room);
    NewFabric();
    RunRole("RefusingReceiver", {{"SLUICE_FABRIC_TOPOLOGY", std::string("hosts=1,max_qp=") + room},
                                 {"SLUICE_QPS_PER_CLASS", "2"},
                                 {"TEST_ROOM", room},
                                 {"SLUICE_POLICY", kThreeClasses}});
  }
}

}  // namespace
}  // namespace sluice::fault
