"""Connecting to a sandbox, which is started first if it is stopped, as ``msb exec`` does.

A sandbox that is started for a command stops again with its last one. To get the same behavior,
``msb exec`` itself starts it, with a command that does nothing and keeps it running until we are
done (:class:`Holder`).
"""
from __future__ import annotations

import asyncio
import socket
import subprocess
from typing import Optional, Tuple

from . import _proto as proto
from ._channel import NAME, connect_socket, request
from ._cli import Cli, end_process, uncancelled
from .errors import CommandTimeout, MsbError, SandboxNotFound, from_cli

RETRY_SECONDS = 20.0
RETRY_PAUSE = 0.005


class Holder:
    """Keeps a sandbox running that was stopped before."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, cli: Cli, name: str) -> "Holder":
        """Starts the sandbox; returns when it runs a command."""
        process = await cli.start("exec", "-q", name, "--", "/.msb/bin/busybox", "cat",
                                  stdin=subprocess.PIPE)
        try:
            while process.returncode is None:
                try:
                    kind, found = await request(cli.home, name, proto.INFO)
                except (OSError, MsbError):
                    kind, found = proto.FAIL, []
                if kind == proto.OK and (proto.number(found, proto.F_SESSIONS) or 0) > 0:
                    return cls(process)
                await asyncio.sleep(RETRY_PAUSE)
        except BaseException:
            await end_process(process)
            raise
        assert process.stderr is not None
        raise from_cli(process.returncode, (await process.stderr.read()).decode("utf-8", "replace"))

    async def release(self) -> None:
        """Lets it stop when nothing else uses it, and waits for that."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await uncancelled(self._process.wait())


async def attach(cli: Cli, name: str, holder: Optional[Holder] = None
                 ) -> Tuple[socket.socket, Optional[Holder]]:
    """A connection to the sandbox, and its holder if it had to be started."""
    if not NAME.match(name):
        raise SandboxNotFound(f"sandbox not found: {name}")
    loop = asyncio.get_running_loop()
    until = loop.time() + RETRY_SECONDS
    ours: Optional[Holder] = None
    try:
        while loop.time() < until:
            try:
                return await connect_socket(cli.home, name), holder or ours
            except OSError:
                pass
            if holder is None and ours is None:
                status = (await cli.json("inspect", name))["status"]
                if status in ("Stopped", "Crashed"):
                    ours = await Holder.start(cli, name)
                    continue
            await asyncio.sleep(RETRY_PAUSE)
        raise CommandTimeout(f"cannot connect to sandbox '{name}'")
    except BaseException:
        if ours is not None:
            await ours.release()
        raise
