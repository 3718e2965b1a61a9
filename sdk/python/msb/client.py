"""Sandboxes: creating them, finding them, running commands in them."""
from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import json
import math
import re
import time
import uuid
from types import TracebackType
from typing import (Any, Awaitable, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Type,
                    Union)

from . import _interpreter, _secrets
from . import _proto as proto
from ._attach import RETRY_PAUSE, RETRY_SECONDS, attach
from ._channel import NAME, request
from ._cli import Cli, end_process, label_args, uncancelled
from ._exec import ExecChannel, GoingDown, exec_frame, failure_code
from .code import CodeContext
from .errors import (CommandNotExecutable, CommandNotFound, CommandTimeout, MsbError, PolicyRefused,
                     SandboxNotFound, SandboxNotRunning, UsageError, from_cli)
from .files import Files
from .process import Callback, Process
from .types import ExecResult, SandboxInfo, SandboxSpec
from .workspace import Workspace

__all__ = ["SandboxClient", "SandboxHandle", "DEFAULT_MAX_OUTPUT"]

DEFAULT_MAX_OUTPUT = 16 * 1024 * 1024
"""The default limit for the bytes of each stream in a result."""

_HOST = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?"
                   r"(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?\Z")


def _words(value: Any, what: str) -> Tuple[str, ...]:
    """A list of strings; a single string is refused."""
    if isinstance(value, (str, bytes)) or not all(isinstance(v, str) for v in value):
        raise UsageError(f"invalid {what}: expected a list of strings, not {value!r}")
    return tuple(value)


def _known(name: str) -> str:
    """A valid sandbox name; others cannot exist."""
    if not NAME.match(name):
        raise SandboxNotFound(f"sandbox not found: {name}")
    return name


def _command(cmd: str, args: Optional[Sequence[str]]) -> List[str]:
    """A command line. A string in place of a list of arguments would be split into letters."""
    if isinstance(args, (str, bytes)):
        raise UsageError(f"invalid arguments {args!r}: expected a list of strings")
    return [cmd, *map(str, args or ())]


def network_args(egress: Sequence[str], network: Optional[str], published: bool) -> List[str]:
    """The network options of ``msb create``: only these names can be reached. A sandbox with published
    ports has a network, but cannot reach anything."""
    if network is not None:
        if egress:
            raise UsageError("egress and network cannot be combined")
        return [f"--net={network}"]
    if not egress:
        return ["--net=none"] if published else ["--no-net"]
    args: List[str] = []
    for host in egress:
        if not _HOST.match(host) or host.rstrip(".").rsplit(".", 1)[-1].isdigit():
            raise UsageError(f"invalid egress {host!r}: expected a host name")
        args.append(f"--net-rule=allow@domain={host.rstrip('.').lower()}")
    return args


def _milliseconds(seconds: float) -> int:
    if not 0 < seconds < 1e9:
        raise UsageError(f"invalid time limit {seconds!r}: a positive number of seconds")
    return max(int(seconds * 1000), 1)


def _duration(seconds: float) -> str:
    return f"{max(1, math.ceil(seconds * 1000))}ms"


def create_args(spec: Any) -> List[str]:
    """The ``msb create`` command line for a spec."""
    def more(key: str, otherwise: Any) -> Any:
        return getattr(spec, key, otherwise)

    if not spec.image or spec.image.startswith("-"):
        raise UsageError(f"invalid image {spec.image!r}")
    args = ["create", "-q", f"--name={spec.name}", f"--memory={int(spec.memory_mib)}M",
            f"--cpus={spec.cpus:g}"]
    if more("replace", False):
        args.append("--replace")
    args += network_args(_words(spec.egress, "egress"), more("network", None),
                         bool(more("ports", ())))
    if spec.workspace is not None:
        args.append(f"--workspace={spec.workspace}")
    args += [f"--secret-env={name}" for name in _words(spec.secrets, "secrets")]
    args += [f"--secret={name}@{','.join(_words(hosts, 'bound_secrets'))}"
             for name, hosts in more("bound_secrets", {}).items()]
    args += label_args("--label", spec.labels)
    args += label_args("--env", more("env", {}))
    for key in ("workdir", "user"):
        if more(key, None) is not None:
            args.append(f"--{key}={more(key, None)}")
    for flag, key in (("--volume", "volumes"), ("--port", "ports")):
        args += [f"{flag}={value}" for value in _words(more(key, ()), key)]
    for flag, key in (("--idle-timeout", "idle_timeout"), ("--max-duration", "max_duration")):
        if more(key, None) is not None:
            args.append(f"{flag}={_duration(more(key, None))}")
    return [*args, *_words(more("options", ()), "options"), spec.image]


