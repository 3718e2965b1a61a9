#!/usr/bin/env python3
"""Servers behind TLS that remember every byte of what they were asked: tlsworld.py DIRECTORY ADDRESS=PEM[+KIND]...

DIRECTORY/PEM has certificate and key; with +h2 the server prefers HTTP/2, with +s3 it is a bucket (fakes3.py), with +old
it speaks no TLS that is new enough, and with +plain there are one without TLS on port 80 and one on port 8443, too. UDP port 443 sends everything back. DIRECTORY/seen gets a line of JSON for each request: [server
address, head, body]. What comes back depends on the path; see answer().
"""
import base64
import contextlib
import hashlib
import json
import pathlib
import socket
import ssl
import sys
import threading
import time

DIR = pathlib.Path(sys.argv[1])
LOCK = threading.Lock()


class Stream:
    def __init__(self, sock):
        self.sock, self.data = sock, b""

    def more(self):
        piece = self.sock.recv(65536)
        if not piece:
            raise EOFError
        self.data += piece

    def until(self, mark):
        while mark not in self.data:
            self.more()
        head, self.data = self.data.split(mark, 1)
        return head + mark

    def exactly(self, n):
        while len(self.data) < n:
            self.more()
        body, self.data = self.data[:n], self.data[n:]
        return body

    def chunks(self):
        body = b""
        while True:
            n = int(self.until(b"\r\n"), 16)
            if n == 0:
                while self.until(b"\r\n") != b"\r\n":
                    pass
                return body
            body += self.exactly(n)
            self.exactly(2)


def fields(head):
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines if ":" in line)}


def plain(s, status, body, *extra, close=False):
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *extra]
    if close:
        lines.append("Connection: close")
    s.sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


def web_socket(s, h):
    key = h["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
    s.sock.sendall(("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    f"Sec-WebSocket-Accept: {accept}\r\n\r\n").encode())
    while True:  # whatever comes goes back
        if s.data:
            s.sock.sendall(s.data)
        s.data = b""
        s.more()


EVIL = {
    "/evil/two-lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "/evil/both": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "/evil/folded": b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    "/evil/bare-lf": b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
    "/evil/upgrade": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nraw",
    "/evil/two-answers": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
                         b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison",
    "/evil/noise": b"\x00\xff" * 100,
}


def answer(s, target, h, body):
    """False: the connection ends."""
    path = target.split("?")[0]
    if path == "/ws":
        web_socket(s, h)
    elif path in EVIL:
        s.sock.sendall(EVIL[path])
        return False
    elif path == "/sse":
        s.sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        s.sock.sendall(b"data: 1\n\n")
        s.until(b"next")  # the client says so when it has seen the first
        s.sock.sendall(b"data: 2\n\n")
        return False
    elif path == "/chunked":
        s.sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n"
                       b"5\r\nhello\r\n6\r\n world\r\n0\r\nX-T: t\r\n\r\n")
    elif path == "/truncated":
        s.sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        return False
    elif path == "/big":
        n = int(target.split("?")[1])
        s.sock.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {n}\r\n\r\n".encode())
        piece = bytes(65536)
        while n > 0:
            s.sock.sendall(piece[:min(n, len(piece))])
            n -= len(piece)
    elif path == "/reflect":  # what a debug page would show
        plain(s, "200 OK", body + repr(h).encode(), "X-Reflected: " + h.get("x-api-key", "-"))
    elif path == "/npm/thing":
        plain(s, "200 OK", json.dumps({"name": "thing", "dist-tags": {"latest": "1.2.3"}, "versions": {
            "1.2.3": {"name": "thing", "version": "1.2.3", "dist": {"tarball": "https://x/"}}}}).encode())
    elif path == "/redirect":
        plain(s, "302 Found", b"", "Location: https://elsewhere.example.com/echo")
    else:
        plain(s, "200 OK", json.dumps({"n": len(body)}).encode() + b"\n")
    return True


def remember(address, head, body):
    with LOCK, open(DIR / "seen", "a") as f:
        f.write(json.dumps([address, head, body[:4096].decode("latin-1")]) + "\n")


class Http2:
    """A connection of many requests; what it cannot send yet waits for its window."""

    def __init__(self, sock, address):
        import h2.config
        import h2.connection
        self.sock, self.address = sock, address
        self.c = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="latin-1"))
        self.asked, self.rest = {}, {}  # by stream: its head and body; what is to be sent, and trailers

    def answer(self, stream):
        fields, body = self.asked.pop(stream)
        h = dict(fields)
        secret = [f[0] for f in fields if not getattr(f, "indexable", True)]
        remember(self.address, f"{h[':method']} {h[':path']} HTTP/2\r\nHost: {h[':authority']}\r\n" + "".join(
            f"{k}: {v}\r\n" for k, v in fields if k[0] != ":") + f"never-indexed: {' '.join(secret)}\r\n\r\n", body)
        path, _, query = h[":path"].partition("?")
        more, trailers = json.dumps({"n": len(body)}).encode() + b"\n", None
        if path == "/big":
            more = bytes(int(query))
        elif path == "/reflect":
            more = body + repr(h).encode()
        elif path == "/call":  # as gRPC has it
            more, trailers = body, [("grpc-status", "0")]
        elif path == "/reset":
            self.c.reset_stream(stream, 2)
            return
        self.c.send_headers(stream, [(":status", "200"), ("x-path", path)])
        self.rest[stream] = (more, trailers)

    def send(self):
        for stream, (more, trailers) in list(self.rest.items()):
            while more and (n := min(self.c.local_flow_control_window(stream), self.c.max_outbound_frame_size)) > 0:
                self.c.send_data(stream, more[:n])
                more = more[n:]
            self.rest[stream] = (more, trailers)
            if not more:
                del self.rest[stream]
                self.c.send_headers(stream, trailers, end_stream=True) if trailers else self.c.end_stream(stream)
        self.sock.sendall(self.c.data_to_send())

    def take(self, event):
        name, stream = type(event).__name__, getattr(event, "stream_id", 0)
        if name == "RequestReceived":
            self.asked[stream] = (event.headers, b"")
        elif name == "DataReceived" and stream in self.asked:
            self.asked[stream] = (self.asked[stream][0], self.asked[stream][1] + event.data)
            self.c.acknowledge_received_data(event.flow_controlled_length, stream)
        elif name == "StreamEnded" and stream in self.asked:
            self.answer(stream)
        elif name == "StreamReset":
            self.asked.pop(stream, None)
            self.rest.pop(stream, None)

    def run(self):
        self.c.initiate_connection()
        self.sock.sendall(self.c.data_to_send())
        while data := self.sock.recv(65536):
            for event in self.c.receive_data(data):
                self.take(event)
            self.send()


