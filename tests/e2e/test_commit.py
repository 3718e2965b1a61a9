"""commit, tag and push: what a sandbox wrote becomes an image that everybody can pull."""
import base64
import contextlib
import gzip
import io
import json
import socket
import tarfile

import pytest

import fakereg
import filesproto
import imagekit
from conftest import Msb, make_home, tear_down
from protoheader import named
from test_layers import base_layer, rich_layer, walk_image, walked

(LAYER,) = named("FILE_OP_", "LAYER")

# One of each kind of change, to things of the image and to new ones.
CHANGES = r"""
cd /data
echo changed >> tail; rm a/second; chmod 4711 setuid; chown 42:43 owned/f
rm -rf opt; mkdir opt; echo new > opt/new                          # replaced: hides what was in it
rm -rf usr/lib; rm dangling; rm -rf becomes-file; echo f > becomes-file
rm becomes-dir; mkdir becomes-dir; mv many moved; echo more > moved/added; rm moved/file-0007
mv keep owned/kept                                                 # a directory into another one
mkdir -m 2750 fresh; chgrp 77 fresh; echo one > fresh/one; ln fresh/one fresh/two; ln -s ../a fresh/link
mknod fresh/zero c 1 5; mkfifo fresh/pipe; touch -d '2001-02-03 04:05:06' fresh/old
dd if=/dev/urandom of=fresh/random bs=1000 count=777 2>/dev/null; : > fresh/empty
name=$(printf 'n%.0s' $(seq 200)); mkdir -p fresh/$name/$name; echo deep > fresh/$name/$name/$name
walk fresh/one user.mark 'a=b'; walk tail trusted.kept yes; walk fresh user.dir d
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    m = Msb(make_home(tmp_path_factory.mktemp("commit")))
    for name in list(m.env):
        if name.lower().endswith("_proxy"):
            del m.env[name]
    m.env.update(DOCKER_CONFIG=str(m.home / "docker"), MSB_REGISTRIES_CONFIG="")
    yield m
    tear_down(m)


@pytest.fixture(scope="module")
def app(home, registry, tmp_path_factory):
    """A sandbox with changes, and the image that it was committed as: (msb, its reference)."""
    tmp = tmp_path_factory.mktemp("image")
    base = registry.push(walk_image(tmp, "gzip", (base_layer, rich_layer)), "base/walk:1")
    home.create("src", base)
    home.ok("exec", "src", "--", "sh", "-ec", CHANGES)
    ref = f"{registry.host}/team/app:2"
    home.digest = home.ok("commit", "-q", "-m", "a message", "-a", "me", "-c", 'CMD ["walk", "/data/fresh"]',
                          "-c", "ENV A=1 B='two words'", "-c", "WORKDIR /data", "src", ref).strip()
    return home, ref


def test_the_image_has_what_the_sandbox_had(app):
    msb, ref = app
    want = msb.ok("exec", "src", "--", "walk", "/data")
    got = msb.ok("run", "-q", ref, "--", "walk", "/data")
    assert walked(got) == walked(want)
    assert len(want.splitlines()) > 700
    assert json.loads(msb.ok("image", "inspect", ref, "--format", "json"))["digest"] == msb.digest
    assert msb.ok("run", "-q", ref).splitlines()[0].startswith(b"/data/fresh".hex())
    assert msb.ok("run", "-q", ref, "--", "sh", "-c", 'echo "$A,$B"; pwd') == "1,two words\n/data\n"


def test_only_changes_are_in_the_layer(app, tmp_path):
    msb, ref = app
    msb.ok("save", "-q", "--format", "oci", "-o", tmp_path / "i.tar", ref)
    with tarfile.open(tmp_path / "i.tar") as t:
        def doc(digest):
            return t.extractfile("blobs/sha256/" + digest[7:]).read()

        manifest = json.loads(doc(json.load(t.extractfile("index.json"))["manifests"][0]["digest"]))
        config = json.loads(doc(manifest["config"]["digest"]))
        layer = tarfile.open(fileobj=io.BytesIO(doc(manifest["layers"][-1]["digest"])))
    names = {n.removeprefix("./") for n in layer.getnames()}
    assert {"data/a/.wh.second", "data/opt/.wh..wh..opq", "data/.wh.dangling", "data/usr/.wh.lib", "data/.wh.many",
            "data/moved/.wh..wh..opq", "data/moved/file-0699", "data/owned/kept/x"} <= names
    assert not names & {"data/a/hard", "data/blocks", "data/moved/file-0007", "etc/hosts", "etc/resolv.conf", ".msb"}
    assert config["history"][-1]["comment"] == "a message" and config["author"] == "me"
    assert config["history"][-1]["created_by"] == "msb commit src"


def test_push_and_pull_again(app, registry, puller, tmp_path):
    """The registry has the base in another repository: only the new layer travels."""
    msb, ref = app
    p = msb("push", ref, check=0)
    digest, manifest = registry.manifest("team/app:2")
    assert p.stdout.decode().strip() == digest
    assert p.stderr.count(b"  exists  ") == 3 and p.stderr.count(b"  done  ") == 1
    _, base = registry.manifest("base/walk:1")
    assert manifest["layers"][:3] == [dict(d, mediaType=imagekit.OCI + "layer.v1.tar+gzip") for d in base["layers"]]
    assert "POST /v2/team/app/blobs/uploads/?mount=" in registry.log.read_text()
    assert msb("push", ref, check=0).stderr.count(b"  exists  ") == 4
    seen = json.loads(imagekit.skopeo("inspect", "--tls-verify=false", f"docker://{ref}"))
    assert seen["Digest"] == digest and len(seen["Layers"]) == 4
    imagekit.skopeo("copy", *registry.skopeo_options("src"), f"docker://{ref}", f"oci:{tmp_path}/copy:x")
    image = imagekit.Image(tmp_path / "copy", "x")
    root = image.unpack(tmp_path / "bundle")
    assert (root / "data/fresh/two").read_text() == "one\n" and not (root / "data/a/second").exists()
    assert sorted(p.name for p in (root / "data/opt").iterdir()) == ["new"]
    got = puller.ok("run", "-q", ref, "--", "walk", "/data")
    assert walked(got) == walked(msb.ok("exec", "src", "--", "walk", "/data"))


def test_push_elsewhere(app, tmp_path):
    """A registry that has nothing of it, with a certificate and a password."""
    msb, ref = app
    with imagekit.Registry(tmp_path, tls=True, auth=True) as there:
        name = f"{there.host}/copy:1"
        msb.ok("tag", "-q", ref, name)
        p = msb("push", "--ca-certs", there.ca, name, check=1)
        assert b"requires credentials" in p.stderr and b"msb registry login" in p.stderr
        msb.ok("registry", "login", "--ca-certs", there.ca, there.host, "-u", there.user, "--password-stdin",
               input=there.password.encode())
        p = msb("push", "--ca-certs", there.ca, name, check=0)
        assert p.stderr.count(b"  done  ") == 4
        _, manifest = there.manifest("copy:1")
        for d in manifest["layers"]:
            blob = (there.data / f"docker/registry/v2/blobs/sha256/{d['digest'][7:9]}/{d['digest'][7:]}/data").read_bytes()
            assert d["mediaType"].endswith("tar+gzip") and d["size"] == len(blob)
            tarfile.open(fileobj=io.BytesIO(gzip.decompress(blob))).getnames()
        msb.ok("image", "rm", "-q", name)
        msb.ok("pull", "-q", "--ca-certs", there.ca, name)
        got = msb.ok("run", "-q", name, "--", "walk", "/data")
        assert walked(got) == walked(msb.ok("exec", "src", "--", "walk", "/data"))
        msb.ok("registry", "logout", there.host)


def test_a_registry_that_lies_about_uploads(app):
    """It decides where a blob goes, but not to whom our password goes, nor to which machines."""
    msb, ref = app
    with fakereg.FakeRegistry() as there, fakereg.FakeRegistry() as thief:
        name, place, tries = f"{there.host}/x:1", [None], []
        msb.ok("tag", "-q", ref, name)

        def script(r):
            if not r.headers.get("Authorization"):
                return r.fail(401, WWW_Authenticate='Basic realm="x"')
            if r.path.endswith("/uploads/"):
                return r.send(202, Location=place[0])
            if r.command == "PUT":
                tries.append(len(r.body))
                return r.hang_up() if len(tries) == 1 else r.fail(400, "no\x1b[2J")
            return r.fail(404)

        there.script = script
        config = msb.home / "docker"
        config.mkdir(exist_ok=True)
        (config / "config.json").write_text(json.dumps(
            {"auths": {there.host: {"auth": base64.b64encode(b"me:pw").decode()}}}))
        for to, why in (("http://169.254.169.254/x", b"refused to follow the registry to 169.254.169.254"),
                        ("ftp://x/", b""), ("http://[::1", b"gives no location for the upload"), (f"{thief.url}/v2/take", b"HTTP status 404"),
                        ("/v2/here?a=b", b"HTTP status 400")):
            place[0] = to
            p = msb("push", name, check=1)
            assert p.stderr.split(b"error: ")[1].startswith(b"cannot push") and why in p.stderr, (to, p.stderr)
            assert b"\x1b" not in p.stderr
        assert [h.get("Authorization") for m, _, h in thief.requests() if m == "PUT"] == [None]
        assert len(tries) == 2 and tries[0] == tries[1] > 0  # a broken upload begins again
        assert [p for m, p, _ in there.requests("/here") if m == "PUT"][0].startswith("/v2/here?a=b&digest=sha256:")
        (config / "config.json").unlink()


def test_stopped_and_built_in(home):
    """The built-in image has no layers of its own; a stopped sandbox is started for it; and capabilities that
    commands lack are not missed."""
    home.create("plain", "--root-disk", "1G", "--cap-drop", "ALL")
    home.ok("exec", "plain", "--", "sh", "-c",
            "echo here > /root/note; rm -r /etc/profile /usr/local; mkdir /usr/local; touch /usr/local/new")
    home.ok("stop", "-q", "plain")
    home.ok("image", "commit", "-q", "plain", "own/plain")
    assert home.status("plain") == "Stopped"
    script = "cat /root/note; ls /etc/profile 2>/dev/null; ls /usr/local; cat /etc/hostname"
    assert home.ok("run", "-q", "-H", "other", "own/plain", "--", "sh", "-c", script) == "here\nnew\nother\n"
    # Nothing was written since: the second image differs in its history alone.
    home.ok("commit", "-q", "plain", "own/again:1")
    one, two = (json.loads(home.ok("image", "inspect", n, "--format", "json"))["layers"]
                for n in ("own/plain", "own/again:1"))
    assert one == two and len(one) == 2
    home.ok("rm", "-q", "plain")


def test_sockets_in_a_directory_are_left_out(home, tmp_path):
    root = tmp_path / "root"
    with tarfile.open(fileobj=io.BytesIO(imagekit.shell_tar())) as t:
        t.extractall(root)
    (root / "run").mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as s, contextlib.chdir(root / "run"):
        s.bind("sock")
    (root / "run/again").hardlink_to(root / "run/sock")
    (root / "run/pid").write_text("1")
    home.create("serving", root)
    assert home.ok("exec", "serving", "--", "ls", "/run").split() == ["again", "pid", "sock"]
    home.ok("commit", "-q", "serving", "own/serving")
    assert home.ok("run", "-q", "own/serving", "--", "ls", "/run").split() == ["pid"]
    home.ok("rm", "-q", "-f", "serving")


def test_what_cannot_be_committed_or_tagged(app):
    msb, ref = app
    for args, why in ((["commit", "none", "x"], b"sandbox not found: none"),
                      (["commit", "src", "UPPER"], b"UPPER"),
                      (["commit", "src", f"x@{msb.digest}"], b"a digest cannot be assigned"),
                      (["commit", "src", "msb/base"], b"built-in"),
                      (["commit", "-c", "FROM x", "src", "x"], b"'FROM x': an instruction is CMD, "),
                      (["commit", "-c", "CMD [1]", "src", "x"], b"'CMD [1]': it must be a list of strings"),
                      (["commit", "-c", "ENV", "src", "x"], b"'ENV': its value is missing"),
                      (["tag", "none:1", "x"], b"image not found: none:1"),
                      (["tag", ref, f"x@{msb.digest}"], b"a digest cannot be assigned"),
                      (["push", "none:1"], b"image not found: none:1"),
                      (["push", f"x@{msb.digest}"], b"msb tag")):
        p = msb(*args)
        assert p.returncode in (1, 2) and why in p.stderr, (args, p.stderr)
    msb.ok("exec", "src", "--", "touch", "/.wh.x")
    p = msb("commit", "src", "x", check=1)
    assert p.stderr == b"error: cannot commit 'src': the layer: src:/.wh.x: in an image a name with .wh. deletes a file\n"
    msb.ok("exec", "src", "--", "rm", "/.wh.x")
    msb.ok("tag", "-q", msb.digest, "kept:1")
    assert json.loads(msb.ok("image", "inspect", "kept:1", "--format", "json"))["digest"] == msb.digest


def test_a_reader_that_dies_leaves_nobody_waiting(app):
    """The layer is frozen while it is read, and thawed when its reader is gone."""
    msb, _ = app
    sock = msb.home / "sandboxes/src/run/agent.sock"
    msb.ok("exec", "src", "--", "dd", "if=/dev/zero", "of=/large", "bs=1M", "count=24")
    with filesproto.Files(sock, user="0") as other, pytest.raises(filesproto.FileError, match="other operations"):
        other.op(LAYER, "/")
    with filesproto.Files(sock, only=LAYER) as other, pytest.raises(filesproto.FileError, match="other operations"):
        other.op(filesproto.REMOVE, "/root")
    with filesproto.Files(sock, only=LAYER) as f, filesproto.Files(sock, only=LAYER) as second:
        f.send_op(LAYER, "/")
        assert f.next()[0] == filesproto.DATA  # and the rest does not fit between us
        with pytest.raises(filesproto.FileError, match="already being read"):
            second.op(LAYER, "/")
    msb.ok("exec", "src", "--", "sh", "-c", "rm /large; echo written > /root/after; sync")
    assert msb.ok("exec", "src", "--", "cat", "/root/after") == "written\n"
