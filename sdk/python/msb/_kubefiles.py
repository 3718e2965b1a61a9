"""Files of a pod, by the exec subresource: small scripts for what any image has, a POSIX ``sh`` and the usual programs of
busybox or the GNU tools. Names go by standard input, in no URL; content goes through standard input and output as it is."""
from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import re
import stat
import time
import uuid
from typing import TYPE_CHECKING, Callable, Iterable, List, Optional, Union

from . import _proto as proto
from . import _tar
from ._cli import uncancelled
from ._filechannel import checked_name, encode_path, file_error_of
from ._kubeexec import CHUNK, KubeChannel, Plan
from .errors import FileError, MsbError, ProtocolError, UsageError
from .files import DEFAULT_MAX_READ, Files, Watch
from .types import FileInfo

if TYPE_CHECKING:
    from .kubernetes import KubernetesClient

_ERRORS_MAX = 64 * 1024
_LIST_MAX = 256 * 1024 * 1024
_ANSWER_MAX = 8 * 1024
_LINE_MAX = 256  # of attributes

# How messages of programs, shells and C libraries end. The last are what busybox and dash say in their own words.
_REASONS = (
    ("no such file or directory", errno.ENOENT), ("permission denied", errno.EACCES), ("file exists", errno.EEXIST),
    ("operation not permitted", errno.EPERM), ("not a directory", errno.ENOTDIR), ("is a directory", errno.EISDIR),
    ("directory not empty", errno.ENOTEMPTY), ("no space left on device", errno.ENOSPC), ("invalid argument", errno.EINVAL),
    ("read-only file system", errno.EROFS), ("too many levels of symbolic links", errno.ELOOP),
    ("symbolic link loop", errno.ELOOP), ("file name too long", errno.ENAMETOOLONG),
    ("filename too long", errno.ENAMETOOLONG), ("text file busy", errno.ETXTBSY), ("resource busy", errno.EBUSY),
    ("quota exceeded", errno.EDQUOT), ("file too large", errno.EFBIG), ("too many links", errno.EMLINK),
    ("cannot overwrite existing file", errno.EEXIST), ("no such file", errno.ENOENT),
    ("directory nonexistent", errno.ENOENT), ("nonexistent directory", errno.ENOENT),
    ("non-directory component", errno.ENOTDIR))

