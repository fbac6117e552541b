// The directory in memory where the processes of one user on a host meet: <SLUICE_SHARED_DIR>/sluice-<uid>. Nobody else can
// plant files or links there. Threads: any.
#pragma once

#include <string>

#include "base/status.h"

namespace sluice {

// Where it is, made or not.
std::string PrivateDirectoryPath(const std::string& shared_dir);
// Its descriptor, for the caller to close; made when it is missing.
Result<int> OpenPrivateDirectory(const std::string& shared_dir);

}  // namespace sluice
