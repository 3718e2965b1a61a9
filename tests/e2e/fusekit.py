"""A FUSE file system in a process of its own, as those are that show a bucket as a directory: it has files,
directories and renames, but neither links nor attributes nor locks, and it can be stopped and killed.

Its server is this file run as a program; what it serves is kept in another directory."""

import contextlib
import ctypes
import errno
import hashlib
import os
import pathlib
import stat
import struct
import subprocess
import sys
import zlib

HEADER, ATTR = struct.Struct("<IIQQIIIHH"), struct.Struct("<6Q10I")


# What a guest does there, in its directory /workspace.
TOUR = """cd /workspace; echo 1 >a; mkdir d; echo 2 >d/b; mv d e; cat e/b a; echo 3 >a; mv a e/b; cp e/b c; rm e/b
set -C; for i in 1 2 3; do echo $i >lock; mv lock config; done; set +C; cat config; rm config
head -c 300000 /dev/zero | tr '\\0' x >big; md5sum <big; rm big; ls"""
TOLD = "2\n1\n3\n" + hashlib.md5(b"x" * 300000).hexdigest() + "  -\nc\ne\n"


def left(mount):
    """Whether that is what is there afterwards."""
    return (mount.behind / "c").read_text() == "3\n" and os.listdir(mount.behind / "e") == []


def skip(why):
    import pytest  # the server, as whom this runs too, needs none

    pytest.skip(why)


class Mount:
    """`path` is the mount, `behind` the directory that it serves; `process` serves it."""

    def __init__(self, directory, uid=0, gid=0):
        libc = ctypes.CDLL(None, use_errno=True)
        self.umount2 = libc.umount2
        self.path, self.behind = directory / "mounted", directory / "behind"
        for d in (self.path, self.behind):
            d.mkdir()
        try:
            fd = os.open("/dev/fuse", os.O_RDWR)
        except OSError as e:
            skip(f"/dev/fuse: {e}")
        options = f"fd={fd},rootmode=40000,user_id={uid},group_id={gid},default_permissions"
        if libc.mount(b"fusekit", str(self.path).encode(), b"fuse", 6, options.encode()) < 0:  # nosuid, nodev
            os.close(fd)
            skip(f"cannot mount: {os.strerror(ctypes.get_errno())}")
        self.process = subprocess.Popen(["/usr/bin/python3", __file__, str(fd), self.behind, str(uid), str(gid)],
                                        pass_fds=[fd])
        os.close(fd)

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self.umount2(str(self.path).encode(), 2)


# --- the server -----------------------------------------------------------------------------------


