// Names, hints and sentences of the verbs layer; counters from a tree of files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "verbs/async_events.h"
#include "verbs/completion.h"
#include "verbs/counters.h"
#include "verbs/errors.h"
#include "verbs/gid.h"
#include "verbs/queue_pair.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(Errors, FormatsBytes) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(64 << 10), "64 KiB");
  EXPECT_EQ(FormatBytes(1536 << 10), "1.5 MiB");
  EXPECT_EQ(FormatBytes(1ULL << 40), "1 TiB");
}

TEST(Errors, FindsTheErrnoBehindAVerb) {
  EXPECT_EQ(ErrnoOf(EINVAL), EINVAL);
  EXPECT_EQ(ErrnoOf(-EINVAL), EINVAL);
  errno = ENODEV;
  EXPECT_EQ(ErrnoOf(-1), ENODEV);
  errno = 0;
  EXPECT_EQ(ErrnoOf(-1), EIO);
}

TEST(Errors, RemediesNameTheKnobs) {
  EXPECT_THAT(MemoryLockRemedy(64 << 10), AllOf(HasSubstr("64 KiB"), HasSubstr("ulimit -l"),
                                                HasSubstr("limits.conf"), HasSubstr("--ulimit memlock=-1")));
  EXPECT_THAT(MemoryLockRemedy(UINT64_MAX), Not(HasSubstr("ulimit")));
  EXPECT_THAT(RemedyFor(EMFILE), AnyOf(HasSubstr("ulimit -n"), HasSubstr("fs.file-max")));
  EXPECT_THAT(RemedyFor(EPERM), HasSubstr("/dev/infiniband"));
  EXPECT_THAT(RemedyFor(ENODATA), HasSubstr("GID index"));
  EXPECT_THAT(RemedyFor(ENETUNREACH), HasSubstr("GID"));
  EXPECT_THAT(RemedyFor(ETIMEDOUT), HasSubstr("subnet"));
  EXPECT_THAT(RemedyFor(EINVAL), HasSubstr("ibv_devinfo"));
  EXPECT_EQ(RemedyFor(EALREADY), "");
  EXPECT_THAT(VerbError("ibv_open_device of mlx5_1", EPERM).message(),
              AllOf(HasSubstr("ibv_open_device of mlx5_1"), HasSubstr("errno 1"), HasSubstr("; ")));
}

TEST(Completion, EveryStatusHasItsOwnNameAndAHint) {
  std::set<std::string_view> names;
  for (int status = IBV_WC_SUCCESS; status <= IBV_WC_TM_RNDV_INCOMPLETE; ++status) {
    const auto value = static_cast<ibv_wc_status>(status);
    EXPECT_TRUE(names.insert(CompletionStatusName(value)).second) << status;
    EXPECT_NE(CompletionStatusName(value), "unknown status") << status;
    EXPECT_EQ(CompletionHint(value).empty(), value == IBV_WC_SUCCESS) << status;
  }
  EXPECT_EQ(CompletionStatusName(static_cast<ibv_wc_status>(99)), "unknown status");
  EXPECT_EQ(IBV_WC_RETRY_EXC_ERR, 12);
  EXPECT_THAT(std::string(CompletionHint(IBV_WC_RETRY_EXC_ERR)), AllOf(HasSubstr("GID"), HasSubstr("link")));
  EXPECT_THAT(std::string(CompletionHint(IBV_WC_REM_ACCESS_ERR)), HasSubstr("buffer"));
}

TEST(Completion, FlushIsAConsequenceAndNetworkFailuresAreRemote) {
  EXPECT_TRUE(IsFlush(IBV_WC_WR_FLUSH_ERR));
  EXPECT_FALSE(IsFlush(IBV_WC_RETRY_EXC_ERR));
  EXPECT_TRUE(IsRemoteFailure(IBV_WC_RETRY_EXC_ERR));
  EXPECT_TRUE(IsRemoteFailure(IBV_WC_REM_ACCESS_ERR));
  EXPECT_FALSE(IsRemoteFailure(IBV_WC_LOC_PROT_ERR));
  EXPECT_FALSE(IsRemoteFailure(IBV_WC_FATAL_ERR));
}

