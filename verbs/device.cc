#include "verbs/device.h"

#include <endian.h>
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "verbs/queue_pair.h"

namespace sluice {
namespace {

// Contexts of this process by device name. Entries of closed devices stay, empty. Never destroyed: contexts
// may be released by static destructors of others.
struct OpenDevices {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<DeviceContext>> contexts;
};

OpenDevices& Devices() {
  static auto* const devices = new OpenDevices;
  return *devices;
}

}  // namespace

Result<std::shared_ptr<DeviceContext>> DeviceContext::Open(ibv_device* device, const DeviceOptions& options) {
  OpenDevices& devices = Devices();
  const std::lock_guard<std::mutex> lock(devices.mutex);
  const std::string name = device->name;
  std::weak_ptr<DeviceContext>& known = devices.contexts[name];
  if (std::shared_ptr<DeviceContext> open = known.lock()) return open;

  std::shared_ptr<DeviceContext> self(new DeviceContext);
  self->name_ = name;
  self->ibdev_path_ = device->ibdev_path;
  errno = 0;
  self->context_ = ibv_open_device(device);
  if (self->context_ == nullptr) return VerbError("ibv_open_device of " + name, ErrnoOf(-1));
  if (const int result = ibv_query_device(self->context_, &self->attributes_); result != 0) {
    return VerbError("ibv_query_device on " + name, ErrnoOf(result));
  }
  Result<ProtectionDomain> pd = ProtectionDomain::Create(self->context_);
  if (!pd.ok()) return pd.status();
  self->pd_ = std::move(*pd);

  const int fd = self->context_->async_fd;
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return VerbError("making the event channel of " + name + " non-blocking", errno);
  }
  self->full_pci_path_ = ReadPciPath(self->ibdev_path_);
  self->pci_path_ = FoldPciPath(self->full_pci_path_, options.merge_vfs);
  self->node_guid_ = be64toh(self->attributes_.node_guid);
  self->sys_image_guid_ = be64toh(self->attributes_.sys_image_guid);
  if (self->sys_image_guid_ == 0) self->sys_image_guid_ = self->node_guid_;
  self->memory_ = std::make_unique<MemoryCache>(
      MakeVerbsRegistrar(self->pd_.get()), MemoryCacheOptions{.device_name = name,
                                                              .relaxed_ordering = options.relaxed_ordering,
                                                              .page_bytes = 0,
                                                              .warn = options.warn});
  known = self;
  return self;
}

DeviceContext::~DeviceContext() {
  memory_.reset();
  pd_ = ProtectionDomain();
  if (context_ != nullptr) (void)ibv_close_device(context_);
}

Result<ibv_port_attr> DeviceContext::QueryPort(uint8_t port) const {
  ibv_port_attr attributes{};
  const int result = ibv_query_port(context_, port, &attributes);
  if (result == 0) return attributes;
  return VerbError("ibv_query_port on " + name_ + ":" + std::to_string(port), ErrnoOf(result));
}

uint32_t DeviceContext::ProbeMaxInline(uint32_t wanted) {
  const std::lock_guard<std::mutex> lock(probe_mutex_);
  if (wanted <= probed_wanted_) return std::min(wanted, probed_inline_);
  uint32_t granted = 0;
  if (Result<CompletionQueue> cq = CompletionQueue::Create(*this, 1); cq.ok()) {
    const QueuePairOptions options{
        .send_cq = cq->get(), .recv_cq = cq->get(), .max_recv_wr = 1, .max_inline = wanted};
    if (Result<QueuePair> qp = QueuePair::Create(pd_, options); qp.ok()) granted = qp->caps().max_inline_data;
  }
  probed_wanted_ = wanted;
  probed_inline_ = granted;
  return std::min(wanted, granted);
}

}  // namespace sluice
