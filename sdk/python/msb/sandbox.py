"""Sandboxes in the style of other products: ``Sandbox.create()``, ``.commands.run``, ``.files.read``.

These are thin wrappers of :mod:`msb.sync` and :mod:`msb.client`. One difference, because users of that
style expect it: ``kill()`` also removes the sandbox.
"""
from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Type, Union

from . import client as _client
from . import files as _files
from . import process as _process
from . import sync as _sync
from ._cli import uncancelled
from ._portal import PORTAL
from .code import CodeContext, Execution, ExecutionError, Result
from .process import Callback
from .errors import UsageError
from .types import ExecResult, FileInfo, SandboxInfo, SandboxSpec

__all__ = ["AsyncCommands", "AsyncPty", "AsyncSandbox", "AsyncSandboxFiles", "Commands", "Pty", "PtySize", "Sandbox",
           "SandboxFiles"]

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


@dataclass(frozen=True)
class PtySize:
    """The size of a terminal."""

    rows: int = 24
    cols: int = 80


class AsyncPty:
    """``sandbox.pty``: interactive shells on terminals, by their process ids."""

    def __init__(self, handle: _client.SandboxHandle) -> None:
        self._handle = handle
        self._open: Dict[int, _process.Process] = {}

    async def create(self, size: PtySize = PtySize(), on_data: Optional[Callback] = None, *,
                     user: Optional[str] = None, cwd: Optional[str] = None,
                     envs: Optional[Mapping[str, str]] = None,
                     timeout: Optional[float] = 60) -> _process.Process:
        """Starts bash on a terminal, which is killed after ``timeout`` seconds (None: never). ``on_data`` gets
        what it prints, as text; without it, iterate over the process."""
        process = await self._handle.spawn(
            "bash", ["-i", "-l"], tty=True, size=(size.rows, size.cols), user=user, cwd=cwd,
            env={"TERM": "xterm-256color", **(envs or {})}, timeout=timeout, on_stdout=on_data,
            stream=on_data is None)
        self._open = {pid: p for pid, p in self._open.items() if p.returncode is None}
        self._open[process.pid] = process
        return process

    def _find(self, pid: int) -> _process.Process:
        if pid not in self._open:
            raise UsageError(f"no terminal of this object has the process {pid}")
        return self._open[pid]

    async def send_stdin(self, pid: int, data: Union[bytes, str]) -> None:
        """Types into it."""
        await self._find(pid).write_stdin(data)

    async def resize(self, pid: int, size: PtySize) -> None:
        """Changes its size."""
        await self._find(pid).resize(size.rows, size.cols)

    async def kill(self, pid: int) -> bool:
        """Kills the shell; False if it has ended already."""
        process = self._open.pop(pid, None)
        if process is None or process.returncode is not None:
            return False
        await process.kill()
        return True


def _python(language: Optional[str]) -> None:
    if language not in (None, "python", "python3"):
        raise UsageError(f"run_code runs Python, not {language!r}: use commands.run for other languages")


