// Compiled where NCCL's header is installed: our numbers are NCCL's.
#include <nccl.h>

#include <climits>

#include "plugin/abi/nccl_net.h"

namespace sluice::nccl {

static_assert(kSuccess == static_cast<int>(ncclSuccess));
static_assert(kUnhandledCudaError == static_cast<int>(ncclUnhandledCudaError));
static_assert(kSystemError == static_cast<int>(ncclSystemError));
static_assert(kInternalError == static_cast<int>(ncclInternalError));
static_assert(kInvalidArgument == static_cast<int>(ncclInvalidArgument));
static_assert(kInvalidUsage == static_cast<int>(ncclInvalidUsage));
static_assert(kRemoteError == static_cast<int>(ncclRemoteError));
static_assert(kInProgress == static_cast<int>(ncclInProgress));
static_assert(sizeof(NcclResult) == sizeof(ncclResult_t));
// ResolveLanes takes it for "the user set none".
static_assert(NCCL_CONFIG_UNDEF_INT == INT_MIN);

}  // namespace sluice::nccl
