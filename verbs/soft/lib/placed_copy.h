// Copies between a program's memory and the payload pool, in the order that consumers of RDMA data rely on.
//
// PlaceAscending writes by aligned stores of 8 or 16 bytes in ascending order, as an HCA does over PCIe:
// a program that polls a flag word inside the data and sees it set finds everything below it in place. Only
// the unaligned first and last bytes use smaller stores. String moves, memcpy and non-temporal stores give no
// such order and are never used for it.
//
// CaptureBytes reads program memory into the pool, in any order.
//
// The two atomics return the value before.
//
// All work on memory whose neighbourhood a sanitizer may have poisoned: the registered region is what
// counts.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::soft {

#if defined(__x86_64__)

#define SLUICE_SOFT_STORE(name, load, store)                                              \
  inline void name(uint8_t* to, const uint8_t* from) {                                    \
    asm volatile(load " (%1), %%eax\n\t" store : : "r"(to), "r"(from) : "rax", "memory"); \
  }
SLUICE_SOFT_STORE(StoreByte, "movzbl", "movb %%al, (%0)")
SLUICE_SOFT_STORE(StoreHalf, "movzwl", "movw %%ax, (%0)")
SLUICE_SOFT_STORE(StoreQuad, "movl", "movl %%eax, (%0)")
#undef SLUICE_SOFT_STORE
inline void StoreEight(uint8_t* to, const uint8_t* from) {
  asm volatile(
      "movq (%1), %%rax\n\t"
      "movq %%rax, (%0)"
      :
      : "r"(to), "r"(from)
      : "rax", "memory");
}

__attribute__((no_sanitize("address", "thread", "undefined"))) inline void PlaceAscending(void* destination,
                                                                                          const void* source,
                                                                                          size_t size) {
  auto* to = static_cast<uint8_t*>(destination);
  const auto* from = static_cast<const uint8_t*>(source);
  const auto misaligned = [&to](uintptr_t bit) { return (reinterpret_cast<uintptr_t>(to) & bit) != 0; };
  if (size >= 1 && misaligned(1)) StoreByte(to, from), to += 1, from += 1, size -= 1;
  if (size >= 2 && misaligned(2)) StoreHalf(to, from), to += 2, from += 2, size -= 2;
  if (size >= 4 && misaligned(4)) StoreQuad(to, from), to += 4, from += 4, size -= 4;
  if (size >= 8 && misaligned(8)) StoreEight(to, from), to += 8, from += 8, size -= 8;
  for (; size >= 64; to += 64, from += 64, size -= 64) {
    asm volatile(
        "movdqu   (%1), %%xmm0\n\t"
        "movdqu 16(%1), %%xmm1\n\t"
        "movdqu 32(%1), %%xmm2\n\t"
        "movdqu 48(%1), %%xmm3\n\t"
        "movdqa %%xmm0,   (%0)\n\t"
        "movdqa %%xmm1, 16(%0)\n\t"
        "movdqa %%xmm2, 32(%0)\n\t"
        "movdqa %%xmm3, 48(%0)"
        :
        : "r"(to), "r"(from)
        : "xmm0", "xmm1", "xmm2", "xmm3", "memory");
  }
  for (; size >= 8; to += 8, from += 8, size -= 8) StoreEight(to, from);
  if (size >= 4) StoreQuad(to, from), to += 4, from += 4, size -= 4;
  if (size >= 2) StoreHalf(to, from), to += 2, from += 2, size -= 2;
  if (size >= 1) StoreByte(to, from);
}

__attribute__((no_sanitize("address", "thread", "undefined"))) inline void CaptureBytes(void* destination,
                                                                                        const void* source,
                                                                                        size_t size) {
  asm volatile("rep movsb" : "+D"(destination), "+S"(source), "+c"(size) : : "memory");
}

#else

__attribute__((no_sanitize("address", "thread", "undefined"))) inline void PlaceAscending(void* destination,
                                                                                          const void* source,
                                                                                          size_t size) {
  auto* to = static_cast<uint8_t*>(destination);
  const auto* from = static_cast<const uint8_t*>(source);
  for (; size > 0 && (reinterpret_cast<uintptr_t>(to) & 7) != 0; --size)
    __atomic_store_n(to++, *from++, __ATOMIC_RELEASE);
  for (; size >= 8; to += 8, from += 8, size -= 8) {
    uint64_t word;
    __builtin_memcpy(&word, from, 8);
    __atomic_store_n(reinterpret_cast<uint64_t*>(to), word, __ATOMIC_RELEASE);
  }
  for (; size > 0; --size) __atomic_store_n(to++, *from++, __ATOMIC_RELEASE);
}

__attribute__((no_sanitize("address", "thread", "undefined"))) inline void CaptureBytes(void* destination,
                                                                                        const void* source,
                                                                                        size_t size) {
  auto* to = static_cast<volatile uint8_t*>(destination);
  const auto* from = static_cast<const volatile uint8_t*>(source);
  for (; size > 0; --size) *to++ = *from++;
}

#endif

__attribute__((noinline, no_sanitize("address", "thread", "undefined"))) inline uint64_t CompareSwapWord(
    void* address, uint64_t compare, uint64_t swap) {
  __atomic_compare_exchange_n(static_cast<uint64_t*>(address), &compare, swap, false, __ATOMIC_SEQ_CST,
                              __ATOMIC_SEQ_CST);
  return compare;
}

__attribute__((noinline, no_sanitize("address", "thread", "undefined"))) inline uint64_t FetchAddWord(
    void* address, uint64_t add) {
  return __atomic_fetch_add(static_cast<uint64_t*>(address), add, __ATOMIC_SEQ_CST);
}

}  // namespace sluice::soft
