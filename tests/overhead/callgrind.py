"""Runs plugbench natively or under callgrind and reduces the profile to per-message numbers.

    rig = Rig("build/release/overhead")
    rig.measure("build/release/lib/libnccl-net-sluice.so", ["--size", "8"])["ir"]["plugin"]
"""
import collections
import glob
import json
import os
import subprocess
import sys
import tempfile

MUTEX = {"pthread_mutex_lock", "pthread_mutex_trylock", "pthread_spin_lock", "pthread_rwlock_rdlock",
         "pthread_rwlock_wrlock"}
ALLOC = {"malloc", "calloc", "realloc", "posix_memalign", "aligned_alloc", "memalign", "mmap"}
CALLS = {"isend": "Isend", "irecv": "Irecv", "test_send": "TestSend", "test_recv": "TestRecv"}
LIBC = ("libc.so", "libc-", "ld-linux", "libm.so", "libpthread")


class Profile:
    """Exclusive cost per (object, function) and inclusive cost per call arc, summed over callgrind output files."""

    def __init__(self, paths):
        self.own = collections.Counter()
        self.own_bus = collections.Counter()
        self.arcs = collections.defaultdict(lambda: [0, 0, 0])  # (object, function, object, function): calls, Ir, bus
        for path in paths:
            state = dict(ob=None, fn=None, cob=None, cfn=None, calls=0)
            with open(path) as lines:
                for line in lines:
                    self._line(line.rstrip("\n"), state)

    def _line(self, line, state):
        key, equals, value = line.partition("=")
        if equals and key in state:
            state[key] = int(value.split()[0]) if key == "calls" else value
        elif line and (line[0].isdigit() or line[0] in "+-*") and state["ob"] is not None:
            numbers = [int(x) for x in line.split()[1:]] + [0, 0]
            ob, fn = state["ob"], state["fn"]
            if state["calls"]:  # this line is the inclusive cost of the call announced just before
                arc = self.arcs[ob, fn, state["cob"] or ob, state["cfn"]]
                arc[0] += state["calls"]
                arc[1] += numbers[0]
                arc[2] += numbers[1]
                state.update(calls=0, cob=None)
            else:
                self.own[ob, fn] += numbers[0]
                self.own_bus[ob, fn] += numbers[1]


def kind(ob, plugin):
    """Whose code an object file is: plugin, verbs, bench, libc or other."""
    if os.path.realpath(ob) == os.path.realpath(plugin):
        return "plugin"
    name = os.path.basename(ob)
    if name.startswith("libibverbs"):
        return "verbs"
    if name == "plugbench":
        return "bench"
    return "libc" if name.startswith(LIBC) else "other"


class Rig:
    def __init__(self, build):
        self.build = os.path.abspath(build)
        self.shared = tempfile.TemporaryDirectory()
        if not os.path.exists(self.build + "/plugbench"):
            sys.exit(f"{self.build}/plugbench is missing: build the target overhead (scripts/build.sh), or name the directory "
                     "with --build")

    def environment(self, extra):
        libs = [self.build + "/lib"] + [p for p in os.environ.get("LD_LIBRARY_PATH", "").split(":") if p]
        # callgrind makes time pass some fifty times as fast for the plugin: what Sluice does every few microseconds would be
        # counted with every message, and more of it on a busy machine. Nor may other processes be seen.
        return dict(os.environ, SLUICE_ACTIVITY_HOLD_US="10000000", SLUICE_SHARED_DIR=self.shared.name, NULLVERBS_SYSFS=self.build + "/sysfs", LD_BIND_NOW="1", LD_LIBRARY_PATH=":".join(libs),
                    LD_PRELOAD=self.build + "/nullsysfs.so", **extra)

    def plugbench(self, plugin, args, extra, callgrind_out=None, only=None):
        """One run. Returns what it printed; `only` limits callgrind to functions that match that pattern."""
        cmd = [self.build + "/plugbench", plugin, *args]
        if callgrind_out:
            # plugbench switches instrumentation on for the measured phase only.
            options = ["--instr-atstart=no", "--collect-bus=yes", "--separate-threads=yes", "--compress-strings=no", "--compress-pos=no",
                       "--callgrind-out-file=" + callgrind_out] + (["--toggle-collect=" + only] if only else [])
            cmd = ["valgrind", "--tool=callgrind", *options, *cmd]
        done = subprocess.run(cmd, env=self.environment(extra), capture_output=True, text=True)
        if done.returncode:
            sys.exit(" ".join(cmd) + "\n" + done.stdout + done.stderr)
        return json.loads(done.stdout.strip().splitlines()[-1])

    def profile(self, plugin, args, extra, only=None):
        """One run under callgrind: what plugbench printed, the profile of all threads, that of the driving thread."""
        with tempfile.TemporaryDirectory() as tmp:
            out = tmp + "/callgrind.out"
            result = self.plugbench(plugin, list(args), dict({"NULLVERBS_NOCOPY": "1"}, **extra), out, only)
            return result, Profile(sorted(glob.glob(out + "-*"))), Profile([out + "-01"])

    def native_ns(self, plugin, args, extra):
        extra = dict({"NULLVERBS_NOCOPY": "1"}, **extra)
        return min(self.plugbench(plugin, [*args, "--messages", "400000"], extra)["ns_per_msg"] for _ in range(3))

    def split(self, plugin, args, extra):
        """Plugin instructions of one isend, irecv and test, averaged over a whole run."""
        costs = {}
        for call, function in CALLS.items():
            result, profile, _ = self.profile(plugin, args, extra, f"Plugin::{function}(*")
            own = sum(ir for (ob, _), ir in profile.own.items() if kind(ob, plugin) == "plugin")
            costs[call] = own / result["n_" + call]
        return costs

    def measure(self, plugin, args=(), extra=None):
        """One callgrind run, per message: ir by kind, bus (locked instructions), mutex, alloc, verbs calls, functions.

        Instructions are those of all threads; locks and allocations those of the thread that moves the data, since a thread of the
        plugin may still be busy with the end of set-up.
        """
        result, profile, driver = self.profile(plugin, args, extra or {})
        del result["ns_per_msg"]  # meaningless under callgrind
        n = result["messages"]
        result.update(ir=collections.Counter(), libs_ir=0, libs_bus=0, verbs_ir=0, mutex=0, alloc=0,
                      callees=collections.Counter(), functions=collections.Counter())
        for (ob, fn), ir in profile.own.items():
            result["ir"][kind(ob, plugin)] += ir / n
            if kind(ob, plugin) == "plugin":
                result["functions"][fn] += ir / n
        result["bus"] = sum(b for (ob, _), b in profile.own_bus.items() if kind(ob, plugin) == "plugin") / n
        for (ob, _, cob, cfn), (calls, ir, bus) in profile.arcs.items():
            source, target = kind(ob, plugin), kind(cob, plugin)
            base = cfn.split("@")[0].split("'")[0]
            if source == "plugin" and target in ("libc", "other"):
                result["libs_ir"] += ir / n
                result["libs_bus"] += bus / n
                result["callees"][base] += calls / n
            if source == "plugin" and target == "verbs":
                result["verbs_ir"] += ir / n
        for (ob, _, cob, cfn), (calls, _, _) in driver.arcs.items():
            base = cfn.split("@")[0].split("'")[0]
            if kind(ob, plugin) in ("plugin", "other") and kind(cob, plugin) == "libc":
                result["mutex"] += calls / n if base in MUTEX else 0
                result["alloc"] += calls / n if base in ALLOC else 0
        return result
