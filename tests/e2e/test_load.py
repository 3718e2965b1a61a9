"""msb load: archives as real tools write them, and as attackers do."""
import gzip
import hashlib
import io
import json
import os
import pathlib
import signal
import subprocess
import tarfile

import pytest

import imagekit
from conftest import Msb, make_home, tear_down, wait_for
from imagekit import OCI, Layout, Tar, sha256


@pytest.fixture
def msb(tmp_path):
    """A home with a cache of its own: these tests look into it."""
    m = Msb(make_home(tmp_path))
    yield m
    tear_down(m)


def stderr(p):
    return p.stderr.decode(errors="replace")


def references(m):
    """{reference: digest} of all that is stored."""
    out = {}
    for p in (m.home / "cache" / "refs").glob("*.json"):
        doc = json.loads(p.read_text())
        out[doc["reference"]] = doc["image"]
    return out


def listing(m):
    """Everything in the cache with its size; lock files and empty directories say nothing."""
    top = m.home / "cache"
    return sorted((str(p.relative_to(top)), p.stat().st_size) for p in top.rglob("*")
                  if p.is_file() and p.name != "gc.lock" and "upper" not in p.parts)


def refused(m, path, *words, args=()):
    """The load fails with one error that has these words, and the cache is as it was."""
    before = listing(m)
    p = m("load", "-i", path, *args, timeout=120)
    assert p.returncode == 1, (p.stdout, p.stderr)
    lines = stderr(p).splitlines()
    assert lines[0].startswith(f"error: cannot load '{path}': "), lines
    assert sum(line.startswith("error:") for line in lines) == 1
    for word in words:
        assert word in stderr(p), (word, stderr(p))
    assert p.stdout == b""
    assert listing(m) == before
    return lines


def small(text="hello"):
    return Tar().dir("d").add("d/f", text).bytes()


def docker_archive(path, images, more=(), form=tarfile.PAX_FORMAT):
    """A docker-archive by hand. images: [(names, layer tars)]; more: [(member, bytes)]."""
    t, manifest = Tar(path, form=form), []
    for names, layers in images:
        config = json.dumps({"os": "linux", "architecture": imagekit.MACHINE, "config": {},
                             "rootfs": {"type": "layers", "diff_ids": [sha256(x) for x in layers]}})
        entry = {"Config": hashlib.sha256(config.encode()).hexdigest() + ".json",
                 "RepoTags": names, "Layers": []}
        t.add(entry["Config"], config)
        for i, layer in enumerate(layers):
            name = f"{len(manifest)}-{i}/layer.tar"
            t.add(name, layer)
            entry["Layers"].append(name)
        manifest.append(entry)
    for name, data in more:
        t.add(name, data)
    t.add("manifest.json", json.dumps(manifest))
    t.close()
    return path


# --- what real tools write ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["docker", "oci"])
@pytest.mark.parametrize("packed", ["plain", "gzip", "zstd"])
@pytest.mark.parametrize("how", ["file", "stdin", "pipe"])
def test_archive(msb, tmp_path, kind, packed, how):
    image = imagekit.busybox()
    path = image.archive(kind, tmp_path / "a.tar", "busybox:1")
    if packed == "gzip":
        path.write_bytes(gzip.compress(path.read_bytes(), 1))
    elif packed == "zstd":
        imagekit.need("zstd")
        subprocess.run(["zstd", "-q", "-1", path, "-o", tmp_path / "a.zst"], check=True)
        path = tmp_path / "a.zst"
    if how == "file":
        p = msb("load", "-i", path, check=0)
    elif how == "stdin":
        with open(path, "rb") as f:
            p = msb("load", stdin=f, check=0)
    else:
        p = msb("load", "-i", "-", input=path.read_bytes(), check=0)
    assert p.stdout == b"" and stderr(p) == "   ✓ Loaded       busybox:1\n"
    assert list(references(msb)) == ["docker.io/library/busybox:1"]
    if kind == "oci":
        assert references(msb)["docker.io/library/busybox:1"] == image.descriptor()["digest"]
    assert list((msb.home / "cache" / "tmp").iterdir()) == []
    before = listing(msb)
    assert msb("load", "-q", "-i", path, check=0).stderr == b""
    assert listing(msb) == before


