#!/usr/bin/python3
"""Measures msb, and podman beside it in the same run; prints figures and ratios.

    bench.py [--msb PATH] [--json FILE] [--quick]

Absolute times depend on the machine and on what else it does; ratios are what the README quotes.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import oci  # before those that look for modules elsewhere: it needs the guest of this folder
import intercept
import net
import pull
import sdk

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import processes  # noqa: E402


def percentile(values, p):
    values = sorted(values)
    return values[min(len(values) - 1, round(p / 100 * (len(values) - 1)))]


def timed(fn):
    start = time.perf_counter()
    fn()
    return (time.perf_counter() - start) * 1000


class Bench:
    def __init__(self, args):
        self.msb = str(pathlib.Path(args.msb).resolve())
        self.scale = 0.1 if args.quick else 1.0
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="msb-bench-"))
        self.env = {**os.environ, "MSB_HOME": str(self.home), "BENCH": "a secret"}
        self.results = {}

    def count(self, n):
        return max(5, int(n * self.scale))

    def call(self, *args, exe=None, **kw):
        kw.setdefault("stdin", subprocess.DEVNULL)
        kw.setdefault("stdout", subprocess.DEVNULL)
        return subprocess.run([exe or self.msb, *args], env=self.env, check=True, **kw)

    def note(self, key, unit, values):
        values = values if isinstance(values, list) else [values]
        r = {"unit": unit, "p50": statistics.median(values), "p99": percentile(values, 99),
             "min": min(values), "n": len(values)}
        self.results[key] = r
        text = f"{r['p50']:10.2f} {unit:5}"
        if len(values) > 1:
            text += f"   p99 {r['p99']:9.2f}   min {r['min']:9.2f}   n {r['n']}"
        print(f"  {key:34}{text}", flush=True)

    # --- msb ---

    def bare(self):
        build = pathlib.Path(self.msb).parents[2]
        exe, assets = build / "tests" / "bench" / "bare", build / "assets"
        if not exe.exists():
            print(f"  bare kernel: skipped, {exe} is missing: run make")
            return
        out = []
        for _ in range(self.count(30)):
            p = subprocess.run(["taskset", "-c", str(max(os.sched_getaffinity(0))), exe,
                                assets / "linux-uml", assets / "tools.erofs"],
                               stdout=subprocess.PIPE, check=True)
            out.append(float(p.stdout))
        self.note("bare kernel, exec to init", "ms", out)

    def create(self):
        self.call("run", "-q", "--", "true")  # makes the disk template
        both, created, gone = [], [], []
        for i in range(self.count(50)):
            name = f"b{i}"
            start = time.perf_counter()
            self.call("create", "-q", "-n", name)
            created.append((time.perf_counter() - start) * 1000)
            self.call("exec", "-q", name, "--", "true")
            both.append((time.perf_counter() - start) * 1000)
            gone.append(timed(lambda n=name: (self.call("stop", "-q", n),
                                              self.call("rm", "-q", n))))
        self.note("create", "ms", created)
        self.note("create -> first exec's result", "ms", both)
        self.note("stop + remove", "ms", gone)

    def run(self):
        self.note("run --  true (ephemeral)", "ms",
                  [timed(lambda: self.call("run", "-q", "--", "true")) for _ in range(self.count(30))])

    def secret(self):
        plain, bound = [], []
        for _ in range(self.count(30)):
            plain.append(timed(lambda: self.call("run", "-q", "--", "true")))
            bound.append(timed(lambda: self.call("run", "-q", "--secret", "BENCH@api.example.com", "--", "true")))
        self.note("run --secret ... --  true", "ms", bound)
        self.note("... a secret adds (medians)", "ms", statistics.median(bound) - statistics.median(plain))

    def policy(self):
        """What a policy of 200 rule sets costs, of which the last one counts."""
        rules = self.home / "rules.yaml"
        rules.write_text("rules:\n" + "".join(
            f"- name: set {i}\n  match: {{labels: [team=t{i}]}}\n  caps: {{memory: 1G, cpus: 2}}\n" for i in range(199))
            + "- caps: {memory: 1G}\n")  # fmt: skip
        plain, held = [], []
        for i in range(2 * self.count(60)):
            with_policy = i % 4 in (1, 2)  # in turns, neither always first
            options = ["--policy", str(rules)] if with_policy else []
            (held if with_policy else plain).append(timed(lambda o=options: self.call("create", "-q", "-n", "p", *o)))
            self.call("rm", "-q", "-f", "p")
        self.note("create, without a policy", "ms", plain)
        self.note("create, policy of 200 rule sets", "ms", held)
        self.note("... a policy adds (medians)", "ms", statistics.median(held) - statistics.median(plain))
        took = []  # the same without the noise of a boot: what is refused goes no further
        for _ in range(self.count(60)):
            p = subprocess.run([self.msb, "create", "--debug", "-m", "2G", "--policy", rules], env=self.env,
                               stdin=subprocess.DEVNULL, capture_output=True, text=True)  # fmt: skip
            took.append(float(re.search(r"policy took ([0-9.]+) ms", p.stderr)[1]))
        self.note("... by its own account", "ms", took)

    def execs(self):
        self.call("create", "-q", "-n", "warm")
        self.call("exec", "-q", "warm", "--", "true")
        self.note("warm exec true", "ms",
                  [timed(lambda: self.call("exec", "-q", "warm", "--", "true"))
                   for _ in range(self.count(200))])
        size = 1024 if self.scale == 1.0 else 128
        # Text, as commands write it; the log keeps a copy on its way.
        script = f"yes 'a line of output such as programs write it, sixty-four bytes..' | head -c {size}m"
        speeds = []
        for _ in range(3):
            ms = timed(lambda: self.call("exec", "-q", "warm", "--", "sh", "-c", script))
            speeds.append(size * 1.048576 / ms * 1000)
        self.note("exec stdout (guest pipeline)", "MB/s", speeds)
        self.call("exec", "-q", "warm", "--", "sh", "-c",
                  "yes 'a line of output such as programs write it' | head -c 64m > /dev/shm/out")
        script = f"for i in $(seq {size // 64}); do cat /dev/shm/out; done"
        speeds = []
        for _ in range(3):
            ms = timed(lambda: self.call("exec", "-q", "warm", "--", "sh", "-c", script))
            speeds.append(size * 1.048576 / ms * 1000)
        self.note("exec stdout", "MB/s", speeds)
        self.note("monitor private RSS", "MiB", self.private_rss("warm"))
        self.call("rm", "-f", "-q", "warm")

    def private_rss(self, name):
        pid = processes.lock_holder(self.home / "sandboxes" / name / "lock")
        if pid is None:
            raise RuntimeError("no monitor")
        memory = processes.rollup(pid)
        # Guest memory that devices have touched is the guest's, not the monitor's.
        shm = int(next(x.split()[1] for x in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
                       if x.startswith("RssShmem")))
        dirty = sum(kib for key, kib in memory.items() if key.startswith("Private_"))
        return max(memory["Anonymous"], dirty - shm) / 1024

    def ls(self):
        n = self.count(100)
        names = [f"l{i}" for i in range(n)]
        for name in names:
            self.call("create", "-q", "-n", name, "-m", "64M")
            self.call("stop", "-f", "-q", name)
        self.note(f"ls with {n} sandboxes", "ms",
                  [timed(lambda: self.call("ls")) for _ in range(self.count(50))])
        self.call("rm", "-f", "-q", *names)

    # --- podman ---

    def podman_ready(self):
        """podman with storage of its own; (call, options of a container), or None if it does not run."""
        podman = shutil.which("podman")
        if not podman:
            print("  podman: skipped, not installed: run scripts/bootstrap bench")
            return None
        root = oci.make_root(self.home / "podman-root")
        base = [podman, "--runtime", "runc", "--cgroup-manager", "cgroupfs",
                "--storage-driver", "vfs", "--root", str(self.home / "podman-store"),
                "--runroot", str(self.home / "podman-run")]
        # podman asks for more than a container or a VM may grant; the caller's own limits will do.
        opts = ["--network", "none", "--ulimit", "nofile=1024:1024",
                "--ulimit", "nproc=1024:1024", "--rootfs", str(root)]

        def call(*args):
            subprocess.run([*base, *args], check=True, stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

        try:
            call("run", "--rm", *opts, "/bin/true")
        except subprocess.CalledProcessError as e:
            print("  podman: skipped, it does not run here:",
                  e.stderr.decode(errors="replace").strip().splitlines()[-1:])
            return None
        return call, opts

    def podman(self):
        ready = self.podman_ready()
        if not ready:
            return
        call, opts = ready
        self.note("podman run --rm true", "ms",
                  [timed(lambda: call("run", "--rm", *opts, "/bin/true"))
                   for _ in range(self.count(20))])
        call("run", "-d", "--name", "bench", *opts, "/bin/sleep", "1000")
        try:
            self.note("podman exec true", "ms",
                      [timed(lambda: call("exec", "bench", "/bin/true"))
                       for _ in range(self.count(30))])
            sdk.podman(self, lambda: call("exec", "bench", "/bin/true"))
        finally:
            call("rm", "-f", "-t", "0", "bench")

    def sdk(self):
        sdk.bench(self)

    def intercept(self):
        intercept.bench(self)

    # --- the verdict ---

    def ratios(self):
        r = {k: v["p50"] for k, v in self.results.items()}
        rows = [
            ("create -> first exec", "create -> first exec's result", "bare kernel, exec to init",
             2.0),
            ("create -> first exec", "create -> first exec's result", "podman run --rm true", 0.3),
            ("warm exec", "warm exec true", "podman exec true", 0.05),
            *sdk.RATIOS,
            *intercept.RATIOS,
        ]
        out = []
        print("\n  ratios (p50)")
        for label, a, b, aim in rows:
            if a in r and b in r:
                ratio = r[a] / r[b]
                out.append({"what": label, "against": b, "ratio": ratio, "aim": aim})
                print(f"  {label:22} / {b:28} {ratio:7.3f}" + (f"   (aim <= {aim})" if aim else ""))
        return out

    def close(self):
        names = subprocess.run([self.msb, "ls", "-q"], env=self.env, stdout=subprocess.PIPE,
                               stdin=subprocess.DEVNULL, text=True).stdout.split()
        if names:
            subprocess.run([self.msb, "rm", "-f", "-q", *names], env=self.env,
                           stdin=subprocess.DEVNULL)
        subprocess.run(["rm", "-rf", str(self.home)], check=False)


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--msb", default=ROOT / "build" / "src" / "cli" / "msb")
    ap.add_argument("--json", type=pathlib.Path)
    ap.add_argument("--quick", action="store_true", help="a tenth of the repetitions")
    args = ap.parse_args()
    b = Bench(args)
    try:
        print(f"msb bench: {os.cpu_count()} CPUs, {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        for step in (b.bare, b.create, b.run, b.secret, b.policy, b.execs, b.sdk, b.intercept, b.ls, b.podman):
            step()
        ratios = b.ratios()
        pulls, more = pull.bench(args.msb, 2 if args.quick else 5)
        network, found = net.bench(args.msb, *((1, 500, 1) if args.quick else ()))
        containers, started = oci.bench(args.msb, 3 if args.quick else 10)
        if args.json:
            args.json.write_text(json.dumps({"results": b.results, "pull": pulls, "net": network, "oci": containers,
                                             "ratios": ratios + more + found + started}, indent=2,
                                            sort_keys=True) + "\n")
            print(f"\n  written to {args.json}")
    finally:
        b.close()


if __name__ == "__main__":
    sys.exit(main())
