"""The network as programs see it: real programs, real servers, nothing special to be said for them."""
import json
import re
import socket
import threading

import pytest

import netkit
from netkit import COMMANDS, ECHO, HOST, WEB, WEB6

MIB = 1 << 20


@pytest.fixture(scope="module")
def box(net_msb):
    """A sandbox with the network that everybody gets; it trusts the test's authority."""
    net_msb.create("box", "net-guest:1", "-m", "768M")
    net_msb.trust("box")
    return net_msb


def sh(m, script, name="box", **kw):
    return m.ok("exec", "-q", name, "--", "bash", "-ec", script, timeout=120, **kw)


# --- programs ---


def test_curl(box):
    out = sh(box, """
        curl -sS4 http://example.com/a
        curl -sS6 http://example.com/a
        curl -sS4 https://www.example.com/a
        curl -sS6 https://example.com/a
        curl -sS4 https://other.org/ --connect-to other.org:443:example.com:443
        curl -sS http://[2606:2800:220:1::34]/
    """)
    assert out.splitlines() == [
        f"world {WEB} example.com", f"world {WEB6} example.com", f"world {WEB} www.example.com",
        f"world {WEB6} example.com", f"world {WEB} other.org", f"world {WEB6} [{WEB6}]"]


def test_a_certificate_of_nobody_is_refused(box):
    p = box("exec", "-q", "box", "--", "curl", "-sS", "--cacert", "/etc/ssl/certs/ISRG_Root_X1.pem",
            "https://example.com/")
    assert p.returncode == 60, p.stderr  # the TLS in between is the server's own


def test_git_clone(box):
    sh(box, """
        cd /tmp
        git clone -q git://mirror.example.com/repo.git by-git
        git clone -q https://mirror.example.com/repo.git by-https
        cmp by-git/README by-https/README
        test $(wc -l <by-git/README) = 2000
    """)


def test_apt_get(box):
    out = sh(box, """
        rm -rf /etc/apt/sources.list /etc/apt/sources.list.d
        echo 'deb [trusted=yes] http://mirror.example.com/apt ./' >/etc/apt/sources.list
        apt-get -qq update
        apt-get -qq -o Dpkg::Use-Pty=0 install -y tinything >/dev/null 2>&1
        cat /usr/share/tinything/hello
    """)
    assert out == "installed by apt\n"


def test_pip_install(box):
    out = sh(box, """
        pip install -q --no-cache-dir --disable-pip-version-check --break-system-packages \
            --root-user-action ignore --index-url https://mirror.example.com/simple/ tinything 2>&1
        python3 -c 'import tinything; print(tinything.value)'
    """)
    assert out.splitlines()[-1] == "installed by pip"


def test_python_urllib(box):
    out = box.python("box", """
import urllib.request
print(urllib.request.urlopen("https://example.com/x", timeout=30).read().decode().strip())
body = bytes(3 << 20)
request = urllib.request.Request("http://four.example.com/post", data=body)
print(urllib.request.urlopen(request, timeout=60).read().decode().strip())
""")
    assert out == [f"world {WEB} example.com", f"world {WEB} four.example.com"]


def test_node_fetch(box):
    out = sh(box, """
        export NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt
        node -e 'fetch("https://example.com/x").then(r => r.text()).then(t => process.stdout.write(t))'
    """)
    assert re.fullmatch(rf"world ({WEB}|{WEB6}) example.com\n", out)


# --- protocols ---


def test_the_guest_is_set_up(box):
    out = sh(box, "ip -o addr show eth0; cat /etc/resolv.conf; cat /sys/class/net/eth0/mtu; "
                  "getent hosts example.com")
    assert "inet " in out and "inet6 fd" in out
    assert "\n1500\n" in out and "example.com" in out
    assert netkit.DNS not in out  # it asks the gateway, which asks the host's resolver


def test_ping(box):
    assert box.probe("box", f"""
show(ping("{WEB}"), ping("{WEB6}"), ping(GATEWAY), ping("{WEB}", bytes(1400)))
""") == ["ok ok ok ok"]


def test_datagrams(box):
    assert box.probe("box", f"""
show(udp("{WEB}", {ECHO}), udp("{WEB6}", {ECHO}), udp("{WEB}", 4999))
for n in (1, 1400, 1472, 1473, 9000, 30000):
    assert udp("{WEB}", {ECHO}, b"x" * n) == "x" * n, n
""") == ["ping ping ECONNREFUSED"]
    assert box.guest("box", "udp", ECHO, 100) == {"count": 100}


