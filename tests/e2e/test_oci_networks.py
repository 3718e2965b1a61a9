"""Containers of the OCI runtime in network namespaces, their own and those of others."""
import json
import os
import signal
import subprocess
import sys
import types

import pytest

import imagekit
from conftest import need, wait_for
from ocikit import reap, sh

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def test_namespaces(rt):
    """Those of the reported process are new ones for others to join, or those it was told to join."""
    def ns(pid, kind):
        return os.readlink(f"/proc/{pid}/ns/{kind}")

    pause = rt.create("pause", sh("sleep 1000"))
    kinds = {"net": "network", "ipc": "ipc", "uts": "uts"}
    assert all(ns(pause, k) != ns("self", k) for k in kinds)
    join = [{"type": t, "path": f"/proc/{pause}/ns/{k}"} for k, t in kinds.items()]
    app = rt.create("app", sh("sleep 1000"), linux={"namespaces": [*join, {"type": "pid"}, {"type": "mount"}]})
    assert all(ns(app, k) == ns(pause, k) for k in kinds)
    for cid, pid in (("app", app), ("pause", pause)):
        rt("delete", "--force", cid)
        reap(pid)
    assert "cannot be joined" in rt.refused(sh("true"), linux={"namespaces": [{"type": "pid", "path": "/proc/1/ns/pid"}]})


@pytest.fixture
def pod():
    """A network namespace with an interface, as an engine makes one, and the world at its other end."""
    need("ip")
    names = [f"msb-{kind}-{os.getpid()}" for kind in ("pod", "world")]

    def ip(where, *args, check=True):
        return subprocess.run(["ip", "-n", where, *args], check=check, capture_output=True, text=True).stdout

    for name in names:
        subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        inside, world = names
        ip(world, "link", "add", "out", "mtu", "1400", "type", "veth", "peer", "name", "eth0", "netns", inside)
        ip(inside, "link", "set", "eth0", "address", "02:11:22:33:44:55", "mtu", "1400", "up")
        ip(world, "link", "set", "out", "up")
        for where, device, last in ((world, "out", 1), (inside, "eth0", 2)):
            ip(where, "addr", "add", f"10.99.7.{last}/24", "dev", device)
            ip(where, "addr", "add", f"fd99:7::{last}/64", "dev", device, "nodad")
            ip(where, "link", "set", "lo", "up")
        ip(inside, "route", "add", "192.0.2.1", "dev", "eth0")
        ip(inside, "route", "add", "default", "via", "192.0.2.1", "dev", "eth0")
        ip(inside, "neigh", "add", "192.0.2.1", "lladdr", "02:11:22:33:44:66", "dev", "eth0", "nud", "permanent")
        yield types.SimpleNamespace(inside=inside, world=world, ip=ip, spec=[
            {"type": "network", "path": f"/run/netns/{inside}"}, {"type": "pid"}])
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=True)


def run_in(name, *argv, check=True):
    return subprocess.run(["ip", "netns", "exec", name, *argv], check=check, capture_output=True, text=True,
                          timeout=60).stdout


def ping(where, address):
    """Whether an echo request is answered."""
    return subprocess.run(["ip", "netns", "exec", where, imagekit.BUSYBOX, "ping", "-c1", "-W1", address],
                          stdout=subprocess.DEVNULL).returncode == 0


