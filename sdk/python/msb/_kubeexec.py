"""Commands in a pod, by the exec subresource and its channel protocol (v4 and v5).

The protocol runs a program and carries its streams and nothing else: no variables, no directory, no signals, and a
program outlives its connection. So a few lines of shell go along. They set up the environment, say that the program
has begun and what became of it, and end it when nobody is at the other end any more. The image needs ``sh``.
"""
from __future__ import annotations

import asyncio
import base64
import json
import re
import shlex
import uuid
from typing import Awaitable, Callable, List, Mapping, Optional, Sequence, Tuple, Union

from ._command import CommandChannel, Ended
from ._websocket import WebSocket
from .errors import (CommandError, CommandNotExecutable, CommandNotFound, MsbError, ProtocolError,
                     SandboxEnded, UsageError)

V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"
PROTOCOLS = (V5, V4)
MAIN = "sandbox"  # the container's name
CHUNK = 32 * 1024
ARGS_MAX = 16 * 1024  # more than this goes by standard input: a request's head has a limit
DETACH_SECONDS = 0.2  # for a last word to get there before the end of the connection does
DRAIN_SECONDS = 0.5  # after its end, for what its other stream still has

_STDIN, _STDOUT, _STDERR, _STATUS, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_MARK = b"\x1e"

# $n is a word of our own that marks our lines, $m what to do about input, $d the directory, $p variables and long
# arguments in base64, or - if they come first on standard input.
#
# Input: with n there is none, and standard input is a lifeline: its end before the program's means that nobody is
# there any more, unless a line came before. With a number there are so many bytes. With b there are lines of base64
# up to a dot, since v4 cannot say that input has ended. With s it is the program's own.
#
# The shell catches signals that are sent to the process group, so that it can tell what became of the program.
# Programs that outlive it keep our streams open: its end is a line, not the end of the streams.
#
# k kills the session $g. A program may start another after the list of processes was made and before it is killed
# itself, so it looks again until there is nobody new: who is being killed starts no more.
_SESSION = """\
k() { read -r o l </proc/self/stat; x=" $o "; y=1
while [ "$y" ]; do y=
for s in /proc/[0-9]*/stat; do IFS= read -r l <"$s" || continue; i=${s#/proc/}; i=${i%/stat}; set -- ${l##*) }
[ "$4" = "$g" ] || continue; case $x in *" $i "*) continue;; esac; x="$x$i " y=1; kill -9 "$i"; done
done 2>/dev/null; }
"""

_WRAPPER = _SESSION + """\
n=$1 m=$2 d=$3 p=$4; shift 4
[ "$p" != - ] || IFS= read -r p
[ -z "$p" ] || eval "$(printf %s "$p" | base64 -d)"
f() { printf '\\036%s:!%s\\n' "$n" "$1"; exit 0; }
[ -z "$d" ] || cd "$d" 2>/dev/null || f cwd
case $1 in
*/*) [ -e "$1" ] || f 127; [ ! -d "$1" ] && [ -x "$1" ] || f 126;;
*) command -v -- "$1" >/dev/null || f 127;;
esac
b() { sh -c 'n=$1 g=$2; shift 2; printf "\\036%s:+%s %s\\n" "$n" "$g" $$; exec "$@"' msb "$n" $$ "$@"; }
trap : 1 2 3 10 12 15
exec 3<&0
case $m in
n) { read -r l && exit; g=$$; k; } <&3 >/dev/null 2>&1 3<&- & w=$!
b "$@" </dev/null 3<&-; r=$?; kill -9 $w 2>/dev/null;;
s) b "$@" <&3 3<&-; r=$?;;
b) while IFS= read -r l && [ "$l" != . ]; do printf %s "$l" | base64 -d; done <&3 | b "$@" 3<&-; r=$?;;
*) head -c "$m" <&3 | b "$@" 3<&-; r=$?;;
esac
printf '\\036%s:=%s\\n' "$n" "$r"
exit "$r"
"""

# Without the -- that would be right: dash and busybox do not take it there.
_SIGNAL = _SESSION + """\
g=$1
case $2 in all) k;; *) kill -"$2" -"$g";; esac
"""


def signal_command(group: int, number: Optional[int]) -> List[str]:
    """Sends a signal to a process group; without one, kills all of its session."""
    return ["sh", "-c", _SIGNAL, "msb", str(group), "all" if number is None else str(number)]


