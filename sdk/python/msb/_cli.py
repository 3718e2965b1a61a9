"""The ``msb`` program: where it is, and how it is run."""
from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
from typing import Any, Dict, List, Mapping, Optional, Tuple

from ._audit import Audit
from ._sinks import Settings, from_policy
from .errors import MsbError, SandboxUnavailable, from_cli

OPERATORS_POLICY = "/etc/msb/policy.yaml"
_OUTPUT_MAX = 64 * 1024 * 1024
_ASK_SECONDS = 10


def find_msb() -> Optional[str]:
    """The program: ``$MSB_PATH``, else ``msb`` on PATH, else the build in the source tree around
    this package; None if there is none."""
    given = os.environ.get("MSB_PATH")
    if given:
        return given if os.path.isfile(given) and os.access(given, os.X_OK) else None
    found = shutil.which("msb")
    if found:
        return found
    for parent in pathlib.Path(__file__).resolve().parents[1:4]:
        built = parent / "build" / "src" / "cli" / "msb"
        if built.is_file() and os.access(built, os.X_OK):
            return str(built)
    return None


def default_home() -> str:
    """``$MSB_HOME``, else ``~/.microsandbox``; for users without a home, a directory below /tmp, as ``msb`` has it."""
    if os.environ.get("MSB_HOME"):
        return os.path.abspath(os.environ["MSB_HOME"])
    home = os.path.expanduser("~")
    usual = os.path.join(home, ".microsandbox")
    if home.startswith("/") and (os.path.exists(usual) or os.access(home, os.W_OK) or not os.path.exists(home)):
        return usual
    return f"/tmp/msb-{os.geteuid()}"


class Cli:
    """Runs ``msb`` for one home."""

    def __init__(self, exe: Optional[str], home: Optional[str], env: Optional[Mapping[str, str]]) -> None:
        self._exe = exe
        self.home = os.path.abspath(home) if home else default_home()
        self._env = env
        self._settings: "Tuple[Tuple[Tuple[int, ...], ...], Settings]" = ((), Settings())
        self.audit = Audit(self.home, (os.environ if env is None else env).get("MSB_AUDIT"), self._audit_settings)

    @property
    def exe(self) -> str:
        """The program's path, looked up when it is first needed."""
        if self._exe is None:
            self._exe = find_msb()
        if self._exe is None:
            raise SandboxUnavailable(
                "cannot find msb", ["install it, or set MSB_PATH to the program"])
        return self._exe

    def policies(self) -> "Tuple[Tuple[int, ...], ...]":
        """Which policy files there are, and which version of each; () if there is none."""
        found: List[Tuple[int, ...]] = []
        for path in (OPERATORS_POLICY, os.path.join(self.home, "policy.yaml")):
            try:
                st = os.lstat(path)
                found.append((st.st_dev, st.st_ino, st.st_size, st.st_mtime_ns))
            except (FileNotFoundError, NotADirectoryError):
                pass
            except OSError as e:  # msb says what is wrong with it
                found.append((e.errno or 0,))
        return tuple(found)

    def _audit_settings(self) -> Settings:
        """What the policy says about the audit log; asked for when a file has changed."""
        now = self.policies()
        if now != self._settings[0]:
            self._settings = (now, self._ask_settings() if now else Settings())
        return self._settings[1]

    def _ask_settings(self) -> Settings:
        try:
            out = subprocess.run([self.exe, "policy", "show", "--format", "json"], env=self.environment(), check=True,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                 timeout=_ASK_SECONDS).stdout
            return from_policy(json.loads(out)["settings"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, MsbError, subprocess.SubprocessError):
            return Settings(level="all")  # what it says is not known: everything is recorded

    async def hold_copy(self, sandbox: str, path: str, *, write: bool) -> None:
        """Raises what the host's policy says about copying a path of the host, if it refuses that."""
        if self.policies():
            await self.run("policy", "copies", *(["--write"] if write else []), sandbox, os.path.join(os.getcwd(), path))

    def environment(self) -> Dict[str, str]:
        """The environment of the program."""
        env = dict(os.environ if self._env is None else self._env)
        env["MSB_HOME"] = self.home
        env["NO_COLOR"] = "1"
        return env

    async def start(self, *args: str, stdin: int = subprocess.DEVNULL) -> asyncio.subprocess.Process:
        """Starts it, in its own session: Ctrl-C reaches only us."""
        try:
            return await asyncio.create_subprocess_exec(
                self.exe, *args, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=self.environment(), start_new_session=True, limit=_OUTPUT_MAX)
        except OSError as e:
            raise SandboxUnavailable(f"cannot run {self.exe}: {e.strerror}") from e

    def leave(self, *args: str) -> None:
        """Starts it without waiting for its end."""
        with contextlib.suppress(OSError):
            subprocess.Popen([self.exe, *args], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, env=self.environment(),
                             start_new_session=True)

    async def call(self, *args: str, stdin: Optional[bytes] = None) -> Tuple[int, bytes, str]:
        """Runs it to its end: exit code, stdout, stderr. Canceling ends it."""
        process = await self.start(
            *args, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE)
        try:
            out, err = await process.communicate(stdin)
        except BaseException:
            await end_process(process)
            raise
        assert process.returncode is not None
        return process.returncode, out, err.decode("utf-8", "replace")

    async def run(self, *args: str, stdin: Optional[bytes] = None) -> str:
        """Runs it and returns its stdout; raises its error if it fails."""
        code, out, err = await self.call(*args, stdin=stdin)
        if code != 0:
            raise from_cli(code, err)
        return out.decode("utf-8", "replace")

    async def json(self, *args: str) -> Any:
        """Runs it with ``--format json``."""
        text = await self.run(*args, "--format", "json")
        try:
            return json.loads(text)
        except ValueError as e:
            raise MsbError(f"msb {args[0]} printed invalid JSON: {e}") from e


async def end_process(process: asyncio.subprocess.Process) -> None:
    """Ends a program and waits for its end, even when canceled."""
    if process.returncode is None:
        try:
            process.send_signal(signal.SIGTERM)
        except ProcessLookupError:
            pass
    await uncancelled(process.wait())


async def uncancelled(work: Any) -> Any:
    """Waits for work that must be finished: a cancellation is raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: Optional[BaseException] = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as e:
            if task.cancelled():
                raise
            cancelled = e
        except BaseException:
            break
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # seen
        raise cancelled
    return task.result()


def label_args(flag: str, values: Mapping[str, str]) -> List[str]:
    """``--label=k=v`` for each entry."""
    return [f"{flag}={key}={value}" for key, value in values.items()]
