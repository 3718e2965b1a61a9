"""What tests of the network's policy run inside a guest, in front of their own lines.

Every probe returns what a program would have seen: text, or the name of an error.
"""
import errno
import http.client
import socket
import ssl
import struct
import time

A, TXT, AAAA, HTTPS, ANY = 1, 16, 28, 65, 255


def gateway():
    for line in open("/proc/net/route").read().splitlines()[1:]:
        f = line.split()
        if f[1] == "00000000" and int(f[2], 16):
            return socket.inet_ntoa(struct.pack("<I", int(f[2], 16)))
    return "10.0.2.2"


GATEWAY = gateway()


def show(*what):
    print(*what, flush=True)


def trouble(e):
    return errno.errorcode.get(e.errno, str(e)) if e.errno else type(e).__name__


def family(addr):
    return socket.AF_INET6 if ":" in addr else socket.AF_INET


# --- names ---

def question(name, kind=A):
    labels = b"".join(bytes([len(l)]) + l.encode() for l in name.split(".") if l)
    return struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", kind, 1)


def skip_name(m, at):
    while m[at] and m[at] < 192:
        at += 1 + m[at]
    return at + (2 if m[at] else 1)


def parse(m):
    """The code of an answer, and the addresses in it."""
    at, found = skip_name(m, 12) + 4, []
    for _ in range(struct.unpack("!H", m[6:8])[0]):
        at = skip_name(m, at)
        kind, _, _, n = struct.unpack("!HHIH", m[at:at + 10])
        data = m[at + 10:at + 10 + n]
        at += 10 + n
        if kind in (A, AAAA):
            found.append(socket.inet_ntop(socket.AF_INET if kind == A else socket.AF_INET6, data))
    return [m[3] & 15, *sorted(found)] + (["truncated"] if m[2] & 2 else [])


def resolve(name, kind=A, server=None, port=53):
    try:
        with socket.socket(family(server or GATEWAY), socket.SOCK_DGRAM) as s:
            s.settimeout(30)
            s.connect((server or GATEWAY, port))
            s.send(question(name, kind))
            return parse(s.recv(65536))
    except OSError as e:
        return trouble(e)


def resolve_tcp(name, kind=A, server=None, port=53):
    try:
        with socket.create_connection((server or GATEWAY, port), timeout=30) as s:
            q = question(name, kind)
            s.sendall(struct.pack("!H", len(q)) + q)
            f = s.makefile("rb")
            n, = struct.unpack("!H", f.read(2))
            return parse(f.read(n))
    except OSError as e:
        return trouble(e)


# --- flows ---

def connect(addr, port=80):
    """How a connect ends."""
    try:
        socket.create_connection((addr, port), timeout=30).close()
        return "ok"
    except OSError as e:
        return trouble(e)


def get(addr, host, port=80, path="/"):
    """The body of an answer over HTTP."""
    try:
        c = http.client.HTTPConnection(addr, port, timeout=30)
        c.request("GET", path, headers={"Host": host})
        return c.getresponse().read().decode().strip()
    except http.client.RemoteDisconnected:
        return "ECONNRESET"
    except OSError as e:
        return trouble(e)


def talk(addr, *pieces, port=80, size=12):
    """The first bytes of an answer to these bytes, sent one piece after the other."""
    try:
        with socket.create_connection((addr, port), timeout=30) as s:
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for p in pieces:
                s.sendall(p)
                time.sleep(0.002 if len(pieces) > 1 else 0)
            return s.recv(size).decode(errors="replace")
    except OSError as e:
        return trouble(e)


def tls(addr, name, port=443, host=None):
    """GET over TLS with that SNI (None: none), accepting any certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection((addr, port), timeout=30) as raw:
            with context.wrap_socket(raw, server_hostname=name) as s:
                s.sendall(f"GET / HTTP/1.0\r\nHost: {host or name}\r\n\r\n".encode())
                return s.recv(12).decode()
    except ssl.SSLEOFError:
        return "ECONNRESET"
    except OSError as e:
        return trouble(e)


def udp(addr, port, data=b"ping", tries=1):
    """The answer to a datagram."""
    try:
        with socket.socket(family(addr), socket.SOCK_DGRAM) as s:
            s.settimeout(30)
            s.connect((addr, port))
            s.send(data)
            return s.recv(65536).decode(errors="replace")
    except OSError as e:
        return trouble(e)


def checksum(data):
    data += b"\0" * (len(data) % 2)
    n = sum(struct.unpack(f"!{len(data) // 2}H", data))
    n = (n & 0xffff) + (n >> 16)
    return ~(n + (n >> 16)) & 0xffff


def ping(addr, payload=b"payload!"):
    """An echo request by a raw socket: "ok", or the kind of ICMP error that came."""
    six = ":" in addr
    with socket.socket(family(addr), socket.SOCK_RAW, 58 if six else 1) as s:
        s.settimeout(30)
        body = struct.pack("!BBHHH", 128 if six else 8, 0, 0, 77, 1) + payload
        if not six:
            body = body[:2] + struct.pack("!H", checksum(body)) + body[4:]
        s.sendto(body, (addr, 0))
        while True:
            m = s.recv(65536)
            m = m if six else m[(m[0] & 15) * 4:]
            if m[0] == (129 if six else 0) and m[4:] == body[4:]:
                return "ok"
            if m[0] == (1 if six else 3):
                return f"unreachable {m[1]}"
