#!/bin/bash
# demo.sh: installs what is missing, builds, and runs an all_reduce of 8 B to 64 MiB between four rank processes over the
# software fabric. No RDMA hardware, no GPU and no NCCL is needed. Further arguments go to `sluice perf`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/install-deps.sh build
scripts/build.sh release sluice sluice_plugin sluice_soft_verbs sluice-fabric
set -- build/release/bin/sluice perf --ranks 4 --op all_reduce -b 8 -e 64M -c 1 "$@"
echo "demo.sh: $*"
exec "$@"
