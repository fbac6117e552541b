#!/bin/bash
# nccl-tests.sh [options] [-- NCCL-TESTS ARGUMENTS]
#
# Runs NVIDIA's nccl-tests on a cluster through Open MPI with Sluice, with NCCL's own InfiniBand transport, or with both, one after
# the other, and a table that compares them. Needs GPUs, nccl-tests built with MPI=1, and Sluice at the same path on every host.
#
#   scripts/nccl-tests.sh --hosts node1:8,node2:8 --tests ~/nccl-tests/build
#   scripts/nccl-tests.sh --hosts node1:8,node2:8 --op alltoall --net compare -- -b 1M -e 1G -f 2 -n 20
set -euo pipefail

readonly PROGRAM=nccl-tests.sh
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
hosts=localhost
hostfile=""
ranks=""
tests=${NCCL_TESTS_BUILD:-nccl-tests/build}
op=all_reduce
plugin=$root/build/release/lib
net=sluice
mpirun=mpirun
dry_run=0
settings=()

fail() {
  echo "$PROGRAM: $*" >&2
  exit 1
}

usage() {
  cat <<USAGE
usage: $PROGRAM [options] [-- NCCL-TESTS ARGUMENTS]   (default arguments: -b 8 -e 1G -f 2 -g 1 -c 1)
  --hosts LIST      hosts with their number of ranks (GPUs), as in node1:8,node2:8 (default $hosts)
  --hostfile FILE   the same from a file in Open MPI's format
  --ranks N         number of ranks (default: all slots)
  --tests DIR       build directory of nccl-tests (default: \$NCCL_TESTS_BUILD or nccl-tests/build)
  --op OP           all_reduce, all_gather, reduce_scatter, broadcast, reduce, alltoall, sendrecv (default $op)
  --plugin DIR      directory of libnccl-net-sluice.so, the same on every host (default build/release/lib of this tree)
  --net WHICH       sluice, ib (NCCL's own transport) or compare (both) (default $net)
  --env NAME=VALUE  a variable for every rank, as in --env NCCL_IB_HCA=mlx5 (may be repeated)
  --mpirun PROGRAM  Open MPI's launcher (default $mpirun)
  --dry-run         print the commands and run nothing
USAGE
}

# launch NET: one run, its output on standard output.
launch() {
  local command=("$mpirun")
  local variables=()
  if [ -n "$hostfile" ]; then command+=(--hostfile "$hostfile"); else command+=(-H "$hosts"); fi
  [ -z "$ranks" ] || command+=(-np "$ranks")
  if [ "$1" = sluice ]; then
    # NCCL_NET makes a failure to load an error instead of a silent return to another transport.
    variables=("LD_LIBRARY_PATH=$plugin${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" NCCL_NET_PLUGIN=sluice NCCL_NET=Sluice)
  else
    variables=("LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}" NCCL_NET_PLUGIN=none NCCL_NET=IB)
  fi
  local variable
  for variable in "${variables[@]}" "${settings[@]}"; do command+=(-x "$variable"); done
  command+=("$tests/${op}_perf" "${arguments[@]}")
  echo "$PROGRAM:$(printf ' %q' "${command[@]}")" >&2
  [ "$dry_run" = 1 ] || "${command[@]}"
}

# compare STOCK OURS: nccl-tests' rows of both, side by side (out of place).
compare() {
  awk '
    !/^ *[0-9]+ +[0-9]+ +[a-z]/ { next }
    FNR == NR { time[$1] = $6; bus[$1] = $8; next }
    $1 in time {
      if (!header++) printf "%12s %12s %12s %8s %12s %12s\n", "size (B)", "IB (us)", "Sluice (us)", "ratio", "IB (GB/s)", "Sluice (GB/s)"
      printf "%12s %12s %12s %8.3f %12s %12s\n", $1, time[$1], $6, $6 / time[$1], bus[$1], $8
    }
    END { if (!header) { print "no common sizes in the two outputs" > "/dev/stderr"; exit 1 } }' "$1" "$2"
}

while [ $# -gt 0 ]; do
  case $1 in
    --hosts | --hostfile | --ranks | --tests | --op | --plugin | --net | --env | --mpirun)
      [ $# -ge 2 ] || fail "$1 needs a value"
      case $1 in
        --hosts) hosts=$2 ;;
        --hostfile) hostfile=$2 ;;
        --ranks) ranks=$2 ;;
        --tests) tests=$2 ;;
        --op) op=$2 ;;
        --plugin) plugin=$2 ;;
        --net) net=$2 ;;
        --env) settings+=("$2") ;;
        --mpirun) mpirun=$2 ;;
      esac
      shift 2
      ;;
    --dry-run) dry_run=1 && shift ;;
    -h | --help) usage && exit 0 ;;
    --) shift && break ;;
    *) usage >&2 && fail "unknown option $1" ;;
  esac
done
arguments=("$@")
[ ${#arguments[@]} -gt 0 ] || arguments=(-b 8 -e 1G -f 2 -g 1 -c 1)

case $net in sluice | ib | compare) ;; *) fail "--net is '$net': sluice, ib or compare" ;; esac
for setting in "${settings[@]}"; do
  [[ $setting == *=* ]] || fail "--env $setting: write NAME=VALUE"
done
command -v "$mpirun" >/dev/null || fail "$mpirun is missing: install Open MPI, or name its launcher with --mpirun"
[ -x "$tests/${op}_perf" ] ||
  fail "$tests/${op}_perf is missing: build nccl-tests with MPI=1 and name its build directory with --tests"
if [ "$net" != ib ]; then
  [ -e "$plugin/libnccl-net-sluice.so" ] || fail "$plugin/libnccl-net-sluice.so is missing: run scripts/build.sh, or use --plugin"
fi

if [ "$net" != compare ]; then
  launch "$net"
elif [ "$dry_run" = 1 ]; then
  launch ib
  launch sluice
else
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  launch ib | tee "$work/ib"
  launch sluice | tee "$work/sluice"
  compare "$work/ib" "$work/sluice"
fi
