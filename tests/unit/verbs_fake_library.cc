#include "tests/unit/verbs_fake_library.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

namespace sluice {
namespace {

FakeVerbs& Instance() {
  static FakeVerbs verbs;
  return verbs;
}

const FakeDevice& DeviceOf(const ibv_device* device) {
  const FakeVerbs& verbs = Instance();
  return *std::find_if(verbs.devices.begin(), verbs.devices.end(),
                       [&](const FakeDevice& fake) { return fake.name == device->name; });
}

ibv_mr* NewRegion(ibv_pd* pd, void* address, size_t length) {
  auto* region = new ibv_mr{};
  region->context = pd->context;
  region->pd = pd;
  region->addr = address;
  region->length = length;
  ++Instance().mrs;
  return region;
}

// For functions that return a pointer.
bool Fails(int error) {
  if (error != 0) errno = error;
  return error != 0;
}

}  // namespace

FakeVerbs& ResetFakeVerbs() {
  Instance() = FakeVerbs();
  return Instance();
}

FakeVerbs& GetFakeVerbs() {
  return Instance();
}

FakeDevice MakeFakeDevice(const std::string& name, uint8_t link_layer, int port_count) {
  FakeDevice device;
  device.name = name;
  device.ibdev_path = "/nonexistent/" + name;
  device.attributes.phys_port_cnt = static_cast<uint8_t>(port_count);
  device.attributes.max_qp = 1000;
  device.attributes.max_qp_wr = 8192;
  device.attributes.max_sge = 30;
  device.attributes.max_cq = 1000;
  device.attributes.max_cqe = 100000;
  device.attributes.max_srq = 100;
  device.attributes.max_srq_wr = 4096;
  device.attributes.max_srq_sge = 3;
  device.attributes.node_guid = 0x0100000000000000;
  FakePort port;
  port.attributes.state = IBV_PORT_ACTIVE;
  port.attributes.max_mtu = IBV_MTU_4096;
  port.attributes.active_mtu = IBV_MTU_4096;
  port.attributes.link_layer = link_layer;
  port.attributes.active_width = 2;
  port.attributes.active_speed = 32;
  port.attributes.lid = 1;
  port.attributes.gid_tbl_len = 16;
  device.ports.assign(static_cast<size_t>(port_count), port);
  return device;
}

}  // namespace sluice

using sluice::DeviceOf;
using sluice::Fails;
using sluice::FakeDevice;
using sluice::FakePort;
using sluice::FakeVerbs;
using sluice::Instance;
using sluice::NewRegion;

// The parentheses keep verbs.h's macros of the same names away.
extern "C" {

int ibv_fork_init(void) {
  return 0;
}

ibv_device** ibv_get_device_list(int* count) {
  FakeVerbs& verbs = Instance();
  if (verbs.list_fails) {
    *count = 0;
    errno = ENOSYS;
    return nullptr;
  }
  auto** list = new ibv_device*[verbs.devices.size() + 1];
  size_t next = 0;
  for (const FakeDevice& fake : verbs.devices) {
    ibv_device& device = verbs.handles.emplace_back();
    device.node_type = fake.node_type;
    device.transport_type = fake.transport;
    std::snprintf(device.name, sizeof(device.name), "%s", fake.name.c_str());
    std::snprintf(device.ibdev_path, sizeof(device.ibdev_path), "%s", fake.ibdev_path.c_str());
    list[next++] = &device;
  }
  list[next] = nullptr;
  *count = static_cast<int>(next);
  return list;
}

void ibv_free_device_list(ibv_device** list) {
  delete[] list;
}

ibv_context* ibv_open_device(ibv_device* device) {
  if (Fails(DeviceOf(device).open_error)) return nullptr;
  auto* context = new ibv_context{};
  context->device = device;
  context->async_fd = eventfd(0, EFD_CLOEXEC);
  ++Instance().contexts;
  ++Instance().opened;
  return context;
}

int ibv_close_device(ibv_context* context) {
  close(context->async_fd);
  delete context;
  --Instance().contexts;
  return 0;
}

int ibv_query_device(ibv_context* context, ibv_device_attr* attributes) {
  const FakeDevice& fake = DeviceOf(context->device);
  *attributes = fake.attributes;
  return fake.query_error;
}

int(ibv_query_port)(ibv_context* context, uint8_t port, _compat_ibv_port_attr* attributes) {
  const FakeDevice& fake = DeviceOf(context->device);
  if (port < 1 || port > fake.ports.size()) return EINVAL;
  *reinterpret_cast<ibv_port_attr*>(attributes) = fake.ports[port - 1U].attributes;
  return 0;
}

ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, size_t max_entries, uint32_t,
                             size_t) {
  if (Instance().gid_table_error != 0) return -Instance().gid_table_error;
  size_t count = 0;
  for (const FakePort& port : DeviceOf(context->device).ports) {
    for (const ibv_gid_entry& entry : port.gids) {
      if (count == max_entries) return -EINVAL;
      entries[count++] = entry;
    }
  }
  return static_cast<ssize_t>(count);
}

