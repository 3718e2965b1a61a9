"""The client's end of a WebSocket (RFC 6455) as an asyncio protocol, with binary messages only."""
from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from typing import List, Optional, Sequence, Tuple

from ._flow import Flow
from ._kubeapi import HEAD_MAX, ApiError, api_error, parse_head
from .errors import MsbError, ProtocolError

MESSAGE_MAX = 1024 * 1024
PING_SECONDS = 30.0  # proxies close what is silent for a minute

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10


def new_key() -> str:
    """A Sec-WebSocket-Key."""
    return base64.b64encode(os.urandom(16)).decode()


def accept_of(key: str) -> str:
    """The answer to a key."""
    return base64.b64encode(hashlib.sha1(key.encode() + _GUID).digest()).decode()


def mask(data: bytes, key: bytes) -> bytes:
    """Data with a mask on or off. Numbers of any length are the fast way to do this without a loop."""
    size = len(data)
    pad = (key * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "little") ^ int.from_bytes(pad, "little")).to_bytes(size, "little")


def frame(opcode: int, data: bytes) -> bytes:
    """A whole message in one frame, masked as a client's must be."""
    size = len(data)
    if size < 126:
        head = bytes([0x80 | opcode, 0x80 | size])
    elif size < 65536:
        head = bytes([0x80 | opcode, 0xFE]) + size.to_bytes(2, "big")
    else:
        head = bytes([0x80 | opcode, 0xFF]) + size.to_bytes(8, "big")
    key = os.urandom(4)
    return head + key + mask(data, key)


def _closing(payload: bytes) -> str:
    """What a close frame says: a status code and a reason, both of which may be missing."""
    code, reason = payload[:2], payload[2:].decode("utf-8", "replace").strip()
    said = [str(int.from_bytes(code, "big"))] if len(code) == 2 else []
    return ": ".join(["the Kubernetes API server closed it", *said, *([reason] if reason else [])])


