#!/bin/bash
# test.sh [PRESET] [CTEST ARGS...]: installs what is missing, builds, and runs every test. The last lines are CTest's summary.
#   scripts/test.sh                    the release build, all tests
#   scripts/test.sh asan -L unit       one label (unit, abi, fabric, softroce, fault, fuzz, overhead) under sanitizers
# SLUICE_TEST_JOBS tests run at once (default 1: most of them start several busy processes themselves).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=release
if [ $# -gt 0 ] && [[ $1 != -* ]]; then
  preset=$1
  shift
fi
scripts/install-deps.sh build test softroce
scripts/build.sh "$preset"
echo "test.sh: running the tests of build/$preset"
exec ctest --test-dir "build/$preset" --output-on-failure --no-tests=error --parallel "${SLUICE_TEST_JOBS:-1}" "$@"