def test_streams(box):
    """Half-closed from either side, reset by the server, and refused by it."""
    assert box.guest("box", "upload", COMMANDS, 4 * MIB)["n"] == 4 * MIB  # shut, then answered
    assert box.guest("box", "half_close", COMMANDS)["n"] == 20 * 256 * 1024
    assert box.guest("box", "reset", COMMANDS) == {"errno": 104}
    assert box.guest("box", "aborts", COMMANDS, 5) == {"count": 5}
    assert box.probe("box", f'show(connect("{WEB}", 4999), connect("{WEB6}", 4999))') == \
        ["ECONNREFUSED ECONNREFUSED"]


def test_nobody_home_is_an_error_of_the_network(box):
    """The host's own errors become the guest's: no route, host unreachable."""
    assert box.probe("box", """
show(connect("93.184.216.99"), connect("2606:2800:220:1::99"))
""") == ["EHOSTUNREACH EHOSTUNREACH"]


def test_a_host_without_ipv6(internet, net_msb):
    """What is not there fails at once, and names with both kinds of address still work."""
    net_msb.create("four", "net-guest:1")
    internet.in_host("ip", "-6", "route", "del", "default")
    internet.in_host("ip", "addr", "del", f"{netkit.HOST6}/64", "dev", "h0")
    try:
        assert net_msb.probe("four", f'show(connect("{WEB6}"))') == ["ENETUNREACH"]
        assert sh(net_msb, "curl -sS http://example.com/", "four") == f"world {WEB} example.com\n"
    finally:
        internet.in_host("ip", "addr", "add", f"{netkit.HOST6}/64", "dev", "h0", "nodad")
        internet.in_host("ip", "-6", "route", "add", "default", "via", "2606:2800:220:1::1")
        net_msb.ok("rm", "-f", "-q", "four")


# --- published ports ---


@pytest.fixture(scope="module")
def server(net_msb):
    """A sandbox with ports that lead to its echo server, from here and from the world."""
    net_msb.create("server", "net-guest:1", "-p", "18080:8080", "-p", f"{HOST}:18081:8080",
                   "-p", "[::1]:18082:8080", "-p", "18083:8083/udp", "-p", "18090-18092:8090-8092")
    return net_msb


def exchange(s, data):
    """Sends all of it and reads all that comes back."""
    got = bytearray()
    with s:
        t = threading.Thread(target=lambda: (s.sendall(data), s.shutdown(socket.SHUT_WR)))
        t.start()
        while k := s.recv(1 << 20):
            got += k
        t.join()
    return bytes(got)


@pytest.mark.parametrize("address,port,world", [("127.0.0.1", 18080, False), (HOST, 18081, True),
                                                ("::1", 18082, False)])
def test_a_published_port(server, internet, address, port, world):
    data = bytes(range(256)) * 8192
    p = server.start_guest("server", "serve", 8080)
    assert p.stdout.readline() == b"ready\n"
    s = internet.connect(address, port, internet.world_pid if world else None)
    assert exchange(s, data) == data
    answer = json.loads(p.stdout.readline())
    assert answer["n"] == len(data) and p.wait(20) == 0


def test_a_published_port_that_nobody_serves(server, internet):
    with pytest.raises(ConnectionResetError), internet.connect("127.0.0.1", 18091) as s:
        assert s.recv(1) != b"", "closed without an error"


def test_published_datagrams(server, internet):
    p = server.start_guest("server", "serve_udp", 8083, 20)
    assert p.stdout.readline() == b"ready\n"
    s = netkit.in_namespace(internet.host_pid, socket.socket, socket.AF_INET, socket.SOCK_DGRAM)
    with s:
        s.settimeout(30)
        s.connect(("127.0.0.1", 18083))
        for i in range(20):
            s.send(b"%d" % i)
            assert s.recv(100) == b"%d" % i
    assert p.wait(20) == 0


def test_ports_are_where_they_were_asked_for(server, internet):
    for address, port in ((HOST, 18080), ("127.0.0.1", 18081), ("127.0.0.1", 18082),
                          ("127.0.0.1", 18093)):
        with pytest.raises(ConnectionRefusedError):
            internet.connect(address, port)


def test_a_busy_port_fails_create(server, internet):
    p = server("create", "-q", "-n", "late", "-p", "18080:80", check=1)
    assert b"18080" in p.stderr and b"\n" not in p.stderr.strip().split(b"\n  ")[0], p.stderr
    assert "late" not in server.ok("ls", "-q").split()


def test_a_port_that_the_host_picks(net_msb, internet):
    net_msb.create("any", "net-guest:1", "-p", "0:8080")
    text = net_msb.ok("inspect", "any", "--format", "json")
    port = int(re.search(r'"host(?:_port)?": *(\d+)', text).group(1))
    p = net_msb.start_guest("any", "serve", 8080)
    assert port != 0 and p.stdout.readline() == b"ready\n"
    assert exchange(internet.connect("127.0.0.1", port), b"hello") == b"hello"
    assert p.wait(20) == 0
    net_msb.ok("rm", "-f", "-q", "any")
    with pytest.raises(ConnectionRefusedError):
        internet.connect("127.0.0.1", port)


