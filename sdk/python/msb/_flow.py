"""What every connection of ours has: writing that waits for room, and reading that can pause."""
from __future__ import annotations

import asyncio
from typing import Optional


class Flow(asyncio.Protocol):
    """Flow control in both directions, over a transport that a subclass takes and gives up."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._transport: Optional[asyncio.Transport] = None
        self._writable: Optional["asyncio.Future[None]"] = None

    # asyncio's side.

    def pause_writing(self) -> None:
        if self._writable is None:
            self._writable = self.loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None:
            if not self._writable.done():
                self._writable.set_result(None)
            self._writable = None

    # Ours.

    async def drain(self) -> None:
        """Waits until there is room for more."""
        if self._writable is not None:
            await asyncio.shield(self._writable)

    def pause_reading(self) -> None:
        """Stops reading, so that the other end waits."""
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Reads again."""
        if (self._transport is not None and not self._transport.is_closing()
                and not self._transport.is_reading()):
            self._transport.resume_reading()