def test_network_of_a_namespace(rt, pod):
    """The guest is at the end of the namespace's interface: its addresses, routes and MTU, and every port, both ways."""
    script = ("echo up >/tmp/up; cat /sys/class/net/eth0/address /sys/class/net/eth0/mtu; ip -o addr; ip route; "
              "ip -6 route; ip neigh; nc -l -p 7000")
    with open(rt.dir / "net.out", "wb") as out:
        rt("create", "--bundle", rt.bundle(sh(script), linux={"namespaces": pod.spec}), "--pid-file",
           rt.dir / "net.pid", "net", stdout=out, stderr=out)
    rt("start", "net")
    said = wait_for(lambda: (t := (rt.dir / "net.out").read_text()).count("192.0.2.1") >= 3 and t)
    assert said.splitlines()[:2] == ["02:11:22:33:44:55", "1400"]
    for line in ("inet 10.99.7.2/24 ", "inet6 fd99:7::2/64 ", "default via 192.0.2.1 dev eth0", "192.0.2.1 dev eth0",
                 "lladdr 02:11:22:33:44:66"):
        assert line in said, (line, said)
    # In: a ping over either protocol, and a connection to any port.
    for address in ("10.99.7.2", "fd99:7::2"):
        wait_for(lambda: ping(pod.world, address))
    client = "import socket; s = socket.create_connection(('10.99.7.2', 7000)); s.sendall(b'x' * 100000 + b'end'); s.close()"
    wait_for(lambda: run_in(pod.world, sys.executable, "-c", f"try:\n {client}\n print('sent')\nexcept OSError: pass"))
    assert reap(int((rt.dir / "net.pid").read_text())) == 0
    assert (rt.dir / "net.out").read_text().endswith("x" * 100000 + "end")
    rt("delete", "net")
    # The interface is the namespace's own again.
    assert "msb0" not in pod.ip(pod.inside, "link")
    wait_for(lambda: ping(pod.inside, "10.99.7.1"))

    # Out, with frames beyond the MTU left to the host to cut.
    serve = ("import socket; s = socket.create_server(('fd99:7::1', 8099), family=socket.AF_INET6); "
             "print('up', flush=True); c = s.accept()[0]; n = 0\nwhile (k := len(c.recv(65536))): n += k\nprint(n)")
    server = subprocess.Popen(["ip", "netns", "exec", pod.world, sys.executable, "-c", serve], stdout=subprocess.PIPE)
    assert server.stdout.readline() == b"up\n"
    out = rt.run(sh("head -c 3000000 /dev/zero | nc fd99:7::1 8099; grep -c msb0 /proc/net/dev"), check=1,
                 linux={"namespaces": pod.spec})
    assert (out, server.communicate(timeout=20)[0]) == ("0\n", b"3000000\n")
    # One guest at a time, which a pod's containers share; the namespace outlives it.
    kind = "io.kubernetes.cri.container-type"
    rt.create("first", sh("sleep 1000"), linux={"namespaces": pod.spec}, annotations={kind: "sandbox"})
    assert "10.99.7.2" in rt.run(sh("ip -o addr"), linux={"namespaces": pod.spec}, annotations={
        kind: "container", "io.kubernetes.cri.sandbox-id": "first"})
    assert "already has another guest" in rt.refused(sh("true"), linux={"namespaces": pod.spec})
    wait_for(lambda: ping(pod.world, "10.99.7.2"))
    assert not ping(pod.inside, "10.99.7.1")
    rt("delete", "--force", "first")
    wait_for(lambda: ping(pod.inside, "10.99.7.1"))
    assert rt.run(sh("cut -d: -f1 -s /proc/net/dev")).split() == ["lo"]


def test_rules_of_others(rt, pod):
    """Only a redirection of our own is ever removed: not another program's rules, nor in another namespace that has the path by now."""
    need("/usr/sbin/tc")
    tc = lambda where, *args: subprocess.run(["/usr/sbin/tc", "-n", where, *args], check=True, capture_output=True, text=True).stdout
    tc(pod.inside, "qdisc", "add", "dev", "eth0", "ingress")
    tc(pod.inside, "filter", "add", "dev", "eth0", "parent", "ffff:", "protocol", "all", "prio", "5", "u32", "match", "u32", "0", "0", "flowid", ":1")
    assert "rules of another program" in rt.refused(sh("true"), linux={"namespaces": pod.spec})
    assert "pref 5" in tc(pod.inside, "filter", "show", "dev", "eth0", "ingress")
    tc(pod.inside, "qdisc", "del", "dev", "eth0", "ingress")
    link = rt.dir / "netns"
    link.symlink_to(f"/run/netns/{pod.inside}")
    spec = {"namespaces": [{"type": "network", "path": str(link)}]}
    pid = rt.create("lost", sh("sleep 1000"), linux=spec)
    os.kill(pid, signal.SIGKILL)
    reap(pid)
    wait_for(lambda: "msb0" not in pod.ip(pod.inside, "link"))
    assert "mirred" in tc(pod.inside, "filter", "show", "dev", "eth0", "ingress")
    assert "10.99.7.2" in rt.run(sh("ip -o addr"), linux={"namespaces": pod.spec})
    tc(pod.world, "qdisc", "add", "dev", "out", "ingress")
    link.unlink()
    link.symlink_to(f"/run/netns/{pod.world}")
    rt("delete", "lost")
    assert "ingress" in tc(pod.world, "qdisc", "show", "dev", "out")


