#!/bin/bash
# overhead.sh [PLUGIN.so] [measure.py options]: instructions per message of a NCCL net plugin (default: the release build of
# Sluice), measured with callgrind over a verbs library that completes every request at once. Needs no NIC; all tables take six minutes.
#   scripts/overhead.sh                                  tables of all cases
#   scripts/overhead.sh PLUGIN.so --case --size 8        one case: functions, library calls, cost of each API call
# tests/overhead/README.md says how to read the result and lists the further options.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

plugin=build/release/lib/libnccl-net-sluice.so
if [ $# -gt 0 ] && [[ $1 != -* ]]; then
  plugin=$1
  shift
fi
command -v valgrind >/dev/null || {
  echo "overhead.sh: valgrind is missing: run scripts/install-deps.sh test" >&2
  exit 1
}
[ -x build/release/overhead/plugbench ] || scripts/build.sh release >&2
exec tests/overhead/measure.py --build build/release/overhead "$plugin" "$@"
