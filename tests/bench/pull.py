#!/usr/bin/python3
"""Measures `msb pull` beside others that do the same work, from one registry, in one run.

    pull.py [--msb PATH] [--runs N]

A Debian with Python, its layers compressed with gzip and with zstd, from Debian's docker-registry on
loopback. Each round runs everybody once, so that what else the machine does hits all alike. Peers:
skopeo copy + umoci unpack (for which skopeo turns zstd into gzip: umoci reads nothing newer), podman
pull, microsandbox's own msb (its npm package, where npm can get it), and `floor`: decompressing and
hashing the same layers alone, with zlib, libzstd and OpenSSL.
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

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import imagekit  # noqa: E402
import processes  # noqa: E402

PEER_PACKAGE = "@superradcompany/microsandbox-linux-x64-gnu@0.6.18"
AIMS = [  # (what, against, figure, aim)
    ("msb pull", "microsandbox", "wall", 0.7),
    ("msb pull", "microsandbox", "cpu", 0.7),
    ("msb pull", "floor", "cpu", 1.1),
]
RSS_AIM_MIB = 32


def memory_kib(pid):
    """Proportional set size: pages that processes share count once."""
    return processes.rollup(pid).get("Pss", 0)


def disk_bytes(path):
    return sum(os.lstat(os.path.join(d, f)).st_blocks * 512
               for d, _, files in os.walk(path) for f in files)


class Peer:
    """One way to get the image; run(dir) leaves the result in an empty directory."""

    def __init__(self, name, commands, env=None, slow=False):
        self.name, self.commands, self.env = name, commands, env or (lambda d: {})
        self.slow = slow  # takes so long that one round tells enough

    def run(self, directory, sample=False):
        """Wall and CPU seconds; with sample=True the peak of the whole tree's memory in KiB."""
        env = {**os.environ, **self.env(directory)}
        start, before = time.perf_counter(), os.times()
        peak = 0
        for cmd in self.commands(directory):
            with tempfile.TemporaryFile() as log:
                p = subprocess.Popen([str(c) for c in cmd], env=env, stdin=subprocess.DEVNULL,
                                     stdout=log, stderr=log)
                while sample and p.poll() is None:
                    peak = max(peak, sum(memory_kib(q) for q in processes.tree(p.pid)))
                    time.sleep(0.01)
                if p.wait():
                    log.seek(0)
                    raise RuntimeError(f"{self.name}: {log.read().decode(errors='replace')[-500:]}")
        after = os.times()
        cpu = after.children_user - before.children_user + \
            after.children_system - before.children_system
        return time.perf_counter() - start, cpu, peak


def find_peer_msb(directory):
    """microsandbox's msb, from npm's registry; None where it cannot be had."""
    if not shutil.which("npm"):
        return None, "npm is not installed"
    d = directory / "npm"
    d.mkdir()
    p = subprocess.run(["npm", "pack", "--silent", PEER_PACKAGE], cwd=d, capture_output=True,
                       text=True, timeout=300)
    archives = list(d.glob("*.tgz"))
    if p.returncode or not archives:
        return None, "npm cannot get it"
    subprocess.run(["tar", "-xzf", archives[0], "-C", d], check=True)
    exe = d / "package" / "bin" / "msb"
    return (exe, "") if exe.exists() else (None, "its package has no msb")


