#!/usr/bin/env python3
"""check_rig.py --build DIR: the rig reports the known costs of the toy plugin, and its payload check finds missing data."""
import argparse
import os
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from callgrind import Rig  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    rig = Rig(parser.parse_args().build)
    toy = rig.build + "/toyplugin.so"
    failures = []

    def expect(what, got, wanted, tolerance=0.001):
        print(f"{what}: {got:.3f}, expected {wanted:.3f}")
        if abs(got - wanted) > tolerance:
            failures.append(what)

    short, long = (rig.measure(toy, ["--size", "64", "--messages", n]) for n in ("2048", "4096"))
    expect("mutex locks per message", long["mutex"], 4)
    expect("allocations per message (its deque takes one per 64)", long["alloc"], 2 + 1 / 64)
    expect("copies per message", sum(v for k, v in long["callees"].items() if "memcpy" in k or "memmove" in k), 1, 0.01)
    expect("instructions do not depend on the number of messages", short["ir"]["plugin"], long["ir"]["plugin"], 0.5)
    split = rig.split(toy, ["--size", "64"], {})
    expect("the four calls add up", sum(split.values()), long["ir"]["plugin"], 0.5)
    again = rig.measure(toy, ["--size", "64", "--messages", "4096"])
    expect("a second run counts the same", again["ir"]["plugin"], long["ir"]["plugin"])
    rig.plugbench(toy, ["--size", "100000", "--verify", "--messages", "200"], {})

    bad = subprocess.run([rig.build + "/plugbench", toy, "--size", "8", "--group", "2"], env=rig.environment({}),
                         capture_output=True, text=True)
    if bad.returncode != 1 or "maxRecvs is 1" not in bad.stderr:
        failures.append(f"a group above maxRecvs is refused: {bad.stderr}")
    sys.exit("\n".join(["failed:"] + failures) if failures else 0)


if __name__ == "__main__":
    main()