def test_a_stopped_sandbox_gives_its_ports_back(net_msb, internet):
    net_msb.create("again", "net-guest:1", "-p", "18100:8080")
    net_msb.ok("stop", "-q", "again")
    with pytest.raises(ConnectionRefusedError):
        internet.connect("127.0.0.1", 18100)
    net_msb.ok("start", "-q", "again")
    p = net_msb.start_guest("again", "serve", 8080)
    assert p.stdout.readline() == b"ready\n"
    assert exchange(internet.connect("127.0.0.1", 18100), b"hello") == b"hello"
    assert p.wait(20) == 0
    net_msb.ok("rm", "-f", "-q", "again")


# --- the host, and no network ---


def test_the_host_only_if_the_policy_says_so(box, net_msb):
    name = "host.microsandbox.internal"
    assert box.probe("box", f'show(get("{name}", "x"), connect("{name}", {COMMANDS}))') == \
        ["ECONNREFUSED ECONNREFUSED"]
    net_msb.create("friend", "net-guest:1", "--net", "public,host")
    assert net_msb.probe("friend", f'show(get("{name}", "me"), get("{HOST}", "me"))') == \
        ["host 127.0.0.1 me " + f"host {HOST} me"]
    net_msb.ok("rm", "-f", "-q", "friend")


@pytest.mark.parametrize("flags", [("--no-net",), ("--net", "none")])
def test_no_network(net_msb, internet, flags):
    net_msb.create("alone", "net-guest:1", *flags)
    with internet.capture() as seen:
        out = net_msb.probe("alone", f"""
import os
show(sorted(os.listdir("/sys/class/net")))
show(connect("{WEB}") in ("ENETUNREACH", "ECONNREFUSED"), connect("127.0.0.1"))
try:
    socket.getaddrinfo("example.com", 80)
except OSError:
    show("no name")
""")
    assert out[1:] == ["True ECONNREFUSED", "no name"]
    if flags == ("--no-net",):
        assert out[0] == "['lo']"
    assert seen.strays() == []
    net_msb.ok("rm", "-f", "-q", "alone")


def test_a_sandbox_that_ends_cuts_its_flows(net_msb, internet):
    net_msb.create("brief", "net-guest:1", "-p", "18110:8080")
    p = net_msb.start_guest("brief", "serve", 8080)
    assert p.stdout.readline() == b"ready\n"
    s = internet.connect("127.0.0.1", 18110)
    s.sendall(b"x")
    assert s.recv(1) == b"x"
    net_msb.ok("rm", "-f", "-q", "brief")
    p.wait(20)
    try:
        assert s.recv(1) == b""
    except ConnectionResetError:
        pass
    s.close()


def test_a_lost_resolver(net_msb, internet):
    """A name server that never answers costs the time that was said, and ends in an error."""
    net_msb.create("lost", "net-guest:1", "--dns-nameserver", "93.184.216.34", "--dns-nameserver",
                   "93.184.216.35:5353", "--dns-query-timeout-ms", "300")
    assert net_msb.probe("lost", 'show(resolve("example.com"))') == ["[2]"]
    net_msb.ok("rm", "-f", "-q", "lost")
    net_msb.create("found", "net-guest:1", "--dns-nameserver", f"{WEB}", "--dns-nameserver",
                   f"[{netkit.DNS6}]:53")
    assert net_msb.probe("found", 'show(resolve("four.example.com"))') == [f"[0, '{WEB}']"]
    net_msb.ok("rm", "-f", "-q", "found")


def test_sandboxes_have_networks_of_their_own(net_msb, box):
    """Two guests cannot reach each other, whatever address they try."""
    net_msb.create("peer", "net-guest:1")
    out = sh(net_msb, "ip -o -4 addr show eth0; ip -o -6 addr show eth0 scope global", "peer")
    four, six = re.search(r"inet ([0-9.]+)", out)[1], re.search(r"inet6 ([0-9a-f:]+)", out)[1]
    p = net_msb.start_guest("peer", "serve", 8080)
    assert p.stdout.readline() == b"ready\n"
    out = box.probe("box", f"""
import subprocess
own = subprocess.run(["ip", "-o", "addr"], stdout=subprocess.PIPE, text=True).stdout
for a in ("{four}", "{six}"):
    show(a in own or connect(a, 8080))
""")
    assert set(out) <= {"True", "ECONNREFUSED", "EHOSTUNREACH"}
    p.kill()
    p.wait()
    net_msb.ok("rm", "-f", "-q", "peer")
