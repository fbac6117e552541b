#include "plugin/transport/biased_lock.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace sluice {
namespace {

// Plain counters: any failure of mutual exclusion loses increments, and ThreadSanitizer names it.
struct Guarded {
  BiasedLock lock;
  uint64_t data = 0;
  uint64_t control = 0;
};

TEST(BiasedLock, OneDataThreadAgainstControlThreads) {
  constexpr uint64_t kData = 200'000, kControl = 300;
  Guarded guarded;
  std::thread data([&] {
    for (uint64_t i = 0; i < kData; ++i) {
      DataGuard guard(guarded.lock);
      ++guarded.data;
      ++guarded.control;
    }
  });
  std::vector<std::thread> controllers;
  for (int t = 0; t < 3; ++t) {
    controllers.emplace_back([&] {
      for (uint64_t i = 0; i < kControl; ++i) {
        ControlGuard guard(guarded.lock);
        ++guarded.data;
        ++guarded.control;
      }
    });
  }
  data.join();
  for (std::thread& controller : controllers) controller.join();
  EXPECT_EQ(guarded.data, kData + 3 * kControl);
  EXPECT_EQ(guarded.control, guarded.data);
}

TEST(BiasedLock, SeveralDataThreadsShareIt) {
  constexpr uint64_t kEach = 20'000;
  Guarded guarded;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (uint64_t i = 0; i < kEach; ++i) {
        DataGuard guard(guarded.lock);
        ++guarded.data;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(guarded.data, 4 * kEach);
}

TEST(BiasedLock, BiasComesBackAfterAControlCall) {
  Guarded guarded;
  { DataGuard first(guarded.lock); }
  { ControlGuard control(guarded.lock); }
  { DataGuard again(guarded.lock); }
#ifndef __SANITIZE_THREAD__
  EXPECT_TRUE(guarded.lock.TryLockBiased());
  guarded.lock.UnlockBiased();
#endif
}

TEST(BiasedLock, AnotherThreadNeverEntersByBias) {
  Guarded guarded;
  { DataGuard first(guarded.lock); }
  bool entered = true;
  std::thread([&] { entered = guarded.lock.TryLockBiased(); }).join();
  EXPECT_FALSE(entered);
}

}  // namespace
}  // namespace sluice
