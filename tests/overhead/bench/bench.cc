#include "tests/overhead/bench/bench.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <algorithm>

namespace {

constexpr long kOpMessages = 8;    // --attr rotate: messages per operation
constexpr double kStuckNs = 10e9;  // no progress for so long: give up
constexpr long kPassesPerClock = 4096;
constexpr int kFirstTag = 100;

double NowNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

uint64_t WordAt(long message, size_t i) {
  return (static_cast<uint64_t>(message) * 131 + i + 1) * 0x9E3779B97F4A7C15ull;
}

char* AllocateZeroed(size_t bytes) {
  char* p = static_cast<char*>(aligned_alloc(4096, bytes));
  if (!p) Die("no memory for a buffer of %zu bytes", bytes);
  memset(p, 0, bytes);
  return p;
}

}  // namespace

Bench::Bench(const Options& options) : options_(options), plugin_(options.plugin, options.abi) {
  if (void* lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD)) {
    const auto get = reinterpret_cast<decltype(&nullverbs_stats)>(dlsym(lib, "nullverbs_stats"));
    if (get) verbs_ = get();
    set_delay_ = reinterpret_cast<decltype(&nullverbs_set_cqe_delay)>(dlsym(lib, "nullverbs_set_cqe_delay"));
  }
}

void Bench::SetUp() {
  for (Rank& r : ranks_) plugin_.Init(&r.ctx, 0x1234);
  const int devices = plugin_.Devices();
  if (devices < options_.devices) Die("the plugin reports %d devices", devices);
  if (options_.group > plugin_.MaxRecvs(0))
    Die("group of %d, but maxRecvs is %d", options_.group, plugin_.MaxRecvs(0));
  connections_.resize(static_cast<size_t>(options_.connections));
  for (size_t i = 0; i < connections_.size(); ++i)
    Open(connections_[i], static_cast<int>(i) % options_.devices);
}

void Bench::TearDown() {
  for (Connection& c : connections_) {
    plugin_.DeregMr(c.send, c.send_mh);
    plugin_.DeregMr(c.recv, c.recv_mh);
    plugin_.CloseSend(c.send);
    plugin_.CloseRecv(c.recv);
    free(c.send_buffer);
    free(c.recv_buffer);
  }
  for (Rank& r : ranks_) plugin_.Finalize(r.ctx);
}

void Bench::Pump(long target) {
  double moved_at_ns = NowNs();
  long last = -1;
  for (long pass = 1;; ++pass) {
    long done = 0, behind = 0;
    for (Connection& c : connections_) {
      ProgressRecv(c);
      ProgressSend(c);
      behind += c.send_done < target || c.received * options_.group < target;
      done += c.send_done + c.received;
    }
    if (!behind) return;
    if (pass % kPassesPerClock) continue;
    if (done == last && NowNs() - moved_at_ns > kStuckNs) Die("no completion for 10 s");
    if (done != last) {
      last = done;
      moved_at_ns = NowNs();
    }
  }
}

void Bench::Drain() {
  long most = 0;
  for (const Connection& c : connections_) most = std::max(most, c.posted);
  limit_ = most;
  Pump(limit_ * options_.group);
}

void Bench::PostReceives() {
  while (connections_[0].posted - connections_[0].received < kSlots) Post(connections_[0]);
}

void Bench::SendOne() {
  if (!TrySend(connections_[0])) Die("isend refused although a receive is posted");
}

void Bench::HoldCompletions(bool hold) {
  if (!set_delay_) Die("this phase needs the fake verbs library");
  set_delay_(hold ? INT32_MAX : 0);
}

void Bench::RefusedSends(long n) {
  for (long i = 0; i < n; ++i) {
    if (TrySend(connections_[0])) Die("isend accepted without a posted receive");
  }
}

void Bench::EmptyTests(bool send, long n) {
  Connection& c = connections_[0];
  int sizes[64];
  void* request =
      send ? c.send_requests[c.send_done % (kSlots * kMaxGroup)] : c.recv_requests[c.received % kSlots];
  for (long i = 0; i < n; ++i) {
    if (send ? plugin_.TestSend(request, sizes) : plugin_.TestRecv(request, sizes))
      Die("test completed early");
    ++(send ? calls.test_send : calls.test_recv);
    ++(send ? calls.empty_send : calls.empty_recv);
  }
}

void Bench::Open(Connection& c, int dev) {
  plugin_.Listen(ranks_[1].ctx, dev, c.handle, &c.listen);
  while (!c.send || !c.recv) {
    if (!c.send) plugin_.Connect(ranks_[0].ctx, dev, c.handle, &c.send);
    if (!c.recv) plugin_.Accept(c.listen, &c.recv);
  }
  plugin_.CloseListen(c.listen);
  const size_t slots = static_cast<size_t>(kSlots) * static_cast<size_t>(options_.group);
  const size_t bytes = std::max<size_t>((slots * Stride() + 4095) & ~size_t{4095}, 4096);
  c.send_buffer = AllocateZeroed(bytes);
  c.recv_buffer = AllocateZeroed(bytes);
  c.send_mh = plugin_.RegMr(c.send, c.send_buffer, bytes);
  c.recv_mh = plugin_.RegMr(c.recv, c.recv_buffer, bytes);
}

