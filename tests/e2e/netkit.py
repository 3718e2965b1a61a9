"""A small internet in network namespaces of the test's own: nothing of it touches the machine's network.

    with netkit.Internet(tmp) as net:           two namespaces: the host's, where msb runs, and the world
        m = net.msb(home)                       drives msb inside the host's namespace
        with net.capture() as seen: ...         every packet that left the host, or moved on its loopback

The world has public addresses (what the product takes for public: not the documentation ranges), and
behind them real servers: dnsmasq, HTTP and HTTPS with an authority of the test's own, git, an apt
repository, a pip index, and the command server of tests/net (networld.py). It also has private,
link-local and metadata addresses with the same servers, so that what is refused would have worked.
Takes root; Unavailable says what is missing.
"""
import contextlib
import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zipfile

import imagekit
from conftest import SLOW, Msb, wait_for
from imagekit import Unavailable, need, run

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "net"))  # its pieces are used here, too
GUEST = (HERE.parent / "net" / "guest.py").read_text()
PROBES = (HERE.parent / "net" / "probes.py").read_text()
PYTHON = "/usr/bin/python3"

HOST, HOST6 = "93.184.216.2", "2606:2800:220:1::2"
WEB, WEB6 = "93.184.216.34", "2606:2800:220:1::34"    # example.com and below
OTHER, OTHER6 = "93.184.216.35", "2606:2800:220:1::35"  # other.org
MIRROR = "93.184.216.80"                              # mirror.example.com: git, apt, pip
DNS, DNS6 = "93.184.216.53", "2606:2800:220:1::53"
DEAD = "93.184.216.99"                                # nothing answers there, not even ARP
METADATA = "169.254.169.254"
PRIVATE = ["10.9.9.9", "172.16.5.5", "192.168.7.7", "100.64.1.1"]
PRIVATE6 = "fd99::9"
COMMANDS = 7000  # the port of the command server of tests/net
ECHO = 7001      # UDP

ZONE = f"""
host-record=example.com,{WEB},{WEB6}
host-record=www.example.com,{WEB},{WEB6}
host-record=other.org,{OTHER},{OTHER6}
host-record=mirror.example.com,{MIRROR}
host-record=short.example.com,{WEB},1
host-record=four.example.com,{WEB}
host-record=six.example.com,{WEB6}
host-record=zero.example.com,0.0.0.0
host-record=loop.example.com,127.0.0.1
host-record=ten.example.com,10.9.9.9
host-record=link.example.com,169.254.7.7
host-record=meta.example.com,{METADATA}
host-record=ula.example.com,{PRIVATE6}
host-record=mapped.example.com,::ffff:127.0.0.1
host-record=nat64.example.com,64:ff9b::7f00:1
host-record=loop6.example.com,::1
host-record=half.example.com,{WEB},{PRIVATE6}
host-record=mixed.example.com,{WEB}
host-record=mixed.example.com,10.9.9.9
cname=alias.example.com,four.example.com
cname=inward.example.com,ten.example.com
cname=elsewhere.example.com,other.org
txt-record=txt.example.com,secret
mx-host=example.com,mirror.example.com,10
"""


def in_namespace(pid, fn, *args):
    """fn(*args) in a thread that is in that process's network namespace; sockets stay there."""
    result = []

    def work():
        fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(fd, 0x40000000) != 0:  # CLONE_NEWNET
                raise OSError(ctypes.get_errno(), "setns")
            result.append((fn(*args), None))
        except BaseException as e:
            result.append((None, e))
        finally:
            os.close(fd)

    t = threading.Thread(target=work)
    t.start()
    t.join()
    value, error = result[0]
    if error:
        raise error
    return value


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Packet:
    """What a test asks of a frame."""

    def __init__(self, frame, device):
        self.device, self.frame = device, frame
        self.src = self.dst = ""
        self.proto = self.sport = self.dport = self.flags = 0
        self.payload = b""
        self.housekeeping = False  # neighbors that look for each other
        kind, = struct.unpack("!H", frame[12:14])
        if kind == 0x0800:
            at = 14 + (frame[14] & 15) * 4
            self.proto = frame[23]
            self.src, self.dst = (socket.inet_ntoa(frame[i:i + 4]) for i in (26, 30))
            # the host's kernel tells its own programs that a neighbor is missing
            self.housekeeping = self.proto == 1 and frame[at] == 3 and self.src == self.dst
        elif kind == 0x86DD:
            at = 54
            self.proto = frame[20]
            self.housekeeping = self.proto == 0 or (self.proto == 58 and 130 <= frame[54] <= 143)
            self.src, self.dst = (socket.inet_ntop(socket.AF_INET6, frame[i:i + 16]) for i in (22, 38))
        else:
            self.housekeeping = kind == 0x0806
            return
        if self.proto in (6, 17) and len(frame) >= at + 8:
            self.sport, self.dport = struct.unpack("!HH", frame[at:at + 4])
            head = (frame[at + 12] >> 4) * 4 if self.proto == 6 and len(frame) > at + 13 else 8
            self.flags = frame[at + 13] if self.proto == 6 and len(frame) > at + 13 else 0
            self.payload = frame[at + head:]

    def __repr__(self):
        return f"{self.device}:{self.src}:{self.sport}>{self.dst}:{self.dport}/{self.proto}"


