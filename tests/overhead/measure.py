#!/usr/bin/env python3
"""Instructions per message of a NCCL net plugin, by object file.

measure.py [--build DIR] [--env K=V ...] PLUGIN.so                              tables of all cases (6 min)
measure.py [--build DIR] [--env K=V ...] --case [--json] PLUGIN.so [plugbench arguments]   one case in detail
"""
import argparse
import collections
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from callgrind import Rig  # noqa: E402

QP4 = {"NCCL_IB_QPS_PER_CONNECTION": "4"}
SPLIT = {"NCCL_IB_QPS_PER_CONNECTION": "4", "NCCL_IB_SPLIT_DATA_ON_QPS": "1"}
TRICKLE = {"NULLVERBS_POLL_MAX": "1"}
CASES = [
    ("8 B, 1 QP", "8", [], {}),
    ("64 KiB, 1 QP", "65536", [], {}),
    ("1 MiB, 1 QP", "1048576", [], {}),
    ("1 MiB, 1 QP, 4 in flight", "1048576", ["--depth", "4"], {}),
    ("8 B, 1 QP, one CQE per poll", "8", [], TRICKLE),
    ("1 MiB, 1 QP, one CQE per poll", "1048576", [], TRICKLE),
    ("8 B, 4 QPs", "8", [], QP4),
    ("64 KiB, 4 QPs", "65536", [], QP4),
    ("1 MiB, 4 QPs", "1048576", [], QP4),
    ("8 B, 4 QPs split", "8", [], SPLIT),
    ("64 KiB, 4 QPs split", "65536", [], SPLIT),
    ("1 MiB, 4 QPs split", "1048576", [], SPLIT),
    ("1 MiB, 4 QPs split, one CQE per poll", "1048576", [], dict(SPLIT, **TRICKLE)),
    ("8 B, 1 QP, 16 connections", "8", ["--connections", "16"], {}),
    ("8 B, setNetAttr per 8 messages", "8", ["--attr", "rotate"], {}),
    ("8 B, RoCE", "8", [], {"NULLVERBS_LINK": "roce"}),
    ("1 MiB, RoCE", "1048576", [], {"NULLVERBS_LINK": "roce"}),
]
PHASES = [("refused isend", "refused"), ("empty test, receive", "empty-recv"), ("empty test, send", "empty-send")]


def tables(rig, plugin, extra):
    columns = ("plugin Ir", "libs Ir", "locked (plugin+libs)", "mutex", "alloc", "post_send", "WRs", "post_recv", "poll_cq",
               "CQEs", "empty tests", "ns native")
    print("| per message | " + " | ".join(columns) + " |\n|---|" + "--:|" * len(columns))
    for name, size, args, env in CASES:
        env, args = dict(env, **extra), ["--size", size, *args]
        r = rig.measure(plugin, args, env)
        print(f"| {name} | {r['ir']['plugin']:.0f} | {r['libs_ir']:.0f} | {r['bus']:.1f}+{r['libs_bus']:.1f} | "
              f"{r['mutex']:.2f} | {r['alloc']:.2f} | {r['post_send']:.2f} | {r['send_wr']:.2f} | {r['post_recv']:.2f} | "
              f"{r['poll_cq']:.2f} | {r['cqe']:.2f} | {r['test_empty']:.2f} | {rig.native_ns(plugin, args, env):.0f} |",
              flush=True)
    print("\n| plugin Ir of one call | isend | irecv | test (send) | test (receive) |\n|---|--:|--:|--:|--:|")
    for name, size, args, env in CASES:
        c = rig.split(plugin, ["--size", size, *args], dict(env, **extra))
        print(f"| {name} | {c['isend']:.0f} | {c['irecv']:.0f} | {c['test_send']:.0f} | {c['test_recv']:.0f} |", flush=True)
    print("\n| single call | plugin Ir | libs Ir | poll_cq |\n|---|--:|--:|--:|")
    for name, phase in PHASES:
        for label, env in (("1 QP", {}), ("4 QPs split", SPLIT)):
            r = rig.measure(plugin, ["--phase", phase], dict(env, **extra))
            print(f"| {name}, {label} | {r['ir']['plugin']:.1f} | {r['libs_ir']:.1f} | {r['poll_cq']:.2f} |", flush=True)


def detail(r, top):
    print(f"{r['plugin']} v{r['abi']}  phase {r['phase']}  size {r['size']}  group {r['group']}  "
          f"{r['messages']} messages on {r['connections']} connection(s)")
    print(f"instructions per message: plugin {r['ir']['plugin']:.1f}, libraries called by it {r['libs_ir']:.1f}, "
          f"(fake verbs below the plugin, inclusive {r['verbs_ir']:.1f}, bench {r['ir']['bench']:.1f})")
    print(f"locked instructions per message: plugin {r['bus']:.2f}, libraries {r['libs_bus']:.2f};  "
          f"mutex locks {r['mutex']:.3f}, allocations {r['alloc']:.3f}")
    keys = ("isend", "isend_refused", "irecv", "test", "test_empty", "setattr", "post_send", "send_wr", "post_recv", "recv_wr",
            "poll_cq", "poll_empty", "cqe", "rnr")
    print("per message: " + ", ".join(f"{k} {r[k]:.3f}" for k in keys))
    callees = ", ".join(f"{k} {v:.2f}" for k, v in r["callees"].most_common(top))
    print("library functions called: " + (callees or "none"))
    print("plugin functions (exclusive):")
    for fn, ir in r["functions"].most_common(top):
        print(f"  {ir:10.1f}  {fn}")


def one_case(rig, plugin, args, extra, as_json, top):
    r = rig.measure(plugin, args, extra)
    if as_json:
        plain = {k: v for k, v in r.items() if not isinstance(v, collections.Counter)}
        print(json.dumps(dict(plain, plugin_ir=r["ir"]["plugin"], bench_ir=r["ir"]["bench"])))
        return
    detail(r, top)
    if r["phase"] == "steady":
        costs = rig.split(plugin, args, extra)
        print("plugin instructions of one call: " + ", ".join(f"{k} {v:.1f}" for k, v in costs.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release/overhead", metavar="DIR", help="where plugbench was built")
    parser.add_argument("--env", action="append", default=[], metavar="K=V", help="setting of the plugin or the fake library")
    parser.add_argument("--case", action="store_true", help="one case in detail; further arguments go to plugbench")
    parser.add_argument("--json", action="store_true", help="with --case: one JSON object")
    parser.add_argument("--top", type=int, default=15, metavar="N", help="functions to list")
    parser.add_argument("plugin")
    args, rest = parser.parse_known_args()
    bad = [e for e in args.env if "=" not in e]
    if bad:
        parser.error(f"--env {bad[0]}: write NAME=VALUE")
    if not os.path.exists(args.plugin):
        parser.error(f"{args.plugin}: no such file")
    extra = dict(e.split("=", 1) for e in args.env)
    rig = Rig(args.build)
    if args.case:
        one_case(rig, args.plugin, rest, extra, args.json, args.top)
    elif rest or args.json:
        parser.error(f"{' '.join(rest) or '--json'}: only with --case")
    else:
        tables(rig, args.plugin, extra)


if __name__ == "__main__":
    main()