TEST(Completion, DescribesWithDefinedFieldsOnly) {
  // What verbs leaves undefined on failure is poisoned here and must not show.
  ibv_wc wc;
  std::memset(&wc, 0xa5, sizeof(wc));
  wc.wr_id = 77;
  wc.status = IBV_WC_RETRY_EXC_ERR;
  wc.qp_num = 4242;
  wc.vendor_err = 129;
  const std::string line = DescribeCompletion(wc, {.device = "mlx5_0:1",
                                                   .what = "send to host7",
                                                   .local = "GID 10.0.0.1, index 3",
                                                   .remote = "GID 10.0.0.2"});
  EXPECT_THAT(
      line,
      AllOf(HasSubstr("mlx5_0:1: send to host7: transport retries exceeded (status 12, vendor error 129)"),
            HasSubstr("queue pair 4242"), HasSubstr("local GID 10.0.0.1, index 3"),
            HasSubstr("remote GID 10.0.0.2; ")));
  EXPECT_THAT(line, Not(HasSubstr(std::to_string(0xa5a5a5a5U))));
  EXPECT_THAT(line, Not(HasSubstr("\n")));
}

TEST(Completion, LeavesOutWhatIsNotKnown) {
  ibv_wc wc{};
  wc.status = IBV_WC_LOC_PROT_ERR;
  wc.qp_num = 5;
  EXPECT_THAT(DescribeCompletion(wc, {}),
              AllOf(::testing::StartsWith("local protection error"), Not(HasSubstr("remote"))));
}

ibv_async_event PortEvent(ibv_event_type type, int port) {
  ibv_async_event event{};
  event.event_type = type;
  event.element.port_num = port;
  return event;
}

TEST(AsyncEvents, ClassifiesEveryType) {
  ibv_qp qp{};
  qp.qp_num = 17;
  ibv_cq cq{};
  ibv_srq srq{};
  for (int type = IBV_EVENT_CQ_ERR; type <= IBV_EVENT_WQ_FATAL; ++type) {
    ibv_async_event event{};
    event.event_type = static_cast<ibv_event_type>(type);
    EXPECT_NE(AsyncEventName(event.event_type), "unknown event") << type;
    ClassifyAsyncEvent(event);  // null elements are harmless
  }
  ibv_async_event event{};
  event.event_type = IBV_EVENT_QP_ACCESS_ERR;
  event.element.qp = &qp;
  AsyncEvent classified = ClassifyAsyncEvent(event);
  EXPECT_EQ(classified.event_class, AsyncEventClass::kQpFatal);
  EXPECT_EQ(classified.qp, &qp);
  EXPECT_EQ(classified.qp_number, 17U);
  EXPECT_EQ(classified.port, 0);
  EXPECT_EQ(DescribeAsyncEvent(classified, "mlx5_0"), "mlx5_0: queue pair 17: access violation");

  event.event_type = IBV_EVENT_CQ_ERR;
  event.element.cq = &cq;
  classified = ClassifyAsyncEvent(event);
  EXPECT_EQ(classified.event_class, AsyncEventClass::kCqFatal);
  EXPECT_EQ(classified.cq, &cq);
  EXPECT_EQ(classified.qp, nullptr);

  event.event_type = IBV_EVENT_SRQ_LIMIT_REACHED;
  event.element.srq = &srq;
  classified = ClassifyAsyncEvent(event);
  EXPECT_EQ(classified.event_class, AsyncEventClass::kSrqLimit);
  EXPECT_EQ(classified.srq, &srq);

  EXPECT_EQ(ClassifyAsyncEvent(PortEvent(IBV_EVENT_PORT_ACTIVE, 2)).event_class, AsyncEventClass::kPortUp);
  EXPECT_EQ(ClassifyAsyncEvent(PortEvent(IBV_EVENT_PORT_ERR, 2)).port, 2);
  EXPECT_EQ(ClassifyAsyncEvent(PortEvent(IBV_EVENT_GID_CHANGE, 1)).event_class, AsyncEventClass::kPortChange);
  EXPECT_EQ(DescribeAsyncEvent(ClassifyAsyncEvent(PortEvent(IBV_EVENT_PORT_ERR, 2)), "mlx5_0"),
            "mlx5_0:2: port error");
  EXPECT_EQ(ClassifyAsyncEvent(PortEvent(IBV_EVENT_DEVICE_FATAL, 0)).event_class,
            AsyncEventClass::kDeviceFatal);
}

