// The rendezvous of ranks: threads stand for ranks.
#include "tools/perf/bootstrap.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tools/perf/coordinator.h"

namespace sluice::perf {
namespace {

using testing::HasSubstr;

// A job of `world` ranks on a port of this host; runs `body` on a thread per rank.
class Job {
 public:
  explicit Job(int world) : world_(world) {
    Result<FileDescriptor> listener = ListenTcp("127.0.0.1", &port_);
    EXPECT_TRUE(listener.ok());
    listener_ = std::move(*listener);
    for (int r = 0; r < world; ++r) states_.push_back(std::make_unique<JobState>());
  }

  BootstrapOptions OptionsOf(int rank) {
    BootstrapOptions options;
    options.rank = rank;
    options.world = world_;
    options.host = "127.0.0.1";
    options.port = port_;
    options.token = "token";
    options.timeout = std::chrono::milliseconds(10000);
    if (rank == 0) options.listen_fd = listener_.Release();
    return options;
  }

  template <typename Body>
  void Run(Body body) {
    std::vector<std::thread> threads;
    for (int r = 0; r < world_; ++r) {
      threads.emplace_back([this, r, body, options = OptionsOf(r)] { body(r, options, state(r)); });
    }
    for (std::thread& t : threads) t.join();
  }

  JobState* state(int rank) { return states_[static_cast<size_t>(rank)].get(); }
  int port() const { return port_; }

