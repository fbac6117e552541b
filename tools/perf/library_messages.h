// Takes what the software fabric's library says of a failure, so that a rank can make it part of its own
// line instead of a second one.
//
//   LibraryMessages messages;             // before the library is used
//   ... the plugin finds no device ...
//   std::string cause = messages.Take();  // "" when the library said nothing
//
// One per process and thread.
#pragma once

#include <string>

#include "tools/perf/socket.h"

namespace sluice::perf {

class LibraryMessages {
 public:
  LibraryMessages();
  ~LibraryMessages();  // what nobody took goes to standard error
  LibraryMessages(const LibraryMessages&) = delete;
  LibraryMessages& operator=(const LibraryMessages&) = delete;

  // The last line, without the name of the library in front.
  std::string Take();

 private:
  std::string ReadAll();
  FileDescriptor file_;  // not valid: the library writes to standard error itself
};

}  // namespace sluice::perf
