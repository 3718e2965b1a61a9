"""A client of the file messages (src/proto/proto.h, "Files"), as small as it can be."""
import socket
import struct

from conftest import static_program
from protoheader import named

HELLO, FAIL, EXEC, FILES, DATA_MAX = named("PROTO_", "HELLO FAIL EXEC FILES DATA_MAX")
OP, DATA, END, ENTRY, LEAVE, EVENT, OK, ERR = named("PROTO_FILE_", "OP DATA END ENTRY LEAVE EVENT OK ERR")
F_VERSION, F_TEXT, F_KIND, F_ERRNO, F_COOKIE, F_CWD, F_USER, F_ARG = named(
    "F_", "VERSION TEXT KIND ERRNO COOKIE CWD USER ARG")
(F_OP, F_PATH, F_TO, F_FLAGS, F_OFFSET, F_LENGTH, F_MODE, F_UID, F_GID, F_MTIME, F_ATIME, F_SIZE,
 F_NAME, F_TARGET, F_LIMIT, F_CUT, F_EVENT) = named(
    "F_FILE_", "OP PATH TO FLAGS OFFSET LENGTH MODE UID GID MTIME ATIME SIZE NAME TARGET LIMIT CUT EVENT")
STAT, LIST, READ, WRITE, MKDIR, REMOVE, RENAME, SET, SYMLINK, WATCH, GET, PUT = named(
    "FILE_OP_", "STAT LIST READ WRITE MKDIR REMOVE RENAME SET SYMLINK WATCH GET PUT")
NOFOLLOW, FOLLOW, PARENTS, RECURSIVE, FORCE, EXCL, APPEND, ATOMIC, NO_DATA, OWNER, REAL = named(
    "FILE_", "NOFOLLOW FOLLOW PARENTS RECURSIVE FORCE EXCL APPEND ATOMIC NO_DATA OWNER REAL")
CREATED, MODIFIED, REMOVED, ATTRIB, MOVED_FROM, MOVED_TO, OVERFLOW, IS_DIR = named(
    "FILE_", "CREATED MODIFIED REMOVED ATTRIB MOVED_FROM MOVED_TO OVERFLOW IS_DIR")

WIDE = {F_OFFSET, F_LENGTH, F_MTIME, F_ATIME, F_SIZE, F_LIMIT, F_COOKIE}
TEXT = {F_PATH, F_TO, F_NAME, F_TARGET, F_TEXT, F_CWD, F_USER}


def field(tag, value):
    if isinstance(value, str):
        value = value.encode()
    if isinstance(value, int):
        value = struct.pack("<q" if tag in WIDE else "<I", value)
    return struct.pack("<HI", tag, len(value)) + value


def fields(payload):
    out, at = {}, 0
    while at < len(payload):
        tag, n = struct.unpack_from("<HI", payload, at)
        raw = payload[at + 6 : at + 6 + n]
        out[tag] = raw.decode("utf-8", "surrogateescape") if tag in TEXT else int.from_bytes(
            raw, "little", signed=tag in (F_MTIME, F_ATIME))
        at += 6 + n
    return out


def frame(kind, payload=b""):
    return struct.pack("<IHH", len(payload), kind, 0) + payload


def command(*argv):
    """What a session begins with that runs a command."""
    return frame(HELLO, field(F_VERSION, 1 << 16)) + frame(EXEC, b"".join(field(F_ARG, a) for a in argv))


def caller(directory):
    """A directory for a guest, with a program for whoever in it tries to run a command (vsock_client.c)."""
    static_program("vsock_client", directory)
    (directory / "frames").write_bytes(command("sh", "-c", "id; grep CapEff /proc/self/status"))
    for path in (directory, *directory.iterdir()):
        path.chmod(0o755)
    return directory


class FileError(OSError):
    pass


class Refused(Exception):
    pass