 private:
  int world_;
  int port_ = 0;
  FileDescriptor listener_;
  std::vector<std::unique_ptr<JobState>> states_;
};

TEST(BootstrapTest, GathersInRankOrder) {
  Job job(5);
  job.Run([](int rank, const BootstrapOptions& options, JobState* state) {
    auto boot = Bootstrap::Join(options, state);
    ASSERT_TRUE(boot.ok()) << boot.status().message();
    for (int round = 0; round < 20; ++round) {
      const std::string mine(static_cast<size_t>(rank) * 10000 + static_cast<size_t>(round),
                             static_cast<char>('a' + rank));
      auto all = (*boot)->AllGather(mine);
      ASSERT_TRUE(all.ok()) << all.status().message();
      ASSERT_EQ(all->size(), 5u);
      for (size_t r = 0; r < 5; ++r) {
        EXPECT_EQ((*all)[r], std::string(r * 10000 + static_cast<size_t>(round), static_cast<char>('a' + r)));
      }
    }
    (*boot)->Leave();
    EXPECT_FALSE(state->aborted());
  });
}

TEST(BootstrapTest, AFailureReachesEverybody) {
  Job job(3);
  job.Run([](int rank, const BootstrapOptions& options, JobState* state) {
    auto boot = Bootstrap::Join(options, state);
    ASSERT_TRUE(boot.ok());
    if (rank == 1) {
      (*boot)->Fail("the cable is cut");
    } else {
      const Status status = (*boot)->Barrier();
      EXPECT_FALSE(status.ok());
      EXPECT_THAT(status.message(), HasSubstr("the cable is cut"));
      EXPECT_EQ(state->origin(), 1);
    }
    (*boot)->Leave();
  });
}

TEST(BootstrapTest, ARankThatVanishesIsNamed) {
  Job job(2);
  auto vanish = [&job] {  // joins like rank 1 and hangs up without goodbye
    Result<FileDescriptor> fd = ConnectTcp("127.0.0.1", job.port(), 5000);
    ASSERT_TRUE(fd.ok());
    FrameChannel channel(std::move(*fd));
    Hello hello;
    hello.rank = 1;
    hello.world = 2;
    hello.token = "token";
    hello.host = "far";
    channel.Queue(FrameType::kHello, hello.Encode());
    channel.Queue(FrameType::kExchange, "");
    while (channel.has_output()) ASSERT_TRUE(channel.Flush().ok());
    Frame frame;
    for (bool got = false; !got;) {  // until rank 0 is in as well
      ASSERT_TRUE(channel.Read().ok());
      Result<bool> next = channel.Next(&frame);
      ASSERT_TRUE(next.ok());
      got = *next;
    }
  };
  std::thread other(vanish);
  auto boot = Bootstrap::Join(job.OptionsOf(0), job.state(0));
  ASSERT_TRUE(boot.ok());
  const Status status = (*boot)->Barrier();
  EXPECT_THAT(status.message(), HasSubstr("rank 1 on far ended without goodbye"));
  other.join();
}

TEST(BootstrapTest, StrangersAreIgnoredAndBytesMayComeOneByOne) {
  Job job(2);
  auto send_all = [&job](const std::string& bytes, bool slowly) {
    Result<FileDescriptor> fd = ConnectTcp("127.0.0.1", job.port(), 5000);
    ASSERT_TRUE(fd.ok());
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t n = send(fd->get(), bytes.data() + at, slowly ? 1 : bytes.size() - at, MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN) return;  // refused
      if (n > 0) at += static_cast<size_t>(n);
    }
    if (!slowly) return;
    char c;
    while (recv(fd->get(), &c, 1, 0) != 0 &&
           (errno == EAGAIN || errno == 0)) {  // until the coordinator hangs up
    }
  };
  send_all("GET / HTTP/1.1\r\n\r\n", false);
  send_all(std::string(200000, '\xff'), false);
  Hello hello;
  hello.rank = 1;
  hello.world = 2;
  hello.token = "another token";
  FrameHeader header{kFrameMagic, FrameType::kHello, static_cast<uint32_t>(hello.Encode().size())};
  send_all(std::string(reinterpret_cast<const char*>(&header), sizeof header) + hello.Encode(), false);
  FrameHeader huge{kFrameMagic, FrameType::kHello, 0xffffffff};
  send_all(std::string(reinterpret_cast<const char*>(&huge), sizeof huge), false);
  job.Run([](int, const BootstrapOptions& options, JobState* state) {
    auto boot = Bootstrap::Join(options, state);
    ASSERT_TRUE(boot.ok()) << boot.status().message();
    EXPECT_TRUE((*boot)->Barrier().ok());
  });
}

TEST(BootstrapTest, ADifferentTokenIsExplained) {
  Job job(2);
  BootstrapOptions zero = job.OptionsOf(0);
  zero.timeout = std::chrono::milliseconds(1000);
  std::thread first([&] {
    auto boot = Bootstrap::Join(zero, job.state(0));
    EXPECT_FALSE(boot.ok());
    EXPECT_THAT(boot.status().message(), HasSubstr("rank 1 did not arrive"));
  });
  BootstrapOptions one = job.OptionsOf(1);
  one.token = "other options";
  auto boot = Bootstrap::Join(one, job.state(1));
  EXPECT_FALSE(boot.ok());
  EXPECT_THAT(boot.status().message(), HasSubstr("with other options"));
  first.join();
}

// A timeout of a rank that waits: the coordinator knows for whom.
TEST(BootstrapTest, WhoIsMissingIsTold) {
  Job job(2);
  Result<FileDescriptor> fd =
      ConnectTcp("127.0.0.1", job.port(), 5000);  // rank 1, which then goes no further
  ASSERT_TRUE(fd.ok());
  FrameChannel silent(std::move(*fd));
  Hello hello;
  hello.rank = 1;
  hello.world = 2;
  hello.token = "token";
  silent.Queue(FrameType::kHello, hello.Encode());
  silent.Queue(FrameType::kExchange, "");
  while (silent.has_output()) ASSERT_TRUE(silent.Flush().ok());
  JobState* state = job.state(0);
  auto boot = Bootstrap::Join(job.OptionsOf(0), state);
  ASSERT_TRUE(boot.ok());
  state->SetActivity("testing");
  std::thread timeout([state] {
    while (!state->waiting_for_others()) std::this_thread::yield();
    state->AskWhoIsMissing("timed out while ");
  });
  const Status status = (*boot)->Barrier();
  EXPECT_EQ(status.message(), "timed out while waiting for rank 1 (testing)");
  EXPECT_EQ(state->origin(), -1);
  timeout.join();
  silent.Close();
}

// The undefined behaviour sanitizer's check of virtual tables takes descriptors itself, and reports when it
// gets none.
#if !defined(__SANITIZE_ADDRESS__)
// Wherever the descriptors of a process end, the cause is told instead of waiting for a rank that cannot
// come.
TEST(BootstrapTest, NoDescriptorsLeft) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  for (rlim_t more = 0; more < 10; ++more) {
    auto body = [more] {
      Job job(2);
      const int lowest_free = dup(0);
      close(lowest_free);
      const rlim_t files = static_cast<rlim_t>(lowest_free) + more;
      const rlimit limit{files, files};
      if (setrlimit(RLIMIT_NOFILE, &limit) != 0) _exit(1);
      std::atomic<bool> all_ok{true}, told{false};
      job.Run([&](int rank, const BootstrapOptions& options, JobState* state) {
        auto boot = Bootstrap::Join(options, state);
        if (boot.ok()) return;
        fprintf(stderr, "%s\n", boot.status().message().c_str());
        all_ok = false;
        if (boot.status().message().find("ulimit -n") == std::string::npos) return;
        told = true;
        job.state(1 - rank)->Abort("the other rank has failed", 1 - rank);  // as a launcher ends it
      });
      _exit(all_ok || told ? 0 : 1);
    };
    EXPECT_EXIT(body(), testing::ExitedWithCode(0), "") << more;
  }
}
#endif

TEST(BootstrapTest, AMissingCoordinatorIsAnErrorInTime) {
  int port = 0;
  { ASSERT_TRUE(ListenTcp("127.0.0.1", &port).ok()); }  // a port that nobody listens on any more
  JobState state;
  BootstrapOptions options;
  options.rank = 1;
  options.world = 2;
  options.host = "127.0.0.1";
  options.port = port;
  options.timeout = std::chrono::milliseconds(300);
  auto boot = Bootstrap::Join(options, &state);
  EXPECT_FALSE(boot.ok());
  EXPECT_THAT(boot.status().message(), HasSubstr("rank 0 is not reachable"));
}

}  // namespace
}  // namespace sluice::perf
