// Every version table over a fake typed layer: arguments, outputs, errors, log lines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "plugin/log.h"
#include "tests/abi/fake_net.h"
#include "tests/abi/versions.h"

namespace sluice {
namespace {

using nccl::NcclResult;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Line {
  int level;
  std::string text;
};
std::vector<Line> g_lines;

void Record(int level, unsigned long /*flags*/, const char* /*file*/, int /*line*/, const char* format, ...) {
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  g_lines.push_back({level, text});
}

std::vector<std::string> LinesOf(int level) {
  std::vector<std::string> texts;
  for (const Line& line : g_lines) {
    if (line.level == level) texts.push_back(line.text);
  }
  return texts;
}

template <typename V>
class TablesTest : public testing::Test {
 protected:
  void SetUp() override {
    fake::Reset();
    g_lines.clear();
    ASSERT_EQ(V::Init(&ctx_, nullptr, &Record), nccl::kSuccess);
    std::byte handle[nccl::kNetHandleBytes];
    ASSERT_EQ(V::Listen(ctx_, 1, handle, &listen_), nccl::kSuccess);
    ASSERT_EQ(V::Connect(ctx_, 1, handle, &send_, nullptr), nccl::kSuccess);
    ASSERT_EQ(V::net().accept(listen_, &recv_, nullptr), nccl::kSuccess);
    fake::Get().last_call.clear();
  }

  fake::State& fake() { return fake::Get(); }

