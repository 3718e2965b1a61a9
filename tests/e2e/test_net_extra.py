"""Limits on traffic, SOCKS proxies, the host's certificates, host sockets by vsock."""
import contextlib
import hashlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time

import pytest

import netkit
from conftest import static_program, wait_for
from netkit import ECHO, HOST, OTHER, WEB

HOST_NAME = "host.microsandbox.internal"
IS_ROOT = os.geteuid() == 0


# --- limits ---------------------------------------------------------------------------------------

SIZE = 1 << 20


class Meter:
    """A server on the loopback that sends a MiB, or counts what comes, and says how long that took."""

    def __init__(self, send):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.send, self.got, self.seconds = send, 0, 0.0
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self):
        c, _ = self.listener.accept()
        began = time.monotonic()
        if self.send:
            c.sendall(b"x" * SIZE)
            c.shutdown(socket.SHUT_WR)
        while data := c.recv(65536):
            self.got += len(data)
        self.seconds = time.monotonic() - began
        c.close()

    def finish(self):
        self.thread.join(60)
        assert not self.thread.is_alive()
        self.listener.close()


def test_bytes_are_limited_each_way(msb):
    """512 KiB are free at first and every second: a MiB takes one, and arrives whole."""
    msb.create("box", "--net", "host", "--net-egress-bandwidth", "512K", "--net-ingress-bandwidth", "256K/500ms")
    out, back = Meter(False), Meter(True)
    began = time.monotonic()
    p = msb.sh("box", f"head -c {SIZE} /dev/zero | nc {HOST_NAME} {out.port} & "
                      f"nc {HOST_NAME} {back.port} </dev/null | wc -c; wait", check=0)
    out.finish()
    back.finish()
    assert p.stdout.decode().strip() == str(SIZE)
    assert out.got == SIZE and out.seconds > 0.9, out.seconds
    assert time.monotonic() - began > 1.4


def test_packets_are_limited_and_bursts_are_free(msb):
    msb.create("box", "--net", "host", "--net-ingress-ops", "100", "--net-ingress-ops-burst", "600",
               "--net-egress-bandwidth", "1K", "--net-egress-bandwidth-burst", "2M")
    # a MiB is 719 packets, of which 700 are free
    back, out = Meter(True), Meter(False)
    p = msb.sh("box", f"nc {HOST_NAME} {back.port} </dev/null | wc -c; "
                      f"head -c {SIZE} /dev/zero | nc {HOST_NAME} {out.port}", check=0)
    out.finish()
    back.finish()
    assert p.stdout.decode().strip() == str(SIZE) and out.got == SIZE
    limits = json.loads(msb.ok("inspect", "box", "--format", "json"))["config"]["network"]["rate_limits"]
    assert limits["ingress"]["ops"] == {"size": 100, "refill_time_ms": 1000, "one_time_burst": 600}
    assert limits["egress"]["bandwidth"] == {"size": 1024, "refill_time_ms": 1000, "one_time_burst": 2 << 20}
    text = msb.ok("inspect", "box")
    assert "1.0 KiB/s, burst 2.0 MiB" in text and "100 packets/s, burst 600 packets" in text


# --- proxies --------------------------------------------------------------------------------------

PROXY = "93.184.216.1"
PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def proxy(internet):
    """A real SOCKS5 server in the world: port 1080, and 1081 for who has a password."""
    netkit.need("microsocks")
    enter = internet.enter(internet.world_pid)
    internet.start(*enter, "microsocks", "-i", PROXY, "-p", "1080", stderr=subprocess.DEVNULL)
    internet.start(*enter, "microsocks", "-i", PROXY, "-p", "1081", "-u", "me", "-P", PASSWORD,
                   stderr=subprocess.DEVNULL)

    def answers(port):
        with contextlib.suppress(OSError), internet.connect(PROXY, port):
            return True

    wait_for(lambda: answers(1080) and answers(1081), timeout=20)
    return f"socks5://{PROXY}"