def test_what_is_loaded_runs(msb, tmp_path):
    image = imagekit.busybox()
    msb.ok("load", "-q", "-i", image.archive("docker", tmp_path / "a.tar", "busybox:1"))
    assert msb.ok("run", "-q", "busybox:1", "--", "sh", "-c",
                  'echo "$GREETING" $(id -un) $(pwd)') == "hello world www /home/www\n"
    layered = imagekit.layers(30).archive("oci", tmp_path / "b.tar", "layered:30")
    msb.ok("load", "-q", "-i", layered)
    out = msb.ok("run", "-q", "layered:30", "--", "sh", "-c", "cat /current; ls /layers /home")
    assert out.split() == ["29", "/home:", "fresh", "/layers:", "16-again", "28", "29"]


def test_debian_with_python(msb, tmp_path):
    image = imagekit.debian().recompressed("zstd")
    msb.ok("load", "-q", "-i", image.archive("oci", tmp_path / "a.tar", "debian-python:1"), timeout=300)
    assert msb.ok("run", "-q", "debian-python:1", "--", "python3", "hello.py") == "hello from 3\n"


@pytest.mark.parametrize("kind", ["docker-archive", "oci-archive"])
def test_what_podman_saves(msb, tmp_path, kind):
    with imagekit.Podman() as podman:
        podman.load(imagekit.layers(6).archive("docker", tmp_path / "in.tar", "example.com/team/app:2"))
        podman("save", "-q", "--format", kind, "-o", tmp_path / "out.tar", "example.com/team/app:2")
    msb.ok("load", "-i", tmp_path / "out.tar")
    assert list(references(msb)) == ["example.com/team/app:2"]


def test_legacy_layout(msb, tmp_path):
    """Before content addressing: layers in directories, repeated ones as symlinks or hard links."""
    layer, top = small(), small("top")
    config = json.dumps({"os": "linux", "architecture": imagekit.MACHINE, "rootfs": {
        "type": "layers", "diff_ids": [sha256(layer), sha256(top), sha256(layer)]}})
    t = Tar(tmp_path / "a.tar", form=tarfile.GNU_FORMAT)
    t.dir("aaa").add("aaa/VERSION", "1.0").add("aaa/json", "{}").add("aaa/layer.tar", layer)
    t.dir("bbb").symlink("bbb/layer.tar", "../ccc/layer.tar").add("ccc/layer.tar", top)
    t.hardlink("ddd/layer.tar", "aaa/layer.tar")
    t.add("cfg.json", config)
    t.add("manifest.json", json.dumps([{"Config": "cfg.json", "RepoTags": ["legacy:1"], "Layers": [
        "aaa/layer.tar", "bbb/layer.tar", "ddd/layer.tar"]}]))
    t.add("repositories", "{}")
    t.close()
    msb.ok("load", "-i", tmp_path / "a.tar")
    assert list(references(msb)) == ["docker.io/library/legacy:1"]


def test_compressed_layers_in_a_docker_archive(msb, tmp_path):
    """kaniko and others write them."""
    layer = small()
    config = json.dumps({"os": "linux", "architecture": imagekit.MACHINE, "rootfs": {
        "type": "layers", "diff_ids": [sha256(layer)]}})
    t = Tar(tmp_path / "a.tar")
    t.add("l.tar.gz", gzip.compress(layer)).add("c.json", config)
    t.add("manifest.json", json.dumps([{"Config": "c.json", "RepoTags": ["k:1"], "Layers": ["l.tar.gz"]}]))
    t.close()
    msb.ok("load", "-i", tmp_path / "a.tar")
    assert list(references(msb)) == ["docker.io/library/k:1"]


