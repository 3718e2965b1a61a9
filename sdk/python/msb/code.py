"""Code that shares its variables: a Python interpreter that stays in the sandbox."""
from __future__ import annotations

import asyncio
import base64
import binascii
import codecs
import contextlib
import inspect
import json
import signal
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Callable, Dict, List, Mapping, Optional, Type

from ._cli import uncancelled
from ._command import _seen
from ._exec import checked_env
from .errors import CommandTimeout, MsbError, ProtocolError, SandboxEnded, UsageError
from .process import Callback, Process

__all__ = ["CodeContext", "Execution", "ExecutionError", "Logs", "Result"]

INTERRUPT_SECONDS = 5.0
"""How long code may take to end after an interrupt; then its interpreter is killed."""
_OVERHEAD = 1 << 20
_WORDS = 2000
_FORMS = ("text", "html", "markdown", "svg", "latex", "javascript", "png", "jpeg", "json")


@dataclass(frozen=True)
class Result:
    """The value of the last expression. ``text`` is its ``repr``; the other forms are there if it has them,
    as in a notebook (``_repr_html_`` and so on; dicts and lists have ``json``). Images are base64."""

    text: str = ""
    html: Optional[str] = None
    markdown: Optional[str] = None
    svg: Optional[str] = None
    latex: Optional[str] = None
    javascript: Optional[str] = None
    png: Optional[str] = None
    jpeg: Optional[str] = None
    json: Any = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class ExecutionError:
    """The exception that ended the code: its type, its text, and the traceback as Python prints it."""

    name: str
    value: str
    traceback: str


@dataclass
class Logs:
    """What the code wrote, piece by piece."""

    stdout: List[str] = field(default_factory=list)
    stderr: List[str] = field(default_factory=list)


@dataclass
class Execution:
    """What came of a piece of code. ``truncated``: output beyond the limit was dropped."""

    results: List[Result] = field(default_factory=list)
    logs: Logs = field(default_factory=Logs)
    error: Optional[ExecutionError] = None
    execution_count: int = 0
    truncated: bool = False

    @property
    def text(self) -> Optional[str]:
        """The value of the last expression as text; None without one."""
        return self.results[-1].text if self.results else None

    @property
    def stdout(self) -> str:
        """All it wrote to standard output."""
        return "".join(self.logs.stdout)

    @property
    def stderr(self) -> str:
        """All it wrote to standard error."""
        return "".join(self.logs.stderr)


async def _call(callback: Optional[Callable[[Any], Any]], value: Any) -> None:
    if callback is not None:
        answer = callback(value)
        if inspect.isawaitable(answer):
            await answer


def _text(value: Any) -> Optional[str]:
    return value if isinstance(value, str) else None


def _result(forms: Any) -> Result:
    """The sandbox says what it is: everything is checked."""
    if not isinstance(forms, dict):
        raise ProtocolError("the sandbox broke the protocol: a result without forms")
    found: Dict[str, Any] = {form: _text(forms.get(form)) for form in _FORMS if form != "json"}
    found["text"] = found["text"] or ""
    return Result(json=forms.get("json"), **found)


class _Run:
    """One piece of code under way."""

    def __init__(self, limit: int, on_stdout: Optional[Callback], on_stderr: Optional[Callback],
                 on_result: Optional[Callable[[Result], Any]],
                 on_error: Optional[Callable[[ExecutionError], Any]]) -> None:
        self.made = Execution()
        self.failure: Optional[BaseException] = None  # of a callback
        self._callbacks = {"stdout": on_stdout, "stderr": on_stderr}
        self._on_result, self._on_error = on_result, on_error
        self._left = {"stdout": limit, "stderr": limit}
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in self._left}

    async def _output(self, stream: str, data: bytes, final: bool = False) -> None:
        kept = data[: self._left[stream]]
        self.made.truncated = self.made.truncated or len(kept) < len(data)
        self._left[stream] -= len(kept)
        text = self._decoders[stream].decode(kept, final)
        if text:
            getattr(self.made.logs, stream).append(text)
            await _call(self._callbacks[stream], text)

    async def take(self, message: Mapping[str, Any]) -> bool:
        """True: that was the end."""
        kind = message.get("kind")
        if kind == "output" and message.get("stream") in self._left:
            try:
                data = base64.b64decode(str(message.get("data")), validate=True)
            except (binascii.Error, ValueError):
                raise ProtocolError("the sandbox broke the protocol: output that is not base64") from None
            await self._output(message["stream"], data)
        elif kind == "result":
            result = _result(message.get("forms"))
            self.made.results.append(result)
            await _call(self._on_result, result)
        elif kind == "end":
            for stream in self._left:
                await self._output(stream, b"", final=True)
            error, count = message.get("error"), message.get("count")
            self.made.execution_count = count if isinstance(count, int) else 0
            if isinstance(error, dict):
                self.made.error = ExecutionError(*(_text(error.get(k)) or "" for k in ("name", "value", "traceback")))
                await _call(self._on_error, self.made.error)
            return True
        return False


