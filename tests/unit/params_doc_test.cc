// The reference page and the code say the same as the registry.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "plugin/params.h"

namespace sluice {
namespace {

std::filesystem::path SourceDir() {
  const char* const dir = std::getenv("SLUICE_SOURCE_DIR");
  return dir == nullptr ? "." : dir;
}

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ParamsDocTest, CommittedPageIsCurrent) {
  EXPECT_EQ(ReadFile(SourceDir() / "docs/configuration.md"), ParamsMarkdown())
      << "run: build/release/bin/sluice-params-doc > docs/configuration.md";
}

// A variable that the page calls honoured is one whose value some code reads.
TEST(ParamsDocTest, HonouredValuesAreRead) {
  std::string code;
  for (const char* part : {"plugin/transport", "plugin/classify"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(SourceDir() / part)) {
      const std::string extension = entry.path().extension();
      if (extension == ".cc" || extension == ".h") code += ReadFile(entry.path());
    }
  }
  for (const ParamSpec& spec : ParamRegistry()) {
    if (spec.status != ParamStatus::kHonoured) continue;
    const std::string field = spec.field;
    const bool by_lanes = field == "sl" || field == "tc" || field == "ib_sl" || field == "ib_tc" ||
                          field == "ib_fifo_tc" || field == "qps_per_class";
    const bool read = by_lanes            ? code.find("ResolveLanes(") != std::string::npos
                      : field == "policy" ? code.find("GetPolicy(") != std::string::npos
                                          : code.find("." + field) != std::string::npos ||
                                                code.find(">" + field) != std::string::npos;
    EXPECT_TRUE(read) << spec.name
                      << " is called honoured, but nothing in the plugin reads Params::" << field;
  }
}

}  // namespace
}  // namespace sluice
