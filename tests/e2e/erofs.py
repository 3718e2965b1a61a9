"""Reads an EROFS file: an independent reading of what msb writes, for comparison with other tools.

    for path, node in erofs.Image(file).walk(): ...

Uncompressed images with inline tails and inline attributes, which is what msb writes; anything else
is an error. A node has everything that stat and getxattr would tell, and read() for its content.
"""
import mmap
import stat
import struct

BLOCK = 4096
PREFIX = {1: "user.", 2: "system.posix_acl_access", 3: "system.posix_acl_default", 4: "trusted.", 6: "security."}


class Node:
    def __init__(self, image, nid):
        self.image, self.nid = image, nid
        at = image.meta + nid * 32
        fmt, xcount, self.mode = struct.unpack_from("<HHH", image.map, at)
        layout = fmt >> 1
        assert layout in (0, 2), f"layout {layout}"
        if fmt & 1:
            self.size, u, _, self.uid, self.gid, sec, nsec, self.nlink = struct.unpack_from("<QIIIIqII", image.map, at + 8)
            at += 64
        else:
            self.nlink, self.size, _, u, _, self.uid, self.gid = struct.unpack_from("<HIIIIHH", image.map, at + 6)
            sec, nsec = image.epoch
            at += 32
        self.mtime_ns = sec * 10**9 + nsec
        self.u, self.inline = u, layout == 2
        self.xattrs = {}
        if xcount:
            self.parse_xattrs(at, 12 + 4 * (xcount - 1))
            at += 12 + 4 * (xcount - 1)
        self.tail = at
        self.type = stat.S_IFMT(self.mode)
        self.dev = (u >> 8 & 0xfff, u & 0xff | u >> 12 & 0xfff00)

    def parse_xattrs(self, at, n):
        end, at = at + n, at + 12
        while at < end:
            nlen, index, vlen = struct.unpack_from("<BBH", self.image.map, at)
            body = bytes(self.image.map[at + 4:at + 4 + nlen + vlen])
            self.xattrs[PREFIX[index] + body[:nlen].decode()] = body[nlen:]
            at += (4 + nlen + vlen + 3) & ~3

    def read(self):
        full = self.size // BLOCK * BLOCK if self.inline else self.size
        data = self.image.map[self.u * BLOCK:self.u * BLOCK + full] if full else b""
        if self.inline:
            data += self.image.map[self.tail:self.tail + self.size - full]
        assert len(data) == self.size
        return bytes(data)

    def entries(self):
        data = self.read()
        for at in range(0, len(data), BLOCK):
            block = data[at:at + BLOCK]
            first = struct.unpack_from("<QHB", block)[1]
            heads = [struct.unpack_from("<QHB", block, i * 12) for i in range(first // 12)]
            ends = [h[1] for h in heads[1:]] + [len(block)]
            for (nid, off, kind), end in zip(heads, ends):
                name = block[off:end].rstrip(b"\0").decode(errors="surrogateescape")
                if name not in (".", ".."):
                    yield name, Node(self.image, nid)


class Image:
    def __init__(self, path):
        with open(path, "rb") as f:
            self.map = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        magic, _, _, bits, _, root, _, sec, nsec, blocks, meta = struct.unpack_from("<IIIBBHQqIII", self.map, 1024)
        assert magic == 0xe0f5e1e2 and bits == 12
        assert blocks * BLOCK == len(self.map)
        self.epoch, self.meta = (sec, nsec), meta * BLOCK
        self.root = Node(self, root)

    def walk(self):
        """(path, node) of everything, "" first."""
        work = [("", self.root)]
        while work:
            path, node = work.pop()
            yield path, node
            if node.type == stat.S_IFDIR:
                work += [(f"{path}/{name}".lstrip("/"), n) for name, n in node.entries()]
