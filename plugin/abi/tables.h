// The symbols that NCCL looks up, one per version of the NET interface. It takes the highest that it knows.
#pragma once

#include "plugin/abi/nccl_net.h"

#define SLUICE_EXPORT extern "C" __attribute__((visibility("default")))

SLUICE_EXPORT const sluice::nccl::NetV7 ncclNetPlugin_v7;
SLUICE_EXPORT const sluice::nccl::NetV8 ncclNetPlugin_v8;
SLUICE_EXPORT const sluice::nccl::NetV9 ncclNetPlugin_v9;
SLUICE_EXPORT const sluice::nccl::NetV10 ncclNetPlugin_v10;
SLUICE_EXPORT const sluice::nccl::NetV11 ncclNetPlugin_v11;
SLUICE_EXPORT const sluice::nccl::NetV12 ncclNetPlugin_v12;
