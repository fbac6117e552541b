#!/bin/bash
# build.sh [PRESET [TARGET...]]: configures and builds Sluice, or only the named targets, into build/PRESET.
# Presets (CMakePresets.json): release (default), debug, asan (address and undefined behaviour), tsan.
# SLUICE_JOBS limits the number of compilers that run at once (default: one per processor, and 1.5 GB of memory each).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=${1:-release}
shift $(($# > 0 ? 1 : 0))
for tool in cmake ninja g++ pkg-config; do
  command -v "$tool" >/dev/null || {
    echo "build.sh: $tool is missing: run scripts/install-deps.sh build" >&2
    exit 1
  }
done
memory_jobs=$(awk '/^MemAvailable/ { print int($2 / 1500000) }' /proc/meminfo)
jobs=${SLUICE_JOBS:-$(nproc)}
if [ -z "${SLUICE_JOBS:-}" ] && ((memory_jobs < jobs)); then jobs=$((memory_jobs > 1 ? memory_jobs : 1)); fi

echo "build.sh: preset $preset into build/$preset, $jobs jobs"
cmake --preset "$preset" --log-level=WARNING
NINJA_STATUS='[%f/%t %es] ' cmake --build "build/$preset" --parallel "$jobs" ${1:+--target "$@"}
