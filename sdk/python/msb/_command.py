"""A running command, whatever its connection is: its output, kept or queued, and its end."""
from __future__ import annotations

import asyncio
import collections
from dataclasses import dataclass
from typing import Any, Deque, List, Optional, Tuple

from .errors import MsbError

STREAM_WINDOW = 1024 * 1024  # bytes queued for a reader before the sandbox has to wait


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    exit_code: int
    signal: Optional[int] = None
    timed_out: bool = False
    out_of_memory: bool = False


def _seen(future: "asyncio.Future[Any]") -> None:
    """Marks an error as seen: nothing may be waiting for it."""
    if not future.cancelled():
        future.exception()


class CommandChannel:
    """What :class:`msb.Process` needs of a connection.

    Output is kept, up to ``limit`` bytes of each stream; or, with ``streaming``, queued for a
    reader, and the sandbox waits while too much is queued.
    """

    def __init__(self, limit: int, streaming: bool) -> None:
        loop = asyncio.get_running_loop()
        self.limit, self.streaming = limit, streaming
        self.started: "asyncio.Future[int]" = loop.create_future()
        self.ended: "asyncio.Future[Ended]" = loop.create_future()
        self.started.add_done_callback(_seen)
        self.ended.add_done_callback(_seen)
        self.kept: Tuple[List[bytes], List[bytes]] = ([], [])
        self.sizes = [0, 0]
        self.truncated = False
        self.queue: Deque[Tuple[int, bytes]] = collections.deque()
        self.queued = 0
        self._reader_waits: Optional["asyncio.Future[None]"] = None

    # For subclasses.

    def pause_reading(self) -> None:
        """Stops reading, so that the sandbox waits."""
        raise NotImplementedError

    def resume_reading(self) -> None:
        """Reads again."""
        raise NotImplementedError

    def abort(self) -> None:
        """Closes at once."""
        raise NotImplementedError

    def on_end(self, error: MsbError) -> None:
        """There will be no more: the connection was lost, or closed by us."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Waits until what was sent is on its way."""
        raise NotImplementedError

    async def write_stdin(self, data: bytes) -> None:
        """Sends input; what the command does not read is lost."""
        raise NotImplementedError

    def close_stdin(self) -> None:
        """The end of the input."""
        raise NotImplementedError

    def signal(self, number: int) -> None:
        """Sends a signal to the command's process group."""
        raise NotImplementedError

    def resize(self, rows: int, cols: int) -> None:
        """Sets the size of the terminal."""
        raise NotImplementedError

    async def detach(self) -> None:
        """Disconnects and leaves the command running."""
        raise NotImplementedError

    # --- output ---

    def _output(self, stream: int, data: bytes) -> None:
        if self.streaming:
            self.queue.append((stream, data))
            self.queued += len(data)
            if self.queued >= STREAM_WINDOW:
                self.pause_reading()
            self._wake_reader()
        else:
            self.keep(stream, data)

    def keep(self, stream: int, data: bytes) -> None:
        """Adds to the result, up to the limit."""
        room = self.limit - self.sizes[stream]
        if len(data) > room:
            self.truncated = True
            data = data[:max(room, 0)]
        if data:
            self.kept[stream].append(data)
            self.sizes[stream] += len(data)

    def start_streaming(self) -> None:
        """From now on output is queued for a reader; what was kept so far comes first."""
        if self.streaming:
            return
        self.streaming = True
        for stream in (0, 1):
            for data in self.kept[stream]:
                self.queue.append((stream, data))
                self.queued += len(data)
            self.kept[stream].clear()
            self.sizes[stream] = 0

    async def next_chunk(self) -> Optional[Tuple[int, bytes]]:
        """The next piece of output, None at the end."""
        while not self.queue:
            if self.ended.done():
                return None
            if self._reader_waits is None:
                self._reader_waits = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._reader_waits)
        stream, data = self.queue.popleft()
        self.queued -= len(data)
        if self.queued < STREAM_WINDOW // 2:
            self.resume_reading()
        return stream, data

    def _wake_reader(self) -> None:
        if self._reader_waits is not None:
            self._reader_waits.set_result(None)
            self._reader_waits = None
