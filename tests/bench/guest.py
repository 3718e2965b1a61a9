#!/usr/bin/python3
"""What programs cost inside a sandbox: natively, in msb (uml), in gVisor (runsc) and in runc, in one run.

usage: guest.py [--msb PATH] [--cpus N] [--host-cpus N] [--rounds N] [--only TEXT] [--disk-sync WHEN] [--json FILE]

A Debian root with Python, gcc, git and Node.js runs everywhere: on the host (chroot), in a container and in
sandboxes. First single operations (micro.c), then workloads; all of them take turns, round by round, so that
a busy moment of the machine meets all alike. Everything of a contestant, its host side included, is kept to as many
CPUs as a guest has; or to more, if --host-cpus says so. The least of the rounds counts. Ratios matter, absolute figures
are those of this machine. What is synced waits for the host's disk natively and in runc; not in gVisor, whose
files are gone with their container, nor in msb, whose sandbox is of the same kind (run --rm), unless --disk-sync
asks for one that is kept.

runsc is Debian's; its systrap platform is younger than the one of Debian 12, so it comes from Debian 13's
archive, unpacked into the cache. A peer that does not run here is a row that says so.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "e2e")]
import imagekit  # noqa: E402
from runner import machine  # noqa: E402

# Python's tests are in a package with its version in the name, which is that of this release: ours.
PACKAGES = (f"python3,libpython3-stdlib,libpython3.{sys.version_info[1]}-testsuite,"
            "gcc,libc6-dev,make,git,nodejs,ca-certificates")
RUNSC_RELEASE = "trixie"
MEMORY = "2G"

# name -> (what is prepared before each round, what is timed), in a directory that is the workload's own.
WORKLOADS = {
    "python start x5": ("", "for i in 1 2 3 4 5; do python3 -c pass; done"),
    "python imports": ("", "python3 -c 'import asyncio, json, http.client, unittest, email, sqlite3, xml.dom.minidom, ssl'"),
    "unittest modules": ("", "python3 -m unittest -q test.test_json test.test_tempfile test.test_glob test.test_fileio "
                             "test.test_pathlib test.test_filecmp test.test_zipapp"),
    "200 processes from a shell": ("", "i=0; while [ $i -lt 200 ]; do /bin/true; i=$((i + 1)); done"),
    "make -j1, 24 C files": ("rm -f *.o", "make -s -j1"),
    "make -j2, 24 C files": ("rm -f *.o", "make -s -j2"),
    "git add 1500 files": ("rm -rf .git; git init -q .", "git add -A"),
    "tar 1500 files": ("", "tar cf - tree | cat >/dev/null"),
    "untar 1500 files": ("rm -rf out; mkdir out; [ -e t.tar ] || tar cf t.tar tree", "tar xf t.tar -C out"),
    "grep -r": ("", "grep -r nothing_like_it /usr/lib/python3 /usr/share/perl >/dev/null; true"),
    "find /usr": ("", "find /usr -type f -size +1000k >/dev/null"),
    "sqlite, 400 commits": ("rm -f db*", "python3 commits.py"),
    "node start x3": ("", "for i in 1 2 3; do node -e 0; done"),
    "node, 2000 files": ("rm -rf n; mkdir n", "node files.js"),
}

COMMITS = """import sqlite3
db = sqlite3.connect("db")
db.execute("create table t (a integer primary key, b text)")
for i in range(400):
    db.execute("insert into t (b) values (?)", ("x" * 100,))
    db.commit()
"""
FILES_JS = """const fs = require('fs');
for (let i = 0; i < 2000; i++) fs.writeFileSync(`n/${i}`, 'x'.repeat(500));
for (let i = 0; i < 2000; i++) fs.readFileSync(`n/${i}`);
for (let i = 0; i < 2000; i++) fs.statSync(`n/${i}`);
for (let i = 0; i < 2000; i++) fs.unlinkSync(`n/${i}`);
"""


# --- the root -------------------------------------------------------------------------------------


def make_root(directory):
    release = machine.this_release()
    machine.must(["unshare", "--mount", "--propagation", "private", "debootstrap", "--variant=minbase",
                  f"--include={PACKAGES}", release, directory, machine.archives(release)[0][0]],
                 env=machine.proxy_environment())
    for waste in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale"):
        shutil.rmtree(directory / waste, ignore_errors=True)


def furnish(root):
    """The workloads' files, all in /bench."""
    bench = root / "bench"
    shutil.rmtree(bench, ignore_errors=True)
    bench.mkdir()
    subprocess.run(["cc", "-static", "-O2", "-pthread", "-D_GNU_SOURCE", "-o", bench / "micro",
                    ROOT / "tests" / "bench" / "micro.c"], check=True)
    (bench / "commits.py").write_text(COMMITS)
    (bench / "files.js").write_text(FILES_JS)
    for i in range(24):
        calls = "\n".join(f'int f{i}_{k}(int x) {{ char b[64]; snprintf(b, sizeof b, "%d", x); return b[0] * {k}; }}'
                          for k in range(60))
        (bench / f"c{i}.c").write_text(f"#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n{calls}\n")
    (bench / "Makefile").write_text("all: $(patsubst %.c,%.o,$(wildcard *.c))\n%.o: %.c\n\tcc -O1 -c $< -o $@\n")
    for i in range(1500):
        f = bench / "tree" / f"d{i % 40}" / f"f{i}.txt"
        f.parent.mkdir(parents=True, exist_ok=True)
        f.write_text(f"line {i}\n" * (1 + i * 37 % 300))
    (root / "etc" / "gitconfig").write_text("[safe]\n\tdirectory = *\n[user]\n\tname = n\n\temail = e@example.com\n")