# $1 is a path that begins with / or ./, so it is never taken for an option. stat explains errors better than a shell does.
_HEAD = """\
LC_ALL=C; export LC_ALL; umask 022
F='%f %s %u %g %Y %y'
e() { echo "msb: $1" >&2; exit 1; }
there() { [ -e "$1" ] || [ -L "$1" ]; }
regular() { [ ! -d "$1" ] || e 'Is a directory'; [ -f "$1" ] || e 'Invalid argument'; }
"""
_STAT = """case $2 in n) stat -c "$F" "$1";; *) stat -L -c "$F" "$1";; esac || exit
[ "$2" != n ] || [ ! -L "$1" ] || readlink -n "$1"
"""
_READ = """stat -L -c %f "$1" >/dev/null || exit
regular "$1"
[ -r "$1" ] || e 'Permission denied'
[ "$2" ] || { cat "$1"; exit; }
[ "$3" ] || { tail -c "+$2" "$1"; exit; }
exec 4>&1
r=$({ { tail -c "+$2" "$1"; echo $? >&3; } | head -c "$3" >&4; } 3>&1) || exit
exit "$r"
"""
# Of what goes while this looks nobody is told.
_LIST = """stat -L -c %f "$1/." >/dev/null || exit
[ -r "$1" ] && [ -x "$1" ] || e 'Permission denied'
for c in find stat readlink; do command -v $c >/dev/null || { echo "$c: not found" >&2; exit 127; }; done
find "$1/." -mindepth 1 -maxdepth 1 -exec stat -c "$F/%n/" {} + 2>/dev/null
printf '\\0'
find "$1/." -mindepth 1 -maxdepth 1 -type l -exec sh -c \
'for f; do printf "%s\\0" "${f##*/}"; readlink -n "$f"; printf "\\0"; done' sh {} + 2>/dev/null
:
"""
# $2 the directory above, $3 of p (parents) a (append) x (exclusive) t (atomic), $4 the mode, $5 the size of what comes,
# $6 the name of a temporary file, $7 and $8 the time in two forms.
_WRITE = """case $3 in *p*) [ -d "$2" ] || mkdir -p "$2" || exit;; esac
[ ! -e "$1" ] || regular "$1"
t=$1 w=
case $3 in *t*)
case $3 in *x*) ! there "$1" || e 'File exists';; esac
if [ -L "$1" ]; then t=$(readlink -f "$1" && echo .) || e 'No such file or directory'; t=${t%?.}; fi
w=${t%/*}/$6; trap 'rm -f "$w"' 0
(umask 077; set -C; cat >"$w") || exit
[ "$(wc -c <"$w")" -eq "$5" ] || e 'the content is not complete'
m=${4:-0644}
[ ! -e "$t" ] || { [ "$4" ] || m=$(stat -c %a "$t"); chown "$(stat -c %u:%g "$t")" "$w" 2>/dev/null; }
chmod "$m" "$w" && mv -f "$w" "$t" || exit;;
*) [ -z "$4" ] || umask 077
case $3 in *x*) set -C;; esac
case $3 in *a*) cat >>"$1";; *) cat >"$1";; esac || exit
[ -z "$4" ] || chmod "$4" "$1" || exit;;
esac
[ -z "$7" ] || touch -d "$7" "$1" 2>/dev/null || TZ=UTC0 touch -t "$8" "$1" || exit
stat -L -c "$F" "$1"
"""
_MKDIR = """case $2 in p) [ -d "$1" ] || mkdir -p -m "$3" "$1";; *) mkdir -m "$3" "$1";; esac
"""
_REMOVE = """if ! there "$1"; then case $2 in *f*) exit 0;; esac; stat "$1" >/dev/null; exit; fi
if [ -L "$1" ] || [ ! -d "$1" ]; then rm -f "$1"; else case $2 in *r*) rm -rf "$1";; *) rmdir "$1";; esac; fi
"""
# What rename() does: mv would put it into a directory of that name.
_RENAME = """there "$1" || { stat "$1" >/dev/null; exit; }
[ "$3" ] || ! there "$2" || e 'File exists'
[ "$1" != "$2" ] || exit 0
if [ -L "$2" ]; then rm -f "$2" || exit
elif [ -d "$2" ]; then { [ -d "$1" ] && [ ! -L "$1" ]; } || e 'Is a directory'; rmdir "$2" || exit
elif [ -e "$2" ] && [ -d "$1" ] && [ ! -L "$1" ]; then e 'Not a directory'; fi
mv -f "$1" "$2"
"""
_SYMLINK = """! there "$1" || e 'File exists'
ln -s -- "$2" "$1"
"""
_GET = """if [ -d "$1" ]; then echo T; exec tar -cf - -C "$1" .; fi
stat -L -c "$F" "$1" || exit
[ ! -f "$1" ] || cat "$1"
"""


def _word(path: str) -> str:
    """A path as scripts take it, which is never taken for an option."""
    encode_path(path)
    return path if path.startswith("/") else f"./{path}"


def _error(code: int, said: bytes, path: str) -> MsbError:
    """Of a script that failed: the first message that has a reason we know."""
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines() if line.strip()]
    for line in lines:
        for text, number in _REASONS:
            if line.lower().endswith(text):
                return file_error_of(number, "", path)
    last = lines[-1][:500] if lines else f"exit code {code}"
    if code == 127:
        return MsbError(f"cannot access the sandbox's files: {last}", ["the image lacks a program that this needs"])
    return file_error_of(errno.EIO, f"{path}: {last}", path)


_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink"}


def _info(line: bytes, path: str, name: str, target: Optional[bytes] = None) -> FileInfo:
    """Of a line that stat wrote in the form of $F."""
    match = len(line) <= _LINE_MAX and re.match(
        rb"([0-9a-f]{1,8}) (\d{1,19}) (\d{1,10}) (\d{1,10}) (-?\d{1,18}) [\d-]+ [\d:]+(\.\d{1,9})?[ +\d-]*\Z", line)
    if not match:
        raise ProtocolError("the sandbox broke the protocol: invalid attributes")
    mode = int(match[1], 16)
    return FileInfo(name=name, path=path, kind=_KINDS.get(stat.S_IFMT(mode), "other"), size=int(match[2]), mode=mode & 0o7777,
                    uid=int(match[3]), gid=int(match[4]), mtime=int(match[5]) + float(match[6] or 0),
                    target=None if target is None else os.fsdecode(target))


