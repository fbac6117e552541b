#!/bin/bash
# soft_programs.sh LIB_DIR PROGRAM LINK: runs one unmodified verbs program of Debian on the software fabric, as
# server and client in two processes, and checks exit codes, figures and that nothing is left behind.
#   LINK: roce or infiniband. SANITIZER_RUNTIME: library to preload when the fabric is built with a sanitizer.
set -u
lib_dir=$1 program=$2 link=$3
export SLUICE_FABRIC="programs-$$" SLUICE_FABRIC_TOPOLOGY="hosts=2,nics=1,link=$link,rate=100G"
export TMPDIR
TMPDIR=$(mktemp -d)
unset XDG_RUNTIME_DIR
pids=()
finish() {
  for pid in "${pids[@]}"; do kill -KILL "$pid" 2> /dev/null; done
  rm -rf "$TMPDIR"
}
trap finish EXIT
fail() {
  echo "FAILED: $program on $link: $1"
  for log in "$TMPDIR"/*.log; do echo "--- $log"; cat "$log"; done
  exit 1
}
on_fabric() {
  env LD_LIBRARY_PATH="$lib_dir" LD_PRELOAD="${SANITIZER_RUNTIME:-}" ASAN_OPTIONS=detect_leaks=0 "$@"
}
expect() { grep -Eq -- "$1" "$TMPDIR/client.log" || fail "no line like \"$1\""; }

# A port that is free now; the programs exchange addresses over it.
port() {
  local candidate
  while :; do
    candidate=$((20000 + RANDOM % 30000))
    (exec 3<> "/dev/tcp/127.0.0.1/$candidate") 2> /dev/null || break
  done
  echo "$candidate"
}
listens() { grep -q ":$(printf '%04X' "$1") .* 0A " /proc/net/tcp /proc/net/tcp6; }

pair() {
  local number server
  number=$(port)
  on_fabric "$program" -p "$number" "$@" > "$TMPDIR/server.log" 2>&1 &
  server=$!
  pids+=("$server")
  until listens "$number"; do
    kill -0 "$server" 2> /dev/null || fail "the server ended early"
    sleep 0.05
  done
  on_fabric "$program" -p "$number" "$@" 127.0.0.1 > "$TMPDIR/client.log" 2>&1 || fail "client exit code $?"
  wait "$server" || fail "server exit code $?"
  if grep -Eiq "wrong|mismatch|failed|couldn't|error" "$TMPDIR/client.log" "$TMPDIR/server.log"; then fail "complaint in the output"; fi
}
# The result line of perftest: bytes, iterations, then figures above zero.
perftest() {
  pair -F "$@"
  awk -v size="$size" '$1 == size && $2 > 0 && $4 > 0 { found = 1 } END { exit !found }' "$TMPDIR/client.log" ||
    fail "no result for $size bytes"
}

gid=()
[ "$link" = roce ] && gid=(-g 3)
case $program in
  ibv_devices)
    on_fabric ibv_devices > "$TMPDIR/client.log" 2>&1 || fail "exit code $?"
    expect '^ +soft0[[:space:]]+[0-9a-f]{16}$'
    ;;
  ibv_devinfo)
    on_fabric ibv_devinfo -v > "$TMPDIR/client.log" 2>&1 || fail "exit code $?"
    expect 'hca_id:.*soft0'
    expect 'state:.*PORT_ACTIVE'
    expect 'completion timestamp_mask:.*0xffffffffffffffff'
    if [ "$link" = roce ]; then
      expect 'link_layer:.*Ethernet'
      expect 'GID\[ +3\]:.*::ffff:10\.0\.0\.[0-9]+, RoCE v2'
    else
      expect 'link_layer:.*InfiniBand'
      expect 'port_lid:.*[1-9]'
    fi
    ;;
  ibv_rc_pingpong)
    pair "${gid[@]}" -n 300 -c
    expect '^300 iters in'
    pair "${gid[@]}" -n 300 -s 100000 -m 4096 -r 100 -c
    expect '^300 iters in'
    pair "${gid[@]}" -n 100 -e
    expect '^100 iters in'
    pair "${gid[@]}" -n 100 -t -N
    expect '^100 iters in'
    ;;
  ib_write_bw | ib_read_bw | ib_send_bw)
    for size in 8 65536 1048576; do perftest -s "$size" -n 200; done
    size=4096 && perftest -s 4096 -n 200 -q 4 -b
    ;;
  ib_write_lat)
    for size in 8 4096; do perftest -s "$size" -n 200; done
    size=64 && perftest -s 64 -n 200 -I 64
    ;;
  *) fail "unknown program" ;;
esac

# The fabric process leaves a moment after the last program, with its tree of files.
for _ in $(seq 200); do
  left=$(compgen -G "$TMPDIR/sluice-fabric-*" || true)
  grep -q "sluice-fabric/$(id -u)/$SLUICE_FABRIC\$" /proc/net/unix || [ -n "$left" ] || break
  sleep 0.05
done
[ -z "$left" ] || fail "left behind: $left"
! grep -q "sluice-fabric/$(id -u)/$SLUICE_FABRIC\$" /proc/net/unix || fail "the fabric process stays"
echo "ok: $program on $link"
