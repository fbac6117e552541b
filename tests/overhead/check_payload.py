#!/usr/bin/env python3
"""check_payload.py --build DIR PLUGIN.so: every byte arrives, over sizes, groups, versions, queue pairs and completion timing.

What is measured must also be right; and the data path meets timings here that a real fabric seldom shows: completions one at a
time, late, and all at once. One control run, on a library told not to copy, must fail.
"""
import argparse
import itertools
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from callgrind import Rig  # noqa: E402

VERSIONS = [8, 9, 10, 11, 12]
SETTINGS = [
    {},
    {"NCCL_IB_QPS_PER_CONNECTION": "4"},
    {"NCCL_IB_QPS_PER_CONNECTION": "4", "NCCL_IB_SPLIT_DATA_ON_QPS": "1"},
    {"NULLVERBS_LINK": "roce"},
    {"NULLVERBS_POLL_MAX": "1", "NULLVERBS_CQE_DELAY": "2"},
]
LAYOUTS = [[], ["--connections", "4", "--devices", "2", "--attr", "rotate"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--full", action="store_true", help="every setting through every version, not only through the newest")
    parser.add_argument("--groups", type=int, nargs="+", default=[1, 8], help="members of a grouped receive")
    parser.add_argument("plugin")
    args = parser.parse_args()
    rig = Rig(args.build)

    def run(options, env):
        done = subprocess.run([rig.build + "/plugbench", args.plugin, "--verify", "--warmup", "64", *options],
                              env=rig.environment(dict({"SLUICE_MAX_RECVS": "8"}, **env)), capture_output=True, text=True,
                              timeout=60)
        return done.returncode == 0, done.stderr.strip()

    passed, failed = 0, 0
    cases = itertools.product(VERSIONS, (0, 1, 8, 65536, 1048576), args.groups, SETTINGS, LAYOUTS)
    for abi, size, group, env, layout in cases:
        if not args.full and abi != VERSIONS[-1] and (env or layout):
            continue  # an older table only converts arguments
        messages = 16 if size > 100000 else 128
        options = ["--abi", str(abi), "--size", str(size), "--group", str(group), "--messages", str(messages), *layout]
        ok, error = run(options, env)
        passed, failed = passed + ok, failed + (not ok)
        if not ok:
            print(f"failed: {' '.join(options)} {env}: {error}", flush=True)
    if run(["--size", "65536", "--messages", "128"], {"NULLVERBS_NOCOPY": "1"})[0]:
        print("failed: --verify did not notice that nothing was copied")
        failed += 1
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed != 0)


if __name__ == "__main__":
    main()
