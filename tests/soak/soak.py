#!/usr/bin/python3
"""Many sandboxes for a long time: what stays behind, what grows, and what neighbors notice.

usage: soak.py [--msb PATH] [--cycles N] [--execs N] [--side-by-side N] [--seconds N] [--json FILE]

  cycles        create, execute, remove, over and over: no process, file, socket or mount stays
  execs         commands in one sandbox: memory and descriptors of its monitor do not grow with them
  side by side  sandboxes at the same time: all work, and what each of them costs
  neighbor      one of them forks, allocates, writes and floods without end: how long commands of others take

Figures are printed as they come. Exit status 1 if something was left, grew, or did not work.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import processes  # noqa: E402

WORKERS = 8
MEMORY = "64M"
# What a monitor may grow by, whatever the number of commands: buffers that stay, fragmentation.
GROWTH_KIB = 1024
# Processes that a user-mode kernel keeps for the next command, at most (kernel/patches/uml/30-um-stub-pool.patch).
KEPT_STUBS = 16

HOSTILE = """
( while :; do ( while :; do :; done ) & done ) 2>/dev/null &
( while :; do head -c 1g /dev/zero | tail >/dev/null; done ) 2>/dev/null &
( while :; do dd if=/dev/zero of=/fill bs=1M 2>/dev/null; rm -f /fill; done ) &
cat /dev/zero
"""


class Soak:
    def __init__(self, msb):
        self.msb = str(pathlib.Path(msb).resolve())
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="msb-soak-"))
        self.env = {**os.environ, "MSB_HOME": str(self.home)}
        self.figures, self.wrong = {}, []

    def call(self, *args, timeout=120):
        return subprocess.run([self.msb, *args], env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=timeout, check=False)

    def must(self, *args):
        p = self.call(*args)
        if p.returncode:
            self.complain(f"msb {' '.join(args[:3])}: {p.stderr.decode(errors='replace').strip()[-200:]}")
        return p

    def complain(self, text):
        if len(self.wrong) < 20:
            print(f"  WRONG: {text}", flush=True)
        self.wrong.append(text)

    def note(self, key, value, unit=""):
        self.figures[key] = value
        print(f"  {key:44}{value:12.2f} {unit}", flush=True)

    # --- looking from outside ---

    def monitor(self, name):
        pid = processes.lock_holder(self.home / "sandboxes" / name / "lock")
        if pid is None:
            raise RuntimeError(f"no monitor of {name}")
        return pid

    @staticmethod
    def status(pid, key):
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1])
        return 0

    def sizes(self, pid):
        """Of a monitor: its memory, its descriptors (to an ordinary user, the size of their table), its processes."""
        try:
            fds = len(os.listdir(f"/proc/{pid}/fd"))
        except PermissionError:
            fds = self.status(pid, "FDSize")
        return self.status(pid, "RssAnon"), fds, len(processes.tree(pid))

    def pss_kib(self, name):
        """Of all processes of a sandbox, with the guest's memory in it."""
        return sum(processes.rollup(pid).get("Pss", 0) for pid in processes.tree(self.monitor(name)))

    def outside(self):
        """What sandboxes could leave on the host."""
        files = sorted(str(p.relative_to(self.home)) for sub in ("sandboxes", "locks") if (self.home / sub).is_dir()
                       for p in (self.home / sub).iterdir() if p.name not in (".placement", ".no-cgroup"))
        sockets = sum(str(self.home) in line for line in open("/proc/net/unix", encoding="utf-8", errors="replace"))
        mounts = pathlib.Path("/proc/mounts").read_text().count(str(self.home))
        own = sum(self.is_ours(e) for e in os.listdir("/proc") if e.isdigit())
        return {"files": files, "sockets": sockets, "mounts": mounts, "processes": own}

    def at_rest(self):
        """outside(), once the janitors of sandboxes that have ended are gone, too."""
        deadline = time.monotonic() + 30
        while (now := self.outside())["processes"] and time.monotonic() < deadline:
            time.sleep(0.1)
        return now

    def is_ours(self, pid):
        try:
            return f"MSB_HOME={self.home}".encode() in pathlib.Path("/proc", pid, "environ").read_bytes().split(b"\0")
        except OSError:
            return False

    # --- phases ---

    def cycles(self, n):
        self.must("run", "-q", "-m", MEMORY, "--", "true")
        before = self.at_rest()
        start = time.monotonic()

        def one(i):
            name = f"c{i}"
            self.must("create", "-q", "-n", name, "-m", MEMORY)
            p = self.must("exec", "-q", name, "--", "echo", "hello")
            if p.stdout != b"hello\n":
                self.complain(f"{name} said {p.stdout!r}")
            self.must("rm", "-f", "-q", name)

        with concurrent.futures.ThreadPoolExecutor(WORKERS // 2) as pool:
            list(pool.map(one, range(n)))
        self.note(f"{n} cycles, each", (time.monotonic() - start) * 1000 / n, "ms")
        deadline = time.monotonic() + 30
        while (after := self.outside()) != before and time.monotonic() < deadline:
            time.sleep(0.1)
        for key, value in after.items():
            if value != before[key]:
                self.complain(f"cycles left {key}: {before[key]} -> {value}")

    def execs(self, n):
        self.must("create", "-q", "-n", "e")
        pid = self.monitor("e")
        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            def some(count):
                list(pool.map(lambda i: self.must("exec", "-q", "e", "--", "true"), range(count)))

            some(max(n // 10, 50))  # buffers find their size
            sizes = self.sizes(pid)
            start = time.monotonic()
            some(n)
        self.note(f"{n} execs, {WORKERS} at a time, each", (time.monotonic() - start) * 1000 / n, "ms")
        time.sleep(1)
        now = self.sizes(pid)
        self.note("growth of the monitor's memory", now[0] - sizes[0], "KiB")
        self.note("growth of its descriptors", now[1] - sizes[1])
        if now[0] - sizes[0] > GROWTH_KIB or now[1] > sizes[1] or now[2] > sizes[2] + KEPT_STUBS:
            self.complain(f"execs made it grow (memory, descriptors, processes): {sizes} -> {now}")
        logs = sum(f.stat().st_size for f in (self.home / "sandboxes" / "e").rglob("*.log"))
        self.note("its logs", logs / 1024, "KiB")
        self.must("rm", "-f", "-q", "e")

    def side_by_side(self, n):
        names = [f"s{i}" for i in range(n)]
        start = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(lambda x: self.must("create", "-q", "-n", x, "-m", MEMORY), names))
            self.note(f"{n} side by side, create each", (time.monotonic() - start) * 1000 / n, "ms")
            said = list(pool.map(lambda x: self.must("exec", "-q", x, "--", "echo", x).stdout, names))
        if said != [f"{x}\n".encode() for x in names]:
            self.complain("not all of them answered")
        self.note("memory of each on the host (Pss)", sum(map(self.pss_kib, names)) / 1024 / n, "MiB")
        return names

    def latency(self, names, seconds):
        took, end, i = [], time.monotonic() + seconds, 0
        while time.monotonic() < end:
            start = time.monotonic()
            self.must("exec", "-q", names[i % len(names)], "--", "true")
            took.append((time.monotonic() - start) * 1000)
            i += 1
        took.sort()
        return statistics.median(took), took[int(len(took) * 0.99)]

    def neighbor(self, names, seconds):
        quiet = self.latency(names, seconds)
        self.must("create", "-q", "-n", "hostile", "-m", MEMORY, "--root-disk", "64M")
        stop = threading.Event()

        def attack():
            while not stop.is_set():
                self.call("exec", "-q", "hostile", "--", "sh", "-c", HOSTILE, timeout=3600)
                time.sleep(0.2)

        thread = threading.Thread(target=attack)
        thread.start()
        try:
            time.sleep(1)
            loud = self.latency(names, seconds)
        finally:
            stop.set()
            self.must("rm", "-f", "-q", "hostile")
            thread.join(60)
        for label, (p50, p99) in (("alone", quiet), ("beside a hostile one", loud)):
            self.note(f"exec {label}, p50", p50, "ms")
            self.note(f"exec {label}, p99", p99, "ms")

    def close(self):
        names = self.call("ls", "-q").stdout.decode().split()
        if names:
            self.call("rm", "-f", "-q", *names, timeout=600)
        left = self.outside()
        if left["files"] or left["processes"] or left["sockets"]:
            self.complain(f"at the end: {left}")
        shutil.rmtree(self.home, ignore_errors=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--msb", default=ROOT / "build" / "src" / "cli" / "msb")
    ap.add_argument("--cycles", type=int, default=2000)
    ap.add_argument("--execs", type=int, default=100000)
    ap.add_argument("--side-by-side", type=int, default=100)
    ap.add_argument("--seconds", type=float, default=60, help="for each measurement of latency")
    ap.add_argument("--json", type=pathlib.Path)
    args = ap.parse_args()
    s = Soak(args.msb)
    try:
        s.cycles(args.cycles)
        s.execs(args.execs)
        names = s.side_by_side(args.side_by_side)
        s.neighbor(names, args.seconds)
    finally:
        s.close()
    if args.json:
        args.json.write_text(json.dumps({"figures": s.figures, "wrong": s.wrong}, indent=2) + "\n")
    print(f"  {len(s.wrong)} things went wrong", flush=True)
    return 1 if s.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