@pytest.fixture
def box(net_msb):
    """Creates a sandbox in the small internet, which goes with the test."""
    yield lambda *options, **kw: net_msb.create("box", "net-guest:1", *options, **kw)
    net_msb("rm", "-f", "-q", "box")


def curl(m, name, url, *options):
    return m("exec", "-q", name, "--", "curl", "-sS", "-m", "30", *options, url)


def test_everything_goes_through_the_proxy(internet, net_msb, box, proxy):
    box("--proxy", f"{proxy}:1080")
    with internet.capture() as seen:
        assert curl(net_msb, "box", "http://four.example.com/").stdout == f"world {WEB} four.example.com\n".encode()
        assert curl(net_msb, "box", f"http://{OTHER}/", "-H", "Host: x").stdout == f"world {OTHER} x\n".encode()
        assert curl(net_msb, "box", f"http://{WEB}:9/").returncode == 7
        assert curl(net_msb, "box", "http://10.9.9.9/").returncode == 7  # the policy comes first
        out = net_msb.probe("box", f'show(udp("{OTHER}", {ECHO}), ping("{OTHER}"))')
    assert out[0].split() != ["ping", "pong"] and "E" in out[0]
    ends = {(p.dst, p.dport) for p in seen.packets if p.src in (HOST, netkit.HOST6)}
    assert ends == {(PROXY, 1080)}, ends
    why = "only TCP goes through the proxy"
    assert why in net_msb.ok("net", "log", "box")
    asks = [["explain", "box", "four.example.com:53", "--udp"], ["explain", "box", f"{OTHER}:53", "--udp"]]
    assert all(why in net_msb("net", *ask).stdout.decode() for ask in asks)
    net_msb.ok("stop", "-q", "box")
    assert all(why in net_msb("net", *ask).stdout.decode() for ask in asks)


def test_names_keep_their_promise_through_a_proxy(net_msb, box, proxy):
    box("--proxy", f"{proxy}:1080", "--net-rule", "allow@four.example.com")
    assert curl(net_msb, "box", "http://four.example.com/").stdout == f"world {WEB} four.example.com\n".encode()
    assert b"resolve" in curl(net_msb, "box", "http://other.org/").stderr
    assert curl(net_msb, "box", f"http://{OTHER}/").returncode == 7
    assert curl(net_msb, "box", "http://four.example.com/", "-H", "Host: other.org").returncode != 0


def test_passwords_are_looked_up_and_kept_nowhere(net_msb, box, proxy):
    options = ["--proxy", f"{proxy}:1081", "--socks5-username", "me", "--socks5-password-env", "PROXY_PW"]
    p = net_msb("create", "-n", "box", "net-guest:1", *options)
    assert p.returncode == 1 and b"PROXY_PW" in p.stderr
    assert net_msb.ok("ls", "-q") == ""
    env = {**net_msb.env, "PROXY_PW": PASSWORD}
    box(*options, env=env)
    assert curl(net_msb, "box", f"http://{WEB}/", "-H", "Host: y").stdout == f"world {WEB} y\n".encode()
    home = net_msb.home / "sandboxes" / "box"
    for f in (f for f in home.rglob("*") if f.is_file() and f.stat().st_size < 1 << 24):
        assert PASSWORD.encode() not in f.read_bytes(), f
    for pid in net_msb.processes():
        assert PASSWORD.encode() not in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    assert PASSWORD not in net_msb.ok("inspect", "box", "--format", "json") + net_msb.ok("inspect", "box")
    assert PASSWORD not in net_msb.sh("box", "env; cat /proc/*/environ").stdout.decode()
    net_msb.ok("stop", "-q", "box")
    p = net_msb("start", "box")
    assert p.returncode == 1 and b"PROXY_PW" in p.stderr
    net_msb.ok("start", "-q", "box", env={**net_msb.env, "PROXY_PW": "wrong"})
    assert curl(net_msb, "box", f"http://{WEB}/").returncode == 7
    wait_for(lambda: "the proxy rejects the user name or password" in net_msb.ok("net", "log", "box"))


