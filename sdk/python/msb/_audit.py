"""The audit log (src/store/audit.h), which records commands of this package like those of ``msb exec``.

``$MSB_HOME/audit.log`` has one JSON object a line, appended with one write under a shared lock, and is rotated
under an exclusive one. Arguments are recorded, environment variables and secrets never. A record that cannot be
written does not fail the command: it is a warning, once.
"""
from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import stat
import time
from typing import Any, Dict, List, Optional, Sequence

logger = logging.getLogger(__name__)

ARGV_MAX = 4096
FILE_MAX = 10 * 1024 * 1024
FILES = 3
_NAME = "audit.log"
_TRIES = 100
_OPEN = (os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)


def _time() -> str:
    seconds, nanos = divmod(time.time_ns(), 10 ** 9)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{nanos:09}Z"


def _arguments(argv: Sequence[str]) -> "tuple[List[str], bool]":
    """As many arguments as fit; the last one may be cut."""
    kept: List[str] = []
    left = ARGV_MAX
    for word in argv:
        data = word.encode("utf-8", "surrogateescape")
        kept.append(data[:left].decode("utf-8", "backslashreplace"))
        if len(data) + 3 > left:  # with quotes and a comma
            return kept, True
        left -= len(data) + 3
    return kept, False


class Audit:
    """Writes records of one home."""

    def __init__(self, home: str, level: Optional[str]) -> None:
        self._path = os.path.join(home, _NAME)
        self._off = level == "off"
        self._complained = False

    def exec(self, sandbox: str, argv: Sequence[str], user: Optional[str], cwd: Optional[str],
             tty: bool) -> str:
        """A command is about to start; returns an id that its end is recorded with."""
        name = f"{os.getpid()}-{time.monotonic_ns():x}"
        words, cut = _arguments(argv)
        more: Dict[str, Any] = {"exec": name, "argv": words}
        for key, value in (("user", user), ("workdir", cwd), ("tty", tty or None),
                           ("cut", cut or None)):
            if value is not None:
                more[key] = value
        self._record("exec", sandbox, more)
        return name

    def exit(self, sandbox: str, name: str, code: int) -> None:
        """A command has ended."""
        self._record("exit", sandbox, {"exec": name, "code": code})

    def _record(self, event: str, sandbox: str, more: Dict[str, Any]) -> None:
        if self._off:
            return
        record = {"t": _time(), "event": event, "sandbox": sandbox, "uid": os.getuid(),
                  "pid": os.getpid(), **more}
        line = json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n"
        try:
            self._append(line.encode("utf-8", "replace"))
        except OSError as e:
            if not self._complained:
                logger.warning("cannot write to the audit log: %s: %s", event, e.strerror)
            self._complained = True

    def _append(self, line: bytes) -> None:
        for _ in range(_TRIES):
            fd = os.open(self._path, _OPEN, 0o600)
            try:
                if self._has_room(fd, len(line)):
                    if os.write(fd, line) != len(line):
                        os.write(fd, b"\n")  # so that the next record starts a line
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    return
            finally:
                os.close(fd)
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    def _has_room(self, fd: int, size: int) -> bool:
        """True: the file is locked, current, and has room. False: it has been rotated; open it again."""
        for lock in (fcntl.LOCK_SH, fcntl.LOCK_EX):
            fcntl.flock(fd, lock)
            st = os.fstat(fd)
            if not stat.S_ISREG(st.st_mode):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            try:
                now = os.lstat(self._path)
            except FileNotFoundError:
                return False
            if (now.st_dev, now.st_ino) != (st.st_dev, st.st_ino):
                return False
            if st.st_size == 0 or st.st_size + size <= FILE_MAX:
                return True
        for i in range(FILES - 1, 0, -1):
            try:
                os.rename(self._path if i == 1 else f"{self._path}.{i - 1}", f"{self._path}.{i}")
            except FileNotFoundError:
                pass
        return False
