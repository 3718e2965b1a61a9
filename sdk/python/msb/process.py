"""A command running in a sandbox."""
from __future__ import annotations

import asyncio
import codecs
import inspect
import signal as signals
from types import TracebackType
from typing import Any, AsyncIterator, Awaitable, Callable, List, Optional, Protocol, Type, Union

from ._cli import uncancelled
from ._command import CommandChannel, Ended
from ._waiting import bounded
from .errors import CommandTimeout, MsbError, UsageError
from .types import ExecResult, OutputChunk

__all__ = ["Process"]

Callback = Callable[[str], Union[None, Awaitable[Any]]]

_STREAMS = ("stdout", "stderr")


def _decode(parts: List[bytes], cut: bool) -> str:
    """Text; half a character at a cut is dropped."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return decoder.decode(b"".join(parts), final=not cut)


class Releasable(Protocol):
    """What goes on for the sake of a command, until it has ended."""

    async def release(self) -> None:
        """It has ended, or nobody waits for it any more."""


class Process:
    """A running command; returned by :meth:`SandboxHandle.spawn`.

    It lives as long as the connection: closing this object, leaving its ``async with`` block or the
    end of our program kills the command, :meth:`detach` leaves it running.

    What it prints is kept for :meth:`wait`, up to a limit. Iterating over the process takes the
    output instead, piece by piece; while nobody takes it the command has to wait. ::

        async with await sb.spawn("make", ["-j2"]) as p:
            async for chunk in p:
                print(chunk.stream, chunk.text, end="")
        print((await p.wait()).exit_code)
    """

    def __init__(self, channel: CommandChannel, holder: Optional[Releasable], pid: int, tty: bool,
                 stdin: bool) -> None:
        self._channel, self._holder = channel, holder
        self._tty, self._stdin = tty, stdin
        self._pump: Optional["asyncio.Task[None]"] = None
        self._readers = 0  # iterations under way
        self.pid = pid
        """Its process id in the guest."""

    # --- state ---

    @property
    def returncode(self) -> Optional[int]:
        """Its exit code; None while it runs, or if it is unknown."""
        ended = self._channel.ended
        if not ended.done() or ended.cancelled() or ended.exception() is not None:
            return None
        return ended.result().exit_code

    def _result(self, how: Ended) -> ExecResult:
        channel = self._channel
        cut = channel.truncated or how.timed_out
        out, err = (_decode(parts, cut) for parts in channel.kept)
        return ExecResult(out, err, how.exit_code, cut, how.timed_out, how.out_of_memory)

    # --- its end ---

    async def wait(self, timeout: Optional[float] = None) -> ExecResult:
        """Waits for its end. :class:`CommandTimeout` if that takes longer than ``timeout`` seconds;
        the command goes on then. Output that was not iterated over is in the result."""
        await self._take_over()
        waiting = asyncio.shield(self._channel.ended)
        try:
            how = await (waiting if timeout is None else bounded(waiting, timeout))
        except asyncio.TimeoutError:
            raise CommandTimeout(f"command still runs after {timeout:g} s") from None
        except MsbError:
            if self._pump is not None:
                await self._pump  # a callback that failed is the better reason
            await self._release()
            raise
        if self._pump is not None:
            await self._pump
        await self._release()
        return self._result(how)

    async def _take_over(self) -> None:
        """Reads output that nothing iterates over: the command would wait forever otherwise."""
        if not self._channel.streaming or self._pump is not None:
            return
        for _ in range(3):  # an iteration that was left is closed by the loop
            if not self._readers:
                self._start_pump(None, None)
                return
            await asyncio.sleep(0)

    async def kill(self, signal: int = signals.SIGKILL) -> None:
        """Sends a signal to its process group."""
        if not 1 <= signal <= 64:
            raise UsageError(f"invalid signal {signal}")
        self._channel.signal(int(signal))
        await self._channel.drain()

    async def terminate(self) -> None:
        """Sends SIGTERM."""
        await self.kill(signals.SIGTERM)

    async def detach(self) -> None:
        """Disconnects and leaves the command running; its output goes to the logs."""
        await self._channel.detach()
        await self._release()

    async def close(self) -> None:
        """Ends the connection, which kills the command if it still runs."""
        self._channel.abort()
        if self._pump is not None and not self._pump.done():
            self._pump.cancel()
        if not self._channel.ended.done():
            self._channel.on_end(MsbError("the connection was closed"))
        await self._release()

    async def _release(self) -> None:
        holder, self._holder = self._holder, None
        if holder is not None:
            await holder.release()

    async def __aenter__(self) -> "Process":
        return self

    async def __aexit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                        trace: Optional[TracebackType]) -> None:
        await uncancelled(self.close())

    # --- input ---

    async def write_stdin(self, data: Union[bytes, str]) -> None:
        """Sends input, waiting while the command does not read; needs ``stdin=True`` in ``spawn``.
        Input for a command that has ended is dropped."""
        if not self._stdin:
            raise UsageError("the command has no input", ["spawn it with stdin=True"])
        await self._channel.write_stdin(data.encode() if isinstance(data, str) else bytes(data))

    async def close_stdin(self) -> None:
        """Ends the input."""
        self._channel.close_stdin()
        await self._channel.drain()

    async def resize(self, rows: int, cols: int) -> None:
        """Changes the size of its terminal."""
        if not self._tty:
            raise UsageError("the command has no terminal", ["spawn it with tty=True"])
        self._channel.resize(rows, cols)

    # --- output ---

    def __aiter__(self) -> AsyncIterator[OutputChunk]:
        self._channel.start_streaming()
        return self._chunks()

    async def _chunks(self) -> AsyncIterator[OutputChunk]:
        self._readers += 1
        try:
            while True:
                chunk = await self._channel.next_chunk()
                if chunk is None:
                    return
                yield OutputChunk(_STREAMS[chunk[0]], chunk[1])
        finally:
            self._readers -= 1

    def _start_pump(self, on_stdout: Optional[Callback], on_stderr: Optional[Callback]) -> None:
        """Passes output to callbacks and keeps it too."""
        self._pump = asyncio.ensure_future(self._run_pump((on_stdout, on_stderr)))

    async def _run_pump(self, callbacks: "tuple[Optional[Callback], Optional[Callback]]") -> None:
        decoders = [codecs.getincrementaldecoder("utf-8")("replace") for _ in _STREAMS]

        async def tell(stream: int, text: str) -> None:
            call = callbacks[stream]
            if call is not None and text:
                answer = call(text)
                if inspect.isawaitable(answer):
                    await answer

        try:
            while True:
                chunk = await self._channel.next_chunk()
                if chunk is None:
                    break
                self._channel.keep(*chunk)
                await tell(chunk[0], decoders[chunk[0]].decode(chunk[1]))
            for stream, decoder in enumerate(decoders):
                await tell(stream, decoder.decode(b"", final=True))
        except BaseException:
            self._channel.abort()  # a callback failed: that ends the command
            raise

    async def _feed(self, data: bytes) -> None:
        await self._channel.write_stdin(data)
        self._channel.close_stdin()