  void* ctx_ = nullptr;
  void* listen_ = nullptr;
  void* send_ = nullptr;
  void* recv_ = nullptr;
  void* const junk_ = reinterpret_cast<void*>(0x1);  // what NCCL leaves in an output
};

TYPED_TEST_SUITE(TablesTest, Versions);

TYPED_TEST(TablesTest, EveryMemberIsThere) {
  const auto& net = TypeParam::net();
  EXPECT_STREQ(net.name, "Sluice");
  // Behind the name only function pointers: all set, but for the two that NCCL asks before it calls.
  const auto* words = reinterpret_cast<void* const*>(&net);
  for (size_t i = 0; i < sizeof(net) / sizeof(void*); ++i) {
    const size_t offset = i * sizeof(void*);
    const bool optional = offset == offsetof(typename TypeParam::Table, getDeviceMr) ||
                          offset == offsetof(typename TypeParam::Table, irecvConsumed);
    EXPECT_EQ(words[i] == nullptr, optional) << "member " << i;
  }
}

TYPED_TEST(TablesTest, PropertiesAreFilledToTheLastByte) {
  using Properties = typename TypeParam::Properties;
  auto& from = this->fake().properties;
  from = {"sluice0",
          "/sys/devices/pci0000:00/0000:81:00.0",
          0x1122334455667788,
          true,
          true,
          true,
          400000,
          1,
          2.5f,
          65536,
          3,
          1 << 30,
          1 << 29,
          3,
          {4, 5, 6}};
  Properties to[2];
  // Two fills over different poison agree where the structure has members.
  for (int i = 0; i < 2; ++i) {
    std::memset(&to[i], i == 0 ? 0xab : 0x54, sizeof(to[i]));
    ASSERT_EQ(TypeParam::net().getProperties(1, &to[i]), nccl::kSuccess);
  }
  EXPECT_EQ(this->fake().device, 1);
  EXPECT_STREQ(to[0].name, "sluice0");
  EXPECT_STREQ(to[0].pciPath, "/sys/devices/pci0000:00/0000:81:00.0");
  EXPECT_EQ(to[0].guid, 0x1122334455667788u);
  EXPECT_EQ(to[0].ptrSupport, nccl::kPtrHost | nccl::kPtrCuda | nccl::kPtrDmaBuf);
  EXPECT_EQ(to[0].speed, 400000);
  EXPECT_EQ(to[0].port, 1);
  EXPECT_EQ(to[0].latency, 2.5f);
  EXPECT_EQ(to[0].maxComms, 65536);
  EXPECT_EQ(to[0].maxRecvs, 3);
  EXPECT_EQ(to[0].netDeviceType, nccl::kNetDeviceHost);
  EXPECT_EQ(to[0].netDeviceVersion, 0);
  size_t differing = 0;
  for (size_t i = 0; i < sizeof(Properties); ++i) {
    differing += reinterpret_cast<const char*>(&to[0])[i] != reinterpret_cast<const char*>(&to[1])[i];
  }
  size_t padding = 0;
  if constexpr (TypeParam::kNumber == 8) padding = 4;
  if constexpr (TypeParam::kNumber >= 8) {
    EXPECT_EQ(to[0].regIsGlobal, 0);
  }
  if constexpr (TypeParam::kNumber >= 9) {
    padding = 4;
    EXPECT_EQ(to[0].forceFlush, 1);
    EXPECT_EQ(to[0].vProps.ndevs, 3);
    EXPECT_EQ(to[0].vProps.devs[0], 4);
    EXPECT_EQ(to[0].vProps.devs[2], 6);
    EXPECT_EQ(to[0].vProps.devs[3], -1);
    EXPECT_EQ(to[0].maxP2pBytes, 1u << 30);
    EXPECT_EQ(to[0].maxCollBytes, 1u << 29);
  }
  if constexpr (TypeParam::kNumber == 11) padding = 8;
  if constexpr (TypeParam::kNumber >= 11) {
    EXPECT_EQ(to[0].maxMultiRequestSize, 1);
  }
  if constexpr (TypeParam::kNumber == 12) {
    EXPECT_EQ(to[0].vProps.devs[7], -1);
    EXPECT_EQ(to[0].railId, -1);
    EXPECT_EQ(to[0].planeId, -1);
  }
  EXPECT_EQ(differing, padding);
  EXPECT_EQ(TypeParam::net().getProperties(1, nullptr), nccl::kInvalidArgument);
}

TYPED_TEST(TablesTest, MoreMembersThanTheVersionCanName) {
  if constexpr (TypeParam::kNumber >= 9) {
    typename TypeParam::Properties to;
    constexpr int kMax = decltype(to.vProps)::kMaxDevices;
    this->fake().properties.member_count = kMaxMergedPorts;
    EXPECT_EQ(TypeParam::net().getProperties(0, &to),
              kMax == kMaxMergedPorts ? nccl::kSuccess : nccl::kInvalidArgument);
    int dev = -1;
    decltype(to.vProps) merge;
    merge.ndevs = kMax;
    for (int i = 0; i < kMax; ++i) merge.devs[i] = i;
    ASSERT_EQ(TypeParam::net().makeVDevice(&dev, &merge), nccl::kSuccess);
    EXPECT_EQ(dev, 7);
    EXPECT_EQ(this->fake().max_members, kMax);
    EXPECT_EQ(this->fake().members.size(), static_cast<size_t>(kMax));
    for (const int bad : {0, -1, kMax + 1}) {
      merge.ndevs = bad;
      EXPECT_EQ(TypeParam::net().makeVDevice(&dev, &merge), nccl::kInvalidArgument);
    }
    merge.ndevs = 1;
    EXPECT_EQ(TypeParam::net().makeVDevice(nullptr, &merge), nccl::kInvalidArgument);
    EXPECT_EQ(TypeParam::net().makeVDevice(&dev, nullptr), nccl::kInvalidArgument);
    // NCCL tries merges and copes with a refusal: no warning.
    g_lines.clear();
    this->fake().error =
        InvalidUsage("ports of different link layers; " + std::to_string(TypeParam::kNumber));
    EXPECT_EQ(TypeParam::net().makeVDevice(&dev, &merge), nccl::kInvalidUsage);
    EXPECT_THAT(LinesOf(nccl::kLogWarn), IsEmpty());
    EXPECT_THAT(LinesOf(nccl::kLogInfo), ElementsAre(HasSubstr("link layers")));
  }
}

TYPED_TEST(TablesTest, Isend) {
  char data[8];
  int phandle = 0;
  void* request = this->junk_;
  EXPECT_EQ(TypeParam::Isend(this->send_, data, 8, 3, this->fake().memory, &phandle, &request),
            nccl::kSuccess);
  EXPECT_EQ(request, &this->fake().request);
  EXPECT_EQ(this->fake().object, &this->fake().send);
  EXPECT_EQ(this->fake().data, data);
  EXPECT_EQ(this->fake().bytes, 8u);
  EXPECT_EQ(this->fake().tag, 3);
  EXPECT_EQ(static_cast<const void*>(this->fake().handle), this->fake().memory);
  EXPECT_EQ(this->fake().phandle, TypeParam::kNumber >= 10 ? &phandle : nullptr);

  this->fake().again = true;
  request = this->junk_;
  EXPECT_EQ(TypeParam::Isend(this->send_, data, 0, 3, nullptr, nullptr, &request), nccl::kSuccess);
  EXPECT_EQ(request, nullptr);
  EXPECT_EQ(this->fake().bytes, 0u);
  EXPECT_EQ(TypeParam::Isend(this->send_, data, INT_MAX, 3, nullptr, nullptr, &request), nccl::kSuccess);
  EXPECT_EQ(this->fake().bytes, static_cast<size_t>(INT_MAX));

  this->fake().last_call.clear();
  for (void* const wrong : {static_cast<void*>(nullptr), this->recv_, this->listen_}) {
    request = this->junk_;
    EXPECT_EQ(TypeParam::Isend(wrong, data, 8, 3, nullptr, nullptr, &request), nccl::kInvalidArgument);
    EXPECT_EQ(request, nullptr);
  }
  EXPECT_EQ(TypeParam::Isend(this->send_, data, 8, 3, nullptr, nullptr, nullptr), nccl::kInvalidArgument);
  std::vector<typename TypeParam::Size> bad_sizes = {static_cast<typename TypeParam::Size>(-1),
                                                     static_cast<typename TypeParam::Size>(INT_MIN)};
  if constexpr (!TypeParam::kIntSizes) bad_sizes.push_back(size_t{1} << 31);
  for (const auto bad : bad_sizes) {
    request = this->junk_;
    EXPECT_EQ(TypeParam::Isend(this->send_, data, bad, 3, nullptr, nullptr, &request),
              nccl::kInvalidArgument);
    EXPECT_EQ(request, nullptr);
  }
  EXPECT_EQ(this->fake().last_call, "");

  this->fake().error = RemoteError("the peer is gone");
  request = this->junk_;
  EXPECT_EQ(TypeParam::Isend(this->send_, data, 8, 3, nullptr, nullptr, &request), nccl::kRemoteError);
  EXPECT_EQ(request, nullptr);
}

TYPED_TEST(TablesTest, Irecv) {
  char data[8][4];
  void* pointers[9];
  typename TypeParam::Size sizes[9];
  int tags[9];
  void* mhandles[9];
  for (int i = 0; i < 9; ++i) {
    pointers[i] = data[i % 8];
    sizes[i] = static_cast<typename TypeParam::Size>(100 + i);
    tags[i] = 10 + i;
    mhandles[i] = this->fake().memory + i;
  }
  for (const int n : {1, 2, 8}) {
    void* request = nccl::OptionalReceiveCompletion();
    EXPECT_EQ(TypeParam::Irecv(this->recv_, n, pointers, sizes, tags, mhandles, &request), nccl::kSuccess);
    EXPECT_EQ(request, &this->fake().request);
    EXPECT_EQ(this->fake().object, &this->fake().recv);
    ASSERT_EQ(this->fake().buffers.size(), static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) {
      const ReceiveBuffer& buffer = this->fake().buffers[static_cast<size_t>(i)];
      EXPECT_EQ(buffer.data, pointers[i]);
      EXPECT_EQ(buffer.bytes, static_cast<size_t>(100 + i));
      EXPECT_EQ(buffer.tag, 10 + i);
      EXPECT_EQ(static_cast<void*>(buffer.memory), mhandles[i]);
    }
  }
  // Refused over LL's marker: NCCL must not take 0x1 for a request.
  this->fake().again = true;
  void* request = nccl::OptionalReceiveCompletion();
  EXPECT_EQ(TypeParam::Irecv(this->recv_, 1, pointers, sizes, tags, mhandles, &request), nccl::kSuccess);
  EXPECT_EQ(request, nullptr);

  this->fake().last_call.clear();
  const auto refused = [&](void* comm, int n, void** p, typename TypeParam::Size* s, int* t, void** m) {
    request = nccl::OptionalReceiveCompletion();
    EXPECT_EQ(TypeParam::Irecv(comm, n, p, s, t, m, &request), nccl::kInvalidArgument);
    EXPECT_EQ(request, nullptr);
  };
  for (const int n : {0, -1, 9, INT_MIN, INT_MAX}) refused(this->recv_, n, pointers, sizes, tags, mhandles);
  refused(nullptr, 1, pointers, sizes, tags, mhandles);
  refused(this->send_, 1, pointers, sizes, tags, mhandles);
  refused(this->recv_, 1, nullptr, sizes, tags, mhandles);
  refused(this->recv_, 1, pointers, nullptr, tags, mhandles);
  refused(this->recv_, 1, pointers, sizes, nullptr, mhandles);
  refused(this->recv_, 1, pointers, sizes, tags, nullptr);
  EXPECT_EQ(TypeParam::Irecv(this->recv_, 1, pointers, sizes, tags, mhandles, nullptr),
            nccl::kInvalidArgument);
  sizes[1] = static_cast<typename TypeParam::Size>(-1);
  refused(this->recv_, 2, pointers, sizes, tags, mhandles);
  EXPECT_EQ(this->fake().last_call, "");

  this->fake().error = SystemError("no memory");
  request = nccl::OptionalReceiveCompletion();
  EXPECT_EQ(TypeParam::Irecv(this->recv_, 1, pointers, sizes, tags, mhandles, &request), nccl::kSystemError);
  EXPECT_EQ(request, nullptr);
}

TYPED_TEST(TablesTest, Iflush) {
  char data[4];
  void* pointers[] = {data, data};
  int sizes[] = {4, 2};
  void* mhandles[] = {this->fake().memory, nullptr};
  const auto& net = TypeParam::net();
  void* request = this->junk_;
  EXPECT_EQ(net.iflush(this->recv_, 2, pointers, sizes, mhandles, &request), nccl::kSuccess);
  EXPECT_EQ(request, &this->fake().request);
  ASSERT_EQ(this->fake().buffers.size(), 2u);
  EXPECT_EQ(this->fake().buffers[1].bytes, 2u);
  this->fake().again = true;  // nothing to flush: for NCCL no request means done
  request = this->junk_;
  EXPECT_EQ(net.iflush(this->recv_, 1, pointers, sizes, mhandles, &request), nccl::kSuccess);
  EXPECT_EQ(request, nullptr);
  sizes[0] = -4;
  EXPECT_EQ(net.iflush(this->recv_, 1, pointers, sizes, mhandles, &request), nccl::kInvalidArgument);
  sizes[0] = 4;
  EXPECT_EQ(net.iflush(this->recv_, 9, pointers, sizes, mhandles, &request), nccl::kInvalidArgument);
  EXPECT_EQ(net.iflush(this->send_, 1, pointers, sizes, mhandles, &request), nccl::kInvalidArgument);
  EXPECT_EQ(net.iflush(this->recv_, 1, nullptr, sizes, mhandles, &request), nccl::kInvalidArgument);
  EXPECT_EQ(net.iflush(this->recv_, 1, pointers, nullptr, mhandles, &request), nccl::kInvalidArgument);
  EXPECT_EQ(net.iflush(this->recv_, 1, pointers, sizes, nullptr, &request), nccl::kInvalidArgument);
  EXPECT_EQ(net.iflush(this->recv_, 1, pointers, sizes, mhandles, nullptr), nccl::kInvalidArgument);
}

TYPED_TEST(TablesTest, Test) {
  const auto& net = TypeParam::net();
  void* const request = &this->fake().request;
  int done = 5;
  int sizes[4] = {9, 9, 9, 9};
  EXPECT_EQ(net.test(request, &done, sizes), nccl::kSuccess);
  EXPECT_EQ(done, 0);
  EXPECT_THAT(sizes, ElementsAre(9, 9, 9, 9));
  this->fake().test = {true, nullptr};
  this->fake().test_sizes = {64, 0};
  EXPECT_EQ(net.test(request, &done, sizes), nccl::kSuccess);
  EXPECT_EQ(done, 1);
  EXPECT_THAT(sizes, ElementsAre(64, 0, 9, 9));
  EXPECT_EQ(net.test(request, &done, nullptr), nccl::kSuccess);
  EXPECT_EQ(this->fake().sizes, nullptr);
  EXPECT_EQ(done, 1);
  EXPECT_EQ(net.test(nullptr, &done, sizes), nccl::kInvalidArgument);
  EXPECT_EQ(done, 0);
  EXPECT_EQ(net.test(request, nullptr, sizes), nccl::kInvalidArgument);
  this->fake().error = RemoteError("completion with error 12");
  done = 1;
  EXPECT_EQ(net.test(request, &done, sizes), nccl::kRemoteError);
  EXPECT_EQ(done, 0);
}

TYPED_TEST(TablesTest, ConnectAndAcceptMayBeCalledAgain) {
  std::byte handle[nccl::kNetHandleBytes];
  this->fake().again = true;
  void* comm = this->junk_;
  auto* device_handle = static_cast<nccl::NetDeviceHandle*>(this->junk_);
  EXPECT_EQ(TypeParam::Connect(this->ctx_, 1, handle, &comm, &device_handle), nccl::kSuccess);
  EXPECT_EQ(comm, nullptr);
  EXPECT_EQ(device_handle, nullptr);
  EXPECT_EQ(this->fake().data, handle);  // the same memory on every attempt
  EXPECT_EQ(this->fake().object, TypeParam::kPerCommunicator ? &this->fake().context : &this->fake().global);
  comm = this->junk_;
  device_handle = static_cast<nccl::NetDeviceHandle*>(this->junk_);
  EXPECT_EQ(TypeParam::net().accept(this->listen_, &comm, &device_handle), nccl::kSuccess);
  EXPECT_EQ(comm, nullptr);
  EXPECT_EQ(device_handle, nullptr);
  EXPECT_EQ(this->fake().object, &this->fake().listener);

  this->fake().last_call.clear();
  comm = this->junk_;
  EXPECT_EQ(TypeParam::Connect(this->ctx_, 1, nullptr, &comm, nullptr), nccl::kInvalidArgument);
  EXPECT_EQ(comm, nullptr);
  EXPECT_EQ(TypeParam::Connect(this->ctx_, 1, handle, nullptr, nullptr), nccl::kInvalidArgument);
  EXPECT_EQ(TypeParam::Listen(this->ctx_, 1, nullptr, &comm), nccl::kInvalidArgument);
  EXPECT_EQ(TypeParam::Listen(this->ctx_, 1, handle, nullptr), nccl::kInvalidArgument);
  if constexpr (TypeParam::kPerCommunicator) {
    EXPECT_EQ(TypeParam::Connect(nullptr, 1, handle, &comm, nullptr), nccl::kInvalidArgument);
    EXPECT_EQ(TypeParam::Listen(nullptr, 1, handle, &comm), nccl::kInvalidArgument);
  }
  for (void* const wrong : {static_cast<void*>(nullptr), this->send_, this->recv_}) {
    comm = this->junk_;
    EXPECT_EQ(TypeParam::net().accept(wrong, &comm, nullptr), nccl::kInvalidArgument);
    EXPECT_EQ(comm, nullptr);
  }
  EXPECT_EQ(TypeParam::net().accept(this->listen_, nullptr, nullptr), nccl::kInvalidArgument);
  EXPECT_EQ(this->fake().last_call, "");
}

TYPED_TEST(TablesTest, TrafficClassOfTheCommunicator) {
  nccl::NetCommConfig config{106};
  if constexpr (TypeParam::kPerCommunicator) {
    void* ctx = nullptr;
    ASSERT_EQ(TypeParam::Init(&ctx, &config, &Record), nccl::kSuccess);
    EXPECT_EQ(ctx, &this->fake().context);
    EXPECT_EQ(this->fake().traffic_class, 106);
    ASSERT_EQ(TypeParam::Init(&ctx, nullptr, &Record), nccl::kSuccess);
    EXPECT_EQ(this->fake().traffic_class, -1);
    EXPECT_EQ(TypeParam::Init(nullptr, &config, &Record), nccl::kInvalidArgument);
  } else {
    std::byte handle[nccl::kNetHandleBytes];
    void* comm = nullptr;
    ASSERT_EQ(TypeParam::Connect(nullptr, 1, handle, &comm, nullptr, &config), nccl::kSuccess);
    EXPECT_EQ(this->fake().traffic_class, TypeParam::kNumber == 10 ? std::optional<int>(106) : std::nullopt);
  }
}

TYPED_TEST(TablesTest, RegMrServesBothDirections) {
  const auto& net = TypeParam::net();
  char data[64];
  void* mhandle = this->junk_;
  EXPECT_EQ(net.regMr(this->send_, data, 64, nccl::kPtrHost, &mhandle), nccl::kSuccess);
  EXPECT_EQ(mhandle, this->fake().memory);
  EXPECT_EQ(this->fake().last_call, "SendComm::RegMr");
  EXPECT_EQ(this->fake().object, &this->fake().send);
  EXPECT_EQ(net.regMr(this->recv_, data, 64, nccl::kPtrCuda, &mhandle), nccl::kSuccess);
  EXPECT_EQ(this->fake().last_call, "RecvComm::RegMr");
  EXPECT_EQ(this->fake().object, &this->fake().recv);
  EXPECT_EQ(this->fake().kind, MemoryKind::kCuda);
  EXPECT_EQ(net.regMrDmaBuf(this->recv_, data, 64, nccl::kPtrCuda, 4096, 17, &mhandle), nccl::kSuccess);
  EXPECT_EQ(this->fake().last_call, "RecvComm::RegMrDmaBuf");
  EXPECT_EQ(this->fake().offset, 4096u);
  EXPECT_EQ(this->fake().fd, 17);
  EXPECT_EQ(net.deregMr(this->send_, mhandle), nccl::kSuccess);
  EXPECT_EQ(this->fake().last_call, "SendComm::DeregMr");
  EXPECT_EQ(net.deregMr(this->recv_, mhandle), nccl::kSuccess);
  EXPECT_EQ(this->fake().last_call, "RecvComm::DeregMr");

  this->fake().last_call.clear();
  EXPECT_EQ(net.deregMr(this->send_, nullptr), nccl::kSuccess);
  mhandle = this->junk_;
  EXPECT_EQ(net.regMr(this->listen_, data, 64, nccl::kPtrHost, &mhandle), nccl::kInvalidArgument);
  EXPECT_EQ(mhandle, nullptr);
  EXPECT_EQ(net.regMr(nullptr, data, 64, nccl::kPtrHost, &mhandle), nccl::kInvalidArgument);
  EXPECT_EQ(net.regMr(this->send_, data, 64, nccl::kPtrHost, nullptr), nccl::kInvalidArgument);
  EXPECT_EQ(net.regMr(this->send_, data, 64, 3, &mhandle), nccl::kInvalidArgument);
  EXPECT_EQ(net.deregMr(nullptr, this->fake().memory), nccl::kInvalidArgument);
  if constexpr (TypeParam::kNumber == 7) {
    EXPECT_EQ(net.regMr(this->send_, data, -1, nccl::kPtrHost, &mhandle), nccl::kInvalidArgument);
  }
  EXPECT_EQ(this->fake().last_call, "");
  this->fake().error = SystemError("ibv_reg_mr: Cannot allocate memory");
  mhandle = this->junk_;
  EXPECT_EQ(net.regMr(this->send_, data, 64, nccl::kPtrHost, &mhandle), nccl::kSystemError);
  EXPECT_EQ(mhandle, nullptr);
}

TYPED_TEST(TablesTest, CloseOfNothingSucceeds) {
  const auto& net = TypeParam::net();
  EXPECT_EQ(net.closeSend(nullptr), nccl::kSuccess);
  EXPECT_EQ(net.closeRecv(nullptr), nccl::kSuccess);
  EXPECT_EQ(net.closeListen(nullptr), nccl::kSuccess);
  EXPECT_EQ(net.closeSend(this->recv_), nccl::kInvalidArgument);
  EXPECT_EQ(net.closeRecv(this->listen_), nccl::kInvalidArgument);
  EXPECT_EQ(net.closeListen(this->send_), nccl::kInvalidArgument);
  EXPECT_EQ(this->fake().last_call, "");
  EXPECT_EQ(net.closeSend(this->send_), nccl::kSuccess);
  EXPECT_EQ(this->fake().object, &this->fake().send);
  EXPECT_EQ(net.closeRecv(this->recv_), nccl::kSuccess);
  EXPECT_EQ(net.closeListen(this->listen_), nccl::kSuccess);
  EXPECT_EQ(this->fake().last_call, "ListenComm::Close");
}

TYPED_TEST(TablesTest, EveryCodeHasItsResult) {
  const std::vector<std::pair<Status, NcclResult>> cases = {{InvalidArgument("a"), nccl::kInvalidArgument},
                                                            {InvalidUsage("b"), nccl::kInvalidUsage},
                                                            {SystemError("c"), nccl::kSystemError},
                                                            {InternalError("d"), nccl::kInternalError},
                                                            {RemoteError("e"), nccl::kRemoteError}};
  for (const auto& [status, result] : cases) {
    this->fake().error = status;
    EXPECT_EQ(TypeParam::net().closeSend(this->send_), result) << status.message();
    int count = -1;
    EXPECT_EQ(TypeParam::net().devices(&count), result);
    EXPECT_EQ(count, 0);
  }
}

TYPED_TEST(TablesTest, OneErrorIsLoggedOnce) {
  this->fake().error = RemoteError("the peer of version " + std::to_string(TypeParam::kNumber) + " is gone");
  const Status first = this->fake().error;
  g_lines.clear();
  int done = 0;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(TypeParam::net().test(&this->fake().request, &done, nullptr), nccl::kRemoteError);
  }
  EXPECT_THAT(LinesOf(nccl::kLogWarn), ElementsAre(HasSubstr("is gone")));
  // The same words about another object are another error. `first` keeps the storage of the other one apart.
  this->fake().error = RemoteError(first.message());
  EXPECT_EQ(TypeParam::net().test(&this->fake().request, &done, nullptr), nccl::kRemoteError);
  EXPECT_EQ(LinesOf(nccl::kLogWarn).size(), 2u);
}

TYPED_TEST(TablesTest, HostWithoutDevices) {
  this->fake().device_count = 0;
  g_lines.clear();
  void* ctx = nullptr;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(TypeParam::Init(&ctx, nullptr, &Record),
              TypeParam::kPerCommunicator ? nccl::kSuccess : nccl::kInternalError);
  }
  EXPECT_THAT(LinesOf(nccl::kLogWarn), IsEmpty());
  int count = -1;
  EXPECT_EQ(TypeParam::net().devices(&count), nccl::kSuccess);
  EXPECT_EQ(count, 0);
  if constexpr (!TypeParam::kPerCommunicator) {
    EXPECT_THAT(LinesOf(nccl::kLogInfo), testing::Contains(HasSubstr("no usable RDMA device")));
  }
  this->fake().device_count = 1;  // as after a hot plug: an earlier failure leaves nothing behind
  EXPECT_EQ(TypeParam::Init(&ctx, nullptr, &Record), nccl::kSuccess);
  EXPECT_EQ(TypeParam::net().devices(nullptr), nccl::kInvalidArgument);
}

