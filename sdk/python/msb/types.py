"""The values that go in and come out."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional, Tuple

__all__ = ["ExecResult", "FileInfo", "OutputChunk", "SandboxInfo", "SandboxSpec"]


@dataclass(frozen=True)
class ExecResult:
    """How a command ended, and what it printed.

    ``exit_code`` is 128+N if signal N killed it, 124 if it ran out of time, 127 if there is no such
    program and 126 if it cannot be executed. ``truncated`` says that there was or would have been
    more output: a limit was reached, or the time was up.
    """

    stdout: str
    stderr: str = ""
    exit_code: int = 0
    truncated: bool = False
    timed_out: bool = False

    @property
    def output(self) -> str:
        """stdout, then stderr."""
        return self.stdout + (self.stderr or "")

    @property
    def ok(self) -> bool:
        """Did it exit with 0?"""
        return self.exit_code == 0


@dataclass(frozen=True)
class OutputChunk:
    """A piece of output as it came: ``stream`` is ``"stdout"`` or ``"stderr"``."""

    stream: str
    data: bytes

    @property
    def text(self) -> str:
        """The piece as text; a character cut in two shows as a replacement character."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True)
class SandboxSpec:
    """What a sandbox is to be.

    Only ``name`` is needed. ``workspace`` is mounted at ``/workspace``. ``secrets`` are names of
    values that ``msb secret set`` keeps: commands find the values in their environment, nothing else
    does. ``egress`` lists the host names that may be connected to; an empty list means no network,
    unless ``network`` names a profile (``"public"``).

    The fields after ``labels`` are the options of ``msb create`` of the same names.
    """

    name: str
    image: str = "python:3.11-slim"
    memory_mib: int = 512
    cpus: float = 1
    workspace: Optional[str] = None
    secrets: Tuple[str, ...] = ()
    egress: Tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: Optional[str] = None
    user: Optional[str] = None
    volumes: Tuple[str, ...] = ()
    ports: Tuple[str, ...] = ()
    network: Optional[str] = None
    idle_timeout: Optional[float] = None
    max_duration: Optional[float] = None
    replace: bool = False
    options: Tuple[str, ...] = ()
    """Further options of ``msb create``, as they are typed: ``("--root-disk", "8G")``."""


@dataclass(frozen=True)
class SandboxInfo:
    """A sandbox as ``msb inspect`` shows it; ``details`` is all of it."""

    name: str
    status: str
    image: str
    labels: Mapping[str, str]
    details: Mapping[str, object]

    @property
    def running(self) -> bool:
        """Does it run?"""
        return self.status == "Running"


@dataclass(frozen=True)
class FileInfo:
    """A file in a sandbox. ``kind`` is ``file``, ``dir``, ``symlink`` or ``other``."""

    name: str
    path: str
    kind: str
    size: int
    mode: int
    uid: int
    gid: int
    mtime: float
    target: Optional[str] = None

    @property
    def is_dir(self) -> bool:
        """Is it a directory?"""
        return self.kind == "dir"

    @property
    def is_file(self) -> bool:
        """Is it a regular file?"""
        return self.kind == "file"


