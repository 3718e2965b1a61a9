"""Waiting with a limit."""
from __future__ import annotations

import asyncio
from typing import Awaitable, Callable, Optional, TypeVar

T = TypeVar("T")


async def bounded(work: Awaitable[T], seconds: float, dispose: Optional[Callable[[T], object]] = None) -> T:
    """The result of some work, or asyncio.TimeoutError. asyncio.wait_for would do, but up to Python 3.11 it forgets a
    cancellation that comes just when the work is done, and whoever canceled it waits forever. A result that nobody
    gets is disposed of."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if task.done():
            return task.result()
    except asyncio.CancelledError:
        await _abandon(task, dispose)
        raise
    await _abandon(task, dispose)
    raise asyncio.TimeoutError


async def _abandon(task: "asyncio.Future[T]", dispose: Optional[Callable[[T], object]]) -> None:
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled() and task.exception() is None and dispose is not None:
        dispose(task.result())
