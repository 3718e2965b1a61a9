"""A connection for file operations: requests, answers, trees."""
from __future__ import annotations

import asyncio
import collections
import errno
import os
import stat
from typing import Deque, Optional, Sequence, Tuple, Type

from . import _proto as proto
from ._channel import Channel
from ._exec import GoingDown
from .errors import (FileDenied, FileError, FileExists, FileNotFound, MsbError, ProtocolError,
                     UsageError)
from .types import FileInfo

_WINDOW = 1024 * 1024


def encode_path(path: str) -> bytes:
    """A path as bytes."""
    data = os.fsencode(path)
    if not data or b"\0" in data or len(data) > proto.PATH_MAX:
        raise UsageError(f"invalid path {path[:256]!r}")
    return data


def operation(op: int, path: str, flags: int = 0, *more: bytes) -> bytes:
    """The message that requests an operation."""
    body = proto.u32(proto.F_FILE_OP, op) + proto.field(proto.F_FILE_PATH, encode_path(path))
    if flags:
        body += proto.u32(proto.F_FILE_FLAGS, flags)
    return proto.frame(proto.FILE_OP, body + b"".join(more))


def file_error(found: Sequence[proto.Field], path: str) -> FileError:
    """The error for a FILE_ERR."""
    code = proto.number(found, proto.F_ERRNO) or 0
    return file_error_of(code if 0 < code < 4096 else errno.EIO, proto.text(found, proto.F_TEXT), path)


def file_error_of(code: int, text: str, path: str) -> FileError:
    """The error for a number."""
    kind: Type[FileError] = {errno.ENOENT: FileNotFound, errno.EEXIST: FileExists,
                             errno.EACCES: FileDenied, errno.EPERM: FileDenied}.get(code, FileError)
    return kind(text or f"{path}: {os.strerror(code)}", code, path)


def file_info(found: Sequence[proto.Field], path: str, name: str) -> FileInfo:
    """Attributes of a file."""
    mode = proto.number(found, proto.F_FILE_MODE) or 0
    mtime = proto.number(found, proto.F_FILE_MTIME) or 0
    if mtime >= 1 << 63:
        mtime -= 1 << 64
    target = proto.raw(found, proto.F_FILE_TARGET)
    kind = ("file" if stat.S_ISREG(mode) else "dir" if stat.S_ISDIR(mode) else
            "symlink" if stat.S_ISLNK(mode) else "other")
    return FileInfo(name=name, path=path, kind=kind, size=proto.number(found, proto.F_FILE_SIZE) or 0,
                    mode=mode & 0o7777, uid=proto.number(found, proto.F_FILE_UID) or 0,
                    gid=proto.number(found, proto.F_FILE_GID) or 0, mtime=mtime / 1e9,
                    target=None if target is None else os.fsdecode(target))


def entry_name(found: Sequence[proto.Field]) -> str:
    """The name of an entry: a single path component."""
    return checked_name(proto.raw(found, proto.F_FILE_NAME) or b"")


def checked_name(data: bytes) -> str:
    """A single path component."""
    if (not data or data in (b".", b"..") or b"/" in data or b"\0" in data
            or len(data) > proto.NAME_MAX):
        raise ProtocolError("the sandbox broke the protocol: invalid file name")
    return os.fsdecode(data)


class FileChannel(Channel):
    """Queues answers until they are read; the sandbox waits while too many are queued."""

    def __init__(self) -> None:
        super().__init__()
        self._frames: Deque[Tuple[int, bytes]] = collections.deque()
        self._size = 0
        self._waits: Optional["asyncio.Future[None]"] = None
        self._error: Optional[MsbError] = None

    def on_frame(self, kind: int, payload: bytes) -> None:
        self._frames.append((kind, payload))
        self._size += len(payload) + 64
        if self._size > _WINDOW:
            self.pause_reading()
        self._wake()

    def on_end(self, error: MsbError) -> None:
        if self._error is None:
            self._error = error
        self._wake()

    def _wake(self) -> None:
        if self._waits is not None:
            self._waits.set_result(None)
            self._waits = None

    @property
    def answered(self) -> bool:
        """Whether there is something to read."""
        return bool(self._frames) or self._error is not None

    async def next(self, path: str) -> Tuple[int, bytes]:
        """The next frame; an error from the agent is raised."""
        while not self._frames:
            if self._error is not None:
                raise self._error
            if self._waits is None:
                self._waits = self.loop.create_future()
            await asyncio.shield(self._waits)
        kind, payload = self._frames.popleft()
        self._size -= len(payload) + 64
        if self._size < _WINDOW // 2:
            self.resume_reading()
        if kind == proto.FILE_ERR:
            raise file_error(proto.fields(payload), path)
        if kind == proto.FAIL:
            found = proto.fields(payload)
            text = proto.text(found, proto.F_TEXT)
            if proto.number(found, proto.F_KIND) == proto.FAIL_STATE:
                raise GoingDown(text)
            raise MsbError(f"cannot access the sandbox's files: {text}")
        return kind, payload

    async def ok(self, path: str) -> Sequence[proto.Field]:
        """Waits for the end of an operation and returns its fields."""
        while True:
            kind, payload = await self.next(path)
            if kind == proto.FILE_OK:
                return proto.fields(payload)

    async def send_data(self, data: bytes) -> bool:
        """Sends content; False when the agent has answered already."""
        view = memoryview(data)
        for at in range(0, len(view), proto.DATA_MAX):
            if self.answered:
                return False
            self.send(proto.frame(proto.FILE_DATA, bytes(view[at:at + proto.DATA_MAX])))
            await self.drain()
        return not self.answered
