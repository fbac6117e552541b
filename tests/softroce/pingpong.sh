#!/bin/bash
# In the guest: ibv_rc_pingpong with checked payload, from each device to itself and to the other, in both directions.
set -euo pipefail
out=$(mktemp -d)
port=18600

for pair in "rxe0 rxe0" "rxe0 rxe1" "rxe1 rxe0" "rxe1 rxe1"; do
  read -r server client <<<"$pair"
  port=$((port + 1))
  echo "$client -> $server"
  ibv_rc_pingpong -d "$server" -g 1 -p "$port" -n 100 -c >"$out/server" 2>&1 &
  pid=$!
  until ss -Hltn "sport = :$port" | grep -q .; do
    kill -0 "$pid" || { cat "$out/server" && exit 1; }
  done
  ibv_rc_pingpong -d "$client" -g 1 -p "$port" -n 100 -c 127.0.0.1
  wait "$pid" || { cat "$out/server" && exit 1; }
done

# What passed between the two devices really took the wire.
for dev in rxe0 rxe1; do
  rdma statistic show link "$dev" | grep -Eq 'rcvd_pkts [1-9]' || { echo "$dev received nothing" && exit 1; }
done
