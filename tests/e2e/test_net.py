"""The network of a sandbox, against servers on this host's loopback: no privilege, no internet.

Bigger worlds, with names and public addresses, are in tests of their own.
"""
import contextlib
import errno
import json
import pathlib
import random
import socket
import struct
import subprocess
import threading

import pytest

from conftest import wait_for

GATEWAY = "172.27.255.253"
HOST = "host.microsandbox.internal"
ECHO = """
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
int main(int c, char **v)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(v[1]))}, p;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    char b[2048] = "echo:";
    bind(fd, (struct sockaddr *)&a, sizeof(a));
    for (;;) {
        socklen_t n = sizeof(p);
        long k = recvfrom(fd, b + 5, sizeof(b) - 5, 0, (struct sockaddr *)&p, &n);
        sendto(fd, b, k + 5, 0, (struct sockaddr *)&p, n);
    }
}
"""


class Servers:
    """TCP and UDP on 127.0.0.1: answers are "tcp:" or "udp:" and what came; notes who came."""

    def __init__(self):
        self.seen = []
        self.sockets = []
        self.tcp = self.start(socket.SOCK_STREAM, self.serve_tcp)
        self.udp = self.start(socket.SOCK_DGRAM, self.serve_udp)

    def start(self, kind, serve):
        s = socket.socket(socket.AF_INET, kind)
        s.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_STREAM:
            s.listen()
        self.sockets.append(s)
        threading.Thread(target=serve, args=(s,), daemon=True).start()
        return s.getsockname()[1]

    def serve_tcp(self, s):
        with contextlib.suppress(OSError):
            while True:
                c, _ = s.accept()
                data = c.recv(100)
                self.seen.append(("tcp", data))
                c.sendall(b"tcp:" + data)
                c.close()

    def serve_udp(self, s):
        with contextlib.suppress(OSError):
            while True:
                data, peer = s.recvfrom(2048)
                self.seen.append(("udp", data))
                s.sendto(b"udp:" + data, peer)

    def close(self):
        for s in self.sockets:
            s.close()


@pytest.fixture
def servers():
    s = Servers()
    yield s
    s.close()


def talk(msb, name, kind, host, port):
    """One line there and back, by bash's own sockets; the answer, or "" with the reason on stderr."""
    script = f"exec 3<>/dev/{kind}/{host}/{port} && echo hi >&3 && timeout 5 dd bs=99 count=1 <&3"
    return msb("exec", "-q", name, "--", "/.msb/bin/bash", "-c", script).stdout.decode().strip()


def free_port(kind=socket.SOCK_STREAM):
    """Not one of those that any connection of another test may get meanwhile."""
    first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        with socket.socket(socket.AF_INET, kind) as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", random.randrange(first // 2, first)))
            return s.getsockname()[1]


def call(port, data=b"", host="127.0.0.1"):
    with socket.create_connection((host, port), timeout=10) as c:
        c.sendall(data)
        c.shutdown(socket.SHUT_WR)
        got = b""
        while chunk := c.recv(65536):
            got += chunk
        return got


def network(msb, name, which="config"):
    return json.loads(msb.ok("inspect", name, "--format", "json"))[which]["network"]


# --- what a guest has ---------------------------------------------------------------------------


def test_a_guest_has_an_interface_routes_and_names(msb):
    msb.create("box")
    out = msb.sh("box", "cat /sys/class/net/eth0/mtu; ip -4 route; cat /etc/resolv.conf").stdout.decode()
    assert out.splitlines()[0] == "1500"
    assert f"default via {GATEWAY} dev eth0" in out
    assert f"nameserver {GATEWAY}\n" in out
    hosts = msb.sh("box", "cat /etc/hosts").stdout.decode()
    assert f"{GATEWAY}\t{HOST}\n" in hosts and "127.0.0.1\tbox\n" in hosts
    # Nothing is still looking for its address: what is there can be used.
    assert b"tentative" not in msb.sh("box", "ip addr").stdout


def test_without_a_network_there_is_only_loopback(msb):
    for i, option in enumerate(("--no-net", "--no-network")):
        name = msb.create(f"box{i}", option)
        assert msb.sh(name, "ls /sys/class/net").stdout == b"lo\n"
        p = msb.sh(name, "ping -c 1 -W 2 127.0.0.1 >/dev/null && nc -w 5 1.1.1.1 80")
        assert p.returncode != 0 and b"unreachable" in p.stderr
        assert msb.sh(name, "grep nameserver /etc/resolv.conf").stdout == b""
        assert network(msb, name)["enabled"] is False