int ibv_query_gid(ibv_context* context, uint8_t port, int index, ibv_gid* gid) {
  const std::vector<ibv_gid_entry>& gids = DeviceOf(context->device).ports[port - 1U].gids;
  const auto found = std::find_if(gids.begin(), gids.end(), [&](const ibv_gid_entry& entry) {
    return entry.gid_index == static_cast<uint32_t>(index);
  });
  if (found == gids.end()) {
    errno = EINVAL;
    return -1;
  }
  *gid = found->gid;
  return 0;
}

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  if (Fails(Instance().alloc_pd_error)) return nullptr;
  ++Instance().pds;
  return new ibv_pd{.context = context, .handle = 0};
}

int ibv_dealloc_pd(ibv_pd* pd) {
  delete pd;
  --Instance().pds;
  return 0;
}

ibv_cq* ibv_create_cq(ibv_context* context, int cqe, void* cq_context, ibv_comp_channel* channel, int) {
  Instance().last_cqe = cqe;
  if (Fails(Instance().create_cq_error)) return nullptr;
  auto* cq = new ibv_cq{};
  cq->context = context;
  cq->cq_context = cq_context;
  cq->channel = channel;
  cq->cqe = cqe;
  ++Instance().cqs;
  return cq;
}

int ibv_destroy_cq(ibv_cq* cq) {
  delete cq;
  --Instance().cqs;
  return 0;
}

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* init) {
  Instance().last_srq = *init;
  if (Fails(Instance().create_srq_error)) return nullptr;
  auto* srq = new ibv_srq{};
  srq->context = pd->context;
  ++Instance().srqs;
  return srq;
}

int ibv_destroy_srq(ibv_srq* srq) {
  delete srq;
  --Instance().srqs;
  return 0;
}

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  FakeVerbs& verbs = Instance();
  verbs.last_qp = *init;
  if (Fails(verbs.create_qp_error)) return nullptr;
  if (init->cap.max_inline_data > verbs.largest_inline && Fails(EINVAL)) return nullptr;
  if (init->cap.max_send_wr > verbs.largest_send_wr && Fails(ENOMEM)) return nullptr;
  auto* qp = new ibv_qp{};
  qp->context = pd->context;
  qp->qp_num = static_cast<uint32_t>(100 + ++verbs.created_qps);
  qp->state = IBV_QPS_RESET;
  ++verbs.qps;
  return qp;
}

int ibv_destroy_qp(ibv_qp* qp) {
  if (Instance().destroy_qp_error != 0) return Instance().destroy_qp_error;
  delete qp;
  --Instance().qps;
  return 0;
}

int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  FakeVerbs& verbs = Instance();
  verbs.last_attr = *attr;
  verbs.last_mask = mask;
  if (verbs.modify_error != 0 && attr->qp_state == verbs.modify_error_state) return verbs.modify_error;
  qp->state = attr->qp_state;
  return 0;
}

int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attr, int, ibv_qp_init_attr*) {
  attr->qp_state = qp->state;
  return 0;
}

int ibv_query_ece(ibv_qp*, ibv_ece* ece) {
  if (Instance().ece_error != 0) return Instance().ece_error;
  *ece = {.vendor_id = 0x15b3, .options = 3, .comp_mask = 0};
  return 0;
}

int ibv_set_ece(ibv_qp*, ibv_ece* ece) {
  Instance().last_ece = *ece;
  return Instance().ece_error;
}

ibv_mr*(ibv_reg_mr)(ibv_pd* pd, void* address, size_t length, int) {
  return NewRegion(pd, address, length);
}
ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t length, uint64_t, unsigned) {
  return NewRegion(pd, address, length);
}
ibv_mr* ibv_reg_dmabuf_mr(ibv_pd*, uint64_t, size_t, uint64_t, int, int) {
  errno = EOPNOTSUPP;
  return nullptr;
}
int ibv_dereg_mr(ibv_mr* region) {
  delete region;
  --Instance().mrs;
  return 0;
}

int ibv_get_async_event(ibv_context*, ibv_async_event*) {
  errno = EAGAIN;
  return -1;
}
void ibv_ack_async_event(ibv_async_event*) {}

}  // extern "C"
