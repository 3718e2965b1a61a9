"""The same without ``await``: every class here wraps the asynchronous one of the same name.

::

    from msb.sync import SandboxClient
    from msb import SandboxSpec

    client = SandboxClient()
    with client.create(SandboxSpec(name="demo", image="alpine:3")) as sb:
        print(sb.exec("uname", ["-r"]).stdout)

Arguments, results and errors are those of the asynchronous methods. Calls may come from any thread, also
from one that runs an event loop. Ctrl-C during a call cancels it: its command is killed in the guest, and a
sandbox that was created for it is removed before KeyboardInterrupt is raised. ``on_stdout`` and ``on_stderr``
are called in another thread and must not call the sandbox themselves.
"""
from __future__ import annotations

import os
from types import TracebackType
from typing import Any, AsyncIterator, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Type, Union

from . import client as _client
from . import code as _code
from . import files as _files
from . import process as _process
from . import workspace as _workspace
from ._portal import PORTAL
from .client import DEFAULT_MAX_OUTPUT
from .files import DEFAULT_MAX_READ, FileEvent
from .process import Callback
from .types import ExecResult, FileInfo, OutputChunk, SandboxInfo, SandboxSpec

__all__ = ["CodeContext", "Files", "KubernetesClient", "Process", "SandboxClient", "SandboxHandle", "Watch", "Workspace", "WorkspaceFiles"]

_run = PORTAL.run


class CodeContext:
    """An interpreter that keeps its variables; see :class:`msb.CodeContext`."""

    def __init__(self, inner: _code.CodeContext) -> None:
        self._inner = inner
        self.version = inner.version

    @property
    def closed(self) -> bool:
        """Whether the interpreter has ended."""
        return self._inner.closed

    def run(self, code: str, *, timeout: Optional[float] = 300, env: Optional[Mapping[str, str]] = None,
            on_stdout: Optional[Callback] = None, on_stderr: Optional[Callback] = None,
            on_result: Optional[Callable[[_code.Result], Any]] = None,
            on_error: Optional[Callable[[_code.ExecutionError], Any]] = None) -> _code.Execution:
        """Runs code with the variables of what ran before."""
        return _run(self._inner.run(code, timeout=timeout, env=env, on_stdout=on_stdout, on_stderr=on_stderr,
                                    on_result=on_result, on_error=on_error))

    def close(self) -> None:
        """Ends the interpreter."""
        _run(self._inner.close())

    def __enter__(self) -> "CodeContext":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()


class Process:
    """A running command; see :class:`msb.Process`."""

    def __init__(self, inner: _process.Process) -> None:
        self._inner = inner
        self.pid = inner.pid

    @property
    def returncode(self) -> Optional[int]:
        """Its exit code, None while it runs."""
        return self._inner.returncode

    def wait(self, timeout: Optional[float] = None) -> ExecResult:
        """Waits for its end."""
        return _run(self._inner.wait(timeout))

    def kill(self, signal: int = 9) -> None:
        """Sends a signal to its process group."""
        _run(self._inner.kill(signal))

    def terminate(self) -> None:
        """Sends SIGTERM."""
        _run(self._inner.terminate())

    def detach(self) -> None:
        """Disconnects and leaves the command running."""
        _run(self._inner.detach())

    def close(self) -> None:
        """Ends the connection, which kills the command if it still runs."""
        _run(self._inner.close())

    def write_stdin(self, data: Union[bytes, str]) -> None:
        """Sends input."""
        _run(self._inner.write_stdin(data))

    def close_stdin(self) -> None:
        """Ends the input."""
        _run(self._inner.close_stdin())

    def resize(self, rows: int, cols: int) -> None:
        """Changes the size of its terminal."""
        _run(self._inner.resize(rows, cols))

    def __iter__(self) -> Iterator[OutputChunk]:
        async def begin() -> AsyncIterator[OutputChunk]:  # not in this thread: output may be on its way
            return self._inner.__aiter__()

        return PORTAL.iterate(_run(begin()))

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()


