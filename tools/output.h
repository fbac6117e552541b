// Standard output of a command.
#pragma once

namespace sluice {

// What was printed has arrived; otherwise says why not, as `sluice COMMAND`.
bool OutputWritten(const char* command);

}  // namespace sluice
