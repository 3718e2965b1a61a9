"""Layers: every one becomes an EROFS file, all of them one disk, and the disk holds what umoci
unpacks from the same image. Attacks in archives end in an error that says why, or in nothing."""
import gzip
import hashlib
import os
import pathlib
import shutil
import stat
import subprocess
import tarfile
import time
import zlib

import pytest

import erofs
import imagekit
from conftest import MSB
from imagekit import Tar

TOOL = MSB.parents[2] / "tests" / "unit" / "layer_tool"
ROOT = os.geteuid() == 0
STARTED = time.time_ns() - 10**9

pytestmark = pytest.mark.skipif(not TOOL.exists(), reason="the test programs are not built")


def tool(*args, cwd, timeout=300):
    return subprocess.run([TOOL, *map(str, args)], cwd=cwd, timeout=timeout, capture_output=True, text=True)


def fsck(path):
    if shutil.which("fsck.erofs"):
        p = subprocess.run(["fsck.erofs", path], capture_output=True, text=True)
        assert p.returncode == 0, p.stdout + p.stderr


def convert(blob, out, cwd, diff_id=None):
    """One layer; its line of figures is checked."""
    p = tool("layer", blob, out, cwd=cwd)
    assert p.returncode == 0, p.stderr
    got, digest, *_ = p.stdout.split()
    assert digest == imagekit.sha256(pathlib.Path(blob).read_bytes())
    assert diff_id in (None, got)
    fsck(out)
    return out


def disk_of(image, tmp):
    """The stitched disk of an image in a layout."""
    layers = []
    diff_ids = image.config()["rootfs"]["diff_ids"]
    for i, layer in enumerate(image.manifest()["layers"]):
        blob = image.layout / "blobs" / "sha256" / layer["digest"].split(":")[1]
        layers.append(convert(blob, tmp / f"{i}.erofs", tmp, diff_ids[i]))
    p = tool("disk", tmp / "disk.erofs", *layers, cwd=tmp)
    assert p.returncode == 0, p.stderr
    fsck(tmp / "disk.erofs")
    return tmp / "disk.erofs"


def disk_of_tars(tars, tmp):
    layout = imagekit.Layout(tmp / "layout")
    image = layout.tag(layout.image(tars), "t")
    return image, disk_of(image, tmp)


# --- comparison -----------------------------------------------------------------------------------


def seen_in_disk(path):
    tree, links = {}, {}
    for name, n in erofs.Image(path).walk():
        d = {"mode": n.mode, "uid": n.uid, "gid": n.gid, "mtime": n.mtime_ns, "xattrs": n.xattrs}
        if n.type == stat.S_IFREG:
            d["content"] = (n.size, hashlib.sha256(n.read()).hexdigest())
        elif n.type == stat.S_IFLNK:
            d["content"] = n.read().decode(errors="surrogateescape")
        elif n.type in (stat.S_IFCHR, stat.S_IFBLK):
            d["content"] = n.dev
        if n.type != stat.S_IFDIR:
            links.setdefault(n.nid, set()).add(name)
            d["nlink"] = n.nlink
        tree[name] = d
    for names in links.values():
        for name in names:
            tree[name]["links"] = sorted(names)
            assert tree[name]["nlink"] == len(names), name
    return tree


def content(path, st):
    """Without root, a file that its owner may not read has to be opened up for a moment."""
    if st.st_mode & 0o400 or ROOT:
        return pathlib.Path(path).read_bytes()
    os.chmod(path, 0o600)
    data = pathlib.Path(path).read_bytes()
    os.chmod(path, stat.S_IMODE(st.st_mode))
    return data


def seen_in_dir(root):
    tree, links = {}, {}
    for top, dirs, files in os.walk(root):
        for name in ["."] + files + dirs:
            path = os.path.join(top, name)
            st = os.lstat(path)
            rel = os.path.relpath(path, root)
            rel = "" if rel == "." else rel
            d = {"mode": st.st_mode, "uid": st.st_uid, "gid": st.st_gid, "mtime": st.st_mtime_ns,
                 "xattrs": {x: os.getxattr(path, x, follow_symlinks=False)
                            for x in os.listxattr(path, follow_symlinks=False)}}
            if stat.S_ISREG(st.st_mode):
                d["content"] = (st.st_size, hashlib.sha256(content(path, st)).hexdigest())
            elif stat.S_ISLNK(st.st_mode):
                d["content"] = os.readlink(path)
            elif stat.S_ISCHR(st.st_mode) or stat.S_ISBLK(st.st_mode):
                d["content"] = (os.major(st.st_rdev), os.minor(st.st_rdev))
            if not stat.S_ISDIR(st.st_mode):
                links.setdefault(st.st_ino, set()).add(rel)
                d["nlink"] = st.st_nlink
            tree[rel] = d
    for names in links.values():
        for name in names:
            tree[name]["links"] = sorted(names)
    return tree