@pytest.mark.parametrize(
    "etc",
    ["ln -s ../run/systemd/resolve/stub-resolv.conf /etc/resolv.conf", "mkdir /etc/resolv.conf",
     "ln -s /dev/zero /etc/resolv.conf", "mkfifo /etc/resolv.conf", "rm -r /etc",
     "rm -r /etc; ln -s nowhere /etc", "rm -r /etc; echo > /etc",
     "rm -r /etc; mkdir -p /usr/etc; ln -s usr/etc /etc",
     "printf 'nameserver 10.1.1.1\\n' > /etc/resolv.conf"],
)  # fmt: skip
def test_no_image_keeps_its_guest_from_resolving(msb, etc):
    """What the image has in the place of /etc/resolv.conf makes no difference; neither on the next start."""
    msb.create("box")
    assert msb.sh("box", "rm /etc/resolv.conf; " + etc).returncode == 0
    msb.ok("stop", "-q", "box")
    for _ in range(2):
        p = msb.sh("box", "cat /etc/resolv.conf; test -f /etc/resolv.conf -a ! -h /etc/resolv.conf")
        assert (p.returncode, p.stdout) == (0, f"nameserver {GATEWAY}\n".encode()), p


# --- out ----------------------------------------------------------------------------------------


def test_the_host_is_reached_when_a_rule_says_so(msb, servers):
    msb.create("box", "--net-rule", f"allow@host:tcp:{servers.tcp},allow@host:udp:{servers.udp}")
    assert talk(msb, "box", "tcp", HOST, servers.tcp) == "tcp:hi"
    assert talk(msb, "box", "udp", HOST, servers.udp) == "udp:hi"
    assert talk(msb, "box", "tcp", GATEWAY, servers.tcp) == "tcp:hi"
    # The same host, other ports: refused at once.
    assert talk(msb, "box", "tcp", HOST, servers.udp) == ""
    assert talk(msb, "box", "udp", HOST, servers.tcp) == ""
    assert servers.seen == [("tcp", b"hi\n"), ("udp", b"hi\n"), ("tcp", b"hi\n")]


@pytest.mark.parametrize("options", [[], ["--net", "public,private"], ["--net", "none"],
                                     ["--net-rule", "deny@host", "--net", "all"]])  # fmt: skip
def test_the_host_is_not_reached_otherwise(msb, servers, options):
    msb.create("box", *options)
    for host in (HOST, GATEWAY, "127.0.0.1", "0.0.0.0"):
        assert talk(msb, "box", "tcp", host, servers.tcp) == ""
        assert talk(msb, "box", "udp", host, servers.udp) == ""
    assert servers.seen == []


def dns_server(answers):
    """A name server of one thread on 127.0.0.1; returns its port and what was asked."""
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("127.0.0.1", 0))
    asked = []

    def serve():
        with contextlib.suppress(OSError):
            while True:
                q, peer = s.recvfrom(512)
                labels, at = [], 12
                while q[at]:
                    labels.append(q[at + 1 : at + 1 + q[at]].decode())
                    at += 1 + q[at]
                kind = struct.unpack_from(">H", q, at + 1)[0]
                name = ".".join(labels).lower()
                asked.append(name)
                a = answers.get(name) if kind == 1 else None
                head = q[:2] + struct.pack(">HHHHH", 0x8180, 1, 1 if a else 0, 0, 0)
                rr = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + socket.inet_aton(a) if a else b""
                s.sendto(head + q[12 : at + 5] + rr, peer)

    threading.Thread(target=serve, daemon=True).start()
    return s, asked


def test_names_are_asked_for_where_it_was_said(msb):
    s, asked = dns_server({"www.example.com": "93.184.216.34", "inner.example.com": "10.0.0.9"})
    with s:
        port = s.getsockname()[1]
        msb.create("box", "--dns-nameserver", f"127.0.0.1:{port}", "--net-rule", "allow@*.example.com")
        assert b"93.184.216.34" in msb.sh("box", "nslookup www.example.com").stdout
        # Not allowed: answered here, and not forwarded. A private address: withheld.
        assert b"NXDOMAIN" in msb.sh("box", "nslookup www.other.org").stdout
        assert b"10.0.0.9" not in msb.sh("box", "nslookup inner.example.com").stdout
        assert set(asked) == {"www.example.com", "inner.example.com"}


