// A typed profiler and tuner without anything behind them: records what arrives. Thread rule: one thread.
#pragma once

#include <vector>

#include "plugin/profiler.h"
#include "plugin/tuner.h"

namespace sluice::fake {

struct Profiler : ProfilerContext {};
struct Tuner : TunerContext {};

struct Halves {
  Status error;  // of Create
  bool off = false;
  alignas(16) Profiler profiler;
  alignas(16) Tuner tuner;
  int version = 0;
  Communicator communicator;
  std::vector<ProfilerTask> tasks;
  std::vector<Function> calls;
  std::vector<ProfilerProxyOp> ops;
  std::vector<ProfilerEvent> steps;    // parents
  std::vector<ProfilerEvent> sends;    // BeforeSend
  std::vector<ProfilerEvent> queries;  // parents
  std::vector<ProfilerEvent> stopped;
  std::vector<TunerQuestion> questions;
  int finalized = 0;
};
Halves& GetHalves();
void ResetHalves();

// What the fake answers.
inline constexpr auto kTask = static_cast<ProfilerEvent>(0x10);
inline constexpr auto kCall = static_cast<ProfilerEvent>(0x20);
inline constexpr auto kOp = static_cast<ProfilerEvent>(0x30);
inline constexpr auto kStep = static_cast<ProfilerEvent>(0x40);

}  // namespace sluice::fake