def _check(text: str, what: str) -> str:
    if "\0" in text:
        raise UsageError(f"invalid {what}: it has a NUL in it")
    return text


def _preparation(argv: Sequence[str], env: Mapping[str, str], hidden: Sequence[str]) -> Tuple[str, List[str]]:
    """Shell code in base64 for what does not belong into a URL, and the arguments that do: URLs are logged, and their
    length has a limit, and what is not UTF-8 gets lost in them. ``hidden`` are further arguments that do not."""
    lines: List[str] = []
    for key, value in env.items():
        if not re.match(r"[A-Za-z_][A-Za-z0-9_]*\Z", key):
            raise UsageError(f"invalid variable name {key!r}")
        lines.append(f"export {key}={shlex.quote(_check(str(value), f'variable {key}'))}")
    words = [_check(str(a), "argument") for a in argv]
    raw = b"".join(w.encode("utf-8", "surrogateescape") for w in words)
    if len(raw) > ARGS_MAX or raw.decode("utf-8", "replace").encode() != raw:
        lines.append("set -- " + " ".join(map(shlex.quote, words)))
        words = []
    if hidden:
        lines.append('set -- "$@" ' + " ".join(shlex.quote(_check(word, "argument")) for word in hidden))
    code = "\n".join(lines).encode("utf-8", "surrogateescape")
    if len(code) > 4 * 1024 * 1024:
        raise UsageError("the command line is too long")
    return base64.b64encode(code).decode(), words