def test_both_formats_in_one(msb, tmp_path):
    """Docker's own archives since version 25: an OCI layout with a manifest.json beside it."""
    out = Layout(tmp_path / "layout")
    image = out.image([small(), small("top")], platform={"os": "linux", "architecture": imagekit.MACHINE})
    gone = {**image, "digest": sha256(b"not here"), "platform": {"os": "linux", "architecture": "s390x"}}
    index = out.index([gone, image])  # what was not pulled is not in the archive
    out.entries.append(entry(index, "3", "docker.io/library/alpine:3"))
    out.write_index()
    doc = json.loads(blob_of(out, image["digest"]).read_bytes())
    path = out.archive(tmp_path / "a.tar")
    blobs = [f"blobs/sha256/{x['digest'][7:]}" for x in (doc["config"], *doc["layers"])]
    with tarfile.open(path, "a") as t:
        text = json.dumps([{"Config": blobs[0], "RepoTags": ["alpine:3"], "Layers": blobs[1:]}]).encode()
        info = tarfile.TarInfo("manifest.json")
        info.size = len(text)
        t.addfile(info, io.BytesIO(text))
    msb.ok("load", "-i", path)
    assert references(msb) == {"docker.io/library/alpine:3": image["digest"]}


def test_several_loads_at_once(msb, tmp_path):
    """They share the work, and none is in the other's way."""
    path = imagekit.layers(30).archive("docker", tmp_path / "a.tar", "x:1")
    runs = [msb.popen("load", "-q", "-i", path, "-t", f"x:{i}", stderr=subprocess.PIPE) for i in range(6)]
    for p in runs:
        assert (p.communicate(timeout=120)[1], p.returncode) == (b"", 0)
    refs = references(msb)
    assert set(refs) == {f"docker.io/library/x:{i}" for i in range(6)} and len(set(refs.values())) == 1
    assert len(list((msb.home / "cache" / "layers").iterdir())) == 30
    assert list((msb.home / "cache" / "tmp").iterdir()) == []


def test_several_images(msb, tmp_path):
    base = small("base")
    path = docker_archive(tmp_path / "a.tar", [(["one:1", "one:latest"], [base]),
                                               (["example.com:5000/two:2"], [base, small("two")])])
    p = msb("load", "-i", path, check=0)
    assert stderr(p).split() == "✓ Loaded one:1 ✓ Loaded one:latest ✓ Loaded example.com:5000/two:2".split()
    refs = references(msb)
    assert set(refs) == {"docker.io/library/one:1", "docker.io/library/one:latest",
                         "example.com:5000/two:2"}
    assert refs["docker.io/library/one:1"] == refs["docker.io/library/one:latest"]
    assert len(list((msb.home / "cache" / "layers").iterdir())) == 2  # the base is there once
    p = msb("load", "-i", path, "-t", "x:1", check=1)
    assert "2 images" in stderr(p)


# --- OCI layouts ----------------------------------------------------------------------------------


def entry(descriptor, ref=None, full=None, **more):
    notes = {}
    if ref:
        notes["org.opencontainers.image.ref.name"] = ref
    if full:
        notes["io.containerd.image.name"] = full
    return {**descriptor, **({"annotations": notes} if notes else {}), **more}


@pytest.mark.parametrize("ref, full, name", [
    ("3", "docker.io/library/alpine:3", "docker.io/library/alpine:3"),  # docker, buildx
    ("localhost/a/b:1", None, "localhost/a/b:1"),  # podman
    ("busybox", None, "docker.io/library/busybox:latest"),  # skopeo, a bare name
    ("b:2", None, "docker.io/library/b:2"),
    ("latest", None, None), ("3.2", None, None), ("v1", None, None), (None, None, None),
])
def test_names_in_a_layout(msb, tmp_path, ref, full, name):
    out = Layout(tmp_path / "layout")
    out.entries.append(entry(out.image([small()]), ref, full))
    out.write_index()
    if name is None:
        lines = refused(msb, tmp_path / "layout", "has no name for its image")
        assert any("msb load -t NAME:TAG" in line for line in lines)
    else:
        msb.ok("load", "-i", tmp_path / "layout")
        assert list(references(msb)) == [name]
    # A name that is given takes the place of all that.
    msb.ok("load", "-i", out.archive(tmp_path / "a.tar"), "-t", "mine:1")
    assert "docker.io/library/mine:1" in references(msb)


def test_several_platforms(msb, tmp_path):
    image = imagekit.multiarch()
    digests = {}
    for m in image.manifest()["manifests"]:
        digests[m["platform"]["architecture"]] = m["digest"]
    msb.ok("load", "-i", image.layout, "-t", "here:1")
    msb.ok("load", "-i", image.layout, "-t", "arm:1", "--platform", "linux/arm64")
    refs = references(msb)
    assert refs["docker.io/library/here:1"] == digests[imagekit.MACHINE]
    assert refs["docker.io/library/arm:1"] == digests["arm64"]
    lines = refused(msb, image.layout, "not made for linux/s390x", args=("--platform", "linux/s390x"))
    assert any("linux/amd64, linux/arm64/v8" in line for line in lines)
    assert "unknown" not in " ".join(lines)


