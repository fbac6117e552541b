// ibv_pd with an owner. See verbs/device.h: every DeviceContext has one; more are rarely needed.
#pragma once

#include <infiniband/verbs.h>

#include <utility>

#include "base/status.h"

namespace sluice {

// Thread rule: Create and destruction by one thread each; get() from any thread. Must outlive everything
// created in it.
class ProtectionDomain {
 public:
  static Result<ProtectionDomain> Create(ibv_context* context);

  ProtectionDomain() = default;
  ProtectionDomain(ProtectionDomain&& other) noexcept : pd_(std::exchange(other.pd_, nullptr)) {}
  ProtectionDomain& operator=(ProtectionDomain&& other) noexcept {
    std::swap(pd_, other.pd_);
    return *this;
  }
  ~ProtectionDomain();

  ibv_pd* get() const { return pd_; }
  explicit operator bool() const { return pd_ != nullptr; }

 private:
  explicit ProtectionDomain(ibv_pd* pd) : pd_(pd) {}
  ibv_pd* pd_ = nullptr;
};

}  // namespace sluice
