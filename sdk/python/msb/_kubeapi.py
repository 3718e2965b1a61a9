"""Requests to a Kubernetes API server: HTTP/1.1 on asyncio, JSON, watches, errors."""
from __future__ import annotations

import asyncio
import json
import random
import re
import socket
import ssl
from typing import Any, AsyncIterator, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union
from urllib.parse import quote, urlencode

from ._kubeconfig import Cluster
from ._waiting import bounded
from .errors import MsbError, ProtocolError, SandboxUnavailable

HEAD_MAX = 64 * 1024
BODY_MAX = 64 * 1024 * 1024
EVENT_MAX = 4 * 1024 * 1024  # one line of a watch
CONNECT_SECONDS = 15.0
ANSWER_SECONDS = 60.0
RETRY_SECONDS = 15.0  # how long a server that is restarting or overloaded is asked again
WATCH_SECONDS = 300

Query = Sequence[Tuple[str, str]]


class ApiError(MsbError):
    """The server's answer, as it is: an HTTP status and a ``Status`` object."""

    def __init__(self, status: int, reason: str, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.status, self.reason, self.kind = status, reason, kind


class Head(NamedTuple):
    """The beginning of an answer."""

    status: int
    headers: Mapping[str, str]


def parse_head(data: bytes) -> Head:
    """Status line and headers, without the empty line."""
    lines = data.decode("latin-1").split("\r\n")
    match = re.match(r"HTTP/1\.[01] ([1-5]\d\d)(?: |\Z)", lines[0])
    if not match:
        raise ProtocolError("the Kubernetes API server sent no HTTP")
    headers: Dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise ProtocolError("the Kubernetes API server sent an invalid header")
        headers[name.strip().lower()] = value.strip()
    return Head(int(match[1]), headers)


def api_error(status: int, body: bytes) -> ApiError:
    """The error in an answer; its body should be a ``Status``."""
    doc: Any = None
    try:
        doc = json.loads(body)
    except ValueError:
        pass
    if not isinstance(doc, dict) or doc.get("kind") != "Status":
        text = " ".join(body.decode("utf-8", "replace").split())[:500]
        return ApiError(status, "", text or f"HTTP status {status}")
    details = doc.get("details")
    kind = str(details.get("kind") or "") if isinstance(details, dict) else ""
    return ApiError(status, str(doc.get("reason") or ""), str(doc.get("message") or "")[:2000], kind)


def may_repeat(error: ApiError, method: str) -> bool:
    """Whether the server asks for another try, and this is safe: 429 and 503 come before it has done anything."""
    return error.status in (429, 503) or (method == "GET" and error.status in (500, 502, 504))


class _Body:
    """The body of an answer, by its length, in chunks, or up to the end of the connection."""

    def __init__(self, reader: asyncio.StreamReader, headers: Mapping[str, str]) -> None:
        self._reader = reader
        self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        length = headers.get("content-length", "")
        if length and not length.isdigit():
            raise ProtocolError("the Kubernetes API server sent an invalid length")
        self._left: Optional[int] = int(length) if length else None
        self._ended = False

    async def some(self) -> bytes:
        """The next piece; nothing at the end."""
        if self._ended:
            return b""
        if self._chunked:
            return await self._chunk()
        if self._left is None:
            return await self._reader.read(65536)
        if self._left == 0:
            return b""
        data = await self._reader.read(min(self._left, 65536))
        if not data:
            raise ConnectionResetError("the answer was cut")
        self._left -= len(data)
        return data

    async def _chunk(self) -> bytes:
        line = (await self._reader.readuntil(b"\r\n")).split(b";")[0].strip()
        if not re.match(rb"[0-9A-Fa-f]{1,8}\Z", line):
            raise ProtocolError("the Kubernetes API server sent an invalid chunk")
        size = int(line, 16)
        if size > BODY_MAX:
            raise ProtocolError("the Kubernetes API server sent too large a chunk")
        data = await self._reader.readexactly(size)
        await self._reader.readexactly(2)
        self._ended = size == 0
        return data

    async def all(self, limit: int = BODY_MAX) -> bytes:
        """All of it; more than the limit is an error."""
        parts: List[bytes] = []
        size = 0
        while True:
            data = await self.some()
            if not data:
                return b"".join(parts)
            size += len(data)
            if size > limit:
                raise ProtocolError(f"the answer of the Kubernetes API server is larger than {limit} bytes")
            parts.append(data)


def keep_alive(sock: Optional[socket.socket]) -> None:
    """A peer that is gone is noticed within two minutes."""
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5)


