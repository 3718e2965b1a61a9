"""msb save: archives that other tools take, with everything in them that was in the image."""
import hashlib
import json
import os
import stat
import subprocess
import tarfile

import pytest

import imagekit
from conftest import Msb, make_home, tear_down
from imagekit import Layout, Tar
from test_layers import STARTED, base_layer, change_layer, rich_layer, seen_in_dir
from test_load import references, small, stderr


@pytest.fixture
def msb(tmp_path):
    m = Msb(make_home(tmp_path))
    yield m
    tear_down(m)


@pytest.fixture
def other(tmp_path):
    """Another home, to load into what the first one saved."""
    (tmp_path / "other").mkdir()
    m = Msb(make_home(tmp_path / "other"))
    yield m
    tear_down(m)


def load(m, tmp_path, image, name):
    path = tmp_path / "in.tar"
    image.archive("oci", path, name)
    m.ok("load", "-q", "-i", path, timeout=300)
    path.unlink()


def unpacked(image, dest):
    """What umoci makes of it, without the times of the unpacking itself."""
    tree = seen_in_dir(image.unpack(dest))
    for node in tree.values():
        if stat.S_ISDIR(node["mode"]) and node["mtime"] > STARTED:
            del node["mtime"]
        node.pop("nlink", None)
    return tree


def as_layout(kind, path, dest):
    """An archive as skopeo reads it. An OCI archive is a layout already."""
    if kind == "docker":
        imagekit.skopeo("copy", "-q", f"docker-archive:{path}", f"oci:{dest}:saved")
        return imagekit.Image(dest, "saved")
    imagekit.skopeo("inspect", f"oci-archive:{path}")
    with tarfile.open(path) as t:
        t.extractall(dest)
    index = json.loads((dest / "index.json").read_text())
    for entry in index["manifests"]:  # umoci takes a bare word
        entry["annotations"]["org.opencontainers.image.ref.name"] = "saved"
    (dest / "index.json").write_text(json.dumps(index))
    return imagekit.Image(dest, "saved")


def saved_config(kind, path):
    """As it is in a docker-archive: skopeo drops what OCI does not know."""
    if kind == "docker":
        with tarfile.open(path) as t:
            return json.load(t.extractfile(json.load(t.extractfile("manifest.json"))[0]["Config"]))
    return None


def odd(tmp_path):
    """Whatever a layer can hold."""
    out = Layout(tmp_path / "odd")
    links = Tar().hardlink("below", "keep/x").whiteout("keep").add("tails/e", "e" * 700)
    # Each means what was there before: y is the old x, and x something else.
    links.hardlink("y", "x").hardlink("x", "a/hard").hardlink("z", "y2").hardlink("y2", "x2")
    links.add("negative", "before 1970", pax={"mtime": "-1.25"})
    links.add("far", "after 2242", pax={"mtime": "99999999999.5"})
    config = {"Env": ["A=b=c", "Ü=ö"], "Entrypoint": ["/e", ""], "Cmd": ["x y"], "User": "1000:100",
              "WorkingDir": "/a", "Labels": {"k": "v", "a=b": "<&>"}, "StopSignal": "SIGQUIT",
              "ExposedPorts": {"80/tcp": {}}, "Volumes": {"/v": {}}, "OnBuild": ["RUN x"]}
    first = base_layer().add("x", "old x").add("x2", "old x2").add("y2", "old y2")
    tars = [first, rich_layer(), change_layer(), links]
    return out.tag(out.image([t.bytes() for t in tars], config), "odd")


IMAGES = {"busybox": lambda tmp: imagekit.busybox(), "layers": lambda tmp: imagekit.layers(30),
          "debian": lambda tmp: imagekit.debian(), "odd": odd}


@pytest.mark.parametrize("which, kind", [("busybox", "docker"), ("busybox", "oci"), ("layers", "docker"),
                                         ("debian", "oci"), ("odd", "docker"), ("odd", "oci")])
