// The sockets between the software fabric's library and its process.
#include "verbs/soft/ipc/socket.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

namespace sluice::soft {
namespace {

TEST(SoftIpcTest, OwnerOfTheName) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds), 0);
  const UniqueFd ours(fds[0]), theirs(fds[1]);
  EXPECT_TRUE(CheckOwner(ours.get(), geteuid(), "lab").ok());
  const Status stranger = CheckOwner(ours.get(), geteuid() + 1, "lab");
  ASSERT_FALSE(stranger.ok());
  for (const std::string& part : {std::string("SLUICE_FABRIC=\"lab\""), "process " + std::to_string(getpid()),
                                  "user " + std::to_string(geteuid()), std::string("another name")}) {
    EXPECT_NE(stranger.message().find(part), std::string::npos) << part << " in: " << stranger.message();
  }
}

TEST(SoftIpcTest, OwnerOfNoSocket) {
  const UniqueFd file(dup(STDERR_FILENO));
  EXPECT_FALSE(CheckOwner(file.get(), geteuid(), "lab").ok());
}

}  // namespace
}  // namespace sluice::soft