class Api:
    """One API server. Every request is a connection of its own, so that canceling one disturbs no other."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @property
    def address(self) -> str:
        """For messages."""
        return f"{self.cluster.host}:{self.cluster.port}"

    def target(self, path: str, query: Query = ()) -> str:
        """The request target of a path."""
        return self.cluster.path + quote(path, safe="/") + (f"?{urlencode(query)}" if query else "")

    async def headers(self, method: str, target: str, more: Mapping[str, str]) -> bytes:
        """The head of a request. What logs in may come from a program or a file."""
        loop = asyncio.get_running_loop()
        authorization = await loop.run_in_executor(None, self.cluster.authorization)
        host = f"[{self.cluster.host}]" if ":" in self.cluster.host else self.cluster.host
        lines = [f"{method} {target} HTTP/1.1", f"Host: {host}:{self.cluster.port}", "User-Agent: msb"]
        lines += [f"{name}: {value}" for name, value in more.items()]
        if authorization:
            lines.append(f"Authorization: {authorization}")
        if any("\r" in line or "\n" in line for line in lines):
            raise ProtocolError("a credential has a line break in it")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def connection(self) -> Dict[str, Any]:
        """Arguments of asyncio's functions that connect."""
        context = self.cluster.context()
        name = (self.cluster.server_name or self.cluster.host) if context is not None else None
        return {"host": self.cluster.host, "port": self.cluster.port, "ssl": context, "server_hostname": name}

    def unreachable(self, error: BaseException) -> SandboxUnavailable:
        """The error for one of the connection."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return SandboxUnavailable(f"the Kubernetes API server at {self.address} is not who it should be: "
                                      f"{error.verify_message}", ["check certificate-authority in the kubeconfig"])
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return SandboxUnavailable(f"cannot reach the Kubernetes API server at {self.address}: {text}")

    async def _open(self, method: str, path: str, query: Query, body: Optional[bytes],
                    content_type: str) -> Tuple[Head, _Body, asyncio.StreamWriter]:
        more = {"Accept": "application/json", "Connection": "close"}
        if body is not None:
            more.update({"Content-Type": content_type, "Content-Length": str(len(body))})
        head = await self.headers(method, self.target(path, query), more)
        reader, writer = await bounded(asyncio.open_connection(limit=EVENT_MAX, **self.connection()), CONNECT_SECONDS,
                                       lambda made: made[1].transport.abort())
        try:
            keep_alive(writer.get_extra_info("socket"))
            writer.write(head + (body or b""))
            raw = await bounded(reader.readuntil(b"\r\n\r\n"), ANSWER_SECONDS)
            if len(raw) > HEAD_MAX:
                raise ProtocolError("the Kubernetes API server sent too long a header")
            answer = parse_head(raw[:-4])
            found = _Body(reader, answer.headers)
            if answer.status >= 300:
                text = await bounded(found.all(), ANSWER_SECONDS)
                raise api_error(answer.status, text)
            return answer, found, writer
        except BaseException:
            writer.transport.abort()
            raise

    async def _once(self, method: str, path: str, query: Query, body: Optional[bytes], content_type: str) -> bytes:
        _, found, writer = await self._open(method, path, query, body, content_type)
        try:
            return await bounded(found.all(), ANSWER_SECONDS)
        finally:
            writer.transport.abort()

    async def raw(self, method: str, path: str, query: Query = (), body: Any = None,
                  content_type: str = "application/json") -> bytes:
        """A request, repeated where that is safe: a server that restarts is none of the caller's business."""
        data = None if body is None else json.dumps(body).encode()
        loop = asyncio.get_running_loop()
        until, pause, fresh = loop.time() + RETRY_SECONDS, 0.1, True
        while True:
            error: Union[ApiError, SandboxUnavailable]
            try:
                return await self._once(method, path, query, data, content_type)
            except ApiError as e:
                if e.status == 401 and self.cluster.plugin is not None and fresh:
                    self.cluster.forget()
                    fresh = False
                elif not may_repeat(e, method):
                    raise
                error = e
            except ssl.SSLCertVerificationError as e:
                raise self.unreachable(e) from e
            except asyncio.LimitOverrunError as e:
                raise ProtocolError("the Kubernetes API server sent too long a line") from e
            except (OSError, EOFError, asyncio.TimeoutError) as e:
                if method == "POST" and not isinstance(e, (ConnectionRefusedError, socket.gaierror)):
                    raise self.unreachable(e) from e  # it may have been done
                error = self.unreachable(e)
            if loop.time() + pause > until:
                raise error
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, 2.0)

    async def json(self, method: str, path: str, query: Query = (), body: Any = None,
                   content_type: str = "application/json") -> Dict[str, Any]:
        """A request whose answer is an object."""
        data = await self.raw(method, path, query, body, content_type)
        try:
            doc = json.loads(data)
        except ValueError as e:
            raise ProtocolError("the Kubernetes API server sent invalid JSON") from e
        if not isinstance(doc, dict):
            raise ProtocolError("the Kubernetes API server sent something else than an object")
        return doc

    async def watch(self, path: str, query: Query) -> AsyncIterator[Tuple[str, Dict[str, Any]]]:
        """Changes as they happen, as (type, object), until the server ends the watch; errors of the connection end
        it, too: the caller looks at the state again and begins another."""
        more = [*query, ("watch", "1"), ("timeoutSeconds", str(WATCH_SECONDS))]
        try:
            _, found, writer = await self._open("GET", path, more, None, "")
        except ssl.SSLCertVerificationError as e:
            raise self.unreachable(e) from e
        except (OSError, EOFError, asyncio.TimeoutError):
            return
        try:
            line = b""
            while True:
                data = await found.some()
                if not data:
                    return
                *whole, line = (line + data).split(b"\n")
                if len(line) > EVENT_MAX:
                    raise ProtocolError("the Kubernetes API server sent too long an event")
                for text in whole:
                    event = _event(text)
                    if event is None:
                        return
                    yield event
        except (OSError, EOFError):
            return
        finally:
            writer.transport.abort()


def _event(text: bytes) -> Optional[Tuple[str, Dict[str, Any]]]:
    """An event; None for the error that ends a watch (it is too old, say)."""
    try:
        doc = json.loads(text)
        kind, thing = str(doc["type"]), doc["object"]
    except (ValueError, KeyError, TypeError) as e:
        raise ProtocolError("the Kubernetes API server sent an invalid event") from e
    if kind == "ERROR" or not isinstance(thing, dict):
        return None
    return kind, thing
