#include "base/status.h"

#include <cstring>

namespace sluice {

std::string_view CodeName(Code code) {
  switch (code) {
    case Code::kOk:
      return "ok";
    case Code::kInvalidArgument:
      return "invalid argument";
    case Code::kInvalidUsage:
      return "invalid usage";
    case Code::kSystem:
      return "system error";
    case Code::kInternal:
      return "internal error";
    case Code::kRemote:
      return "remote error";
  }
  return "unknown";
}

Status::Status(Code code, std::string message) : rep_(new Rep{{1}, code, std::move(message)}) {}

const std::string& Status::message() const {
  static const std::string* const empty = new std::string;
  return rep_ == nullptr ? *empty : rep_->message;
}

void Status::Unref() {
  if (rep_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete rep_;
}

Status InvalidArgument(std::string message) {
  return {Code::kInvalidArgument, std::move(message)};
}
Status InvalidUsage(std::string message) {
  return {Code::kInvalidUsage, std::move(message)};
}
Status SystemError(std::string message) {
  return {Code::kSystem, std::move(message)};
}
Status InternalError(std::string message) {
  return {Code::kInternal, std::move(message)};
}
Status RemoteError(std::string message) {
  return {Code::kRemote, std::move(message)};
}

Status SystemError(std::string_view what, int error, std::string_view remedy) {
  char buffer[128] = "";
  const char* text = strerror_r(error, buffer, sizeof(buffer));
  std::string message(what);
  message.append(": ").append(text).append(" (errno ").append(std::to_string(error)).append(")");
  if (!remedy.empty()) message.append("; ").append(remedy);
  return {Code::kSystem, std::move(message)};
}

}  // namespace sluice
