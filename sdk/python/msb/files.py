"""Files of a sandbox, over the same protocol as commands: no shell and no archive in between."""
from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import stat
import time
from dataclasses import dataclass
from typing import AsyncIterator, Awaitable, Callable, List, Optional, Tuple, TypeVar, Union

from . import _proto as proto
from . import _transfer
from ._attach import RETRY_PAUSE, RETRY_SECONDS, Holder, attach
from ._cli import Cli
from ._exec import GoingDown
from ._filechannel import FileChannel, encode_path, entry_name, file_info, operation
from .errors import FileError, FileNotFound, MsbError
from .types import FileInfo

__all__ = ["FileEvent", "Files", "DEFAULT_MAX_READ"]

DEFAULT_MAX_READ = 256 * 1024 * 1024
"""The default limit for the size of a file that :meth:`Files.read` returns."""

T = TypeVar("T")

_EVENTS = ((proto.CREATED, "created"), (proto.MODIFIED, "modified"), (proto.REMOVED, "removed"),
           (proto.ATTRIB, "attributes"), (proto.MOVED_FROM, "moved_from"),
           (proto.MOVED_TO, "moved_to"), (proto.OVERFLOW, "overflow"))


@dataclass(frozen=True)
class FileEvent:
    """A change below a watched path.

    ``kind`` is ``created``, ``modified``, ``removed``, ``attributes``, ``moved_from``, ``moved_to``
    (a rename is both, with the same ``cookie``) or ``overflow``: events were lost.
    ``path`` is relative to the watched path, empty for that path itself.
    """

    kind: str
    path: str
    is_dir: bool = False
    cookie: int = 0