def test_content_is_the_same(msb, other, tmp_path, kind, which):
    image = IMAGES[which](tmp_path)
    load(msb, tmp_path, image, "x:1")
    p = msb("save", "--format", kind, "-o", tmp_path / "a.tar", "x:1", check=0, timeout=300)
    assert p.stdout == b"" and stderr(p) == "   ✓ Saved        x:1\n"
    saved = as_layout(kind, tmp_path / "a.tar", tmp_path / "saved")
    want, got = unpacked(image, tmp_path / "u1"), unpacked(saved, tmp_path / "u2")
    assert want.keys() == got.keys()
    wrong = [(k, want[k], got[k]) for k in want if want[k] != got[k]]
    assert not wrong, wrong[:5]
    # The configuration is what it was, but for the digests.
    was, now = image.config(), saved_config(kind, tmp_path / "a.tar") or saved.config()
    assert len(was["rootfs"].pop("diff_ids")) == len(now["rootfs"].pop("diff_ids"))
    assert was == now
    # Loading it and saving it again gives the same bytes.
    first = (tmp_path / "a.tar").read_bytes()
    other.ok("load", "-q", "-i", tmp_path / "a.tar", timeout=300)
    again = other("save", "--format", kind, "x:1", check=0, timeout=300).stdout
    assert hashlib.sha256(again).digest() == hashlib.sha256(first).digest()


@pytest.mark.parametrize("kind", ["docker", "oci"])
def test_podman_loads_it(msb, tmp_path, kind):
    load(msb, tmp_path, imagekit.layers(6), "example.com/team/app:2")
    msb.ok("save", "--format", kind, "-o", tmp_path / "a.tar", "example.com/team/app:2")
    with imagekit.Podman() as podman:
        podman.load(tmp_path / "a.tar")
        doc = json.loads(podman("image", "inspect", "example.com/team/app:2"))[0]
    assert doc["RootFS"]["Layers"][0].startswith("sha256:") and len(doc["RootFS"]["Layers"]) == 6
    assert doc["Config"]["Cmd"] == ["cat,/current"]


def test_same_bytes_each_time(msb, other, tmp_path):
    """On any machine, in any order of loading, from any compression."""
    load(msb, tmp_path, imagekit.layers(30), "a:1")
    load(msb, tmp_path, imagekit.busybox(), "b:1")
    load(other, tmp_path, imagekit.busybox().recompressed("zstd"), "b:1")
    load(other, tmp_path, imagekit.layers(30), "a:1")
    for kind in ("docker", "oci"):
        one = msb("save", "-q", "--format", kind, "a:1", "b:1", check=0)
        assert one.stderr == b""
        assert one.stdout == other("save", "--format", kind, "a:1", "b:1", check=0).stdout


def test_several_images(msb, other, tmp_path):
    out = Layout(tmp_path / "layout")
    base = small("base")
    out.tag(out.image([base]), "one:1")
    out.tag(out.image([base, small("two")]), "two:1")
    msb.ok("load", "-q", "-i", out.path)
    msb.ok("load", "-q", "-i", out.archive(tmp_path / "in.tar"))
    one = Layout(tmp_path / "one")
    one.tag(one.image([base]), "one:again")
    msb.ok("load", "-q", "-i", one.path)
    for kind in ("docker", "oci"):
        path = tmp_path / f"{kind}.tar"
        msb.ok("save", "--format", kind, "-o", path, "one:1", "two:1", "one:again", "one:1")
        with tarfile.open(path) as t:
            names = t.getnames()
            assert len(names) == len(set(names))
            if kind == "docker":
                doc = json.load(t.extractfile("manifest.json"))
                assert [x["RepoTags"] for x in doc] == [["one:1", "one:again"], ["two:1"]]
                assert doc[0]["Layers"] == doc[1]["Layers"][:1]
                assert len([n for n in names if n.endswith(".tar")]) == 2
        other.ok("load", "-i", path)
    refs = references(other)
    assert set(refs) == {f"docker.io/library/{n}" for n in ("one:1", "one:again", "two:1")}
    assert refs["docker.io/library/one:1"] == refs["docker.io/library/one:again"]


