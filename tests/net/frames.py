"""Frames of a hostile guest, made and sent on its card: comes after probes.py.

    send(frame)                         as it is, whatever it is
    eth(...), ip4(...), ip6(...), tcp(...), udp4(...)   parts; every field can lie
"""
import os
import random
import socket
import struct

WEB, HOST, ECHO = "93.184.216.34", "93.184.216.2", 7001  # a public server; the host itself

card = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
card.bind(("eth0", 0))
card.setblocking(False)
MAC = card.getsockname()[4]


def neighbor():
    """The gateway's MAC, which the kernel has once it has talked to it."""
    ping(GATEWAY)
    for line in open("/proc/net/arp").read().splitlines()[1:]:
        f = line.split()
        if f[0] == GATEWAY:
            return bytes.fromhex(f[3].replace(":", ""))
    return b"\xff" * 6


GATEWAY_MAC = neighbor()


def own_address():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect((GATEWAY, 53))
    return s.getsockname()[0]


ME = own_address()
sent = 0


def send(frame):
    global sent
    for _ in range(1000):
        try:
            card.send(frame)
            sent += 1
            return True
        except BlockingIOError:
            time.sleep(0.001)
        except OSError:
            return False  # the guest's own kernel will not have it


def eth(payload, kind=0x0800, src=None, dst=None):
    return (GATEWAY_MAC if dst is None else dst) + (MAC if src is None else src) + struct.pack("!H", kind) + payload


def ip4(payload, proto, dst, src=None, options=b"", total=None, frag=0, ttl=64, vihl=None, ident=1, sum_=None):
    n = 20 + len(options)
    h = struct.pack("!BBHHHBBH4s4s", 0x40 | n // 4 if vihl is None else vihl, 0,
                    n + len(payload) if total is None else total, ident, frag, ttl, proto, 0,
                    socket.inet_aton(src or ME), socket.inet_aton(dst)) + options
    c = checksum(h) if sum_ is None else sum_
    return h[:10] + struct.pack("!H", c) + h[12:] + payload


def pseudo(proto, n, src, dst):
    return socket.inet_aton(src) + socket.inet_aton(dst) + struct.pack("!BBH", 0, proto, n)


def tcp(dst, dport, flags=2, sport=None, src=None, seq=1000, ack=0, payload=b"", offset=None, urgent=0,
        options=b"", window=65535, **ip):
    n = 20 + len(options)
    h = struct.pack("!HHIIBBHHH", sport or random.randrange(1024, 65536), dport, seq, ack,
                    (n // 4 if offset is None else offset) << 4, flags, window, 0, urgent) + options + payload
    c = checksum(pseudo(6, len(h), src or ME, dst) + h)
    return ip4(h[:16] + struct.pack("!H", c) + h[18:], 6, dst, src, **ip)


def udp4(dst, dport, payload=b"", sport=5555, src=None, length=None, **ip):
    h = struct.pack("!HHHH", sport, dport, 8 + len(payload) if length is None else length, 0) + payload
    return ip4(h, 17, dst, src, **ip)


def arp(op, sha, spa, tha, tpa):
    return struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, op, sha, socket.inet_aton(spa), tha,
                       socket.inet_aton(tpa))
