#include "plugin/transport/activity_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

namespace sluice {
namespace {

namespace fs = std::filesystem;

class ActivityFileTest : public testing::Test {
 protected:
  ActivityFileTest() {
    std::string pattern = fs::temp_directory_path() / "activity-XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  ~ActivityFileTest() override { fs::remove_all(directory_); }

  ActivityFile Open(const std::string& port) {
    Result<ActivityFile> file = ActivityFile::Open(directory_, port);
    EXPECT_TRUE(file.ok()) << file.status().message();
    return file.ok() ? std::move(*file) : ActivityFile();
  }
  std::string UserDirectory() const { return directory_ + "/sluice-" + std::to_string(geteuid()); }
  size_t Files() const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(UserDirectory()), fs::directory_iterator()));
  }
  static void Seat(ActivityFile& file, PortShare& share, uint64_t engine) {
    share.Configure({.bytes_per_tick = 1, .hold = 1000, .budget_bytes = 1, .piece_bytes = 128}, {});
    share.Join(*file.board(), ActivityFile::OwnerOf(engine), 1);
  }

  std::string directory_;
};

TEST_F(ActivityFileTest, OnePortIsOneBoardAndOthersAreNot) {
  ActivityFile first = Open("mlx5_0 1 1"), same = Open("mlx5_0 1 1"), other = Open("mlx5_0 1 2");
  first.board()->strict_until = 7;
  EXPECT_EQ(same.board()->strict_until, 7u);
  EXPECT_EQ(other.board()->strict_until, 0u);
  EXPECT_EQ(fs::status(UserDirectory()).permissions(), fs::perms::owner_all);
}

TEST_F(ActivityFileTest, TheLastToCloseRemovesTheFile) {
  ActivityFile first = Open("p"), second = Open("p");
  PortShare one, two;
  Seat(first, one, 1);
  Seat(second, two, 2);
  one.Leave();
  first.Close();
  EXPECT_EQ(Files(), 1u);
  two.Leave();
  second.Close();
  EXPECT_EQ(Files(), 0u);
}

TEST_F(ActivityFileTest, SeatsOfAKilledProcessAreFreedByTheNext) {
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    ActivityFile file = Open("p");
    PortShare share;
    Seat(file, share, 77);
    (void)!write(ready[1], "x", 1);
    pause();
    _exit(0);
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  {
    ActivityFile alive = Open("p");
    EXPECT_EQ(alive.board()->seats[0].owner, 77u) << "a living process keeps its seat";
    alive.Close();
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(Files(), 1u);
  ActivityFile next = Open("p");
  EXPECT_EQ(next.board()->seats[0].owner, 0u);
  next.Close();
  EXPECT_EQ(Files(), 0u);
  close(ready[0]);
  close(ready[1]);
}

TEST_F(ActivityFileTest, WhatIsNotOursIsRefusedInOneLine) {
  const std::string victim = directory_ + "/victim";
  fs::create_directory(victim);
  fs::create_directory_symlink(victim, UserDirectory());
  const Result<ActivityFile> linked = ActivityFile::Open(directory_, "p");
  ASSERT_FALSE(linked.ok());
  EXPECT_NE(linked.status().message().find("SLUICE_SHARED_DIR"), std::string::npos)
      << linked.status().message();
  EXPECT_TRUE(fs::is_empty(victim));
  EXPECT_FALSE(ActivityFile::Open(directory_ + "/missing", "p").ok());
}

TEST_F(ActivityFileTest, AFileOfAnotherSizeIsMadeFit) {
  Open("p").Close();
  fs::create_directories(UserDirectory());
  ActivityFile first = Open("p");
  const fs::path file = fs::directory_iterator(UserDirectory())->path();
  PortShare share;
  Seat(first, share, 1);
  fs::resize_file(file, 10);
  ActivityFile second = Open("p");
  second.board()->seats[kBoardSeats - 1].owner = 0;  // no signal
  EXPECT_EQ(fs::file_size(file), sizeof(ActivityBoard));
}

}  // namespace
}  // namespace sluice
