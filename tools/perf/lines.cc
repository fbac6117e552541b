#include "tools/perf/lines.h"

#include <algorithm>
#include <cstring>

#include "tools/perf/schedule_parts.h"

// The network stores behind the back of the program; only the flag protocol orders these accesses.
#if defined(__SANITIZE_THREAD__)
#define SLUICE_READS_NETWORK_MEMORY __attribute__((no_sanitize("thread")))
#else
#define SLUICE_READS_NETWORK_MEMORY
#endif

namespace sluice::perf {
namespace {

constexpr size_t kWord = sizeof(uint64_t);
constexpr size_t kLl128DataWords = 15;
constexpr size_t kLl128GroupLines = 16;

uint64_t LlFlag(uint64_t step) {
  return static_cast<uint64_t>(static_cast<uint32_t>(step + 1)) << 32;
}

void Store(std::byte* at, uint64_t value) {
  __atomic_store_n(reinterpret_cast<uint64_t*>(at), value, __ATOMIC_RELEASE);
}
SLUICE_READS_NETWORK_MEMORY inline uint64_t Load(const std::byte* at) {
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(at), __ATOMIC_ACQUIRE);
}
SLUICE_READS_NETWORK_MEMORY inline uint64_t LoadPlain(const std::byte* at) {
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(at), __ATOMIC_RELAXED);
}

}  // namespace

size_t LineDataBytes(Proto proto) {
  return proto == Proto::kLl ? 8 : 120;
}
size_t LineWireBytes(Proto proto) {
  return proto == Proto::kLl ? 16 : 128;
}

size_t LinesFor(Proto proto, size_t bytes) {
  const size_t lines = CeilDiv(bytes, LineDataBytes(proto));
  return proto == Proto::kLl ? lines : RoundUp(lines, kLl128GroupLines);
}

size_t WireBytes(Proto proto, size_t bytes) {
  return proto == Proto::kSimple ? bytes : LinesFor(proto, bytes) * LineWireBytes(proto);
}

void PackLines(Proto proto, uint64_t step, const std::byte* data, size_t bytes, std::byte* wire) {
  const size_t lines = LinesFor(proto, bytes);
  if (proto == Proto::kLl) {
    const uint64_t flag = LlFlag(step);
    for (size_t word = 0; word < 2 * lines; ++word) {
      uint32_t value = 0;
      if (word * 4 < bytes) std::memcpy(&value, data + word * 4, std::min<size_t>(4, bytes - word * 4));
      Store(wire + word * kWord, flag | value);
    }
    return;
  }
  for (size_t line = 0; line < lines; ++line, wire += 128) {
    const size_t at = line * 120;
    const size_t here = at < bytes ? std::min<size_t>(120, bytes - at) : 0;
    if (here != 0) std::memcpy(wire, data + at, here);
    if (here < 120) std::memset(wire + here, 0, 120 - here);
    Store(wire + kLl128DataWords * kWord, step + 1);
  }
}

SLUICE_READS_NETWORK_MEMORY size_t UnpackLines(Proto proto, uint64_t step, const std::byte* wire,
                                               size_t first_line, size_t bytes, std::byte* data) {
  const size_t lines = LinesFor(proto, bytes);
  if (proto == Proto::kLl) {
    const uint64_t flag = LlFlag(step) >> 32;
    for (size_t line = first_line; line < lines; ++line) {
      const uint64_t low = Load(wire + line * 16);
      const uint64_t high = Load(wire + line * 16 + kWord);
      if (low >> 32 != flag || high >> 32 != flag) return line;
      const uint64_t value = (low & 0xffffffffu) | (high << 32);
      const size_t at = line * 8;
      if (bytes - at >= 8) {
        std::memcpy(data + at, &value, 8);
      } else {
        std::memcpy(data + at, &value, bytes - at);
      }
    }
    return lines;
  }
  for (size_t line = first_line; line < lines; ++line) {
    const std::byte* from = wire + line * 128;
    if (Load(from + kLl128DataWords * kWord) != step + 1) return line;
    const size_t at = line * 120;
    for (size_t word = 0; word < kLl128DataWords && at + word * kWord < bytes; ++word) {
      const uint64_t value = LoadPlain(from + word * kWord);
      std::memcpy(data + at + word * kWord, &value, std::min(kWord, bytes - at - word * kWord));
    }
  }
  return lines;
}

bool LinesReady(Proto proto, uint64_t step, const std::byte* wire, size_t wire_bytes) {
  if (proto == Proto::kLl) {
    const uint64_t flag = LlFlag(step) >> 32;
    for (size_t at = 0; at < wire_bytes; at += kWord) {
      if (Load(wire + at) >> 32 != flag) return false;
    }
    return true;
  }
  for (size_t at = 0; at < wire_bytes; at += 128) {
    if (Load(wire + at + kLl128DataWords * kWord) != step + 1) return false;
  }
  return true;
}

}  // namespace sluice::perf
