// The symbols that NCCL looks up, one per version of each interface. It takes the highest that it knows.
#pragma once

#include "plugin/abi/nccl_net.h"
#include "plugin/abi/nccl_profiler.h"
#include "plugin/abi/nccl_tuner.h"

#define SLUICE_EXPORT extern "C" __attribute__((visibility("default")))

SLUICE_EXPORT const sluice::nccl::NetV7 ncclNetPlugin_v7;
SLUICE_EXPORT const sluice::nccl::NetV8 ncclNetPlugin_v8;
SLUICE_EXPORT const sluice::nccl::NetV9 ncclNetPlugin_v9;
SLUICE_EXPORT const sluice::nccl::NetV10 ncclNetPlugin_v10;
SLUICE_EXPORT const sluice::nccl::NetV11 ncclNetPlugin_v11;
SLUICE_EXPORT const sluice::nccl::NetV12 ncclNetPlugin_v12;

SLUICE_EXPORT const sluice::nccl::TunerV1 ncclTunerPlugin_v1;
SLUICE_EXPORT const sluice::nccl::TunerV2 ncclTunerPlugin_v2;
SLUICE_EXPORT const sluice::nccl::TunerV3 ncclTunerPlugin_v3;
SLUICE_EXPORT const sluice::nccl::TunerV4 ncclTunerPlugin_v4;
SLUICE_EXPORT const sluice::nccl::TunerV5 ncclTunerPlugin_v5;
SLUICE_EXPORT const sluice::nccl::TunerV6 ncclTunerPlugin_v6;

SLUICE_EXPORT const sluice::nccl::ProfilerV1 ncclProfiler_v1;
SLUICE_EXPORT const sluice::nccl::ProfilerV2 ncclProfiler_v2;
SLUICE_EXPORT const sluice::nccl::ProfilerV3 ncclProfiler_v3;
SLUICE_EXPORT const sluice::nccl::ProfilerV4 ncclProfiler_v4;
SLUICE_EXPORT const sluice::nccl::ProfilerV5 ncclProfiler_v5;
SLUICE_EXPORT const sluice::nccl::ProfilerV6 ncclProfiler_v6;