def test_index_in_index_in_index(msb, tmp_path):
    out = Layout(tmp_path / "layout")
    image = out.image([small()], platform={"os": "linux", "architecture": imagekit.MACHINE})
    inner = out.index([image])
    for _ in range(2):
        inner = out.index([inner])
    out.tag(inner, "deep:1")
    msb.ok("load", "-i", tmp_path / "layout")
    for _ in range(5):
        inner = out.index([inner])
    out.entries.clear()
    out.tag(inner, "deeper:1")
    refused(msb, tmp_path / "layout", "nested more than 4 levels deep")


def test_platforms_side_by_side(msb, tmp_path):
    """Entries of one name for several platforms, without an index of their own."""
    out = Layout(tmp_path / "layout")
    for arch in ("s390x", imagekit.MACHINE):
        d = out.image([small(arch)], arch=arch, platform={"os": "linux", "architecture": arch})
        out.entries.append(entry(d, "side:1"))
    out.write_index()
    msb.ok("load", "-i", tmp_path / "layout")
    assert references(msb)["docker.io/library/side:1"] == out.entries[1]["digest"]


def test_wrong_architecture(msb, tmp_path):
    out = Layout(tmp_path / "layout")
    out.tag(out.image([small()], arch="s390x"), "other:1")
    refused(msb, tmp_path / "layout", "made for linux/s390x", "--platform linux/s390x")
    msb.ok("load", "-i", tmp_path / "layout", "--platform", "linux/s390x")


# --- wrong use ------------------------------------------------------------------------------------


def test_bad_input(msb, tmp_path):
    (tmp_path / "text").write_text("this is no archive\n" * 100)
    refused(msb, tmp_path / "text", "it is not a tar archive")
    (tmp_path / "empty").write_bytes(b"")
    refused(msb, tmp_path / "empty", "it is not a tar archive")
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"text" * 1000))
    refused(msb, tmp_path / "text.gz", "it is not a tar archive")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(os.urandom(100000))[:5000])
    refused(msb, tmp_path / "cut.gz")
    Tar(tmp_path / "root.tar").dir("bin").add("bin/sh", "x").close()
    refused(msb, tmp_path / "root.tar", "not an image archive", "msb run ./FILE.tar")
    (tmp_path / "dir").mkdir()
    refused(msb, tmp_path / "dir", "not an image archive")
    Tar(tmp_path / "old.tar").add("repositories", "{}").add("x/layer.tar", small()).close()
    refused(msb, tmp_path / "old.tar", "older than 1.10")
    p = msb("load", "-i", tmp_path / "nonesuch", check=1)
    assert stderr(p) == f"error: cannot open '{tmp_path}/nonesuch': No such file or directory\n"
    for args in (("-t", "BAD NAME"), ("-t", "x@sha256:" + "0" * 64), ("--platform", "/")):
        p = msb("load", "-i", tmp_path / "text", *args, check=2)
        assert stderr(p).startswith("error: invalid ")
    assert msb("load", input=b"", check=1).stderr


def test_terminal_is_no_archive(msb):
    master, slave = os.openpty()
    try:
        p = msb("load", stdin=slave)
    finally:
        os.close(master)
        os.close(slave)
    assert p.returncode == 2 and "no archive given" in stderr(p)


# --- attacks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../../evil", "a/../../evil", "/../evil", "./../evil"])
def test_members_that_lead_out(msb, tmp_path, name):
    path = docker_archive(tmp_path / "a.tar", [(["x:1"], [small()])], more=[(name, b"evil")])
    refused(msb, path, "unsafe path")
    assert not list(tmp_path.rglob("evil"))


