// Asynchronous events of a device: what the HCA reports outside completion queues.
//
//   Status drained = DrainAsyncEvents(*device, [&](const AsyncEvent& event) { ... });   // when async_fd() is
//   readable
//
// Thread rule: one thread per device drains (the process's event thread). The handler runs on it, before the
// event is acknowledged, so the queue that it names still exists; it must not destroy queues (destruction
// waits for this very acknowledgement) and should only mark state.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace sluice {

class DeviceContext;

enum class AsyncEventClass : uint8_t {
  kPortUp,      // port active: GIDs and LID may differ, and GIDs may come back later
  kPortDown,    // port error
  kPortChange,  // LID, P_Key, GID table or subnet manager changed
  kQpFatal,     // the queue pair is in ERR or about to be
  kQpInfo,      // communication established, SQ drained, path migrated
  kQpLastWqe,   // no more receive entries will be consumed by the queue pair
  kSrqFatal,
  kSrqLimit,
  kCqFatal,      // overrun: completions are lost
  kDeviceFatal,  // every object of the device is unusable
  kOther,
};

struct AsyncEvent {
  AsyncEventClass event_class = AsyncEventClass::kOther;
  ibv_event_type type = IBV_EVENT_DEVICE_FATAL;
  uint8_t port = 0;        // port classes
  ibv_qp* qp = nullptr;    // queue pair classes; valid inside the handler
  uint32_t qp_number = 0;  // likewise
  ibv_cq* cq = nullptr;    // kCqFatal
  ibv_srq* srq = nullptr;  // shared receive queue classes
};

// Reads what is pending, without waiting, and acknowledges each event after its handler. Errors: kSystem when
// the device's event channel fails (device removed).
Status DrainAsyncEvents(const DeviceContext& device, const std::function<void(const AsyncEvent&)>& handler);

// The same over raw verbs; `read` returns 0, or -1 with errno EAGAIN when empty. For tests.
struct AsyncEventSource {
  std::function<int(ibv_async_event*)> read;
  std::function<void(ibv_async_event*)> acknowledge;
};
Status DrainAsyncEvents(const AsyncEventSource& source, std::string_view device_name,
                        const std::function<void(const AsyncEvent&)>& handler);

AsyncEvent ClassifyAsyncEvent(const ibv_async_event& event);
std::string_view AsyncEventName(ibv_event_type type);  // "port error", "queue pair fatal", ...
// Whether open operations on what the event names cannot succeed any more.
bool IsFatal(AsyncEventClass event_class);
// "mlx5_0:1: port error", "mlx5_0: queue pair 17: access violation".
std::string DescribeAsyncEvent(const AsyncEvent& event, std::string_view device_name);

}  // namespace sluice