class PullBench:
    def __init__(self, msb, work):
        self.msb = pathlib.Path(msb).resolve()
        self.work = pathlib.Path(work)
        self.results = {}
        self.peer_msb, self.peer_why = find_peer_msb(self.work)

    def peers(self, image, ref):
        floor = self.msb.parents[2] / "tests" / "bench" / "floor"
        blobs = [image.layout / "blobs" / "sha256" / d["digest"][7:]
                 for d in image.manifest()["layers"]]
        out = [Peer("msb pull", lambda d: [[self.msb, "pull", "-q", ref]],
                    lambda d: {"MSB_HOME": str(d)})]
        if floor.exists():
            out.append(Peer("floor", lambda d: [[floor, *blobs]]))
        if self.peer_msb:
            out.append(Peer("microsandbox",
                            lambda d: [[self.peer_msb, "pull", "-q", "--insecure", ref]],
                            lambda d: {"MSB_HOME": str(d), "HOME": str(d)}))
        if shutil.which("skopeo") and shutil.which("umoci"):
            out.append(Peer("skopeo + umoci", lambda d: [
                ["skopeo", "--insecure-policy", "copy", "--src-tls-verify=false",
                 "--dest-compress-format", "gzip", f"docker://{ref}", f"oci:{d}/oci:x"],
                ["umoci", "unpack", *([] if os.geteuid() == 0 else ["--rootless"]), "--image",
                 f"{d}/oci:x", f"{d}/bundle"]], slow=True))
        if shutil.which("podman"):
            out.append(Peer("podman pull", lambda d: [
                ["podman", "--root", f"{d}/root", "--runroot", f"{d}/run", "--storage-driver", "vfs",
                 "pull", "-q", "--tls-verify=false", ref]], slow=True))
        return out

    def fresh(self):
        d = self.work / "state"
        subprocess.run(["rm", "-rf", str(d)], check=True)
        d.mkdir(mode=0o700)
        return d

    def measure(self, kind, image, ref, runs):
        figures, broken = {}, {}
        peers = self.peers(image, ref)
        for i in range(runs + 1):
            for peer in peers:
                if peer.name in broken or (peer.slow and i > 0):
                    continue
                d = self.fresh()
                try:
                    wall, cpu, peak = peer.run(d, sample=i == 0)
                except RuntimeError as e:
                    broken[peer.name] = str(e).strip().splitlines()[-1]
                    continue
                f = figures.setdefault(peer.name, {"wall": [], "cpu": []})
                if i == 0:
                    f["memory_mib"] = peak / 1024
                    f["disk_mib"] = disk_bytes(d) / 2**20
                if i > 0 or peer.slow:  # the first warms up, and the sampling slows it down
                    f["wall"].append(wall)
                    f["cpu"].append(cpu)
        for name, why in broken.items():
            print(f"  {name}: skipped, it does not run here: {why}")
        for name, f in figures.items():
            f["wall"], f["cpu"] = statistics.median(f["wall"]), statistics.median(f["cpu"])
            print(f"  {kind:5}{name:16} wall {f['wall']:6.2f} s   cpu {f['cpu']:6.2f} s   "
                  f"memory {f['memory_mib']:6.1f} MiB   disk {f['disk_mib']:6.1f} MiB", flush=True)
        self.results[kind] = figures

    def ratios(self):
        out = []
        for kind, r in self.results.items():
            for what, against, figure, aim in AIMS:
                if what in r and against in r:
                    ratio = r[what][figure] / r[against][figure]
                    out.append({"what": f"{what}, {kind}", "against": f"{against}, {figure}",
                                "ratio": ratio, "aim": aim})
                    print(f"  {kind:5}{what} / {against:14} {figure:5} {ratio:7.3f}"
                          f"   (aim <= {aim})")
            if "msb pull" in r:
                print(f"  {kind:5}msb pull memory {r['msb pull']['memory_mib']:20.1f} MiB"
                      f" (aim <= {RSS_AIM_MIB} MiB)")
        return out


def bench(msb, runs=5):
    """Everything; returns (results, ratios)."""
    print("\n  pull of a Debian with Python")
    work = pathlib.Path(tempfile.mkdtemp(prefix="msb-bench-pull-"))
    try:
        image = imagekit.debian()
        b = PullBench(msb, work)
        if not b.peer_msb:
            print(f"  microsandbox: skipped, {b.peer_why}")
        with imagekit.Registry(work) as r:
            for kind in ("gzip", "zstd"):
                packed = image.recompressed(kind)
                b.measure(kind, packed, r.push(packed, f"debian-{kind}:1"), runs)
        return b.results, b.ratios()
    except imagekit.Unavailable as e:
        print(f"  pull: skipped, {e}")
        return {}, []
    finally:
        subprocess.run(["rm", "-rf", str(work)], check=False)


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--msb", default=ROOT / "build" / "src" / "cli" / "msb")
    ap.add_argument("--runs", type=int, default=5)
    ap.add_argument("--json", type=pathlib.Path)
    args = ap.parse_args()
    results, ratios = bench(args.msb, args.runs)
    if args.json:
        args.json.write_text(json.dumps({"results": results, "ratios": ratios}, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
