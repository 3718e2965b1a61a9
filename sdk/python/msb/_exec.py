"""One command over one connection: EXEC, its output, its end."""
from __future__ import annotations

import asyncio
import math
from typing import Callable, Dict, Mapping, Optional, Sequence, Tuple, Union

from . import _proto as proto
from ._channel import Channel
from ._command import CommandChannel, Ended
from ._waiting import bounded
from .errors import (CommandError, CommandNotExecutable, CommandNotFound, CommandTimeout, MsbError,
                     ProtocolError, SandboxEnded, TooManyCommands, UsageError)

BACKSTOP = 5.0  # how much longer than the time limit the agent may take
START_SECONDS = 60.0  # and how much longer a command with a time limit may take to begin: the guest may still boot


class GoingDown(MsbError):
    """The sandbox is shutting down or has no room, and has done nothing: try again."""


def timeout_ms(timeout: Optional[float]) -> int:
    """A time limit in the protocol's unit; 0 = none."""
    if timeout is None or timeout == math.inf:
        return 0
    if not timeout > 0:
        raise UsageError(f"invalid timeout {timeout!r}: expected a number of seconds above 0")
    return max(1, math.ceil(timeout * 1000))


def checked_env(env: Mapping[str, str]) -> Dict[str, str]:
    """Variables as an environment takes them."""
    for key, value in env.items():
        if not key or "=" in key:
            raise UsageError(f"invalid variable name {key!r}")
        if "\0" in f"{key}{value}":
            raise UsageError(f"variable {key!r} contains a NUL character")
    return {key: str(value) for key, value in env.items()}


def exec_frame(argv: Sequence[str], *, env: Mapping[str, str], cwd: Optional[str],
               user: Optional[str], tty: Optional[Tuple[int, int]], stdin: bool,
               timeout: Optional[float]) -> bytes:
    """The EXEC message."""
    if not argv or not argv[0]:
        raise UsageError("no command given")
    parts = [proto.text_field(proto.F_ARG, str(a), "an argument") for a in argv]
    for key, value in checked_env(env).items():
        parts.append(proto.text_field(proto.F_ENV, f"{key}={value}", f"variable {key}"))
    if cwd is not None:
        if not cwd.startswith("/"):
            raise UsageError(f"invalid directory {cwd!r}: expected an absolute path")
        parts.append(proto.text_field(proto.F_CWD, cwd, "the directory"))
    if user is not None:
        if not user:
            raise UsageError("invalid user '': expected NAME or UID")
        parts.append(proto.text_field(proto.F_USER, user, "the user"))
    if tty is not None:
        parts += [proto.u32(proto.F_TTY, 1), proto.u32(proto.F_ROWS, tty[0]),
                  proto.u32(proto.F_COLS, tty[1])]
    if not stdin:
        parts.append(proto.u32(proto.F_NO_STDIN, 1))
    ms = timeout_ms(timeout)
    if ms:
        parts.append(proto.u64(proto.F_TIMEOUT_MS, ms))
    return proto.frame(proto.EXEC, b"".join(parts))


def failure_code(error: MsbError) -> int:
    """The exit code of ``msb exec`` for this error."""
    return (127 if isinstance(error, CommandNotFound) else
            126 if isinstance(error, CommandNotExecutable) else 1)


def fail_error(found: Sequence[proto.Field], command: str) -> MsbError:
    """The error for a FAIL before the start."""
    kind, text = proto.number(found, proto.F_KIND), proto.text(found, proto.F_TEXT)
    if kind == proto.FAIL_STATE:
        return GoingDown(text)
    error = {proto.FAIL_NOT_FOUND: CommandNotFound,
             proto.FAIL_NOT_EXECUTABLE: CommandNotExecutable,
             proto.FAIL_LIMIT: TooManyCommands}.get(kind or 0, CommandError)
    return error(f'failed to exec "{command[:256]}"', [text] if text else [])


