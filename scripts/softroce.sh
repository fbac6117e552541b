#!/bin/bash
# softroce.sh [options] COMMAND [ARG...]
#
# Runs COMMAND on Soft-RoCE: the kernel's own verbs stack with software devices, no hardware needed.
# Boots a Debian kernel under QEMU's software emulation with this machine's files as a copy-on-write root, makes
# N RoCE v2 devices (rxe0 at 10.9.0.1, rxe1 at 10.9.0.2, ...) on veth pairs of one bridge, all reachable from each other
# within one network namespace, and runs COMMAND as root in the current directory with the caller's environment.
# Output appears as it is written. What COMMAND writes to files is lost with the guest.
#
# Exit status: COMMAND's own; 124 when the time limit ended it; 125 when the guest could not be started.
#
#   scripts/softroce.sh ibv_devinfo -d rxe0
#   scripts/softroce.sh --devices 4 --timeout 600 bash -c 'rdma link; ip addr'
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin  # ip, modprobe
readonly PROGRAM=softroce.sh
# crc32_generic is asked for by name when rdma_rxe makes a device; the guest may have no modules to search.
readonly GUEST_MODULES="virtio_pci 9pnet_virtio 9p overlay virtio_console crc32_generic rdma_rxe ib_uverbs rdma_ucm
  veth bridge"
readonly CACHE_DIR=${SLUICE_CACHE_DIR:-${XDG_CACHE_HOME:-${HOME:-/tmp/sluice-$(id -u)}/.cache}/sluice}

devices=2
timeout_s=300
memory_mib=2048
cpus=2
kernel=""
verbose=0
work=""
qemu_pid=""

fail() {
  echo "$PROGRAM: $*" >&2
  exit 125
}

usage() {
  cat <<USAGE
usage: $PROGRAM [options] COMMAND [ARG...]
  --devices N     RoCE devices rxe0..rxe(N-1), 1 to 16 (default $devices)
  --timeout S     seconds until the guest is killed, boot included (default $timeout_s)
  --memory MIB    memory of the guest (default $memory_mib)
  --cpus N        processors of the guest (default $cpus)
  --kernel DIR    directory that holds boot/vmlinuz-* and lib/modules/* (default: / or what install-deps.sh unpacked)
  --verbose       show the guest's console on standard error
USAGE
}

# shellcheck disable=SC2317  # called by trap
cleanup() {
  trap - EXIT INT TERM HUP
  [ -z "$qemu_pid" ] || kill -KILL "$qemu_pid" 2>/dev/null || true
  [ -z "$work" ] || rm -rf "$work"
}

# number NAME VALUE MIN MAX
number() {
  if [[ ! $2 =~ ^[0-9]{1,9}$ ]] || (($2 < $3 || $2 > $4)); then
    fail "$1 is '$2': give a whole number from $3 to $4"
  fi
}

need() {
  command -v "$1" >/dev/null || fail "$1 is missing: apt-get install $2 (or scripts/install-deps.sh softroce)"
}

# Prints "ROOT VERSION" of a kernel whose image is readable and which has rdma_rxe.
find_kernel() {
  local root version image
  for root in ${kernel:-/ "$CACHE_DIR/kernel"}; do
    while read -r image; do
      version=${image##*/vmlinuz-}
      [ -r "$image" ] || continue
      compgen -G "${root%/}/lib/modules/$version/kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko*" >/dev/null || continue
      echo "${root%/}/ $version"
      return
    done < <(compgen -G "${root%/}/boot/vmlinuz-*" | sort -rV)
  done
  fail "no readable kernel with the module rdma_rxe in ${kernel:-/boot or $CACHE_DIR/kernel}:" \
    "run scripts/install-deps.sh softroce (unpacks linux-image-amd64) or apt-get install linux-image-amd64"
}

# The first program of the guest. Mounts the host's files below an overlay and hands over to guest_main.
write_init() {
  cat <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
die() { echo "guest: $*"; poweroff -f; }
mount -t proc none /proc; mount -t sysfs none /sys; mount -t devtmpfs none /dev
while read -r module; do insmod "/lib/modules/$module" || echo "guest: cannot load $module"; done </modules
mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,ro,cache=loose host /host || die "cannot mount the host's files"
mount -t tmpfs none /rw
mkdir -p /rw/upper /rw/work
mount -t overlay -o lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work none /newroot || die "cannot mount the overlay"
for d in proc sys dev; do mount --move /$d /newroot/$d; done
mkdir -p /newroot/dev/shm /newroot/dev/pts
mount -t tmpfs none /newroot/dev/shm
mount -t devpts none /newroot/dev/pts
mount -t tmpfs none /newroot/run
mkdir -p /newroot/run/softroce
mount -t 9p -o trans=virtio,version=9p2000.L,ro job /newroot/run/softroce || die "cannot mount the job"
exec switch_root /newroot /bin/bash /run/softroce/guest.sh
INIT
}

