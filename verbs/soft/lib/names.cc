// Names of enumerators, link rates, fork support and address handles: the parts of verbs without a device.
#include <infiniband/verbs.h>

#include <cerrno>
#include <cstring>
#include <iterator>

#include "verbs/soft/lib/objects.h"

namespace {

struct Rate {
  ibv_rate rate;
  int multiple;  // of 2.5 Gb/s; -1: not a whole one
  int mbps;
};
constexpr Rate kRates[] = {
    {IBV_RATE_2_5_GBPS, 1, 2500},     {IBV_RATE_5_GBPS, 2, 5000},         {IBV_RATE_10_GBPS, 4, 10000},
    {IBV_RATE_20_GBPS, 8, 20000},     {IBV_RATE_30_GBPS, 12, 30000},      {IBV_RATE_40_GBPS, 16, 40000},
    {IBV_RATE_60_GBPS, 24, 60000},    {IBV_RATE_80_GBPS, 32, 80000},      {IBV_RATE_120_GBPS, 48, 120000},
    {IBV_RATE_14_GBPS, 6, 14062},     {IBV_RATE_56_GBPS, 22, 56250},      {IBV_RATE_112_GBPS, 45, 112500},
    {IBV_RATE_168_GBPS, 67, 168750},  {IBV_RATE_25_GBPS, 10, 25781},      {IBV_RATE_100_GBPS, 40, 103125},
    {IBV_RATE_200_GBPS, 80, 206250},  {IBV_RATE_300_GBPS, 120, 309375},   {IBV_RATE_28_GBPS, 11, 28125},
    {IBV_RATE_50_GBPS, 20, 53125},    {IBV_RATE_400_GBPS, 160, 425000},   {IBV_RATE_600_GBPS, 240, 637500},
    {IBV_RATE_800_GBPS, 320, 850000}, {IBV_RATE_1200_GBPS, 480, 1275000},
};

template <size_t kCount>
const char* NameOf(const char* const (&names)[kCount], int value, const char* unknown) {
  return value >= 0 && static_cast<size_t>(value) < kCount && names[value] != nullptr ? names[value]
                                                                                      : unknown;
}

}  // namespace

extern "C" {

int ibv_rate_to_mult(ibv_rate rate) {
  for (const Rate& entry : kRates) {
    if (entry.rate == rate) return entry.multiple;
  }
  return -1;
}
ibv_rate mult_to_ibv_rate(int multiple) {
  for (const Rate& entry : kRates) {
    if (entry.multiple == multiple) return entry.rate;
  }
  return IBV_RATE_MAX;
}
int ibv_rate_to_mbps(ibv_rate rate) {
  for (const Rate& entry : kRates) {
    if (entry.rate == rate) return entry.mbps;
  }
  return -1;
}
ibv_rate mbps_to_ibv_rate(int mbps) {
  for (const Rate& entry : kRates) {
    if (entry.mbps == mbps) return entry.rate;
  }
  return IBV_RATE_MAX;
}

const char* ibv_node_type_str(ibv_node_type type) {
  static const char* const kNames[] = {nullptr,
                                       "InfiniBand channel adapter",
                                       "InfiniBand switch",
                                       "InfiniBand router",
                                       "iWARP NIC",
                                       "usNIC",
                                       "usNIC UDP",
                                       "unspecified"};
  return NameOf(kNames, type, "unknown");
}

const char* ibv_port_state_str(ibv_port_state state) {
  static const char* const kNames[] = {"no state change (NOP)", "down", "init", "armed", "active",
                                       "active defer"};
  return NameOf(kNames, state, "unknown");
}

const char* ibv_event_type_str(ibv_event_type event) {
  static const char* const kNames[] = {"CQ error",
                                       "local work queue catastrophic error",
                                       "invalid request local work queue error",
                                       "local access violation work queue error",
                                       "communication established",
                                       "send queue drained",
                                       "path migrated",
                                       "path migration request error",
                                       "local catastrophic error",
                                       "port active",
                                       "port error",
                                       "LID change",
                                       "P_Key change",
                                       "SM change",
                                       "SRQ catastrophic error",
                                       "SRQ limit reached",
                                       "last WQE reached",
                                       "client reregistration",
                                       "GID table change",
                                       "WQ fatal"};
  return NameOf(kNames, event, "unknown");
}

const char* ibv_wc_status_str(ibv_wc_status status) {
  static const char* const kNames[] = {"success",
                                       "local length error",
                                       "local QP operation error",
                                       "local EE context operation error",
                                       "local protection error",
                                       "Work Request Flushed Error",
                                       "memory management operation error",
                                       "bad response error",
                                       "local access error",
                                       "remote invalid request error",
                                       "remote access error",
                                       "remote operation error",
                                       "transport retry counter exceeded",
                                       "RNR retry counter exceeded",
                                       "local RDD violation error",
                                       "remote invalid RD request",
                                       "aborted error",
                                       "invalid EE context number",
                                       "invalid EE context state",
                                       "fatal error",
                                       "response timeout error",
                                       "general error",
                                       "TM error",
                                       "TM software rendezvous"};
  return NameOf(kNames, status, "unknown");
}

// Shared memory of this library is never inherited by children, and registered memory needs no pinning: a
// child's copy on write does not move the parent's pages away from a device.
int ibv_fork_init() {
  return 0;
}
ibv_fork_status ibv_is_fork_initialized() {
  return IBV_FORK_UNNEEDED;
}
int ibv_dontfork_range(void*, size_t) {
  return 0;
}
int ibv_dofork_range(void*, size_t) {
  return 0;
}

ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attr) {
  if (attr->port_num < 1) {
    errno = EINVAL;
    return nullptr;
  }
  auto* own = new sluice::soft::Ah;
  own->ah.context = pd->context;
  own->ah.pd = pd;
  return &own->ah;
}
int ibv_destroy_ah(ibv_ah* ah) {
  delete reinterpret_cast<sluice::soft::Ah*>(ah);
  return 0;
}

}  // extern "C"