class Capture:
    """All packets on the wire to the world and on the host's loopback, until finish()."""

    def __init__(self, net):
        self.net = net
        self.packets = []
        self.marks = set()
        self.socks = []
        self.threads = []
        for device in ("h0", "lo"):
            s = in_namespace(net.host_pid, self.open, device)
            self.socks.append(s)
            self.threads.append(threading.Thread(target=self.read, args=(s, device), daemon=True))
            self.threads[-1].start()

    @staticmethod
    def open(device):
        s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))  # ETH_P_ALL
        s.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)  # SO_RCVBUFFORCE
        s.bind((device, 0))
        s.settimeout(0.5)
        return s

    def read(self, s, device):
        while s.fileno() >= 0:
            try:
                frame = s.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                return
            p = Packet(frame, device)
            if p.housekeeping:
                continue
            if p.dport == 9 and p.payload.startswith(b"mark "):
                self.marks.add((device, p.payload))
            else:
                self.packets.append(p)

    def finish(self):
        """What was sent until now has been seen when the marks that follow it have."""
        mark = b"mark %d" % time.monotonic_ns()

        def send():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
                for to in (WEB, "127.0.0.1"):
                    s.sendto(mark, (to, 9))

        in_namespace(self.net.host_pid, send)
        wait_for(lambda: {("h0", mark), ("lo", mark)} <= self.marks, timeout=20)
        for s in self.socks:
            s.close()
        for t in self.threads:
            t.join()

    def strays(self):
        """All but the last words of earlier tests' connections to the command server."""
        return [p for p in self.packets if WEB not in (p.src, p.dst) or COMMANDS not in (p.sport, p.dport)]

    def to(self, *addresses, port=None):
        """Packets from the host to these addresses."""
        return [p for p in self.packets if p.dst in addresses and (port is None or p.dport == port)]

    def with_bytes(self, data):
        return [p for p in self.packets if data in p.payload]