def test_members_with_host_paths(msb, tmp_path):
    """Absolute names and links to the host are names in the archive, and nothing else."""
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    t = Tar(tmp_path / "a.tar")
    t.symlink("c.json", str(secret)).symlink("l.tar", "/etc/passwd").symlink("up", "../../etc/passwd")
    t.add("manifest.json", json.dumps([{"Config": "c.json", "RepoTags": ["x:1"], "Layers": ["l.tar"]}]))
    t.close()
    refused(msb, tmp_path / "a.tar", "the archive has no 'c.json'")
    t = Tar(tmp_path / "b.tar")
    t.add("manifest.json", json.dumps([{"Config": "/etc/passwd", "RepoTags": ["x:1"], "Layers": []}]))
    t.close()
    refused(msb, tmp_path / "b.tar", "the archive has no '/etc/passwd'")


def test_directory_with_links_to_the_host(msb, tmp_path):
    out = Layout(tmp_path / "layout")
    out.tag(out.image([small()]), "x:1")
    (tmp_path / "outside").write_text((out.path / "index.json").read_text())
    (out.path / "index.json").unlink()
    (out.path / "index.json").symlink_to(tmp_path / "outside")
    refused(msb, out.path, "not an image archive")
    (out.path / "index.json").unlink()
    os.mkfifo(out.path / "index.json")
    refused(msb, out.path, "not an image archive")


@pytest.mark.parametrize("broken", ["truncated", "flipped", "members", "twice", "sparse", "size"])
def test_damaged_tar(msb, tmp_path, broken):
    path = docker_archive(tmp_path / "a.tar", [(["x:1"], [small(), small("2")])])
    data = bytearray(path.read_bytes())
    if broken == "truncated":
        path.write_bytes(data[:5000])
        refused(msb, path, "truncated or corrupt archive")
    elif broken == "flipped":
        data[0] ^= 1
        path.write_bytes(data)
        refused(msb, path, "not a tar archive")
    elif broken == "members":
        docker_archive(path, [(["x:1"], [small()])], more=[(f"m{i}", b"") for i in range(10000)])
        refused(msb, path, "more than 8192 entries")
    elif broken == "twice":
        docker_archive(path, [(["x:1"], [small()])], more=[("manifest.json", b"[]")])
        refused(msb, path, "two members 'manifest.json'")
    elif broken == "sparse":
        t = Tar(path).add("manifest.json", "[]", pax={"GNU.sparse.size": "1000000000000"})
        t.close()
        refused(msb, path, "sparse")
    else:
        data[124:136] = b"77777777777\0"
        data[148:156] = b"        "
        data[148:156] = b"%06o\0 " % sum(data[:512])
        path.write_bytes(data)
        refused(msb, path, "truncated or corrupt archive")


def layout_with(tmp_path, **kw):
    out = Layout(tmp_path / "layout")
    return out, out.tag(out.image([small(), small("second")], **kw), "x:1")


def blob_of(out, digest):
    return out.path / "blobs" / "sha256" / digest[7:]


def test_wrong_diff_id(msb, tmp_path):
    """The first layer is sound and would have been stored."""
    out, _ = layout_with(tmp_path, diff_ids=[sha256(small()), sha256(b"other")])
    refused(msb, out.path, "layer 2", "digest", sha256(b"other"))
    path = docker_archive(tmp_path / "a.tar", [(["x:1"], [small(), small("second")])])
    path.write_bytes(path.read_bytes().replace(sha256(small("second")).encode(), sha256(b"?").encode()))
    refused(msb, path, "layer 2")
    assert not (msb.home / "cache" / "layers").exists() or not list((msb.home / "cache" / "layers").iterdir())


def test_layer_not_as_declared(msb, tmp_path):
    out, image = layout_with(tmp_path)
    layer = blob_of(out, image.manifest()["layers"][1]["digest"])
    whole = layer.read_bytes()
    layer.write_bytes(whole + bytes(512))
    refused(msb, out.path, "layer 2", "the manifest says")
    layer.write_bytes(whole[:-1] + b"x")
    refused(msb, out.path, "layer 2", "digest")
    layer.write_bytes(b"x" * len(whole))
    refused(msb, out.path, "layer 2")
    layer.unlink()
    refused(msb, out.path, "layer 2", "the archive has no")