# Runs in the guest as process 1: devices, then the command. Ports: 1 standard output, 2 standard error, 3 exit status.
write_guest() {
  printf 'devices=%d\n' "$devices"
  cat <<'GUEST'
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
set_up_devices() (
  set -e
  hostname softroce
  ip link set lo up
  # Several devices live in one namespace (rxe knows no other in this kernel), and a packet between two of them must cross the veth
  # pair instead of being short-cut over lo, where no RoCE device listens. So the table of local addresses is asked first only
  # for packets that arrived from a wire, and every source address has a table of its own that points at its device.
  sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0 \
    net.ipv4.conf.all.accept_local=1 net.ipv4.conf.default.accept_local=1 \
    net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.default.arp_ignore=1
  ip link add softroce type bridge
  ip link set softroce up mtu 4200
  for ((i = 0; i < devices; ++i)); do
    ip link add "roce$i" mtu 4200 type veth peer name "port$i" mtu 4200
    ip link set "port$i" master softroce up
    ip link set "roce$i" up
    ip addr add "10.9.0.$((i + 1))/24" dev "roce$i"
    ip rule add pref 10 iif "roce$i" lookup local
    ip route add throw "10.9.0.$((i + 1))" table $((100 + i))
    ip route add 10.9.0.0/24 dev "roce$i" src "10.9.0.$((i + 1))" table $((100 + i))
    ip rule add pref 20 from "10.9.0.$((i + 1))" to 10.9.0.0/24 lookup $((100 + i))
    rdma link add "rxe$i" type rxe netdev "roce$i"
  done
  ip rule add pref 100 lookup local
  ip rule del pref 0
)
ports=$(echo /dev/vport*p1)
ports=${ports%p1}  # the number in the name is the order in which the kernel found the device
exec 3>"${ports}p3"
set_up_devices  # not as a condition, which would switch its set -e off
if [ $? = 0 ]; then
  # shellcheck disable=SC1091
  (. /run/softroce/job.sh) </dev/null >"${ports}p1" 2>"${ports}p2"
  echo $? >&3
else
  echo "guest: cannot set up the RoCE devices"
fi
echo o >/proc/sysrq-trigger
sleep 60
GUEST
}

# The command, its directory and its environment, as a script. Paths are the same in the guest.
write_job() {
  export -p | grep -vE '^declare -x (PATH|OLDPWD|SHLVL|PWD|TERM)(=|$)' || true
  printf 'export HOME=%q\n' "${HOME:-/root}"
  printf 'export PATH=%q\n' "${PATH:-}:/usr/sbin:/usr/bin:/sbin:/bin"
  printf 'ulimit -l unlimited\ncd %q || exit 125\nexec' "$PWD"
  printf ' %q' "$@"
  echo
}

# Prints the path of an initrd for kernel $2 under root $1; builds it once per kernel and version of this file.
initrd() {
  local root=$1 version=$2 key target tree file name
  key=$(cksum <"${BASH_SOURCE[0]}" | cut -d' ' -f1)
  target=$CACHE_DIR/softroce/$version-$key.cpio.gz
  if [ ! -s "$target" ]; then
    need cpio cpio
    need busybox busybox-static
    need modprobe kmod
    mkdir -p "${target%/*}" || fail "cannot create the cache directory ${target%/*}: set SLUICE_CACHE_DIR to a writable one"
    tree=$work/initrd
    mkdir -p "$tree"/{bin,proc,sys,dev,host,rw,newroot,lib/modules}
    cp -L "$(command -v busybox)" "$tree/bin/busybox"
    for name in $GUEST_MODULES; do
      modprobe -d "$root" -S "$version" --show-depends "$name" ||
        fail "kernel $version lacks the module $name: install Debian's linux-image-amd64 (not the cloud flavour)"
    done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$work/modules"
    while read -r file; do
      name=${file##*/}
      case $name in
        *.xz) xz -dc "$file" >"$tree/lib/modules/${name%.xz}" ;;
        *.zst) zstd -qdc "$file" >"$tree/lib/modules/${name%.zst}" ;;
        *) cp "$file" "$tree/lib/modules/" ;;
      esac
      echo "${name%%.ko*}.ko" >>"$tree/modules"
    done <"$work/modules"
    write_init >"$tree/init"
    chmod +x "$tree/init"
    (cd "$tree" && find . | cpio -o -H newc --quiet) | gzip -1 >"$target.$$"
    mv "$target.$$" "$target"  # whole or not at all, also with several callers at once
    rm -rf "$tree"
  fi
  echo "$target"
}