def compare(disk, rootfs, ignore=()):
    """Everything alike, file by file. Without root umoci cannot set owners or make devices."""
    got, want = seen_in_disk(disk), seen_in_dir(rootfs)
    assert set(got) == set(want), (sorted(set(got) - set(want))[:10], sorted(set(want) - set(got))[:10])
    wrong = []
    for name in want:
        g, w = dict(got[name]), dict(want[name])
        for d in (g, w):
            d["xattrs"] = {k: v for k, v in d["xattrs"].items()
                           if not k.startswith(("security.selinux", "user.rootlesscontainers"))
                           and (ROOT or k.startswith("user."))}
            for key in ignore if ROOT else (*ignore, "uid", "gid"):
                d.pop(key, None)
        # The time of the unpacking itself: a directory that the last layer to change it did not list.
        if stat.S_ISDIR(w["mode"]) and w.get("mtime", 0) > STARTED:
            g["mtime"] = w["mtime"]
        if not ROOT and (stat.S_ISCHR(g["mode"]) or stat.S_ISBLK(g["mode"])):
            continue
        if g != w:
            wrong.append((name, {k: (g.get(k), w.get(k)) for k in g.keys() | w.keys() if g.get(k) != w.get(k)}))
    assert not wrong, f"{len(wrong)} differ (ours, umoci's): {wrong[:5]}"
    return len(want)


def same_as_umoci(tars, tmp, ignore=()):
    image, disk = disk_of_tars(tars, tmp)
    compare(disk, image.unpack(tmp / "bundle"), ignore)
    return erofs.Image(disk)


def cap(bits):
    """security.capability, version 2."""
    return (b"\x01\x00\x00\x02" + bits.to_bytes(4, "little") + bytes(12)).decode("latin-1")


def base_layer(make=Tar):
    t = make()
    t.dir("./", 0o755)
    for d in ("a", "b", "b/c", "usr", "usr/lib", "opt", "opt/deep", "opt/deep/er", "keep"):
        t.dir(d)
    t.symlink("lib", "usr/lib")
    t.add("usr/lib/libx.so", b"x" * 5000, mode=0o755)
    t.add("a/file", "in the base").add("a/second", "also").add("b/c/inner", "i" * 4096)
    t.add("opt/deep/er/f", "deep").add("opt/deep/g", "g")
    t.hardlink("a/hard", "a/file").hardlink("b/hard2", "a/file")
    t.symlink("link", "a/file").symlink("dangling", "/nowhere")
    t.add("keep/x", "kept")
    t.add("becomes-dir", "f").dir("becomes-file").add("becomes-file/child", "c").symlink("becomes-real", "a/file")
    return t


def rich_layer(make=Tar):
    t = make()
    t.dir("owned", 0o750, uid=1000, gid=100)
    t.add("owned/f", "mine", mode=0o640, uid=1000, gid=100)
    t.add("owned/big-ids", "x", uid=70000, gid=4000000)
    t.add("owned/ns", "x", pax={"mtime": "1600000000.123456789"})
    t.dir("owned/ns-dir", pax={"mtime": "1500000000.987654321"})
    t.add("setuid", "s", mode=0o4755).add("setgid", "s", mode=0o2755, gid=7).dir("sticky", 0o1777)
    t.add("none", "n", mode=0)
    t.add("empty").add("tail", "t" * 513).add("tail512", "t" * 512).add("block", "b" * 4096)
    t.add("blocks", os.urandom(100_000)).add("zeros", bytes(1 << 20))
    t.add("xattr", "x", pax={"SCHILY.xattr.user.color": "green"})
    t.dir("xattr-dir", pax={"SCHILY.xattr.user.kind": "dir"})
    t.add("d/" * 40 + "deep", "d")
    t.add("long/" + "n" * 255, "long").add("long/" + "p" * 120 + "/" + "q" * 200, "pax")
    t.add("ünïcödé/文字", "named").add("new\nline", "nl").add("tab\tand space ", "t")
    t.symlink("long-link", "x/" * 1000 + "end")
    for i in range(700):
        t.add(f"many/file-{i:04}", str(i))
    if ROOT:
        t.add("caps", "c", mode=0o755, pax={"SCHILY.xattr.security.capability": cap(1 << 10)})
        t.add("null", kind=tarfile.CHRTYPE, dev=(1, 3), mode=0o666)
        t.add("loop", kind=tarfile.BLKTYPE, dev=(7, 300), mode=0o660, gid=6)
    t.add("fifo", kind=tarfile.FIFOTYPE, mode=0o600)
    return t


