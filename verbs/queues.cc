// Protection domain, completion queue, shared receive queue.
#include <algorithm>
#include <cerrno>

#include "verbs/device.h"
#include "verbs/errors.h"
#include "verbs/protection_domain.h"
#include "verbs/queue_pair.h"

namespace sluice {

Result<ProtectionDomain> ProtectionDomain::Create(ibv_context* context) {
  errno = 0;
  ibv_pd* pd = ibv_alloc_pd(context);
  if (pd == nullptr) return VerbError(std::string("ibv_alloc_pd on ") + context->device->name, ErrnoOf(-1));
  return ProtectionDomain(pd);
}

ProtectionDomain::~ProtectionDomain() {
  if (pd_ != nullptr) (void)ibv_dealloc_pd(pd_);
}

Result<CompletionQueue> CompletionQueue::Create(const DeviceContext& device, uint32_t depth,
                                                ibv_comp_channel* channel, void* cq_context) {
  const auto most = static_cast<uint32_t>(std::max(device.attributes().max_cqe, 1));
  const uint32_t entries = std::clamp(depth, 1U, most);
  errno = 0;
  ibv_cq* cq = ibv_create_cq(device.context(), static_cast<int>(entries), cq_context, channel, 0);
  if (cq == nullptr) {
    return VerbError("ibv_create_cq on " + device.name() + " with " + std::to_string(entries) +
                         " entries (the device has " + std::to_string(device.attributes().max_cq) +
                         " completion queues)",
                     ErrnoOf(-1));
  }
  return CompletionQueue(cq);
}

Status CompletionQueue::Close() {
  if (cq_ == nullptr) return Status::Ok();
  const std::string device = cq_->context->device->name;
  if (const int result = ibv_destroy_cq(cq_); result != 0) {
    return VerbError("ibv_destroy_cq on " + device, ErrnoOf(result));
  }
  cq_ = nullptr;
  return Status::Ok();
}

Result<SharedReceiveQueue> SharedReceiveQueue::Create(const DeviceContext& device, uint32_t max_wr,
                                                      uint32_t max_sge) {
  if (!device.supports_srq()) {
    return SystemError(device.name() +
                       " has no shared receive queues; give every queue pair a receive queue of its own");
  }
  const ibv_device_attr& limits = device.attributes();
  ibv_srq_init_attr init{};
  init.attr.max_wr = std::clamp(max_wr, 1U, static_cast<uint32_t>(limits.max_srq_wr));
  // Never 0, which some drivers refuse; entries without a scatter list fit any queue.
  init.attr.max_sge = std::clamp(max_sge, 1U, static_cast<uint32_t>(std::max(limits.max_srq_sge, 1)));
  const uint32_t wanted = init.attr.max_wr;
  errno = 0;
  ibv_srq* srq = ibv_create_srq(device.pd().get(), &init);
  if (srq == nullptr) {
    return VerbError("ibv_create_srq on " + device.name() + " with " + std::to_string(wanted) +
                         " entries (the device has " + std::to_string(limits.max_srq) +
                         " shared receive queues)",
                     ErrnoOf(-1));
  }
  // Drivers write back what they granted; some leave the field alone.
  return SharedReceiveQueue(srq, std::max(init.attr.max_wr, wanted));
}

Status SharedReceiveQueue::Close() {
  if (srq_ == nullptr) return Status::Ok();
  const std::string device = srq_->context->device->name;
  if (const int result = ibv_destroy_srq(srq_); result != 0) {
    return VerbError("ibv_destroy_srq on " + device, ErrnoOf(result));
  }
  srq_ = nullptr;
  return Status::Ok();
}

}  // namespace sluice
