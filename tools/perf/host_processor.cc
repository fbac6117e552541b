#include "tools/perf/host_processor.h"

#include <cstring>

namespace sluice::perf {
namespace {

constexpr uint64_t kPurpose = 0x484f5354;  // tells these draws from others with the same seed

// With this spread the 99th percentile is 20 times the median: ln 20 / 2.3106, the 99th percentile of
// StandardNormal.
constexpr double kTypicalSigma = 1.2965;

constexpr HostPreset kPresets[] = {
    {"ideal", 0, 0, 0, 0, 0, 0, 0},
    {"typical", 60 * soft::kPicosPerNs, 150 * soft::kPicosPerNs, 60 * soft::kPicosPerNs, soft::kPicosPerUs,
     kTypicalSigma, 200 * soft::kPicosPerUs, 50 * soft::kPicosPerMs},
};

// Mean 0, variance 1, in [-6, 6]: the sum of twelve uniform numbers.
double StandardNormal(SplitMix64* generator) {
  int64_t sum = 0;
  for (int i = 0; i < 3; ++i) {
    const uint64_t bits = generator->Next();
    for (int part = 0; part < 4; ++part) sum += static_cast<int64_t>(bits >> (16 * part) & 0xffff);
  }
  return static_cast<double>(2 * sum + 12 - 12 * 65536) / (2 * 65536.0);
}

// e^x for |x| < 16 within 1e-12, from operations that every machine rounds alike.
double Exp(double x) {
  const double y = x / 32;
  double term = 1, sum = 1;
  for (int n = 1; n <= 14; ++n) {
    term *= y / n;
    sum += term;
  }
  for (int i = 0; i < 5; ++i) sum *= sum;
  return sum;
}

}  // namespace

const HostPreset* FindHostPreset(const char* name) {
  for (const HostPreset& preset : kPresets) {
    if (strcmp(preset.name, name) == 0) return &preset;
  }
  return nullptr;
}

HostProcessor::HostProcessor(const HostPreset& preset, uint64_t seed, uint64_t thread)
    : preset_(&preset), generator_(SplitMix64(seed ^ SplitMix64(kPurpose + thread).Next()).Next()) {
  if (preset.stall != 0) {
    stall_phase_ = static_cast<Picos>(generator_.Next() % static_cast<uint64_t>(preset.stall_period));
  }
}

Picos HostProcessor::PollGap() {
  if (preset_->gap_median == 0) return 0;
  const double factor = Exp(preset_->gap_sigma * StandardNormal(&generator_));
  return static_cast<Picos>(static_cast<double>(preset_->gap_median) * factor);
}

Picos HostProcessor::AfterStall(Picos time) const {
  if (preset_->stall == 0) return time;
  const Picos since = (time + preset_->stall_period - stall_phase_) % preset_->stall_period;
  return since < preset_->stall ? time + preset_->stall - since : time;
}

}  // namespace sluice::perf