TEST(AsyncEvents, OnlyQueuesAndDevicesFail) {
  EXPECT_TRUE(IsFatal(AsyncEventClass::kDeviceFatal));
  EXPECT_TRUE(IsFatal(AsyncEventClass::kQpFatal));
  EXPECT_FALSE(IsFatal(AsyncEventClass::kPortDown));  // a port can come back before the retries end
  EXPECT_FALSE(IsFatal(AsyncEventClass::kQpLastWqe));
  EXPECT_FALSE(IsFatal(AsyncEventClass::kSrqLimit));
}

TEST(AsyncEvents, DrainHandsOverAndAcknowledgesEachInOrder) {
  std::vector<ibv_async_event> pending = {PortEvent(IBV_EVENT_PORT_ERR, 1),
                                          PortEvent(IBV_EVENT_PORT_ACTIVE, 1)};
  size_t next = 0;
  bool interrupted = false;
  std::vector<std::string> trace;
  const AsyncEventSource source{
      .read =
          [&](ibv_async_event* event) {
            errno = EAGAIN;
            if (next == pending.size()) return -1;
            errno = EINTR;
            if (!std::exchange(interrupted, true)) return -1;
            *event = pending[next++];
            return 0;
          },
      .acknowledge =
          [&](ibv_async_event* event) { trace.push_back("ack " + std::to_string(event->event_type)); },
  };
  const Status drained = DrainAsyncEvents(source, "mlx5_0", [&](const AsyncEvent& event) {
    trace.push_back(std::string(AsyncEventName(event.type)));
  });
  EXPECT_TRUE(drained.ok()) << drained.message();
  EXPECT_THAT(trace, ElementsAre("port error", "ack " + std::to_string(IBV_EVENT_PORT_ERR), "port active",
                                 "ack " + std::to_string(IBV_EVENT_PORT_ACTIVE)));
}

TEST(AsyncEvents, ALostDeviceIsAnError) {
  const AsyncEventSource source{.read =
                                    [](ibv_async_event*) {
                                      errno = ENODEV;
                                      return -1;
                                    },
                                .acknowledge = [](ibv_async_event*) { FAIL(); }};
  const Status drained = DrainAsyncEvents(source, "mlx5_0", nullptr);
  EXPECT_EQ(drained.code(), Code::kSystem);
  EXPECT_THAT(drained.message(), HasSubstr("mlx5_0"));
}

TEST(LowerOptions, HalvesInlineThenEntriesAndEnds) {
  QueuePairOptions options{.max_send_wr = 100, .max_recv_wr = 20, .max_inline = 100};
  std::vector<uint32_t> inlines;
  std::vector<uint32_t> sends;
  int steps = 0;
  for (auto next = LowerOptions(options, EINVAL); next; next = LowerOptions(*next, ENOMEM)) {
    if (next->max_inline != options.max_inline) inlines.push_back(next->max_inline);
    if (next->max_send_wr != options.max_send_wr) sends.push_back(next->max_send_wr);
    options = *next;
    ASSERT_LT(++steps, 32);
  }
  EXPECT_THAT(inlines, ElementsAre(50, 25, 16, 0));
  EXPECT_THAT(sends, ElementsAre(50, 25, 16));
  EXPECT_EQ(options.max_recv_wr, 16U);
}

TEST(LowerOptions, DoesNotRetryWhatIsNotAboutSizes) {
  const QueuePairOptions options{.max_send_wr = 100, .max_inline = 100};
  EXPECT_FALSE(LowerOptions(options, EPERM).has_value());
  EXPECT_FALSE(LowerOptions(options, EMFILE).has_value());
  EXPECT_FALSE(LowerOptions({.max_send_wr = 16}, EINVAL).has_value());
  EXPECT_FALSE(LowerOptions({.max_send_wr = 1}, EINVAL).has_value());
}

