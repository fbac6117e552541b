#!/bin/sh
# make_tree.sh DIR: writes a minimal sysfs for the devices null0 and null1 into DIR, which it replaces.
set -e
root=$1
rm -rf "$root"

# put FILE VALUE
put() {
  mkdir -p "${1%/*}"
  echo "$2" >"$1"
}

for i in 0 1; do
  slot=pci0000:f0/0000:f0:0$i.0
  dev=$root/devices/$slot
  ib=$dev/infiniband/null$i
  port=$ib/ports/1
  uverbs=$dev/infiniband_verbs/uverbs$i

  put "$dev/vendor" 0x15b3
  put "$dev/device" 0x1021
  put "$dev/class" 0x020700
  put "$dev/numa_node" 0
  put "$dev/local_cpus" 3
  put "$dev/local_cpulist" 0-1
  put "$dev/max_link_speed" "32.0 GT/s PCIe"
  put "$dev/max_link_width" 16

  put "$ib/node_type" "1: CA"
  put "$ib/fw_ver" 0.0.1
  put "$ib/node_guid" "0200:c903:00a1:0${i}00"
  put "$ib/sys_image_guid" "0200:c903:00a1:0${i}00"
  put "$port/state" "4: ACTIVE"
  put "$port/phys_state" "5: LinkUp"
  put "$port/rate" "400 Gb/sec (4X NDR)"
  put "$port/lid" 0x1
  put "$port/link_layer" InfiniBand
  put "$port/pkeys/0" 0xffff
  for gid in 0 1 2 3; do
    type="IB/RoCE v1"
    [ $((gid % 2)) = 0 ] || type="RoCE v2"
    put "$port/gids/$gid" 0000:0000:0000:0000:0000:0000:0000:0000
    put "$port/gid_attrs/types/$gid" "$type"
    put "$port/gid_attrs/ndevs/$gid" lo
  done
  for counter in port_xmit_data port_rcv_data port_xmit_wait symbol_error; do
    put "$port/counters/$counter" 0
  done
  for counter in np_cnp_sent rp_cnp_handled np_ecn_marked_roce_packets out_of_sequence packet_seq_err \
    local_ack_timeout_err roce_adp_retrans; do
    put "$port/hw_counters/$counter" 0
  done

  put "$uverbs/dev" "231:$((192 + i))"
  put "$uverbs/ibdev" "null$i"
  put "$uverbs/abi_version" 1

  ln -s ../.. "$ib/device"
  ln -s ../.. "$uverbs/device"
  mkdir -p "$root/class/infiniband" "$root/class/infiniband_verbs"
  ln -s "../../devices/$slot/infiniband/null$i" "$root/class/infiniband/null$i"
  ln -s "../../devices/$slot/infiniband_verbs/uverbs$i" "$root/class/infiniband_verbs/uverbs$i"
done