def change_layer(make=Tar):
    t = make()
    t.whiteout("a/second").whiteout("opt/deep/er").whiteout("dangling")
    t.dir("b").opaque("b").add("b/new", "after opaque")
    t.add("a/file", "changed")  # its other names keep the old content
    t.add("lib/through-link", "lands in usr/lib")
    t.dir("becomes-dir").add("becomes-dir/child", "c")
    t.add("becomes-file", "now a file")
    t.add("becomes-real", "no link any more")
    t.dir("keep", 0o700, uid=5, gid=6)
    t.whiteout("not-there")
    return t


# --- what images hold -----------------------------------------------------------------------------


def test_rich_layer(tmp_path):
    same_as_umoci([rich_layer().bytes()], tmp_path)


def test_layers_over_each_other(tmp_path):
    t = Tar()
    t.add("again", "1").whiteout("becomes-dir").whiteout("b/new").add("opt/deep/er/back", "made again")
    same_as_umoci([base_layer().bytes(), rich_layer().bytes(), change_layer().bytes(), t.bytes()], tmp_path)


def test_hard_links_to_lower_layers(tmp_path):
    upper = Tar().hardlink("again", "a/file").hardlink("usr/lib/x2", "lib/libx.so")
    upper.add("a/second", "new").hardlink("third", "a/second")
    disk = same_as_umoci([base_layer().bytes(), upper.bytes()], tmp_path)
    nodes = dict(disk.walk())
    assert nodes["again"].nid == nodes["a/file"].nid and nodes["again"].nlink == 4
    assert nodes["usr/lib/x2"].nid == nodes["usr/lib/libx.so"].nid


def test_entries_that_come_twice(tmp_path):
    t = Tar()
    t.add("f", "first").add("f", "second").dir("d", 0o700).dir("d", 0o755).add("d/x", "x").dir("d", 0o711)
    t.add("was-file", "f").dir("was-file").add("was-file/x", "x")
    t.symlink("was-link", "f").add("was-link", "file now")
    same_as_umoci([t.bytes()], tmp_path)


@pytest.mark.parametrize("order", ["mark first", "mark last"])
def test_marks_and_entries_in_one_layer(tmp_path, order):
    """A mark speaks of lower layers, wherever in its own it stands."""
    base = Tar().dir("d").add("d/old", "o").add("f", "old").dir("e").add("e/old", "o")
    t = Tar()
    marks = [lambda: t.opaque("d"), lambda: t.whiteout("f"), lambda: t.whiteout("e")]
    rest = [lambda: t.add("d/new", "n"), lambda: t.add("f", "new"), lambda: t.dir("e").add("e/new", "n")]
    for step in marks + rest if order == "mark first" else rest + marks:
        step()
    disk = dict(same_as_umoci([base.bytes(), t.bytes()], tmp_path).walk())
    assert disk["f"].read() == b"new" and "d/new" in disk and "d/old" not in disk
    assert "e/new" in disk and "e/old" not in disk


def real_and_link():
    return Tar().dir("real").add("real/f", "f").symlink("l", "real")


EDGES = {
    "whiteout below a file": lambda: [Tar().add("a", "f"), Tar().whiteout("a/b")],
    "whiteout in no directory": lambda: [Tar().add("f", "f"), Tar().whiteout("x/y/z")],
    "opaque and no directory": lambda: [Tar().add("f", "f"), Tar().opaque("x")],
    "marks and an entry in no directory": lambda: [Tar(), Tar().whiteout("x/y").add("x/z/f", "f").opaque("x/o")],
    "entry below a dangling link": lambda: [Tar().symlink("a", "no/b"), Tar().add("a/b", "x")],
    "whiteout below a dangling link": lambda: [Tar().symlink("a", "no/b"), Tar().whiteout("a/b")],
    "directory over a link": lambda: [real_and_link(), Tar().dir("l").add("l/g", "g")],
    "opaque through a link": lambda: [real_and_link(), Tar().opaque("l").add("l/g", "g")],
    "whiteout of a link": lambda: [real_and_link(), Tar().whiteout("l")],
    "whiteout through a link": lambda: [real_and_link(), Tar().whiteout("l/f")],
    "deleted and made again": lambda: [Tar().dir("d").add("d/f", "f"), Tar().whiteout("d"), Tar().add("d/g", "g")],
    "hard link through a link": lambda: [real_and_link(), Tar().hardlink("l/g", "l/f")],
    "hard link to what is then replaced": lambda: [Tar().add("f", "old"), Tar().hardlink("g", "f").add("f", "new")],
}


