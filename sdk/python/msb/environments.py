"""A terminal for agents with the options of a Docker back end, in a sandbox with its own kernel.

::

    with DockerLikeEnvironment("debian:12", memory=1024, volumes=["/srv/data:/data:ro"]) as env:
        env.execute("cd /data && export N=$(ls | wc -l)")
        print(env.execute("echo $N files in $PWD")["output"])

Commands run one after another as in one terminal: the working directory and exported variables are kept
from one to the next. What Docker needs flags for is the default here: only mounted parts of the host are
visible, the host's environment is not inherited, and root in the guest has no rights outside.
"""
from __future__ import annotations

import hashlib
import logging
import os
import posixpath
import re
import shlex
import subprocess
import uuid
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

from . import sync
from ._cli import default_home, find_msb
from .errors import MsbError, SandboxUnavailable
from .types import SandboxSpec

__all__ = ["DockerLikeEnvironment"]

logger = logging.getLogger(__name__)

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_WORKSPACE = "/workspace"
_SCRATCH = ("--tmpfs=/tmp:512M:nosuid", "--tmpfs=/var/tmp:256M:noexec,nosuid",
            "--tmpfs=/run:64M:noexec,nosuid")
_CHECK_SECONDS = 5


def clean_names(names: Any, option: str) -> List[str]:
    """The valid variable names among these, once each; others are skipped with a warning."""
    kept: List[str] = []
    for name in names or ():
        if not isinstance(name, str):
            logger.warning("%s: skipped %r: not a string", option, name)
            continue
        name = name.strip()
        if name and not _VARIABLE.match(name):
            logger.warning("%s: skipped %r: not a variable name", option, name)
        elif name and name not in kept:
            kept.append(name)
    return kept


def clean_env(env: Any, option: str) -> Dict[str, str]:
    """Variables as text; numbers and booleans are converted, others are skipped with a warning."""
    if not env:
        return {}
    if not isinstance(env, Mapping):
        logger.warning("%s: ignored %r: expected a mapping", option, env)
        return {}
    kept: Dict[str, str] = {}
    for key, value in env.items():
        if not isinstance(key, str) or not _VARIABLE.match(key.strip()):
            logger.warning("%s: skipped %r: not a variable name", option, key)
        elif isinstance(value, (str, bool, int, float)):
            kept[key.strip()] = str(value)
        else:
            logger.warning("%s: skipped %r: its value %r is not text", option, key, value)
    return kept


def clean_volumes(volumes: Any, option: str) -> List[str]:
    """Entries of the form HOST:GUEST[:OPTIONS]; others are skipped with a warning."""
    if volumes is None:
        return []
    if not isinstance(volumes, list):
        logger.warning("%s: ignored %r: expected a list", option, volumes)
        return []
    kept: List[str] = []
    for entry in volumes:
        if not isinstance(entry, str):
            logger.warning("%s: skipped %r: not a string", option, entry)
        elif entry.strip() and ":" not in entry:
            logger.warning("%s: skipped %r: expected HOST:GUEST[:OPTIONS]", option, entry)
        elif entry.strip():
            kept.append(entry.strip())
    return kept


def safe_name(task_id: str) -> str:
    """A unique form of a task's name for paths and sandbox names."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", task_id).lstrip(".-")[:64] or "task"
    if name != task_id:
        name += "-" + hashlib.sha256(task_id.encode("utf-8", "surrogateescape")).hexdigest()[:8]
    return name


def check_msb(exe: Optional[str]) -> str:
    """The program, if it exists and runs."""
    found = exe or find_msb()
    if not found:
        logger.error("cannot find msb on PATH, in MSB_PATH or in this tree")
        raise SandboxUnavailable("cannot find msb", ["install it, or set MSB_PATH to the program"])
    try:
        p = subprocess.run([found, "--version"], stdin=subprocess.DEVNULL, capture_output=True,
                           text=True, timeout=_CHECK_SECONDS)
    except subprocess.TimeoutExpired:
        logger.error("'%s --version' does not answer", found)
        raise SandboxUnavailable(f"'{found} --version' does not answer") from None
    except OSError as e:
        logger.error("cannot execute %s: %s", found, e)
        raise SandboxUnavailable(f"cannot execute {found}: {e.strerror}") from e
    if p.returncode != 0:
        logger.error("'%s --version' exited with %d: %s", found, p.returncode, p.stderr.strip())
        raise SandboxUnavailable(f"'{found} --version' exited with {p.returncode}: {p.stderr.strip()}")
    return found


def environments_dir() -> str:
    """The directory of persistent environments: ``$TERMINAL_SANDBOX_DIR``, else in msb's home."""
    return os.path.abspath(os.environ.get("TERMINAL_SANDBOX_DIR")
                           or os.path.join(default_home(), "environments"))


