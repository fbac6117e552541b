#include "verbs/async_events.h"

#include <poll.h>

#include <cerrno>

#include "verbs/device.h"
#include "verbs/errors.h"

namespace sluice {

Status DrainAsyncEvents(const DeviceContext& device, const std::function<void(const AsyncEvent&)>& handler) {
  ibv_context* context = device.context();
  const AsyncEventSource source{
      .read =
          [context](ibv_async_event* event) {
            // Asked first: a library may block in ibv_get_async_event whatever the descriptor says.
            pollfd ready{.fd = context->async_fd, .events = POLLIN, .revents = 0};
            const int polled = poll(&ready, 1, 0);
            if (polled == 0) errno = EAGAIN;
            if (polled <= 0) return -1;
            errno = 0;
            return ibv_get_async_event(context, event);
          },
      .acknowledge = ibv_ack_async_event,
  };
  return DrainAsyncEvents(source, device.name(), handler);
}

Status DrainAsyncEvents(const AsyncEventSource& source, std::string_view device_name,
                        const std::function<void(const AsyncEvent&)>& handler) {
  for (;;) {
    ibv_async_event event{};
    if (source.read(&event) != 0) {
      const int error = ErrnoOf(-1);
      if (error == EINTR) continue;
      if (error == EAGAIN || error == EWOULDBLOCK) return Status::Ok();
      return VerbError("reading asynchronous events of " + std::string(device_name), error);
    }
    if (handler) handler(ClassifyAsyncEvent(event));
    source.acknowledge(&event);
  }
}

AsyncEvent ClassifyAsyncEvent(const ibv_async_event& event) {
  AsyncEvent result;
  result.type = event.event_type;
  // Which member of the union is set follows from the type alone.
  const auto port = [&](AsyncEventClass event_class) {
    result.event_class = event_class;
    result.port = static_cast<uint8_t>(event.element.port_num);
  };
  const auto queue_pair = [&](AsyncEventClass event_class) {
    result.event_class = event_class;
    result.qp = event.element.qp;
    result.qp_number = event.element.qp == nullptr ? 0 : event.element.qp->qp_num;
  };
  const auto shared_queue = [&](AsyncEventClass event_class) {
    result.event_class = event_class;
    result.srq = event.element.srq;
  };
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR:
      result.event_class = AsyncEventClass::kCqFatal;
      result.cq = event.element.cq;
      break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR:
      queue_pair(AsyncEventClass::kQpFatal);
      break;
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
      queue_pair(AsyncEventClass::kQpInfo);
      break;
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      queue_pair(AsyncEventClass::kQpLastWqe);
      break;
    case IBV_EVENT_SRQ_ERR:
      shared_queue(AsyncEventClass::kSrqFatal);
      break;
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      shared_queue(AsyncEventClass::kSrqLimit);
      break;
    case IBV_EVENT_PORT_ACTIVE:
      port(AsyncEventClass::kPortUp);
      break;
    case IBV_EVENT_PORT_ERR:
      port(AsyncEventClass::kPortDown);
      break;
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE:
      port(AsyncEventClass::kPortChange);
      break;
    case IBV_EVENT_DEVICE_FATAL:
      result.event_class = AsyncEventClass::kDeviceFatal;
      break;
    case IBV_EVENT_WQ_FATAL:
      break;
  }
  return result;
}

std::string_view AsyncEventName(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_CQ_ERR:
      return "completion queue overrun or error";
    case IBV_EVENT_QP_FATAL:
      return "queue pair fatal error";
    case IBV_EVENT_QP_REQ_ERR:
      return "invalid request";
    case IBV_EVENT_QP_ACCESS_ERR:
      return "access violation";
    case IBV_EVENT_COMM_EST:
      return "communication established";
    case IBV_EVENT_SQ_DRAINED:
      return "send queue drained";
    case IBV_EVENT_PATH_MIG:
      return "path migrated";
    case IBV_EVENT_PATH_MIG_ERR:
      return "path migration failed";
    case IBV_EVENT_DEVICE_FATAL:
      return "device fatal error";
    case IBV_EVENT_PORT_ACTIVE:
      return "port active";
    case IBV_EVENT_PORT_ERR:
      return "port error";
    case IBV_EVENT_LID_CHANGE:
      return "LID changed";
    case IBV_EVENT_PKEY_CHANGE:
      return "P_Key table changed";
    case IBV_EVENT_SM_CHANGE:
      return "subnet manager changed";
    case IBV_EVENT_SRQ_ERR:
      return "shared receive queue error";
    case IBV_EVENT_SRQ_LIMIT_REACHED:
      return "shared receive queue limit reached";
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      return "last receive entry reached";
    case IBV_EVENT_CLIENT_REREGISTER:
      return "client reregistration";
    case IBV_EVENT_GID_CHANGE:
      return "GID table changed";
    case IBV_EVENT_WQ_FATAL:
      return "work queue fatal error";
  }
  return "unknown event";
}

bool IsFatal(AsyncEventClass event_class) {
  switch (event_class) {
    case AsyncEventClass::kQpFatal:
    case AsyncEventClass::kSrqFatal:
    case AsyncEventClass::kCqFatal:
    case AsyncEventClass::kDeviceFatal:
      return true;
    default:
      return false;
  }
}

std::string DescribeAsyncEvent(const AsyncEvent& event, std::string_view device_name) {
  std::string text(device_name);
  if (event.port != 0) text.append(":").append(std::to_string(event.port));
  text.append(": ");
  if (event.qp != nullptr) text.append("queue pair ").append(std::to_string(event.qp_number)).append(": ");
  return text.append(AsyncEventName(event.type));
}

}  // namespace sluice
