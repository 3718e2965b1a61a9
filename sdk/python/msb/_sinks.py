"""Where audit records go besides the log, if the host's policy says so (src/store/audit_sinks.h): syslog, the journal,
a program that reads them. One that cannot be reached costs a warning, once, and no record: the log has them all."""
from __future__ import annotations

import logging
import os
import select
import socket
import subprocess
import syslog
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

logger = logging.getLogger(__name__)

SYSLOG = "/dev/log"
JOURNAL = "/run/systemd/journal/socket"
_WAIT = 0.5
_DATAGRAM_MAX = 128 * 1024
_LEVELS = ("off", "denied", "all")


class Settings(NamedTuple):
    """What a policy says about the audit log."""

    level: str = ""
    hash_argv: bool = False
    syslog: bool = False
    journald: bool = False
    command: Sequence[str] = ()

    def at_least(self, asked: Optional[str]) -> str:
        """The level, of what the environment asks for and the policy demands."""
        given = [x for x in (asked, self.level) if x in _LEVELS]
        return max(given, key=_LEVELS.index) if given else "denied"


def from_policy(shown: Sequence[Dict[str, Any]]) -> Settings:
    """Of ``msb policy show --format json``: the most that any file asks for, the program of the first that has one."""
    level, hashed, to_syslog, to_journal = "", False, False, False
    command: List[str] = []
    for setting in shown:
        key, value = setting.get("key"), setting.get("value")
        if setting.get("section") != "audit":
            continue
        if key == "level" and value in _LEVELS:
            level = max(level or "off", str(value), key=_LEVELS.index)
        hashed = hashed or (key == "argv" and value == "hash")
        to_syslog = to_syslog or (key == "syslog" and value is True)
        to_journal = to_journal or (key == "journald" and value is True)
        if key == "command" and isinstance(value, list):
            command = command or [str(word) for word in value]
    return Settings(level, hashed, to_syslog, to_journal, tuple(command))


class Sinks:
    """Those of one process; a fork begins anew."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._sockets: Dict[str, Optional[socket.socket]] = {}
        self._program: Optional["subprocess.Popen[bytes]"] = None
        self._dead: List[str] = []

    def send(self, settings: Settings, record: Dict[str, Any], line: bytes) -> None:
        """A record, as it is in the log, to all that the policy names."""
        if self._pid != os.getpid():
            self._begin()
        if settings.syslog:
            head = b"<%d>msb[%d]: " % (syslog.LOG_AUTHPRIV | syslog.LOG_NOTICE, os.getpid())
            self._try(SYSLOG, lambda: self._datagram(SYSLOG, head + line[:_DATAGRAM_MAX]))
        if settings.journald:
            self._try(JOURNAL, lambda: self._datagram(JOURNAL, _fields(record) + line[:_DATAGRAM_MAX] + b"\n"))
        if settings.command:
            self._try(settings.command[0], lambda: self._feed(settings.command, line + b"\n"))

    def _try(self, name: str, fn: Callable[[], None]) -> None:
        if name in self._dead:
            return
        try:
            fn()
        except OSError as e:
            self._dead.append(name)
            logger.warning("cannot send audit records to %s: %s; they are in the audit log", name, e.strerror or e)

    def _datagram(self, path: str, data: bytes) -> None:
        sock = self._sockets.get(path)
        if sock is None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            sock.settimeout(_WAIT)
            sock.connect(path)
            self._sockets[path] = sock
        sock.send(data)

    def _feed(self, argv: Sequence[str], data: bytes) -> None:
        if self._program is None:
            self._program = subprocess.Popen(
                list(argv), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True, env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
                restore_signals=True)
            assert self._program.stdin is not None
            os.set_blocking(self._program.stdin.fileno(), False)
        assert self._program.stdin is not None
        fd, until = self._program.stdin.fileno(), time.monotonic() + _WAIT
        while data:
            try:
                data = data[os.write(fd, data):]
            except BlockingIOError:
                left = until - time.monotonic()
                if left <= 0:
                    raise TimeoutError(0, "it does not read") from None
                select.select([], [fd], [], left)


def _fields(record: Dict[str, Any]) -> bytes:
    """A value with a newline in it would be a field of its own: such names are in the record alone."""
    event, sandbox = str(record.get("event") or ""), str(record.get("sandbox") or "")
    sandbox = "" if "\n" in sandbox else sandbox
    text = f"MESSAGE={event}{' ' if sandbox else ''}{sandbox[:256]}\nPRIORITY={syslog.LOG_NOTICE}\nSYSLOG_IDENTIFIER=msb\n"
    text += f"MSB_EVENT={event}\n" + (f"MSB_SANDBOX={sandbox[:1024]}\n" if sandbox else "")
    return text.encode("utf-8", "replace") + b"MSB_RECORD="