class DockerLikeEnvironment:
    """A terminal in a sandbox of its own.

    ``cpu`` may be a fraction, ``memory`` and ``disk`` are MiB; 0 means msb's default. With
    ``persistent_filesystem`` ``/root`` and ``/workspace`` are directories of the host that belong to
    ``task_id`` and outlive the sandbox; otherwise they are removed with it. ``volumes`` are
    ``HOST:GUEST[:OPTIONS]``. ``env`` are variables for every command, ``forward_env`` names of our own
    variables to pass on; ``passthrough_env`` is the same for names from other sources, minus
    ``blocked_env``. ``host_cwd`` is mounted at ``/workspace`` if ``auto_mount_cwd`` is set and no volume
    is mounted there. ``read_only_mounts`` (credentials, caches) are mappings with ``host_path`` and
    ``container_path``, files or directories. ``max_duration`` is the longest life of the sandbox in
    seconds.

    Invalid names and values are skipped with a warning.
    """

    def __init__(self, image: str, cwd: str = "/root", timeout: float = 60, cpu: float = 0,
                 memory: int = 0, disk: int = 0, persistent_filesystem: bool = False,
                 task_id: str = "default", volumes: Optional[List[str]] = None,
                 forward_env: Optional[List[str]] = None, env: Optional[Dict[str, Any]] = None,
                 network: bool = True, host_cwd: Optional[str] = None,
                 auto_mount_cwd: bool = False,
                 read_only_mounts: Sequence[Mapping[str, str]] = (),
                 passthrough_env: Iterable[str] = (), blocked_env: Iterable[str] = (),
                 max_duration: float = 7200, msb: Optional[str] = None,
                 home: Optional[str] = None) -> None:
        self.cwd = "/root" if cwd == "~" else cwd
        self.timeout = timeout
        self._persistent = persistent_filesystem
        self._task = safe_name(task_id)
        self._env = clean_env(env, "env")
        self._forward = clean_names(forward_env, "forward_env")
        implied = clean_names(passthrough_env, "passthrough_env")
        blocked = set(blocked_env)
        self._implied = [n for n in implied if n not in blocked]
        self._handle: Optional[sync.SandboxHandle] = None
        exe = check_msb(msb)
        mounts = self._mounts(clean_volumes(volumes, "volumes"), host_cwd, auto_mount_cwd)
        mounts += self._read_only(read_only_mounts)
        options = [*_SCRATCH, *([f"--root-disk={int(disk)}M"] if disk > 0 else [])]
        spec = SandboxSpec(
            name=f"env-{self._task}-{uuid.uuid4().hex[:8]}", image=image, cpus=cpu if cpu > 0 else 1,
            memory_mib=memory if memory > 0 else 512, env=self._env, volumes=tuple(mounts),
            network="public" if network else None, max_duration=max_duration,
            options=tuple(options), labels={"msb.environment": self._task})
        client = sync.SandboxClient(msb=exe, home=home)
        logger.debug("creating sandbox %s from %s, mounts: %s", spec.name, image, mounts)
        self._handle = client.create(spec)
        logger.info("created sandbox %s from %s", spec.name, image)
        session = f"/tmp/.msb-{uuid.uuid4().hex[:12]}"
        self._state, self._cwd_file = f"{session}.sh", f"{session}.cwd"
        try:
            self._begin()
        except BaseException:
            self.cleanup()
            raise

    # --- mounts ---

    def _mounts(self, volumes: List[str], host_cwd: Optional[str], auto: bool) -> List[str]:
        explicit = any(f":{_WORKSPACE}" in v for v in volumes)
        directory = os.path.abspath(os.path.expanduser(host_cwd)) if host_cwd else ""
        bind = auto and bool(directory) and os.path.isdir(directory) and not explicit
        if auto and host_cwd and not os.path.isdir(directory):
            logger.debug("host_cwd %s is not mounted: not a directory", host_cwd)
        mounts: List[str] = []
        if self._persistent:
            mounts.append(f"{self._host_dir('home')}:/root")
            if not bind and not explicit:
                mounts.append(f"{self._host_dir('workspace')}:{_WORKSPACE}")
        if bind:
            logger.info("mounting %s at %s", directory, _WORKSPACE)
            mounts.append(f"{directory}:{_WORKSPACE}")
        elif auto and explicit:
            logger.debug("host_cwd is not mounted: %s has a volume", _WORKSPACE)
        return mounts + volumes

    def _host_dir(self, name: str) -> str:
        path = os.path.join(environments_dir(), "msb", self._task, name)
        os.makedirs(path, mode=0o700, exist_ok=True)
        return path

    @staticmethod
    def _read_only(mounts: Sequence[Mapping[str, str]]) -> List[str]:
        found: List[str] = []
        for entry in mounts:
            host, guest = entry.get("host_path"), entry.get("container_path")
            if not host or not guest or not os.path.exists(host):
                logger.warning("read_only_mounts: skipped %r: missing or incomplete", host)
                continue
            logger.info("mounting %s at %s, read-only", host, guest)
            found.append(f"{os.path.abspath(host)}:{guest}:ro")
        return found

    # --- commands ---

    @property
    def sandbox_name(self) -> Optional[str]:
        """The sandbox's name; None after cleanup()."""
        return self._handle.name if self._handle else None

    def _forwarded(self) -> Dict[str, str]:
        """The current values of the variables to pass on."""
        names = [*self._implied, *self._forward]
        return {n: os.environ[n] for n in sorted(set(names)) if n in os.environ}

    def _begin(self) -> None:
        """Creates the directories a terminal needs, and records the environment of a login shell."""
        assert self._handle is not None
        for path in {self.cwd, _WORKSPACE, posixpath.dirname(self._state)}:
            if not self._handle.files.exists(path):
                self._handle.files.mkdir(path)
        result = self._handle.exec("bash", ["-l", "-c", f"export -p > {self._state}"],
                                   env=self._forwarded(), timeout=30)
        if not result.ok:
            raise MsbError(f"cannot set up the terminal of {self._handle.name}: "
                           f"{result.output.strip()}")

    def execute(self, command: str, cwd: str = "", *, timeout: Optional[float] = None,
                stdin_data: Optional[str] = None) -> Dict[str, Any]:
        """Runs a command line with bash.

        Returns ``{"output": ..., "returncode": ...}``: both streams together, as a terminal shows them.
        A command that takes longer than ``timeout`` seconds is killed; its code is 124.
        """
        if self._handle is None:
            raise SandboxUnavailable("the environment was cleaned up")
        limit = self.timeout if timeout is None else timeout
        script = "\n".join([
            "exec 2>&1", f"source {self._state} 2>/dev/null",
            f"builtin cd -- {shlex.quote(cwd or self.cwd)} || exit 126",
            f"trap '{{ export -p > {self._state}; pwd -P > {self._cwd_file}; }} 2>/dev/null' EXIT",
            f"eval {shlex.quote(command)}"])
        result = self._handle.exec("bash", ["-c", script], timeout=limit, stdin=stdin_data)
        output = result.stdout
        if result.timed_out:
            output += f"\n[the command was killed after {limit:g} s]"
        else:
            self._follow()
        return {"output": output, "returncode": result.exit_code}

    def _follow(self) -> None:
        """The next command starts in the directory where this one ended."""
        assert self._handle is not None
        try:
            self.cwd = self._handle.files.read_text(self._cwd_file).rstrip("\n") or self.cwd
        except (MsbError, OSError, ValueError):
            pass

    # --- the end ---

    def cleanup(self) -> None:
        """Removes the sandbox; persistent files stay on the host. May be called again."""
        handle, self._handle = self._handle, None
        if handle is not None:
            try:
                handle.remove(force=True)
            except MsbError as e:
                logger.warning("cannot remove sandbox %s: %s", handle.name, e)

    def __enter__(self) -> "DockerLikeEnvironment":
        return self

    def __exit__(self, *exc: object) -> None:
        self.cleanup()