TEST(QueuePair, EmptyOnesRefuseEverythingWithoutHarm) {
  QueuePair empty;
  EXPECT_FALSE(empty);
  EXPECT_EQ(empty.number(), 0U);
  EXPECT_EQ(empty.ToInit({}).code(), Code::kInvalidUsage);
  EXPECT_EQ(empty.ToRtr({}).code(), Code::kInvalidUsage);
  EXPECT_EQ(empty.ToRts({}).code(), Code::kInvalidUsage);
  EXPECT_EQ(empty.ToError().code(), Code::kInvalidUsage);
  EXPECT_EQ(empty.ToReset().code(), Code::kInvalidUsage);
  EXPECT_EQ(empty.QueryState().status().code(), Code::kInvalidUsage);
  EXPECT_TRUE(empty.Close().ok());
  EXPECT_EQ(QueuePairStateName(IBV_QPS_RTS), "RTS");
}

TEST(FormatRemote, NamesWhatAddressesThePeer) {
  EXPECT_EQ(FormatRemote({.dgid = *ParseGid("10.0.0.2"), .is_global = true}), "GID 10.0.0.2");
  EXPECT_EQ(FormatRemote({.dlid = 7}), "LID 7");
  EXPECT_EQ(FormatRemote({.dgid = *ParseGid("fe80::2"), .dlid = 7, .is_global = true}), "LID 7, GID fe80::2");
}

class CounterTree : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = ::testing::TempDir() + "sluice-counters-XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void Write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = std::filesystem::path(root_) / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::trunc) << text;
  }
  std::string root_;
};

TEST_F(CounterTree, ReadsPortAndDeviceCounters) {
  Write("ports/1/counters/port_xmit_data", "1000\n");
  Write("ports/1/counters/port_rcv_data", "18446744073709551615\n");
  Write("ports/1/hw_counters/np_cnp_sent", "5\n");
  Write("ports/1/hw_counters/lifespan", "12\n");
  Write("ports/1/hw_counters/odd", "N/A\n");
  Write("ports/1/counters/negative", "-1\n");
  Write("ports/2/counters/port_xmit_data", "7\n");
  Write("hw_counters/out_of_sequence", "3\n");
  const PortCounters counters = ReadPortCounters(root_, 1);
  EXPECT_EQ(counters.values().size(), 4U);
  EXPECT_EQ(counters.Get("np_cnp_sent"), 5U);
  EXPECT_EQ(counters.Get("device/out_of_sequence"), 3U);
  EXPECT_EQ(counters.Get("lifespan"), std::nullopt);
  EXPECT_EQ(counters.Get("odd"), std::nullopt);
  EXPECT_EQ(counters.TransmittedBytes(), 4000U);
  EXPECT_EQ(ReadPortCounters(root_, 2).TransmittedBytes(), 28U);
  EXPECT_EQ(ReadPortCounters(root_, 2).ReceivedBytes(), std::nullopt);
}

TEST_F(CounterTree, DifferencesSurviveResetsAndNewCounters) {
  Write("ports/1/counters/a", "10");
  Write("ports/1/counters/b", "100");
  Write("ports/1/counters/wraps", "4294967290");
  Write("ports/1/counters/wide", "4294967297");
  const PortCounters before = ReadPortCounters(root_, 1);
  Write("ports/1/counters/a", "15");
  Write("ports/1/counters/b", "7");
  Write("ports/1/counters/c", "1");
  Write("ports/1/counters/wraps", "4");
  Write("ports/1/counters/wide", "3");
  const PortCounters grown = ReadPortCounters(root_, 1).Since(before);
  EXPECT_EQ(grown.Get("a"), 5U);
  EXPECT_EQ(grown.Get("b"), 7U);
  EXPECT_EQ(grown.Get("c"), 1U);
  EXPECT_EQ(grown.Get("wraps"), 10U);
  EXPECT_EQ(grown.Get("wide"), 3U);  // more than 32 bits: reset
}

TEST_F(CounterTree, DevicesWithoutCountersHaveNone) {
  EXPECT_TRUE(ReadPortCounters(root_, 1).empty());
  EXPECT_TRUE(ReadPortCounters("", 1).empty());
  EXPECT_TRUE(ReadPortCounters("/nonexistent", 1).empty());
}

}  // namespace
}  // namespace sluice
