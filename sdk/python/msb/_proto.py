"""Frames and fields of the protocol on agent.sock (src/proto/proto.h).

A frame is a header (length, type) and a payload: raw bytes for data, otherwise a list of fields
(tag, length, bytes). What is received comes from a guest and is treated as hostile: lengths are
checked before anything is kept, numbers against their size, and control characters are removed.
"""
from __future__ import annotations

import struct
from typing import List, Optional, Sequence, Tuple, Union

from .errors import ProtocolError, UsageError

# Constants of src/proto/proto.h, as far as they are needed here, without its prefixes (PROTO_, FILE_).
# A test compares them.
VERSION_MAJOR, VERSION_MINOR = 1, 0
HDR_LEN = 8
DATA_MAX = 64 * 1024
MSG_MAX = 4 * 1024 * 1024
STDIN_WINDOW = 256 * 1024
PATH_MAX, NAME_MAX, DEPTH_MAX, LIST_MAX = 4095, 255, 256, 1000000

# Frame types.
HELLO, FAIL, PING, PONG = 1, 4, 6, 7
EXEC, STARTED, STDIN, STDIN_EOF, STDIN_ACK, STDOUT, STDERR = 16, 17, 18, 19, 20, 21, 22
SIGNAL, RESIZE, EXIT, DETACH = 23, 24, 25, 26
TOUCH, STOP, OK, INFO = 32, 33, 34, 35
FILES, FILE_OP, FILE_DATA, FILE_END, FILE_ENTRY, FILE_LEAVE = 64, 65, 66, 67, 68, 69
FILE_EVENT, FILE_OK, FILE_ERR = 70, 71, 72

# Field tags.
F_VERSION, F_TEXT, F_KIND, F_ERRNO, F_COOKIE = 1, 2, 3, 4, 5
F_PID, F_BYTES, F_SIGNAL, F_CODE, F_TIMED_OUT, F_ROWS, F_COLS, F_SESSIONS = 7, 8, 9, 10, 11, 12, 13, 14
F_OOM = 15
F_ARG, F_ENV, F_CWD, F_USER, F_TTY, F_NO_STDIN, F_TIMEOUT_MS = 32, 33, 34, 35, 40, 41, 42
F_FILE_OP, F_FILE_PATH, F_FILE_TO, F_FILE_FLAGS, F_FILE_OFFSET, F_FILE_LENGTH = 128, 129, 130, 131, 132, 133
F_FILE_MODE, F_FILE_UID, F_FILE_GID, F_FILE_MTIME, F_FILE_SIZE = 134, 135, 136, 137, 139
F_FILE_NAME, F_FILE_TARGET, F_FILE_LIMIT, F_FILE_CUT, F_FILE_EVENT = 140, 141, 142, 143, 144

# File operations, their flags, and events.
OP_STAT, OP_LIST, OP_READ, OP_WRITE, OP_MKDIR, OP_REMOVE = 1, 2, 3, 4, 5, 6
OP_RENAME, OP_SET, OP_SYMLINK, OP_WATCH, OP_GET, OP_PUT = 7, 8, 9, 10, 11, 12
NOFOLLOW, FOLLOW, PARENTS, RECURSIVE, FORCE, EXCL, APPEND, ATOMIC = 1, 2, 4, 8, 16, 32, 64, 128
CREATED, MODIFIED, REMOVED, ATTRIB, MOVED_FROM, MOVED_TO, OVERFLOW, IS_DIR = 1, 2, 4, 8, 16, 32, 64, 128

# Kinds of FAIL.
FAIL_OTHER, FAIL_NOT_FOUND, FAIL_NOT_EXECUTABLE, FAIL_CWD, FAIL_USER = 0, 1, 2, 3, 4
FAIL_RLIMIT, FAIL_LIMIT, FAIL_VERSION, FAIL_STATE, FAIL_OUTPUT = 5, 6, 7, 8, 10

_HEADER = struct.Struct("<IHH")
_FIELD = struct.Struct("<HI")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

Field = Tuple[int, bytes]


# --- writing ------------------------------------------------------------------------------------


def frame(kind: int, payload: bytes = b"") -> bytes:
    """A whole frame."""
    limit = MSG_MAX if kind == EXEC else DATA_MAX
    if len(payload) > limit:
        raise UsageError("the command and its environment are too long" if kind == EXEC
                         else "a message is too long")
    return _HEADER.pack(len(payload), kind, 0) + payload


def field(tag: int, value: Union[bytes, str]) -> bytes:
    """A field of bytes or text."""
    data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    return _FIELD.pack(tag, len(data)) + data


def text_field(tag: int, value: str, what: str) -> bytes:
    """A field of text, which cannot hold a NUL."""
    if "\0" in value:
        raise UsageError(f"{what} contains a NUL character")
    return field(tag, value)


def u32(tag: int, value: int) -> bytes:
    return _FIELD.pack(tag, 4) + _U32.pack(value)


def u64(tag: int, value: int) -> bytes:
    return _FIELD.pack(tag, 8) + _U64.pack(value)


HELLO_FRAME = frame(HELLO, u32(F_VERSION, VERSION_MAJOR << 16 | VERSION_MINOR))


# --- reading ------------------------------------------------------------------------------------


class FrameReader:
    """Cuts a stream of bytes into frames; holds less than one frame between calls."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> List[Tuple[int, bytes]]:
        """The frames that are complete with these bytes."""
        held = self._held
        held += data
        end, at = len(held), 0
        frames: List[Tuple[int, bytes]] = []
        with memoryview(held) as view:
            while end - at >= HDR_LEN:
                size, kind, _ = _HEADER.unpack_from(view, at)
                if size > DATA_MAX:
                    raise ProtocolError("the sandbox broke the protocol: a frame is too long")
                if end - at - HDR_LEN < size:
                    break
                frames.append((kind, bytes(view[at + HDR_LEN:at + HDR_LEN + size])))
                at += HDR_LEN + size
        del held[:at]
        return frames


def fields(payload: bytes) -> List[Field]:
    """All fields of a payload."""
    out: List[Field] = []
    at, end = 0, len(payload)
    while at < end:
        if end - at < 6:
            raise ProtocolError("the sandbox broke the protocol: a field is cut off")
        tag, size = _FIELD.unpack_from(payload, at)
        at += 6
        if size > end - at:
            raise ProtocolError("the sandbox broke the protocol: a field is too long")
        out.append((tag, payload[at:at + size]))
        at += size
    return out


def number(found: Sequence[Field], tag: int) -> Optional[int]:
    """The first number with this tag."""
    for t, data in found:
        if t == tag and len(data) == 4:
            return int(_U32.unpack(data)[0])
        if t == tag and len(data) == 8:
            return int(_U64.unpack(data)[0])
    return None


def raw(found: Sequence[Field], tag: int) -> Optional[bytes]:
    """The bytes of the first field with this tag."""
    for t, data in found:
        if t == tag:
            return data
    return None


def text(found: Sequence[Field], tag: int, limit: int = 512) -> str:
    """The first text with this tag, cut, without control characters."""
    for t, data in found:
        if t == tag:
            s = data[:limit].decode("utf-8", "replace")
            return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in s)
    return ""
