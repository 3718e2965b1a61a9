"""Sandboxes in the style of other products: ``Sandbox.create()``, ``.commands.run``, ``.files.read``.

These are thin wrappers of :mod:`msb.sync` and :mod:`msb.client`. One difference, because users of that
style expect it: ``kill()`` also removes the sandbox.
"""
from __future__ import annotations

import uuid
from types import TracebackType
from typing import Any, List, Mapping, Optional, Type, Union

from . import client as _client
from . import files as _files
from . import process as _process
from . import sync as _sync
from ._portal import PORTAL
from .process import Callback
from .types import ExecResult, FileInfo, SandboxSpec

__all__ = ["AsyncCommands", "AsyncSandbox", "AsyncSandboxFiles", "Commands", "Sandbox", "SandboxFiles"]

_run = PORTAL.run


class AsyncCommands:
    """``sandbox.commands``: command lines for a shell."""

    def __init__(self, handle: _client.SandboxHandle) -> None:
        self._handle = handle

    async def run(self, cmd: str, *, background: bool = False, timeout: Optional[float] = 60,
                  cwd: Optional[str] = None, envs: Optional[Mapping[str, str]] = None,
                  user: Optional[str] = None, on_stdout: Optional[Callback] = None,
                  on_stderr: Optional[Callback] = None) -> Any:
        """Runs a command line with bash: an :class:`ExecResult`, or with ``background`` a
        :class:`Process` with input, and no time limit."""
        if background:
            return await self._handle.spawn("bash", ["-c", cmd], cwd=cwd, env=envs, user=user,
                                            stdin=True, on_stdout=on_stdout, on_stderr=on_stderr)
        return await self._handle.shell(cmd, timeout=timeout, cwd=cwd, env=envs, user=user,
                                        on_stdout=on_stdout, on_stderr=on_stderr, shell="bash")


class AsyncSandboxFiles:
    """``sandbox.files``: text unless bytes are requested. The other methods are those of
    :class:`msb.Files`."""

    def __init__(self, files: _files.Files) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    async def read(self, path: str, format: str = "text") -> Union[str, bytes]:
        """The content of a file, as ``"text"`` or ``"bytes"``."""
        return await self._files.read_text(path) if format == "text" else await self._files.read(path)

    async def write(self, path: str, data: Union[str, bytes]) -> FileInfo:
        """Writes a file, creating missing directories."""
        return await self._files.write(path, data)

    async def list(self, path: str) -> List[FileInfo]:
        """The entries of a directory."""
        return await self._files.list(path)

    async def make_dir(self, path: str) -> None:
        """Creates a directory, and those above it."""
        await self._files.mkdir(path)


class AsyncSandbox:
    """A sandbox: ``async with await AsyncSandbox.create("alpine:3") as sandbox: ...``"""

    def __init__(self, handle: _client.SandboxHandle) -> None:
        self._handle = handle
        self.commands = AsyncCommands(handle)
        self.files = AsyncSandboxFiles(handle.files)

    @classmethod
    async def create(cls, image: str = "python:3.11-slim", *, name: Optional[str] = None,
                     client: Optional[_client.SandboxClient] = None, timeout: Optional[float] = None,
                     envs: Optional[Mapping[str, str]] = None,
                     metadata: Optional[Mapping[str, str]] = None, **spec: Any) -> "AsyncSandbox":
        """Creates a sandbox. ``timeout`` is its longest life in seconds, ``envs`` are variables for its
        commands, ``metadata`` its labels; the rest are fields of :class:`SandboxSpec`."""
        return cls(await (client or _client.SandboxClient()).create(
            _spec(image, name, timeout, envs, metadata, spec)))

    @classmethod
    async def connect(cls, sandbox_id: str, *,
                      client: Optional[_client.SandboxClient] = None) -> "AsyncSandbox":
        """An existing sandbox."""
        return cls(await (client or _client.SandboxClient()).get(sandbox_id))

    @property
    def sandbox_id(self) -> str:
        """Its name."""
        return self._handle.name

    @property
    def handle(self) -> _client.SandboxHandle:
        """The full interface of the sandbox."""
        return self._handle

    async def is_running(self) -> bool:
        """Whether it is running."""
        return (await self._handle.info()).running

    async def kill(self) -> None:
        """Stops it at once and removes it."""
        await self._handle.remove(force=True)

    async def __aenter__(self) -> "AsyncSandbox":
        return self

    async def __aexit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                        trace: Optional[TracebackType]) -> None:
        await self._handle.__aexit__(kind, error, trace)


