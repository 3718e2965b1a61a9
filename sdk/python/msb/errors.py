"""The errors, by type.

Every error of this package is a :class:`MsbError`. Where it comes from the ``msb`` program or the
sandbox, the text is their message and ``hints`` are their hints.
"""
from __future__ import annotations

import os
import re
from typing import List, Optional, Sequence, Tuple, Type

__all__ = [
    "CommandError", "CommandNotExecutable", "CommandNotFound", "CommandTimeout", "FileError",
    "FileExists", "FileNotFound", "FileDenied", "ImageError", "MsbError", "PolicyRefused",
    "ProtocolError", "SandboxEnded", "SandboxExists", "SandboxNotFound", "SandboxNotRunning",
    "SandboxUnavailable", "SecretError", "TooManyCommands", "UsageError",
]


class MsbError(RuntimeError):
    """The base of all errors.

    ``message`` is one line, ``hints`` are remedies, ``exit_code`` is the exit code of the ``msb``
    program if that failed.
    """

    def __init__(self, message: str, hints: Sequence[str] = (),
                 exit_code: Optional[int] = None) -> None:
        super().__init__(message)
        self.message = message
        self.hints: Tuple[str, ...] = tuple(hints)
        self.exit_code = exit_code

    @property
    def hint(self) -> str:
        """The first remedy, or an empty string."""
        return self.hints[0] if self.hints else ""

    def __str__(self) -> str:
        return "\n".join([self.message, *(f"  → {h}" for h in self.hints)])


class SandboxUnavailable(MsbError):
    """The ``msb`` program is missing or does not run."""


class UsageError(MsbError, ValueError):
    """An argument is invalid."""


class SandboxNotFound(MsbError, LookupError):
    """There is no sandbox with this name."""


class SandboxExists(MsbError):
    """The name is taken."""


class SandboxNotRunning(MsbError):
    """The operation needs a running sandbox."""


class SandboxEnded(MsbError):
    """The sandbox ended during the operation."""


class ImageError(MsbError):
    """The image cannot be found, pulled or read."""


class SecretError(MsbError):
    """A secret is missing, damaged or has no value."""


class ProtocolError(MsbError):
    """The other end of a connection violated the protocol."""


class CommandError(MsbError):
    """A command could not be started."""


class CommandNotFound(CommandError):
    """There is no such program in the sandbox (a shell's exit code 127)."""


class CommandNotExecutable(CommandError):
    """The program exists but cannot be executed (a shell's exit code 126)."""


class PolicyRefused(MsbError):
    """The host's policy (``msb policy``) does not allow it; the message has field, file and line."""


class TooManyCommands(CommandError):
    """The sandbox is running as many commands as it can."""


class CommandTimeout(MsbError, TimeoutError):
    """The wait timed out; the command goes on."""


class FileError(MsbError, OSError):
    """A file operation in the sandbox failed; ``errno`` says how."""

    def __init__(self, message: str, code: int = 0, path: str = "",
                 hints: Sequence[str] = ()) -> None:
        MsbError.__init__(self, message, hints)
        self.errno = code
        self.strerror = os.strerror(code) if code else message
        self.filename = path or None


class FileNotFound(FileError, FileNotFoundError):
    """There is no such file in the sandbox."""


class FileExists(FileError, FileExistsError):
    """A file with this name already exists."""


class FileDenied(FileError, PermissionError):
    """The user lacks the permission."""


_BY_MESSAGE: Tuple[Tuple[str, Type[MsbError]], ...] = (
    (r"sandbox not found: ", SandboxNotFound),
    (r"sandbox already exists: ", SandboxExists),
    (r"invalid config: |invalid value |unexpected argument |unknown (option|argument)", UsageError),
    (r"is not running|sandbox still running", SandboxNotRunning),
    (r"sandbox ended|ended as soon as", SandboxEnded),
    (r"secret", SecretError),
    (r"image|registry|manifest|pull", ImageError),
)


def from_cli(exit_code: int, stderr: str) -> MsbError:
    """The error that a failed ``msb`` reports: ``error: ...`` and its ``→`` lines."""
    message = ""
    hints: List[str] = []
    for line in stderr.splitlines():
        if line.startswith("error: ") and not message:
            message = line[len("error: "):]
        elif message and line.startswith("  → "):
            hints.append(line[len("  → "):])
    if not message:
        message = stderr.strip()[-2000:] or f"msb exited with {exit_code}"
    if exit_code == 3 and "policy" in message:
        return PolicyRefused(message, hints, exit_code)
    kind: Type[MsbError] = UsageError if exit_code == 2 else MsbError
    for pattern, candidate in _BY_MESSAGE:
        if re.search(pattern, message):
            kind = candidate
            break
    return kind(message, hints, exit_code)
