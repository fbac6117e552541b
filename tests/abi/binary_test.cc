// What the dynamic linker sees of the plugin: symbols, dependencies, flags.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace sluice {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsSubsetOf;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

std::filesystem::path LibDir() {
  return std::filesystem::path(std::getenv("SLUICE_BUILD_DIR")) / "lib";
}

std::string Plugin() {
  return LibDir() / "libnccl-net-sluice.so";
}

std::string Output(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), &pclose);
  std::string text;
  char chunk[4096];
  for (size_t n; pipe != nullptr && (n = fread(chunk, 1, sizeof(chunk), pipe.get())) > 0;)
    text.append(chunk, n);
  EXPECT_FALSE(text.empty()) << command;
  return text;
}

// What follows `marker` up to one of `end`, for each line that has the marker.
std::vector<std::string> After(const std::string& text, const std::string& marker, const char* end) {
  std::vector<std::string> found;
  for (size_t at = text.find(marker); at != std::string::npos; at = text.find(marker, at)) {
    at += marker.size();
    found.push_back(text.substr(at, text.find_first_of(end, at) - at));
  }
  return found;
}

// The last word of each line: the name in a listing of nm.
std::vector<std::string> Names(const std::string& listing) {
  std::vector<std::string> names;
  std::istringstream lines(listing);
  for (std::string line; std::getline(lines, line);) names.push_back(line.substr(line.find_last_of(' ') + 1));
  return names;
}

std::string Dynamic() {
  return Output(std::string(SLUICE_READELF) + " -dW " + Plugin());
}

TEST(BinaryTest, ExportsOnlyWhatNcclLooksUp) {
  const std::string symbols = Output(std::string(SLUICE_NM) + " -D --defined-only " + Plugin());
  EXPECT_THAT(
      Names(symbols),
      UnorderedElementsAre("ncclNetPlugin_v7", "ncclNetPlugin_v8", "ncclNetPlugin_v9", "ncclNetPlugin_v10",
                           "ncclNetPlugin_v11", "ncclNetPlugin_v12", "ncclTunerPlugin_v1",
                           "ncclTunerPlugin_v2", "ncclTunerPlugin_v3", "ncclTunerPlugin_v4",
                           "ncclTunerPlugin_v5", "ncclTunerPlugin_v6", "ncclProfiler_v1", "ncclProfiler_v2",
                           "ncclProfiler_v3", "ncclProfiler_v4", "ncclProfiler_v5", "ncclProfiler_v6"));
}

// glibc keeps 1664 bytes for the thread-local storage of all libraries that are opened later.
TEST(BinaryTest, ThreadLocalStorageIsSmall) {
#ifndef SLUICE_SANITIZED
  const std::string headers = Output(std::string(SLUICE_READELF) + " -lW " + Plugin());
  const size_t at = headers.find("  TLS ");
  ASSERT_NE(at, std::string::npos) << headers;
  unsigned long offset = 0, address = 0, physical = 0, in_file = 0, in_memory = 0;
  ASSERT_EQ(std::sscanf(headers.c_str() + at, " TLS %lx %lx %lx %lx %lx", &offset, &address, &physical,
                        &in_file, &in_memory),
            5);
  EXPECT_LE(in_memory, 128u);
#endif
}

TEST(BinaryTest, NeedsOnlyLibcAndVerbs) {
  std::vector<std::string> allowed = {"libibverbs.so.1", "libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"};
#ifdef SLUICE_SANITIZED
  for (const char* name :
       {"libasan.so.8", "libubsan.so.1", "libtsan.so.2", "libstdc++.so.6", "libgcc_s.so.1"}) {
    allowed.emplace_back(name);
  }
#endif
  const std::string dynamic = Dynamic();
  EXPECT_THAT(After(dynamic, "Shared library: [", "]"), IsSubsetOf(allowed));
  EXPECT_THAT(dynamic, Not(HasSubstr("TEXTREL")));
  EXPECT_THAT(dynamic, Not(HasSubstr("RUNPATH")));
}

TEST(BinaryTest, StaysLoadedAndBindsAtOnce) {
  const std::string dynamic = Dynamic();
  EXPECT_THAT(dynamic, HasSubstr("NODELETE"));
  EXPECT_THAT(dynamic, HasSubstr("BIND_NOW"));
}

// What is undefined must come from the libraries above: no symbol of a C++ library of the process, whose
// version may differ.
TEST(BinaryTest, TakesNoCppSymbolFromTheProcess) {
#ifndef SLUICE_SANITIZED
  const std::string symbols = Output(std::string(SLUICE_NM) + " -D --undefined-only " + Plugin());
  EXPECT_THAT(After(symbols, " U ", "\n"), Each(Not(StartsWith("_Z"))));  // weak ones may stay undefined
  EXPECT_THAT(symbols, Not(HasSubstr("@GLIBCXX")));
  EXPECT_THAT(symbols, Not(HasSubstr("@CXXABI")));
#endif
}

TEST(BinaryTest, TunerAndProfilerNamesAreLinks) {
  for (const char* name : {"libnccl-tuner-sluice.so", "libnccl-profiler-sluice.so"}) {
    const std::filesystem::path link = LibDir() / name;
    ASSERT_TRUE(std::filesystem::is_symlink(link)) << link;
    EXPECT_EQ(std::filesystem::read_symlink(link), "libnccl-net-sluice.so");
  }
}

}  // namespace
}  // namespace sluice