class KubeFiles(Files):
    """The files of a pod, as :attr:`KubernetesHandle.files`: those of :class:`msb.Files`, without ``as_user`` and
    ``watch``. Directories are copied by the image's ``tar``."""

    def __init__(self, client: "KubernetesClient", name: str) -> None:
        self._client, self._name = client, name

    def as_user(self, user: str) -> Files:
        """Not available in a cluster: a pod has one user."""
        raise UsageError("as_user is not available in a cluster", ["set user in the SandboxSpec"])

    async def watching(self, path: str, *, recursive: bool = False) -> Watch:
        """Not available in a cluster: an image has no program for it."""
        raise UsageError("watch is not available in a cluster", ["look at the files again and again"])

    # --- scripts ---

    async def _run(self, path: str, script: str, *words: str, take: Callable[[bytes], object], size: int = 0,
                   source: Iterable[bytes] = (), lenient: Callable[[], bool] = lambda: False) -> None:
        """Runs a script. ``take`` gets its output; ``source`` is its input, of ``size`` bytes. One that fails for a reason
        we do not know has not, if ``lenient`` says so."""
        plan = Plan(["sh", "-c", _HEAD + script, "msb"], env={}, cwd=None, tty=False, stdin=size or None, half_close=False,
                    hidden=(_word(path), *words))
        channel = await self._client._exec(self._name, plan, 0, True, None)
        feeder: Optional["asyncio.Future[None]"] = None
        said = bytearray()
        try:
            channel.begin(None)
            await channel.started
            if size:
                feeder = asyncio.ensure_future(_feed(channel, source))
            while True:
                chunk = await channel.next_chunk()
                if chunk is None:
                    break
                if chunk[0] == 0:
                    take(chunk[1])
                else:
                    said += chunk[1][:_ERRORS_MAX - len(said)]
            if feeder is not None:
                await feeder
            code = (await channel.ended).exit_code
        finally:
            if feeder is not None:
                feeder.cancel()
            channel.abort()
            await uncancelled(channel.release())
        if code:
            error = _error(code, bytes(said), path)
            if getattr(error, "errno", 0) != errno.EIO or not lenient():
                raise error

    async def _ask(self, path: str, script: str, *words: str) -> bytes:
        said = bytearray()
        await self._run(path, script, *words, take=_limited(said, _ANSWER_MAX))
        return bytes(said)

    # --- contents ---

    async def read(self, path: str, *, offset: int = 0, length: Optional[int] = None,
                   max_bytes: int = DEFAULT_MAX_READ) -> bytes:
        if offset < 0 or (length is not None and length < 0):
            raise UsageError("offset and length cannot be negative")
        some = offset > 0 or length is not None
        found = bytearray()
        # What becomes of tail when head has all it wants is of no interest.
        await self._run(path, _READ, str(offset + 1) if some else "", "" if length is None else str(length),
                        take=_limited(found, max_bytes, _too_long(path, max_bytes)), lenient=lambda: len(found) == length)
        return bytes(found)

    async def write(self, path: str, data: Union[bytes, str], *, mode: Optional[int] = None, append: bool = False,
                    exclusive: bool = False, atomic: bool = False, parents: bool = True) -> FileInfo:
        content = data.encode() if isinstance(data, str) else bytes(data)
        if append and atomic:
            raise file_error_of(errno.EINVAL, "", path)
        flags = "".join(c for c, given in zip("paxt", (parents, append, exclusive, atomic)) if given)
        return await self._put(path, flags, mode, len(content), [content])

    async def _put(self, path: str, flags: str, mode: Optional[int], size: int, source: Iterable[bytes],
                   mtime_ns: Optional[int] = None) -> FileInfo:
        times = ("", "")
        if mtime_ns is not None:
            seconds, rest = divmod(mtime_ns, 10 ** 9)
            times = f"@{seconds}.{rest:09}", time.strftime("%Y%m%d%H%M.%S", time.gmtime(seconds))
        said = bytearray()
        await self._run(path, _WRITE, posixpath.dirname(_word(path).rstrip("/")), flags, _mode(mode), str(size),
                        f".msb-{uuid.uuid4().hex[:8]}", *times, take=_limited(said, _ANSWER_MAX), size=size, source=source)
        return _info(bytes(said).rstrip(b"\n"), path, posixpath.basename(path))

    # --- directories and attributes ---

    async def list(self, path: str = ".", *, limit: int = 100000) -> List[FileInfo]:
        said = bytearray()
        await self._run(path, _LIST, take=_limited(said, _LIST_MAX, _too_long(path, _LIST_MAX)))
        records, *links = bytes(said).split(b"\0", 2 * limit + 1)
        targets = dict(zip(links[::2], links[1::2]))
        before = re.escape(os.fsencode(_word(path) + "/./"))
        record = re.compile(rb"([^/]{1,%d})/%s([^/]{1,%d})/\n" % (_LINE_MAX, before, proto.NAME_MAX))
        found: List[FileInfo] = []
        at = 0
        while at < len(records):
            match = record.match(records, at)
            if not match:
                raise ProtocolError("the sandbox broke the protocol: an invalid listing")
            if len(found) >= limit:
                raise FileError(f"{path}: more than {limit} entries", errno.E2BIG, path)
            name = checked_name(match[2])
            found.append(_info(match[1], posixpath.join(path, name), name, targets.get(match[2])))
            at = match.end()
        return sorted(found, key=lambda f: f.name)

    async def stat(self, path: str, *, follow_symlinks: bool = True) -> FileInfo:
        line, _, target = (await self._ask(path, _STAT, "" if follow_symlinks else "n")).partition(b"\n")
        return _info(line, path, posixpath.basename(path), target or None)

    async def mkdir(self, path: str, *, mode: int = 0o755, parents: bool = True) -> None:
        await self._ask(path, _MKDIR, "p" if parents else "", _mode(mode))

    async def remove(self, path: str, *, recursive: bool = False, missing_ok: bool = False) -> None:
        await self._ask(path, _REMOVE, ("r" if recursive else "") + ("f" if missing_ok else ""))

    async def rename(self, path: str, to: str, *, replace: bool = True) -> None:
        await self._ask(path, _RENAME, _word(to), "y" if replace else "")

    async def chmod(self, path: str, mode: int) -> None:
        await self._ask(path, 'chmod "$2" "$1"\n', _mode(mode))

    async def symlink(self, target: str, path: str) -> None:
        encode_path(target)
        await self._ask(path, _SYMLINK, target)

    # --- to and from the host ---

    async def upload(self, local: Union[str, "os.PathLike[str]"], path: str) -> None:
        source = os.fspath(local)
        if stat.S_ISDIR(os.stat(source).st_mode):
            tree = _tar.Tree(source)
            try:
                await self._run(path, 'mkdir -p "$1" && tar -xpof - -C "$1"\n', take=lambda _: None, size=tree.size,
                                source=tree.pieces())
            finally:
                tree.close()
            return
        with _tar.opened(source) as (file, st):
            await self._put(path, "p", st.st_mode, st.st_size, _tar.content(file, st.st_size, source), st.st_mtime_ns)

    async def download(self, path: str, local: Union[str, "os.PathLike[str]"], *, max_bytes: Optional[int] = None) -> None:
        got = _Download(path, os.fspath(local), max_bytes)
        try:
            await self._run(path, _GET, take=got.take, lenient=got.whole_tree)
            if not (got.kind == "file" or got.whole_tree()):
                raise ProtocolError("the sandbox broke the protocol: it sent half of a tree")
        finally:
            got.close()