def _spec(image: str, name: Optional[str], timeout: Optional[float],
          envs: Optional[Mapping[str, str]], metadata: Optional[Mapping[str, str]],
          more: Mapping[str, Any]) -> SandboxSpec:
    return SandboxSpec(name=name or f"sb-{uuid.uuid4().hex[:12]}", image=image, env=envs or {},
                       labels=metadata or {}, max_duration=timeout, **more)


class Commands:
    """``sandbox.commands``: command lines for a shell."""

    def __init__(self, inner: AsyncCommands) -> None:
        self._inner = inner

    def run(self, cmd: str, *, background: bool = False, timeout: Optional[float] = 60,
            cwd: Optional[str] = None, envs: Optional[Mapping[str, str]] = None,
            user: Optional[str] = None, on_stdout: Optional[Callback] = None,
            on_stderr: Optional[Callback] = None) -> Any:
        """Runs a command line with bash: an :class:`ExecResult`, or with ``background`` a
        :class:`msb.sync.Process` with input, and no time limit."""
        made: Union[ExecResult, _process.Process] = _run(self._inner.run(
            cmd, background=background, timeout=timeout, cwd=cwd, envs=envs, user=user,
            on_stdout=on_stdout, on_stderr=on_stderr))
        return _sync.Process(made) if isinstance(made, _process.Process) else made


class SandboxFiles:
    """``sandbox.files``: text unless bytes are requested. The other methods are those of
    :class:`msb.sync.Files`."""

    def __init__(self, files: _sync.Files) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def read(self, path: str, format: str = "text") -> Union[str, bytes]:
        """The content of a file, as ``"text"`` or ``"bytes"``."""
        return self._files.read_text(path) if format == "text" else self._files.read(path)

    def write(self, path: str, data: Union[str, bytes]) -> FileInfo:
        """Writes a file, creating missing directories."""
        return self._files.write(path, data)

    def list(self, path: str) -> List[FileInfo]:
        """The entries of a directory."""
        return self._files.list(path)

    def make_dir(self, path: str) -> None:
        """Creates a directory, and those above it."""
        self._files.mkdir(path)


class Sandbox:
    """A sandbox: ``with Sandbox.create("alpine:3") as sandbox: ...``"""

    def __init__(self, inner: AsyncSandbox) -> None:
        self._inner = inner
        self._handle = _sync.SandboxHandle(inner.handle)
        self.commands = Commands(inner.commands)
        self.files = SandboxFiles(self._handle.files)

    @classmethod
    def create(cls, image: str = "python:3.11-slim", *, name: Optional[str] = None,
               client: Optional[_sync.SandboxClient] = None, timeout: Optional[float] = None,
               envs: Optional[Mapping[str, str]] = None,
               metadata: Optional[Mapping[str, str]] = None, **spec: Any) -> "Sandbox":
        """Creates a sandbox; see :meth:`AsyncSandbox.create`."""
        return cls(_run(AsyncSandbox.create(
            image, name=name, client=client._inner if client else None, timeout=timeout, envs=envs,
            metadata=metadata, **spec)))

    @classmethod
    def connect(cls, sandbox_id: str, *, client: Optional[_sync.SandboxClient] = None) -> "Sandbox":
        """An existing sandbox."""
        return cls(_run(AsyncSandbox.connect(sandbox_id, client=client._inner if client else None)))

    @property
    def sandbox_id(self) -> str:
        """Its name."""
        return self._inner.sandbox_id

    @property
    def handle(self) -> _sync.SandboxHandle:
        """The full interface of the sandbox."""
        return self._handle

    def is_running(self) -> bool:
        """Whether it is running."""
        return _run(self._inner.is_running())

    def kill(self) -> None:
        """Stops it at once and removes it."""
        _run(self._inner.kill())

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        _run(self._inner.__aexit__(kind, error, trace))