@pytest.mark.parametrize("edge", EDGES)
def test_edges(tmp_path, edge):
    same_as_umoci([t.bytes() for t in EDGES[edge]()], tmp_path)


def test_sparse_files(tmp_path):
    """GNU tar's sparse entries, in each of their forms."""
    src = tmp_path / "src"
    src.mkdir()
    with open(src / "sparse", "wb") as f:
        f.write(b"start")
        f.seek(40 << 20)
        f.write(b"middle" * 1000)
        f.truncate(80 << 20)
    (src / "hole").touch()
    os.truncate(src / "hole", 10 << 20)
    for form in (["--format=gnu"], ["--format=posix", "--sparse-version=0.0"],
                 ["--format=posix", "--sparse-version=0.1"], ["--format=posix", "--sparse-version=1.0"]):
        work = tmp_path / "-".join(form)[2:].replace("=", "")
        work.mkdir()
        subprocess.run(["tar", "-S", *form, "-cf", work / "t.tar", "-C", src, "."], check=True)
        assert (work / "t.tar").stat().st_size < 1 << 20
        out = convert(work / "t.tar", work / "o.erofs", work)
        assert out.stat().st_blocks * 512 < 1 << 20, "holes must stay holes"
        nodes = dict(erofs.Image(out).walk())
        for name in ("sparse", "hole"):
            assert nodes[name].size == (src / name).stat().st_size
            assert hashlib.sha256(nodes[name].read()).digest() == hashlib.sha256((src / name).read_bytes()).digest()


def test_file_over_4_gib(tmp_path):
    src = tmp_path / "big"
    with open(src, "wb") as f:
        f.truncate((4 << 30) + 20007)
        f.seek((4 << 30) + 12345)
        f.write(b"beyond")
    subprocess.run(["tar", "-S", "-cf", tmp_path / "t.tar", "-C", tmp_path, "big"], check=True)
    disk_of_tars([(tmp_path / "t.tar").read_bytes(), Tar().hardlink("same", "big").bytes()], tmp_path)
    node = dict(erofs.Image(tmp_path / "disk.erofs").walk())["same"]
    assert node.size == (4 << 30) + 20007 and node.nlink == 2
    at = node.u * erofs.BLOCK + (4 << 30) + 12345
    assert node.image.map[at:at + 6] == b"beyond" and node.image.map[at - 1:at] == b"\0"


# --- real images ----------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_debian(tmp_path, compression):
    image = imagekit.debian()
    disk = disk_of(image.recompressed(compression), tmp_path)
    assert compare(disk, image.unpack(tmp_path / "bundle")) > 5000


def test_thirty_layers(tmp_path):
    image = imagekit.layers(30)
    assert len(image.manifest()["layers"]) >= 30
    compare(disk_of(image, tmp_path), image.unpack(tmp_path / "bundle"))


# --- the guest's kernel -----------------------------------------------------------------------------