void Bench::Announce(Rank& rank, long message) {
  if (options_.attr == "off") return;
  const long op = options_.attr == "rotate" ? message / kOpMessages : 0;
  if (op == rank.attr_op) return;
  rank.attr_op = op;
  static const uint32_t kFunctions[] = {1u << 4, 1u << 2, 1u << 3,
                                        1u << 8};  // AllReduce AllGather ReduceScatter AlltoAll
  net_abi::NetAttr a = {{1, 1, 1, 1}, {1, 1, 1, 1}, kFunctions[op % 4], 1u << (1 + op % 2), 1u << (op % 3)};
  plugin_.SetAttr(rank.ctx, &a);
  ++calls.attr;
}

void Bench::Post(Connection& c) {
  void *data[kMaxGroup], *mhandles[kMaxGroup], *phandles[kMaxGroup];
  size_t sizes[kMaxGroup];
  int tags[kMaxGroup];
  for (int i = 0; i < options_.group; ++i) {
    data[i] = c.recv_buffer + Offset(c.posted * options_.group + i);
    sizes[i] = options_.size;
    tags[i] = kFirstTag + i;
    mhandles[i] = c.recv_mh;
    phandles[i] = &phandle_;
  }
  void*& request = c.recv_requests[c.posted % kSlots];
  request = options_.optional_recv && options_.group == 1 ? reinterpret_cast<void*>(1) : nullptr;
  Announce(ranks_[1], c.posted * options_.group);
  plugin_.Irecv(c.recv, options_.group, data, sizes, tags, mhandles, phandles, &request);
  ++calls.irecv;
  if (request) ++c.posted;
}

bool Bench::TrySend(Connection& c) {
  char* data = c.send_buffer + Offset(c.sent);
  if (options_.verify) Fill(data, c.sent);
  void* request = nullptr;
  Announce(ranks_[0], c.sent);
  const int tag = kFirstTag + static_cast<int>(c.sent % options_.group);
  plugin_.Isend(c.send, data, options_.size, tag, c.send_mh, &phandle_, &request);
  ++calls.isend;
  if (!request) {
    ++calls.refused;
    return false;
  }
  c.send_requests[c.sent++ % (kSlots * kMaxGroup)] = request;
  return true;
}

void Bench::ProgressSend(Connection& c) {
  const bool more = limit_ < 0 || c.sent < limit_ * options_.group;
  if (more && c.sent - c.send_done < options_.depth * options_.group && TrySend(c)) return;
  if (c.send_done == c.sent) return;
  int size = -1;
  ++calls.test_send;
  if (!plugin_.TestSend(c.send_requests[c.send_done % (kSlots * kMaxGroup)], &size)) {
    ++calls.empty_send;
    return;
  }
  if (options_.verify && size != static_cast<int>(options_.size))
    Die("send of %zu bytes reported %d", options_.size, size);
  ++c.send_done;
}

void Bench::ProgressRecv(Connection& c) {
  if ((limit_ < 0 || c.posted < limit_) && c.posted - c.received < kSlots) {
    Post(c);
    return;
  }
  if (c.received == c.posted) return;
  int sizes[64] = {};
  void* request = c.recv_requests[c.received % kSlots];
  ++calls.test_recv;
  if (!plugin_.TestRecv(request, sizes)) {
    ++calls.empty_recv;
    return;
  }
  for (int i = 0; options_.verify && i < options_.group; ++i) {
    const long message = c.received * options_.group + i;
    if (sizes[i] != static_cast<int>(options_.size)) {
      Die("message %ld: %d bytes instead of %zu", message, sizes[i], options_.size);
    }
    CheckPayload(c.recv_buffer + Offset(message), message);
  }
  plugin_.Consumed(c.recv, options_.group, request);
  ++c.received;
}

void Bench::Fill(char* p, long message) const {
  for (size_t i = 0; i < options_.size; i += 8) {
    const uint64_t word = WordAt(message, i);
    memcpy(p + i, &word, std::min(options_.size - i, sizeof word));
  }
}

void Bench::CheckPayload(char* p, long message) const {
  for (size_t i = 0; i < options_.size; i += 8) {
    const uint64_t word = WordAt(message, i);
    if (memcmp(p + i, &word, std::min(options_.size - i, sizeof word)))
      Die("message %ld differs near byte %zu", message, i);
  }
  memset(p, 0, options_.size);
}
