"""The network stack with the real Linux network as its guest (tap_stack), and servers here."""
import errno
import json
import os
import pathlib
import resource
import socket
import socketserver
import subprocess
import threading

import pytest

from servers import CHUNK, Server

STACK = os.environ.get("TAP_STACK", "build/tests/net/tap_stack")
GUEST = pathlib.Path(__file__).with_name("guest.py")
PYTHON = "/usr/bin/python3"
GIB = 1 << 30


def can_run():
    if os.geteuid() != 0 or not os.path.exists("/dev/net/tun"):
        return False
    probe = "unshare -n ip tuntap add dev t0 mode tap"
    return subprocess.run(probe.split(), stderr=subprocess.DEVNULL).returncode == 0


pytestmark = pytest.mark.skipif(not can_run(), reason="needs root and /dev/net/tun")


@pytest.fixture
def server():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    s = Server(("127.0.0.1", 0)).start()
    s.port = s.server_address[1]
    yield s
    s.go_on.set()
    s.shutdown()
    s.server_close()


class Stack:
    """Runs guest.py behind the stack and checks what is left when it is done."""

    def __init__(self, tmp):
        self.stats_file = tmp / "stats.json"
        self.stats = {}

    def command(self, mode, port, arg, options):
        cmd = [STACK, "--stats", str(self.stats_file), *options, "--", PYTHON, str(GUEST), mode,
               str(port)]
        return cmd + ([str(arg)] if arg is not None else [])

    def run(self, mode, port, arg=None, options=(), timeout=100, prefix=()):
        p = subprocess.run([*prefix, *self.command(mode, port, arg, options)], stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True, timeout=timeout)
        assert p.returncode == 0, p.stderr
        self.read_stats()
        return json.loads(p.stdout.splitlines()[-1])

    def read_stats(self):
        self.stats = json.loads(self.stats_file.read_text())


@pytest.fixture
def stack(tmp_path):
    return Stack(tmp_path)


BOTH = pytest.mark.parametrize("options", [(), ("--copies",)], ids=["peek", "copies"])


@BOTH
def test_a_gigabyte_from_the_guest(stack, server, options):
    assert stack.run("upload", server.port, GIB, options)["n"] == GIB
    assert stack.stats["tcp_flows"] == 0 and stack.stats["held"] == 0


@BOTH
def test_a_gigabyte_to_the_guest(stack, server, options):
    got = stack.run("download", server.port, GIB, options)
    assert got == {"n": GIB, "crc": server.crc}
    assert stack.stats["tcp_flows"] == 0 and stack.stats["held"] == 0


def test_a_thousand_connections_at_once(stack, server):
    stack.run("concurrent", server.port, 1000, ("--max", "1100"))
    assert stack.stats["tcp_opened"] == 1000
    assert stack.stats["tcp_flows"] == 0 and stack.stats["held"] == 0


def test_ten_thousand_short_connections(stack, server):
    stack.run("short", server.port, 10000)
    assert stack.stats["tcp_opened"] == 10000 and stack.stats["tcp_refused"] == 0
    assert stack.stats["tcp_flows"] == 0 and stack.stats["held"] == 0


def test_more_connections_than_allowed_are_refused(stack, server):
    p = subprocess.run(stack.command("concurrent", server.port, 20, ("--max", "10")),
                       stderr=subprocess.PIPE, text=True, timeout=60)
    assert p.returncode != 0 and "ConnectionRefusedError" in p.stderr
    stack.read_stats()
    assert stack.stats["tcp_opened"] == 10 and stack.stats["tcp_refused"] == 1


def test_denied_is_refused_at_once(stack, server):
    got = stack.run("errno_of", server.port, options=("--deny", str(server.port)))
    assert got["errno"] == errno.ECONNREFUSED and got["seconds"] < 5
    assert stack.stats["tcp_denied"] == 1 and stack.stats["tcp_opened"] == 0


def test_a_closed_port_is_refused(stack):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        assert stack.run("errno_of", s.getsockname()[1])["errno"] == errno.ECONNREFUSED