class Files:
    def __init__(self, path, user=None, cwd=None, timeout=60, only=None):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(timeout)
        self.sock.connect(str(path))
        self.buf = bytearray()
        p = b"" if user is None else field(F_USER, user)
        p += b"" if cwd is None else field(F_CWD, cwd)
        p += b"" if only is None else field(F_OP, only)
        self.send(frame(HELLO, field(F_VERSION, 1 << 16)) + frame(FILES, p))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.sock.close()

    def send(self, data):
        try:
            self.sock.sendall(data)
        except BrokenPipeError:
            pass  # refused; why is in what came

    def next(self):
        """(type, payload)"""
        while True:
            if len(self.buf) >= 8:
                n, kind, _ = struct.unpack_from("<IHH", self.buf)
                if len(self.buf) >= 8 + n:
                    payload = bytes(self.buf[8 : 8 + n])
                    del self.buf[: 8 + n]
                    return kind, payload
            data = self.sock.recv(1 << 18)
            if not data:
                raise ConnectionError("the stream has ended")
            self.buf += data

    def send_op(self, op, path, **kw):
        tags = {"to": F_TO, "flags": F_FLAGS, "offset": F_OFFSET, "length": F_LENGTH,
                "mode": F_MODE, "uid": F_UID, "gid": F_GID, "mtime": F_MTIME, "atime": F_ATIME,
                "size": F_SIZE, "limit": F_LIMIT}
        p = field(F_OP, op) + field(F_PATH, path)
        p += b"".join(field(tags[k], v) for k, v in kw.items())
        self.send(frame(OP, p))

    def answer(self, on_frame=None):
        """The fields of FILE_OK; other frames go to on_frame(type, payload)."""
        while True:
            kind, payload = self.next()
            if kind == OK:
                return fields(payload)
            if kind == ERR:
                f = fields(payload)
                raise FileError(f[F_ERRNO], f[F_TEXT])
            if kind == FAIL:
                raise Refused(fields(payload))
            assert on_frame, kind
            on_frame(kind, payload)

    def op(self, op, path, **kw):
        self.send_op(op, path, **kw)
        return self.answer()

    def read(self, path, **kw):
        data, entries = bytearray(), []
        self.send_op(READ, path, **kw)
        self.answer(lambda k, p: data.extend(p) if k == DATA else entries.append(fields(p)))
        assert len(entries) == 1
        return bytes(data)

    def write(self, path, data, **kw):
        self.send_op(WRITE, path, **kw)
        self.send_data(data)
        self.send(frame(END))
        return self.answer()

    def send_data(self, data):
        for at in range(0, len(data), DATA_MAX):
            self.send(frame(DATA, data[at : at + DATA_MAX]))

    def list(self, path, **kw):
        entries = []
        self.send_op(LIST, path, **kw)
        end = self.answer(lambda k, p: entries.append(fields(p)))
        return {e[F_NAME]: e for e in entries}, F_CUT in end

    def get(self, path, **kw):
        """What comes, as a list: ("enter", fields), ("data", bytes), ("leave",)."""
        out = []

        def take(kind, payload):
            if kind == DATA and out and out[-1][0] == "data":
                out[-1] = ("data", out[-1][1] + payload)
            else:
                out.append({ENTRY: lambda: ("entry", fields(payload)),
                            DATA: lambda: ("data", payload), LEAVE: lambda: ("leave",)}[kind]())

        self.send_op(GET, path, **kw)
        self.answer(take)
        return out

    def put(self, path, *frames, **kw):
        self.send_op(PUT, path, **kw)
        self.send(b"".join(frames) + frame(END))
        return self.answer()


def entry(name, mode, data=None, **kw):
    """The frames of one thing in a PUT; a directory has to be left."""
    tags = {"size": F_SIZE, "mtime": F_MTIME, "uid": F_UID, "gid": F_GID, "target": F_TARGET}
    p = field(F_NAME, name) + (b"" if mode is None else field(F_MODE, mode))
    if data is not None:
        kw.setdefault("size", len(data))
    p += b"".join(field(tags[k], v) for k, v in kw.items())
    out = frame(ENTRY, p)
    for at in range(0, len(data or b""), DATA_MAX):
        out += frame(DATA, data[at : at + DATA_MAX])
    return out
