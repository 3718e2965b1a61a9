"""Sandboxes, each with its own Linux kernel, from Python.

Asynchronous::

    import asyncio, msb

    async def main():
        client = msb.SandboxClient()
        async with await client.create(msb.SandboxSpec(name="demo", image="alpine:3")) as sb:
            result = await sb.exec("uname", ["-r"])
            print(result.stdout)

    asyncio.run(main())

Without ``await``: :mod:`msb.sync`, or, in the style of other sandbox products::

    with msb.Sandbox.create(image="alpine:3") as sandbox:
        sandbox.files.write("/tmp/hello.txt", "hello")
        print(sandbox.commands.run("cat /tmp/hello.txt").stdout)

No server is needed: commands and files go straight to the sandbox's own socket, everything else
through the ``msb`` program.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import environments, sync
from ._cli import find_msb
from .client import DEFAULT_MAX_OUTPUT, SandboxClient, SandboxHandle
from .code import CodeContext, Execution, ExecutionError, Logs, Result
from .errors import (CommandError, CommandNotExecutable, CommandNotFound, CommandTimeout, FileDenied,
                     FileError, FileExists, FileNotFound, ImageError, MsbError, PolicyRefused,
                     ProtocolError, SandboxEnded, SandboxExists, SandboxNotFound, SandboxNotRunning,
                     SandboxUnavailable, SecretError, TooManyCommands, UsageError)
from .files import FileEvent, Files, Watch
from .process import Process
from .sandbox import AsyncSandbox, PtySize, Sandbox
from .types import ExecResult, FileInfo, OutputChunk, SandboxInfo, SandboxSpec
from .workspace import Workspace, WorkspaceFiles

if TYPE_CHECKING:
    from .kubernetes import KubernetesClient, KubernetesHandle

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What needs TLS and more is loaded by those who use it."""
    if name in ("KubernetesClient", "KubernetesHandle"):
        from . import kubernetes
        return getattr(kubernetes, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AsyncSandbox", "CodeContext", "CommandError", "CommandNotExecutable", "CommandNotFound", "CommandTimeout",
    "DEFAULT_MAX_OUTPUT", "ExecResult", "Execution", "ExecutionError", "FileDenied", "FileError", "FileEvent", "FileExists",
    "FileInfo", "FileNotFound", "Files", "ImageError", "KubernetesClient", "KubernetesHandle", "Logs", "MsbError", "OutputChunk", "PolicyRefused", "Process",
    "ProtocolError", "PtySize", "Result", "Sandbox", "SandboxClient", "SandboxEnded", "SandboxExists", "SandboxHandle",
    "SandboxInfo", "SandboxNotFound", "SandboxNotRunning", "SandboxSpec", "SandboxUnavailable",
    "SecretError", "TooManyCommands", "UsageError", "Watch", "Workspace", "WorkspaceFiles", "environments",
    "find_msb", "sync",
]
