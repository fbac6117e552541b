// The six NET tables under one signature per call, as types for typed tests.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

#include "plugin/abi/tables.h"
#include "plugin/net.h"

namespace sluice {

// One version: its table, and its calls under one signature.
template <int kVersion, typename TableType, typename PropertiesType, const TableType& kTable>
struct Version {
  using Table = TableType;
  using Properties = PropertiesType;
  static constexpr int kNumber = kVersion;
  static constexpr bool kPerCommunicator = kVersion >= 11;
  static constexpr bool kIntSizes = kVersion < 9;
  using Size = std::conditional_t<kIntSizes, int, size_t>;

  static const Table& net() { return kTable; }

  static nccl::NcclResult Init(void** ctx, nccl::NetCommConfig* config, DebugLogger logger) {
    if constexpr (kPerCommunicator) {
      return net().init(ctx, 42, config, logger, nullptr);
    } else if constexpr (kVersion == 10) {
      return net().init(logger, nullptr);
    } else {
      return net().init(logger);
    }
  }
  static nccl::NcclResult Listen(void* ctx, int dev, void* handle, void** comm) {
    if constexpr (kPerCommunicator) {
      return net().listen(ctx, dev, handle, comm);
    } else {
      return net().listen(dev, handle, comm);
    }
  }
  static nccl::NcclResult Connect(void* ctx, int dev, void* handle, void** comm,
                                  nccl::NetDeviceHandle** device_handle,
                                  nccl::NetCommConfig* config = nullptr) {
    if constexpr (kPerCommunicator) {
      return net().connect(ctx, dev, handle, comm, device_handle);
    } else if constexpr (kVersion == 10) {
      return net().connect(dev, config, handle, comm, device_handle);
    } else {
      return net().connect(dev, handle, comm, device_handle);
    }
  }
  static nccl::NcclResult Isend(void* comm, void* data, Size size, int tag, void* mhandle, void* phandle,
                                void** request) {
    if constexpr (kVersion >= 10) {
      return net().isend(comm, data, size, tag, mhandle, phandle, request);
    } else {
      return net().isend(comm, data, size, tag, mhandle, request);
    }
  }
  static nccl::NcclResult Irecv(void* comm, int n, void** data, Size* sizes, int* tags, void** mhandles,
                                void** request) {
    if constexpr (kVersion >= 10) {
      return net().irecv(comm, n, data, sizes, tags, mhandles, nullptr, request);
    } else {
      return net().irecv(comm, n, data, sizes, tags, mhandles, request);
    }
  }
};

using Versions = testing::Types<Version<7, nccl::NetV7, nccl::NetPropertiesV7, ncclNetPlugin_v7>,
                                Version<8, nccl::NetV8, nccl::NetPropertiesV8, ncclNetPlugin_v8>,
                                Version<9, nccl::NetV9, nccl::NetPropertiesV9, ncclNetPlugin_v9>,
                                Version<10, nccl::NetV10, nccl::NetPropertiesV10, ncclNetPlugin_v10>,
                                Version<11, nccl::NetV11, nccl::NetPropertiesV11, ncclNetPlugin_v11>,
                                Version<12, nccl::NetV12, nccl::NetPropertiesV12, ncclNetPlugin_v12>>;
}  // namespace sluice
