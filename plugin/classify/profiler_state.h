// What the data path asks of the profiler half when nothing was told before the call: NCCL's callback (NET v10 and
// later), which hands our query to our own startEvent.
#pragma once

#include "plugin/classify/events.h"
#include "plugin/profiler.h"

namespace sluice {

// Whether our profiler half is loaded in a version that is asked at all.
bool ProfilerAnswers() noexcept;
// Whether NCCL's callback may be called with this phandle: our profiler is the loaded one, and the release follows no
// null pointer of it.
bool MayAskProfiler(void* phandle) noexcept;
ProfilerQuery MakeQuery() noexcept;
// Null: nobody answered, or with something that is not known here.
const OpenProxyOp* ResolveQuery(const ProfilerQuery& query) noexcept;

}  // namespace sluice
