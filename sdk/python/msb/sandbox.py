"""Sandboxes in the style of other products: ``Sandbox.create()``, ``.commands.run``, ``.files.read``.

These are thin wrappers of :mod:`msb.sync` and :mod:`msb.client`. One difference, because users of that
style expect it: ``kill()`` also removes the sandbox.
"""
from __future__ import annotations

import uuid
from types import TracebackType
from typing import Any, List, Mapping, Optional, Sequence, Type, Union

from . import client as _client
from . import files as _files
from . import process as _process
from . import sync as _sync
from ._portal import PORTAL
from .process import Callback
from .errors import UsageError
from .types import ExecResult, FileInfo, SandboxInfo, SandboxSpec

__all__ = ["AsyncCommands", "AsyncSandbox", "AsyncSandboxFiles", "Commands", "Sandbox", "SandboxFiles"]

_run = PORTAL.run


DEFAULT_IMAGE = "python:3.11-slim"


def _words(cmd: Union[str, Sequence[str]]) -> List[str]:
    """What to execute: a command line is bash's, a list is a program and its arguments."""
    if isinstance(cmd, str):
        return ["bash", "-c", cmd]
    words = list(cmd)
    if not words or not all(isinstance(word, str) for word in words):
        raise UsageError("a command is a command line, or a list of strings: a program and its arguments")
    return words


def _image(image: Optional[str], template: Optional[str]) -> str:
    if image is not None and template is not None:
        raise UsageError("image and template are two names for the same: pass one of them")
    return image or template or DEFAULT_IMAGE


def _is_made(inner: Any, wanted: type, name: str) -> None:
    if not isinstance(inner, wanted):
        raise UsageError(f"{name}(...) wraps a sandbox that exists: write {name}.create({inner!r}) for a new one, "
                         f"or {name}.connect(NAME)")


class AsyncCommands:
    """``sandbox.commands``: command lines for a shell, or programs with their arguments."""

    def __init__(self, handle: _client.SandboxHandle) -> None:
        self._handle = handle

    async def run(self, cmd: Union[str, Sequence[str]], *, background: bool = False, timeout: Optional[float] = 60,
                  cwd: Optional[str] = None, envs: Optional[Mapping[str, str]] = None,
                  user: Optional[str] = None, on_stdout: Optional[Callback] = None,
                  on_stderr: Optional[Callback] = None) -> Any:
        """Runs a command line with bash, or a list of words without any shell: an
        :class:`ExecResult`, or with ``background`` a :class:`Process` with input, and no time limit."""
        words = _words(cmd)
        if background:
            return await self._handle.spawn(words[0], words[1:], cwd=cwd, env=envs, user=user,
                                            stdin=True, on_stdout=on_stdout, on_stderr=on_stderr)
        return await self._handle.exec(words[0], words[1:], timeout=timeout, cwd=cwd, env=envs, user=user,
                                       on_stdout=on_stdout, on_stderr=on_stderr)


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
        _is_made(handle, _client.SandboxHandle, "AsyncSandbox")
        self._handle = handle
        self.commands = AsyncCommands(handle)
        self.files = AsyncSandboxFiles(handle.files)

    @classmethod
    async def create(cls, image: Optional[str] = None, *, template: Optional[str] = None,
                     name: Optional[str] = None,
                     client: Optional[_client.SandboxClient] = None, timeout: Optional[float] = None,
                     envs: Optional[Mapping[str, str]] = None,
                     metadata: Optional[Mapping[str, str]] = None, **spec: Any) -> "AsyncSandbox":
        """Creates a sandbox from an image (``template`` means the same; default:
        ``python:3.11-slim``). ``timeout`` is its longest life in seconds, ``envs`` are variables for its
        commands, ``metadata`` its labels; the rest are fields of :class:`SandboxSpec`."""
        return cls(await (client or _client.SandboxClient()).create(
            _spec(_image(image, template), name, timeout, envs, metadata, spec)))

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

    @classmethod
    async def list(cls, *, metadata: Optional[Mapping[str, str]] = None,
                   client: Optional[_client.SandboxClient] = None) -> List[str]:
        """Names of all sandboxes, newest first; with ``metadata``, of those that have all of these."""
        return await (client or _client.SandboxClient()).list(labels=metadata)

    async def get_info(self) -> SandboxInfo:
        """Its configuration and state."""
        return await self._handle.info()

    async def get_host(self, port: int) -> str:
        """``ADDRESS:PORT`` on this host that leads to a port of the sandbox, which must be published
        (``ports=["0:80"]``)."""
        ports = await self._handle.ports()
        if port not in ports:
            raise UsageError(f"port {port} of {self.sandbox_id} is not published: create it with "
                             f'ports=["0:{port}"]')
        address, number = ports[port]
        return f"[{address}]:{number}" if ":" in address else f"{address}:{number}"

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
    """``sandbox.commands``: command lines for a shell, or programs with their arguments."""

    def __init__(self, inner: AsyncCommands) -> None:
        self._inner = inner

    def run(self, cmd: Union[str, Sequence[str]], *, background: bool = False, timeout: Optional[float] = 60,
            cwd: Optional[str] = None, envs: Optional[Mapping[str, str]] = None,
            user: Optional[str] = None, on_stdout: Optional[Callback] = None,
            on_stderr: Optional[Callback] = None) -> Any:
        """Runs a command line with bash, or a list of words without any shell: an
        :class:`ExecResult`, or with ``background`` a :class:`msb.sync.Process` with input, and no
        time limit."""
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
        _is_made(inner, AsyncSandbox, "Sandbox")
        self._inner = inner
        self._handle = _sync.SandboxHandle(inner.handle)
        self.commands = Commands(inner.commands)
        self.files = SandboxFiles(self._handle.files)

    @classmethod
    def create(cls, image: Optional[str] = None, *, template: Optional[str] = None,
               name: Optional[str] = None,
               client: Optional[_sync.SandboxClient] = None, timeout: Optional[float] = None,
               envs: Optional[Mapping[str, str]] = None,
               metadata: Optional[Mapping[str, str]] = None, **spec: Any) -> "Sandbox":
        """Creates a sandbox; see :meth:`AsyncSandbox.create`."""
        return cls(_run(AsyncSandbox.create(
            image, template=template, name=name, client=client._inner if client else None,
            timeout=timeout, envs=envs, metadata=metadata, **spec)))

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

    @classmethod
    def list(cls, *, metadata: Optional[Mapping[str, str]] = None,
             client: Optional[_sync.SandboxClient] = None) -> List[str]:
        """Names of all sandboxes, newest first; see :meth:`AsyncSandbox.list`."""
        return _run(AsyncSandbox.list(metadata=metadata, client=client._inner if client else None))

    def get_info(self) -> SandboxInfo:
        """Its configuration and state."""
        return _run(self._inner.get_info())

    def get_host(self, port: int) -> str:
        """Where a published port is on this host; see :meth:`AsyncSandbox.get_host`."""
        return _run(self._inner.get_host(port))

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
