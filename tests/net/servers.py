"""The server that guests of the network's tests talk to: the first line of a connection is a command.

    SINK        reads to the end, answers with the count and checksum of what it read
    SOURCE N    sends N bytes            ECHO   sends everything back
    STALL       never reads              HALF   says hello, finishes its side, and reads on
    RESET       sends something, then resets
"""
import json
import socket
import socketserver
import struct
import threading
import zlib

CHUNK = bytes(range(256)) * 1024  # 256 KiB


class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        s = self.request
        line = b""
        while not line.endswith(b"\n"):
            k = s.recv(1)
            if not k:
                return
            line += k
        words = line.split()
        try:
            getattr(self, words[0].decode().lower())(s, *map(int, words[1:]))
        except OSError:
            self.server.errors += 1

    def sink(self, s):
        n = crc = 0
        buf = memoryview(bytearray(1 << 20))
        while k := s.recv_into(buf):
            crc = zlib.crc32(buf[:k], crc)
            n += k
        s.sendall(json.dumps({"n": n, "crc": crc}).encode() + b"\n")

    def source(self, s, size):
        n = crc = 0
        while n < size:
            piece = CHUNK[n % 241:][:size - n]
            s.sendall(piece)
            crc = zlib.crc32(piece, crc)
            n += len(piece)
        self.server.crc = crc

    def echo(self, s):
        while k := s.recv(65536):
            s.sendall(k)

    def stall(self, _s):
        self.server.go_on.wait()

    def half(self, s):
        s.sendall(b"hello")
        s.shutdown(socket.SHUT_WR)
        n = 0
        while k := s.recv(1 << 20):
            n += len(k)
        self.server.half = n
        self.server.half_done.set()

    def reset(self, s):
        s.sendall(CHUNK)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024

    def handle_error(self, *_):
        self.errors += 1

    def __init__(self, address, handler=Handler):
        self.errors = self.crc = self.half = 0
        self.go_on = threading.Event()
        self.half_done = threading.Event()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def start(self):
        """Serves in a thread; returns itself."""
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self