class CodeContext:
    """An interpreter; returned by :meth:`SandboxHandle.code_context`. One piece of code runs at a time, others
    wait for their turn. ::

        async with await sb.code_context() as python:
            await python.run("x = 20")
            print((await python.run("x + 22")).text)
    """

    def __init__(self, process: Process, limit: int) -> None:
        self._process, self._limit = process, limit
        self._chunks = process.__aiter__()
        self._buffer = bytearray()
        self._words = ""  # its last ones on stderr
        self._turn = asyncio.Lock()
        self.version = ""
        """The interpreter's version."""

    @classmethod
    async def _begin(cls, process: Process, limit: int) -> "CodeContext":
        self = cls(process, limit)
        try:
            message = await self._next()
        except BaseException:
            await uncancelled(process.close())
            raise
        if message is None:
            await process.close()
            last = self._words.strip().splitlines()[-1:] or ["it ended at once"]
            raise MsbError(f"the interpreter did not start: {last[0]}",
                           ["the image needs python3, 3.8 or newer: try python:3.11-slim"])
        self.version = _text(message.get("version")) or ""
        return self

    @property
    def closed(self) -> bool:
        """Whether the interpreter has ended, and its variables with it."""
        return self._process._channel.ended.done()

    async def _next(self) -> Optional[Mapping[str, Any]]:
        """The next message; None at the end."""
        while b"\n" not in self._buffer:
            if len(self._buffer) > 2 * self._limit + _OVERHEAD:
                raise ProtocolError("the sandbox broke the protocol: an answer is too long")
            try:
                chunk = await self._chunks.__anext__()
            except StopAsyncIteration:
                return None
            if chunk.stream == "stdout":
                self._buffer += chunk.data
            else:
                self._words = (self._words + chunk.text)[-_WORDS:]
        line, _, rest = self._buffer.partition(b"\n")
        self._buffer = bytearray(rest)
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise ProtocolError("the sandbox broke the protocol: an answer that is not JSON")
        return message

    async def run(self, code: str, *, timeout: Optional[float] = 300,
                  env: Optional[Mapping[str, str]] = None, on_stdout: Optional[Callback] = None,
                  on_stderr: Optional[Callback] = None, on_result: Optional[Callable[[Result], Any]] = None,
                  on_error: Optional[Callable[[ExecutionError], Any]] = None) -> Execution:
        """Runs code with the variables of what ran before. ``await`` works in it, ``input`` does not; an
        exception is in the result. :class:`CommandTimeout` if it takes longer than ``timeout`` seconds: it is
        interrupted then, as by Ctrl-C, and keeps its variables, unless it ignores that. So it is if a callback
        raises, and that is raised here."""
        if not isinstance(code, str):
            raise UsageError("code is a string")
        request = json.dumps({"code": code, "env": checked_env(env or {})}) + "\n"
        run = _Run(self._limit, on_stdout, on_stderr, on_result, on_error)
        async with self._turn:
            if self.closed:
                raise SandboxEnded("the interpreter has ended", ["its variables are gone: begin another one"])
            work = asyncio.ensure_future(self._work(request, run))
            work.add_done_callback(_seen)
            try:
                await asyncio.wait({work}, timeout=timeout)
                if work.done():
                    return work.result()
                await self._interrupt(work)
                if run.failure is not None:
                    raise run.failure
            except BaseException:
                if not work.done():
                    work.cancel()
                    await uncancelled(self.close())  # what it was doing is not known any more
                raise
            raise CommandTimeout(f"the code still ran after {timeout:g} s, and was interrupted",
                                 ["its variables are gone: begin another interpreter"] if self.closed else [])

    async def _work(self, request: str, run: _Run) -> Execution:
        try:
            await self._process.write_stdin(request)
            while True:
                message = await self._next()
                if message is None:
                    break
                try:
                    if await run.take(message):
                        return run.made
                except (ProtocolError, asyncio.CancelledError):
                    raise
                except BaseException as e:  # of a callback
                    run.failure = e
                    if message.get("kind") != "end":
                        with contextlib.suppress(MsbError):  # it is closed then
                            await self._interrupt(asyncio.ensure_future(self._skip()))
                    raise
        except ProtocolError:
            await self.close()
            raise
        how = await self._process.wait()
        raise SandboxEnded(f"the interpreter ended while the code ran (exit code {how.exit_code})",
                           ["its variables are gone: begin another one"])

    async def _skip(self) -> None:
        """Reads what the code still says, so that the next one's answer comes next."""
        try:
            message: Optional[Mapping[str, Any]] = {}
            while message is not None and message.get("kind") != "end":
                message = await self._next()
        except MsbError:
            await self.close()

    async def _interrupt(self, work: "asyncio.Future[Any]") -> None:
        try:
            await self._process.kill(signal.SIGINT)
            await asyncio.wait({work}, timeout=INTERRUPT_SECONDS)
        finally:
            if not work.done():
                work.cancel()
                await uncancelled(self.close())

    async def close(self) -> None:
        """Ends the interpreter."""
        await self._process.close()

    async def __aenter__(self) -> "CodeContext":
        return self

    async def __aexit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                        trace: Optional[TracebackType]) -> None:
        await uncancelled(self.close())
