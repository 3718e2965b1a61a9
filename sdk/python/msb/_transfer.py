"""Directory trees between host and sandbox.

Data from a sandbox is hostile: names are single components, every directory is entered by its
descriptor and never through a link, and nothing outside the target is opened.
"""
from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import stat
from typing import Iterator, List, Optional, Sequence, Set, Tuple

from . import _proto as proto
from ._filechannel import FileChannel, entry_name, file_info, operation
from .errors import FileError, ProtocolError
from .types import FileInfo

_O_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_O_OUT = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_CHUNK = proto.DATA_MAX


@contextlib.contextmanager
def inside(top: int, names: Sequence[str]) -> Iterator[int]:
    """The directory that is there, one component after the other and through no link."""
    directory = os.dup(top)
    try:
        for name in names:
            below = os.open(name, _O_DIR, dir_fd=directory)
            os.close(directory)
            directory = below
        yield directory
    finally:
        os.close(directory)


# --- into the sandbox ---------------------------------------------------------------------------


def _attributes(st: os.stat_result) -> bytes:
    return (proto.u32(proto.F_FILE_MODE, st.st_mode) + proto.u64(proto.F_FILE_SIZE, st.st_size) +
            proto.u64(proto.F_FILE_MTIME, st.st_mtime_ns & (1 << 64) - 1))


async def _send_content(channel: FileChannel, fd: int, limit: Optional[int] = None) -> bool:
    while limit is None or limit > 0:
        data = os.read(fd, _CHUNK if limit is None else min(_CHUNK, limit))
        if not data:
            return True
        if limit is not None:
            limit -= len(data)
        if not await channel.send_data(data):
            return False
    return True


async def put_file(channel: FileChannel, source: str, path: str) -> None:
    """Writes one file."""
    fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        st = os.fstat(fd)
        if not stat.S_ISREG(st.st_mode):
            raise FileError(f"{source}: not a regular file", errno.EINVAL, source)
        channel.send(operation(proto.OP_WRITE, path, proto.PARENTS,
                               proto.u32(proto.F_FILE_MODE, st.st_mode & 0o7777),
                               proto.u64(proto.F_FILE_MTIME, st.st_mtime_ns & (1 << 64) - 1)))
        await _send_content(channel, fd)
        channel.send(proto.frame(proto.FILE_END))
        await channel.ok(path)
    finally:
        os.close(fd)


async def put_tree(channel: FileChannel, source: str, path: str) -> None:
    """Copies the content of a directory into a directory."""
    channel.send(operation(proto.OP_MKDIR, path, proto.PARENTS))
    await channel.ok(path)
    channel.send(operation(proto.OP_PUT, path))
    top = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        await _put_children(channel, top, 1)
    finally:
        os.close(top)
    channel.send(proto.frame(proto.FILE_END))
    await channel.ok(path)


async def _put_children(channel: FileChannel, directory: int, depth: int) -> bool:
    if depth > proto.DEPTH_MAX:
        raise FileError("directories are nested too deeply", errno.ELOOP)
    for name in sorted(os.listdir(directory)):
        if not await _put_one(channel, directory, name, depth):
            return False
    return True


async def _put_one(channel: FileChannel, directory: int, name: str, depth: int) -> bool:
    """False when the agent has given up."""
    st = os.stat(name, dir_fd=directory, follow_symlinks=False)
    label = proto.field(proto.F_FILE_NAME, os.fsencode(name))
    if stat.S_ISLNK(st.st_mode):
        target = os.fsencode(os.readlink(name, dir_fd=directory))
        channel.send(proto.frame(proto.FILE_ENTRY, label + _attributes(st) +
                                 proto.field(proto.F_FILE_TARGET, target)))
        await channel.drain()
    elif stat.S_ISREG(st.st_mode):
        fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK,
                     dir_fd=directory)
        try:
            st = os.fstat(fd)
            channel.send(proto.frame(proto.FILE_ENTRY, label + _attributes(st)))
            if not await _send_content(channel, fd, st.st_size):
                return False
        finally:
            os.close(fd)
    elif stat.S_ISDIR(st.st_mode):
        channel.send(proto.frame(proto.FILE_ENTRY, label + _attributes(st)))
        below = os.open(name, _O_DIR, dir_fd=directory)
        try:
            if not await _put_children(channel, below, depth + 1):
                return False
        finally:
            os.close(below)
        channel.send(proto.frame(proto.FILE_LEAVE))
    return not channel.answered


# --- out of the sandbox -------------------------------------------------------------------------


