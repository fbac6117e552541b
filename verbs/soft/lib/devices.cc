// Devices, contexts and what a program can ask about them.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "verbs/soft/ipc/socket.h"
#include "verbs/soft/lib/objects.h"

#undef ibv_query_port
#undef ibv_get_device_list

namespace sluice::soft {
namespace {

void Unref(Device* device) {
  if (device->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete device;
}

Device* NewDevice(const std::shared_ptr<Session>& session, uint32_t nic) {
  auto* own = new Device;
  own->session = session;
  own->nic = nic;
  own->description = session->welcome().devices[nic];
  ibv_device& device = own->device;
  device.node_type = IBV_NODE_CA;
  device.transport_type = IBV_TRANSPORT_IB;
  const std::string root = session->welcome().sysfs_root;
  snprintf(device.name, sizeof(device.name), "%s", own->description.name);
  snprintf(device.dev_name, sizeof(device.dev_name), "uverbs%u", nic);
  snprintf(device.dev_path, sizeof(device.dev_path), "%s/class/infiniband_verbs/uverbs%u", root.c_str(), nic);
  snprintf(device.ibdev_path, sizeof(device.ibdev_path), "%s/class/infiniband/%s", root.c_str(), device.name);
  return own;
}

// One line, to standard error or to the descriptor that the program names for this process: "PID:FD" in
// SLUICE_FABRIC_ERROR_FD. A program that makes it part of its own message does not tell its user twice.
void Complain(const std::string& message) {
  const std::string line = "sluice: " + message + "\n";
  const char* place = getenv("SLUICE_FABRIC_ERROR_FD");
  int pid = 0, fd = -1;
  if (place != nullptr && sscanf(place, "%d:%d", &pid, &fd) == 2 && pid == getpid() &&
      write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size())) {
    return;
  }
  fputs(line.c_str(), stderr);
}

int Query(ibv_context* context, Call call, CallArguments* arguments) {
  Context* own = Own(context);
  return own->session->Invoke(call, own->nic, arguments);
}

int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attr, size_t size) {
  CallArguments arguments;
  arguments.port = port;
  if (const int error = Query(context, Call::kQueryPort, &arguments); error != 0) return error;
  memset(attr, 0, size);
  memcpy(attr, &arguments.port_attr, std::min(size, sizeof(arguments.port_attr)));
  return 0;
}

int QueryDevice(ibv_context* context, ibv_device_attr* attr) {
  CallArguments arguments;
  if (const int error = Query(context, Call::kQueryDevice, &arguments); error != 0) return error;
  *attr = arguments.device;
  return 0;
}

int QueryDeviceEx(ibv_context* context, const ibv_query_device_ex_input* input, ibv_device_attr_ex* attr,
                  size_t size) {
  if ((input != nullptr && input->comp_mask != 0) || size < sizeof(ibv_device_attr)) return EINVAL;
  ibv_device_attr_ex full{};
  if (const int error = QueryDevice(context, &full.orig_attr); error != 0) return error;
  full.completion_timestamp_mask = UINT64_MAX;
  full.hca_core_clock = 1'000'000;  // kHz: completion timestamps count nanoseconds of model time
  full.device_cap_flags_ex = full.orig_attr.device_cap_flags;
  full.pci_atomic_caps.compare_swap = IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP;
  full.pci_atomic_caps.fetch_add = IBV_PCI_ATOMIC_OPERATION_8_BYTE_SIZE_SUP;
  full.phys_port_cnt_ex = full.orig_attr.phys_port_cnt;
  memset(attr, 0, size);
  memcpy(attr, &full, std::min(size, sizeof(full)));
  return 0;
}

int QueryRtValues(ibv_context* context, ibv_values_ex* values) {
  const uint32_t wanted = values->comp_mask;
  values->comp_mask = 0;
  if ((wanted & IBV_VALUES_MASK_RAW_CLOCK) == 0) return wanted == 0 ? 0 : EINVAL;
  CallArguments arguments;
  if (const int error = Query(context, Call::kModelTime, &arguments); error != 0) return error;
  values->raw_clock.tv_sec = 0;
  values->raw_clock.tv_nsec = static_cast<long>(arguments.value / 1000);
  values->comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
  return 0;
}

// An entry of the GID table; ENODATA when the place is empty.
int QueryGid(ibv_context* context, uint32_t port, uint32_t index, ibv_gid* gid, ibv_gid_type* type) {
  CallArguments arguments;
  arguments.port = port;
  arguments.index = index;
  if (const int error = Query(context, Call::kQueryGid, &arguments); error != 0) return error;
  *gid = arguments.gid;
  *type = static_cast<ibv_gid_type>(arguments.number);
  return arguments.index != 0 ? 0 : ENODATA;
}

int DestroyLeftovers(Context* context) {
  // Each destroy erases itself from the set.
  const auto drain = [](auto& set, auto destroy) {
    while (!set.empty()) {
      auto* object = *set.begin();
      if (destroy(object) != 0) set.erase(object);
    }
  };
  drain(context->queue_pairs, DestroyQp);
  drain(context->shared_receive_queues, DestroySrq);
  drain(context->completion_queues, DestroyCq);
  drain(context->regions, DeregMr);
  drain(context->domains, DeallocPd);
  return 0;
}

}  // namespace

