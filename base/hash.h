// Hash of a text that is the same in every process and release: names of shared files and of sockets.
#pragma once

#include <cstdint>
#include <string_view>

namespace sluice {

// FNV-1a, 64 bits (Fowler, Noll, Vo).
constexpr uint64_t Fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace sluice