# --- certificates ---------------------------------------------------------------------------------

FETCH = """
import urllib.request
print(urllib.request.urlopen("https://www.example.com/").read().decode(), end="")
"""


def test_certificates_of_the_host(internet, net_msb, box):
    env = {**net_msb.env, "SSL_CERT_FILE": str(internet.ca)}
    answer = f"world {WEB} www.example.com"
    net_msb.create("plain", "net-guest:1", env=env)
    assert b"certificate" in curl(net_msb, "plain", "https://www.example.com/", "-4").stderr
    net_msb.ok("rm", "-f", "-q", "plain")
    box("--trust-host-cas", env=env)
    before = net_msb.sh("box", "cat /etc/ssl/certs/ca-certificates.crt", check=0).stdout
    assert before.count(b"BEGIN CERTIFICATE") > 100  # those of the image, too
    assert curl(net_msb, "box", "https://www.example.com/", "-4").stdout.decode().strip() == answer
    assert answer.split()[0] in net_msb.python("box", FETCH)[0]
    # by the files alone, without the variables
    script = "unset SSL_CERT_FILE REQUESTS_CA_BUNDLE; curl -4sS https://www.example.com/ && python3 -c '%s'" % FETCH
    assert net_msb.sh("box", script, check=0).stdout.count(b"www.example.com") == 2
    net_msb.ok("stop", "-q", "box")
    net_msb.ok("start", "-q", "box", env=env)
    assert net_msb.sh("box", "cat /etc/ssl/certs/ca-certificates.crt", check=0).stdout == before


def test_certificates_for_an_image_that_has_none(msb, tmp_path):
    bundle = tmp_path / "bundle.pem"
    cert = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    bundle.write_text("# a comment\n" + cert + "rest")
    env = {**msb.env, "SSL_CERT_FILE": str(bundle)}
    msb.create("box", "--trust-host-cas", "-e", "NODE_EXTRA_CA_CERTS=/mine", env=env)
    out = msb.sh("box", "cat /etc/ssl/cert.pem; echo $SSL_CERT_FILE $NODE_EXTRA_CA_CERTS", check=0).stdout.decode()
    assert cert in out and "a comment" not in out and "rest" not in out
    assert out.endswith("/etc/ssl/certs/ca-certificates.crt /mine\n")
    config = json.loads(msb.ok("inspect", "box", "--format", "json"))["config"]
    assert config["network"]["trust_host_cas"] is True
    for text, why in (("nothing", b"no certificates in"), (None, b"no bundle of certificates"),
                      ("x" * (3 << 20), b"too large")):
        bundle.write_text(text) if text else bundle.unlink()
        p = msb("create", "-n", "other", "--trust-host-cas", env=env)
        assert p.returncode == 1 and why in p.stderr.lower(), p.stderr
        bundle.write_text("")
    assert msb.ok("ls", "-q").split() == ["box"]


# --- host sockets ---------------------------------------------------------------------------------


class HostServer:
    """A Unix socket that answers when its client is done: the hash of what came, and a MiB."""

    def __init__(self, path):
        self.path = path
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(300)
        self.held, self.silent = [], False
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                c, _ = self.listener.accept()
                self.held.append(c)
                if not self.silent:
                    threading.Thread(target=self.serve, args=(c,), daemon=True).start()

    def serve(self, c):
        h = hashlib.sha256()
        while data := c.recv(65536):
            h.update(data)
        with contextlib.suppress(OSError):
            c.sendall(h.hexdigest().encode() + b"\n" + b"y" * SIZE)
        c.close()

    def close(self):
        for s in [self.listener, *self.held]:
            s.close()
        self.path.unlink(missing_ok=True)


@pytest.fixture
def client(tmp_path):
    d = tmp_path / "client"
    d.mkdir()
    static_program("vsock_client", d)
    return d