def test_members_and_digests_of_a_layout(msb, tmp_path):
    """Every blob has the digest that it is called by, and the manifest says what is there."""
    load(msb, tmp_path, imagekit.layers(30), "a:1")
    msb.ok("save", "--format", "oci", "-o", tmp_path / "a.tar", "a:1")
    with tarfile.open(tmp_path / "a.tar") as t:
        blobs = {m.name: t.extractfile(m).read() for m in t if m.isfile() and m.name.startswith("blobs/")}
        index = json.load(t.extractfile("index.json"))
        assert json.load(t.extractfile("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
    for name, data in blobs.items():
        assert name == "blobs/sha256/" + hashlib.sha256(data).hexdigest()
    (entry,) = index["manifests"]
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == "docker.io/library/a:1"
    manifest = json.loads(blobs["blobs/sha256/" + entry["digest"][7:]])
    config = json.loads(blobs["blobs/sha256/" + manifest["config"]["digest"][7:]])
    assert [x["digest"] for x in manifest["layers"]] == config["rootfs"]["diff_ids"]
    for x in (*manifest["layers"], manifest["config"]):
        assert len(blobs["blobs/sha256/" + x["digest"][7:]]) == x["size"]


def test_by_digest(msb, other, tmp_path):
    """A digest is no name for what is in the archive."""
    out = Layout(tmp_path / "layout")
    image = out.tag(out.image([small()]), "x:1")
    msb.ok("load", "-q", "-i", out.path)
    ref = "x@" + image.descriptor()["digest"]
    for kind in ("docker", "oci"):
        msb.ok("save", "--format", kind, "-o", tmp_path / "a.tar", ref)
        p = other("load", "-i", tmp_path / "a.tar", check=1)
        assert "has no name for its image" in stderr(p)
        other.ok("load", "-i", tmp_path / "a.tar", "-t", "y:1")


# --- the output -----------------------------------------------------------------------------------


@pytest.fixture
def one_image(msb, tmp_path):
    out = Layout(tmp_path / "layout")
    out.tag(out.image([small(), Tar().add("big", os.urandom(3 << 20)).bytes()]), "x:1")
    msb.ok("load", "-q", "-i", out.path)
    return msb


def test_file_appears_when_it_is_complete(one_image, tmp_path):
    m, path = one_image, tmp_path / "dir" / "a.tar"
    path.parent.mkdir()
    path.write_text("old")
    p = m("save", "-o", path, "x:1", "nonesuch:1", check=1)
    assert "nonesuch:1" in stderr(p)
    assert path.read_text() == "old" and list(path.parent.iterdir()) == [path]
    # A layer that is damaged is found on the way.
    layers = sorted((m.home / "cache" / "layers").iterdir(), key=lambda x: x.stat().st_size)
    whole = layers[0].read_bytes()
    layers[0].chmod(0o600)
    layers[0].write_bytes(whole[:1024] + bytes(128) + whole[1152:])
    p = m("save", "-o", path, "x:1", check=1)
    assert stderr(p).startswith("error: ")
    assert path.read_text() == "old" and list(path.parent.iterdir()) == [path]
    layers[0].write_bytes(whole)
    m.ok("save", "-o", path, "x:1")
    assert list(path.parent.iterdir()) == [path] and tarfile.is_tarfile(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600  # images hold secrets, often enough


def test_link_stays_a_link(one_image, tmp_path):
    (tmp_path / "real.tar").write_text("old")
    (tmp_path / "link.tar").symlink_to("real.tar")
    one_image.ok("save", "-o", tmp_path / "link.tar", "x:1")
    assert (tmp_path / "link.tar").is_symlink() and tarfile.is_tarfile(tmp_path / "real.tar")


def test_bad_output(one_image, tmp_path):
    m = one_image
    for path, why in ((tmp_path, "Is a directory"), (tmp_path / "no" / "dir.tar", "No such file"),
                      (f"{tmp_path}/new/", "Is a directory")):
        p = m("save", "-o", path, "x:1", check=1)
        assert stderr(p).startswith(f"error: cannot write '{path}': {why}"), stderr(p)
    p = m("save", "-o", "/dev/full", "x:1", check=1)
    assert "No space left on device" in stderr(p)
    m.ok("save", "-o", "/dev/null", "x:1")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_reader_that_goes_away(one_image):
    p = one_image.popen("save", "x:1", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdout.read(1000)
    p.stdout.close()
    p.stderr.read()
    assert p.wait(timeout=60) != 0


def test_wrong_use(one_image, tmp_path):
    m = one_image
    assert m("save").returncode == 2
    assert m("save", "--format", "zip", "x:1").returncode == 2
    assert m("save", "BAD NAME").returncode == 1, "as with every verb that takes images"
    p = m("save", "nonesuch:1", check=1)
    assert p.stdout == b"" and stderr(p).startswith("error: ")
    master, slave = os.openpty()
    try:
        p = m("save", "x:1", stdout=slave)
    finally:
        os.close(master)
        os.close(slave)
    assert p.returncode == 2 and "terminal" in stderr(p)