class _Download:
    """A file, or a tree as tar: the first line says which."""

    def __init__(self, path: str, target: str, max_bytes: Optional[int]) -> None:
        self._tree = _tar.Reader(path, target, max_bytes)
        self._path, self._line, self.kind = path, b"", ""

    def take(self, data: bytes) -> None:
        """What the script writes."""
        if not self.kind:
            self._line, newline, data = (self._line + data).partition(b"\n")
            if len(self._line) > _LINE_MAX:
                raise ProtocolError("the sandbox broke the protocol: too long an answer")
            if not newline:
                return
            self.kind = "tree" if self._line == b"T" else "file"
            self._tree.begin(None if self.kind == "tree" else _info(self._line, self._path, ""))
        if data and self.kind == "tree":
            self._tree.feed(data)
        elif data:
            self._tree.receiver.data(data)

    def whole_tree(self) -> bool:
        """Whether it is a tree that is all there: of a file, that cannot be seen."""
        return self._tree.ended

    def close(self) -> None:
        self._tree.receiver.close()


def _mode(mode: Optional[int]) -> str:
    """So many digits that chmod takes bits away from a directory, too."""
    return "" if mode is None else f"{mode & 0o7777:05o}"


def _too_long(path: str, most: int) -> FileError:
    return FileError(f"{path}: longer than {most} bytes", errno.EFBIG, path)


def _limited(found: bytearray, most: int, error: Optional[MsbError] = None) -> Callable[[bytes], None]:
    def take(data: bytes) -> None:
        if len(found) + len(data) > most:
            raise error or ProtocolError("the sandbox broke the protocol: too long an answer")
        found.extend(data)
    return take


async def _feed(channel: KubeChannel, source: Iterable[bytes]) -> None:
    """Sends input; what fails here ends the script."""
    try:
        for piece in source:
            for at in range(0, len(piece), CHUNK):
                await channel.write_stdin(piece[at:at + CHUNK])
            if channel.ended.done():
                return
    except BaseException:
        channel.abort()
        channel.on_end(MsbError("its input failed"))
        raise