TYPED_TEST(TablesTest, FailedInitHandsOutNoContext) {
  this->fake().error = InvalidArgument("NCCL_IB_TIMEOUT=99 is out of range 1..31");
  void* ctx = this->junk_;
  EXPECT_EQ(TypeParam::Init(&ctx, nullptr, &Record), nccl::kInvalidArgument);
  if constexpr (TypeParam::kPerCommunicator) {
    EXPECT_EQ(ctx, nullptr);
  }
}

TYPED_TEST(TablesTest, ExceptionsStayInside) {
  this->fake().out_of_memory = true;
  std::byte handle[nccl::kNetHandleBytes];
  void* out = this->junk_;
  EXPECT_EQ(TypeParam::Init(&out, nullptr, &Record), nccl::kSystemError);
  out = this->junk_;
  EXPECT_EQ(TypeParam::Listen(this->ctx_, 0, handle, &out), nccl::kSystemError);
  EXPECT_EQ(out, nullptr);
  out = this->junk_;
  EXPECT_EQ(TypeParam::net().regMr(this->send_, handle, sizeof(handle), nccl::kPtrHost, &out),
            nccl::kSystemError);
  EXPECT_EQ(out, nullptr);
  typename TypeParam::Properties properties;
  EXPECT_EQ(TypeParam::net().getProperties(0, &properties), nccl::kSystemError);
  int count = -1;
  EXPECT_EQ(TypeParam::net().devices(&count), nccl::kSystemError);
  EXPECT_EQ(count, 0);
  EXPECT_THAT(LinesOf(nccl::kLogWarn), testing::Contains(HasSubstr("listen: std::bad_alloc")));
}

