#!/usr/bin/env python3
"""Throughput and cost of the network stack beside slirp4netns and passt, in one run.

    tests/bench/net.py [--stack build/tests/net/tap_stack] [--seconds 3] [--json FILE]

Each tool gives a network namespace the host's loopback (root, /dev/net/tun), MTU 1500; iperf3 in
the namespace talks to iperf3 outside. What counts is bytes moved for each CPU second of the tool
itself: the machine may be shared. passt runs as pasta, its form for namespaces.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

GUEST = pathlib.Path(__file__).parent.parent / "net" / "guest.py"
GATEWAY = "10.0.2.2"
TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


class Tool:
    """Runs shell lines behind a tool and says what the tool's process has used meanwhile."""

    def __init__(self, scratch):
        self.scratch = scratch

    def wrap(self, script):
        """The command to start, and how to find the tool's pid from it."""
        raise NotImplementedError

    def tool_pid(self, process):
        return process.pid

    def run(self, line, timeout=120):
        begin, end = self.scratch / "begin", self.scratch / "end"
        out = self.scratch / "out"
        for f in (begin, end, out):
            f.unlink(missing_ok=True)
        script = f"touch {begin}; {line} >{out} 2>&1 </dev/null; touch {end}; exec sleep 2"
        p = subprocess.Popen(self.wrap(script), stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             start_new_session=True)
        try:
            deadline = time.monotonic() + timeout
            before = None
            while not end.exists() and p.poll() is None and time.monotonic() < deadline:
                if before is None and begin.exists():
                    before = cpu_seconds(self.tool_pid(p))
                time.sleep(0.02)
            if not end.exists():
                raise RuntimeError(f"{type(self).__name__}: did not finish")
            used = cpu_seconds(self.tool_pid(p)) - (before or 0)
            return out.read_text(), used
        finally:
            try:
                os.killpg(p.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            p.wait()


class Stack(Tool):
    program = ""

    def wrap(self, script):
        return [self.program, "--max", "1000", "--", "sh", "-c", script]


class Slirp(Tool):
    """The namespace waits until its interface is there; slirp4netns is a child of the shell outside."""

    def wrap(self, script):
        inside = f"until ip route | grep -q default; do sleep 0.05; done; {script}"
        pid = self.scratch / "pid"
        return ["sh", "-c", f"unshare -n sh -c '{inside}' & sleep 0.2; "
                            f"slirp4netns --configure --mtu=1500 $! tap0 & echo $! >{pid}; wait"]

    def tool_pid(self, process):
        return int((self.scratch / "pid").read_text())


class Pasta(Tool):
    def wrap(self, script):
        return ["pasta", "--runas", "0", "--config-net", "--mtu", "1500", "-f", "-a", "10.0.2.15",
                "-n", "24", "-g", GATEWAY, "--", "sh", "-c", script]


def throughput(tool, port, seconds, flows, reverse):
    line = f"iperf3 -J -c {GATEWAY} -p {port} -t {seconds} -P {flows}" + (" -R" if reverse else "")
    text, used = tool.run(line, timeout=seconds + 30)
    sums = json.loads(text)["end"]["sum_received"]
    return {"gbit_s": sums["bits_per_second"] / 1e9, "cpu_s": used,
            "gbyte_per_cpu_s": sums["bytes"] / 1e9 / max(used, 1 / TICK)}


def short_connections(tool, port, count):
    start = time.monotonic()
    text, used = tool.run(f"/usr/bin/python3 {GUEST} short {port} {count}")
    if "count" not in text:
        raise RuntimeError(text)
    return {"per_s": count / (time.monotonic() - start), "cpu_us_each": used / count * 1e6}


def serve_short():
    """Answers every connection with 100 bytes, in a process of its own."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    pid = os.fork()
    if pid:
        port = listener.getsockname()[1]
        listener.close()
        return pid, port
    while True:
        s, _ = listener.accept()
        s.recv(100)
        s.sendall(b"x" * 100)
        s.close()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--stack", default="build/tests/net/tap_stack")
    ap.add_argument("--seconds", type=int, default=3)
    ap.add_argument("--connections", type=int, default=2000)
    ap.add_argument("--json", type=pathlib.Path)
    args = ap.parse_args()
    if os.geteuid() != 0 or not os.path.exists("/dev/net/tun"):
        sys.exit("net.py: needs root and /dev/net/tun")
    Stack.program = os.path.abspath(args.stack)
    results = {}
    with tempfile.TemporaryDirectory() as tmp:
        os.chmod(tmp, 0o755)
        port = free_port()
        iperf = subprocess.Popen(["iperf3", "-s", "-p", str(port)], stdout=subprocess.DEVNULL)
        short_pid, short_port = serve_short()
        try:
            time.sleep(0.3)
            for name, kind, binary in (("msb", Stack, None), ("slirp4netns", Slirp, "slirp4netns"),
                                       ("passt", Pasta, "pasta")):
                if binary and not shutil.which(binary):
                    print(f"{name}: not installed", file=sys.stderr)
                    continue
                tool = kind(pathlib.Path(tmp))
                rows = results[name] = {}
                for flows in (1, 16):
                    for reverse in (False, True):
                        key = f"{'to' if reverse else 'from'} guest, {flows} flow{'s' * (flows > 1)}"
                        rows[key] = throughput(tool, port, args.seconds, flows, reverse)
                rows["short connections"] = short_connections(tool, short_port, args.connections)
        finally:
            iperf.kill()
            iperf.wait()
            os.kill(short_pid, signal.SIGKILL)
            os.waitpid(short_pid, 0)
    for name, rows in results.items():
        for key, row in rows.items():
            print(f"{name:12} {key:22} " + "  ".join(f"{k} {v:8.2f}" for k, v in row.items()))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")


main()
