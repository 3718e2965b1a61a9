"""The host's own addresses: whichever of them it is, and whenever it came, it is the host's."""
import contextlib
import re
import subprocess

import pytest

import netkit
from conftest import wait_for
from netkit import ECHO, HOST, WEB

SECOND, SECOND6 = "93.184.216.77", "2606:2800:220:1::77"  # of the subnet that HOST is in
INNER, INNER2 = "10.77.0.2", "10.77.0.3"                  # one private subnet
LATE, LATE6 = "93.184.216.78", "2606:2800:220:1::78"      # added while a sandbox runs
BROADCAST = "93.184.216.255"


@contextlib.contextmanager
def addresses(internet, *which):
    """The host has these, with the usual servers on them."""
    made = []
    try:
        for a in which:
            command = ["ip", "addr", "add", f"{a}/{64 if ':' in a else 24}", "dev", "h0"]
            internet.in_host(*command, *(["nodad"] if ":" in a else []))
            made.append(a)
        server = internet.serve("host", internet.host_pid, *which)
        try:
            yield
        finally:
            server.kill()
            server.wait()
    finally:
        for a in reversed(made):
            internet.in_host("ip", "addr", "del", f"{a}/{64 if ':' in a else 24}", "dev", "h0")


@pytest.fixture(scope="module")
def second(internet):
    with addresses(internet, SECOND, SECOND6, INNER, INNER2):
        # They are served: the tests below would see it if a sandbox got there.
        for a in (SECOND, SECOND6, INNER, INNER2):
            with internet.connect(a, 80) as s:
                s.sendall(b"GET / HTTP/1.0\r\n\r\n")
                assert s.recv(12).startswith(b"HTTP/")
        yield


def run(net_msb, script, *options):
    net_msb.create("own", "net-guest:1", *options)
    try:
        return net_msb.probe("own", script)
    finally:
        net_msb.ok("rm", "-f", "-q", "own")


ALL = [HOST, SECOND, netkit.HOST6, SECOND6, INNER, INNER2, BROADCAST]
LOOK = f"""
for a in {ALL}:
    show(connect(a), udp(a, {ECHO}), ping(a))
"""


@pytest.mark.parametrize("options", [(), ("--net", "private"), ("--net", "public,private"),
                                     ("--net-rule", "allow@public,allow@private")],
                         ids=["default", "private", "both", "rules"])
def test_no_address_of_the_host_is_open(net_msb, internet, second, options):
    with internet.capture() as seen:
        out = run(net_msb, LOOK, *options)
    for a, line in zip(ALL, out, strict=True):
        tcp, udp, ping = line.split(" ", 2)
        assert tcp in ("ECONNREFUSED", "ENETUNREACH", "EACCES"), (a, line)
        assert udp in ("ECONNREFUSED", "EHOSTUNREACH", "EACCES"), (a, line)
        assert ping.startswith("unreachable") or ping == "EACCES", (a, line)
    sent = [p for p in seen.packets if p.src not in (WEB, netkit.WEB6)]  # it may still end connections of other tests
    assert [p for p in sent if p.device == "lo" or p.dst in ALL] == []


def test_the_host_group_opens_them_all(net_msb, second):
    out = run(net_msb, f"""
for a in {[SECOND, SECOND6, INNER, INNER2]}:
    show(get(a, "x"))
show(get("{WEB}", "x"))
""", "--net", "host")
    assert out == [f"host {a} x" for a in (SECOND, SECOND6, INNER, INNER2)] + ["ECONNREFUSED"]


@pytest.mark.parametrize("a,kind", [(SECOND, "A"), (SECOND6, "AAAA")])
def test_a_name_does_not_lead_to_the_host(net_msb, internet, second, a, kind):
    internet.set_hosts(f"{a} inside.example.com\n")
    out = run(net_msb, f"""
show(resolve("inside.example.com", {kind}), get("{a}", "inside.example.com"))
""", "--net-rule", "allow@inside.example.com")
    internet.set_hosts("")
    assert out == [f"[0, '{a}'] ECONNREFUSED"]


def test_an_address_that_comes_and_goes(net_msb, internet):
    look = f'show(connect("{LATE}"), connect("{LATE6}"))'
    net_msb.create("own", "net-guest:1")
    try:
        before = net_msb.probe("own", look)[0].split()
        assert set(before) <= {"EHOSTUNREACH", "ENETUNREACH"}  # no one has them
        with addresses(internet, LATE, LATE6):
            assert net_msb.probe("own", look) == ["ECONNREFUSED ECONNREFUSED"]
            out = net_msb.probe("own", f'show(udp("{LATE}", {ECHO}), ping("{LATE6}"))')[0]
            assert out.split()[0] in ("ECONNREFUSED", "EHOSTUNREACH", "EACCES"), out
            assert "unreachable" in out
        assert net_msb.probe("own", look)[0].split()[0] == before[0]
    finally:
        net_msb.ok("rm", "-f", "-q", "own")


FLOW = """
import sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(20)
s.connect(("{late}", {echo}))
s.send(b"early")
show("open")
sys.stdin.readline()
try:
    s.send(b"late")
    show(s.recv(100).decode())
except OSError as e:
    show(trouble(e))
"""


def test_a_flow_does_not_become_one_to_the_host(net_msb, internet):
    """Opened to an unused address, used once the host has it."""
    net_msb.create("own", "net-guest:1")
    try:
        script = netkit.PROBES + FLOW.format(late=LATE, echo=ECHO)
        p = net_msb.popen("exec", "-q", "own", "--", "python3", "-c", script,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert p.stdout.readline() == b"open\n"
        with addresses(internet, LATE):
            # Cut; or denied at once, if the host had the address before anybody looked at the datagram.
            wait_for(lambda: re.search(rf"{LATE}.*(cut|denied)", net_msb.ok("net", "log", "own")))
            p.stdin.write(b"go\n")
            p.stdin.flush()
            assert p.stdout.readline().strip() in (b"ECONNREFUSED", b"EHOSTUNREACH", b"EACCES")
            p.stdin.close()
            p.wait()
    finally:
        net_msb.ok("rm", "-f", "-q", "own")


def tunnelled(v4):
    """IPv6 addresses that a translator or a tunnel would take to an IPv4 address."""
    b = [int(x) for x in v4.split(".")]
    hi, lo = b[0] << 8 | b[1], b[2] << 8 | b[3]
    return [f"64:ff9b::{hi:x}:{lo:x}", f"64:ff9b:1::{hi:x}:{lo:x}", f"2002:{hi:x}:{lo:x}::1",
            f"::{hi:x}:{lo:x}", f"2001:0:808:808:0:0:{hi ^ 0xffff:x}:{lo ^ 0xffff:x}",
            f"2606:2800:220:1:0:5efe:{hi:x}:{lo:x}", f"2606:2800:220:1:200:5efe:{hi:x}:{lo:x}"]


def test_tunnels_to_the_host_are_the_host(net_msb, internet, second):
    forms = tunnelled(SECOND) + tunnelled("127.0.0.1") + tunnelled(netkit.METADATA)
    with internet.capture() as seen:
        out = run(net_msb, f"for a in {forms}:\n    show(connect(a))")
    denied = {"ECONNREFUSED", "EACCES", "ENETUNREACH"}
    assert {a: v for a, v in zip(forms, out, strict=True) if v not in denied} == {}
    assert [p for p in seen.strays() if p.dst != netkit.DNS] == []
