// The lanes of an outbound path: queue pairs for each service class, agreed with the receiver.
//
//   OrderLanes(lanes); CreateQueues(path, lanes); link.Send(kPath, AskFor(path)); ... on PATH_OK:
//   ApplyRefusals(path, answer); ConnectPair(...); PublishQueues(path);
//
// Threads: event thread.
#pragma once

#include <vector>

#include "base/status.h"
#include "plugin/lanes.h"
#include "plugin/transport/path.h"

namespace sluice {

// Control first, then the default class, which every path has, then the others.
void OrderLanes(std::vector<LaneSpec>& lanes);
// The queue pairs of a path in the order of `lanes`, and path.classes. A lane without queue pairs stays so. Where the device has no room for a lane its
// class goes without, except the default one, which takes fewer queue pairs first.
Status CreateQueues(OutPath& path, const std::vector<LaneSpec>& lanes);
// PATH for what was created, without its base_psn.
PathFrame AskFor(OutPath& path);
// Gives up the queue pairs of the classes that the receiver refused. False when the answer does not fit the question.
bool ApplyRefusals(OutPath& path, const PathFrame& answer);
// Lanes and queues as the data path uses them. Under the engine's lock.
void PublishQueues(OutPath& path);

}  // namespace sluice