class AsyncSandbox:
    """A sandbox: ``async with await AsyncSandbox.create("alpine:3") as sandbox: ...``"""

    def __init__(self, handle: _client.SandboxHandle) -> None:
        _is_made(handle, _client.SandboxHandle, "AsyncSandbox")
        self._handle = handle
        self.commands = AsyncCommands(handle)
        self.pty = AsyncPty(handle)
        self._context: Optional[CodeContext] = None
        self._context_lock = asyncio.Lock()

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
    def files(self) -> AsyncSandboxFiles:
        """Its files."""
        return AsyncSandboxFiles(self._handle.files)

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

    async def set_timeout(self, timeout: float) -> None:
        """It stops so many seconds from now, instead of when ``create`` said."""
        await self._handle.set_timeout(timeout)

    async def create_code_context(self, *, cwd: Optional[str] = None,
                                  language: Optional[str] = None) -> CodeContext:
        """Another interpreter, with variables of its own, for ``run_code(context=...)``."""
        _python(language)
        return await self._handle.code_context(cwd=cwd)

    async def run_code(self, code: str, *, language: Optional[str] = None,
                       context: Optional[CodeContext] = None,
                       on_stdout: Optional[Callback] = None, on_stderr: Optional[Callback] = None,
                       on_result: Optional[Callable[[Result], Any]] = None,
                       on_error: Optional[Callable[[ExecutionError], Any]] = None,
                       envs: Optional[Mapping[str, str]] = None,
                       timeout: Optional[float] = 300) -> Execution:
        """Runs Python code that sees the variables of what ran before; see :meth:`CodeContext.run`. If the
        interpreter was lost, the next call begins another."""
        _python(language)
        if context is None:
            async with self._context_lock:
                if self._context is None or self._context.closed:
                    self._context = await self._handle.code_context()
                context = self._context
        return await context.run(code, timeout=timeout, env=envs, on_stdout=on_stdout, on_stderr=on_stderr,
                                 on_result=on_result, on_error=on_error)

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
        try:
            if self._context is not None:
                await uncancelled(self._context.close())
        finally:
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


class Pty:
    """``sandbox.pty``: interactive shells on terminals; see :class:`AsyncPty`."""

    def __init__(self, inner: AsyncPty) -> None:
        self._inner = inner

    def create(self, size: PtySize = PtySize(), on_data: Optional[Callback] = None, *,
               user: Optional[str] = None, cwd: Optional[str] = None,
               envs: Optional[Mapping[str, str]] = None,
               timeout: Optional[float] = 60) -> _sync.Process:
        """Starts bash on a terminal; ``on_data`` is called in another thread."""
        return _sync.Process(_run(self._inner.create(size, on_data, user=user, cwd=cwd, envs=envs,
                                                     timeout=timeout)))

    def send_stdin(self, pid: int, data: Union[bytes, str]) -> None:
        """Types into it."""
        _run(self._inner.send_stdin(pid, data))

    def resize(self, pid: int, size: PtySize) -> None:
        """Changes its size."""
        _run(self._inner.resize(pid, size))

    def kill(self, pid: int) -> bool:
        """Kills the shell; False if it has ended already."""
        return _run(self._inner.kill(pid))


class Sandbox:
    """A sandbox: ``with Sandbox.create("alpine:3") as sandbox: ...``"""

    def __init__(self, inner: AsyncSandbox) -> None:
        _is_made(inner, AsyncSandbox, "Sandbox")
        self._inner = inner
        self._handle = _sync.SandboxHandle(inner.handle)
        self.commands = Commands(inner.commands)
        self.pty = Pty(inner.pty)

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
    def files(self) -> SandboxFiles:
        """Its files."""
        return SandboxFiles(self._handle.files)

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

    def set_timeout(self, timeout: float) -> None:
        """It stops so many seconds from now, instead of when ``create`` said."""
        _run(self._inner.set_timeout(timeout))

    def create_code_context(self, *, cwd: Optional[str] = None,
                            language: Optional[str] = None) -> _sync.CodeContext:
        """Another interpreter, with variables of its own, for ``run_code(context=...)``."""
        return _sync.CodeContext(_run(self._inner.create_code_context(cwd=cwd, language=language)))

    def run_code(self, code: str, *, language: Optional[str] = None,
                 context: Optional[_sync.CodeContext] = None,
                 on_stdout: Optional[Callback] = None, on_stderr: Optional[Callback] = None,
                 on_result: Optional[Callable[[Result], Any]] = None,
                 on_error: Optional[Callable[[ExecutionError], Any]] = None,
                 envs: Optional[Mapping[str, str]] = None,
                 timeout: Optional[float] = 300) -> Execution:
        """Runs Python code that sees the variables of what ran before; see :meth:`AsyncSandbox.run_code`."""
        return _run(self._inner.run_code(
            code, language=language, context=context._inner if context else None, on_stdout=on_stdout,
            on_stderr=on_stderr, on_result=on_result, on_error=on_error, envs=envs, timeout=timeout))

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