class Watch:
    """Events as they happen; see :class:`msb.Watch`."""

    def __init__(self, inner: _files.Watch) -> None:
        self._inner = inner

    def __iter__(self) -> Iterator[FileEvent]:
        return PORTAL.iterate(self._inner)

    def close(self) -> None:
        """Stops watching."""
        _run(self._inner.close())

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Files:
    """Files of a sandbox; see :class:`msb.Files`."""

    def __init__(self, inner: _files.Files) -> None:
        self._inner = inner

    def as_user(self, user: str) -> "Files":
        """The same files, with the rights of another user."""
        return Files(self._inner.as_user(user))

    def read(self, path: str, *, offset: int = 0, length: Optional[int] = None,
             max_bytes: int = DEFAULT_MAX_READ) -> bytes:
        """The content of a file."""
        return _run(self._inner.read(path, offset=offset, length=length, max_bytes=max_bytes))

    def read_text(self, path: str, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The content of a file as text."""
        return _run(self._inner.read_text(path, encoding=encoding, errors=errors))

    def write(self, path: str, data: Union[bytes, str], *, mode: Optional[int] = None,
              append: bool = False, exclusive: bool = False, atomic: bool = False,
              parents: bool = True) -> FileInfo:
        """Writes a file."""
        return _run(self._inner.write(path, data, mode=mode, append=append, exclusive=exclusive,
                                      atomic=atomic, parents=parents))

    def list(self, path: str = ".", *, limit: int = 100000) -> List[FileInfo]:
        """The entries of a directory."""
        return _run(self._inner.list(path, limit=limit))

    def stat(self, path: str, *, follow_symlinks: bool = True) -> FileInfo:
        """Attributes of a file."""
        return _run(self._inner.stat(path, follow_symlinks=follow_symlinks))

    def exists(self, path: str) -> bool:
        """Whether the path exists."""
        return _run(self._inner.exists(path))

    def mkdir(self, path: str, *, mode: int = 0o755, parents: bool = True) -> None:
        """Creates a directory."""
        _run(self._inner.mkdir(path, mode=mode, parents=parents))

    def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Removes a file or a directory."""
        _run(self._inner.remove(path, recursive=recursive, missing_ok=missing_ok))

    def rename(self, path: str, to: str, *, replace: bool = True) -> None:
        """Renames a file."""
        _run(self._inner.rename(path, to, replace=replace))

    def chmod(self, path: str, mode: int) -> None:
        """Changes permissions."""
        _run(self._inner.chmod(path, mode))

    def symlink(self, target: str, path: str) -> None:
        """Creates a symbolic link at ``path`` that points to ``target``."""
        _run(self._inner.symlink(target, path))

    def watch(self, path: str, *, recursive: bool = False) -> Watch:
        """Begins to watch: an iterator over all changes after this returns."""
        return Watch(_run(self._inner.watching(path, recursive=recursive)))

    def upload(self, local: Union[str, "os.PathLike[str]"], path: str) -> None:
        """Copies a file or a directory of the host into the sandbox."""
        _run(self._inner.upload(local, path))

    def download(self, path: str, local: Union[str, "os.PathLike[str]"], *,
                 max_bytes: Optional[int] = None) -> None:
        """Copies a file or a directory of the sandbox to the host."""
        _run(self._inner.download(path, local, max_bytes=max_bytes))


class SandboxHandle:
    """A sandbox, by its name; see :class:`msb.SandboxHandle`."""

    def __init__(self, inner: _client.SandboxHandle) -> None:
        self._inner = inner
        self.name = inner.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def files(self) -> Files:
        """Its files."""
        return Files(self._inner.files)

    def exec(self, cmd: str, args: Optional[Sequence[str]] = None, *,
             timeout: Optional[float] = None, env: Optional[Mapping[str, str]] = None,
             cwd: Optional[str] = None, user: Optional[str] = None,
             stdin: Union[None, str, bytes] = None, tty: bool = False,
             max_output: Optional[int] = None, on_stdout: Optional[Callback] = None,
             on_stderr: Optional[Callback] = None) -> ExecResult:
        """Runs a program with exactly these arguments, and waits for its end."""
        return _run(self._inner.exec(cmd, args, timeout=timeout, env=env, cwd=cwd, user=user,
                                     stdin=stdin, tty=tty, max_output=max_output,
                                     on_stdout=on_stdout, on_stderr=on_stderr))

    def shell(self, script: str, *, timeout: Optional[float] = None,
              env: Optional[Mapping[str, str]] = None, cwd: Optional[str] = None,
              user: Optional[str] = None, stdin: Union[None, str, bytes] = None,
              max_output: Optional[int] = None, on_stdout: Optional[Callback] = None,
              on_stderr: Optional[Callback] = None, shell: str = "sh") -> ExecResult:
        """Runs a shell script."""
        return _run(self._inner.shell(script, timeout=timeout, env=env, cwd=cwd, user=user,
                                      stdin=stdin, max_output=max_output, on_stdout=on_stdout,
                                      on_stderr=on_stderr, shell=shell))

    def spawn(self, cmd: str, args: Optional[Sequence[str]] = None, *,
              timeout: Optional[float] = None, env: Optional[Mapping[str, str]] = None,
              cwd: Optional[str] = None, user: Optional[str] = None, stdin: bool = False,
              tty: bool = False, size: Tuple[int, int] = (24, 80), stream: bool = False,
              max_output: Optional[int] = None, on_stdout: Optional[Callback] = None,
              on_stderr: Optional[Callback] = None) -> Process:
        """Starts a program and returns at once."""
        return Process(_run(self._inner.spawn(
            cmd, args, timeout=timeout, env=env, cwd=cwd, user=user, stdin=stdin, tty=tty, size=size,
            stream=stream, max_output=max_output, on_stdout=on_stdout, on_stderr=on_stderr)))

    def stream(self, cmd: str, args: Optional[Sequence[str]] = None, **options: Any) -> Process:
        """:meth:`spawn` with ``stream=True``: ``for chunk in sb.stream("make"): ...``"""
        return self.spawn(cmd, args, stream=True, **options)

    def start(self) -> None:
        """Starts it; it then runs until it is stopped."""
        _run(self._inner.start())

    def stop(self, *, timeout: Optional[float] = None) -> None:
        """Shuts it down."""
        _run(self._inner.stop(timeout=timeout))

    def kill(self) -> None:
        """Stops it at once."""
        _run(self._inner.kill())

    def remove(self, *, force: bool = True) -> None:
        """Removes it with all its files."""
        _run(self._inner.remove(force=force))

    def set_timeout(self, seconds: float) -> None:
        """It stops so many seconds from now."""
        _run(self._inner.set_timeout(seconds))

    def code_context(self, *, cwd: Optional[str] = None, env: Optional[Mapping[str, str]] = None,
                     user: Optional[str] = None, python: str = "python3") -> CodeContext:
        """A Python interpreter that keeps its variables."""
        return CodeContext(_run(self._inner.code_context(cwd=cwd, env=env, user=user, python=python)))

    def info(self) -> SandboxInfo:
        """Its configuration and state."""
        return _run(self._inner.info())

    def ports(self) -> Dict[int, Tuple[str, int]]:
        """Its published TCP ports: guest port to host address and port."""
        return _run(self._inner.ports())

    def logs(self, *, tail: Optional[int] = None) -> str:
        """The output of its commands."""
        return _run(self._inner.logs(tail=tail))

    def __enter__(self) -> "SandboxHandle":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        _run(self._inner.__aexit__(kind, error, trace))


class WorkspaceFiles:
    """Files of a workspace; see :class:`msb.WorkspaceFiles`."""

    def __init__(self, inner: _workspace.WorkspaceFiles) -> None:
        self._inner = inner

    def read(self, path: str, *, max_bytes: int = DEFAULT_MAX_READ) -> bytes:
        """The content of a file."""
        return _run(self._inner.read(path, max_bytes=max_bytes))

    def read_text(self, path: str, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The content of a file as text."""
        return _run(self._inner.read_text(path, encoding=encoding, errors=errors))

    def write(self, path: str, data: Union[bytes, str]) -> None:
        """Makes or replaces a file."""
        _run(self._inner.write(path, data))

    def list(self, path: str = ".", *, recursive: bool = False) -> List[FileInfo]:
        """What is in a directory."""
        return _run(self._inner.list(path, recursive=recursive))

    def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Removes a file or a directory."""
        _run(self._inner.remove(path, recursive=recursive, missing_ok=missing_ok))

    def upload(self, local: Union[str, "os.PathLike[str]"], path: str) -> None:
        """Copies a file or a directory of the host into the workspace."""
        _run(self._inner.upload(local, path))

    def download(self, path: str, local: Union[str, "os.PathLike[str]"]) -> None:
        """Copies a file or a directory of the workspace to the host."""
        _run(self._inner.download(path, local))


class Workspace:
    """A workspace, by its name; see :class:`msb.Workspace`."""

    def __init__(self, inner: _workspace.Workspace) -> None:
        self._inner = inner
        self.name = inner.name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def files(self) -> WorkspaceFiles:
        """Its files."""
        return WorkspaceFiles(self._inner.files)

    def info(self) -> Dict[str, Any]:
        """What ``msb workspace inspect`` shows."""
        return _run(self._inner.info())

    def status(self) -> Dict[str, str]:
        """What a sync with the bucket would do, by path."""
        return _run(self._inner.status())

    def sync(self, *, emptied: bool = False) -> None:
        """Brings host and bucket up to date."""
        _run(self._inner.sync(emptied=emptied))

    def checkpoint(self, message: str = "") -> int:
        """Keeps a version of it, and returns its number."""
        return _run(self._inner.checkpoint(message))

    def log(self) -> List[Dict[str, Any]]:
        """Its versions, the newest first."""
        return _run(self._inner.log())

    def diff(self, old: Optional[int] = None, new: Optional[int] = None) -> Dict[str, str]:
        """What differs between two versions, by path."""
        return _run(self._inner.diff(old, new))

    def restore(self, version: int) -> None:
        """Makes it what it was in a version."""
        _run(self._inner.restore(version))

    def remove(self) -> None:
        """Removes it with its files."""
        _run(self._inner.remove())


class SandboxClient:
    """Creates and finds sandboxes; see :class:`msb.SandboxClient`."""

    def __init__(self, *, msb: Optional[str] = None, home: Optional[str] = None,
                 env: Optional[Mapping[str, str]] = None,
                 max_output: int = DEFAULT_MAX_OUTPUT) -> None:
        self._inner = _client.SandboxClient(msb=msb, home=home, env=env, max_output=max_output)

    def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Creates a sandbox and starts it."""
        return SandboxHandle(_run(self._inner.create(spec)))

    def get(self, name: str) -> SandboxHandle:
        """An existing sandbox, running or not."""
        return SandboxHandle(_run(self._inner.get(name)))

    def list(self, *, labels: Optional[Mapping[str, str]] = None) -> List[str]:
        """Names of all sandboxes, newest first."""
        return _run(self._inner.list(labels=labels))

    def remove(self, name: str, *, force: bool = False) -> None:
        """Removes a sandbox."""
        _run(self._inner.remove(name, force=force))

    def workspace(self, name: str) -> Workspace:
        """A workspace, and its files, without a sandbox."""
        return Workspace(self._inner.workspace(name))

    def run_python(self, code: str, *, image: str = "python:3.11-slim",
                   timeout: Optional[float] = None, **kwargs: Any) -> ExecResult:
        """Runs Python code in a new sandbox, which is removed afterwards."""
        return _run(self._inner.run_python(code, image=image, timeout=timeout, **kwargs))

    def run_shell(self, script: str, *, image: str = "python:3.11-slim",
                  timeout: Optional[float] = None, **kwargs: Any) -> ExecResult:
        """Runs a shell script in a new sandbox, which is removed afterwards."""
        return _run(self._inner.run_shell(script, image=image, timeout=timeout, **kwargs))

    def __enter__(self) -> "SandboxClient":
        return self

    def __exit__(self, *exc: object) -> None:
        return None


class KubernetesClient(SandboxClient):
    """Creates and finds sandboxes in a cluster; see :class:`msb.KubernetesClient`, whose arguments it takes."""

    def __init__(self, **options: Any) -> None:
        from .kubernetes import KubernetesClient as Inner
        self._inner = Inner(**options)
