"""The audit log (src/store/audit.h), which records commands and file operations of this package like those of ``msb``.

``$MSB_HOME/audit.log`` has one JSON object a line. Records are chained (src/store/audit_chain.h): each begins with its
number and the hash of the one before it, and ``audit.head`` names the newest. All of it is read and written under an
exclusive lock. Arguments are recorded, environment variables and secrets never. A record that cannot be written does
not fail the command: it is a warning, once.
"""
from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import stat
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ._sinks import Settings, Sinks

logger = logging.getLogger(__name__)

ARGV_MAX = 4096
LINE_MAX = 6 * 64 * 1024 + 256
FILE_MAX = 10 * 1024 * 1024
FILES = 3
_NAME = "audit.log"
_HEAD = "audit.head"
_TRIES = 100
_LINK_MAX = 128
_SEQ_MAX = 2 ** 61
_SAFE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CREAT | os.O_RDWR
_LINK = re.compile(rb'\{"seq":([1-9][0-9]{0,18}),"prev":"[0-9a-f]{64}",')
_HEAD_TEXT = re.compile(rb"([0-9]{20}) ([0-9]{20}) ([0-9]{20}) ([0-9a-f]{64})\n\Z")


class _Head(NamedTuple):
    """The newest record, and where it ends."""

    seq: int = 0
    end: int = 0
    ino: int = 0
    hash: str = "0" * 64

    def text(self) -> bytes:
        return b"%020d %020d %020d %s\n" % (self.seq, self.end, self.ino, self.hash.encode())


def _read_head(fd: int) -> _Head:
    found = _HEAD_TEXT.match(os.pread(fd, 129, 0))
    if found is None or int(found[1]) >= _SEQ_MAX:
        return _Head()
    return _Head(int(found[1]), int(found[2]), int(found[3]), found[4].decode())


def _time() -> str:
    seconds, nanos = divmod(time.time_ns(), 10 ** 9)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{nanos:09}Z"


def _text(value: str, most: int = ARGV_MAX) -> str:
    """As it can be recorded: cut, and escaped where it is not text."""
    data = value.encode("utf-8", "surrogateescape")
    return data[:most].decode("utf-8", "backslashreplace")


def _arguments(argv: Sequence[str]) -> "tuple[List[str], bool]":
    """As many arguments as fit; the last one may be cut."""
    kept: List[str] = []
    left = ARGV_MAX
    for word in argv:
        size = len(word.encode("utf-8", "surrogateescape")) + 3  # with quotes and a comma
        kept.append(_text(word, left))
        if size > left:
            return kept, True
        left -= size
    return kept, False


def _lines(fd: int, start: int, end: int) -> "Iterator[Tuple[bytes, int, str, bool]]":
    """The beginning of each line, its length, its hash, and whether it has an end."""
    digest, first, size = hashlib.sha256(), b"", 0
    while start < end:
        chunk = os.pread(fd, min(65536, end - start), start)
        if not chunk:
            break
        start += len(chunk)
        parts = chunk.split(b"\n")
        for i, part in enumerate(parts):
            digest.update(part)
            first = (first + part)[:_LINK_MAX]
            size += len(part)
            if i < len(parts) - 1:
                yield first, size, digest.hexdigest(), True
                digest, first, size = hashlib.sha256(), b"", 0
    if size:
        yield first, size, digest.hexdigest(), False