WALK_C = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>
static void hex(const void *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        printf("%02x", ((const unsigned char *)p)[i]);
    putchar(' ');
}
static uint32_t crc_of(const char *path)
{
    static unsigned char b[1 << 16];
    uint32_t c = ~0u;
    ssize_t n;
    int fd = open(path, O_RDONLY);
    while ((n = read(fd, b, sizeof(b))) > 0)
        for (ssize_t i = 0; i < n; i++) {
            c ^= b[i];
            for (int k = 0; k < 8; k++)
                c = c >> 1 ^ (c & 1 ? 0xedb88320u : 0);
        }
    close(fd);
    return ~c;
}
static void one(const char *path)
{
    char list[8192], v[65536];
    struct stat st;
    if (lstat(path, &st))
        return;
    hex(path, strlen(path));
    printf("%o %u %u %lld %lld %u:%u %llu ", st.st_mode, st.st_uid, st.st_gid,
           (long long)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec,
           S_ISDIR(st.st_mode) ? 0 : (long long)st.st_size, major(st.st_rdev), minor(st.st_rdev),
           S_ISDIR(st.st_mode) ? 0 : (unsigned long long)st.st_nlink);
    if (S_ISREG(st.st_mode))
        printf("%08x ", crc_of(path));
    else if (S_ISLNK(st.st_mode))
        hex(v, readlink(path, v, sizeof(v)));
    else
        printf("- ");
    ssize_t n = llistxattr(path, list, sizeof(list));
    for (char *x = list; n > 0 && x < list + n; x += strlen(x) + 1) {
        printf("%s=", x);
        hex(v, lgetxattr(path, x, v, sizeof(v)));
    }
    putchar('\n');
    DIR *d = S_ISDIR(st.st_mode) ? opendir(path) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        char sub[8192];
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        snprintf(sub, sizeof(sub), "%s/%s", path, e->d_name);
        one(sub);
    }
    if (d)
        closedir(d);
}
int main(int argc, char **argv)
{
    if (argc == 4)
        return lsetxattr(argv[1], argv[2], argv[3], strlen(argv[3]), 0) != 0;
    one(argv[1]);
    return 0;
}
"""


class Below(Tar):
    """A tar whose names all lie in one directory."""

    def add(self, name, *args, kind=tarfile.REGTYPE, link="", **kw):
        link = f"data/{link}" if kind == tarfile.LNKTYPE else link
        return super().add(f"data/{name}", *args, kind=kind, link=link, **kw)


def walk_lines(disk):
    """What WALK_C prints, of a disk."""
    for path, n in erofs.Image(disk).walk():
        if path != "data" and not path.startswith("data/"):
            continue
        what = "-"
        if n.type == stat.S_IFREG:
            what = f"{zlib.crc32(n.read()):08x}"
        elif n.type == stat.S_IFLNK:
            what = n.read().hex()
        special = n.type in (stat.S_IFCHR, stat.S_IFBLK)
        is_dir = n.type == stat.S_IFDIR
        yield " ".join([f"/{path}".encode(errors="surrogateescape").hex(), f"{n.mode:o}", str(n.uid), str(n.gid),
                        str(n.mtime_ns), str(0 if is_dir else n.size), "%u:%u" % (n.dev if special else (0, 0)),
                        str(0 if is_dir else n.nlink), what,
                        *sorted(f"{k}={v.hex()}" for k, v in n.xattrs.items())])


def walk_image(tmp_path, compression=None, layers=(base_layer, rich_layer, change_layer)):
    """A shell, /bin/walk (`walk DIR` lists all of it, `walk FILE NAME VALUE` sets an attribute), and layers
    in /data."""
    (tmp_path / "walk.c").write_text(WALK_C)
    p = subprocess.run(["cc", "-static", "-O2", "-w", "-o", tmp_path / "walk", tmp_path / "walk.c"], capture_output=True)
    if p.returncode:
        pytest.skip("cannot compile a static program: " + p.stderr.decode()[:200])
    shell = imagekit.add_system(imagekit.add_shell(Tar()))
    shell.add("bin/walk", (tmp_path / "walk").read_bytes(), mode=0o755)
    layout = imagekit.Layout(tmp_path / "layout")
    tars = [shell.bytes(), *(layer(Below).bytes() for layer in layers)]
    squeeze = (lambda tar: (gzip.compress(tar, 1), "gzip")) if compression else None
    return layout.tag(layout.image(tars, compress=squeeze), "walk:1")


def walked(out):
    return sorted(" ".join(line.split()[:9] + sorted(line.split()[9:])) for line in out.splitlines())


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_the_guest_sees_the_same(msb, tmp_path, compression):
    """The disk that msb serves, through the kernel that mounts it."""
    image = walk_image(tmp_path, compression)
    want = sorted(walk_lines(disk_of(image, tmp_path)))
    assert len(want) > 700
    msb.ok("load", "-q", "-i", tmp_path / "layout", "-t", "walk:1")
    out = msb.ok("run", "-q", "walk:1", "--", "/bin/walk", "/data")
    assert walked(out) == want


# --- attacks --------------------------------------------------------------------------------------
#
# An archive can try to write outside, to hang the reader, or to fill the host. Each case is refused
# with one line that names the layer and says why, or its result is harmless: a tree in a file. The
# canary directory beside the working directory must never change.


@pytest.fixture
def arena(tmp_path):
    canary = tmp_path / "canary"
    canary.mkdir()
    (canary / "secret").write_text("untouched")
    work = tmp_path / "work"
    work.mkdir()
    before = listing(tmp_path)
    yield work
    after = {k: v for k, v in listing(tmp_path).items() if not k.startswith("work/")}
    assert after == {k: v for k, v in before.items() if not k.startswith("work/")}
    strays = [p for p in os.listdir(work) if not p.endswith((".tar", ".erofs", ".gz", ".zst"))]
    assert strays == []


def listing(top):
    return {str(p.relative_to(top)): (p.lstat().st_mode, p.lstat().st_size) for p in top.rglob("*")}


def attack(work, *tars):
    """The disk of these layers, or the error of the first that is refused."""
    layers = []
    for i, data in enumerate(tars):
        path = work / f"{i}.tar"
        path.write_bytes(data if isinstance(data, bytes) else data.bytes())
        out = work / f"{i}.erofs"
        p = tool("layer", path, out, cwd=work, timeout=120)
        if p.returncode:
            return one_error(p, "layer under test: ")
        fsck(out)
        layers.append(out)
    p = tool("disk", work / "disk.erofs", *layers, cwd=work)
    if p.returncode:
        return one_error(p)
    fsck(work / "disk.erofs")
    return dict(erofs.Image(work / "disk.erofs").walk())


def one_error(p, prefix=""):
    assert p.returncode == 1 and p.stdout == ""
    lines = p.stderr.splitlines()
    assert lines[0].startswith("error: " + prefix), p.stderr
    assert all(line.startswith("  → ") for line in lines[1:])
    return lines[0]


@pytest.mark.parametrize("name", ["../canary/x", "a/../../canary/x", "..", "a/..", "./../x", "a/b/../c"])
def test_dotdot_is_refused(arena, name):
    assert "has a '..' in its path" in attack(arena, Tar().add(name, "x"))


@pytest.mark.parametrize("name", ["/etc/x", "//etc//x", "/./etc/./x"])
def test_absolute_names_are_inside(arena, name):
    disk = attack(arena, Tar().add(name, "x"))
    assert disk["etc/x"].read() == b"x" and set(disk) == {"", "etc", "etc/x"}


def test_symlinked_parent(arena):
    """Links are followed inside the tree; the host's directories are never looked at."""
    canary = str(arena.parent / "canary")
    t = Tar().symlink("out", canary).add("out/x", "x").symlink("up", "../" * 50 + canary[1:]).add("up/y", "y")
    disk = attack(arena, t)
    assert disk[f"{canary[1:]}/x"].read() == b"x" and disk[f"{canary[1:]}/y"].read() == b"y"
    assert disk["out"].read().decode() == canary