def fetch_runsc():
    """Debian 13's runsc, in the cache; None and why, if it cannot be had."""
    try:
        return imagekit.unpacked(RUNSC_RELEASE, "runsc") / "usr" / "bin" / "runsc", None
    except imagekit.Unavailable as e:
        return None, str(e)


# --- contestants ----------------------------------------------------------------------------------


class Failed(Exception):
    pass


def output(cmd, **kw):
    p = subprocess.run([str(c) for c in cmd], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, text=True, errors="replace", check=False, **kw)
    if p.returncode:
        raise Failed((p.stderr.strip() or p.stdout.strip() or f"status {p.returncode}").splitlines()[-1])
    return p.stdout


class Place:
    """Somewhere to run a shell script, with an upper directory of its own over the root."""

    def __init__(self, work, root, cpus, host_cpus):
        self.work, self.root, self.cpus, self.host_cpus = work / self.name, root, cpus, host_cpus
        self.work.mkdir()

    def pinned(self):
        return ["taskset", "-c", ",".join(map(str, sorted(os.sched_getaffinity(0))[:self.host_cpus]))]

    def sh(self, script):
        return output([*self.pinned(), *self.enter(), "sh", "-ec", f"cd /bench; {script}"])

    def close(self):
        pass


class Overlay(Place):
    def mount(self):
        for d in ("upper", "overlay", "rootfs"):
            (self.work / d).mkdir()
        output(["mount", "-t", "overlay", "overlay", "-o", f"lowerdir={self.root},upperdir={self.work}/upper,"
                f"workdir={self.work}/overlay", self.work / "rootfs"])

    def close(self):
        subprocess.run(["umount", "-l", self.work / "rootfs"], check=False)


class Native(Overlay):
    name = "native"

    def start(self):
        self.mount()
        output(["mount", "-t", "proc", "proc", self.work / "rootfs" / "proc"])

    def enter(self):
        return ["chroot", self.work / "rootfs"]

    def close(self):
        subprocess.run(["umount", "-l", self.work / "rootfs" / "proc"], check=False)
        super().close()


class Oci(Overlay):
    """A container that sleeps, and what is executed in it."""

    options = []

    def start(self):
        self.mount()
        self.base = [self.program, "--root", self.work / "state", *self.options]
        output([self.base[0], "spec"], cwd=self.work)
        spec = json.loads((self.work / "config.json").read_text())
        spec["process"].update(terminal=False, args=["sleep", "100000"])
        spec["root"] = {"path": "rootfs", "readonly": False}
        spec["process"].pop("rlimits", None)
        (self.work / "config.json").write_text(json.dumps(spec))
        self.id = f"msb-bench-{os.getpid()}"
        log = open(self.work / "log", "w", encoding="utf-8")
        p = subprocess.run([*map(str, [*self.pinned(), *self.base, "run", "--bundle", self.work, "--detach", self.id])],
                           stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False, timeout=60)
        if p.returncode:
            raise Failed((self.work / "log").read_text().strip()[-200:])

    def enter(self):
        return [*self.base, "exec", self.id]

    def close(self):
        for verb in (["kill", self.id, "KILL"], ["delete", "--force", self.id]):
            subprocess.run([*map(str, self.base), *verb], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                           check=False)
        super().close()


class Runc(Oci):
    name, program = "runc", "runc"


class Runsc(Oci):
    name = "gVisor"
    options = ["--platform", "systrap", "--network", "none"]

    def start(self):
        self.program, why = fetch_runsc()
        if why:
            raise Failed(why)
        super().start()


