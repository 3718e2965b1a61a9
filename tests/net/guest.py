"""What the tests of the network stack run inside the guest's namespace.

    guest.py MODE PORT [ARG]

Prints one line of JSON, or raises.
"""
import json
import os
import socket
import struct
import sys
import threading
import time
import zlib

GATEWAY = os.environ.get("NET_PEER", "10.0.2.2")
CHUNK = bytes(range(256)) * 1024  # 256 KiB


def connect(port, host=GATEWAY, timeout=60):
    return socket.create_connection((host, port), timeout=timeout)


def read_all(s):
    n = crc = 0
    buf = memoryview(bytearray(1 << 20))
    while k := s.recv_into(buf):
        crc = zlib.crc32(buf[:k], crc)
        n += k
    return n, crc


def upload(port, size):
    """Sends so many bytes, says that it is done, and reads the server's count of them."""
    s = connect(port)
    s.sendall(b"SINK\n")
    crc = n = 0
    while n < size:
        piece = CHUNK[n % 251:][:size - n]
        s.sendall(piece)
        crc = zlib.crc32(piece, crc)
        n += len(piece)
    s.shutdown(socket.SHUT_WR)
    answer = json.loads(s.makefile().readline())
    assert answer == {"n": n, "crc": crc}, (answer, n, crc)
    assert s.recv(1) == b""
    return answer


def download(port, size, host=GATEWAY):
    s = connect(port, host)
    s.sendall(b"SOURCE %d\n" % size)
    s.shutdown(socket.SHUT_WR)
    n, crc = read_all(s)
    assert n == size, n
    return {"n": n, "crc": crc}


def concurrent(port, count):
    """So many connections at once; each echoes something of its own while all are open."""
    socks = [connect(port) for _ in range(count)]
    for i, s in enumerate(socks):
        s.sendall(b"ECHO\n" + b"%08d" % i * 1000)
    for i, s in enumerate(socks):
        got = b""
        while len(got) < 8000:
            k = s.recv(8000 - len(got))
            assert k, (i, len(got))
            got += k
        assert got == b"%08d" % i * 1000, i
    for s in socks:
        s.close()
    return {"count": count}


def short(port, count):
    """One connection after the other, from four threads."""
    errors = []

    def some():
        for _ in range(count // 4):
            try:
                s = connect(port)
                s.sendall(b"SOURCE 100\n")
                n, _crc = read_all(s)
                assert n == 100, n
                s.close()
            except Exception as e:
                errors.append(repr(e))

    threads = [threading.Thread(target=some) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors[:3]
    return {"count": count}


def errno_of(port, host=GATEWAY):
    """What a connect ends with, and after how long."""
    start = time.monotonic()
    try:
        connect(port, host, timeout=20)
        code = 0
    except OSError as e:
        code = e.errno
    return {"errno": code, "seconds": time.monotonic() - start}


def udp(port, count):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(10)
    s.connect((GATEWAY, port))
    for i in range(count):
        m = os.urandom(1 + i * 37 % 1400)
        s.send(m)
        assert s.recv(65536) == m
    big = os.urandom(20000)  # fragments on the way out, one large frame on the way back
    s.send(big)
    assert s.recv(65536) == big
    return {"count": count}


def udp_errno(port, _arg=None):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(10)
    s.connect((GATEWAY, port))
    s.send(b"x")
    try:
        s.recv(100)
        code = 0
    except OSError as e:
        code = e.errno
    return {"errno": code}


def never_read(port, size):
    """An unread stream must not hold up another."""
    stuck = connect(port)
    stuck.sendall(b"SOURCE %d\n" % (1 << 30))
    unread = connect(port)
    unread.sendall(b"STALL\n")
    unread.settimeout(1)
    sent = 0
    try:
        while True:
            sent += unread.send(CHUNK)
    except OSError:
        pass
    result = download(port, size)
    upload(port, size)
    return {**result, "stuck": sent}


def serve(port, _arg):
    """A server inside: echoes until the client has finished, for one client."""
    l = socket.create_server(("0.0.0.0", port))
    print("ready", flush=True)
    s, peer = l.accept()
    n = 0
    while k := s.recv(65536):
        s.sendall(k)
        n += len(k)
    s.close()
    return {"n": n, "peer": peer[0]}


def serve_udp(port, count):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("0.0.0.0", port))
    print("ready", flush=True)
    for _ in range(count):
        m, peer = s.recvfrom(65536)
        s.sendto(m, peer)
    return {"peer": peer[0]}


def half_close(port, _arg):
    """The server finishes first; the guest continues to send, and its data arrives."""
    s = connect(port)
    s.sendall(b"HALF\n")
    assert read_all(s)[0] == 5
    total = 0
    for _ in range(20):
        s.sendall(CHUNK)
        total += len(CHUNK)
    s.shutdown(socket.SHUT_WR)
    return {"n": total}


def reset(port, _arg):
    """The server resets in mid-flow: the guest must hear of it."""
    s = connect(port)
    s.sendall(b"RESET\n")
    try:
        read_all(s)
        return {"errno": 0}
    except OSError as e:
        return {"errno": e.errno}


def aborts(port, count):
    """Connections that the guest resets: the server sees resets, and nothing is left over."""
    for _ in range(count):
        s = connect(port)
        s.sendall(b"SOURCE 10000000\n")
        s.recv(10)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()
    return {"count": count}


def ping(_port, _arg):
    """Echo requests on a raw socket, to the gateway, over IPv4."""
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    s.settimeout(10)
    body = struct.pack("!BBHHH", 8, 0, 0, 77, 1) + b"payload!"
    sum_ = sum(struct.unpack(f"!{len(body) // 2}H", body))
    sum_ = (sum_ & 0xffff) + (sum_ >> 16)
    body = body[:2] + struct.pack("!H", ~sum_ & 0xffff) + body[4:]
    s.sendto(body, (GATEWAY, 0))
    answer = s.recv(1000)[20:]
    assert answer[0] == 0 and answer[4:] == body[4:], answer
    return {}


def beside_bulk(port, rounds):
    """Small exchanges beside eight streams each way that never pause."""
    stop = threading.Event()

    def pull():
        s = connect(port)
        s.sendall(b"SOURCE %d\n" % (1 << 40))
        while not stop.is_set():
            s.recv(1 << 20)
        s.close()

    def push():
        s = connect(port)
        s.sendall(b"SINK\n")
        while not stop.is_set():
            s.sendall(CHUNK)
        s.close()

    threads = [threading.Thread(target=f) for f in (pull, push) * 8]
    for t in threads:
        t.start()
    s = connect(port)
    s.sendall(b"ECHO\n")
    for i in range(rounds):
        s.sendall(b"%08d" % i)
        got = b""
        while len(got) < 8:
            got += s.recv(8 - len(got))
        assert got == b"%08d" % i
    stop.set()
    for t in threads:
        t.join()
    return {"rounds": rounds}


MODES = {f.__name__: f for f in (
    upload, download, concurrent, short, errno_of, udp, udp_errno, never_read, serve, serve_udp,
    half_close, reset, aborts, ping, beside_bulk)}


def main():
    mode, port = sys.argv[1], int(sys.argv[2])
    args = []
    if len(sys.argv) > 3:
        args = [int(sys.argv[3]) if sys.argv[3].isdigit() else sys.argv[3]]
    elif mode in ("serve", "half_close", "reset", "ping"):
        args = [None]
    print(json.dumps(MODES[mode](port, *args)), flush=True)


main()
