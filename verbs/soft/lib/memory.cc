// Protection domains and memory regions.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "verbs/soft/lib/objects.h"

#undef ibv_reg_mr
#undef ibv_reg_mr_iova

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace sluice::soft {
namespace {

int Invoke(Context* context, Call call, CallArguments* arguments) {
  return context->session->Invoke(call, context->nic, arguments);
}

// For kernels without MADV_POPULATE: the mappings of this process cover [begin, end) with these rights.
bool MappingsAllow(uintptr_t begin, uintptr_t end, bool write) {
  FILE* maps = fopen("/proc/self/maps", "re");
  if (maps == nullptr) return true;
  char line[512];
  while (begin < end && fgets(line, sizeof(line), maps) != nullptr) {
    uintptr_t from = 0, to = 0;
    char rights[5] = {};
    if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s", &from, &to, rights) != 3) continue;
    if (to <= begin) continue;
    if (from > begin || rights[0] != 'r' || (write && rights[1] != 'w')) break;
    begin = to;
  }
  fclose(maps);
  return begin >= end;
}

// What pinning does: every page is present, readable and, if asked for, writable. 0 or EFAULT. Without `pin`
// pages that were never touched stay the shared page of zeros.
int CheckPages(uintptr_t address, size_t length, bool write, bool pin) {
  if (length == 0) return 0;
  if (address + length < address) return EFAULT;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = address & ~(page - 1);
  const uintptr_t end = (address + length + page - 1) & ~(page - 1);
  int result = 0;
  do {
    result = madvise(reinterpret_cast<void*>(begin), end - begin,
                     write && pin ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
  } while (result != 0 && (errno == EINTR || errno == EAGAIN));
  if (result == 0) return 0;
  // EINVAL: an old kernel, or a mapping of device memory, which has no pages to populate.
  if (errno == EINVAL) return MappingsAllow(begin, end, write) ? 0 : EFAULT;
  return EFAULT;
}

ibv_mr* Register(ibv_pd* pd, void* address, size_t length, uint64_t iova, unsigned access) {
  constexpr unsigned kRemoteChanges = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  if ((access & kRemoteChanges) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) return Fail(EINVAL);
  if ((access & IBV_ACCESS_ON_DEMAND) != 0) return Fail(EOPNOTSUPP);
  const bool write = (access & (IBV_ACCESS_LOCAL_WRITE | kRemoteChanges)) != 0;
  Context* context = Own(pd->context);
  const bool pin = context->session->pins_memory();
  if (const int error = CheckPages(reinterpret_cast<uintptr_t>(address), length, write, pin))
    return Fail(error);
  CallArguments arguments;
  arguments.id = pd->handle;
  arguments.address = reinterpret_cast<uint64_t>(address);
  arguments.length = length;
  arguments.iova = (access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : iova;
  arguments.port = access;
  if (const int error = Invoke(context, Call::kRegMr, &arguments)) return Fail(error);
  auto* own = new Mr;
  own->mr.context = pd->context;
  own->mr.pd = pd;
  own->mr.addr = address;
  own->mr.length = length;
  own->mr.handle = own->mr.lkey = own->mr.rkey = arguments.id;
  std::lock_guard lock(context->objects_mutex);
  context->regions.insert(own);
  return &own->mr;
}

}  // namespace

int DeregMr(Mr* mr) {
  Context* context = Own(mr->mr.context);
  CallArguments arguments;
  arguments.id = mr->mr.lkey;
  const int error = Invoke(context, Call::kDeregMr, &arguments);
  // With the fabric process dead nothing touches the memory any more.
  if (error != 0 && error != EIO) return error;
  std::lock_guard lock(context->objects_mutex);
  context->regions.erase(mr);
  delete mr;
  return 0;
}

int DeallocPd(Pd* pd) {
  Context* context = Own(pd->pd.context);
  CallArguments arguments;
  arguments.id = pd->pd.handle;
  const int error = Invoke(context, Call::kDeallocPd, &arguments);
  if (error != 0 && error != EIO) return error;
  std::lock_guard lock(context->objects_mutex);
  context->domains.erase(pd);
  delete pd;
  return 0;
}

}  // namespace sluice::soft

using namespace sluice::soft;

extern "C" {

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  Context* own_context = Own(context);
  CallArguments arguments;
  if (const int error = own_context->session->Invoke(Call::kAllocPd, own_context->nic, &arguments))
    return Fail(error);
  auto* own = new Pd;
  own->pd.context = context;
  own->pd.handle = arguments.id;
  std::lock_guard lock(own_context->objects_mutex);
  own_context->domains.insert(own);
  return &own->pd;
}

int ibv_dealloc_pd(ibv_pd* pd) {
  return DeallocPd(Own(pd));
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t length, int access) {
  return Register(pd, address, length, reinterpret_cast<uintptr_t>(address), static_cast<unsigned>(access));
}

ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* address, size_t length, uint64_t iova, int access) {
  return Register(pd, address, length, iova, static_cast<unsigned>(access));
}

// Optional access flags are hints that a device may ignore.
ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t length, uint64_t iova, unsigned access) {
  return Register(pd, address, length, iova, access);
}

// The answer of a device without peer memory. SLUICE_FABRIC_DMABUF_ERRNO names another one, for programs that
// want to see how they cope.
ibv_mr* ibv_reg_dmabuf_mr(ibv_pd*, uint64_t, size_t, uint64_t, int, int) {
  const char* wanted = getenv("SLUICE_FABRIC_DMABUF_ERRNO");
  const int error = wanted != nullptr ? atoi(wanted) : 0;
  return Fail(error > 0 ? error : EOPNOTSUPP);
}

int ibv_dereg_mr(ibv_mr* mr) {
  return DeregMr(Own(mr));
}

int ibv_rereg_mr(ibv_mr*, int, ibv_pd*, void*, size_t, int) {
  errno = EOPNOTSUPP;
  return IBV_REREG_MR_ERR_INPUT;
}

}  // extern "C"
