"""The policy with real programs on both sides: what a guest tries, and what leaves the sandbox."""
import json
import os
import pathlib
import subprocess

import pytest

from test_stack import can_run

HERE = pathlib.Path(__file__).parent
STACK = os.environ.get("TAP_STACK", "build/tests/net/tap_stack")

pytestmark = pytest.mark.skipif(not can_run(), reason="needs root and /dev/net/tun")

GUEST = r"""
import errno, http.client, socket, struct, time
def question(name):
    labels = b"".join(bytes([len(l)]) + l.encode() for l in name.split("."))
    return struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + labels + b"\0\0\1\0\1"
def parse(m):
    return [m[3] & 15, socket.inet_ntoa(m[-4:]) if struct.unpack("!H", m[6:8])[0] else None]
def resolve(name):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(10)
    s.sendto(question(name), ("10.0.2.2", 53))
    return parse(s.recv(4096))
def resolve_tcp(name):
    s = socket.create_connection(("10.0.2.2", 53), timeout=10)
    q = question(name)
    s.sendall(struct.pack("!H", len(q)) + q)
    n, = struct.unpack("!H", s.recv(2))
    return parse(s.recv(n))
def get(addr, host, port=80):
    try:
        c = http.client.HTTPConnection(addr, port, timeout=10)
        c.request("GET", "/", headers={"Host": host})
        return c.getresponse().read().decode()
    except ConnectionRefusedError:
        return "refused"
    except (ConnectionResetError, http.client.RemoteDisconnected):
        return "reset"
    except OSError as e:
        return errno.errorcode.get(e.errno, str(e))
def talk(addr, data, port=80):
    s = socket.create_connection((addr, port), timeout=10)
    s.sendall(data)
    try:
        return s.recv(12).decode()
    except ConnectionResetError:
        return "reset"
def show(*what):
    print(*what, flush=True)
"""


def run(rules, script, *options):
    """Runs a script in the guest; the lines it printed, and what the world outside has seen."""
    p = subprocess.run(["/usr/bin/python3", str(HERE / "world.py"), os.path.abspath(STACK), "--rules",
                        rules, "--resolver", "93.184.216.53:53", *options, "--", "/usr/bin/python3",
                        "-c", GUEST + script], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       text=True, timeout=90)
    assert p.returncode == 0, p.stderr
    world = json.loads(p.stdout.splitlines()[-1])
    assert world["code"] == 0, (p.stderr, world)
    return world["out"], world


def test_a_listed_name_and_nothing_else():
    out, world = run("allow@example.com", """
show(get("93.184.216.34", "example.com"))   # before it was resolved here
show(resolve("example.com"))
show(get("93.184.216.34", "example.com"))
show(get("93.184.216.34", "other.org"))     # another name at the same address
show(get("93.184.216.35", "example.com"))   # another address
show(resolve("other.org"), resolve("secret.tunnel.example.net"))
show(get("10.9.9.9", "example.com"), get("10.0.2.2", "example.com"))
""")
    assert out == ["refused", "[0, '93.184.216.34']", "example.com", "reset", "refused",
                   "[3, None] [3, None]", "refused refused"]
    assert world["asked"] == ["example.com"]  # no packet for a name that is not listed
    assert world["connections"] == ["93.184.216.34"]  # and no request that was denied


def test_rebinding():
    out, world = run("allow@*.example.com", """
show(resolve("rebind.example.com"))
show(get("127.0.0.1", "x", 81))  # the guest's own loopback
show(resolve_tcp("big.example.com"))
show(get("93.184.216.34", "big.example.com"))
""")
    assert out == ["[3, None]", "refused", "[0, '93.184.216.34']", "big.example.com"]
    assert world["asked"] == ["rebind.example.com", "big.example.com"]


def test_public_by_default_is_public():
    out, _ = run("allow@public", """
show(get("93.184.216.34", "anything.at.all"), get("93.184.216.35", "x"))
show(get("10.9.9.9", "x"), get("10.0.2.2", "x"), get("169.254.169.254", "x"))
show(resolve("other.org"))
""")
    assert out == ["anything.at.all x", "refused refused refused", "[0, '93.184.216.35']"]


def test_the_host_only_if_a_rule_says_so():
    out, _ = run("allow@host:tcp:80", """
show(resolve("host.microsandbox.internal"))
show(get("10.0.2.2", "the-host"), get("93.184.216.34", "x"))
""")
    assert out == ["[0, '10.0.2.2']", "the-host refused"]


@pytest.mark.parametrize("strict", [False, True])
def test_flows_that_show_no_name(strict):
    out, _ = run("allow@example.com", """
show(resolve("example.com"))
show(talk("93.184.216.34", b"GET / HTTP/1.0\\r\\n\\r\\n"))
""", *(["--strict"] if strict else []))
    assert out[1] == ("reset" if strict else "HTTP/1.0 200")


def test_a_name_split_over_segments():
    out, world = run("allow@example.com", """
show(resolve("example.com"))
for host in ("example.com", "other.org"):
    s = socket.create_connection(("93.184.216.34", 80), timeout=10)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for c in f"GET / HTTP/1.0\\r\\nHost: {host}\\r\\n\\r\\n":
        try:
            s.sendall(c.encode())
        except OSError:
            break
        time.sleep(0.002)
    try:
        show(s.recv(12).decode())
    except OSError:
        show("reset")
""")
    assert out[1:] == ["HTTP/1.0 200", "reset"]
    assert world["connections"] == ["93.184.216.34"]
