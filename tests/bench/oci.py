#!/usr/bin/python3
"""How fast containers and pods start, as an engine sees it: msb as an OCI runtime beside runc, crun and gVisor.

usage: oci.py [--msb PATH] [--rounds N] [--json FILE]

Every runtime gets the same bundles and the same calls, and all take turns, so that a busy moment of the machine meets all
alike: create and start of a container until start returns, and until its first output arrives; the same for a pod, which
is a container that holds the namespaces and one that joins them; and a command that is executed. A runtime
that does not run here is a row that says so. As root.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import guest

ROOT = guest.ROOT
CAPS = ["CAP_CHOWN", "CAP_KILL", "CAP_SETUID", "CAP_SETGID", "CAP_NET_BIND_SERVICE"]
SHARED = ("network", "ipc", "uts")
EXECS = 3  # in each round
RATIOS = [("create + start", "runc", 1.0), ("create + start", "crun", None), ("create + start", "gVisor", 0.3),
          ("pod, first output", "runc", None), ("pod, first output", "gVisor", None), ("exec", "runc", None),
          ("exec", "gVisor", None)]


def config(root, group, argv, holder=None, sandbox=None):
    """config.json; holder: the pid whose namespaces it joins, as the second container of a pod."""
    spaces = [{"type": t} for t in ("pid", "mount")]
    spaces += [{"type": t, **({"path": f"/proc/{holder}/ns/{t.replace('network', 'net')}"} if holder else {})} for t in SHARED]
    kind = "container" if holder else "sandbox"
    return {
        "ociVersion": "1.0.2", "root": {"path": str(root)},
        "process": {"args": argv, "cwd": "/", "env": ["PATH=/bin"], "user": {"uid": 0, "gid": 0}, "noNewPrivileges": True,
                    "capabilities": {k: CAPS for k in ("bounding", "effective", "permitted")}},
        "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"},
                   {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}],
        "annotations": {"io.kubernetes.cri.container-type": kind, "io.kubernetes.cri.sandbox-id": sandbox} if sandbox else {},
        "linux": {"namespaces": spaces, "cgroupsPath": f"/{group}", "resources": {"memory": {"limit": 256 << 20}}}}


class Runtime:
    def __init__(self, name, program, work, root, options=()):
        self.name, self.dir, self.root, self.n = name, work / name, root, 0
        self.dir.mkdir()
        self.base = [str(c) for c in (program, "--root", self.dir / "state", *options)]

    def __call__(self, *args, stdout=subprocess.DEVNULL, check=True):
        with open(self.dir / "err", "w+", encoding="utf-8") as err:
            p = subprocess.run([*self.base, *map(str, args)], stdin=subprocess.DEVNULL, stdout=stdout, stderr=err, check=False)
            err.seek(0)
            if check and p.returncode:
                raise guest.Failed(err.read().strip()[-200:] or f"{args[0]} failed")

    def start(self, argv, **more):
        """A container, and the pipe that it writes to."""
        self.n += 1
        cid = f"{self.name}-{os.getpid()}-{self.n}"
        bundle = self.dir / cid
        bundle.mkdir()
        if more.get("sandbox") is True:
            more["sandbox"] = cid
        (bundle / "config.json").write_text(json.dumps(config(self.root, f"msb-bench-{cid}", argv, **more)))
        ours, theirs = os.pipe()
        begin = time.perf_counter()
        try:
            self("create", "--bundle", bundle, "--pid-file", bundle / "pid", cid, stdout=theirs)
            self("start", cid, stdout=theirs)
        finally:
            os.close(theirs)
        return cid, ours, begin

    def pid(self, cid):
        return int((self.dir / cid / "pid").read_text())

    def delete(self, *ids):
        for cid in ids:
            self("delete", "--force", cid)
            shutil.rmtree(self.dir / cid)

    def close(self):
        for bundle in sorted(self.dir.glob(f"{self.name}-*"), reverse=True):
            self("delete", "--force", bundle.name, check=False)


def milliseconds(begin):
    return (time.perf_counter() - begin) * 1000


def first_byte(pipe):
    if os.read(pipe, 1) != b"x":
        raise guest.Failed("the container wrote nothing")
    os.close(pipe)


TALK = ["/bin/sh", "-c", "echo x; exec sleep 1000"]


def one_round(rt, found):
    cid, pipe, begin = rt.start(TALK)
    found["create + start"].append(milliseconds(begin))
    first_byte(pipe)
    found["first output"].append(milliseconds(begin))
    for _ in range(EXECS):
        now = time.perf_counter()
        rt("exec", cid, "/bin/true")
        found["exec"].append(milliseconds(now))
    rt.delete(cid)
    pause, pipe, begin = rt.start(["/bin/sleep", "1000"], sandbox=True)
    os.close(pipe)
    cid, pipe, second = rt.start(TALK, sandbox=pause, holder=rt.pid(pause))
    found["in a pod: create + start"].append(milliseconds(second))
    first_byte(pipe)
    found["pod, first output"].append(milliseconds(begin))
    rt.delete(cid, pause)


def runtimes(msb, work, root):
    link = work / "msb-runtime"
    link.symlink_to(pathlib.Path(msb).resolve())
    runsc, why = guest.fetch_runsc()
    wanted = [("msb", link, (), None), ("runc", shutil.which("runc"), (), "not installed: run scripts/bootstrap bench"),
              ("crun", shutil.which("crun"), (), "not installed: run scripts/bootstrap bench"),
              ("gVisor", runsc, ("--platform", "systrap", "--network", "none", "--overlay2", "none"), why)]
    for name, program, options, missing in wanted:
        if not program:
            print(f"  {name}: skipped, {missing}", flush=True)
            continue
        rt = Runtime(name, program, work, root, options)
        try:
            one_round(rt, {k: [] for k in KEYS})  # a cold one
            yield rt
        except (guest.Failed, OSError) as e:
            rt.close()
            print(f"  {name}: skipped, it does not run here: {e}", flush=True)


KEYS = ("create + start", "first output", "exec", "in a pod: create + start", "pod, first output")


def make_root(path):
    (path / "bin").mkdir(parents=True)
    for name in ("proc", "sys", "dev", "tmp", "etc", "run"):
        (path / name).mkdir()
    shutil.copy("/bin/busybox", path / "bin" / "busybox")
    for applet in ("sh", "true", "sleep"):
        (path / "bin" / applet).symlink_to("busybox")
    return path


def measure(msb, rounds, work):
    """{runtime: {what: [ms]}}"""
    found, ready = {}, list(runtimes(msb, work, make_root(work / "root")))
    try:
        for i in range(rounds):
            for rt in ready[i % len(ready):] + ready[:i % len(ready)]:
                one_round(rt, found.setdefault(rt.name, {k: [] for k in KEYS}))
    finally:
        for rt in ready:
            rt.close()
    return found


def show(found):
    print(f"  {'ms, median (minimum)':28}" + "".join(f"{name:>20}" for name in found))
    for key in KEYS:
        print(f"  {key:28}" + "".join(f"{f'{statistics.median(v[key]):.1f} ({min(v[key]):.1f})':>20}" for v in found.values()))
    ratios = []
    for key, peer, aim in RATIOS:
        if "msb" in found and peer in found:
            ratio = statistics.median(found["msb"][key]) / statistics.median(found[peer][key])
            ratios.append({"what": f"OCI runtime, {key}", "against": peer, "ratio": ratio, "aim": aim})
            print(f"  {key:22} / {peer:28} {ratio:7.3f}" + (f"   (aim <= {aim})" if aim else ""))
    return ratios


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--msb", default=ROOT / "build" / "src" / "cli" / "msb")
    ap.add_argument("--rounds", type=int, default=10)
    ap.add_argument("--json", type=pathlib.Path)
    args = ap.parse_args()
    with tempfile.TemporaryDirectory(prefix="msb-oci-", ignore_cleanup_errors=True) as work:
        found = measure(args.msb, args.rounds, pathlib.Path(work))
    ratios = show(found)
    if args.json:
        args.json.write_text(json.dumps({"results": found, "ratios": ratios}))


def bench(msb, rounds):
    """In a process with mounts of its own: beside v1 hierarchies, crun accepts no v2. (results, ratios)"""
    print("\n  containers and pods, as their engines start them")
    if os.geteuid():
        print("  skipped: it needs root")
        return {}, []
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        script = "! mountpoint -q /sys/fs/cgroup/unified || umount /sys/fs/cgroup/unified; exec \"$@\""
        p = subprocess.run(["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", sys.executable, __file__,
                            "--msb", msb, "--rounds", str(rounds), "--json", out.name], check=False)
        if p.returncode:
            print("  failed")
            return {}, []
        whole = json.load(out)
    return whole["results"], whole["ratios"]


if __name__ == "__main__":
    sys.exit(main())