def test_a_dead_name_server_keeps_nobody_waiting_but_who_asks(msb):
    port = free_port(socket.SOCK_DGRAM)
    msb.create("box", "--dns-nameserver", f"127.0.0.1:{port}", "--dns-query-timeout-ms", "300")
    assert msb.sh("box", "nslookup www.example.com").returncode != 0


def test_rules_alone_are_an_allowlist_and_create_says_so(msb):
    p = msb("create", "-n", "a", "--net-rule", "allow@example.com", check=0)
    assert b"--net-rule alone allows these targets and nothing else; add --net public" in p.stderr
    p = msb("run", "--net-rule", "allow@example.com", "--", "true", check=0)
    assert b"note: --net-rule alone" in p.stderr
    for options in (["-q", "--net-rule", "allow@example.com"], [],
                    ["--net-rule", "allow@example.com", "--net", "public"]):  # fmt: skip
        p = msb("create", "-n", "b", "--replace", *options, check=0)
        assert b"note:" not in p.stderr
    assert network(msb, "a")["policy"] == {
        "default_egress": "deny", "default_ingress": "allow", "profile": None,
        "rules": ["allow@example.com"]}  # fmt: skip
    assert network(msb, "b")["policy"]["profile"] == "public"


def test_connections_are_limited(msb, servers):
    msb.create("box", "--net", "host", "--max-connections", "3")
    script = "for i in 3 4 5 6; do eval \"exec $i<>/dev/tcp/{h}/{p}\" || echo refused; done"
    out = msb("exec", "box", "--", "/.msb/bin/bash", "-c", script.format(h=HOST, p=servers.tcp))
    assert out.stdout.decode().split() == ["refused"], out


# --- in -----------------------------------------------------------------------------------------


def serve_in(msb, name, text, *ports):
    msb.sh(name, f"mkdir -p /www && echo {text} > /www/f" +
           "".join(f"; httpd -h /www -p {p}" for p in ports), check=0)  # fmt: skip


def get(port, host="127.0.0.1"):
    return call(port, b"GET /f HTTP/1.0\r\n\r\n", host).split(b"\r\n\r\n")[-1]


def hangs_up(port):
    """Before or after we have said something."""
    with pytest.raises(OSError) as e:
        get(port)
    return e.value.errno in (errno.ECONNRESET, errno.ENOTCONN, errno.EPIPE)


def test_published_ports_lead_to_the_guest(msb):
    port = free_port()
    msb.create("box", "-p", f"{port}:80", "-p", "0:81", "-p", "0:82-83")
    serve_in(msb, "box", "inside", 80, 81, 82, 83)
    shown = network(msb, "box", "active_config")["ports"]
    assert [p["guest_port"] for p in shown] == [80, 81, 82, 83]
    assert shown[0]["host_port"] == port and all(p["host_port"] for p in shown)
    for p in shown:
        assert (p["host_bind"], p["protocol"]) == ("127.0.0.1", "tcp")
        assert get(p["host_port"]) == b"inside\n"
    text = [f"127.0.0.1:{p['host_port']}->{p['guest_port']}/tcp" for p in shown]
    assert json.loads(msb.ok("ps", "box", "--format", "json"))["ports"] == text
    assert text[0][:20] in msb.ok("ps", "box")
    # A port on which nothing in the guest listens hangs up.
    msb.sh("box", "killall httpd")
    assert hangs_up(port)
    # After a stop it is free, and after a start it is back; 0 is whatever is free then.
    msb.ok("stop", "-q", "box")
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("127.0.0.1", port))
    assert [p["host_port"] for p in network(msb, "box")["ports"]] == [port, 0, 0, 0]
    msb.ok("start", "-q", "box")
    serve_in(msb, "box", "again", 80, 81)
    shown = network(msb, "box", "active_config")["ports"]
    assert shown[0]["host_port"] == port
    assert [get(p["host_port"]) for p in shown[:2]] == [b"again\n"] * 2