class Receiver:
    """Writes a tree as it arrives. ``stack`` has the open directories, outermost first, each with the
    permissions that it gets when it is complete; None: it existed before."""

    def __init__(self, path: str, target: str, max_bytes: Optional[int]) -> None:
        self.path, self.target, self.left = path, target, max_bytes
        self.stack: List[Tuple[int, Optional[int]]] = []
        self.out = -1
        self.seen = 0
        self.arrived: Set[Tuple[int, int]] = set()  # device and inode of each file

    def close(self) -> None:
        self.close_file()
        while self.stack:
            self._close_directory()

    def _close_directory(self) -> None:
        directory, mode = self.stack.pop()
        try:
            if mode is not None:
                os.fchmod(directory, mode)
        finally:
            os.close(directory)

    def close_file(self) -> None:
        if self.out >= 0:
            os.close(self.out)
            self.out = -1

    def entry(self, info: FileInfo, name: str) -> None:
        """The next entry, in the innermost open directory; the first has no name."""
        self.close_file()
        self.seen += 1
        if self.seen > proto.LIST_MAX or len(self.stack) > proto.DEPTH_MAX:
            raise FileError(f"{self.path}: too many files", errno.E2BIG, self.path)
        if not self.stack:
            if self.seen > 1:
                raise ProtocolError("the sandbox broke the protocol: more than one tree")
            self._top(info)
        else:
            self._make(info, self.stack[-1][0], name)

    def _top(self, info: FileInfo) -> None:
        """The first entry: a directory's content goes into the target."""
        if info.is_dir:
            os.makedirs(self.target, exist_ok=True)
            self.stack.append((os.open(self.target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), None))
            return
        where, name = os.path.split(self.target)
        if os.path.isdir(self.target):
            where, name = self.target, posixpath.basename(self.path.rstrip("/"))
        directory = os.open(where or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._make(info, directory, name)
        finally:
            os.close(directory)

    def _make(self, info: FileInfo, directory: int, name: str) -> None:
        if info.kind == "dir":
            mode: Optional[int] = info.mode & 0o777
            try:
                os.mkdir(name, 0o700, dir_fd=directory)
            except FileExistsError:
                mode = None
            self.stack.append((os.open(name, _O_DIR, dir_fd=directory), mode))
        elif info.kind == "file":
            self.out = os.open(name, _O_OUT, 0o600, dir_fd=directory)
            st = os.fstat(self.out)
            if not stat.S_ISREG(st.st_mode):
                raise FileError(f"{name}: exists and is not a file", errno.EEXIST, name)
            if st.st_nlink > 1:  # its other names keep what they have
                self.close_file()
                os.unlink(name, dir_fd=directory)
                self.out = os.open(name, _O_OUT | os.O_EXCL, 0o600, dir_fd=directory)
                st = os.fstat(self.out)
            self.arrived.add((st.st_dev, st.st_ino))
            os.ftruncate(self.out, 0)
            os.fchmod(self.out, info.mode & 0o777)
        elif info.kind == "symlink":
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=directory)
            os.symlink(info.target or "", name, dir_fd=directory)

    def data(self, payload: bytes) -> None:
        """Content of the file that is open."""
        if self.out < 0:
            raise ProtocolError("the sandbox broke the protocol: content outside of a file")
        if self.left is not None:
            self.left -= len(payload)
            if self.left < 0:
                raise FileError(f"{self.path}: too long", errno.EFBIG, self.path)
        view = memoryview(payload)
        while len(view):
            view = view[os.write(self.out, view):]

    def link(self, names: List[str], name: str) -> None:
        """One more name, in the innermost open directory, for a file that has arrived before: where that is, from the
        target on."""
        with inside(self.stack[0][0], names[:-1]) as directory:
            st = os.stat(names[-1], dir_fd=directory, follow_symlinks=False)
            if (st.st_dev, st.st_ino) not in self.arrived:
                raise ProtocolError("the sandbox broke the protocol: a link to what it has not sent")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self.stack[-1][0])
            os.link(names[-1], name, src_dir_fd=directory, dst_dir_fd=self.stack[-1][0], follow_symlinks=False)

    def leave(self) -> None:
        """The end of the innermost open directory."""
        self.close_file()
        if not self.stack:
            raise ProtocolError("the sandbox broke the protocol: a directory ends twice")
        self._close_directory()


async def get(channel: FileChannel, path: str, target: str, max_bytes: Optional[int]) -> None:
    """Copies ``path`` to the host."""
    receiver = Receiver(path, target, max_bytes)
    channel.send(operation(proto.OP_GET, path))
    try:
        while True:
            kind, payload = await channel.next(path)
            if kind == proto.FILE_OK:
                return
            if kind == proto.FILE_ENTRY:
                fields = proto.fields(payload)
                name = entry_name(fields) if receiver.stack else ""
                receiver.entry(file_info(fields, path, name), name)
            elif kind == proto.FILE_DATA:
                receiver.data(payload)
            elif kind == proto.FILE_LEAVE:
                receiver.leave()
    finally:
        receiver.close()
