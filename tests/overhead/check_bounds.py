#!/usr/bin/env python3
"""check_bounds.py --build DIR PLUGIN.so: the plugin stays within its budget of instructions per message.

Instruction counts are deterministic, so this is no timed assertion. The stock transport takes 1090 for 8 B, 1119 for 64 KiB and
1 MiB, 1983 when split over four queue pairs, 82 for a refused isend and 80 for an empty test.
"""
import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from callgrind import Rig  # noqa: E402

SPLIT = {"NCCL_IB_QPS_PER_CONNECTION": "4", "NCCL_IB_SPLIT_DATA_ON_QPS": "1"}
ONE_CHUNK, FURTHER_CHUNK = 900, 300
# Lanes and their scheduler, against a policy with one class.
ONE_CLASS = {"SLUICE_POLICY": "[[rule]]\nclass = 'bulk'"}
MOST_FOR_LANES = 1.03
BUDGETS = [
    ("8 B", 870, ["--size", "8"], {}),
    ("64 KiB", ONE_CHUNK, ["--size", "65536"], {}),
    ("1 MiB", ONE_CHUNK, ["--size", "1048576"], {}),
    ("1 MiB over 4 queue pairs", ONE_CHUNK + 3 * FURTHER_CHUNK, ["--size", "1048576"], SPLIT),
    ("refused isend", 60, ["--phase", "refused"], {}),
    ("empty test, receive", 60, ["--phase", "empty-recv"], {}),
    ("empty test, send", 60, ["--phase", "empty-send"], {}),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("plugin")
    args = parser.parse_args()
    rig = Rig(args.build)
    failed = False
    print(f"{'case':26} {'Ir':>7} {'budget':>7} {'mutex':>6} {'alloc':>6}")
    for name, budget, options, env in BUDGETS:
        r = rig.measure(args.plugin, options, env)
        ir = r["ir"]["plugin"] + r["libs_ir"]
        ok = ir <= budget and r["mutex"] == 0 and r["alloc"] == 0
        failed |= not ok
        print(f"{name:26} {ir:7.1f} {budget:7} {r['mutex']:6.3f} {r['alloc']:6.3f}{'' if ok else '  FAILED'}", flush=True)
    for size in ("8", "65536", "1048576"):
        lanes, one = (rig.measure(args.plugin, ["--size", size], env)["ir"]["plugin"] for env in ({}, ONE_CLASS))
        ok = lanes <= MOST_FOR_LANES * one
        failed |= not ok
        print(f"lanes / one class, {size:>7} B {lanes:7.1f} / {one:.1f} = {lanes / one:.4f}, at most {MOST_FOR_LANES}{'' if ok else '  FAILED'}",
              flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
