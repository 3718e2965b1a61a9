"""A guest whose root means harm, with its card in its own hands: nothing leaves that should not, the
monitor lives, the guest's own network goes on, and other sandboxes notice nothing."""
import pathlib
import subprocess

import pytest

import netkit  # makes tests/net importable
import attacks
from conftest import wait_for
from netkit import COMMANDS, DNS, ECHO, HOST, METADATA, OTHER, PRIVATE, WEB, WEB6

FRAMES = (netkit.HERE.parent / "net" / "frames.py").read_text()


@pytest.fixture(scope="module")
def evil(net_msb):
    """Two sandboxes: one that is hostile, one that must not notice."""
    net_msb.create("evil", "net-guest:1")
    net_msb.create("good", "net-guest:1")
    return net_msb


@pytest.fixture
def attack(evil, internet):
    """Runs lines with frames.py in the hostile sandbox, then sees that all is well."""
    def run(script, allowed=()):
        pids = {name: evil.monitor_pid(name) for name in ("evil", "good")}
        with internet.capture() as seen:
            out = evil.probe("evil", FRAMES + script)
        strays = [p for p in seen.packets if p.src in (HOST, netkit.HOST6) and p.dst not in (DNS, *allowed)]
        assert strays == [], strays[:20]
        spoofed = [p for p in seen.packets if p.src and p.device == "h0"
                   and not p.src.startswith(("93.184.216.", "2606:2800:220:1:", "fe80:"))]
        assert spoofed == [], spoofed[:20]
        for name, pid in pids.items():
            assert evil.probe(name, f'show(get("{WEB}", "well"), resolve("four.example.com"))') == \
                [f"world {WEB} well [0, '{WEB}']"]
            assert evil.monitor_pid(name) == pid
        return out, seen
    return run


def test_spoofed_sources(attack):
    """Other MACs, other addresses: none of it is believed, not even for what would be allowed."""
    attack(attacks.SPOOFED)


def test_arp_lies(attack, evil):
    """Claims to be the gateway, or anybody; and questions after everybody."""
    out, _ = attack(attacks.ARP)
    assert out == ["True"]


def test_malformed_frames(attack):
    """Every cut and many a flip of frames that were good; the flips may well make another good one."""
    out, _ = attack(attacks.MALFORMED)
    assert out == ["True"]


def test_fragments(attack):
    """Overlapping, endless, never complete, and of what must not be in pieces."""
    attack(attacks.FRAGMENTS)


def test_segments_of_nonsense(attack):
    """All flags, odd lengths, numbers from nowhere, on flows that are there and on none."""
    out, _ = attack(f"""
for flags in range(256):
    send(eth(tcp("10.9.9.9", 80, flags=flags)))
    send(eth(tcp("{WEB}", {COMMANDS}, flags=flags | 1, sport=2000, seq=flags, payload=b"x")))
for offset in range(16):
    send(eth(tcp("10.9.9.9", 80, offset=offset)))
for options in (b"\\2\\0\\0\\0", b"\\2\\4\\0\\0", b"\\3\\3\\xff\\0", b"\\3\\3\\x0e\\0", b"\\x05\\x28" + bytes(38), b"\\xff\\xff" + bytes(2)):
    send(eth(tcp("10.9.9.9", 80, options=options)))
send(eth(tcp("10.9.9.9", 0)))
send(eth(tcp("10.9.9.9", 80, flags=0x22, urgent=65535, payload=b"u" * 100)))
# A flow that is there, and everything that does not belong to it.
s = socket.create_connection(("{WEB}", {COMMANDS}), timeout=30)
s.sendall(b"ECHO\\n")
sport = s.getsockname()[1]
for flags in (0, 1, 2, 0x10, 0x11, 0x12, 0x18, 0x29, 0x3f):
    for seq, ack in ((0, 0), (1 << 31, 1 << 31), (0xffffffff, 0xffffffff), (12345, 99)):
        send(eth(tcp("{WEB}", {COMMANDS}, flags=flags, sport=sport, seq=seq, ack=ack, payload=b"zz" * 50,
                     window=0)))
for i in range(100):
    s.sendall(b"%03d" % i)
    got = b""
    while len(got) < 3:
        got += s.recv(3 - len(got))
    assert got == b"%03d" % i
show("unharmed")
""", allowed=(WEB,))
    assert out == ["unharmed"]


def test_a_flood_of_connections(attack, evil, internet):
    """65,000 half-open connections, to a server and to nobody: bounded, and over when it stops."""
    monitor = evil.monitor_pid("evil")
    before = len(list(pathlib.Path(f"/proc/{monitor}/fd").iterdir()))
    out, seen = attack(f"""
def drain():
    try:
        while True:
            card.recv(2000)
    except OSError:
        pass
for port in range(1, 65001):
    send(eth(tcp("{netkit.DEAD}" if port % 2 else "{WEB}", {COMMANDS}, sport=port, seq=port)))
    if port % 500 == 0:
        drain()
show(sent >= 65000)
""", allowed=(WEB, netkit.DEAD))
    assert out == ["True"]
    assert len({p.sport for p in seen.to(WEB, netkit.DEAD) if p.flags == 2}) < 65000
    wait_for(lambda: len(list(pathlib.Path(f"/proc/{monitor}/fd").iterdir())) < before + 300, timeout=60)


def test_a_flood_of_datagrams(attack, evil):
    """More flows of UDP than there is room for: the oldest go, and the host has no more sockets."""
    monitor = evil.monitor_pid("evil")
    out, _ = attack(f"""
s = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(900)]
for x in s:
    x.sendto(b"flood", ("{WEB}", {ECHO}))
for port in range(1, 20001):
    send(eth(udp4("{WEB}", {ECHO}, b"flood", sport=port)))
show(udp("{WEB}", {ECHO}))
""", allowed=(WEB,))
    assert out == ["ping"]
    assert len(list(pathlib.Path(f"/proc/{monitor}/fd").iterdir())) < 700


