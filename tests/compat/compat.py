#!/usr/bin/env python3
"""Runs real programs and their test suites natively and in a sandbox, and shows what differs.

    tests/compat/compat.py --msb BIN [--only NAME,...] [--json FILE]

Both places have the same root, a Debian with the programs' packages, made once and kept in the cache. A
program is a script of programs/; the lines "NAME: RESULT" that it prints are compared. Takes root.
"""
import argparse
import contextlib
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from runner import machine  # noqa: E402

SCRIPTS = pathlib.Path(__file__).resolve().parent / "programs"

# Each with the packages it needs and the minutes it may take.
PROGRAMS = {
    "gdb": ("gdb gcc libc6-dev", 5),
    "redis": ("redis-server redis-tools", 5),
    "postgresql": ("postgresql", 10),
    "nginx": ("nginx-light curl", 5),
    "podman": ("podman crun slirp4netns uidmap fuse-overlayfs netavark aardvark-dns iptables busybox-static curl", 10),
    "docker": ("docker.io iptables busybox-static", 10),
    "jvm": ("default-jdk-headless", 10),
    "go": ("golang-go", 30),
    "rust": ("rustc", 10),
    "stress-ng": ("stress-ng", 60),
    "cpython": ("libpython3.11-testsuite", 180),
    "chromium": ("chromium", 10),
}
COMMON_PACKAGES = "procps strace iproute2 nftables"
MEMORY = "2G"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


# --- the root -------------------------------------------------------------------------------------

INSTALL = """set -eu
mount -t proc proc {root}/proc
mount --rbind /dev {root}/dev
exec chroot {root} env -i PATH={path} HOME=/root DEBIAN_FRONTEND=noninteractive sh -ec '
apt-get -qq update
apt-get -qq -o APT::Install-Recommends=false -o Dpkg::Use-Pty=0 install {packages}
apt-get clean'
"""


def packages():
    return " ".join([COMMON_PACKAGES, *(p for p, _ in PROGRAMS.values())])


def make_root(directory):
    machine.make_base(machine.this_release(), directory)
    script = INSTALL.format(root=shlex.quote(str(directory)), path=PATH, packages=packages())
    machine.must(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "sh", "-c", script])
    for waste in ("var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man"):
        shutil.rmtree(directory / waste, ignore_errors=True)


# --- places ---------------------------------------------------------------------------------------

# By pivot_root, since a chroot may have no user namespaces.
ENTER = """set -eu
cd {work}
mount -t overlay overlay -o lowerdir={root},upperdir=upper,workdir=overlay merged
cd merged
mkdir -p compat
mount --bind {scripts} compat
mount -t proc proc proc
mount -t sysfs sysfs sys || mount --rbind /sys sys
mount -t cgroup2 cgroup2 sys/fs/cgroup || true
mount --rbind /dev dev
mount -t tmpfs tmpfs dev/shm
mkdir -p old
pivot_root . old
umount -l /old
cd /
ip link set lo up
exec {command}
"""


class Native:
    """The root with a directory of its own over it, in namespaces of its own."""

    name = "native"

    def __init__(self, work, root):
        self.work, self.root = work / self.name, root

    def run(self, command, limit):
        with contextlib.ExitStack() as clean:
            clean.callback(shutil.rmtree, self.work, ignore_errors=True)
            for d in ("upper", "overlay", "merged"):
                (self.work / d).mkdir(parents=True)
            words = ["env", "-i", f"PATH={PATH}", "HOME=/root", *command]
            script = ENTER.format(work=self.work, root=self.root, scripts=SCRIPTS, command=shlex.join(words))
            return finish(["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--cgroup", "--fork", "--kill-child",
                           "--propagation", "private", "sh", "-c", script], limit)


class Guest:
    name = "msb"

    def __init__(self, work, root, args):
        self.msb = str(args.msb.resolve())
        self.env = {**os.environ, "MSB_HOME": str(work / "home"), "MSB_ENGINE": args.engine}
        self.call("create", "-q", "-n", "compat", "-m", MEMORY, "--cpus", args.cpus, "-v", f"{SCRIPTS}:/compat:ro", root)

    def call(self, *args):
        subprocess.run([self.msb, *map(str, args)], env=self.env, stdin=subprocess.DEVNULL, check=True)

    def run(self, command, limit):
        # A fresh kernel for each; what it left on the disk stays.
        self.call("stop", "-q", "compat")
        self.call("start", "-q", "compat")
        return finish([self.msb, "exec", "-q", "compat", "--", *command], limit, env=self.env)

    def close(self):
        subprocess.run([self.msb, "rm", "-f", "-q", "compat"], env=self.env, check=False)