class Msb(Place):
    name = "msb"
    program = sync = process = None

    def start(self):
        self.env = {**os.environ, "MSB_HOME": str(self.work / "home"), "MSB_ENGINE": "uml"}
        options = ["-q", "-n", "bench", "-m", MEMORY, "--cpus", self.cpus]
        if self.sync:
            output([*self.pinned(), self.program, "create", *options, "--disk-sync", self.sync, self.root], env=self.env)
            return
        run = [*self.pinned(), self.program, "run", "--rm", *options, self.root, "--"]
        self.process = subprocess.Popen([*map(str, run), "sh", "-c", "echo up; exec sleep infinity"],
                                        env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True)
        if self.process.stdout.readline() != "up\n":
            raise Failed(f"msb run ended with {self.process.wait()}")

    def enter(self):
        return ["env", f"MSB_HOME={self.env['MSB_HOME']}", self.program, "exec", "-q", "bench", "--"]

    def close(self):
        subprocess.run([self.program, "rm", "-f", "-q", "bench"], env=self.env, check=False)
        if self.process:
            self.process.wait()


# --- measuring ------------------------------------------------------------------------------------


def open_places(args, work, root):
    Msb.program, Msb.sync = str(args.msb.resolve()), args.disk_sync
    found = []
    for kind in (Native, Runc, Runsc, Msb):
        place = kind(work, root, args.cpus, args.host_cpus)
        try:
            place.start()
            place.sh("true")
            found.append(place)
        except (Failed, OSError, subprocess.SubprocessError) as e:
            print(f"  {place.name}: skipped, it does not run here: {e}", flush=True)
            place.close()
    return found


def keep_least(rows, name, place, value):
    row = rows.setdefault(name, {})
    row[place.name] = min(value, row.get(place.name, value))


def micro(places, rounds, rows):
    for _ in range(rounds):
        for place in places:
            for line in place.sh("mkdir -p /bench/m; cd /bench/m; ../micro 3").splitlines():
                name, least, _ = line.split("\t")
                keep_least(rows, name, place, float(least))


def workload(places, name, rounds, rows):
    prepare, command = WORKLOADS[name]
    for r in range(rounds + 1):
        for place in list(places):
            try:
                place.sh(f"{prepare or 'true'}; sync")
                took = place.sh(f"./micro time sh -c {json.dumps(command).replace('$', chr(92) + '$')}").split()[-1]
            except Failed as e:
                rows.setdefault(name, {})[place.name] = None
                print(f"  {place.name}: {name}: {e}", flush=True)
                continue
            if r:  # the first fills the caches
                keep_least(rows, name, place, float(took))


def show(rows, places):
    names = [p.name for p in places]
    print(f"\n  {'':28}" + "".join(f"{n:>12}" for n in names) + f"{'/ native':>10}{'/ gVisor':>10}")
    for row, values in rows.items():
        unit, scale = ("ms", 1e6) if row in WORKLOADS else ("ns", 1)
        cells = "".join(f"{values[n] / scale:12.0f}" if values.get(n) else f"{'failed':>12}" for n in names)
        ratio = "".join(f"{values['msb'] / values[n]:10.2f}" if values.get(n) and values.get("msb") else f"{'-':>10}"
                        for n in ("native", "gVisor"))
        print(f"  {row + ', ' + unit:28}{cells}{ratio}")


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--msb", type=pathlib.Path, default=ROOT / "build" / "src" / "cli" / "msb")
    ap.add_argument("--cpus", type=int, default=1, help="of each guest")
    ap.add_argument("--host-cpus", type=int, help="that each of them may use, where that is not the same")
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--only", default="", help="rows whose name contains this")
    ap.add_argument("--disk-sync", choices=("always", "never"), help="of a sandbox that is kept")
    ap.add_argument("--json", type=pathlib.Path)
    args = ap.parse_args()
    args.host_cpus = args.host_cpus or args.cpus
    if os.geteuid() != 0:
        print("error: containers and a root directory to compare with take root: run sudo make bench-guest",
              file=sys.stderr)
        return 1
    root = machine.layer(machine.this_release(), "bench", [PACKAGES], make_root)
    furnish(root)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # containers and mounts go with us
    work = pathlib.Path(tempfile.mkdtemp(prefix="msb-bench-guest-"))
    places, rows = [], {}
    try:
        places = open_places(args, work, root)
        print(f"msb bench-guest: {args.cpus} CPU(s) each, on {args.host_cpus} of the host, {args.rounds} rounds", flush=True)
        if not args.only:
            micro(places, args.rounds, rows)
        for name in WORKLOADS:
            if args.only in name:
                workload(places, name, args.rounds, rows)
        show(rows, places)
        if args.json:
            args.json.write_text(json.dumps({"cpus": args.cpus, "host_cpus": args.host_cpus, "rows": rows}, indent=2) + "\n")
            print(f"\n  written to {args.json}")
    finally:
        for place in places:
            place.close()
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
