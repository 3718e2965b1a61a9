"""Workspaces: directories that outlive sandboxes, and their files, without a sandbox."""
from __future__ import annotations

import asyncio
import calendar
import errno
import os
import time
from typing import Any, Dict, List, Mapping, Optional, Union

from ._channel import NAME
from ._cli import Cli, end_process
from .errors import FileError, FileNotFound, MsbError, UsageError, from_cli
from .files import DEFAULT_MAX_READ
from .types import FileInfo

__all__ = ["Workspace", "WorkspaceFiles"]

_MISSING = "no such file in the workspace: "
_CHUNK = 1 << 20


def _seconds(text: str) -> float:
    """A time such as 2026-01-02T03:04:05.678901234Z."""
    whole, _, rest = text.rstrip("Z").partition(".")
    return calendar.timegm(time.strptime(whole, "%Y-%m-%dT%H:%M:%S")) + float(f"0.{rest or 0}")


def _info(entry: Mapping[str, Any]) -> FileInfo:
    path = str(entry["path"])
    return FileInfo(name=path.rsplit("/", 1)[-1], path=path, kind=str(entry["type"]),
                    size=int(entry["size"]), mode=int(entry["mode"], 8), uid=int(entry["uid"]),
                    gid=int(entry["gid"]), mtime=_seconds(entry["modified_at"]),
                    target=entry["target"])


def _file_error(error: MsbError, path: str) -> MsbError:
    if error.message.startswith(_MISSING):
        return FileNotFound(error.message, errno.ENOENT, path, error.hints)
    return error


class WorkspaceFiles:
    """Files of a workspace, by paths from its top.

    A workspace in a bucket is synced before its files are looked at, and after they were changed.
    """

    def __init__(self, cli: Cli, name: str) -> None:
        self._cli, self._name = cli, name

    def _at(self, path: str) -> str:
        if not isinstance(path, str) or "\0" in path:
            raise UsageError(f"invalid path {path!r}")
        return f"{self._name}:{path}"

    async def _run(self, path: str, *args: str) -> None:
        try:
            await self._cli.run("workspace", *args)
        except MsbError as e:
            raise _file_error(e, path) from None

    async def read(self, path: str, *, max_bytes: int = DEFAULT_MAX_READ) -> bytes:
        """The content of a file; :class:`FileError` if it has more than ``max_bytes``."""
        process = await self._cli.start("workspace", "get", self._at(path), "-")
        assert process.stdout is not None and process.stderr is not None
        errors = asyncio.ensure_future(process.stderr.read())
        found = bytearray()
        try:
            while len(found) <= max_bytes:
                chunk = await process.stdout.read(_CHUNK)
                if not chunk:
                    break
                found += chunk
            if len(found) > max_bytes:
                raise FileError(f"'{path}' has more than {max_bytes} bytes", errno.EFBIG, path)
            code = await process.wait()
            if code != 0:
                raise _file_error(from_cli(code, (await errors).decode("utf-8", "replace")), path)
            return bytes(found)
        finally:
            await end_process(process)
            errors.cancel()

    async def read_text(self, path: str, *, encoding: str = "utf-8", errors: str = "strict") -> str:
        """The content of a file as text."""
        return (await self.read(path)).decode(encoding, errors)

    async def write(self, path: str, data: Union[bytes, str]) -> None:
        """Makes or replaces a file, with the directories above it. It has its name once it is complete."""
        try:
            await self._cli.run("workspace", "put", "-", self._at(path),
                                stdin=data.encode() if isinstance(data, str) else bytes(data))
        except MsbError as e:
            raise _file_error(e, path) from None

    async def list(self, path: str = ".", *, recursive: bool = False) -> List[FileInfo]:
        """What is in a directory, sorted; with ``recursive`` everything below it."""
        try:
            found = await self._cli.json("workspace", "ls", *(["-R"] if recursive else []), self._at(path))
        except MsbError as e:
            raise _file_error(e, path) from None
        return [_info(entry) for entry in found]

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Removes a file, or with ``recursive`` a directory and what is in it."""
        try:
            await self._run(path, "rm", "-q", *(["-r"] if recursive else []), self._at(path))
        except FileNotFound:
            if not missing_ok:
                raise

    async def upload(self, local: Union[str, "os.PathLike[str]"], path: str) -> None:
        """Copies a file or a directory of the host into the workspace, by the rules of ``msb cp``."""
        await self._run(path, "put", "-q", os.path.join(".", os.fspath(local)), self._at(path))

    async def download(self, path: str, local: Union[str, "os.PathLike[str]"]) -> None:
        """Copies a file or a directory of the workspace to the host, by the rules of ``msb cp``."""
        await self._run(path, "get", "-q", self._at(path), os.path.join(".", os.fspath(local)))


class Workspace:
    """A workspace, by its name; returned by :meth:`SandboxClient.workspace`. It need not exist yet: a sandbox
    that names it makes it."""

    def __init__(self, cli: Cli, name: str) -> None:
        if not NAME.match(name):
            raise UsageError(f"invalid workspace name {name!r}")
        self._cli, self.name = cli, name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def files(self) -> WorkspaceFiles:
        """Its files."""
        return WorkspaceFiles(self._cli, self.name)

    async def info(self) -> Dict[str, Any]:
        """What ``msb workspace inspect`` shows."""
        found: Dict[str, Any] = await self._cli.json("workspace", "inspect", self.name)
        return found

    async def status(self) -> Dict[str, str]:
        """What a sync with the bucket would do, by path: ``upload``, ``download``, ``delete-local``,
        ``delete-remote`` or ``conflict``."""
        found = await self._cli.json("workspace", "status", self.name)
        return {str(d["path"]): str(d["action"]) for d in found["differences"]}

    async def sync(self, *, emptied: bool = False) -> None:
        """Copies snapshots back to the host, and brings host and bucket up to date. ``emptied``: the bucket was
        emptied on purpose, so what it has lost is removed here, too."""
        await self._cli.run("workspace", "sync", "-q", *(["--emptied"] if emptied else []), self.name)

    async def checkpoint(self, message: str = "") -> int:
        """Keeps a version of it, and returns its number; if nothing has changed, the last version's."""
        return int(await self._cli.run("workspace", "checkpoint", "-q", f"--message={message}", self.name))

    async def log(self) -> List[Dict[str, Any]]:
        """Its versions, the newest first: ``id``, ``created_at``, ``files``, ``bytes`` and ``message``."""
        found: List[Dict[str, Any]] = await self._cli.json("workspace", "log", self.name)
        return found

    async def diff(self, old: Optional[int] = None, new: Optional[int] = None) -> Dict[str, str]:
        """What differs between two versions, by path: ``added``, ``changed`` or ``removed``. Without numbers:
        between the last version and what is there now."""
        args = [f"--{name}={value}" for name, value in (("from", old), ("to", new)) if value is not None]
        found = await self._cli.json("workspace", "diff", *args, self.name)
        return {str(d["path"]): str(d["change"]) for d in found}

    async def restore(self, version: int) -> None:
        """Makes it what it was in a version; what is there becomes a version first."""
        await self._cli.run("workspace", "restore", "-q", self.name, str(version))

    async def remove(self) -> None:
        """Removes it with its files; a bucket is left as it is."""
        await self._cli.run("workspace", "rm", "-q", self.name)