class SandboxHandle:
    """A sandbox, by its name; returned by :class:`SandboxClient`.

    A handle stays valid when the sandbox stops: a command starts it again, and it stops with its last
    command, as with ``msb exec``. After ``create``, an ``async with`` block stops and removes the
    sandbox at its end.
    """

    def __init__(self, client: "SandboxClient", name: str, secrets: Sequence[str] = (),
                 owned: bool = False) -> None:
        self.name = name
        self._client = client
        self._cli = client._cli
        self._secrets = tuple(secrets)
        self._owned = owned

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def files(self) -> Files:
        """Its files: read, write, list, stat, watch, upload, download."""
        return Files(self._cli, self.name)

    # --- commands ---

    async def exec(self, cmd: str, args: Optional[Sequence[str]] = None, *,
                   timeout: Optional[float] = None, env: Optional[Mapping[str, str]] = None,
                   cwd: Optional[str] = None, user: Optional[str] = None,
                   stdin: Union[None, str, bytes] = None, tty: bool = False,
                   max_output: Optional[int] = None, on_stdout: Optional[Callback] = None,
                   on_stderr: Optional[Callback] = None) -> ExecResult:
        """Runs a program with exactly these arguments, and waits for its end.

        After ``timeout`` seconds the program and all it has started are killed in the guest; the
        result then has the output so far, ``truncated``, and exit code 124. At most ``max_output``
        bytes of each stream are kept; the rest is dropped, and the result is ``truncated``.
        ``on_stdout`` and ``on_stderr`` are called with text as it arrives; they may be coroutine
        functions, which the program waits for. A program that cannot be found or executed gives exit
        code 127 or 126 with the reason on stderr.

        Canceling the task kills the program in the guest.
        """
        data = stdin.encode() if isinstance(stdin, str) else stdin
        callbacks = on_stdout is not None or on_stderr is not None
        try:
            process = await self._open(_command(cmd, args), timeout=timeout, env=env, cwd=cwd,
                                       user=user, stdin=data, keep_stdin=False, tty=tty,
                                       size=(24, 80), max_output=max_output, streaming=callbacks)
        except (CommandNotFound, CommandNotExecutable) as e:
            return ExecResult("", f"error: {e}\n", failure_code(e))
        feeder: Optional["asyncio.Task[None]"] = None
        try:
            if callbacks:
                process._start_pump(on_stdout, on_stderr)
            if data is not None and len(data) > proto.DATA_MAX:
                feeder = asyncio.ensure_future(process._feed(data))
            return await process.wait()
        finally:
            if feeder is not None:
                feeder.cancel()
            if process.returncode is None or process._holder is not None:
                await uncancelled(process.close())

    async def shell(self, script: str, *, timeout: Optional[float] = None,
                    env: Optional[Mapping[str, str]] = None, cwd: Optional[str] = None,
                    user: Optional[str] = None, stdin: Union[None, str, bytes] = None,
                    max_output: Optional[int] = None, on_stdout: Optional[Callback] = None,
                    on_stderr: Optional[Callback] = None, shell: str = "sh") -> ExecResult:
        """Runs a shell script; ``shell="bash"`` works in every image. Otherwise as :meth:`exec`."""
        return await self.exec(shell, ["-c", script], timeout=timeout, env=env, cwd=cwd, user=user,
                               stdin=stdin, max_output=max_output, on_stdout=on_stdout,
                               on_stderr=on_stderr)

    async def spawn(self, cmd: str, args: Optional[Sequence[str]] = None, *,
                    timeout: Optional[float] = None, env: Optional[Mapping[str, str]] = None,
                    cwd: Optional[str] = None, user: Optional[str] = None, stdin: bool = False,
                    tty: bool = False, size: Tuple[int, int] = (24, 80), stream: bool = False,
                    max_output: Optional[int] = None, on_stdout: Optional[Callback] = None,
                    on_stderr: Optional[Callback] = None) -> Process:
        """Starts a program and returns at once.

        With ``stdin`` it reads what is written to the :class:`Process`. With ``tty`` it has a terminal
        of ``size`` (rows, columns), and all its output is stdout. With ``stream`` its output is for
        iterating over the process; otherwise it is kept for ``wait()``.
        """
        callbacks = on_stdout is not None or on_stderr is not None
        process = await self._open(_command(cmd, args), timeout=timeout, env=env, cwd=cwd,
                                   user=user, stdin=None, keep_stdin=stdin or tty, tty=tty,
                                   size=size, max_output=max_output, streaming=stream or callbacks)
        if callbacks:
            process._start_pump(on_stdout, on_stderr)
        return process

    async def stream(self, cmd: str, args: Optional[Sequence[str]] = None,
                     **options: Any) -> Process:
        """:meth:`spawn` with ``stream=True``: ``async for chunk in await sb.stream("make"): ...``"""
        return await self.spawn(cmd, args, stream=True, **options)

    async def _open(self, argv: Sequence[str], *, timeout: Optional[float],
                    env: Optional[Mapping[str, str]], cwd: Optional[str], user: Optional[str],
                    stdin: Optional[bytes], keep_stdin: bool, tty: bool, size: Tuple[int, int],
                    max_output: Optional[int], streaming: bool) -> Process:
        variables: Mapping[str, str] = env or {}
        if self._secrets:
            variables = {**_secrets.resolve(self._cli.home, self._secrets), **variables}
        message = exec_frame(argv, env=variables, cwd=cwd, user=user, tty=size if tty else None,
                             stdin=keep_stdin or stdin is not None, timeout=timeout)
        limit = self._client.max_output if max_output is None else max_output
        loop = asyncio.get_running_loop()
        until = loop.time() + RETRY_SECONDS
        holder = None
        record = ""

        def on_code(code: int) -> None:
            self._cli.audit.exit(self.name, record, code)

        try:
            while True:
                sock, holder = await attach(self._cli, self.name, holder)
                _, channel = await loop.create_connection(
                    lambda: ExecChannel(argv[0], limit, streaming, timeout, on_code), sock=sock)
                try:
                    record = record or self._cli.audit.exec(
                        self.name, argv, user, cwd, tty, self._secrets)
                    early = b""
                    if stdin is not None and len(stdin) <= proto.DATA_MAX:
                        early = channel.early_stdin(stdin)
                    channel.begin(proto.HELLO_FRAME + message + early)
                    pid = await channel.started
                    return Process(channel, holder, pid, tty, keep_stdin)
                except GoingDown as e:
                    channel.abort()
                    if loop.time() > until:
                        raise MsbError(f"sandbox '{self.name}' refused the command: {e}") from e
                except BaseException:
                    channel.abort()
                    raise
                await asyncio.sleep(RETRY_PAUSE)
        except BaseException:
            if holder is not None:
                await holder.release()
            raise

    # --- the sandbox itself ---

    async def start(self) -> None:
        """Starts it; it then runs until it is stopped."""
        await self._cli.run("start", "-q", _known(self.name))

    async def stop(self, *, timeout: Optional[float] = None) -> None:
        """Shuts it down; kills it after ``timeout`` seconds (default 10). It may be stopped already."""
        limit = [] if timeout is None else [f"--timeout={_duration(timeout)}"]
        await self._cli.run("stop", "-q", *limit, _known(self.name))

    async def kill(self) -> None:
        """Stops it at once, like a power cut."""
        await self._cli.run("stop", "-q", "--force", _known(self.name))

    async def remove(self, *, force: bool = True) -> None:
        """Removes it with all its files, by default even if it is running."""
        await self._client.remove(self.name, force=force)

    async def set_timeout(self, seconds: float) -> None:
        """It stops so many seconds from now, whatever was said before; until it is started again."""
        life = proto.u64(proto.F_TIMEOUT_MS, _milliseconds(seconds))
        try:
            kind, found = await request(self._cli.home, _known(self.name), proto.TOUCH, life)
        except CommandTimeout:  # an OSError, too
            raise
        except OSError:
            status = (await self.info()).status
            raise SandboxNotRunning(f"sandbox '{self.name}' is not running (status: {status})") from None
        if kind != proto.OK and proto.number(found, proto.F_ERRNO) == errno.EKEYREVOKED:
            raise PolicyRefused(proto.text(found, proto.F_TEXT))
        if kind != proto.OK:
            raise MsbError(f"sandbox '{self.name}' refused to change its time limit")

    async def code_context(self, *, cwd: Optional[str] = None, env: Optional[Mapping[str, str]] = None,
                           user: Optional[str] = None, python: str = "python3") -> CodeContext:
        """A Python interpreter in the sandbox that keeps its variables from one :meth:`CodeContext.run` to
        the next, until it is closed. The image must have ``python``, 3.8 or newer."""
        process = await self.spawn(python, ["-c", _interpreter.SOURCE], cwd=cwd, env=env, user=user,
                                   stdin=True, stream=True)
        return await CodeContext._begin(process, self._client.max_output)

    async def info(self) -> SandboxInfo:
        """Its configuration and state."""
        return await self._client._inspect(self.name)

    async def ports(self) -> Dict[int, Tuple[str, int]]:
        """Its published TCP ports while it runs: guest port to host address and port."""
        doc = await self._cli.json("status", _known(self.name))
        found = (re.match(r"(.+):(\d+)->(\d+)/tcp\Z", str(p)) for p in doc.get("ports") or ())
        return {int(m[3]): (m[1].strip("[]"), int(m[2])) for m in found if m}

    async def logs(self, *, tail: Optional[int] = None) -> str:
        """The output of its commands, all of it or the last ``tail`` lines."""
        limit = [] if tail is None else [f"--tail={int(tail)}"]
        code, out, err = await self._cli.call("logs", "--json", *limit, _known(self.name))
        if code != 0:
            raise from_cli(code, err)
        return b"".join(map(_log_data, out.splitlines())).decode("utf-8", "replace")

    # --- with ---

    async def __aenter__(self) -> "SandboxHandle":
        return self

    async def __aexit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                        trace: Optional[TracebackType]) -> None:
        if self._owned:
            await uncancelled(self._client._tear_down(self))