def test_symlinked_parent_in_a_lower_layer(arena):
    canary = str(arena.parent / "canary")
    upper = Tar().add("out/x", "x").whiteout("out/secret").opaque("up")
    disk = attack(arena, Tar().symlink("out", canary).symlink("up", "/" + "../" * 20 + canary[1:]), upper)
    assert disk[f"{canary[1:]}/x"].read() == b"x"


@pytest.mark.parametrize("loop", [["a", "a"], ["a", "b", "a"], ["a", "./a/b", "a"]])
def test_symlink_loops(arena, loop):
    t = Tar()
    for name, target in zip(loop, loop[1:]):
        t.symlink(name, target)
    assert "too many symbolic links" in attack(arena, t.add("a/x", "x"))


@pytest.mark.parametrize("target", ["../canary/secret", "/../canary/secret", "a/../../canary/secret"])
def test_hard_link_upwards_is_refused(arena, target):
    assert "has a '..' in its path" in attack(arena, Tar().hardlink("x", target))


def test_hard_link_to_the_host_is_missing(arena):
    secret = str(arena.parent / "canary" / "secret")
    for target in (secret, secret[1:], "etc/passwd", "/etc/passwd"):
        assert "which is missing" in attack(arena, Tar().hardlink("x", target))
    t = Tar().symlink("out", str(arena.parent / "canary")).hardlink("x", "out/secret")
    assert "which is missing" in attack(arena, t)


def test_hard_links_to_directories(arena):
    assert "a directory" in attack(arena, Tar().dir("d").hardlink("x", "d"))
    assert "a directory" in attack(arena, Tar().dir("d"), Tar().hardlink("x", "d"))
    assert "a directory" in attack(arena, Tar().hardlink("x", "/"))


def test_hard_link_to_itself(arena):
    assert "which is missing" in attack(arena, Tar().hardlink("x", "x"))
    assert set(attack(arena, Tar().add("x", "x").hardlink("x", "x"))) == {"", "x"}


def test_whiteouts_of_nothing_sensible(arena):
    for name in (".wh.", ".wh..", ".wh...", "a/.wh.."):
        assert "is an invalid whiteout" in attack(arena, Tar().add(name))
    assert "has a '..' in its path" in attack(arena, Tar().add("../.wh.x"))
    assert set(attack(arena, Tar().add("x", "x"), Tar().add(".wh..wh.plnk"))) == {"", "x"}


def test_whiteout_through_a_symlink(arena):
    canary = str(arena.parent / "canary")
    base = Tar().symlink("out", canary).add("f", "f")
    disk = attack(arena, base, Tar().add("out/.wh.secret").add("out/.wh..wh..opq"))
    assert disk["f"].read() == b"f"


