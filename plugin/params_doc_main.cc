// sluice-params-doc: prints docs/configuration.md.
#include <cstdio>

#include "plugin/params.h"

int main() {
  const std::string page = sluice::ParamsMarkdown();
  return std::fwrite(page.data(), 1, page.size(), stdout) == page.size() && std::fflush(stdout) == 0 ? 0 : 1;
}
