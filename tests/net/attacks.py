"""What a hostile guest does with its card: scripts that come after probes.py and frames.py.

None of it may reach anybody: every frame is false, malformed, or for an address that is denied. Run
against the stack alone (test_attacks.py, also with sanitizers) and against sandboxes (tests/e2e).
"""

SPOOFED = """
other = bytes.fromhex("020102030405")
for src in ("1.2.3.4", "10.9.9.9", HOST, WEB, GATEWAY, "127.0.0.1", "0.0.0.0", "255.255.255.255"):
    send(eth(tcp(WEB, 80, src=src)))
    send(eth(udp4(WEB, ECHO, b"spoofed", src=src)))
    send(eth(ip4(b"\\x08\\0\\0\\0\\0\\1\\0\\1", 1, WEB, src=src)))
    send(eth(udp4(GATEWAY, 53, question("four.example.com"), src=src)))
for mac in (other, b"\\xff" * 6, b"\\1" + bytes(5), GATEWAY_MAC, bytes(6)):
    send(eth(tcp(WEB, 80), src=mac))
    send(eth(udp4(WEB, ECHO, b"spoofed"), src=mac))
for mac in (other, bytes(6), MAC):
    send(eth(tcp(WEB, 80), dst=mac))
show(sent)
"""

ARP = """
other = bytes.fromhex("020102030405")
for who in (GATEWAY, "10.0.0.1", "93.184.216.34", ME, "0.0.0.0"):
    for op in (1, 2, 3, 0xffff):
        send(eth(arp(op, other, who, GATEWAY_MAC, GATEWAY), 0x0806))
        send(eth(arp(op, MAC, who, b"\\xff" * 6, who), 0x0806, dst=b"\\xff" * 6))
a = arp(1, MAC, ME, bytes(6), GATEWAY)
for i in range(len(a)):
    send(eth(a[:i], 0x0806))
    send(eth(a[:i] + bytes([a[i] ^ 255]) + a[i + 1:], 0x0806))
# Whom does the wire answer for? Only the gateway.
card.setblocking(True)
card.settimeout(1)
answers = set()
for last in range(1, 255):
    base = ME.rsplit(".", 1)[0]
    send(eth(arp(1, MAC, ME, bytes(6), f"{base}.{last}"), 0x0806, dst=b"\\xff" * 6))
try:
    while True:
        f = card.recv(2000)
        if f[12:14] == b"\\x08\\x06" and f[20:22] == b"\\0\\2" and f[:6] == MAC:
            answers.add(socket.inet_ntoa(f[28:32]))
except OSError:
    pass
show(answers == {GATEWAY})
"""

MALFORMED = """
random.seed(11)
good = [eth(tcp("10.9.9.9", 80, payload=b"x" * 40, options=b"\\2\\4\\5\\xb4")), eth(udp4("10.9.9.9", 53, b"y" * 40)),
        eth(udp4(GATEWAY, 53, question("denied.invalid"))), eth(ip4(b"\\x08\\0\\0\\0" + bytes(40), 1, "10.9.9.9")),
        eth(b"\\x60" + bytes(3) + b"\\0\\x14\\6\\x40" + bytes(15) + b"\\1" + bytes(15) + b"\\2" + bytes(20), 0x86dd)]
for f in good:
    for i in range(14, len(f)):
        send(f[:i])
    for _ in range(300):
        b = bytearray(f)
        for _ in range(random.randrange(1, 5)):
            i = random.choice([*range(12, 16), *range(20, 24), *range(34, len(b))])  # not the addresses
            b[i] = random.randrange(256)
        send(bytes(b))
for kind in (0, 1, 0x05dc, 0x0600, 0x8100, 0x88a8, 0x8863, 0x88cc, 0xffff):
    send(eth(tcp("10.9.9.9", 80), kind))
    send(eth(b"", kind))
    send(eth(os.urandom(1400), kind))
for options in (b"\\x44\\x28" + bytes(38), b"\\x83\\x27\\4" + socket.inet_aton("10.9.9.9") * 9 + b"\\0",
                b"\\7\\x28\\4" + bytes(37), b"\\xff" * 40, b"\\x01" * 40, b"\\x82\\0" + bytes(38)):
    send(eth(tcp("10.9.9.9", 80, options=b"", **{"vihl": 0x4f})[:20] + options + bytes(20)))
for vihl in range(0, 256, 5):
    send(eth(tcp("10.9.9.9", 80, vihl=vihl)))
for total in (0, 19, 20, 21, 39, 41, 1500, 65535):
    send(eth(tcp("10.9.9.9", 80, total=total)))
    send(eth(udp4("10.9.9.9", 80, b"z", total=total)))
for length in (0, 7, 8, 100, 65535):
    send(eth(udp4("10.9.9.9", 7, b"z", length=length)))
for ttl in (0, 1):
    send(eth(tcp("10.9.9.9", 80, ttl=ttl)))
show(sent > 1500)
"""

