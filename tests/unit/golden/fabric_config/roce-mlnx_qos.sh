#!/bin/bash
# Quality of service of one RoCE port for the service classes of the policy,
# written by sluice fabric-config --for mlnx_qos. Run as root: FILE INTERFACE
# WARNING: classes control, latency share DSCP 34: the network cannot tell them apart, only Sluice's own scheduler does
# Switches need the same priorities (sluice fabric-config --for sonic).
#   priority 0: everything else, 10 %
#   priority 3: bulk, 90 %, lossless
#   priority 5: control, latency, strict, lossless
#   priority 6: congestion notifications, strict
set -euo pipefail
dev=${1:?interface, such as eth0}

# Packets are sorted by their DSCP, which survives routing, and not by a VLAN tag.
mlnx_qos -i "$dev" --trust dscp
mlnx_qos -i "$dev" --dscp2prio set,0,0
mlnx_qos -i "$dev" --dscp2prio set,26,3
mlnx_qos -i "$dev" --dscp2prio set,34,5
mlnx_qos -i "$dev" --dscp2prio set,48,6
# All other DSCPs keep the driver's default, priority = DSCP / 8; no other traffic should use priorities 1 to 5.

# One queue per priority; strict ones first, the others share what is left.
mlnx_qos -i "$dev" --prio_tc 0,1,2,3,4,5,6,7 \
  --tsa ets,ets,ets,ets,ets,strict,strict,strict \
  --tcbw 10,0,0,90,0,0,0,0

# RDMA must not lose packets: these priorities pause instead of dropping.
mlnx_qos -i "$dev" --pfc 0,0,0,1,0,1,0,0

# Congestion control of the NIC (DCQCN): answers marked packets, and slows down when told.
echo 1 > "/sys/class/net/$dev/ecn/roce_np/enable/3"
echo 1 > "/sys/class/net/$dev/ecn/roce_rp/enable/3"
echo 1 > "/sys/class/net/$dev/ecn/roce_np/enable/5"
echo 1 > "/sys/class/net/$dev/ecn/roce_rp/enable/5"
echo 48 > "/sys/class/net/$dev/ecn/roce_np/cnp_dscp"
echo 6 > "/sys/class/net/$dev/ecn/roce_np/cnp_802p_prio"

# A traffic class that the driver forces on every queue pair would undo all of this: it must be unset.
for forced in /sys/class/net/"$dev"/device/infiniband/*/tc/*/traffic_class; do
  if [ -e "$forced" ] && grep -q 'Global tclass' "$forced"; then
    echo "warning: $forced forces one traffic class on all queue pairs" >&2
  fi
done
