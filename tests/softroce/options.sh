#!/bin/bash
# options.sh SOFTROCE.SH: bad calls end in one clear line and status 125, boot nothing and leave nothing behind.
set -uo pipefail
softroce=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tmp" "$work/empty"
failed=0

# expect PATTERN ARGUMENTS...: the last line of the error must match.
expect() {
  local pattern=$1 status=0
  shift
  TMPDIR=$work/tmp SLUICE_CACHE_DIR=$work/cache "$softroce" "$@" >"$work/out" 2>&1 </dev/null || status=$?
  if [ "$status" != 125 ] || ! tail -n 1 "$work/out" | grep -Eq -e "$pattern"; then
    echo "softroce.sh $*: status $status, expected 125 and a last line like '$pattern', got:"
    cat "$work/out"
    failed=1
  fi
  if [ -n "$(ls -A "$work/tmp")" ]; then
    echo "softroce.sh $*: left behind $(ls -A "$work/tmp")"
    failed=1
  fi
}

expect 'no command given'
expect "unknown option --bogus" --bogus true
expect "--devices is '0': give a whole number from 1 to 16" --devices 0 true
expect "--devices is '2x'" --devices 2x true
expect "--timeout needs a value" --timeout
expect "--memory is '12'" --memory 12 true
expect "no readable kernel with the module rdma_rxe in $work/empty.*install-deps" --kernel "$work/empty" true

mkdir "$work/bin"
for tool in bash dirname id mktemp rm tail cat grep; do ln -s "$(command -v $tool)" "$work/bin/$tool"; done
status=0
PATH=$work/bin "$softroce" true >"$work/out" 2>&1 || status=$?
if [ "$status" != 125 ] || ! grep -q 'qemu-system-x86_64 is missing: apt-get install qemu-system-x86' "$work/out"; then
  echo "without qemu: status $status:"
  cat "$work/out"
  failed=1
fi
exit "$failed"