def finish(cmd, limit, **kw):
    """Output and seconds of a command that may take so many minutes."""
    start = time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        p = subprocess.Popen([str(c) for c in cmd], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                             start_new_session=True, **kw)
        try:
            p.wait(limit * 60)
        except subprocess.TimeoutExpired:
            out.write(f"\nends: no, not within {limit} minutes\n")
        finally:
            if p.poll() is None:
                os.killpg(p.pid, signal.SIGKILL)
                p.wait()
        out.seek(0)
        err.seek(0)
        return out.read(), err.read(), time.monotonic() - start


# --- comparing ------------------------------------------------------------------------------------


def results(text):
    """What a script found, by name."""
    return dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)


def compare(name, words, places, row):
    found = {}
    for place in places:
        out, err, seconds = place.run(["sh", f"/compat/{name}.sh", *words], PROGRAMS[name][1])
        found[place.name] = results(out)
        row[place.name] = {"seconds": round(seconds, 1), "results": found[place.name], "errors": err[-20000:]}
        good = sum(r == "ok" for r in found[place.name].values())
        print(f"  {name:12} {place.name:7} {good:4} of {len(found[place.name])} ok, {seconds:.0f} s", flush=True)
    if len(found) == 2:
        native, guest = (found[p.name] for p in places)
        row["differences"] = {k: [native.get(k, "nothing"), guest.get(k, "nothing")]
                              for k in {**native, **guest} if native.get(k) != guest.get(k)}
        for what, (a, b) in row["differences"].items():
            print(f"    {what}: {a} natively, {b} in the sandbox", flush=True)


def table(rows):
    """As docs/compatibility.md has it."""
    yield "| program | checks | natively ok | in the sandbox ok | seconds, natively / in the sandbox |"
    yield "|---|---|---|---|---|"
    for name, row in rows.items():
        places = [row.get("native"), row.get("msb")]
        good = [sum(r == "ok" for r in p["results"].values()) if p else "-" for p in places]
        took = " / ".join(f"{p['seconds']:.0f}" if p else "-" for p in places)
        total = max(len(p["results"]) for p in places if p)
        yield f"| {name} | {total} | {good[0]} | {good[1]} | {took} |"


def parse():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--msb", type=pathlib.Path, default=ROOT / "build" / "src" / "cli" / "msb")
    ap.add_argument("--engine", default="uml")
    ap.add_argument("--cpus", type=int, default=1, help="of the sandbox")
    ap.add_argument("--only", default=",".join(PROGRAMS), help="programs, separated by commas")
    ap.add_argument("--words", default="", help="for the script: modules of cpython, stressors of stress-ng")
    ap.add_argument("--place", choices=("native", "msb"), help="in one place only")
    ap.add_argument("--root", type=pathlib.Path, help="a root that is there, instead of the cache's")
    ap.add_argument("--json", type=pathlib.Path)
    args = ap.parse_args()
    args.only = args.only.split(",")
    unknown = set(args.only) - set(PROGRAMS)
    if unknown:
        ap.error(f"no such program: {', '.join(sorted(unknown))} (there are: {', '.join(PROGRAMS)})")
    return args


def main():
    args = parse()
    if os.geteuid() != 0:
        print("error: a root directory to compare with takes root: run sudo make test-compat", file=sys.stderr)
        return 1
    try:
        machine.check_host()
        root = args.root or machine.layer(machine.this_release(), "compat", [packages()], make_root)
    except machine.Unavailable as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    rows = {}
    with contextlib.ExitStack() as clean:
        work = pathlib.Path(tempfile.mkdtemp(prefix="msb-compat-"))
        clean.callback(shutil.rmtree, work, ignore_errors=True)
        places = []
        if args.place != "msb":
            places.append(Native(work, root))
        if args.place != "native":
            places.append(Guest(work, root, args))
            clean.callback(places[-1].close)
        for name in args.only:
            compare(name, args.words.split(), places, rows.setdefault(name, {}))
            if args.json:
                args.json.write_text(json.dumps(rows, indent=2) + "\n")
    print("\n" + "\n".join(table(rows)))
    return int(any(row.get("differences") for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