while [ $# -gt 0 ]; do
  case $1 in
    --devices | --timeout | --memory | --cpus | --kernel)
      [ $# -ge 2 ] || fail "$1 needs a value"
      case $1 in
        --devices) number "$1" "$2" 1 16 && devices=$2 ;;
        --timeout) number "$1" "$2" 1 86400 && timeout_s=$2 ;;
        --memory) number "$1" "$2" 512 1048576 && memory_mib=$2 ;;
        --cpus) number "$1" "$2" 1 64 && cpus=$2 ;;
        --kernel) kernel=$2 ;;
      esac
      shift 2
      ;;
    --verbose) verbose=1 && shift ;;
    -h | --help) usage && exit 0 ;;
    --) shift && break ;;
    -*) usage >&2 && fail "unknown option $1" ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || { usage >&2 && fail "no command given"; }

need qemu-system-x86_64 qemu-system-x86
need ip iproute2
need rdma iproute2
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
work=$(mktemp -d "${TMPDIR:-/tmp}/softroce.XXXXXX") || fail "cannot create a directory in ${TMPDIR:-/tmp}: set TMPDIR"

found=$(find_kernel) || exit 125
read -r root version <<<"$found"
image=$(initrd "$root" "$version") || exit 125

mkdir "$work/job"
write_guest >"$work/job/guest.sh"
write_job "$@" >"$work/job/job.sh"
for port in out err status console; do : >"$work/$port"; done
acceleration=tcg,thread=multi

# With --pdeathsig the guest dies with its parent, also if that is killed with SIGKILL.
setpriv --pdeathsig KILL timeout --foreground -k 5 "$timeout_s" setpriv --pdeathsig KILL \
  qemu-system-x86_64 -accel "$acceleration" -cpu max,la57=off -smp "$cpus" -m "$memory_mib" \
  -kernel "${root}boot/vmlinuz-$version" -initrd "$image" \
  -append "console=ttyS0 quiet panic=-1 sysrq_always_enabled=1 mitigations=off nokaslr no_timer_check audit=0 apparmor=0" \
  -nodefaults -display none -no-reboot -nic none -serial "file:$work/console" \
  -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
  -virtfs "local,path=$work/job,mount_tag=job,security_model=none,readonly=on" \
  -device virtio-serial \
  -chardev "file,id=out,path=$work/out" -device virtserialport,chardev=out,nr=1 \
  -chardev "file,id=err,path=$work/err" -device virtserialport,chardev=err,nr=2 \
  -chardev "file,id=status,path=$work/status" -device virtserialport,chardev=status,nr=3 \
  >>"$work/console" 2>&1 </dev/null &
qemu_pid=$!
tail -s 0.2 -n +1 -f --pid="$qemu_pid" "$work/err" >&2 &
[ "$verbose" = 0 ] || tail -s 0.2 -n +1 -f --pid="$qemu_pid" "$work/console" >&2 &
tail -s 0.2 -n +1 -f --pid="$qemu_pid" "$work/out" &
qemu_status=0
wait "$qemu_pid" || qemu_status=$?  # all children in the background, so that a signal is answered at once
qemu_pid=""
wait

if [ -s "$work/status" ]; then
  exit "$(head -1 "$work/status")"
elif [ "$qemu_status" = 124 ] || [ "$qemu_status" = 137 ]; then
  tail -n 20 "$work/console" | tr -d '\r' >&2
  echo "$PROGRAM: stopped after $timeout_s s: raise it with --timeout" >&2
  exit 124
else
  tail -n 20 "$work/console" | tr -d '\r' >&2
  fail "the guest ended (qemu status $qemu_status) before the command did; its last console lines are above"
fi