def test_opaque_root(arena):
    disk = attack(arena, Tar().add("old", "o").dir("d"), Tar().opaque("").add("new", "n"))
    assert set(disk) == {"", "new"}


@pytest.mark.parametrize("name", [".", "./.", "/./."])
def test_root_as_something_else(arena, name):
    assert "would replace the root" in attack(arena, Tar().symlink(name, "/etc"))
    assert "would replace the root" in attack(arena, Tar().hardlink(name, "x"))
    assert "would replace the root" in attack(arena, Tar().add(name, "x"))


@pytest.mark.parametrize("name", ["./", "/", "//"])
def test_root_with_content(arena, name):
    """A trailing slash means a directory, and those have no bytes."""
    assert "the archive is damaged" in attack(arena, Tar().add(name, "x"))


def test_layer_replaces_anything_by_anything(arena):
    """Real images do it: a link by a file, a file by a directory, and back."""
    kinds = {"file": lambda t: t.add("x", "f"), "dir": lambda t: t.dir("x").add("x/c", "c"),
             "link": lambda t: t.symlink("x", "y"), "fifo": lambda t: t.add("x", kind=tarfile.FIFOTYPE)}
    for old in kinds.values():
        for name, new in kinds.items():
            disk = attack(arena, old(Tar().dir("y")), new(Tar()))
            if name == "dir":
                assert disk["x"].type == stat.S_IFDIR and "x/c" in disk
            else:
                assert disk["x"].type != stat.S_IFDIR and "x/c" not in disk


def test_devices_and_privileges_are_data(arena):
    """They belong to the guest: nothing of them exists on the host."""
    t = Tar().add("mem", kind=tarfile.CHRTYPE, dev=(1, 1), mode=0o666).add("disk", kind=tarfile.BLKTYPE, dev=(8, 0))
    t.add("root", "s", mode=0o6755, pax={"SCHILY.xattr.security.capability": cap((1 << 41) - 1 & 0xffffffff)})
    disk = attack(arena, t)
    assert disk["mem"].dev == (1, 1) and disk["disk"].dev == (8, 0) and disk["root"].mode == 0o106755
    assert "security.capability" in disk["root"].xattrs
    assert "bad device number" in attack(arena, Tar().add("d", kind=tarfile.CHRTYPE, dev=(0o7777777, 1)))


def test_overlay_marks_cannot_be_forged(arena):
    marks = {"SCHILY.xattr.trusted.overlay.opaque": "y", "SCHILY.xattr.trusted.overlay.redirect": "/etc",
             "SCHILY.xattr.trusted.msb.implicit": "y", "SCHILY.xattr.trusted.msb.link": "y",
             "LIBARCHIVE.xattr.trusted.overlay.opaque": "eQ=="}
    base = Tar().dir("d").add("d/kept", "k").symlink("l", "d/kept")
    disk = attack(arena, base, Tar().dir("d", 0o711, pax=marks).symlink("l", "d/kept", pax=marks))
    assert disk["d"].xattrs == {} and disk["d"].mode & 0o777 == 0o711 and "d/kept" in disk
    assert disk["l"].type == stat.S_IFLNK and disk["l"].xattrs == {}


def test_pax_overrides(arena):
    t = Tar().add("harmless", "x", pax={"path": "../canary/x"})
    assert "has a '..' in its path" in attack(arena, t)
    t = Tar().add("f", "f").hardlink("l", "f", pax={"linkpath": "../canary/secret"})
    assert "has a '..' in its path" in attack(arena, t)
    disk = attack(arena, Tar().add("short", "x", pax={"path": "/deep/" + "n" * 200}))
    assert "deep/" + "n" * 200 in disk
    result = attack(arena, Tar().add("f", "1234", pax={"size": "99999999999999999999"}))
    assert isinstance(result, str)


def test_endless_names(arena):
    assert "over 4095 bytes" in attack(arena, Tar().add("d/" * 3000 + "f"))
    assert "over 255 bytes" in attack(arena, Tar().add("n" * 256))
    assert isinstance(attack(arena, Tar().add("x" * (1 << 20))), str)
    gnu = Tar(form=tarfile.GNU_FORMAT).add("y" * (1 << 20))
    assert isinstance(attack(arena, gnu), str)
    assert "over 4095 bytes" in attack(arena, Tar().symlink("l", "t" * 5000))
    assert "nested deeper" in attack(arena, Tar().add("d/" * 1500 + "f"))