FRAGMENTS = """
MF = 0x2000
whole = udp4("10.9.9.9", 7, bytes(2992))[20:]
def pieces(ident, *spans, dst="10.9.9.9", proto=17):
    for at, data, more in spans:
        send(eth(ip4(data, proto, dst, frag=(MF if more else 0) | at // 8, ident=ident)))
pieces(1, (0, whole[:1480], True), (1480, whole[1480:], False))
pieces(2, (0, whole[:1480], True), (1000, whole[1000:2000], True), (1480, whole[1480:], False))
pieces(3, (0, whole[:1480], True), (24, whole[:8], False))
pieces(4, (1480, whole[1480:], False), (0, whole[:1480], True))
pieces(5, (65528, bytes(1400), False), (65528, bytes(8), True), (8, bytes(7), True), (0, b"", True))
for i in range(2000):  # never complete
    pieces(i & 0xffff, (random.randrange(0, 60000) & ~7, bytes(64), True))
syn = tcp("10.9.9.9", 80, payload=bytes(80))[20:]
pieces(7, (0, syn[:8], True), (8, syn[8:], False), proto=6)
pieces(8, (0, b"\\x08\\0" + bytes(1400), True), (1408, bytes(100), False), proto=1)
pieces(9, (0, udp4(GATEWAY, 53, question("denied.invalid"))[20:], True), dst=GATEWAY)
"""

IPV6 = r"""
def ip6(payload, nxt, dst, src="fe80::1", hop=255, length=None):
    return (b"\x60\0\0\0" + struct.pack("!HBB", len(payload) if length is None else length, nxt, hop)
            + socket.inet_pton(10, src) + socket.inet_pton(10, dst) + payload)
def icmp6(kind, body, dst, src="fe80::1"):
    m = struct.pack("!BBH", kind, 0, 0) + body
    p = socket.inet_pton(10, src) + socket.inet_pton(10, dst) + struct.pack("!IHBB", len(m), 0, 0, 58)
    m = m[:2] + struct.pack("!H", checksum(p + m)) + m[4:]
    return eth(ip6(m, 58, dst, src), 0x86dd, dst=b"\x33\x33\0\0\0\1")
for kind in range(256):
    send(icmp6(kind, bytes(28), "ff02::1"))
    send(icmp6(kind, bytes(28), "fd99::9"))
send(icmp6(134, b"\x40\0\7\x08" + bytes(8) + b"\3\4\x40\xc0" + b"\xff" * 8 + bytes(4) + socket.inet_pton(10, "fd99::"), "ff02::1"))
for dst in ("fe80::2", "ff02::1", "ff05::2", "::1", "::", "::ffff:127.0.0.1", "::ffff:10.9.9.9", "64:ff9b::a09:909", "fd99::9"):
    for nxt in (0, 6, 17, 43, 44, 50, 51, 58, 59, 60, 135, 255):
        send(eth(ip6(bytes(64), nxt, dst), 0x86dd))
        send(eth(ip6(b"\6\xff" + bytes(62), nxt, dst), 0x86dd))
        send(eth(ip6(b"\x3c\0\1\4\0\0\0\0" * 20, nxt, dst), 0x86dd))
    for length in (0, 1, 39, 65535):
        send(eth(ip6(bytes(64), 17, dst, length=length), 0x86dd))
"""

OFFLOADS = """
SOL_PACKET, PACKET_VNET_HDR = 263, 15
card.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
frame = eth(tcp("10.9.9.9", 80, flags=0x18, payload=bytes(4000)))
for flags in (0, 1, 2, 255):
    for gso in (0, 1, 3, 4, 5, 0x81, 255):
        for size in (0, 1, 7, 1460, 65535):
            for start, offset in ((0, 0), (34, 16), (4000, 16), (65535, 65535), (34, 60000)):
                send(struct.pack("<BBHHHH", flags, gso, 54, size, start, offset) + frame)
show(sent)
"""

ALL = {"spoofed": SPOOFED, "arp": ARP, "malformed": MALFORMED, "fragments": FRAGMENTS, "ipv6": IPV6,
       "offloads": OFFLOADS}
