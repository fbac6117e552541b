#!/bin/bash
# install-deps.sh [build] [test] [softroce] [lint]
#
# Installs the Debian 12 packages that Sluice needs for the named purposes (all but lint when none is named).
# Installs only what is missing, prints what it does, and may be run again at any time. Uses sudo unless run as root.
#
#   build     compiler, CMake and the libraries that Sluice is built from
#   test      verbs programs, perftest, callgrind, and a subnet manager with a simulated fabric, which the test suite runs
#   softroce  emulator and kernel for scripts/softroce.sh; the kernel is unpacked into the user's cache, never installed
#   lint      clang-format, clang-tidy, shellcheck
set -euo pipefail

readonly BUILD="g++ cmake ninja-build pkg-config libibverbs-dev libabsl-dev libgtest-dev libgmock-dev
  libbenchmark-dev libcli11-dev libtomlplusplus-dev nlohmann-json3-dev"
readonly TEST="ibverbs-utils ibverbs-providers perftest valgrind python3 iproute2 procps binutils
  opensm ibsim-utils infiniband-diags"
readonly SOFTROCE="qemu-system-x86 busybox-static cpio kmod iproute2 procps ibverbs-utils ibverbs-providers"
readonly LINT="clang-format clang-tidy shellcheck"
# What softroce.sh loads, with room for what those modules depend on; the whole package would be 400 MB.
readonly KERNEL_PARTS=('./lib/modules/*/modules.*' './lib/modules/*/kernel/drivers/virtio/*'
  './lib/modules/*/kernel/drivers/char/virtio_console*' './lib/modules/*/kernel/drivers/infiniband/core/*'
  './lib/modules/*/kernel/drivers/infiniband/sw/*' './lib/modules/*/kernel/drivers/net/veth*'
  './lib/modules/*/kernel/net/*' './lib/modules/*/kernel/fs/*' './lib/modules/*/kernel/lib/*'
  './lib/modules/*/kernel/crypto/*' './lib/modules/*/kernel/arch/*')
readonly CACHE_DIR=${SLUICE_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-/tmp/sluice-$(id -u)}/.cache}/sluice}

say() { echo "install-deps.sh: $*"; }
fail() {
  echo "install-deps.sh: $*" >&2
  exit 1
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    env DEBIAN_FRONTEND=noninteractive "$@"
  else
    command -v sudo >/dev/null || fail "run as root, or install sudo"
    sudo env DEBIAN_FRONTEND=noninteractive "$@"
  fi
}

apt() {
  as_root apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 -qq -y "$@"
}

updated=0
update_lists() {
  [ "$updated" = 0 ] || return 0
  say "updating the package lists"
  apt update || fail "apt-get update failed: check /etc/apt/sources.list and the network"
  updated=1
}

installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# install PURPOSE PACKAGE...
install() {
  local purpose=$1 package
  local missing=()
  shift
  for package in "$@"; do
    installed "$package" || missing+=("$package")
  done
  if [ ${#missing[@]} = 0 ]; then
    say "$purpose: all $# packages are installed"
    return
  fi
  update_lists
  say "$purpose: installing ${missing[*]}"
  apt install --no-install-recommends "${missing[@]}" || fail "$purpose: apt-get could not install ${missing[*]}"
}

# Debian starts a subnet manager as soon as opensm is installed, on whatever fabric this host has. The tests start their own,
# on a simulated fabric; so the service is masked first, unless opensm is here already.
mask_opensm() {
  local -r unit=/etc/systemd/system/opensm.service
  if installed opensm || [ -e "$unit" ] || [ -L "$unit" ]; then return; fi
  say "test: masking opensm.service, so that no subnet manager starts here (systemctl unmask opensm undoes it)"
  as_root mkdir -p "${unit%/*}"
  as_root ln -s /dev/null "$unit"
}

# A kernel with rdma_rxe whose image this user can read; the same rule as in softroce.sh.
have_kernel() {
  local root image
  for root in "" "$CACHE_DIR/kernel"; do
    for image in "$root"/boot/vmlinuz-*; do
      [ -r "$image" ] || continue
      compgen -G "$root/lib/modules/${image##*/vmlinuz-}/kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko*" >/dev/null &&
        return 0
    done
  done
  return 1
}

# Unpacks Debian's kernel below the cache directory: nothing is added to /boot or to the boot menu.
unpack_kernel() {
  local package work
  update_lists
  package=$(apt-cache depends linux-image-amd64 | awk '$1 == "Depends:" && $2 ~ /^linux-image-[0-9]/ { print $2; exit }')
  [ -n "$package" ] || fail "softroce: the package linux-image-amd64 is not in the package lists (Debian amd64 only)"
  say "softroce: unpacking $package into $CACHE_DIR/kernel"
  mkdir -p "$CACHE_DIR" || fail "softroce: cannot create $CACHE_DIR: set SLUICE_CACHE_DIR to a writable directory"
  work=$(mktemp -d "$CACHE_DIR/kernel.XXXXXX")
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" EXIT
  (cd "$work" && apt-get -qq -o Acquire::Retries=3 -o APT::Sandbox::User=root download "$package") ||
    fail "softroce: cannot download $package"
  dpkg-deb --fsys-tarfile "$work"/*.deb | tar -x -C "$work" --wildcards './boot/vmlinuz-*' "${KERNEL_PARTS[@]}" ||
    fail "softroce: cannot unpack $package into $work (disk full?)"
  rm "$work"/*.deb
  /sbin/depmod -b "$work" "$(ls "$work/lib/modules")"
  rm -rf "$CACHE_DIR/kernel"
  mv "$work" "$CACHE_DIR/kernel"
}

[ -x /usr/bin/apt-get ] || fail "apt-get is missing: Debian 12 (or a system with its packages) is needed"
[ $# -gt 0 ] || set -- build test softroce
for purpose in "$@"; do
  # shellcheck disable=SC2086
  case $purpose in
    build) install build $BUILD ;;
    test)
      mask_opensm
      install test $TEST
      ;;
    lint) install lint $LINT ;;
    softroce)
      install softroce $SOFTROCE
      if have_kernel; then say "softroce: a kernel with rdma_rxe is present"; else unpack_kernel; fi
      ;;
    *) fail "unknown purpose '$purpose': give any of build, test, softroce, lint" ;;
  esac
done
