// The debug log of the fabric process: the file that SLUICE_FABRIC_LOG names, "-" for standard error.
//
//   Log("client %u attached to host %s", id, name);   // one line with time and process
//
// Thread rule: any thread; lines are written whole.
#pragma once

namespace sluice::soft {

// Opens `path`; null or empty: no log. False when it cannot be opened (errno set).
bool OpenLog(const char* path);
bool Logging();
__attribute__((format(printf, 1, 2))) void Log(const char* format, ...);

}  // namespace sluice::soft
