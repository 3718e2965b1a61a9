"""A connection to a sandbox: finding the socket, connecting, frames in both directions."""
from __future__ import annotations

import asyncio
import os
import re
import socket
import stat
from typing import List, Optional, Tuple, TypeVar

from . import _proto as proto
from ._flow import Flow
from ._waiting import bounded
from .errors import CommandTimeout, MsbError, ProtocolError, SandboxEnded

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")

_CONNECT_SECONDS = 10.0
_O_DIR = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW

T = TypeVar("T", bound="Channel")


def _open_socket(home: str, name: str) -> int:
    """A descriptor of the socket itself: an address holds 107 bytes and a path may be longer. Links
    are not followed, because the monitor can change what is in ``run``."""
    box = os.open(os.path.join(home, "sandboxes", name), _O_DIR)
    try:
        run = os.open("run", _O_DIR, dir_fd=box)
    finally:
        os.close(box)
    try:
        there = os.open("agent.sock", os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=run)
    finally:
        os.close(run)
    if not stat.S_ISSOCK(os.fstat(there).st_mode):
        os.close(there)
        raise ConnectionRefusedError("agent.sock is not a socket")
    return there


async def connect_socket(home: str, name: str) -> socket.socket:
    """Connects; an OSError means that the sandbox is not running."""
    there = _open_socket(home, name)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.setblocking(False)
        pause, waited = 0.001, 0.0
        while True:
            try:
                sock.connect(f"/proc/self/fd/{there}")
                return sock
            except BlockingIOError:  # its queue is full
                if waited > _CONNECT_SECONDS:
                    raise TimeoutError("the sandbox does not accept connections") from None
            await asyncio.sleep(pause)
            waited += pause
            pause = min(pause * 2, 0.02)
    except BaseException:
        sock.close()
        raise
    finally:
        os.close(there)


class Channel(Flow):
    """Frames over a socket. Subclasses handle frames and the end."""

    def __init__(self) -> None:
        super().__init__()
        self._reader = proto.FrameReader()

    # For subclasses.

    def on_frame(self, kind: int, payload: bytes) -> None:
        """A frame has arrived."""
        raise NotImplementedError

    def on_end(self, error: MsbError) -> None:
        """The connection was lost, or violated the protocol."""
        raise NotImplementedError

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for kind, payload in self._reader.feed(data):
                self.on_frame(kind, payload)
        except ProtocolError as e:
            self.abort()
            self.on_end(e)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Optional[Exception]) -> None:
        if exc is not None:
            self._last_words()
        self.resume_writing()
        self.on_end(SandboxEnded("sandbox ended while the command ran"))

    def _last_words(self) -> None:
        """Sending failed because the other end has closed: what it sent before that can still be read."""
        assert self._transport is not None
        sock = self._transport.get_extra_info("socket")
        try:
            while True:
                data = os.read(sock.fileno(), 256 * 1024)
                if not data:
                    return
                self.data_received(data)
        except OSError:
            return

    # Ours.

    def send(self, data: bytes) -> None:
        """Sends whole frames; does nothing when the connection is closed."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def abort(self) -> None:
        """Closes at once."""
        if self._transport is not None:
            self._transport.abort()

    def finish_sending(self) -> None:
        """Sends what is left, then closes our direction."""
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()


class Request(Channel):
    """One request to the monitor, and its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: "asyncio.Future[Tuple[int, List[proto.Field]]]" = self.loop.create_future()

    def on_frame(self, kind: int, payload: bytes) -> None:
        if not self.answer.done():
            self.answer.set_result((kind, proto.fields(payload)))

    def on_end(self, error: MsbError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


async def request(home: str, name: str, kind: int, payload: bytes = b"") -> Tuple[int, List[proto.Field]]:
    """Sends a request to the monitor; returns type and fields of the answer."""
    sock = await connect_socket(home, name)
    loop = asyncio.get_running_loop()
    _, channel = await loop.create_connection(Request, sock=sock)
    try:
        channel.send(proto.HELLO_FRAME + proto.frame(kind, payload))
        return await bounded(channel.answer, _CONNECT_SECONDS)
    except asyncio.TimeoutError:
        raise CommandTimeout(f"sandbox '{name}' does not answer") from None
    finally:
        channel.abort()