def talk(m, name, port, data=b"hello", **kw):
    return m("exec", "-q", name, "--", "/c/vsock_client", port, input=data, **kw)


def test_guests_reach_host_sockets(msb, client, tmp_path):
    path = tmp_path / "app.sock"
    msb.create("box", "-v", f"{client}:/c", "--vsock", f"{path}:5000", "--vsock", f"{tmp_path}/x.sock:5001/stream")
    assert talk(msb, "box", 5000).stdout == b"ECONNRESET\n"  # nothing is there yet
    server = HostServer(path)
    try:
        data = os.urandom(3 << 20)
        for blob in (b"", b"hello", data):
            p = talk(msb, "box", 5000, blob, check=0)
            assert p.stdout[:65] == hashlib.sha256(blob).hexdigest().encode() + b"\n"
            assert len(p.stdout) == 65 + SIZE
        for port in (5001, 5002, 1025):
            assert talk(msb, "box", port).stdout == b"ECONNRESET\n"
        # a server that accepts and sends nothing does not hold up others
        server.silent = True
        slow = [msb.popen("exec", "-q", "box", "--", "sh", "-c", "/c/vsock_client 5000 </dev/zero",
                          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) for _ in range(2)]
        wait_for(lambda: len(server.held) >= 5)
        server.silent = False
        assert len(talk(msb, "box", 5000, b"z" * 300000, check=0).stdout) == 65 + SIZE
        assert msb.sh("box", "echo fine").stdout == b"fine\n"
        for p in slow:
            p.kill()
            p.wait()
    finally:
        server.close()
    assert json.loads(msb.ok("inspect", "box", "--format", "json"))["config"]["vsocks"] == [
        {"path": str(path), "port": 5000, "type": "stream"},
        {"path": f"{tmp_path}/x.sock", "port": 5001, "type": "stream"}]
    assert f"vsock 5000      → {path}" in msb.ok("inspect", "box")


def test_connections_are_bounded(msb, client, tmp_path):
    server = HostServer(tmp_path / "app.sock")
    try:
        msb.create("box", "-v", f"{client}:/c", "--vsock", f"{server.path}:5000")
        p = msb("exec", "-q", "box", "--", "/c/vsock_client", "5000", "257", input=b"")
        assert p.stdout == b"ECONNRESET\n"
        wait_for(lambda: len(server.held) == 256)
        assert len(talk(msb, "box", 5000, check=0).stdout) == 65 + SIZE  # they went with their program
        msb.ok("stop", "-q", "box")
        msb.ok("start", "-q", "box")
        assert len(talk(msb, "box", 5000, check=0).stdout) == 65 + SIZE
    finally:
        server.close()


