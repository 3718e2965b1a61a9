"""Runs coroutines for synchronous callers: one thread with one event loop."""
from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from typing import Any, AsyncIterator, Coroutine, Iterator, List, Optional, TypeVar

T = TypeVar("T")


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Runs the loop for good. What ends it (sys.exit() in a callback, say) is raised where its task is waited for."""
    while not loop.is_closed():
        try:
            loop.run_forever()
        except BaseException:
            pass


class Portal:
    """The thread. One is enough for all sandboxes; it ends with the program."""

    def __init__(self) -> None:
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._thread: Optional[threading.Thread] = None
        self._pid = 0
        self._lock = threading.Lock()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._loop.is_closed() or self._pid != os.getpid():  # no thread survives a fork
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(loop,), name="msb", daemon=True)
                self._thread.start()
                self._loop, self._pid = loop, os.getpid()
            return self._loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs it to its end. An interrupt (Ctrl-C) cancels it, and is raised once it has cleaned up."""
        loop = self._running_loop()
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a callback must not call its own sandbox")
        done: "concurrent.futures.Future[T]" = concurrent.futures.Future()
        tasks: List["asyncio.Task[T]"] = []

        def finish(task: "asyncio.Task[T]") -> None:
            if task.cancelled():
                done.set_exception(asyncio.CancelledError())
                return
            error = task.exception()
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(task.result())

        def begin() -> None:
            tasks.append(loop.create_task(work))
            tasks[0].add_done_callback(finish)

        loop.call_soon_threadsafe(begin)
        interrupt: Optional[BaseException] = None
        while True:
            try:
                concurrent.futures.wait([done])
                break
            except BaseException as e:  # KeyboardInterrupt, or what a signal handler raised
                interrupt = e
                loop.call_soon_threadsafe(lambda: tasks[0].cancel())
        if interrupt is not None:
            done.exception()
            raise interrupt
        return done.result()

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """An ordinary iterator over an asynchronous one."""
        async def following() -> "List[T]":
            try:
                return [await source.__anext__()]
            except StopAsyncIteration:
                return []

        while True:
            item = self.run(following())
            if not item:
                return
            yield item[0]


PORTAL = Portal()