def test_published_udp(msb, tmp_path):
    (tmp_path / "echo.c").write_text(ECHO)
    subprocess.run(["cc", "-static", "-o", tmp_path / "echo", tmp_path / "echo.c"], check=True)
    port = free_port(socket.SOCK_DGRAM)
    msb.create("box", "--publish", f"{port}:5353/udp")
    msb("exec", "box", "--", "sh", "-c", "cat > /echo; chmod +x /echo",
        input=pathlib.Path(tmp_path / "echo").read_bytes(), check=0)  # fmt: skip
    msb.sh("box", "/echo 5353 >/dev/null 2>&1 </dev/null &")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect(("127.0.0.1", port))
        s.settimeout(0.5)

        def ask():
            s.send(b"x")
            with contextlib.suppress(OSError):
                return s.recv(100)

        assert wait_for(ask) == b"echo:x"


def test_ipv6_bind(msb):
    try:
        with socket.socket(socket.AF_INET6) as s:
            s.bind(("::1", 0))
    except OSError:
        pytest.skip("this host has no IPv6 loopback")
    msb.create("box", "-p", "[::1]:0:80")
    serve_in(msb, "box", "six", 80)
    port = network(msb, "box", "active_config")["ports"][0]["host_port"]
    assert get(port, "::1") == b"six\n"
    with pytest.raises(ConnectionRefusedError):
        get(port)


def test_ingress_rules_say_who_comes_in(msb):
    msb.create("box", "-p", "0:80", "-p", "0:81", "--net-default-ingress", "deny",
               "--net", "public", "--net-rule", "allow:ingress@any:tcp:81")  # fmt: skip
    serve_in(msb, "box", "in", 80, 81)
    ports = [p["host_port"] for p in network(msb, "box", "active_config")["ports"]]
    assert get(ports[1]) == b"in\n"
    assert hangs_up(ports[0])


def test_a_busy_port_fails_with_its_owner(msb):
    port = free_port()
    msb.create("first", "-p", f"{port}:80")
    p = msb("create", "-n", "second", "-p", f"0.0.0.0:{port}:80")
    assert p.returncode == 1
    lines = p.stderr.decode().splitlines()
    assert lines[0] == f"error: cannot publish 0.0.0.0:{port}/tcp: the port is in use"
    assert "sandbox 'first' publishes it" in lines[1]
    assert msb.ok("ls", "-q").split() == ["first"]
    # Somebody else's; and one of a stopped sandbox, on its start.
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        p = msb("run", "-p", f"{s.getsockname()[1]}:80", "--", "true")
        assert p.returncode == 1 and b"the port is in use" in p.stderr
        assert b"another program has it" in p.stderr
    msb.ok("stop", "-q", "first")
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("127.0.0.1", port))
        s.listen()
        p = msb("start", "first")
        assert p.returncode == 1 and b"the port is in use" in p.stderr
    msb.ok("start", "-q", "first")
    # The one that it replaces does not stand in its way.
    msb.ok("create", "-q", "-n", "first", "--replace", "-p", f"{port}:80")


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, words",
    [
        (["--net", "publik"], "unknown network profile 'publik'"),
        (["--no-net", "--net", "public"], "cannot be used with"),
        (["--net-rule", "allow@"], "network rule 'allow@'"),
        (["--net-rule", "alow@example.com"], "unknown action 'alow': expected allow or deny"),
        (["--net-rule", "allow@*.com"], "too wide"),
        (["--net-default", "perhaps"], "invalid value 'perhaps'"),
        (["-p", "80"], "invalid port '80'"),
        (["-p", "80:80/icmp"], "the protocol must be tcp or udp"),
        (["-p", "8000-8001:80"], "both ranges must have the same length"),
        (["-p", "8080:80", "-p", "8080:81"], "port 8080 is already published as"),
        (["--max-connections", "none"], "invalid value 'none'"),
        (["--dns-nameserver", "dns.example"], "invalid name server 'dns.example'"),
        (["--dns-query-timeout-ms", "1s"], "invalid value '1s'"),
    ],
    ids=lambda v: v if isinstance(v, str) else " ".join(v),
)
def test_bad_options_are_usage_errors(msb, options, words):
    for verb in ("create", "run"):
        p = msb(verb, "-n", "x", *options)
        first = p.stderr.decode().splitlines()[0]
        assert (p.returncode, p.stdout) == (2, b"") and words in first, p
    assert msb.leftovers() == []