class Server:
    def __init__(self, fd, root, uid, gid):
        self.fd, self.root, self.uid, self.gid = fd, pathlib.Path(root), uid, gid
        self.paths, self.ids = {1: pathlib.Path()}, {pathlib.Path(): 1}
        self.numbers = {1: 1}  # what stat() says: rclone's stay with a file, and come again with its first name

    def real(self, node, name=None):
        path = self.paths[node]
        return self.root / (path / os.fsdecode(name.rstrip(b"\0")) if name is not None else path)

    def node(self, real):
        path = real.relative_to(self.root)
        if path not in self.ids:
            self.ids[path] = max(self.paths) + 1
            self.paths[self.ids[path]] = path
            self.numbers[self.ids[path]] = zlib.crc32(bytes(path))
        return self.ids[path]

    def attr(self, real):
        s = real.lstat()
        ns = [t % 10**9 for t in (s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns)]
        return ATTR.pack(self.numbers[self.node(real)], s.st_size, s.st_blocks, int(s.st_atime), int(s.st_mtime), int(s.st_ctime),
                         *ns, s.st_mode, s.st_nlink, self.uid, self.gid, 0, 4096, 0)

    def entry(self, real):
        return struct.pack("<4Q2I", self.node(real), 0, 0, 0, 0, 0) + self.attr(real)

    def moved(self, old, new):
        """Everything below has another path now, and what was there before has none."""
        old, new = old.relative_to(self.root), new.relative_to(self.root)
        for path, node in list(self.ids.items()):
            if path == old or old in path.parents:
                del self.ids[path]
                self.paths[node] = new / path.relative_to(old)
        self.ids = {path: node for node, path in self.paths.items()}

    # --- requests: the body in, the body out ----------------------------------------------------

    def init(self, node, body):
        major, minor, readahead, _ = struct.unpack_from("<4I", body)
        return struct.pack("<4I2H2I2H8I", 7, 31, readahead, 0, 12, 9, 1 << 17, 1, 0, 0, *[0] * 8)

    def lookup(self, node, body):
        return self.entry(self.real(node, body))

    def getattr(self, node, body):
        return struct.pack("<Q2I", 0, 0, 0) + self.attr(self.real(node))

    def setattr(self, node, body):
        real = self.real(node)
        (valid, _, _, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, _, _, _) = \
            struct.unpack("<2I6Q8I", body)
        if valid & 1:
            real.chmod(stat.S_IMODE(mode))
        if valid & 8:
            os.truncate(real, size)
        if valid & 256:
            os.utime(real)
        elif valid & 32:
            os.utime(real, ns=(atime * 10**9 + atime_ns, mtime * 10**9 + mtime_ns))
        return self.getattr(node, body)

    def open(self, node, body):
        return struct.pack("<QII", 0, 0, 0)

    def create(self, node, body):
        real = self.real(node, body[16:])
        os.close(os.open(real, os.O_CREAT | os.O_EXCL | os.O_WRONLY, struct.unpack_from("<4I", body)[1] & 0o777))
        return self.entry(real) + self.open(node, body)

    def mkdir(self, node, body):
        real = self.real(node, body[8:])
        real.mkdir(struct.unpack_from("<2I", body)[0] & 0o777)
        return self.entry(real)

    def unlink(self, node, body):
        self.real(node, body).unlink()
        return b""

    def rmdir(self, node, body):
        self.real(node, body).rmdir()
        return b""

    def rename(self, node, body, skip=8):
        old, new = body[skip:].rstrip(b"\0").split(b"\0")
        old, new = self.real(node, old), self.real(struct.unpack_from("<Q", body)[0], new)
        old.rename(new)
        self.moved(old, new)
        return b""

    def rename2(self, node, body):
        if struct.unpack_from("<QI", body)[1]:
            raise OSError(errno.EINVAL, "flags")
        return self.rename(node, body, 16)

    def read(self, node, body):
        _, offset, size = struct.unpack_from("<QQI", body)
        with self.real(node).open("rb") as f:
            f.seek(offset)
            return f.read(size)

    def write(self, node, body):
        _, offset, size = struct.unpack_from("<QQI", body)
        with self.real(node).open("r+b") as f:
            f.seek(offset)
            f.write(body[40:40 + size])
        return struct.pack("<2I", size, 0)

    def readdir(self, node, body):
        _, offset, size = struct.unpack_from("<QQI", body)
        out = b""
        for i, name in enumerate(sorted(os.listdir(self.real(node)))[offset:], offset + 1):
            raw = os.fsencode(name)
            kind = stat.S_IFMT((self.real(node) / name).lstat().st_mode) >> 12
            one = struct.pack("<QQII", 1000 + i, i, len(raw), kind) + raw + bytes(-len(raw) % 8)
            if len(out) + len(one) > size:
                break
            out += one
        return out

    def statfs(self, node, body):
        return struct.pack("<5Q4I6I", 1 << 20, 1 << 19, 1 << 19, 1 << 20, 1 << 19, 4096, 255, 4096, 0, *[0] * 6)

    def nothing(self, node, body):
        return b""

    KNOWN = {1: lookup, 3: getattr, 4: setattr, 9: mkdir, 10: unlink, 11: rmdir, 12: rename, 14: open, 15: read,
             16: write, 17: statfs, 18: nothing, 20: nothing, 25: nothing, 26: init, 27: open, 28: readdir,
             29: nothing, 35: create, 45: rename2}  # fmt: skip
    UNANSWERED = (2, 36, 42)  # FORGET, INTERRUPT, BATCH_FORGET

    def serve(self):
        while True:
            try:
                request = os.read(self.fd, 1 << 18)
            except OSError:
                return  # unmounted
            _, opcode, unique, node, *_ = HEADER.unpack_from(request)
            if opcode in self.UNANSWERED:
                continue
            try:
                error, out = 0, self.KNOWN[opcode](self, node, request[HEADER.size:])
            except KeyError:
                error, out = errno.ENOSYS, b""
            except OSError as e:
                error, out = e.errno, b""
            with contextlib.suppress(FileNotFoundError):  # nothing waits for it any more
                os.write(self.fd, struct.pack("<IiQ", 16 + len(out), -error, unique) + out)


if __name__ == "__main__":
    os.umask(0)
    Server(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])).serve()