def test_a_scan_of_the_host_and_its_neighbours(attack):
    """Every well-known port of the gateway, and private ranges: no open one, and no packet."""
    out, seen = attack(f"""
import concurrent.futures
targets = [(GATEWAY, p) for p in [*range(1, 1025), {COMMANDS}, 8080, 2375, 5432, 6379] if p != 53]
targets += [(a, p) for a in {PRIVATE + [METADATA, HOST]} for p in (22, 80, 443, {COMMANDS})]
targets += [(f"10.{{i}}.0.1", 80) for i in range(256)] + [(f"192.168.{{i}}.1", 80) for i in range(256)]
with concurrent.futures.ThreadPoolExecutor(16) as pool:
    show(sorted(set(pool.map(lambda t: connect(*t), targets))))
# and with frames to what the guest's own kernel would keep to itself
for a in ("127.0.0.1", "127.0.0.53", "0.0.0.0", "255.255.255.255", "224.0.0.1", "224.0.0.251", "239.255.255.250"):
    for port in (22, 53, 80, 1900, 5353, {COMMANDS}):
        send(eth(tcp(a, port)))
        send(eth(udp4(a, port, b"M-SEARCH * HTTP/1.1")))
    send(eth(ip4(b"\\x08\\0\\xf7\\xfd\\0\\1\\0\\1", 1, a)))
""")
    assert out == ["['ECONNREFUSED']"]
    assert seen.strays() == []


def test_ipv6_nonsense(attack):
    """Neighbor and router messages, extension headers, multicast, link-local and mapped addresses."""
    attack(attacks.IPV6)


def test_offloads_that_lie(attack):
    """The card's own header in front of frames: sizes, offsets and kinds that do not fit them."""
    attack(attacks.OFFLOADS)


def test_streams_that_nobody_reads(evil):
    """A guest that does not read, and a server that does not: others go on, memory stays bounded."""
    monitor = evil.monitor_pid("evil")
    got = evil.guest("evil", "never_read", COMMANDS, 8 << 20)
    assert got["n"] == 8 << 20 and got["stuck"] < 64 << 20
    rss = int(pathlib.Path(f"/proc/{monitor}/statm").read_text().split()[1]) * 4096
    assert rss < 400 << 20
    assert evil.guest("good", "download", COMMANDS, 4 << 20)["n"] == 4 << 20


def test_a_server_that_is_lost(evil, internet):
    """Its network goes away in mid-flow. What is sent waits, others go on, and closing ends it."""
    lost = "93.184.216.36"
    internet.in_world("ip", "addr", "add", f"{lost}/24", "dev", "w0")
    server = internet.serve("extra", internet.world_pid, lost)
    monitor = evil.monitor_pid("evil")
    p = evil.popen("exec", "-q", "evil", "--", "python3", "-c", f"""
import socket, struct, sys
s = socket.create_connection(("{lost}", {COMMANDS}))
s.sendall(b"SINK\\n" + bytes(1 << 20))
print("going", flush=True)
sys.stdin.readline()
s.settimeout(1)
try:
    while True:
        s.sendall(bytes(1 << 20))
except TimeoutError:
    print("stuck", flush=True)
sys.stdin.readline()
s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
s.close()
""", stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def flows():
        with open(f"/proc/{internet.host_pid}/net/tcp") as f:
            return f.read().count(f"24D8B85D:{COMMANDS:04X} 01")

    assert p.stdout.readline() == b"going\n" and flows() == 1
    internet.block(lost)
    p.stdin.write(b"\n")
    p.stdin.flush()
    assert p.stdout.readline() == b"stuck\n"
    assert evil.guest("good", "upload", COMMANDS, 4 << 20)["n"] == 4 << 20
    assert evil.guest("evil", "download", COMMANDS, 4 << 20)["n"] == 4 << 20
    assert flows() == 1
    p.stdin.close()
    assert p.wait(20) == 0
    wait_for(lambda: flows() == 0, timeout=60)
    assert evil.monitor_pid("evil") == monitor
    server.kill()
    server.wait()
    internet.in_host("ip", "route", "del", "blackhole", f"{lost}/32")


def test_a_server_that_always_resets(evil):
    assert evil.python("evil", f"""
import socket
n = 0
for _ in range(200):
    s = socket.create_connection(("{WEB}", {COMMANDS}), timeout=30)
    s.sendall(b"RESET\\n")
    try:
        while s.recv(1 << 20):
            pass
    except ConnectionResetError:
        n += 1
    s.close()
print(n)
""") == ["200"]


def test_tunnels_are_closed_when_names_are_listed(evil, internet):
    """ICMP, QUIC, DNS over TLS and HTTPS, other resolvers: all go to addresses that no name opened."""
    evil.create("listed", "net-guest:1", "--net-rule", "allow@example.com")
    with internet.capture() as seen:
        out = evil.probe("listed", f"""
show(ping("{WEB}"), ping("{WEB6}"), udp("{OTHER}", 443), udp("{DNS}", 53, question("x.evil.net")))
show(connect("{DNS}", 853), connect("{DNS}", 443), connect("{OTHER}", 443), connect("{OTHER}", 22))
""")
    assert "ok" not in out[0] and "ping" not in out[0].split()
    assert out[1] == "ECONNREFUSED ECONNREFUSED ECONNREFUSED ECONNREFUSED"
    assert seen.strays() == []
    evil.ok("rm", "-f", "-q", "listed")