def test_endless_attributes(arena):
    many = {f"SCHILY.xattr.user.x{i}": "v" for i in range(5000)}
    assert "more than 1024 extended attributes" in attack(arena, Tar().add("f", "x", pax=many))
    wide = {f"SCHILY.xattr.user.x{i}": "v" * 50000 for i in range(3)}
    assert "more than 128 KiB of extended attributes" in attack(arena, Tar().add("f", "x", pax=wide))
    assert "too large" in attack(arena, Tar().add("f", "x", pax={"SCHILY.xattr.user.x": "v" * 70000}))


def raw_header(name, size=0, kind=b"0", magic=b"ustar\x0000"):
    h = bytearray(512)
    h[0:len(name)] = name
    h[100:108], h[108:116], h[116:124] = b"0000644\0", b"0000000\0", b"0000000\0"
    h[124:136] = b"%011o\0" % size if size < 8 << 30 else b"\x80" + size.to_bytes(11, "big")
    h[136:148], h[148:156], h[156:157], h[257:265] = b"00000000000\0", b" " * 8, kind, magic
    h[148:155] = b"%06o\0" % sum(h)
    return bytes(h)


def test_sizes_that_lie(arena):
    end = bytes(1024)
    assert isinstance(attack(arena, raw_header(b"f", 1 << 20) + b"short" + end), str)
    assert isinstance(attack(arena, raw_header(b"f", 1 << 62) + end), str)
    assert isinstance(attack(arena, raw_header(b"f", (1 << 63) + 5) + end), str)
    huge_pax = raw_header(b"pax", 1 << 40, b"x") + b"11 path=ab\n"
    assert isinstance(attack(arena, huge_pax), str)


LIMITS = (64 << 20, 100_000)


def limited(work, path):
    p = tool("layer", path, work / "o.erofs", *LIMITS, cwd=work, timeout=240)
    assert p.returncode == 1
    assert (work / "o.erofs").stat().st_blocks * 512 < 256 << 20
    return one_error(p, "layer under test: ")


def test_sparse_bomb(arena):
    """Petabytes that take one block in the archive."""
    pax = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "bomb", "GNU.sparse.realsize": str(1 << 50)}
    (arena / "t.tar").write_bytes(Tar().add("x", b"0\n" + bytes(510), pax=pax).bytes())
    assert "limit of 64 MiB" in limited(arena, arena / "t.tar")
    t = Tar()
    for i in range(100):  # in sum
        t.add(f"x{i}", b"0\n" + bytes(510), pax={**pax, "GNU.sparse.name": f"b{i}", "GNU.sparse.realsize": str(1 << 20)})
    (arena / "t.tar").write_bytes(t.bytes())
    assert "limit of 64 MiB" in limited(arena, arena / "t.tar")


@pytest.mark.parametrize("where", ["in a file", "behind the end"])
@pytest.mark.parametrize("how", ["gz", "zst"])
def test_compression_bomb(arena, how, where):
    if how == "zst" and not shutil.which("zstd"):
        pytest.skip("zstd is not installed")
    size = 3 << 30
    head = raw_header(b"bomb", size) if where == "in a file" else raw_header(b"f") + bytes(1024)
    path = arena / f"bomb.{how}"
    if how == "gz":
        member = gzip.compress(bytes(1 << 24), 9)
        path.write_bytes(gzip.compress(head) + member * (size >> 24))
    else:
        squeeze = lambda b: subprocess.run(["zstd", "-q", "-c"], input=b, capture_output=True, check=True).stdout
        path.write_bytes(squeeze(head) + squeeze(bytes(1 << 24)) * (size >> 24))
    assert path.stat().st_size * 500 < size
    assert "limit of 64 MiB" in limited(arena, path)


def test_ten_million_entries(arena):
    """5 GB of headers in a few megabytes."""
    part = gzip.compress(b"".join(raw_header(b"f%d" % i) for i in range(20000)), 9)
    (arena / "many.gz").write_bytes(part * 500)
    assert "more than 100000 entries" in limited(arena, arena / "many.gz")


def test_the_converter_dies_with_its_parent(tmp_path):
    """Killed in the middle of a pull, nothing goes on working."""
    r, w = os.pipe()
    os.write(w, raw_header(b"f", 1 << 20) + b"x" * 5000)
    p = subprocess.Popen([TOOL, "layer", f"/proc/self/fd/{r}", tmp_path / "o.erofs"], cwd=tmp_path, pass_fds=[r])
    os.close(r)
    children = pathlib.Path(f"/proc/{p.pid}/task/{p.pid}/children")
    deadline = time.time() + 20
    while time.time() < deadline and not (children.exists() and children.read_text().strip()):
        time.sleep(0.01)
    child = int(children.read_text().split()[0])
    p.kill()
    p.wait()
    while time.time() < deadline and alive(child):
        time.sleep(0.01)
    assert not alive(child)
    os.close(w)


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
