#!/bin/bash
# perf.sh SLUICE: in the guest, `sluice perf` over the kernel's verbs with every element checked: 2 ranks and 4 ranks, one device
# and two, ring and tree. Sizes are small: the emulated machine moves some 30 MB/s at best.
set -euo pipefail
sluice=$1

run() {
  echo "sluice perf $*"
  "$sluice" perf --fabric verbs -c 1 -n 2 -w 1 "$@"
}

run --ranks 2 --op all_reduce -b 8 -e 1M -f 64
run --ranks 4 --op all_reduce --channels 2 -b 8 -e 256K -f 32
run --ranks 4 --op all_to_all -b 1K -e 64K -f 64
run --ranks 4 --op all_reduce --algo tree -b 8 -e 64K -f 64

# Two hosts, as far as verbs can tell: each rank sees one device, and everything between them crosses the wire.
echo "sluice perf, rank 0 on rxe0 and rank 1 on rxe1"
export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29400
RANK=1 NCCL_IB_HCA='=rxe1' run --op sendrecv -b 8 -e 64K -f 64 &
peer=$!
RANK=0 NCCL_IB_HCA='=rxe0' run --op sendrecv -b 8 -e 64K -f 64
wait "$peer"
for dev in rxe0 rxe1; do
  rdma statistic show link "$dev" | grep -Eq 'rcvd_pkts [1-9]' || { echo "$dev received nothing" && exit 1; }
done