class Frames:
    """Takes bytes, gives whole messages and control frames."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._parts: List[bytes] = []
        self._size = 0
        self._opcode: Optional[int] = None

    def feed(self, data: bytes) -> List[Tuple[int, bytes]]:
        """All that is complete now, as (opcode, payload)."""
        self._data += data
        found: List[Tuple[int, bytes]] = []
        while True:
            got = self._one()
            if got is None:
                return found
            final, opcode, payload = got
            if opcode >= _CLOSE:
                found.append((opcode, payload))
                continue
            message = self._join(final, opcode, payload)
            if message is not None:
                found.append(message)

    def _one(self) -> Optional[Tuple[bool, int, bytes]]:
        data = self._data
        if len(data) < 2:
            return None
        final, opcode, size = bool(data[0] & 0x80), data[0] & 0x0F, data[1] & 0x7F
        if data[0] & 0x70 or data[1] & 0x80 or opcode not in (0, 1, 2, 8, 9, 10):
            raise ProtocolError("the Kubernetes API server broke the WebSocket protocol")
        if opcode >= _CLOSE and (size > 125 or not final):
            raise ProtocolError("the Kubernetes API server sent an invalid control frame")
        at = 2 + {126: 2, 127: 8}.get(size, 0)
        if len(data) < at:
            return None
        if size >= 126:
            size = int.from_bytes(data[2:at], "big")
        if size + self._size > MESSAGE_MAX:
            raise ProtocolError("the Kubernetes API server sent too large a message")
        if len(data) < at + size:
            return None
        payload = bytes(data[at:at + size])
        del data[:at + size]
        return final, opcode, payload

    def _join(self, final: bool, opcode: int, payload: bytes) -> Optional[Tuple[int, bytes]]:
        if (opcode == _CONTINUATION) != (self._opcode is not None):
            raise ProtocolError("the Kubernetes API server broke the WebSocket protocol")
        if self._opcode is None:
            self._opcode = opcode
        self._parts.append(payload)
        self._size += len(payload)
        if not final:
            return None
        message = self._opcode, b"".join(self._parts)
        self._parts, self._size, self._opcode = [], 0, None
        return message


class WebSocket(Flow):
    """A connection: the handshake, then messages in both directions. Subclasses handle messages and the end."""

    def __init__(self, request: bytes, key: str, protocols: Sequence[str]) -> None:
        super().__init__()
        self.opened: "asyncio.Future[str]" = self.loop.create_future()
        """The subprotocol, once the server has agreed; an :class:`ApiError` if it has not."""
        self.opened.add_done_callback(lambda f: None if f.cancelled() else f.exception() and None)
        self._request, self._key, self._protocols = request, key, protocols
        self._head = bytearray()
        self._frames = Frames()
        self._ping: Optional[asyncio.TimerHandle] = None
        self.given_up = False
        """Whether it was we who ended the connection."""
        self.last_words = "it ended without a word"
        """Why the other end did, as far as it says."""

    # For subclasses.

    def on_message(self, data: bytes) -> None:
        """A message has arrived."""
        raise NotImplementedError

    def on_lost(self, error: Optional[MsbError]) -> None:
        """The connection has ended, with an error if it broke the protocol."""
        raise NotImplementedError

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        try:
            if not self.opened.done():
                self._head += data
                self._handshake()
                return
            self._messages(data)
        except ProtocolError as e:
            self._fail(e)

    def connection_lost(self, exc: Optional[Exception]) -> None:
        if self._ping is not None:
            self._ping.cancel()
        if exc is not None:
            self.last_words = getattr(exc, "strerror", None) or str(exc) or type(exc).__name__
        self._transport = None
        self.resume_writing()
        if not self.opened.done():
            self.opened.set_exception(self._refusal() or ConnectionResetError("the connection was closed"))
        self.on_lost(None)

    # The handshake.

    def _handshake(self) -> None:
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._head) > HEAD_MAX:
                raise ProtocolError("the Kubernetes API server sent too long a header")
            return
        head = parse_head(bytes(self._head[:end]))
        if head.status != 101:
            self._await_refusal(head.headers.get("content-length", ""), len(self._head) - end - 4)
            return
        chosen = head.headers.get("sec-websocket-protocol", "")
        if (head.headers.get("upgrade", "").lower() != "websocket" or chosen not in self._protocols
                or head.headers.get("sec-websocket-accept") != accept_of(self._key)):
            raise ProtocolError("the Kubernetes API server did not agree on a WebSocket")
        rest = bytes(self._head[end + 4:])
        self._head.clear()
        self.opened.set_result(chosen)
        self._ping_later()
        self._messages(rest)

    def _await_refusal(self, length: str, have: int) -> None:
        """Its reason is the body: by its length, or up to the end of the connection."""
        if len(self._head) > HEAD_MAX * 2 or (length.isdigit() and have >= int(length)):
            self.opened.set_exception(self._refusal() or ProtocolError("no reason"))
            self.abort()

    def _refusal(self) -> Optional[ApiError]:
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = parse_head(bytes(self._head[:end]))
        body = bytes(self._head[end + 4:])
        if head.headers.get("transfer-encoding", "").lower() == "chunked":
            body = body[body.find(b"{"):body.rfind(b"}") + 1]
        return api_error(head.status, body)

    # Messages.

    def _messages(self, data: bytes) -> None:
        for opcode, payload in self._frames.feed(data):
            if opcode == _PING:
                self._send(_PONG, payload)
            elif opcode == _CLOSE:
                self.last_words = _closing(payload)
                self._send(_CLOSE, payload[:2])
                if self._transport is not None:
                    self._transport.close()
                return
            elif opcode in (_BINARY, _TEXT):
                self.on_message(payload)

    def _fail(self, error: ProtocolError) -> None:
        if not self.opened.done():
            self.opened.set_exception(error)
        self.abort()
        self.on_lost(error)

    def _ping_later(self) -> None:
        self._ping = self.loop.call_later(PING_SECONDS, self._do_ping)

    def _do_ping(self) -> None:
        self._send(_PING, b"")
        self._ping_later()

    def _send(self, opcode: int, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(frame(opcode, data))

    # Ours.

    def send(self, data: bytes) -> None:
        """Sends a message; does nothing when the connection is closed."""
        self._send(_BINARY, data)

    def close(self) -> None:
        """Closes when everything is sent."""
        self.given_up = True
        self._send(_CLOSE, (1000).to_bytes(2, "big"))
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes at once."""
        self.given_up = True
        if self._ping is not None:
            self._ping.cancel()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
