"""TLS that is looked into, with a secret in each request: msb-intercept beside mitmproxy, and the server alone.

Part of bench.py. Client and server are the same for all, on this host's loopback; the CPU time is that of the process
between them. Rounds alternate, so that what else the machine does hits all alike.
"""
import os
import pathlib
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HOST = "api.example.com"
BULK = 64 << 20
RATIOS = [  # what, against, aim
    ("mitmproxy, requests", "mitmproxy requests per CPU s", "intercepted requests per CPU s", 0.1),
]


def serve(pem):
    """The server: `GET /` has a short answer, `GET /N` one of N bytes. Prints its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)

    def one(raw):
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data, piece = b"", bytes(1 << 18)
        with context.wrap_socket(raw, server_side=True) as s:
            while more := s.recv(65536):
                data += more
                while b"\r\n\r\n" in data:
                    head, data = data.split(b"\r\n\r\n", 1)
                    n = int(head.split(b" ")[1][1:] or 2)
                    s.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % n + (b"ok" if n == 2 else b""))
                    for at in range(0, n if n > 2 else 0, len(piece)):
                        s.sendall(piece[:min(len(piece), n - at)])

    while True:
        threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()


def cpu(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Client:
    """One connection that is kept."""

    def __init__(self, port):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # each has an authority of its own
        raw = socket.create_connection(("127.0.0.1", port), timeout=60)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.s = context.wrap_socket(raw, server_hostname=HOST)

    def get(self, path):
        self.s.sendall(f"GET /{path} HTTP/1.1\r\nHost: {HOST}\r\nX-Api-Key: msb_placeholder\r\n\r\n".encode())
        data = b""
        while b"\r\n\r\n" not in data:
            data += self.s.recv(65536)
        head, rest = data.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 200"), head
        left = int(path or 2) - len(rest)
        while left > 0:
            left -= len(self.s.recv(1 << 18))

    def requests(self, n):
        """Milliseconds of each."""
        times = []
        for _ in range(n):
            begun = time.perf_counter()
            self.get("")
            times.append((time.perf_counter() - begun) * 1000)
        return times


def certificate(d):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", f"/CN={HOST}", "-addext", f"subjectAltName=DNS:{HOST}", "-keyout", d / "key", "-out", d / "crt"],
                   check=True, capture_output=True)
    (d / "pem").write_bytes((d / "crt").read_bytes() + (d / "key").read_bytes())


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


def wait_for_port(port):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("nobody listens")


class World:
    def __init__(self, build, d):
        self.running, self.ports, self.pids = [], {}, {}
        certificate(d)
        self.server = int(self.start(sys.executable, __file__, d / "pem"))
        self.ports["direct"] = self.server
        port, pid = self.start(build / "tests" / "bench" / "intercept_feed", build / "assets" / "msb-intercept", d / "ca",
                               d / "crt", HOST, self.server).split()
        self.ports["intercepted"], self.pids["intercepted"] = int(port), int(pid)
        if shutil.which("mitmdump"):
            port = free_port()
            p = subprocess.Popen(["mitmdump", "-q", "--mode", f"reverse:https://127.0.0.1:{self.server}", "--listen-host",
                                  "127.0.0.1", "-p", str(port), "--ssl-insecure", "--set", f"confdir={d / 'mitm'}",
                                  "--set", "stream_large_bodies=64k", "--set", "http2=false"], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.running.append(p)
            wait_for_port(port)
            self.ports["mitmproxy"], self.pids["mitmproxy"] = port, p.pid
        else:
            print("  mitmproxy: skipped, it is not installed")

    def start(self, *command):
        p = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.running.append(p)
        return p.stdout.readline()

    def close(self):
        for p in self.running:
            p.kill()
            p.wait()


def measure(b, w):
    clients = {k: Client(p) for k, p in w.ports.items()}
    times = {k: [] for k in clients}
    spent = {k: [0.0, 0.0] for k in w.pids}
    for i in range(b.count(30)):
        for k, c in clients.items():
            for which, work in enumerate((lambda c=c: c.requests(100), lambda c=c: c.get(str(BULK)))):
                if which and (i % 10 or k == "direct"):
                    continue
                before = cpu(w.pids[k]) if k in w.pids else 0
                got = work()
                if k in w.pids:
                    spent[k][which] += cpu(w.pids[k]) - before
                if not which:
                    times[k] += got
    rounds = (b.count(30) + 9) // 10
    for k, (small, large) in spent.items():
        b.note(f"{k} requests per CPU s", "/s", len(times[k]) / max(small, 0.01))
        b.note(f"{k} adds to a request", "ms", statistics.median(times[k]) - statistics.median(times["direct"]))
        b.note(f"{k} bulk per CPU s", "Gbit/s", rounds * BULK * 8 / 1e9 / max(large, 0.01))


def bench(b):
    """Notes the figures in b (bench.Bench)."""
    build = pathlib.Path(b.msb).parents[2]
    with tempfile.TemporaryDirectory(prefix="msb-bench-tls-") as d:
        w = World(build, pathlib.Path(d))
        try:
            measure(b, w)
        finally:
            w.close()


if __name__ == "__main__":
    serve(sys.argv[1])
