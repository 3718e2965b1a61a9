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
                d["content"] = (st.st_size, hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest())
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


def base_layer():
    t = Tar()
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


def rich_layer():
    t = Tar()
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


def change_layer():
    t = Tar()
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
        f.truncate((5 << 30) + 7)
        f.seek((4 << 30) + 12345)
        f.write(b"beyond")
    subprocess.run(["tar", "-S", "-cf", tmp_path / "t.tar", "-C", tmp_path, "big"], check=True)
    disk_of_tars([(tmp_path / "t.tar").read_bytes(), Tar().hardlink("same", "big").bytes()], tmp_path)
    node = dict(erofs.Image(tmp_path / "disk.erofs").walk())["same"]
    assert node.size == (5 << 30) + 7 and node.nlink == 2
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
