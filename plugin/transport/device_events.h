// Asynchronous events of the devices in use: port changes are logged, fatal events fail the paths they
// concern.
#pragma once

#include <memory>

#include "base/status.h"
#include "plugin/transport/event_loop.h"
#include "verbs/device.h"

namespace sluice {

class Engine;

// Any thread but the event thread. Starts to watch the device at the first call for it.
Status WatchDevice(EventLoop& loop, const std::shared_ptr<DeviceContext>& device, bool fatal_events_fail);

// Event thread: fatal events of its devices reach this engine from now on, until it is removed.
void AddDeviceUser(Engine& engine);
void RemoveDeviceUser(Engine& engine);

}  // namespace sluice