def test_an_unreachable_address_fails_at_once(stack):
    got = stack.run("errno_of", 80, "240.0.0.1", prefix=("unshare", "-n"))  # a host without routes
    assert got["errno"] in (errno.ENETUNREACH, errno.EHOSTUNREACH) and got["seconds"] < 5


@BOTH
def test_streams_that_nobody_reads_hold_up_no_other(stack, server, options):
    got = stack.run("never_read", server.port, 50 << 20, options)
    assert got["n"] == 50 << 20
    assert stack.stats["rss_kb"] < 192 * 1024  # with a sanitizer's share


@BOTH
def test_the_server_finishes_first(stack, server, options):
    got = stack.run("half_close", server.port, options=options)
    assert server.half_done.wait(20)
    assert server.half == got["n"]
    assert stack.stats["tcp_flows"] == 0


@BOTH
def test_the_server_is_lost_in_mid_flow(stack, server, options):
    assert stack.run("reset", server.port, options=options)["errno"] == errno.ECONNRESET
    assert stack.stats["tcp_flows"] == 0 and stack.stats["held"] == 0


def test_the_guest_resets(stack, server):
    stack.run("aborts", server.port, 50)
    assert stack.stats["tcp_flows"] == 0 and stack.stats["held"] == 0


def test_ping_the_gateway(stack):
    stack.run("ping", 0)


@pytest.fixture
def udp_server():
    class Echo(socketserver.BaseRequestHandler):
        def handle(self):
            data, s = self.request
            s.sendto(data, self.client_address)

    s = socketserver.ThreadingUDPServer(("127.0.0.1", 0), Echo)
    s.max_packet_size = 65536
    s.daemon_threads = True
    threading.Thread(target=s.serve_forever, daemon=True).start()
    yield s.server_address[1]
    s.shutdown()
    s.server_close()


def test_datagrams(stack, udp_server):
    stack.run("udp", udp_server, 500)


def test_datagrams_to_a_closed_port(stack):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    assert stack.run("udp_errno", port)["errno"] == errno.ECONNREFUSED


def test_denied_datagrams(stack, udp_server):
    got = stack.run("udp_errno", udp_server, options=("--deny", str(udp_server)))
    assert got["errno"] in (errno.EHOSTUNREACH, errno.EACCES, errno.ECONNREFUSED)


def free_port(kind=socket.SOCK_STREAM):
    with socket.socket(socket.AF_INET, kind) as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@BOTH
def test_a_published_port(stack, options):
    port = free_port()
    cmd = stack.command("serve", 8080, None, ("--publish", f"{port}:8080", *options))
    with subprocess.Popen(cmd, stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout.readline() == "ready\n"
        with socket.create_connection(("127.0.0.1", port), timeout=20) as s:
            data = CHUNK * 40
            t = threading.Thread(target=lambda: (s.sendall(data), s.shutdown(socket.SHUT_WR)))
            t.start()
            got = bytearray()
            while k := s.recv(1 << 20):
                got += k
            t.join()
        assert bytes(got) == data
        answer = json.loads(p.stdout.readline())
        assert p.wait(20) == 0
    assert answer == {"n": len(data), "peer": "10.0.2.2"}
    stack.read_stats()
    assert stack.stats["tcp_flows"] == 0 and stack.stats["held"] == 0


def test_a_published_datagram_port(stack):
    port = free_port(socket.SOCK_DGRAM)
    cmd = stack.command("serve_udp", 8080, 20, ("--publish", f"{port}:8080/udp"))
    with subprocess.Popen(cmd, stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout.readline() == "ready\n"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            s.settimeout(20)
            s.connect(("127.0.0.1", port))
            for i in range(20):
                s.send(b"%d" % i)
                assert s.recv(100) == b"%d" % i
        assert json.loads(p.stdout.readline()) == {"peer": "10.0.2.2"}
        assert p.wait(20) == 0


def test_ipv6(stack, server):
    six = Server(("::1", server.port)).start()
    try:
        assert stack.run("errno_of", server.port, "fd00:2::2")["errno"] == 0
    finally:
        six.shutdown()
        six.server_close()
