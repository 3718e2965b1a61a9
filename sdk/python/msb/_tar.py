"""Directory trees as tar archives, which is how the programs of an image give and take them."""
from __future__ import annotations

import contextlib
import errno
import os
import stat
import tarfile
from typing import Iterator, List, Optional, Tuple

from . import _proto as proto
from ._filechannel import checked_name
from ._transfer import Receiver, inside
from .errors import FileError, ProtocolError
from .types import FileInfo

_BLOCK = tarfile.BLOCKSIZE
_CHUNK = 1024 * 1024
_EXTRA_MAX = 64 * 1024  # of a header that has a long name
_END = b"\0" * 2 * _BLOCK


@contextlib.contextmanager
def opened(path: str, flags: int = 0, directory: Optional[int] = None) -> Iterator[Tuple[int, os.stat_result]]:
    """A regular file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags, dir_fd=directory)
    try:
        st = os.fstat(fd)
        if not stat.S_ISREG(st.st_mode):
            raise FileError(f"{path}: not a regular file", errno.EINVAL, path)
        yield fd, st
    finally:
        os.close(fd)


def content(fd: int, size: int, path: str) -> Iterator[bytes]:
    """So many bytes of a file: their number was announced."""
    while size > 0:
        data = os.read(fd, min(size, _CHUNK))
        if not data:
            raise FileError(f"{path}: changed while it was read", errno.EIO, path)
        size -= len(data)
        yield data


# --- into the sandbox ---------------------------------------------------------------------------


class Tree:
    """What is in a directory, and how long its archive is. Whoever may change the directory meanwhile leads it nowhere else."""

    def __init__(self, top: str) -> None:
        self._entries: List[Tuple[bytes, str, int]] = []  # header, path from the top on, size
        self._top = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._add(self._top, "", 1)
        except BaseException:
            self.close()
            raise
        self.size = sum(len(head) + size + -size % _BLOCK for head, _, size in self._entries) + len(_END)

    def close(self) -> None:
        os.close(self._top)

    def _add(self, directory: int, prefix: str, depth: int) -> None:
        if depth > proto.DEPTH_MAX:
            raise FileError("directories are nested too deeply", errno.ELOOP)
        for name in sorted(os.listdir(directory)):
            st = os.stat(name, dir_fd=directory, follow_symlinks=False)
            entry = tarfile.TarInfo(prefix + name)
            entry.mode, entry.mtime = stat.S_IMODE(st.st_mode), int(st.st_mtime)
            if stat.S_ISLNK(st.st_mode):
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=directory)
            elif stat.S_ISDIR(st.st_mode):
                entry.type = tarfile.DIRTYPE
            elif stat.S_ISREG(st.st_mode):
                entry.size = st.st_size
            else:
                continue
            self._entries.append((entry.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape"), prefix + name, entry.size))
            if entry.isdir():
                with inside(directory, [name]) as below:
                    self._add(below, f"{prefix}{name}/", depth + 1)

    def pieces(self) -> Iterator[bytes]:
        """The archive."""
        for head, path, size in self._entries:
            yield head
            if size:
                *parents, name = path.split("/")
                with inside(self._top, parents) as directory, opened(name, os.O_NOFOLLOW, directory) as (fd, _):
                    yield from content(fd, size, path)
                yield b"\0" * (-size % _BLOCK)
        yield _END


# --- out of the sandbox -------------------------------------------------------------------------


class Reader:
    """An archive as it arrives, from a sandbox that may have made it up. Of names only single components get anywhere; a
    directory's entries come after it and before those of the next, as all programs write them."""

    def __init__(self, path: str, target: str, max_bytes: Optional[int]) -> None:
        self.receiver = Receiver(path, target, max_bytes)
        self.ended = False
        self._path = path
        self._held = bytearray()
        self._open: List[str] = []  # the directories that the next entry may be in
        self._left = self._pad = 0  # of the content that comes
        self._extra: Optional[bytes] = None  # the type of the header that comes in pieces
        self._name: Optional[bytes] = None  # from one, for the next entry
        self._link: Optional[bytes] = None
        self._size: Optional[int] = None

    def begin(self, info: Optional[FileInfo]) -> None:
        """The first entry, which has no name: a file, or the directory whose content comes."""
        self.receiver.entry(info or FileInfo("", self._path, "dir", 0, 0o755, 0, 0, 0.0), "")

    def feed(self, data: bytes) -> None:
        """The next bytes."""
        self._held += data
        while not self.ended:
            if self._extra is not None:
                if len(self._held) < self._left + self._pad:
                    return
                self._long(self._extra, bytes(self._held[:self._left]))
                del self._held[:self._left + self._pad]
                self._left = self._pad = 0
                self._extra = None
            elif self._left:
                if not self._held:
                    return
                piece = bytes(self._held[:self._left])
                del self._held[:len(piece)]
                self._left -= len(piece)
                if self.receiver.out >= 0:
                    self.receiver.data(piece)
            elif len(self._held) < self._pad + _BLOCK:
                return
            else:
                block = bytes(self._held[self._pad:self._pad + _BLOCK])
                del self._held[:self._pad + _BLOCK]
                self._pad = 0
                self._header(block)
        self._held.clear()

    def _header(self, block: bytes) -> None:
        try:
            entry = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as e:
            if block.count(0) != _BLOCK:
                raise ProtocolError("the sandbox broke the protocol: not a tar archive") from e
            self.ended = True
            return
        size = entry.size if self._size is None or entry.type in b"LKxg" else self._size
        if size < 0:
            raise ProtocolError("the sandbox broke the protocol: a negative size")
        if entry.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE):
            if size > _EXTRA_MAX:
                raise ProtocolError("the sandbox broke the protocol: too long a name")
            self._extra = entry.type
        else:
            self._entry(entry)
            self._name = self._link = self._size = None
            size = 0 if entry.type in (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE,
                                       tarfile.CHRTYPE, tarfile.BLKTYPE) else size
        self._left, self._pad = size, -size % _BLOCK

    def _long(self, kind: bytes, data: bytes) -> None:
        if kind == tarfile.GNUTYPE_LONGNAME:
            self._name = data.partition(b"\0")[0]
        elif kind == tarfile.GNUTYPE_LONGLINK:
            self._link = data.partition(b"\0")[0]
        while kind == tarfile.XHDTYPE and data:
            length, _, _ = data.partition(b" ")
            if len(length) > 6 or not length.isdigit() or not len(length) + 2 < int(length) <= len(data):
                raise ProtocolError("the sandbox broke the protocol: an invalid header")
            key, _, value = data[len(length) + 1:int(length) - 1].partition(b"=")
            data = data[int(length):]
            if key == b"path":
                self._name = value
            elif key == b"linkpath":
                self._link = value
            elif key == b"size" and value.isdigit():
                self._size = int(value[:19])

    def _entry(self, entry: tarfile.TarInfo) -> None:
        raw = entry.name.encode("utf-8", "surrogateescape") if self._name is None else self._name
        link = entry.linkname.encode("utf-8", "surrogateescape") if self._link is None else self._link
        parts = _parts(raw)
        if not parts:  # the directory itself
            return
        while len(self._open) >= len(parts) or self._open != parts[:len(self._open)]:
            self._open.pop()
            self.receiver.leave()
        if len(self._open) != len(parts) - 1:
            raise ProtocolError("the sandbox broke the protocol: an entry without its directory")
        kind = "dir" if entry.isdir() else "symlink" if entry.issym() else "file" if entry.isreg() else "other"
        info = FileInfo(parts[-1], self._path, kind, 0, entry.mode & 0o7777, 0, 0, 0.0, os.fsdecode(link))
        self.receiver.entry(info, parts[-1])
        if entry.isdir():
            self._open.append(parts[-1])
        elif entry.islnk():
            self.receiver.link(_parts(link) or ["."], parts[-1])


def _parts(name: bytes) -> List[str]:
    return [checked_name(part) for part in name.split(b"/") if part not in (b"", b".")]