def test_missing_and_lying_documents(msb, tmp_path):
    out, image = layout_with(tmp_path)
    config = blob_of(out, image.manifest()["config"]["digest"])
    manifest = blob_of(out, image.descriptor()["digest"])
    for path in (config, manifest):
        whole = path.read_bytes()
        path.write_bytes(whole + b" ")
        refused(msb, out.path, "does not match its digest")
        path.unlink()
        refused(msb, out.path, "the directory has no 'blobs/sha256/")
        path.write_bytes(whole)
    for missing in ("Config", "Layers"):
        doc = {"Config": "c.json", "RepoTags": ["x:1"], "Layers": ["l.tar"]}
        doc[missing] = "gone.json" if missing == "Config" else ["gone.tar"]
        t = Tar(tmp_path / "a.tar")
        t.add("c.json", json.dumps({"rootfs": {"type": "layers", "diff_ids": [sha256(b"")]}}))
        t.add("l.tar", b"").add("manifest.json", json.dumps([doc])).close()
        refused(msb, tmp_path / "a.tar", "gone.")


def test_too_many_layers(msb, tmp_path):
    t = Tar(tmp_path / "a.tar")
    t.add("c.json", json.dumps({"rootfs": {"type": "layers", "diff_ids": []}}))
    t.add("l.tar", small())
    t.add("manifest.json", json.dumps([{"Config": "c.json", "RepoTags": ["x:1"],
                                        "Layers": ["l.tar"] * 65536}]))
    t.close()
    refused(msb, tmp_path / "a.tar", "65536 layers; at most 128")
    out = Layout(tmp_path / "layout")
    layer = out.blob(small(), OCI + "layer.v1.tar")
    config = out.blob({"rootfs": {"type": "layers", "diff_ids": [layer["digest"]] * 129}},
                      OCI + "config.v1+json")
    out.tag(out.blob({"schemaVersion": 2, "config": config, "layers": [layer] * 129},
                     OCI + "manifest.v1+json"), "x:1")
    refused(msb, out.path, "129 layers; at most 128")


NONSENSE = [
    b"", b"{}", b"[]", b"[7]", b"[{}]", b"[" * 100000, b'[{"Config":"a\\u0000b"}]', b"[" + b"{}," * 200000,
    b'[{"Config":7,"Layers":[],"RepoTags":[]}]', b'[{"Config":"../x","Layers":[]}]',
    b'[{"Config":"c.json","Layers":"l"}]', b'[{"Config":"c.json","Layers":[7],"RepoTags":["x"]}]',
    b" " * (5 << 20),
]


@pytest.mark.parametrize("doc", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_in_manifest_json(msb, tmp_path, doc):
    t = Tar(tmp_path / "a.tar").add("manifest.json", doc)
    t.add("c.json", json.dumps({"rootfs": {"type": "layers", "diff_ids": [sha256(b"")]}}))
    t.close()
    refused(msb, tmp_path / "a.tar")


@pytest.mark.parametrize("name", ["UPPER", "a b", "x@sha256:" + "0" * 64, "\x1b[31mred", "a" * 300, "../x", ""],
                         ids=range(7))
def test_names_nobody_could_type(msb, tmp_path, name):
    path = docker_archive(tmp_path / "a.tar", [([name], [small()])])
    p = refused(msb, path)
    assert "\x1b" not in "".join(p)


def test_bomb(msb, tmp_path):
    """Zeros without end: the archive is bounded by the layer limit, the disk by what is free."""
    info = tarfile.TarInfo("zeros")
    info.size = 1 << 40
    bomb = gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(64 << 20))
    (tmp_path / "bomb.gz").write_bytes(bomb)
    refused(msb, tmp_path / "bomb.gz", "truncated or corrupt archive")


def test_killed_while_loading(msb, tmp_path):
    """Whatever ends it, nothing with a name is left of it, and no process."""
    data = imagekit.busybox().archive("docker", tmp_path / "a.tar", "x:1").read_bytes()
    p = msb.popen("load", stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    p.stdin.write(data[: len(data) // 2])
    p.stdin.flush()
    wait_for(lambda: (msb.home / "cache" / "tmp").is_dir())
    children = wait_for(lambda: msb.tree(p.pid)[1:])
    p.send_signal(signal.SIGKILL)
    p.wait()
    p.stdin.close()
    wait_for(lambda: not any(pathlib.Path(f"/proc/{c}").exists() for c in children))
    assert listing(msb) == []
    msb.ok("load", "-q", input=data)
    assert list(references(msb)) == ["docker.io/library/x:1"]
