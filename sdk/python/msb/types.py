"""Parameters and results."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional, Sequence, Tuple

__all__ = ["ExecResult", "FileInfo", "OutputChunk", "SandboxInfo", "SandboxSpec"]


@dataclass(frozen=True)
class ExecResult:
    """How a command ended, and what it printed.

    ``exit_code`` is 128+N if signal N killed it, 124 if it timed out, 127 if there is no such
    program and 126 if it cannot be executed. ``truncated`` means that there was or may have
    been more output: a limit was reached, or the command timed out. ``out_of_memory`` means
    that it failed, and that the sandbox killed it or another process for lack of memory.
    """

    stdout: str
    stderr: str = ""
    exit_code: int = 0
    truncated: bool = False
    timed_out: bool = False
    out_of_memory: bool = False

    @property
    def output(self) -> str:
        """stdout, then stderr."""
        return self.stdout + (self.stderr or "")

    @property
    def ok(self) -> bool:
        """Whether it exited with 0."""
        return self.exit_code == 0


@dataclass(frozen=True)
class OutputChunk:
    """A piece of output as it arrived: ``stream`` is ``"stdout"`` or ``"stderr"``."""

    stream: str
    data: bytes

    @property
    def text(self) -> str:
        """The piece as text; a character cut in two shows as a replacement character."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True)
class SandboxSpec:
    """The configuration of a sandbox.

    Only ``name`` is required. ``workspace`` is mounted at ``/workspace``. ``secrets`` are names of
    values stored with ``msb secret set``: commands find the values in their environment, and only
    there. ``bound_secrets`` never enter the sandbox: ``{"KEY": ["api.example.com"]}`` gives it a
    placeholder, which becomes the value on its way to these hosts. ``egress`` lists the host names that can be reached; an empty list means no network,
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
    bound_secrets: Mapping[str, Sequence[str]] = field(default_factory=dict)
    options: Tuple[str, ...] = ()
    """Further options of ``msb create``: ``("--root-disk", "8G")``."""


@dataclass(frozen=True)
class SandboxInfo:
    """A sandbox as ``msb inspect`` shows it; ``details`` is its full output."""

    name: str
    status: str
    image: str
    labels: Mapping[str, str]
    details: Mapping[str, object]

    @property
    def running(self) -> bool:
        """Whether it is running."""
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
        """Whether it is a directory."""
        return self.kind == "dir"

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return self.kind == "file"


