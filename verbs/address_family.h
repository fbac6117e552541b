// Address family of a socket or GID.
#pragma once

#include <cstdint>

namespace sluice {

enum class AddressFamily : uint8_t { kAny, kIpv4, kIpv6 };

}  // namespace sluice
