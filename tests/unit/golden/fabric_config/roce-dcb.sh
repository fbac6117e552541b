#!/bin/bash
# Quality of service of one RoCE port for the service classes of the policy,
# written by sluice fabric-config --for dcb. Run as root: FILE INTERFACE
# WARNING: classes control, latency share DSCP 34: the network cannot tell them apart, only Sluice's own scheduler does
# Switches need the same priorities (sluice fabric-config --for sonic).
#   priority 0: everything else, 10 %
#   priority 3: bulk, 90 %, lossless
#   priority 5: control, latency, strict, lossless
#   priority 6: congestion notifications, strict
set -euo pipefail
dev=${1:?interface, such as eth0}

# Packets are sorted by their DSCP, which survives routing. Drivers trust the DSCP once such entries exist; where the
# driver has a switch for it, also: dcb apptrust set dev "$dev" order dscp (iproute2 6.2).
dcb app replace dev "$dev" dscp-prio \
  0:0 1:0 2:0 3:0 4:0 5:0 6:0 7:0 \
  8:0 9:0 10:0 11:0 12:0 13:0 14:0 15:0 \
  16:0 17:0 18:0 19:0 20:0 21:0 22:0 23:0 \
  24:0 25:0 26:3 27:0 28:0 29:0 30:0 31:0 \
  32:0 33:0 34:5 35:0 36:0 37:0 38:0 39:0 \
  40:0 41:0 42:0 43:0 44:0 45:0 46:0 47:0 \
  48:6 49:0 50:0 51:0 52:0 53:0 54:0 55:0 \
  56:0 57:0 58:0 59:0 60:0 61:0 62:0 63:0

# One queue per priority; strict ones first, the others share what is left. Not willing: a switch cannot change it.
dcb ets set dev "$dev" willing off \
  prio-tc 0:0 1:1 2:2 3:3 4:4 5:5 6:6 7:7 \
  tc-tsa 0:ets 1:ets 2:ets 3:ets 4:ets 5:strict 6:strict 7:strict \
  tc-bw 0:10 1:0 2:0 3:90 4:0 5:0 6:0 7:0

# RDMA must not lose packets: these priorities pause instead of dropping.
dcb pfc set dev "$dev" prio-pfc all:off 3:on 5:on
