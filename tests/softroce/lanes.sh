#!/bin/bash
# lanes.sh SLUICE: in the guest, the traffic class that a policy gives each class, as tcpdump sees it on the wire, for one
# collective at a time: a small all_reduce (latency) and a large one (bulk), each of two ranks on a device of their own.
set -euo pipefail
sluice=$1
out=$(mktemp -d)
readonly CONTROL=0xc2 LATENCY=0x8a BULK=0x6a # DSCP 48, 34, 26 with ECT(0)
export SLUICE_POLICY='class = [{name = "control", dscp = 48}, {name = "latency", dscp = 34}, {name = "bulk", dscp = 26}]
default_rules = true'
export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29400
netdev=$(rdma link show rxe0/1 | grep -o 'netdev [^ ]*' | cut -d' ' -f2)

# A run with a policy of its own marks the end of a capture: tcpdump forgets what it has not read yet when it is told to stop.
readonly MARK=0x2a
readonly MARK_POLICY='class = [{name = "control", dscp = 10}, {name = "latency", dscp = 10}, {name = "bulk", dscp = 10}]
default_rules = true'

# all_reduce ARGUMENTS...: both ranks of it.
all_reduce() {
  local peer
  MASTER_PORT=$((MASTER_PORT + 1))
  RANK=1 NCCL_IB_HCA='=rxe1' "$sluice" perf --fabric verbs --op all_reduce -c 1 -n 2 -w 1 "$@" &
  peer=$!
  RANK=0 NCCL_IB_HCA='=rxe0' "$sluice" perf --fabric verbs --op all_reduce -c 1 -n 2 -w 1 "$@"
  wait "$peer"
}

# capture NAME ARGUMENTS...: runs all_reduce, and writes "tos packets bytes" lines of what the port of rxe0 carried to $out/NAME.
capture() {
  local name=$1 dump
  shift
  tcpdump -i "$netdev" -s 64 --immediate-mode -U -w "$out/$name.pcap" 'udp dst port 4791' 2>"$out/$name.log" &
  dump=$!
  until grep -q 'listening on' "$out/$name.log"; do kill -0 "$dump" || { cat "$out/$name.log" && exit 1; }; done
  all_reduce "$@"
  SLUICE_POLICY=$MARK_POLICY all_reduce -b 8 -e 8 >"$out/$name.mark"
  until tcpdump -nn -c 1 -r "$out/$name.pcap" "ip[1] = $MARK" 2>/dev/null | grep -q .; do
    kill -0 "$dump" || { cat "$out/$name.log" && exit 1; }
    sleep 0.2
  done
  kill -INT "$dump"
  wait "$dump" || true
  tcpdump -nn -v -r "$out/$name.pcap" 2>/dev/null | awk -v mark=$MARK '
    match($0, /tos 0x[0-9a-f]+/) { tos = substr($0, RSTART + 4, RLENGTH - 4)
      ended = ended || tos == mark
      if (ended) next
      match($0, /length [0-9]+\)/); packets[tos]++; bytes[tos] += substr($0, RSTART + 7, RLENGTH - 8) }
    END { for (tos in packets) print tos, packets[tos], bytes[tos] }' >"$out/$name"
  echo "$name: traffic class, packets, bytes on $netdev"
  cat "$out/$name"
}

# bytes NAME TOS
bytes() { awk -v tos="$2" '$1 == tos { bytes = $3 } END { print bytes + 0 }' "$out/$1"; }
expect() {
  if ! (($1)); then
    echo "does not hold: $2"
    exit 1
  fi
}

capture small -b 16K -e 16K
capture large -b 4M -e 4M
# Operations times what a ring of two sends and receives: once the size, each way.
expect "$(bytes small $LATENCY) > 3 * 2 * 16384" "small all_reduce is in the latency class: $(bytes small $LATENCY) bytes"
expect "$(bytes small $BULK) == 0" "no byte of a small all_reduce is in the bulk class"
expect "$(bytes large $BULK) > 3 * 2 * 4194304" "large all_reduce is in the bulk class: $(bytes large $BULK) bytes"
expect "$(bytes large $LATENCY) == 0" "no byte of a large all_reduce is in the latency class"
for run in small large; do
  expect "$(bytes $run $CONTROL) > 0" "clear-to-send of $run is in the control class"
  # Nothing is without a class, acknowledgements included.
  expect "$(grep -vcE "^($CONTROL|$LATENCY|$BULK) " "$out/$run" || true) == 0" "every packet of $run has a class"
done
echo "traffic classes on the wire are those of the policy"