def _log_data(line: bytes) -> bytes:
    entry = json.loads(line)
    data = str(entry.get("d") or "")
    if entry.get("e"):
        return base64.b64decode(data)
    return data.encode("utf-8", "surrogatepass")


class SandboxClient:
    """Creates and finds sandboxes of one user, with the ``msb`` program; there is no server.

    ``msb`` is the program (default: ``$MSB_PATH``, ``msb`` on PATH, the build in this tree), ``home``
    the directory of the sandboxes (default: ``$MSB_HOME``), ``env`` the environment of the program
    (default: our own), and ``max_output`` the limit for the bytes of each stream in a result. ::

        client = msb.SandboxClient()
        print((await client.run_shell("uname -a", image="alpine:3")).stdout)
    """

    handle_class: Type[SandboxHandle] = SandboxHandle
    """What ``create`` and ``get`` return; a subclass may replace it."""

    def __init__(self, *, msb: Optional[str] = None, home: Optional[str] = None,
                 env: Optional[Mapping[str, str]] = None,
                 max_output: int = DEFAULT_MAX_OUTPUT) -> None:
        self._cli = Cli(msb, home, env)
        self.max_output = max_output

    async def create(self, spec: SandboxSpec) -> SandboxHandle:
        """Creates a sandbox and starts it. Any object with the fields of :class:`SandboxSpec` will do."""
        if isinstance(spec, str):
            raise UsageError(f"create() takes a SandboxSpec: write SandboxSpec(name=..., image={spec!r}), or "
                             f"Sandbox.create({spec!r})")
        args = create_args(spec)
        begun = time.time_ns()
        process = await self._cli.start(*args)
        try:
            _, err = await process.communicate()
        except BaseException:
            await uncancelled(self._undo_create(process, spec.name, begun))
            raise
        assert process.returncode is not None
        if process.returncode != 0:
            raise from_cli(process.returncode, err.decode("utf-8", "replace"))
        return self.handle_class(self, spec.name, _words(spec.secrets, "secrets"), owned=True)

    async def _undo_create(self, process: asyncio.subprocess.Process, name: str, begun: int) -> None:
        """The caller was canceled. A ``create`` that is ended leaves nothing unless it had just finished;
        a sandbox that already had the name must not be removed."""
        await end_process(process)
        try:
            found = await self._inspect(name)
            config = found.details.get("config")
            if isinstance(config, dict) and int(config.get("created_ns", 0)) >= begun:
                await self.remove(name, force=True)
        except MsbError:
            pass

    async def get(self, name: str) -> SandboxHandle:
        """An existing sandbox, running or not; :class:`SandboxNotFound` if there is none."""
        config = (await self._inspect(name)).details.get("config")
        secrets = config.get("secret_env", ()) if isinstance(config, dict) else ()
        return self.handle_class(self, name, tuple(map(str, secrets)))

    async def list(self, *, labels: Optional[Mapping[str, str]] = None) -> List[str]:
        """Names of all sandboxes, newest first; with ``labels``, of those that have all of these."""
        found = await self._cli.json("list", *label_args("--label", labels or {}))
        return [str(entry["name"]) for entry in found]

    async def remove(self, name: str, *, force: bool = False) -> None:
        """Removes a stopped sandbox; with ``force`` also a running one."""
        code, _, err = await self._cli.call("remove", *(["--force"] if force else []), _known(name))
        if code != 0:
            raise from_cli(code, err)

    def workspace(self, name: str) -> Workspace:
        """A workspace, and its files, without a sandbox."""
        return Workspace(self._cli, name)

    async def _inspect(self, name: str) -> SandboxInfo:
        doc: Dict[str, Any] = await self._cli.json("inspect", _known(name))
        config = doc.get("config") or {}
        image = config.get("image")
        reference = next(iter(image.values())) if isinstance(image, dict) and image else image
        if isinstance(reference, dict):
            reference = reference.get("reference") or next(iter(reference.values()), "")
        return SandboxInfo(name=str(doc["name"]), status=str(doc["status"]),
                           image=str(reference or ""), labels=dict(config.get("labels") or {}),
                           details=doc)

    async def _tear_down(self, sandbox: SandboxHandle) -> None:
        """Stops and removes, ignoring errors. If the loop cancels all tasks meanwhile (a second Ctrl-C),
        the removal continues in the background."""
        try:
            with contextlib.suppress(Exception):
                await sandbox.stop()
            with contextlib.suppress(Exception):
                await self.remove(sandbox.name, force=True)
        except BaseException:
            self._cli.leave("remove", "--force", "--quiet", sandbox.name)
            raise

    async def _one_shot(self, prefix: str, image: str, spec: Mapping[str, Any],
                        use: Callable[[SandboxHandle], Awaitable[ExecResult]]) -> ExecResult:
        sandbox = await self.create(
            SandboxSpec(name=f"{prefix}-{uuid.uuid4().hex[:8]}", image=image, **spec))
        try:
            return await use(sandbox)
        finally:
            await uncancelled(self._tear_down(sandbox))

    async def run_python(self, code: str, *, image: str = "python:3.11-slim",
                         timeout: Optional[float] = None, **kwargs: Any) -> ExecResult:
        """Runs Python code in a new sandbox, which is removed afterwards in any case.

        Other keywords are fields of :class:`SandboxSpec`.
        """
        return await self._one_shot("py", image, kwargs,
                                    lambda sb: sb.exec("python3", ["-c", code], timeout=timeout))

    async def run_shell(self, script: str, *, image: str = "python:3.11-slim",
                        timeout: Optional[float] = None, **kwargs: Any) -> ExecResult:
        """Runs a shell script in a new sandbox, which is removed afterwards in any case.

        Other keywords are fields of :class:`SandboxSpec`.
        """
        return await self._one_shot("sh", image, kwargs, lambda sb: sb.shell(script, timeout=timeout))

    async def __aenter__(self) -> "SandboxClient":
        return self

    async def __aexit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                        trace: Optional[TracebackType]) -> None:
        return None
