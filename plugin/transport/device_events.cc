#include "plugin/transport/device_events.h"

#include <sys/epoll.h>

#include <map>
#include <set>

#include "plugin/log.h"
#include "plugin/transport/engine.h"
#include "plugin/transport/path.h"
#include "verbs/async_events.h"

namespace sluice {
namespace {

// Event thread only.
std::map<const DeviceContext*, std::shared_ptr<DeviceContext>>& Watched() {
  static auto* const watched = new std::map<const DeviceContext*, std::shared_ptr<DeviceContext>>;
  return *watched;
}

std::set<Engine*>& Users() {
  static auto* const users = new std::set<Engine*>;
  return *users;
}

bool Uses(const Engine& engine, const DeviceContext& device) {
  for (uint32_t i = 0; i < engine.port_count; ++i) {
    if (engine.ports[i].device.get() == &device) return true;
  }
  return false;
}

void FailAllOn(const DeviceContext& device, const Status& cause) {
  for (Engine* engine : Users()) {
    if (!Uses(*engine, device)) continue;
    ControlGuard guard(engine->lock);
    engine->FailAll(cause);
  }
}

void OnEvent(const DeviceContext& device, const AsyncEvent& event) {
  const std::string text = DescribeAsyncEvent(event, device.name());
  switch (event.event_class) {
    case AsyncEventClass::kQpFatal: {
      SLUICE_WARN("%s", text.c_str());
      for (Engine* engine : Users()) {
        if (!Uses(*engine, device)) continue;
        ControlGuard guard(engine->lock);
        if (Path* path = engine->FindPath(event.qp_number))
          engine->FailPath(*path, SystemError(text + "; see the log of the peer and dmesg"));
      }
      return;
    }
    case AsyncEventClass::kSrqFatal:
    case AsyncEventClass::kCqFatal:
    case AsyncEventClass::kDeviceFatal:
      SLUICE_WARN("%s", text.c_str());
      return FailAllOn(device, SystemError(text + "; every connection on this device failed, see dmesg"));
    case AsyncEventClass::kPortUp:
    case AsyncEventClass::kPortDown:
      // Queue pairs survive a flap that is shorter than timeout x retries; a longer one ends in a completion
      // error.
      SLUICE_INFO(kLogAll, "%s", text.c_str());
      return;
    case AsyncEventClass::kQpLastWqe:  // each receiving queue pair of a path that ends, whatever the cause
      SLUICE_TRACE(kLogNet, "%s", text.c_str());
      return;
    default:
      SLUICE_INFO(kLogNet, "%s", text.c_str());
  }
}

}  // namespace

Status WatchDevice(EventLoop& loop, const std::shared_ptr<DeviceContext>& device, bool fatal_events_fail) {
  Status status;
  loop.Run([&] {
    if (!fatal_events_fail || Watched().contains(device.get())) return;
    DeviceContext* context = device.get();
    status = loop.Watch(context->async_fd(), EPOLLIN, [&loop, context](uint32_t) {
      const Status drained =
          DrainAsyncEvents(*context, [context](const AsyncEvent& event) { OnEvent(*context, event); });
      if (drained.ok()) return;
      loop.Unwatch(context->async_fd());
      FailAllOn(*context, drained);
    });
    if (status.ok()) Watched()[context] = device;
  });
  return status;
}

void AddDeviceUser(Engine& engine) {
  Users().insert(&engine);
}

void RemoveDeviceUser(Engine& engine) {
  Users().erase(&engine);
}

}  // namespace sluice