class Internet:
    """The two namespaces and everything in them; gone with its context."""

    def __init__(self, directory):
        if os.geteuid() != 0:
            raise Unavailable("network namespaces with addresses of their own take root")
        need("ip", "unshare", "nsenter", "dnsmasq", "openssl", "git", "dpkg-deb", "dpkg-scanpackages")
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="internet-", dir=directory))
        self.started = []
        self.ca, self.cert, self.key = imagekit.make_ca(
            self.dir, "subjectAltName=DNS:example.com,DNS:*.example.com,DNS:other.org")
        try:
            self.make_namespaces()
            self.make_site()
            self.start_servers()
        except BaseException:
            self.close()
            raise

    # --- namespaces ---

    def start(self, *cmd, **kw):
        """A process that dies with this one."""
        kw.setdefault("stdin", subprocess.DEVNULL)
        p = subprocess.Popen([str(c) for c in cmd], preexec_fn=die_with_parent, **kw)
        self.started.append(p)
        return p

    def holder(self):
        """A process that keeps a network and a mount namespace; its pid."""
        p = self.start("unshare", "-n", "-m", "--propagation", "private", "sh", "-c",
                       "echo ready; exec sleep infinity", stdout=subprocess.PIPE)
        if p.stdout.readline() != b"ready\n":
            raise Unavailable("unshare: this machine lets nobody make a network namespace")
        return p.pid

    @staticmethod
    def enter(pid):
        return ["nsenter", f"--net=/proc/{pid}/ns/net", f"--mount=/proc/{pid}/ns/mnt", "--"]

    def in_host(self, *cmd):
        return run(*self.enter(self.host_pid), *cmd)

    def in_world(self, *cmd):
        return run(*self.enter(self.world_pid), *cmd)

    def make_namespaces(self):
        self.host_pid, self.world_pid = self.holder(), self.holder()
        self.in_host("ip", "link", "add", "h0", "type", "veth", "peer", "name", "w0", "netns",
                     self.world_pid)
        host = ["link set lo up", "link set h0 up", f"addr add {HOST}/24 dev h0",
                f"addr add {HOST6}/64 dev h0 nodad", "route add default via 93.184.216.1",
                "route add default via 2606:2800:220:1::1"]
        world = ["link set lo up", "link set w0 up", "addr add 93.184.216.1/24 dev w0",
                 "addr add 2606:2800:220:1::1/64 dev w0 nodad"]
        world += [f"addr add {a}/24 dev w0" for a in (WEB, OTHER, MIRROR, DNS)]
        world += [f"addr add {a}/64 dev w0 nodad" for a in (WEB6, OTHER6, DNS6)]
        world += [f"addr add {a}/32 dev lo" for a in (METADATA, *PRIVATE)]
        world += [f"addr add {PRIVATE6}/128 dev lo nodad"]
        for enter, lines in ((self.in_host, host), (self.in_world, world)):
            (self.dir / "batch").write_text("\n".join(lines) + "\n")
            enter("ip", "-batch", self.dir / "batch")
        # Anybody may ping, as Debian has it; and it takes no seconds to see that a neighbor is missing.
        self.in_host("sh", "-ec", "echo 0 2147483647 >/proc/sys/net/ipv4/ping_group_range; "
                     "for v in 4 6; do cd /proc/sys/net/ipv$v/neigh/h0; echo 1 >mcast_solicit; "
                     "echo 100 >retrans_time_ms; done")
        (self.dir / "resolv.conf").write_text(f"nameserver {DNS}\n")
        self.in_host("mount", "--bind", self.dir / "resolv.conf", "/etc/resolv.conf")

    def block(self, address):
        """The world loses an address: packets to it go nowhere, without any error."""
        self.in_world("ip", "addr", "del", f"{address}/24", "dev", "w0")
        self.in_host("ip", "route", "replace", "blackhole", f"{address}/32")

    # --- servers ---

    def make_site(self):
        """What the web servers serve: a repository for git, one for apt, one for pip."""
        site = self.dir / "site"
        site.mkdir()
        work = self.dir / "work"
        work.mkdir()
        (work / "README").write_text("a test\n" * 2000)
        git = ["git", "-C", work, "-c", "user.name=t", "-c", "user.email=t@example.com"]
        run(*git, "init", "-q", "-b", "main")
        run(*git, "add", ".")
        run(*git, "commit", "-q", "-m", "first")
        run("git", "clone", "-q", "--bare", work, site / "repo.git")
        run("git", "-C", site / "repo.git", "update-server-info")
        self.make_deb(site / "apt")
        self.make_wheel(site / "simple" / "tinything")

    def make_deb(self, apt):
        tree = self.dir / "deb"
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "DEBIAN" / "control").write_text(
            "Package: tinything\nVersion: 1.0\nArchitecture: all\nMaintainer: t <t@example.com>\n"
            "Description: a test\n")
        (tree / "usr/share/tinything").mkdir(parents=True)
        (tree / "usr/share/tinything/hello").write_text("installed by apt\n")
        apt.mkdir()
        run("dpkg-deb", "--root-owner-group", "--build", tree, apt / "tinything_1.0_all.deb")
        (apt / "Packages").write_text(
            subprocess.run(["dpkg-scanpackages", "--multiversion", "."], cwd=apt, check=True,
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout)

    @staticmethod
    def make_wheel(d):
        d.mkdir(parents=True)
        name = "tinything-1.0-py3-none-any.whl"
        files = {"tinything.py": "value = 'installed by pip'\n",
                 "tinything-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tinything\nVersion: 1.0\n",
                 "tinything-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: t\n"
                                                  "Root-Is-Purelib: true\nTag: py3-none-any\n"}
        files["tinything-1.0.dist-info/RECORD"] = "".join(f"{n},,\n" for n in files)
        with zipfile.ZipFile(d / name, "w") as z:
            for n, text in files.items():
                z.writestr(n, text)
        (d / "index.html").write_text(f'<a href="{name}">{name}</a>\n')

    def start_servers(self):
        self.hosts = self.dir / "hosts"
        self.hosts.write_text("")
        self.dns_log = self.dir / "dns.log"
        (self.dir / "dnsmasq.conf").write_text(
            f"no-resolv\nno-hosts\nlocal=/#/\nlocal-ttl=30\nbind-interfaces\nuser=root\n"
            f"listen-address={DNS},{DNS6}\naddn-hosts={self.hosts}\nlog-queries\n"
            f"log-facility={self.dns_log}\npid-file=\n{ZONE}" +
            "".join(f"host-record=big.example.com,93.184.{i}.7\n" for i in range(100, 140)))
        self.dnsmasq = self.start(*self.enter(self.world_pid), "dnsmasq", "-k", "-C",
                                  self.dir / "dnsmasq.conf")
        daemon = pathlib.Path(run("git", "--exec-path").strip()) / "git-daemon"  # no wrapper to outlive
        self.start(*self.enter(self.world_pid), daemon, "--export-all", "--reuseaddr",
                   f"--base-path={self.dir / 'site'}", f"--listen={MIRROR}",
                   stderr=subprocess.DEVNULL)
        self.requests_file = self.dir / "requests"
        self.serve("world", self.world_pid)
        self.serve("host", self.host_pid)
        wait_for(lambda: self.dns_log.exists() and "started" in self.dns_log.read_text(), timeout=20)

    def serve(self, role, pid, *addresses):
        """The servers of networld.py, on these addresses or all that there are."""
        p = self.start(*self.enter(pid), PYTHON, HERE / "networld.py", role, self.dir, *addresses,
                       stdout=subprocess.PIPE)
        line = p.stdout.readline()
        if line != b"ready\n":
            raise RuntimeError(f"networld.py {role} did not start")
        return p

    def requests(self):
        """(address it came to, Host, path) of every request that a web server has seen."""
        text = self.requests_file.read_text() if self.requests_file.exists() else ""
        return [tuple(json.loads(line)) for line in text.splitlines()]

    def asked(self, name):
        """The types for which the name server was asked about a name."""
        return re.findall(rf"query\[(\w+)\] {re.escape(name)} from", self.dns_log.read_text())

    def set_hosts(self, lines):
        """What some names are from now on."""
        self.hosts.write_text(lines)
        before = self.dns_log.read_text().count(str(self.hosts))
        self.dnsmasq.send_signal(signal.SIGHUP)
        wait_for(lambda: self.dns_log.read_text().count(str(self.hosts)) > before, timeout=20)

    # --- what tests use ---

    def msb(self, home):
        return NetMsb(self, home)

    def connect(self, address, port, where=None, timeout=20 * SLOW):
        """A client's connection from the host, or the world."""
        return in_namespace(where or self.host_pid, socket.create_connection, (address, port), timeout)

    @contextlib.contextmanager
    def capture(self):
        c = Capture(self)
        yield c
        c.finish()

    def close(self):
        for p in reversed(self.started):
            if p.poll() is None:
                p.kill()
            p.wait()
            if p.stdout:
                p.stdout.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


class NetMsb(Msb):
    """msb in the host's namespace."""

    def __init__(self, net, home):
        super().__init__(home)
        self.net = net

    def command(self, args):
        return [*self.net.enter(self.net.host_pid), *super().command(args)]

    def python(self, name, script, *args, env=(), **kw):
        """Runs a Python program in a sandbox; the lines that it printed."""
        kw.setdefault("timeout", 120)
        options = [o for e in env for o in ("-e", e)]
        text = self.ok("exec", "-q", *options, name, "--", "python3", "-", *args,
                       input=script.encode(), **kw)
        return text.splitlines()

    def probe(self, name, script, **kw):
        """Runs lines that use tests/net/probes.py in a sandbox."""
        return self.python(name, PROBES + script, **kw)

    def guest(self, name, mode, port, *args, host=WEB, **kw):
        """Runs a mode of tests/net/guest.py in a sandbox; what it returned."""
        lines = self.python(name, GUEST, mode, port, *args, env=[f"NET_PEER={host}"], **kw)
        return json.loads(lines[-1])

    def start_guest(self, name, mode, port, *args, host=WEB):
        """The same, left running; its first line is "ready" if the mode says so."""
        p = self.popen("exec", "-q", "-e", f"NET_PEER={host}", name, "--", "python3", "-c", GUEST, mode,
                       port, *args, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        return p

    def trust(self, name):
        """The sandbox's programs trust the test's authority."""
        self.ok("exec", "-q", name, "--", "sh", "-c", "cat >>/etc/ssl/certs/ca-certificates.crt",
                input=self.net.ca.read_bytes())
