#include "tests/fault/verbs_census.h"

#include <dlfcn.h>
#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>

// verbs.h turns these into macros that pick a variant by the arguments.
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace sluice::fault {
namespace {

std::atomic<int> contexts, domains, regions, completion_queues, receive_queues, queue_pairs, queue_pairs_made;

struct Plan {
  std::atomic<int> successes{-1};  // -1: nothing planned
  std::atomic<int> error{0};
};
std::array<Plan, static_cast<size_t>(VerbsCall::kCount)> plans;

// The error that this call shall answer, or 0.
int Planned(VerbsCall call) {
  Plan& plan = plans[static_cast<size_t>(call)];
  if (plan.successes.load() < 0) return 0;
  return plan.successes.fetch_sub(1) == 0 ? plan.error.load() : 0;
}

template <typename Function>
Function* Next(const char* name) {
  void* const found = dlsym(RTLD_NEXT, name);
  if (found == nullptr) abort();
  return reinterpret_cast<Function*>(found);
}

template <typename T>
T* Counted(T* object, std::atomic<int>& count) {
  if (object != nullptr) count.fetch_add(1);
  return object;
}

int Uncounted(int result, std::atomic<int>& count) {
  if (result == 0) count.fetch_sub(1);
  return result;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Census& census) {
  return out << "contexts " << census.contexts << ", PDs " << census.protection_domains << ", MRs "
             << census.memory_regions << ", CQs " << census.completion_queues << ", SRQs "
             << census.shared_receive_queues << ", QPs " << census.queue_pairs;
}

Census LiveObjects() {
  return {contexts.load(),          domains.load(),        regions.load(),
          completion_queues.load(), receive_queues.load(), queue_pairs.load()};
}

int QueuePairsMade() {
  return queue_pairs_made.load();
}

void FailAfter(VerbsCall call, int successes, int error) {
  Plan& plan = plans[static_cast<size_t>(call)];
  plan.error.store(error);
  plan.successes.store(successes);
}

}  // namespace sluice::fault

using namespace sluice::fault;

#define EXPORT extern "C" __attribute__((visibility("default")))
#define NEXT(name) static auto* const next = Next<decltype(::name)>(#name)
#define FAIL_AS_PLANNED(call)                       \
  if (const int error = Planned(VerbsCall::call)) { \
    errno = error;                                  \
    return nullptr;                                 \
  }

EXPORT ibv_context* ibv_open_device(ibv_device* device) {
  NEXT(ibv_open_device);
  FAIL_AS_PLANNED(kOpenDevice)
  return Counted(next(device), contexts);
}
EXPORT int ibv_close_device(ibv_context* context) {
  NEXT(ibv_close_device);
  return Uncounted(next(context), contexts);
}
EXPORT ibv_pd* ibv_alloc_pd(ibv_context* context) {
  NEXT(ibv_alloc_pd);
  return Counted(next(context), domains);
}
EXPORT int ibv_dealloc_pd(ibv_pd* pd) {
  NEXT(ibv_dealloc_pd);
  return Uncounted(next(pd), domains);
}
EXPORT ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t length, int access) {
  NEXT(ibv_reg_mr);
  FAIL_AS_PLANNED(kRegMr)
  return Counted(next(pd, address, length, access), regions);
}
EXPORT ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t length, uint64_t iova,
                                unsigned int access) {
  NEXT(ibv_reg_mr_iova2);
  FAIL_AS_PLANNED(kRegMr)
  return Counted(next(pd, address, length, iova, access), regions);
}
EXPORT int ibv_dereg_mr(ibv_mr* mr) {
  NEXT(ibv_dereg_mr);
  return Uncounted(next(mr), regions);
}
EXPORT ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel,
                             int vector) {
  NEXT(ibv_create_cq);
  FAIL_AS_PLANNED(kCreateCq)
  return Counted(next(context, cqe, cq_context, channel, vector), completion_queues);
}
EXPORT int ibv_destroy_cq(ibv_cq* cq) {
  NEXT(ibv_destroy_cq);
  return Uncounted(next(cq), completion_queues);
}
EXPORT ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* attr) {
  NEXT(ibv_create_srq);
  FAIL_AS_PLANNED(kCreateSrq)
  return Counted(next(pd, attr), receive_queues);
}
EXPORT int ibv_destroy_srq(ibv_srq* srq) {
  NEXT(ibv_destroy_srq);
  return Uncounted(next(srq), receive_queues);
}
EXPORT ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  NEXT(ibv_create_qp);
  FAIL_AS_PLANNED(kCreateQp)
  ibv_qp* const qp = next(pd, attr);
  if (qp != nullptr) queue_pairs_made.fetch_add(1);
  return Counted(qp, queue_pairs);
}
EXPORT int ibv_destroy_qp(ibv_qp* qp) {
  NEXT(ibv_destroy_qp);
  return Uncounted(next(qp), queue_pairs);
}
EXPORT int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  NEXT(ibv_modify_qp);
  if ((mask & IBV_QP_STATE) != 0) {
    int error = 0;
    if (attr->qp_state == IBV_QPS_RTR) error = Planned(VerbsCall::kModifyToRtr);
    if (attr->qp_state == IBV_QPS_RTS) error = Planned(VerbsCall::kModifyToRts);
    if (error != 0) return error;
  }
  return next(qp, attr, mask);
}
