#!/usr/bin/python3
"""The network of a sandbox beside slirp4netns and passt, in one run.

    net.py [--msb PATH] [--seconds 2] [--connections 2000] [--json FILE]

All move the same traffic (netload.c) to a server on the host's loopback, at MTU 1500: msb from a
sandbox of the uml engine, the others from a network namespace (root, /dev/net/tun). "msb stack" is
our stack behind a TAP device in the place of the others, with the same kernel as its guest. What counts is
what a CPU second of the tool itself moves: the machine may be shared. passt runs as pasta, its
form for namespaces.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
import processes  # noqa: E402
GATEWAY = "10.0.2.2"
TICK = os.sysconf("SC_CLK_TCK")
BULK = [(f"{'to' if mode == 'recv' else 'from'} guest, {flows} flow{'s' * (flows > 1)}", mode, flows)
        for flows in (1, 16) for mode in ("send", "recv")]


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


class Namespace:
    """Runs netload in a network namespace behind a tool; what the tool's process used meanwhile."""

    def __init__(self, scratch, netload):
        self.scratch, self.netload = scratch, netload

    def wrap(self, script):
        """The command that runs a shell script behind the tool."""
        raise NotImplementedError

    def tool_pid(self, process):
        return process.pid

    def run(self, *args):
        begin, end, out = (self.scratch / n for n in ("begin", "end", "out"))
        for f in (begin, end, out):
            f.unlink(missing_ok=True)
        line = " ".join([str(self.netload), *map(str, args)])
        # It begins when its CPU time was read, and ends before it is read again.
        script = (f"touch {begin}; until [ -e {begin}.go ]; do sleep 0.02; done; "
                  f"{line} >{out} 2>&1 </dev/null; touch {end}; exec sleep 2")
        go = pathlib.Path(f"{begin}.go")
        go.unlink(missing_ok=True)
        p = subprocess.Popen(self.wrap(script), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            self.wait(p, begin)
            before = cpu_seconds(self.tool_pid(p))
            go.touch()
            self.wait(p, end)
            return out.read_text(), cpu_seconds(self.tool_pid(p)) - before
        finally:
            try:
                os.killpg(p.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            p.wait()

    def wait(self, p, path):
        deadline = time.monotonic() + 120
        while not path.exists():
            if p.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{type(self).__name__} did not finish")
            time.sleep(0.01)

    def close(self):
        pass


class Stack(Namespace):
    program = ""

    def wrap(self, script):
        return [self.program, "--max", "1000", "--", "sh", "-c", script]


class Slirp(Namespace):
    """The namespace waits until its interface is there; slirp4netns is a child of the shell outside."""

    def wrap(self, script):
        inside = f"until ip route | grep -q default; do sleep 0.05; done; {script}"
        pid = self.scratch / "pid"
        return ["sh", "-c", f"unshare -n sh -c '{inside}' & sleep 0.2; "
                            f"slirp4netns --configure --mtu=1500 $! tap0 & echo $! >{pid}; wait"]

    def tool_pid(self, process):
        return int((self.scratch / "pid").read_text())


class Pasta(Namespace):
    def wrap(self, script):
        return ["pasta", "--runas", "0", "--config-net", "--mtu", "1500", "-f", "-a", "10.0.2.15",
                "-n", "24", "-g", GATEWAY, "--", "sh", "-c", script]


class Sandbox:
    """Runs netload in a sandbox; what its monitor, which has the network in it, used meanwhile."""

    def __init__(self, scratch, netload, msb):
        self.msb = str(msb)
        home = scratch / "home"
        home.mkdir(mode=0o700)
        self.env = {**os.environ, "MSB_HOME": str(home)}
        self.call("create", "-q", "-n", "net", "--engine", "uml", "--net", "host", "--max-connections",
                  "1000", "-v", f"{netload}:/netload:ro")
        self.monitor = processes.lock_holder(home / "sandboxes" / "net" / "lock")

    def call(self, *args):
        return subprocess.run([self.msb, *map(str, args)], env=self.env, check=True, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=120).stdout

    def run(self, *args):
        before = cpu_seconds(self.monitor)
        out = self.call("exec", "-q", "net", "--", "/netload", *args)
        return out, cpu_seconds(self.monitor) - before

    def close(self):
        self.call("rm", "-f", "-q", "net")


def numbers(tool, out):
    try:
        return [float(x) for x in out.split()]
    except ValueError:
        raise RuntimeError(f"{type(tool).__name__}: {out}") from None


def bulk(tool, port, mode, flows, seconds):
    out, used = tool.run(mode, "gateway", port, flows, int(seconds * 1000))
    moved, took = numbers(tool, out)
    return {"Gbit/s": moved * 8 / took / 1e9, "GB/CPU-s": moved / 1e9 / max(used, 1 / TICK)}


def connections(tool, port, count, flows):
    out, used = tool.run("short", "gateway", port, count, flows)
    done, took = numbers(tool, out)
    return {"per s": done / took, "CPU-us each": used / done * 1e6}


def latency(tool, port):
    out, _ = tool.run("connect", "gateway", port, 500)
    there, own = numbers(tool, out)
    return {"us": there, "us to itself": own, "us over": there - own}


def attempt(tool, fn):
    """One measurement; None if a tool that is not ours breaks the connection, as old ones do."""
    try:
        return fn(tool)
    except RuntimeError as e:
        if isinstance(tool, (Sandbox, Stack)):
            raise
        print(f"  ({str(e).strip()})", flush=True)
        return None


def measure(tools, port, seconds, count, rounds):
    """All tools take turns with each kind of traffic; the median of each."""
    results = {name: {} for name in tools}
    kinds = [(key, lambda t, m=mode, f=flows: bulk(t, port, m, f, seconds)) for key, mode, flows in BULK]
    kinds += [(f"connections, {f} at a time", lambda t, f=f: connections(t, port, count, f)) for f in (1, 16)]
    kinds.append(("connect", lambda t: latency(t, port)))
    for key, fn in kinds:
        found = {name: [] for name in tools}
        for _ in range(rounds):
            for name, tool in tools.items():
                found[name].append(attempt(tool, fn))
        for name, rows in found.items():
            rows = [r for r in rows if r]
            if not rows:
                continue
            row = results[name][key] = {k: statistics.median(r[k] for r in rows) for k in rows[0]}
            print(f"  {key:25} {name:12}" + "".join(f"  {v:10.2f} {k}" for k, v in row.items()), flush=True)
    return results


def ratios(results):
    out = []
    print("\n  ratios (bytes for each CPU second of the tool)")
    for key, _, _ in BULK:
        for other, aim in (("slirp4netns", 2.0), ("passt", 0.7)):
            for ours in ("msb", "msb stack"):
                if key in results.get(other, {}) and key in results.get(ours, {}):
                    ratio = results[ours][key]["GB/CPU-s"] / results[other][key]["GB/CPU-s"]
                    out.append({"what": f"{ours}, {key}", "against": other, "ratio": ratio, "aim": aim})
                    print(f"  {ours + ', ' + key:34} / {other:12} {ratio:7.2f}   (aim >= {aim})")
    if "msb" in results:
        over = results["msb"]["connect"]["us over"]
        out.append({"what": "connect, over a connect to itself, us", "against": "", "ratio": over, "aim": 1000})
        print(f"  connect over the guest's own cost     {over:10.0f} us   (aim <= 1000)")
    return out


def bench(msb, seconds=2, count=2000, rounds=3):
    """Measures everything; (results, ratios), both empty where that cannot be done."""
    msb = pathlib.Path(msb).resolve()
    build = msb.parents[2]
    netload = build / "tests" / "bench" / "netload"
    print("\nnetwork: guest to the host's loopback, MTU 1500\n")
    if not netload.exists():
        print(f"  skipped, {netload} is missing: run make")
        return {}, []
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="msb-bench-net-"))
    scratch.chmod(0o755)
    tools = {}
    server = subprocess.Popen([netload, "serve", "127.0.0.1"], stdout=subprocess.PIPE, text=True)
    try:
        port = int(server.stdout.readline())
        tools["msb"] = Sandbox(scratch, netload, msb)
        if os.geteuid() != 0 or not os.path.exists("/dev/net/tun"):
            print("  others: skipped, they need root and /dev/net/tun here")
        else:
            Stack.program = str(build / "tests" / "net" / "tap_stack")
            for name, kind, binary in (("msb stack", Stack, Stack.program), ("slirp4netns", Slirp, "slirp4netns"),
                                       ("passt", Pasta, "pasta")):
                if shutil.which(binary):
                    tools[name] = kind(scratch, netload)
                else:
                    print(f"  {name}: skipped, not installed: run scripts/bootstrap bench")
        results = measure(tools, port, seconds, count, rounds)
        return results, ratios(results)
    finally:
        for tool in tools.values():
            tool.close()
        server.kill()
        server.wait()
        shutil.rmtree(scratch, ignore_errors=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--msb", type=pathlib.Path, default=ROOT / "build" / "src" / "cli" / "msb")
    ap.add_argument("--seconds", type=float, default=2)
    ap.add_argument("--connections", type=int, default=2000)
    ap.add_argument("--json", type=pathlib.Path)
    args = ap.parse_args()
    results, found = bench(args.msb, args.seconds, args.connections)
    if args.json:
        args.json.write_text(json.dumps({"net": results, "ratios": found}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
