#include "tools/perf/library_messages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace sluice::perf {

LibraryMessages::LibraryMessages() : file_(memfd_create("sluice-perf-messages", MFD_CLOEXEC)) {
  if (file_.valid()) setenv("SLUICE_FABRIC_ERROR_FD", absl::StrCat(getpid(), ":", file_.get()).c_str(), 1);
}

LibraryMessages::~LibraryMessages() {
  if (!file_.valid()) return;
  fputs(ReadAll().c_str(), stderr);
}

std::string LibraryMessages::ReadAll() {
  std::string text;
  char buffer[4096];
  off_t at = 0;
  for (ssize_t n; (n = pread(file_.get(), buffer, sizeof buffer, at)) > 0; at += n)
    text.append(buffer, static_cast<size_t>(n));
  return text;
}

std::string LibraryMessages::Take() {
  if (!file_.valid()) return "";
  const std::string text = ReadAll();
  if (ftruncate(file_.get(), 0) == 0) lseek(file_.get(), 0, SEEK_SET);
  const size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  const size_t before = text.rfind('\n', end);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  constexpr std::string_view kPrefix = "sluice: ";
  std::string_view line = std::string_view(text).substr(begin, end + 1 - begin);
  if (line.starts_with(kPrefix)) line.remove_prefix(kPrefix.size());
  return std::string(line);
}

}  // namespace sluice::perf