class ExecChannel(Channel, CommandChannel):
    """The connection of a running command."""

    def __init__(self, command: str, limit: int, streaming: bool, timeout: Optional[float],
                 on_code: Callable[[int], None]) -> None:
        Channel.__init__(self)
        CommandChannel.__init__(self, limit, streaming)
        self._on_code = on_code
        self.command, self.timeout = command, timeout
        self._detached = False
        self._unacked = 0
        self._stdin_waits: Optional["asyncio.Future[None]"] = None
        self._backstop: Optional[asyncio.TimerHandle] = None

    def begin(self, data: bytes) -> None:
        """Sends EXEC, and what goes with it."""
        self.send(data)
        if timeout_ms(self.timeout):
            assert self.timeout is not None
            self._backstop = self.loop.call_later(self.timeout + START_SECONDS, self._end, CommandTimeout(
                f'the sandbox did not begin "{self.command[:256]}"'))

    # --- frames ---

    def on_frame(self, kind: int, payload: bytes) -> None:
        if kind in (proto.STDOUT, proto.STDERR):
            if not self.started.done():
                raise ProtocolError("the sandbox broke the protocol: output before STARTED")
            self._output(int(kind == proto.STDERR), payload)
        elif kind == proto.STARTED:
            self._on_started(proto.fields(payload))
        elif kind == proto.STDIN_ACK:
            self._on_ack(proto.number(proto.fields(payload), proto.F_BYTES) or 0)
        elif kind == proto.FAIL:
            self._on_fail(proto.fields(payload))
        elif kind == proto.EXIT:
            self._on_exit(proto.fields(payload))

    def _on_started(self, found: Sequence[proto.Field]) -> None:
        if self.started.done():
            raise ProtocolError("the sandbox broke the protocol: STARTED twice")
        self.started.set_result(proto.number(found, proto.F_PID) or 0)
        if timeout_ms(self.timeout):
            assert self.timeout is not None
            if self._backstop is not None:
                self._backstop.cancel()
            self._backstop = self.loop.call_later(self.timeout + BACKSTOP, self._too_late)

    def _on_fail(self, found: Sequence[proto.Field]) -> None:
        if self.started.done() and proto.number(found, proto.F_KIND) == proto.FAIL_OUTPUT:
            self.truncated = True  # by the sandbox's --max-output, which ends the command
            self._end(Ended(128 + 9, signal=9))
        elif self.started.done():
            text = proto.text(found, proto.F_TEXT)
            self._end(SandboxEnded("sandbox ended while the command ran", [text] if text else []))
        else:
            self._end(fail_error(found, self.command))

    def _on_exit(self, found: Sequence[proto.Field]) -> None:
        code = proto.number(found, proto.F_CODE)
        sig = proto.number(found, proto.F_SIGNAL)
        oom = (proto.number(found, proto.F_OOM) or 0) > 0
        if not self.started.done():
            raise ProtocolError("the sandbox broke the protocol: EXIT before STARTED")
        if timeout_ms(self.timeout) and proto.number(found, proto.F_TIMED_OUT) == 1:
            self._end(Ended(124, timed_out=True))
        elif code is not None and code <= 255:
            self._end(Ended(code, out_of_memory=oom))
        elif sig is not None and 1 <= sig <= 64:
            self._end(Ended(128 + sig, signal=sig, out_of_memory=oom))
        else:
            raise ProtocolError("the sandbox broke the protocol: no valid exit code")

    def _on_ack(self, count: int) -> None:
        if count > self._unacked:
            raise ProtocolError("the sandbox broke the protocol: more input acknowledged than was sent")
        self._unacked -= count
        self._wake_stdin()

    def on_end(self, error: MsbError) -> None:
        self._end(error)

    def _end(self, how: Union[Ended, MsbError]) -> None:
        if self._backstop is not None:
            self._backstop.cancel()
        left = self._detached and isinstance(how, MsbError)  # it goes on without us
        if not isinstance(how, GoingDown) and not left and not self.ended.done():
            self._on_code(how.exit_code if isinstance(how, Ended) else failure_code(how))
        if not self.started.done():
            if isinstance(how, MsbError):
                self.started.set_exception(how)
                self.ended.cancel()
        elif not self.ended.done():
            if isinstance(how, MsbError):
                self.ended.set_exception(how)
            else:
                self.ended.set_result(how)
        self._wake_reader()
        self._wake_stdin()
        self.abort()

    def _too_late(self) -> None:
        """The agent has not killed it in time: it does not answer, or waits for us to read."""
        if self._transport is not None and not self._transport.is_reading():
            self._backstop = self.loop.call_later(1.0, self._too_late)
        else:
            self._end(Ended(124, timed_out=True))

    # --- input ---

    async def write_stdin(self, data: bytes) -> None:
        """Sends input, within the agent's window; what the command does not read is lost."""
        view = memoryview(data)
        while len(view) and not self.ended.done():
            room = min(proto.STDIN_WINDOW - self._unacked, proto.DATA_MAX, len(view))
            if room <= 0:
                if self._stdin_waits is None:
                    self._stdin_waits = self.loop.create_future()
                await asyncio.shield(self._stdin_waits)
                continue
            self._unacked += room
            self.send(proto.frame(proto.STDIN, bytes(view[:room])))
            view = view[room:]
            await self.drain()

    def early_stdin(self, data: bytes) -> bytes:
        """The frames of a complete small input, sent right after EXEC."""
        self._unacked += len(data)
        body = proto.frame(proto.STDIN, data) if data else b""
        return body + proto.frame(proto.STDIN_EOF)

    def close_stdin(self) -> None:
        """The end of the input."""
        self.send(proto.frame(proto.STDIN_EOF))

    def _wake_stdin(self) -> None:
        if self._stdin_waits is not None:
            self._stdin_waits.set_result(None)
            self._stdin_waits = None

    # --- the rest ---

    def signal(self, number: int) -> None:
        """Sends a signal to the command's process group."""
        self.send(proto.frame(proto.SIGNAL, proto.u32(proto.F_SIGNAL, number)))

    def resize(self, rows: int, cols: int) -> None:
        """Sets the size of the terminal."""
        self.send(proto.frame(proto.RESIZE, proto.u32(proto.F_ROWS, rows) +
                              proto.u32(proto.F_COLS, cols)))

    async def detach(self) -> None:
        """Disconnects and leaves the command running."""
        self._detached = True
        self.send(proto.frame(proto.DETACH))
        self.streaming, self.limit = False, 0  # further output is dropped
        self.queue.clear()
        self.resume_reading()
        self.finish_sending()
        try:
            await bounded(asyncio.shield(self.ended), 1.0)
        except (asyncio.TimeoutError, MsbError):
            pass
        self.abort()