void InstallDeviceOps(Context* context) {
  verbs_context& verbs = context->verbs;
  verbs.query_port = QueryPort;
  verbs.query_device_ex = QueryDeviceEx;
  verbs.query_rt_values = QueryRtValues;
  verbs.context.ops._compat_query_device = QueryDevice;
  verbs.context.ops._compat_query_port = ibv_query_port;
}

}  // namespace sluice::soft

using namespace sluice::soft;

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  if (count != nullptr) *count = 0;
  auto session = Session::Get();
  if (!session.ok()) {
    Complain(session.status().message());
    return Fail(EIO);
  }
  const uint32_t devices = (*session)->welcome().device_count;
  auto** list = static_cast<ibv_device**>(calloc(devices + 1, sizeof(ibv_device*)));
  if (list == nullptr) return Fail(ENOMEM);
  for (uint32_t nic = 0; nic < devices; ++nic) list[nic] = &NewDevice(*session, nic)->device;
  if (count != nullptr) *count = static_cast<int>(devices);
  return list;
}

void ibv_free_device_list(ibv_device** list) {
  if (list == nullptr) return;
  for (ibv_device** device = list; *device != nullptr; ++device) Unref(Own(*device));
  free(list);
}

const char* ibv_get_device_name(ibv_device* device) {
  return device->name;
}
int ibv_get_device_index(ibv_device* device) {
  return static_cast<int>(Own(device)->nic);
}
__be64 ibv_get_device_guid(ibv_device* device) {
  return __builtin_bswap64(Own(device)->description.node_guid);
}

ibv_context* ibv_open_device(ibv_device* device) {
  Device* own = Own(device);
  if (own->session->dead()) return Fail(EIO);
  auto context = std::make_unique<Context>();
  const int async_fd = context->events.Open();
  if (async_fd < 0) return nullptr;
  own->references.fetch_add(1, std::memory_order_relaxed);
  context->device = own;
  context->session = own->session;
  context->nic = own->nic;
  verbs_context& verbs = context->verbs;
  verbs.sz = sizeof(verbs_context);
  verbs.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  verbs.context.device = device;
  verbs.context.cmd_fd = -1;
  verbs.context.async_fd = async_fd;
  verbs.context.num_comp_vectors = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  pthread_mutex_init(&verbs.context.mutex, nullptr);
  InstallDeviceOps(context.get());
  InstallCompletionOps(context.get());
  InstallQueuePairOps(context.get());
  InstallPostOps(context.get());
  context->session->AddContext(context.get());
  return &context.release()->verbs.context;
}

int ibv_close_device(ibv_context* context) {
  std::unique_ptr<Context> own(Own(context));
  own->session->RemoveContext(own.get());
  DestroyLeftovers(own.get());
  own->events.Close();
  pthread_mutex_destroy(&context->mutex);
  Unref(own->device);
  return 0;
}

int ibv_query_device(ibv_context* context, ibv_device_attr* attr) {
  return QueryDevice(context, attr);
}

