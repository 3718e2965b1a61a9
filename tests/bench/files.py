#!/usr/bin/env python3
"""Files through a share, beside the guest's own disk and the host, in one run.

usage: files.py [--msb PATH] [--files N] [--mib N] [--rounds N] [--dir DIR] [--json FILE]

The same shell commands run in a host directory, in that directory through `-v` (each cache mode),
and on the guest's own disk; the best of the rounds counts. Guest caches are dropped before each
measurement, the host's are warm throughout: what is compared is the way to the files, not a disk.
Ratios matter, absolute figures are those of this machine.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLACES = ["host", "auto", "none", "always", "disk"]
DROP = "sync; echo 3 >/proc/sys/vm/drop_caches 2>/dev/null; "


def workloads(files, mib):
    """name -> (preparation, command), run in an empty or prepared directory."""
    return {
        f"untar {files} files": ("rm -rf t", "mkdir t && tar xf in.tar -C t"),
        "walk and stat": ("", "find t -type f -exec stat -c %s {} + | wc -l"),
        "read them all": ("", "find t -type f -exec cat {} + | wc -c"),
        "rm -rf": ("", "rm -rf t"),
        f"write {mib} MiB": ("rm -f big", f"dd if=/dev/zero of=big bs=1M count={mib} 2>/dev/null"),
        f"read {mib} MiB": ("", "dd if=big of=/dev/null bs=1M 2>/dev/null"),
        "write 20000 x 4 KiB": (
            "rm -f small", "dd if=/dev/zero of=small bs=4k count=20000 2>/dev/null"),
    }  # fmt: skip


class Host:
    def __init__(self, directory):
        self.dir = directory

    def run(self, script):
        subprocess.run(["sh", "-c", f"cd {self.dir} && {{ {script}; }}"], check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip


class Guest:
    def __init__(self, msb, env, name, directory):
        self.msb, self.env, self.name, self.dir = msb, env, name, directory

    def run(self, script):
        subprocess.run([self.msb, "exec", "-q", self.name, "--", "sh", "-c",
                        f"cd {self.dir} && {{ {script}; }}"],
                       check=True, env=self.env, stdout=subprocess.DEVNULL)  # fmt: skip


def make_tar(path, n):
    """Sizes as in a source tree: mostly a few KiB."""
    data = os.urandom(1 << 16)
    with tarfile.open(path, "w") as t:
        for i in range(n):
            info = tarfile.TarInfo(f"d{i % 97}/e{i % 7}/file{i}.c")
            info.size = (i * 7919) % 9000
            info.mode = 0o644
            t.addfile(info, fileobj=__import__("io").BytesIO(data[: info.size]))


def measure(place, prepare, command, rounds, guest, redo):
    best = None
    for i in range(rounds):
        if i and redo:
            place.run(redo)
        if prepare:
            place.run(prepare)
        if guest:
            place.run(DROP + "true")
        start = time.monotonic()
        place.run(command)
        took = time.monotonic() - start
        best = took if best is None else min(best, took)
    return best


def bench(args, work, env):
    msb = str(args.msb)
    share = work / "share"
    names = {}
    for place in PLACES[1:]:
        (share / place).mkdir(parents=True)
        mounts = [] if place == "disk" else ["-v", f"{share / place}:/w:cache={place}"]
        subprocess.run([msb, "create", "-q", "-n", place, "-m", "1G", *mounts], check=True, env=env)
        names[place] = Guest(msb, env, place, "/root" if place == "disk" else "/w")
    (share / "host").mkdir()
    names["host"] = Host(share / "host")
    make_tar(work / "in.tar", args.files)
    for place in PLACES:
        if place == "disk":
            with open(work / "in.tar", "rb") as f:
                subprocess.run([msb, "exec", "-q", "disk", "--", "sh", "-c", "cat >/root/in.tar"],
                               stdin=f, check=True, env=env)  # fmt: skip
        else:
            shutil.copy(work / "in.tar", share / place / "in.tar")
    results = {}
    for name, (prepare, command) in workloads(args.files, args.mib).items():
        redo = "mkdir -p t && tar xf in.tar -C t" if name == "rm -rf" else ""
        results[name] = {
            p: measure(names[p], prepare, command, args.rounds, p != "host", redo) for p in PLACES
        }
        row = results[name]
        print(f"{name:<22}" + "".join(f"{row[p]:>9.3f}" for p in PLACES)
              + f"{row['auto'] / row['disk']:>11.2f}{row['auto'] / row['host']:>11.2f}", flush=True)
    for place in PLACES[1:]:
        subprocess.run([msb, "rm", "-f", "-q", place], check=True, env=env)
    return results


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--msb", type=pathlib.Path, default=ROOT / "build" / "src" / "cli" / "msb")
    ap.add_argument("--files", type=int, default=5000)
    ap.add_argument("--mib", type=int, default=256)
    ap.add_argument("--rounds", type=int, default=3)
    ap.add_argument("--dir", help="where to work; a tmpfs leaves the disk out of it")
    ap.add_argument("--json", type=pathlib.Path)
    args = ap.parse_args()
    work = pathlib.Path(tempfile.mkdtemp(prefix="msb-bench-files-", dir=args.dir))
    env = {**os.environ, "MSB_HOME": str(work / "home")}
    (work / "home").mkdir(mode=0o700)
    print(f"{'seconds':<22}" + "".join(f"{p:>9}" for p in PLACES) + f"{'auto/disk':>11}{'auto/host':>11}")
    try:
        results = bench(args, work, env)
    finally:
        names = subprocess.run([args.msb, "ls", "-q"], env=env, stdout=subprocess.PIPE, text=True)
        for name in names.stdout.split():
            subprocess.run([args.msb, "rm", "-f", "-q", name], env=env, check=False)
        shutil.rmtree(work, ignore_errors=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