TYPED_TEST(TablesTest, FinalizeAndAttributes) {
  if constexpr (TypeParam::kPerCommunicator) {
    nccl::NetAttr attributes{{4, 3, 2, 1}, {8, 7, 6, 5}, 0x10, 0x2, 0x4};
    ASSERT_EQ(TypeParam::net().setNetAttr(this->ctx_, &attributes), nccl::kSuccess);
    const NetAttributes& seen = this->fake().attributes;
    EXPECT_EQ(std::tie(seen.op, seen.algo, seen.proto, seen.max_peers, seen.max_flows_per_peer),
              std::make_tuple(0x10u, 0x2u, 0x4u, 4, 2));
    EXPECT_EQ(TypeParam::net().setNetAttr(nullptr, &attributes), nccl::kInvalidArgument);
    EXPECT_EQ(TypeParam::net().setNetAttr(this->ctx_, nullptr), nccl::kInvalidArgument);
    EXPECT_EQ(TypeParam::net().finalize(nullptr), nccl::kInvalidArgument);
    EXPECT_EQ(this->fake().finalized, 0);
    EXPECT_EQ(TypeParam::net().finalize(this->ctx_), nccl::kSuccess);
    EXPECT_EQ(this->fake().finalized, 1);
  }
}

}  // namespace
}  // namespace sluice
