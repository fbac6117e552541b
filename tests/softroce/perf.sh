#!/bin/bash
# perf.sh SLUICE: in the guest, `sluice perf` over the kernel's verbs with every element checked: 2 ranks and 4 ranks, one device
# and two, ring and tree. Sizes are small, since the emulated wire moves some 30 MB/s.
set -euo pipefail
sluice=$1

run() {
  echo "sluice perf $*"
  "$sluice" perf --fabric verbs -c 1 -n 2 -w 1 "$@"
}

run --ranks 2 --op all_reduce -b 8 -e 1M -f 32
NCCL_IB_HCA='=rxe0' run --ranks 2 --op sendrecv -b 8 -e 64K -f 64
run --ranks 4 --op all_reduce -b 8 -e 256K -f 32
run --ranks 4 --op all_to_all -b 1K -e 64K -f 64
run --ranks 4 --op all_reduce --algo tree -b 8 -e 64K -f 64
