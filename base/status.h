// Errors as values. A Status is one pointer: null means success, so a successful call costs one compare.
//
//   Result<Port> port = OpenPort(name);
//   if (!port.ok()) return port.status();
//   Use(*port);
//
// Message rule: one line that names what failed, the value, the cause and the remedy.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace sluice {

// The classes a caller can react to; they map one to one to ncclResult_t in plugin/abi.
enum class Code : uint8_t {
  kOk = 0,
  kInvalidArgument,  // the caller passed something that can never work (ncclInvalidArgument)
  kInvalidUsage,     // right argument, wrong moment: use after close or finalize (ncclInvalidUsage)
  kSystem,           // this host failed: verbs, memory, descriptors (ncclSystemError)
  kInternal,         // a defect or an inconsistent state of Sluice (ncclInternalError)
  kRemote,           // the peer or the network failed (ncclRemoteError)
};

std::string_view CodeName(Code code);

// Thread rule: as a value type; different copies may be used by different threads.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message);
  Status(const Status& other) : rep_(other.rep_) { Ref(); }
  Status(Status&& other) noexcept : rep_(std::exchange(other.rep_, nullptr)) {}
  Status& operator=(Status other) noexcept {
    std::swap(rep_, other.rep_);
    return *this;
  }
  ~Status() {
    if (rep_ != nullptr) [[unlikely]]
      Unref();
  }

  static Status Ok() { return {}; }
  bool ok() const { return rep_ == nullptr; }
  Code code() const { return rep_ == nullptr ? Code::kOk : rep_->code; }
  // Empty when ok(). Lives as long as any copy of this status.
  const std::string& message() const;

 private:
  struct Rep {
    std::atomic<int> references;
    Code code;
    std::string message;
  };
  void Ref() const {
    if (rep_ != nullptr) rep_->references.fetch_add(1, std::memory_order_relaxed);
  }
  void Unref();

  Rep* rep_ = nullptr;
};

Status InvalidArgument(std::string message);
Status InvalidUsage(std::string message);
Status SystemError(std::string message);
// "<what>: <strerror(error)> (errno <error>)"; remedy, if not empty, follows after "; ".
Status SystemError(std::string_view what, int error, std::string_view remedy = {});
Status InternalError(std::string message);
Status RemoteError(std::string message);

// A value or the Status that tells why there is none. T must be default constructible and movable.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  T& operator*() { return value_; }
  const T& operator*() const { return value_; }
  T* operator->() { return &value_; }
  const T* operator->() const { return &value_; }
  T& value() { return value_; }

 private:
  Status status_;
  T value_{};
};

// Returns from the enclosing function when `expression` is a Status that is not ok.
#define SLUICE_RETURN_IF_ERROR(expression)          \
  do {                                              \
    ::sluice::Status sluice_status_ = (expression); \
    if (!sluice_status_.ok()) [[unlikely]]          \
      return sluice_status_;                        \
  } while (0)

}  // namespace sluice