def test_namespaces_of_older_containers(rt, pod):
    """The state of one that an older msb created has only the path, and its redirection another priority: still msb's own."""
    need("/usr/sbin/tc")
    tc = lambda *args: subprocess.run(["/usr/sbin/tc", "-n", pod.inside, *args], check=True, capture_output=True, text=True).stdout

    def left_by_old():
        tc("qdisc", "add", "dev", "eth0", "ingress")
        tc("filter", "add", "dev", "eth0", "parent", "ffff:", "protocol", "all", "prio", "2", "u32", "match", "u32", "0", "0",
           "action", "mirred", "egress", "redirect", "dev", "lo")

    left_by_old()
    assert "10.99.7.2" in rt.run(sh("ip -o addr"), linux={"namespaces": pod.spec})
    pid = rt.create("old", sh("sleep 1000"), linux={"namespaces": pod.spec})
    os.kill(pid, signal.SIGKILL)
    reap(pid)
    wait_for(lambda: "msb0" not in pod.ip(pod.inside, "link"))
    tc("qdisc", "del", "dev", "eth0", "ingress")
    left_by_old()
    change_netns(rt, "old", lambda netns: netns["path"])
    rt("delete", "old")
    assert "ingress" not in tc("qdisc", "show", "dev", "eth0")


def change_netns(rt, cid, change):
    path = rt.root / "containers" / cid / "state.json"
    state = json.loads(path.read_text())
    state["netns"] = change(state["netns"])
    path.write_text(json.dumps(state))


def test_a_namespace_with_the_inode_of_another(rt, pod):
    """Once a namespace is gone, the next may get its path and inode number: not the container's, and left alone at its delete."""
    need("/usr/sbin/tc")
    show = lambda: run_in(pod.inside, "/usr/sbin/tc", "filter", "show", "dev", "eth0", "ingress")
    pid = rt.create("gone", sh("sleep 1000"), linux={"namespaces": pod.spec})
    os.kill(pid, signal.SIGKILL)
    reap(pid)
    wait_for(lambda: "msb0" not in pod.ip(pod.inside, "link"))
    change_netns(rt, "gone", lambda netns: {**netns, "cookie": 1})  # the first namespace's
    rt("delete", "gone")
    assert "mirred" in show()


def test_a_network_that_is_the_callers_own(rt, pod):
    """As good as none, and so msb's own: the caller's interface stays the caller's, and the node can be reached."""
    bundle = rt.bundle(sh("ip -o addr"), linux={"namespaces": pod.spec})
    out = run_in(pod.inside, rt.exe, "--root", rt.root, "run", "--bundle", bundle, "own")
    assert "eth0" in out and "10.99.7.2" not in out
    assert ping(pod.inside, "10.99.7.1")


def test_filter_of_the_node(rt, pod):
    """Packets pass the node as those of any container: what its filter denies, as for a NetworkPolicy, is denied, in and out."""
    need("/usr/sbin/iptables")
    for chain, way, port in (("INPUT", "-i", "8001"), ("OUTPUT", "-o", "7001")):
        run_in(pod.world, "/usr/sbin/iptables", "-A", chain, way, "out", "-p", "tcp", "--dport", port, "-j", "REJECT",
               "--reject-with", "tcp-reset")
    serve = ("import select, socket; s = [socket.create_server(('10.99.7.1', p)) for p in (8001, 8002)]; print('up', flush=True)\n"
             "while True:\n for l in select.select(s, [], [])[0]:\n  c = l.accept()[0]; c.sendall(b'reached'); c.close()")
    ask = "import socket\ntry: print(socket.create_connection(('10.99.7.2', {}), 20).recv(9))\nexcept OSError as e: print(type(e).__name__)"
    server = subprocess.Popen(["ip", "netns", "exec", pod.world, sys.executable, "-c", serve], stdout=subprocess.PIPE)
    try:
        assert server.stdout.readline() == b"up\n"
        script = "for p in 7001 7002; do nc -ll -p $p -e echo in & done; wait"
        rt.create("filtered", sh(script), linux={"namespaces": pod.spec})
        rt("start", "filtered")
        out = rt("exec", "filtered", "sh", "-c", "for p in 8001 8002; do echo $p $(nc 10.99.7.1 $p </dev/null 2>/dev/null); done").out
        assert out == "8001\n8002 reached\n"
        for port in (7001, 7002):  # both are there
            wait_for(lambda p=port: rt("exec", "filtered", "nc", "127.0.0.1", p, check=None).out == "in\n")
        assert run_in(pod.world, sys.executable, "-c", ask.format(7002)) == "b'in\\n'\n"
        assert run_in(pod.world, sys.executable, "-c", ask.format(7001)) == "ConnectionRefusedError\n"
    finally:
        server.kill()
        server.wait()
        rt("delete", "--force", "filtered")