class Plan:
    """A command line for the exec subresource, and what goes to its standard input first."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Optional[str], tty: bool,
                 stdin: Union[None, int, bool], half_close: bool, hidden: Sequence[str] = ()) -> None:
        """``stdin`` is None, its size, or True if it comes bit by bit. ``half_close`` is v5's ability. ``hidden`` are
        further arguments, which no URL has."""
        if not argv or not argv[0]:
            raise UsageError("no command given")
        if cwd is not None and not cwd.startswith("/"):
            raise UsageError(f"invalid directory {cwd!r}: expected an absolute path")
        self.command, self.tty = argv[0], tty
        self.mark = uuid.uuid4().hex
        self.lines = False
        if tty or (stdin is True and half_close):
            mode = "s"
        elif stdin is True:
            mode, self.lines = "b", True
        else:
            mode = "n" if stdin is None else str(int(stdin))
        code, words = _preparation(argv, env, hidden)
        self.first = b""
        if code and not tty:
            self.first, code = code.encode() + b"\n", "-"
        self.argv = ["sh", "-c", _WRAPPER, "msb", self.mark, mode, _check(cwd or "", "directory"), code, *words]
        self.lifeline = mode == "n"
        self.ends_by_close = mode == "s" and not tty

    def query(self) -> List[Tuple[str, str]]:
        """The parameters of the subresource."""
        more = [("stdin", "true"), ("stdout", "true"), ("stderr", "false" if self.tty else "true"),
                ("tty", "true" if self.tty else "false")]
        return [("container", MAIN), *(("command", word) for word in self.argv), *more]


def status_of(data: bytes) -> Union[int, str]:
    """What the status channel says: an exit code, or why there is none."""
    try:
        doc = json.loads(data)
        if doc.get("status") == "Success":
            return 0
        if doc.get("reason") == "NonZeroExitCode":
            causes = doc["details"]["causes"]
            code = next(int(c["message"]) for c in causes if c.get("reason") == "ExitCode")
            if 0 <= code <= 255:
                return code
        return str(doc.get("message") or "no reason given")[:2000]
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as e:
        raise ProtocolError("the Kubernetes API server sent an invalid status") from e


class KubeChannel(WebSocket, CommandChannel):
    """The connection of a running command."""

    def __init__(self, request: bytes, key: str, plan: Plan, limit: int, streaming: bool,
                 timeout: Optional[float], send_signal: Callable[[int, Optional[int]], Awaitable[None]],
                 why_lost: Callable[[str], Awaitable[MsbError]]) -> None:
        WebSocket.__init__(self, request, key, PROTOCOLS)
        CommandChannel.__init__(self, limit, streaming)
        self.plan, self.timeout = plan, timeout
        self.group = 0  # the process group of the shell that goes along
        self.detached = False
        self._send_signal, self._why_lost = send_signal, why_lost
        self._asking: Optional["asyncio.Task[None]"] = None
        self._killing: Optional["asyncio.Task[None]"] = None  # after its time
        self._signals: List["asyncio.Task[None]"] = []
        self._mark = _MARK + plan.mark.encode() + b":"
        self._held = b""  # may be the beginning of a line of ours
        self._code: Optional[int] = None
        self._timer: Optional[asyncio.TimerHandle] = None
        self._drain: Optional[asyncio.TimerHandle] = None
        self._resumed = float("-inf")  # when we last began to read again

    # --- messages ---

    def on_message(self, data: bytes) -> None:
        if not data:
            return
        channel, payload = data[0], data[1:]
        if channel == _STDOUT:
            if payload:
                self._stdout(payload)
        elif channel == _STDERR:
            if payload:
                self._output(1, payload)
        elif channel == _STATUS and payload:
            self._on_status(status_of(payload))

    def _stdout(self, data: bytes) -> None:
        """Output with our lines in it: they are taken out."""
        data, self._held = self._held + data, b""
        while data:
            at = data.find(_MARK)
            if at < 0:
                self._text(data)
                return
            rest = data[at:]
            if not rest.startswith(self._mark[:len(rest)]):
                self._text(data[:at + 1])
                data = data[at + 1:]
                continue
            self._text(data[:at])
            end = rest.find(b"\n")
            if end < 0:
                if len(rest) > 256:
                    raise ProtocolError("the sandbox broke the protocol: too long a line")
                self._held = rest
                return
            self._line(rest[len(self._mark):end].decode("ascii", "replace").strip())
            data = rest[end + 1:]

    def _text(self, data: bytes) -> None:
        if data and self.started.done():  # before: a shell that complains about itself
            self._output(0, data)

    def _line(self, text: str) -> None:
        match = re.match(r"\+(\d{1,9}) (\d{1,9})\Z", text)
        if match and not self.started.done():
            self.group = int(match[1])
            self.started.set_result(int(match[2]))
            if self.timeout is not None and self.timeout != float("inf"):
                self._timer = self.loop.call_later(self.timeout, self._too_late)
        elif text.startswith("!") and not self.started.done():
            self._end(_failure(text[1:], self.plan.command))
        elif re.match(r"=\d{1,3}\Z", text) and self.started.done() and self._code is None:
            self._code = min(int(text[1:]), 255)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._drain = self.loop.call_later(DRAIN_SECONDS, self._drained)

    def _on_status(self, status: Union[int, str]) -> None:
        if isinstance(status, int) and self.started.done():
            if self._code is None:
                self._code = status
            self._finish()
        elif isinstance(status, int):
            self._end(CommandError(f'failed to exec "{self.plan.command[:256]}"',
                                   [f"the sandbox's shell exited with {status}"]))
        elif self.started.done():
            self._end(SandboxEnded("sandbox ended while the command ran", [status]))
        elif "executable file not found" in status or "no such file" in status:
            self._end(CommandError(f'failed to exec "{self.plan.command[:256]}"', ["the image has no sh"]))
        else:
            self._end(CommandError(f'failed to exec "{self.plan.command[:256]}"', [status]))

    # --- its end ---

    def _finish(self) -> None:
        assert self._code is not None
        if self._killing is not None and self._code == 137:  # by us; its shell may have had the time to say so
            self._end(Ended(124, timed_out=True))
            return
        self._end(Ended(self._code, signal=self._code - 128 if 128 < self._code <= 192 else None))

    def _drained(self) -> None:
        if self._transport is None or self._transport.is_reading():  # else it is we who have not read it
            self._finish()

    def resume_reading(self) -> None:
        paused = self._transport is not None and not self._transport.is_reading()
        super().resume_reading()
        if paused:
            self._resumed = self.loop.time()
            if self._killing is not None and self._timer is not None:
                self._timer.cancel()
                self._timer = self.loop.call_later(DRAIN_SECONDS, self._too_late)
        if paused and self._drain is not None:
            self._drain.cancel()
            self._drain = self.loop.call_later(DRAIN_SECONDS, self._drained)

    def _too_late(self) -> None:
        """Its time is over. If we have not read, it may have ended before, and says so behind its output."""
        reading = self._transport is None or self._transport.is_reading()
        if reading and (self._killing is not None or self.loop.time() >= self._resumed + DRAIN_SECONDS):
            self._end(Ended(124, timed_out=True))
            return
        if self._killing is None and self.left_running:
            self._killing = asyncio.ensure_future(self._kill())
        self._timer = self.loop.call_later(DRAIN_SECONDS, self._too_late)

    async def _kill(self) -> None:
        try:
            await self._send_signal(self.group, None)
        except Exception:  # whatever it is: a command without an end is worse
            self._end(Ended(124, timed_out=True))

    def on_lost(self, error: Optional[MsbError]) -> None:
        if error is not None:
            self._end(error)
        elif self._code is not None:
            self._finish()
        elif self.given_up or not self.opened.done() or self.opened.exception() is not None:
            self._end(MsbError("the connection was closed"))
        else:
            self._asking = asyncio.ensure_future(self._ask_why())

    async def _ask_why(self) -> None:
        """Without a status there is no telling from here whether the sandbox ended or only the connection did."""
        try:
            error = await self._why_lost(self.last_words)
        except Exception as e:  # whatever it is: a command that never ends is worse
            error = MsbError(f"the connection was lost: {self.last_words}", [str(e)])
        self._end(error)

    def on_end(self, error: MsbError) -> None:
        self._end(error)

    def _end(self, how: Union[Ended, MsbError]) -> None:
        for timer in (self._timer, self._drain):
            if timer is not None:
                timer.cancel()
        if not self.started.done():
            self.started.set_exception(how if isinstance(how, MsbError) else MsbError("the command did not begin"))
            self.ended.cancel()
        elif not self.ended.done():
            if isinstance(how, MsbError):
                self.ended.set_exception(how)
            else:
                self.ended.set_result(how)
        self._wake_reader()
        self.abort()

    @property
    def left_running(self) -> bool:
        """Whether we do not know of its end, and want it."""
        return self.started.done() and self.group > 0 and self._code is None and not self.detached

    async def release(self) -> None:
        """Nobody waits for the command any more: it is killed if it still runs."""
        if self.left_running:
            self._code = 137
            try:
                await self._send_signal(self.group, None)
            except MsbError:
                pass  # the sandbox is gone, or its own lifeline does it

    async def detach(self) -> None:
        """Disconnects and leaves the command running; its further output is lost."""
        self.detached = True
        if self.plan.lifeline:
            self._send_stdin(b"\n")
            await WebSocket.drain(self)
            await asyncio.sleep(DETACH_SECONDS)
        self.close()

    # --- input ---

    def begin(self, data: Optional[bytes]) -> None:
        """Sends what comes first."""
        self._send_stdin(self.plan.first)
        if data:
            for at in range(0, len(data), CHUNK):
                self._send_stdin(data[at:at + CHUNK])

    def _send_stdin(self, data: bytes) -> None:
        if data:
            self.send(bytes([_STDIN]) + data)

    async def write_stdin(self, data: bytes) -> None:
        for at in range(0, len(data), CHUNK):
            if self.ended.done() or self._code is not None:
                return
            piece = data[at:at + CHUNK]
            self._send_stdin(base64.b64encode(piece) + b"\n" if self.plan.lines else piece)
            await self.drain()

    def close_stdin(self) -> None:
        if self.plan.lines:
            self._send_stdin(b".\n")
        elif self.plan.tty:
            self._send_stdin(b"\x04")
        elif self.plan.ends_by_close and self.opened.done() and self.opened.result() == V5:
            self.send(bytes([_CLOSE, _STDIN]))
        elif self.plan.ends_by_close:
            raise MsbError("the cluster cannot end a command's input", ["Kubernetes 1.30 and newer can"])

    # --- the rest ---

    def signal(self, number: int) -> None:
        if not self.ended.done():
            self._signals.append(asyncio.ensure_future(self._send_signal(self.group, number)))

    async def drain(self) -> None:
        await WebSocket.drain(self)
        waiting, self._signals = self._signals, []
        if waiting:
            await asyncio.gather(*waiting)

    def resize(self, rows: int, cols: int) -> None:
        size = {"Width": cols, "Height": rows}
        self.send(bytes([_RESIZE]) + json.dumps(size).encode())


def _failure(why: str, command: str) -> MsbError:
    """The error for a command that was not begun."""
    text = f'failed to exec "{command[:256]}"'
    if why == "127":
        return CommandNotFound(text, ["not found"])
    if why == "126":
        return CommandNotExecutable(text, ["not executable"])
    if why == "cwd":
        return CommandError(text, ["its directory cannot be entered"])
    raise ProtocolError("the sandbox broke the protocol: an unknown failure")