def serve(sock, address):
    if isinstance(sock, ssl.SSLSocket) and sock.selected_alpn_protocol() == "h2":
        with contextlib.closing(sock), contextlib.suppress(OSError):
            Http2(sock, address).run()
        return
    s = Stream(sock)
    try:
        going = True
        while going:
            head = s.until(b"\r\n\r\n")
            h = fields(head)
            if h.get("expect") == "100-continue":
                sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            if h.get("transfer-encoding") == "chunked":
                body = s.chunks()
            else:
                body = s.exactly(int(h.get("content-length", 0)))
            remember(address, head.decode("latin-1"), body)
            target = head.split(b" ")[1].decode("latin-1")
            going = answer(s, target, h, body)
            if h.get("connection", "").lower() == "close":
                going = False
        if isinstance(sock, ssl.SSLSocket):
            sock.unwrap()
    except (EOFError, OSError, ValueError):
        pass
    finally:
        sock.close()


def serve_s3(sock, server, peer):
    """In one thread: an SSLSocket cannot be read and written at once."""
    with contextlib.closing(sock), contextlib.suppress(OSError):
        server.finish_request(sock, peer)


def accept(listener, context, address, bucket):
    while True:
        raw, peer = listener.accept()
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def one(raw=raw, peer=peer):
            try:
                raw.settimeout(60)
                sock = context.wrap_socket(raw, server_side=True) if context else raw
            except OSError:
                raw.close()
                return
            serve_s3(sock, bucket, peer) if bucket else serve(sock, address)

        threading.Thread(target=one, daemon=True).start()


def echo(sock):
    while True:
        data, peer = sock.recvfrom(2048)
        sock.sendto(data, peer)


for pair in sys.argv[2:]:
    where, pem = pair.split("=")
    pem, _, kind = pem.partition("+")
    bucket = None
    if kind == "s3":
        from fakes3 import FakeS3
        fake = FakeS3()
        fake.unsigned = True
        bucket = fake.server
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if kind == "h2":
        context.set_alpn_protocols(["h2", "http/1.1"])
    if kind == "old":
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    context.load_cert_chain(DIR / pem)
    for tcp in (443, 8443, 80) if kind == "plain" else (443,):
        listening = socket.create_server((where, tcp))
        threading.Thread(target=accept, args=(listening, context if tcp != 80 else None, where, bucket),
                         daemon=True).start()
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind((where, 443))
    threading.Thread(target=echo, args=(datagrams,), daemon=True).start()
print("ready", flush=True)
while True:
    time.sleep(3600)