// Programs built against old headers pass a structure that ends before port_cap_flags2.
int ibv_query_port(ibv_context* context, uint8_t port, _compat_ibv_port_attr* attr) {
  return QueryPort(context, port, reinterpret_cast<ibv_port_attr*>(attr),
                   offsetof(ibv_port_attr, port_cap_flags2));
}

int ibv_query_gid(ibv_context* context, uint8_t port, int index, ibv_gid* gid) {
  ibv_gid_type type;
  const int error = QueryGid(context, port, static_cast<uint32_t>(index), gid, &type);
  if (error == 0 || error == ENODATA) return 0;
  errno = error;
  return -1;
}

int _ibv_query_gid_ex(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry,
                      uint32_t flags, size_t entry_size) {
  if (flags != 0) return EOPNOTSUPP;
  if (entry_size < sizeof(ibv_gid_entry)) return EINVAL;
  ibv_gid gid;
  ibv_gid_type type;
  if (const int error = QueryGid(context, port, index, &gid, &type); error != 0) return error;
  memset(entry, 0, entry_size);
  entry->gid = gid;
  entry->gid_index = index;
  entry->port_num = port;
  entry->gid_type = type;
  return 0;
}

ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, size_t max_entries, uint32_t flags,
                             size_t entry_size) {
  if (flags != 0) return -EOPNOTSUPP;
  if (entry_size < sizeof(ibv_gid_entry)) return -EINVAL;
  size_t found = 0;
  for (uint32_t port = 1; port <= Own(context)->device->description.port_count; ++port) {
    ibv_port_attr attr;
    if (const int error = QueryPort(context, static_cast<uint8_t>(port), &attr, sizeof(attr)); error != 0)
      return -error;
    for (int index = 0; index < attr.gid_tbl_len; ++index) {
      ibv_gid_entry entry{};
      const int error =
          _ibv_query_gid_ex(context, port, static_cast<uint32_t>(index), &entry, 0, sizeof(entry));
      if (error == ENODATA) continue;
      if (error != 0) return -error;
      if (found == max_entries) return -EINVAL;
      memcpy(reinterpret_cast<char*>(entries) + found++ * entry_size, &entry, sizeof(entry));
    }
  }
  return static_cast<ssize_t>(found);
}

// Private to rdma-core's own programs: 0 is InfiniBand or RoCE v1, 1 is RoCE v2.
int ibv_query_gid_type(ibv_context* context, uint8_t port, unsigned index, unsigned* type) {
  ibv_gid gid;
  ibv_gid_type kind;
  *type = 0;
  const int error = QueryGid(context, port, index, &gid, &kind);
  if (error == 0) *type = kind == IBV_GID_TYPE_ROCE_V2 ? 1 : 0;
  if (error == 0 || error == ENODATA) return 0;
  errno = error;
  return -1;
}

int ibv_query_pkey(ibv_context* context, uint8_t port, int index, __be16* pkey) {
  CallArguments arguments;
  arguments.port = port;
  arguments.index = static_cast<uint32_t>(index);
  if (const int error = Query(context, Call::kQueryPkey, &arguments); error != 0) {
    errno = error;
    return -1;
  }
  *pkey = static_cast<__be16>(arguments.number);
  return 0;
}

int ibv_get_pkey_index(ibv_context* context, uint8_t port, __be16 pkey) {
  for (int index = 0;; ++index) {
    __be16 found = 0;
    if (ibv_query_pkey(context, port, index, &found) != 0) return -1;
    if (found == pkey) return index;
  }
}

const char* ibv_get_sysfs_path() {
  return Session::SysfsRoot();
}

// Returns the length without the final newline, -1 with errno.
int ibv_read_sysfs_file(const char* directory, const char* file, char* buffer, size_t size) {
  const std::string path = std::string(directory) + "/" + file;
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return -1;
  const ssize_t got = read(fd.get(), buffer, size);
  if (got < 0) return -1;
  auto length = static_cast<size_t>(got);
  if (length > 0 && buffer[length - 1] == '\n') buffer[--length] = '\0';
  if (length < size) {
    buffer[length] = '\0';
  } else {
    errno = EOVERFLOW;  // no room for the terminating zero
    return -1;
  }
  return static_cast<int>(length);
}

}  // extern "C"