@pytest.mark.skipif(not IS_ROOT, reason="looking into it takes root")
def test_the_connector_has_nothing_but_its_sockets(msb, client, tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    server, outside = HostServer(inner / "app.sock"), HostServer(tmp_path / "outside.sock")
    try:
        msb.create("box", "--vsock", f"{server.path}:5000")
        msb.ok("cp", client, "box:/c")
        assert len(talk(msb, "box", 5000, check=0).stdout) == 65 + SIZE
        mine = set(msb.tree(msb.monitor_pid("box")))
        (pid,) = [p for p in msb.processes() if p not in mine]
        st = dict(line.split(":\t", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
                  if ":\t" in line)
        assert int(st["CapEff"], 16) & ~(1 << 1) == 0 and st["NoNewPrivs"] == "1" and st["Seccomp"] == "2"
        for kind in ("mnt", "pid", "net", "ipc", "uts"):
            assert os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
        assert os.listdir(f"/proc/{pid}/root") == []
        # someone who can write to the directory cannot redirect it
        for target in (outside.path, "../outside.sock"):
            server.path.unlink()
            server.path.symlink_to(target)
            assert talk(msb, "box", 5000).stdout == b"ECONNRESET\n"
        assert outside.held == []
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: msb.status("box").lower() == "crashed")
        assert "connects to host sockets" in msb.ok("inspect", "box")
    finally:
        server.close()
        outside.close()
    wait_for(lambda: not msb.processes())


# --- what is refused ------------------------------------------------------------------------------

BAD = [
    (["--net-egress-bandwidth", "fast"], 2, "SIZE or SIZE/TIME"),
    (["--net-egress-bandwidth", "0"], 2, "SIZE or SIZE/TIME"),
    (["--net-egress-bandwidth", "1M/1ms"], 2, "SIZE or SIZE/TIME"),
    (["--net-ingress-bandwidth", "1M/2d"], 2, "SIZE or SIZE/TIME"),
    (["--net-ingress-ops", "1.5"], 2, "COUNT or COUNT/TIME"),
    (["--net-ingress-ops", "99999999999999999999"], 2, "COUNT or COUNT/TIME"),
    (["--net-egress-ops-burst", "5"], 2, "requires --net-egress-ops"),
    (["--net-egress-bandwidth", "1M", "--net-egress-bandwidth-burst", "1x"], 2, "expected a size"),
    (["--proxy", "http://127.0.0.1:80"], 2, "socks5://IP:PORT"),
    (["--proxy", "socks5://proxy.example.com:1080"], 2, "socks5://IP:PORT"),
    (["--proxy", "socks5://127.0.0.1"], 2, "socks5://IP:PORT"),
    (["--proxy", "socks5://127.0.0.1:0"], 2, "socks5://IP:PORT"),
    (["--proxy", "socks5://me:geheim@127.0.0.1:1080"], 2, "options of their own"),
    (["--socks5-username", "me"], 2, "requires --proxy socks5://"),
    (["--proxy", "socks4://127.0.0.1:1", "--socks5-username", "me"], 2, "requires --proxy socks5://"),
    (["--proxy", "socks5://127.0.0.1:1", "--socks4-user-id", "me"], 2, "requires --proxy socks4://"),
    (["--proxy", "socks5://127.0.0.1:1", "--socks5-password-env", "PW"], 2, "needs a user name"),
    (["--proxy", "socks5://127.0.0.1:1", "--socks5-username", "u" * 256], 2, "1 to 255 bytes"),
    (["--proxy", "socks5://127.0.0.1:1", "--socks5-username", "u", "--socks5-password-env", "A=B"], 2, "invalid environment variable name"),
    (["--vsock", "relative:5000"], 2, "absolute path"),
    (["--vsock", "/tmp/x"], 2, "HOST_SOCK:PORT"),
    (["--vsock", "/tmp/x:5000/dgram"], 2, "datagrams are not supported"),
    (["--vsock", "/tmp/x:5000/seqpacket"], 2, "HOST_SOCK:PORT"),
    (["--vsock", "/tmp/x:1023"], 2, "between 1024"),
    (["--vsock", "/tmp/x:4294967295"], 2, "between 1024"),
    (["--vsock", "/tmp/:5000"], 2, "does not name a socket"),
    (["--vsock", "/tmp/" + "n" * 97 + ":5000"], 2, "too long"),
    (["--vsock", "/tmp/x:5000", "--vsock", "/tmp/y:5000"], 2, "given twice"),
    ([o for i in range(17) for o in ("--vsock", f"/tmp/x:{5000 + i}")], 2, "more than 16"),
    (["--vsock", "/nonexistent/x:5000"], 1, "cannot reach /nonexistent"),
]  # fmt: skip


@pytest.mark.parametrize("options,code,why", BAD, ids=lambda v: " ".join(v)[:40] if isinstance(v, list) else None)
def test_bad_input(msb, options, code, why):
    p = msb("create", "-n", "x", *options)
    assert p.returncode == code, p.stderr
    assert why in p.stderr.decode()
    assert b"geheim" not in p.stderr
    assert msb.leftovers() == []