class Audit:
    """Writes records of one home."""

    def __init__(self, home: str, level: Optional[str], find: Optional[Callable[[], Settings]] = None) -> None:
        """``find`` says what the host's policy wants."""
        self._path = os.path.join(home, _NAME)
        self._head = os.path.join(home, _HEAD)
        self._level = level
        self._find = find or Settings
        self._sinks = Sinks()
        self._complained = False
        self._program = _text(os.path.basename(sys.argv[0] if sys.argv and sys.argv[0] else "python"), 64)

    def exec(self, sandbox: str, argv: Sequence[str], user: Optional[str], cwd: Optional[str],
             tty: bool, secrets: Sequence[str] = ()) -> str:
        """A command is about to start; returns an id that its end is recorded with."""
        name = f"{os.getpid()}-{time.monotonic_ns():x}"
        words, cut = _arguments(argv)
        more: Dict[str, Any] = {"exec": name, "argv": words}
        if self._find().hash_argv:  # of the arguments, each with a NUL behind it
            data = b"".join(word.encode("utf-8", "surrogateescape") + b"\0" for word in argv)
            more, cut = {"exec": name, "argv_hash": "sha256:" + hashlib.sha256(data).hexdigest()}, False
        for key, value in (("user", user), ("workdir", cwd), ("tty", tty or None),
                           ("cut", cut or None), ("secrets", list(secrets) or None)):
            if value is not None:
                more[key] = _text(value) if isinstance(value, str) else value
        self._record("exec", sandbox, more)
        return name

    def exit(self, sandbox: str, name: str, code: int) -> None:
        """A command has ended."""
        took = time.monotonic_ns() - int(name.partition("-")[2], 16)
        self._record("exit", sandbox, {"exec": name, "code": code, "ms": took // 10 ** 6})

    def file(self, event: str, sandbox: str, since: int, error: Optional[BaseException], **paths: str) -> None:
        """A file was read or changed, or was not. ``since``: when that began, by time.monotonic_ns()."""
        more: Dict[str, Any] = {key: _text(value) for key, value in paths.items()}
        more["ms"] = (time.monotonic_ns() - since) // 10 ** 6
        if error is not None:
            more["error"] = _text(str(error) or type(error).__name__)
        self._record(event, sandbox, more)

    @property
    def reads(self) -> bool:
        """Whether files that are only looked at are recorded, too."""
        return self._find().at_least(self._level) == "all"

    def _record(self, event: str, sandbox: str, more: Dict[str, Any]) -> None:
        settings = self._find()
        if settings.at_least(self._level) == "off":
            return
        record = {"t": _time(), "event": event, "sandbox": sandbox, "uid": os.getuid(),
                  "pid": os.getpid(), "program": self._program, **more}
        body = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
        try:
            line = self._append(body)
            if settings.syslog or settings.journald or settings.command:
                self._sinks.send(settings, record, line)
        except OSError as e:
            if not self._complained:
                logger.warning("cannot write to the audit log: %s: %s", event, e.strerror)
            self._complained = True

    # --- the chain ---

    def _append(self, body: bytes) -> bytes:
        """Returns the line as it was written."""
        if len(body) + _LINK_MAX > LINE_MAX:
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
        head_fd = os.open(self._head, _SAFE, 0o600)
        try:
            for _ in range(_TRIES):
                fd = os.open(self._path, _SAFE | os.O_APPEND, 0o600)
                try:
                    line = self._append_to(fd, head_fd, body)
                    if line:
                        return line
                finally:
                    os.close(fd)  # and with it the lock
        finally:
            os.close(head_fd)
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    def _append_to(self, fd: int, head_fd: int, body: bytes) -> bytes:
        """Nothing: this file is not, or no longer, the current one."""
        fcntl.flock(fd, fcntl.LOCK_EX)
        st = os.fstat(fd)
        if not stat.S_ISREG(st.st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        try:
            now = os.lstat(self._path)
        except FileNotFoundError:
            return b""
        if (now.st_dev, now.st_ino) != (st.st_dev, st.st_ino):
            return b""
        head, size = self._catch_up(fd, _read_head(head_fd), st)
        if size and size + len(body) + _LINK_MAX > FILE_MAX:
            os.pwrite(head_fd, head._replace(end=size, ino=st.st_ino).text(), 0)
            self._rotate()
            return b""
        begins = b"" if size else b'"begins":true,'
        line = b'{"seq":%d,"prev":"%s",%s' % (head.seq + 1, head.hash.encode(), begins) + body[1:]
        self._write(fd, line + b"\n", size)
        head = _Head(head.seq + 1, size + len(line) + 1, st.st_ino, hashlib.sha256(line).hexdigest())
        os.pwrite(head_fd, head.text(), 0)
        return line

    @staticmethod
    def _write(fd: int, data: bytes, size: int) -> None:
        """All of it or nothing."""
        done = os.write(fd, data)
        if done != len(data):
            os.ftruncate(fd, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _catch_up(self, fd: int, head: _Head, st: os.stat_result) -> "Tuple[_Head, int]":
        """What is in the file behind the record that the head names: that of a writer that was killed before it
        had written the head, or in the middle of its record."""
        size = st.st_size
        start = head.end if head.ino == st.st_ino and head.end <= size else 0
        for first, length, digest, whole in _lines(fd, start, size):
            if not whole:
                return self._repair(fd, head, size, length, digest)
            link = _LINK.match(first)
            if link is not None and head.seq < int(link[1]) < _SEQ_MAX:
                head = head._replace(seq=int(link[1]), hash=digest)
        return head, size

    def _repair(self, fd: int, head: _Head, size: int, length: int, digest: str) -> "Tuple[_Head, int]":
        line = json.dumps({"seq": head.seq + 1, "prev": head.hash, "t": _time(), "event": "repair",
                           "uid": os.getuid(), "pid": os.getpid(), "bytes": length, "sha256": digest},
                          separators=(",", ":")).encode()
        self._write(fd, b"\n" + line + b"\n", size)
        return head._replace(seq=head.seq + 1, hash=hashlib.sha256(line).hexdigest()), size + len(line) + 2

    def _rotate(self) -> None:
        for i in range(FILES - 1, 0, -1):
            try:
                os.rename(self._path if i == 1 else f"{self._path}.{i - 1}", f"{self._path}.{i}")
            except FileNotFoundError:
                pass
