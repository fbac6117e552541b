#include "plugin/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdarg>
#include <string>
#include <thread>
#include <vector>

namespace sluice {
namespace {

struct Line {
  int level;
  unsigned long flags;
  std::string file;
  std::string text;
};
std::vector<Line> g_lines;

void Record(int level, unsigned long flags, const char* file, int /*line*/, const char* format, ...) {
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  g_lines.push_back({level, flags, file, text});
}

// One test: the logger is set once per process and stays.
TEST(LogTest, BeforeAndAfterTheLogger) {
  ASSERT_EQ(CurrentLogger(), nullptr);
  int evaluated = 0;
  testing::internal::CaptureStderr();
  SLUICE_INFO(kLogNet, "nobody reads %d", ++evaluated);
  SLUICE_TRACE(kLogNet, "nobody reads %d", ++evaluated);
  SLUICE_WARN("early %s", "warning");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "NET/Sluice : early warning\n");
  EXPECT_EQ(evaluated, 0);

  SetLogger(&Record);
  SetLogger(nullptr);  // a communicator without a logger leaves it
  EXPECT_EQ(CurrentLogger(), &Record);
  testing::internal::CaptureStderr();
  SLUICE_WARN("%d%%", 50);
  SLUICE_INFO(kLogInit | kLogNet, "%s", "100% of it");
  SLUICE_TRACE(kLogNet, "%s", std::string(5000, 'x').c_str());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  ASSERT_EQ(g_lines.size(), 3u);
  EXPECT_EQ(g_lines[0].level, 2);
  EXPECT_EQ(g_lines[0].flags, ~0UL);
  EXPECT_EQ(g_lines[0].file, "log_test.cc");
  EXPECT_EQ(g_lines[0].text, "NET/Sluice : 50%");
  EXPECT_EQ(g_lines[1].level, 3);
  EXPECT_EQ(g_lines[1].flags, kLogInit | kLogNet);
  EXPECT_EQ(g_lines[1].text, "NET/Sluice : 100% of it");
  EXPECT_EQ(g_lines[2].level, 5);
  EXPECT_EQ(g_lines[2].text, "NET/Sluice : " + std::string(1023, 'x'));  // cut, not overrun
}

}  // namespace
}  // namespace sluice