class Files:
    """The files of one sandbox, as ``SandboxHandle.files``.

    Paths are paths in the guest; relative ones start in the working directory of commands. Errors are
    :class:`msb.FileError`, which are OSErrors too: ``FileNotFoundError`` and the like catch them.
    """

    def __init__(self, cli: Cli, name: str, user: Optional[str] = None) -> None:
        self._cli, self._name, self._user = cli, name, user

    def as_user(self, user: str) -> "Files":
        """The same files, with the rights of another user (``NAME`` or ``UID``, ``:GROUP``)."""
        return Files(self._cli, self._name, user)

    # --- connections ---

    async def _connect(self, holder: Optional[Holder]) -> "Tuple[FileChannel, Optional[Holder]]":
        user = b"" if self._user is None else proto.text_field(proto.F_USER, self._user, "the user")
        sock, found = await attach(self._cli, self._name, holder)
        try:
            _, channel = await asyncio.get_running_loop().create_connection(FileChannel, sock=sock)
        except BaseException:
            sock.close()
            if found is not None and found is not holder:
                await found.release()
            raise
        channel.send(proto.HELLO_FRAME + proto.frame(proto.FILES, user))
        return channel, found

    async def _with(self, event: str, use: Callable[[FileChannel], Awaitable[T]], *,
                    looks: bool = False, **paths: str) -> T:
        """Runs ``use`` and puts it on record. What only looks at files is recorded if everything is."""
        audit, began = self._cli.audit, time.monotonic_ns()
        error: Optional[BaseException] = None
        try:
            return await self._connected(use)
        except BaseException as e:
            error = e
            raise
        finally:
            if audit.reads or not looks:
                audit.file(event, self._name, began, error, **paths)

    async def _connected(self, use: Callable[[FileChannel], Awaitable[T]]) -> T:
        """Runs ``use`` with a connection; again, if the sandbox was just shutting down."""
        until = asyncio.get_running_loop().time() + RETRY_SECONDS
        holder: Optional[Holder] = None
        try:
            while True:
                channel, holder = await self._connect(holder)
                try:
                    return await use(channel)
                except GoingDown as e:
                    if asyncio.get_running_loop().time() > until:
                        raise MsbError(f"sandbox '{self._name}' refused: {e}") from e
                finally:
                    channel.abort()
                await asyncio.sleep(RETRY_PAUSE)
        finally:
            if holder is not None:
                await holder.release()

    async def _simple(self, event: str, message: bytes, path: str, *, looks: bool = False,
                      **more: str) -> FileInfo:
        async def use(channel: FileChannel) -> FileInfo:
            channel.send(message)
            return file_info(await channel.ok(path), path, posixpath.basename(path))

        return await self._with(event, use, looks=looks, path=path, **more)

    # --- contents ---

    async def read(self, path: str, *, offset: int = 0, length: Optional[int] = None,
                   max_bytes: int = DEFAULT_MAX_READ) -> bytes:
        """The content of a file, or ``length`` bytes of it from ``offset`` on.

        More than ``max_bytes`` is an error (EFBIG): use :meth:`download`.
        """
        more = [proto.u64(proto.F_FILE_OFFSET, offset)] if offset else []
        if length is not None:
            more.append(proto.u64(proto.F_FILE_LENGTH, length))

        async def use(channel: FileChannel) -> bytes:
            parts: List[bytes] = []
            size = 0
            channel.send(operation(proto.OP_READ, path, 0, *more))
            while True:
                kind, payload = await channel.next(path)
                if kind == proto.FILE_OK:
                    return b"".join(parts)
                if kind == proto.FILE_DATA:
                    size += len(payload)
                    if size > max_bytes:
                        raise FileError(f"{path}: longer than {max_bytes} bytes", errno.EFBIG, path)
                    parts.append(payload)

        return await self._with("read-file", use, looks=True, path=path)

    async def read_text(self, path: str, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The content of a file as text."""
        return (await self.read(path)).decode(encoding, errors)

    async def write(self, path: str, data: Union[bytes, str], *, mode: Optional[int] = None,
                    append: bool = False, exclusive: bool = False, atomic: bool = False,
                    parents: bool = True) -> FileInfo:
        """Writes a file, creating missing directories.

        ``mode`` is the mode of a new file (default 0644). With ``append`` data is added at the end, with
        ``exclusive`` the file must not exist, with ``atomic`` readers see the old content or the new one.
        """
        content = data.encode() if isinstance(data, str) else bytes(data)
        flags = ((proto.APPEND if append else 0) | (proto.EXCL if exclusive else 0) |
                 (proto.ATOMIC if atomic else 0) | (proto.PARENTS if parents else 0))
        more = [] if mode is None else [proto.u32(proto.F_FILE_MODE, mode & 0o7777)]

        async def use(channel: FileChannel) -> FileInfo:
            channel.send(operation(proto.OP_WRITE, path, flags, *more))
            await channel.send_data(content)
            channel.send(proto.frame(proto.FILE_END))
            return file_info(await channel.ok(path), path, posixpath.basename(path))

        return await self._with("write-file", use, path=path)

    # --- directories and attributes ---

    async def list(self, path: str = ".", *, limit: int = 100000) -> List[FileInfo]:
        """The entries of a directory, sorted by name. More than ``limit`` are an error (E2BIG)."""
        message = operation(proto.OP_LIST, path, 0, proto.u64(proto.F_FILE_LIMIT, limit))

        async def use(channel: FileChannel) -> List[FileInfo]:
            found: List[FileInfo] = []
            channel.send(message)
            while True:
                kind, payload = await channel.next(path)
                fields = proto.fields(payload)
                if kind == proto.FILE_OK:
                    if proto.number(fields, proto.F_FILE_CUT) or len(found) > limit:
                        raise FileError(f"{path}: more than {limit} entries", errno.E2BIG, path)
                    return sorted(found, key=lambda f: f.name)
                if kind == proto.FILE_ENTRY and len(found) <= limit:
                    name = entry_name(fields)
                    found.append(file_info(fields, posixpath.join(path, name), name))

        return await self._with("list-files", use, looks=True, path=path)

    async def stat(self, path: str, *, follow_symlinks: bool = True) -> FileInfo:
        """Attributes of a file."""
        flags = 0 if follow_symlinks else proto.NOFOLLOW
        return await self._simple("stat-file", operation(proto.OP_STAT, path, flags), path, looks=True)

    async def exists(self, path: str) -> bool:
        """Whether the path exists."""
        try:
            await self.stat(path, follow_symlinks=False)
            return True
        except FileNotFound:
            return False

    async def mkdir(self, path: str, *, mode: int = 0o755, parents: bool = True) -> None:
        """Creates a directory; with ``parents`` also those above it, and it may exist."""
        message = operation(proto.OP_MKDIR, path, proto.PARENTS if parents else 0,
                            proto.u32(proto.F_FILE_MODE, mode & 0o7777))
        await self._simple("make-directory", message, path)

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Removes a file or an empty directory; with ``recursive`` everything below it. Links are
        removed, never followed."""
        flags = (proto.RECURSIVE if recursive else 0) | (proto.FORCE if missing_ok else 0)
        await self._simple("remove-file", operation(proto.OP_REMOVE, path, flags), path)

    async def rename(self, path: str, to: str, *, replace: bool = True) -> None:
        """Renames a file; an existing one is replaced, unless ``replace`` is False."""
        message = operation(proto.OP_RENAME, path, 0 if replace else proto.EXCL,
                            proto.field(proto.F_FILE_TO, encode_path(to)))
        await self._simple("rename-file", message, path, to=to)

    async def chmod(self, path: str, mode: int) -> None:
        """Changes permissions."""
        message = operation(proto.OP_SET, path, 0, proto.u32(proto.F_FILE_MODE, mode & 0o7777))
        await self._simple("change-mode", message, path)

    async def symlink(self, target: str, path: str) -> None:
        """Creates a symbolic link at ``path`` that points to ``target``."""
        message = operation(proto.OP_SYMLINK, path, 0, proto.field(proto.F_FILE_TO, encode_path(target)))
        await self._simple("make-symlink", message, path, to=target)

    # --- events ---

    async def watch(self, path: str, *, recursive: bool = False) -> AsyncIterator[FileEvent]:
        """Events below a path, until the loop is left: ``async for event in sb.files.watch("/x")``.

        Changes before the watch is set up are not reported. Use :meth:`watching` to know when it is.
        """
        async with await self.watching(path, recursive=recursive) as watch:
            async for event in watch:
                yield event

    async def watching(self, path: str, *, recursive: bool = False) -> "Watch":
        """Begins to watch: all changes after this returns are reported."""
        message = operation(proto.OP_WATCH, path, proto.RECURSIVE if recursive else 0)
        until = asyncio.get_running_loop().time() + RETRY_SECONDS
        holder: Optional[Holder] = None
        try:
            while True:
                channel, holder = await self._connect(holder)
                try:
                    channel.send(message)
                    await channel.ok(path)
                    return Watch(channel, holder, path)
                except BaseException as e:
                    channel.abort()
                    if not isinstance(e, GoingDown) or asyncio.get_running_loop().time() > until:
                        raise
                await asyncio.sleep(RETRY_PAUSE)
        except BaseException:
            if holder is not None:
                await holder.release()
            raise

    # --- to and from the host ---

    async def upload(self, local: Union[str, "os.PathLike[str]"], path: str) -> None:
        """Copies a file or a directory of the host into the sandbox.

        A file becomes ``path``, keeping permissions and time. The content of a directory goes into the
        directory ``path``, which is created if it is missing; links are copied as links.
        """
        source = os.fspath(local)
        await self._cli.hold_copy(self._name, source, write=False)
        put = _transfer.put_tree if stat.S_ISDIR(os.stat(source).st_mode) else _transfer.put_file
        await self._with("upload", lambda channel: put(channel, source, path), path=path, host=source)

    async def download(self, path: str, local: Union[str, "os.PathLike[str]"], *,
                       max_bytes: Optional[int] = None) -> None:
        """Copies a file or a directory of the sandbox to the host.

        A file becomes ``local``, or a file of the same name in it if that is a directory. The content
        of a directory goes into the directory ``local``. Nothing is written anywhere else, whatever
        the sandbox sends; devices, sockets and set-user-id bits are left out. More than ``max_bytes`` in
        all are an error (EFBIG).
        """
        target = os.fspath(local)
        await self._cli.hold_copy(self._name, target, write=True)
        await self._with("download", lambda channel: _transfer.get(channel, path, target, max_bytes),
                         path=path, host=target)


class Watch:
    """Events as they happen: an asynchronous iterator and context manager; see :meth:`Files.watching`."""

    def __init__(self, channel: FileChannel, holder: Optional[Holder], path: str) -> None:
        self._channel, self._holder, self._path = channel, holder, path
        self._ready: List[FileEvent] = []

    def __aiter__(self) -> "Watch":
        return self

    async def __anext__(self) -> FileEvent:
        while not self._ready:
            try:
                kind, payload = await self._channel.next(self._path)
            except asyncio.CancelledError:
                raise
            except BaseException:
                await self.close()
                raise
            if kind == proto.FILE_EVENT:
                self._ready = _events(proto.fields(payload))
        return self._ready.pop(0)

    async def close(self) -> None:
        """Stops watching."""
        self._channel.abort()
        holder, self._holder = self._holder, None
        if holder is not None:
            await holder.release()

    async def __aenter__(self) -> "Watch":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


def _events(fields: List[proto.Field]) -> List[FileEvent]:
    bits = proto.number(fields, proto.F_FILE_EVENT) or 0
    path = os.fsdecode(proto.raw(fields, proto.F_FILE_PATH) or b"")
    cookie = proto.number(fields, proto.F_COOKIE) or 0
    return [FileEvent(kind, path, bool(bits & proto.IS_DIR), cookie) for bit, kind in _EVENTS if bits & bit]
