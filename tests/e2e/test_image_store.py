"""Stored images: what is listed, what sandboxes get of them, and that nothing is lost or left.

Every test has an image store of its own: these tests remove things.
"""
import contextlib
import json
import os
import pty
import random
import re
import signal
import subprocess
import threading
import time

import pytest

import imagekit
from conftest import Msb, make_home, tear_down, wait_for
from guest import finish, wait_file
from imagekit import Layout, Tar, shell_tar


@pytest.fixture
def own(tmp_path):
    """A home whose cache no other test sees."""
    m = Msb(make_home(tmp_path))
    yield m
    tear_down(m)


@pytest.fixture
def images(own, tmp_path):
    """Loads images that a test makes up: images(name, tars, **config) -> digest."""
    count = [0]

    def load(name, tars, **config):
        count[0] += 1
        layout = Layout(tmp_path / f"layout{count[0]}")
        descriptor = layout.image(tars, config)
        layout.tag(descriptor, "x")
        own.ok("load", "-q", "-i", layout.path, "-t", name)
        return descriptor["digest"]

    return load


def layer(**files):
    t = Tar()
    for name, content in files.items():
        t.add(name.replace("__", "/"), content)
    return t.bytes()


def cached(m, *subs):
    """Files in the cache, by directory."""
    return sorted(str(p.relative_to(m.home / "cache")) for sub in subs
                  for p in (m.home / "cache" / sub).glob("*") if p.is_file())  # fmt: skip


def usage(m):
    """Bytes of all files in the cache that belong to images."""
    return sum(p.stat().st_blocks * 512 for sub in ("layers", "disks", "docs", "images", "refs")
               for p in (m.home / "cache" / sub).iterdir())  # fmt: skip


def refused(p, *expected, code=1):
    lines = p.stderr.decode().splitlines()
    assert p.returncode == code and p.stdout == b"", p
    assert lines[0].startswith("error: ") and all(line.startswith("  → ") for line in lines[1:]), lines
    for text in expected:
        assert text in p.stderr.decode(), p.stderr.decode()


def listed(m):
    return {i["reference"]: i for i in json.loads(m.ok("image", "ls", "--format", "json"))}


# --- lists ---------------------------------------------------------------------------------------


def test_list(own, images):
    p = own("image", "ls", check=0)
    assert p.stdout == b"" and p.stderr == b"No images found.\n"
    assert own.ok("image", "ls", "--format", "json") == "[]\n"
    digest = images("zoo/app:1", [shell_tar(), layer(x="1")])
    images("ant", [shell_tar()])
    lines = own.ok("image", "ls").splitlines()
    assert lines[0].split() == ["REFERENCE", "DIGEST", "SIZE", "CREATED"]
    assert [line.split()[0] for line in lines[1:]] == ["ant:latest", "zoo/app:1"]
    assert lines[2].split()[1] == digest[:19]
    assert re.fullmatch(r"\S+ +sha256:[0-9a-f]{12} +[\d.]+ [KMG]iB +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", lines[1])
    assert own.ok("image", "list", "-q") == "ant:latest\nzoo/app:1\n"
    assert own.ok("images", "-q") == "ant:latest\nzoo/app:1\n", "the hidden spelling"
    entries = json.loads(own.ok("image", "ls", "--format", "json"))
    assert list(entries[0]) == ["architecture", "created_at", "digest", "layer_count", "os", "reference",
                                "size_bytes"]  # fmt: skip
    app = listed(own)["zoo/app:1"]
    assert app["digest"] == digest and app["layer_count"] == 2 and app["os"] == "linux"
    assert app["architecture"] == imagekit.MACHINE
    assert app["size_bytes"] > os.path.getsize(imagekit.BUSYBOX)
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", app["created_at"])


def test_inspect(own, images):
    second = layer(x="1")
    digest = images("app:1", [shell_tar(), second], Env=["A=1", "B=2"], Cmd=["sh"], Entrypoint=["env", "--"],
                    WorkingDir="/w", User="www", Labels={"k": "v"}, StopSignal="SIGQUIT",
                    ExposedPorts={"80/tcp": {}}, Volumes={"/data": {}})  # fmt: skip
    j = json.loads(own.ok("image", "inspect", "app:1", "--format", "json"))
    config = j.pop("config")
    layers = j.pop("layers")
    assert j == listed(own)["app:1"]
    assert config.pop("digest").startswith("sha256:")
    assert config == {"env": ["A=1", "B=2"], "cmd": ["sh"], "entrypoint": ["env", "--"], "working_dir": "/w",
                      "user": "www", "labels": {"k": "v"}, "stop_signal": "SIGQUIT",
                      "exposed_ports": ["80/tcp"], "volumes": ["/data"]}  # fmt: skip
    assert [x["position"] for x in layers] == [0, 1]
    assert layers[1]["diff_id"] == layers[1]["blob_digest"] == imagekit.sha256(second)
    assert layers[1]["compressed_size_bytes"] == len(second)
    assert layers[1]["erofs_size_bytes"] % 4096 == 0 and layers[1]["media_type"].endswith("layer.v1.tar")
    text = own.ok("image", "inspect", "app:1")
    for line in (rf"Digest: +{digest}", "User: +www", "Stop signal: +SIGQUIT", "Ports: +80/tcp", "  A=1",
                 "  k=v", rf"  {imagekit.sha256(second)}"):  # fmt: skip
        assert re.search(rf"^{line}", text, re.M), line
    assert json.loads(own.ok("image", "inspect", digest, "--format", "json"))["digest"] == digest
    refused(own("image", "inspect", "none:1"), "image not found: none:1", "msb image list")
    refused(own("image", "inspect", "Bad Name"), "invalid image reference")


def test_hostile_words_do_not_reach_the_terminal(own, images):
    images("evil:1", [shell_tar()], Labels={"a": "\x1b[2J\x07"}, Env=["X=\x1b[31m"])
    assert "\x1b" not in own.ok("image", "inspect", "evil:1")


# --- what a sandbox gets -------------------------------------------------------------------------


def test_layers_are_merged(own, images):
    below = Tar().dir("d").add("d/old", "old").add("d/kept", "kept").add("gone", "x").dir("hidden") \
        .add("hidden/x", "x").add("f", "below")
    above = Tar().whiteout("gone").whiteout("d/old").dir("hidden").opaque("hidden").add("hidden/y", "y") \
        .add("f", "above").add("d/new", "new")
    images("two:1", [shell_tar(), below.bytes(), above.bytes()])
    own.create("s", "two:1")
    assert own.sh("s", "cat /f; ls /d /hidden; ls /gone 2>&1").stdout.decode().split("\n")[:6] == \
        ["above/d:", "kept", "new", "", "/hidden:", "y"]
    assert own("exec", "-q", "s", "--", "test", "-e", "/gone").returncode == 1
    own.ok("exec", "-q", "s", "--", "sh", "-c", "rm /d/kept && echo mine > /f")
    own.ok("restart", "-q", "s")
    assert own.sh("s", "cat /f; ls /d").stdout == b"mine\nnew\n", "what was changed is kept"
    own.create("t", "two:1")
    assert own.sh("t", "cat /f; ls /d").stdout == b"abovekept\nnew\n", "and is nobody else's"


def test_many_layers(own, tmp_path):
    image = imagekit.layers(30)
    own.ok("load", "-q", "-i", image.archive("docker", tmp_path / "l.tar", "many:1"))
    own.create("s", "many:1")
    assert own.sh("s", "cat /current; ls /home; ls /layers").stdout.split()[:2] == [b"29", b"fresh"]
    assert own.sh("s", "cat /layers/29").stdout == b"layer 29\n" * 29


def test_as_many_layers_as_there_can_be(own, images):
    tars = [shell_tar()] + [layer(**{f"f{i}": str(i)}) for i in range(1, 128)]
    images("tall:1", tars)
    own.create("s", "tall:1")
    assert own.sh("s", "cat /f1 /f64 /f127; ls / | grep -c ^f").stdout == b"164127127\n"


def test_configuration(own, images):
    images("app:1", [shell_tar()], Env=["GREETING=hello world", "PATH=/bin", "NOT_A_PAIR"],
           Entrypoint=["/bin/sh", "-c"], Cmd=["echo $GREETING; pwd; id -un; id -gn"],
           WorkingDir="/srv/made/up", User="www:nogroup",
           Labels={"kind": "test", "sandbox.name": "no", "microsandbox.x": "no"},
           ExposedPorts={"8080/tcp": {}, "53/udp": {}, "bogus": {}}, Volumes={"/data/deep": {}, "/proc/../etc": {}})
    assert own.ok("run", "-q", "app:1") == "hello world\n/srv/made/up\nwww\nnogroup\n"
    assert own.ok("run", "-q", "-e", "GREETING=bye", "app:1") == "bye\n/srv/made/up\nwww\nnogroup\n"
    assert own.ok("run", "-q", "app:1", "--", "echo $0 replaced") == "/bin/sh replaced\n"
    assert own.ok("run", "-q", "-u", "33", "-w", "/", "--entrypoint", "id", "app:1", "--", "-u") == "33\n"
    own.create("s", "--label", "kind=mine", "app:1")
    j = json.loads(own.ok("inspect", "s", "--format", "json"))["config"]
    assert j["image"] == {"Oci": {"reference": "app:1"}} and j["pull_policy"] == "IfMissing"
    assert j["manifest_digest"] == listed(own)["app:1"]["digest"]
    assert j["labels"] == {"kind": "mine"}, "the user's wins, reserved ones are dropped"
    assert sorted(j["exposed_ports"]) == ["53/udp", "8080/tcp"] and j["image_volumes"] == ["/data/deep"]
    assert {e["key"] for e in j["env"]} == {"GREETING", "PATH"}
    assert j["runtime"]["user"] == "www:nogroup" and j["runtime"]["workdir"] == "/srv/made/up"
    assert own.ok("exec", "-q", "-u", "0", "s", "--", "sh", "-c", "touch /data/deep/x && ls /data/deep") == "x\n"
    assert own.ok("exec", "-q", "s") == "hello world\n/srv/made/up\nwww\nnogroup\n", "the image's command"


@pytest.mark.parametrize("user,expected", [
    ("", "0 0"), ("0", "0 0"), ("www", "33 33"), ("33", "33 33"), ("1234", "1234 0"), ("www:0", "33 0"),
    ("1234:5678", "1234 5678"), ("nobody:www", "65534 33"),
])  # fmt: skip
def test_users(own, images, user, expected):
    images("u:1", [shell_tar()], User=user)
    assert own.ok("run", "-q", "u:1", "--", "sh", "-c", "echo $(id -u) $(id -g)") == expected + "\n"


def test_a_user_that_is_not_there(own, images):
    images("u:1", [shell_tar()], User="ghost")
    p = own("run", "-q", "u:1", "--", "true")
    assert p.returncode == 1 and b"ghost" in p.stderr


@pytest.mark.parametrize("name", ["SIGUSR1", "10", "usr1", None])
def test_stop_signal(own, images, name):
    """The command gets the image's signal, what it started is left to it, and strangers get SIGTERM."""
    config = {"StopSignal": name} if name else {}
    images("stop:1", [shell_tar()], **config)
    script = """
        for s in USR1 TERM; do trap "echo main $s >> /log" $s; done
        sh -c 'trap "echo child TERM >> /log" TERM; echo up >> /ready; while :; do sleep 0.1; done' &
        setsid sh -c 'trap "echo stranger TERM >> /log; exit" TERM; echo up >> /ready; while :; do sleep 0.1; done' &
        trap 'echo main USR1 >> /log; kill -9 $(jobs -p); sync; exit' USR1
        trap 'echo main TERM >> /log; sync; exit' TERM
        echo up >> /ready
        while :; do sleep 0.1; done
    """
    own.ok("run", "-q", "-d", "-n", "s", "stop:1", "--", "sh", "-c", script)
    wait_for(lambda: wait_file(own, "s", "/ready").split() == ["up"] * 3, timeout=30)
    own.ok("stop", "-q", "s")
    log = own.ok("exec", "-q", "s", "--", "cat", "/log").splitlines()
    if name:
        assert sorted(log) == ["main USR1", "stranger TERM"]
    else:
        assert {"main TERM", "stranger TERM"} <= set(log) and "main USR1" not in log


def test_bash_comes_from_the_tools(own, tmp_path):
    """alpine has no bash; `bash -l -c` still works."""
    own.ok("load", "-q", "-i", imagekit.alpine().archive("docker", tmp_path / "a.tar", "alpine:3"))
    own.create("s", "alpine:3")
    assert own.ok("exec", "-q", "s", "--", "bash", "-l", "-c", "echo ok; . /etc/os-release; echo $ID") == "ok\nalpine\n"
    assert own("exec", "-q", "s", "--", "test", "-e", "/bin/bash").returncode == 1


# --- names and digests ---------------------------------------------------------------------------


def test_names(own, images):
    digest = images("app:1", [shell_tar()])
    for name in ("app:1", "library/app:1", "docker.io/library/app:1", f"app@{digest}", f"app:1@{digest}"):
        assert own.ok("run", "-q", "--pull", "never", name, "--", "echo", "x") == "x\n", name
    refused(own("run", "--pull", "never", "app:2", "--", "true"), "image not found: app:2", "msb pull app:2")
    refused(own("run", "--pull", "never", "APP", "--", "true"), "lower-case")
    refused(own("create", "--pull", "maybe", "app:1"), "possible values: always, if-missing, never", code=2)
    refused(own("create", "--platform", "a/b/c/d", "app:1"), "--platform", code=2)


def test_a_sandbox_keeps_its_image(own, images):
    """A tag is resolved once; whatever it means later, the sandbox boots from what it had."""
    old = images("app:1", [shell_tar(), layer(version="old")])
    own.create("s", "app:1")
    new = images("app:1", [shell_tar(), layer(version="new")])
    assert old != new and listed(own)["app:1"]["digest"] == new
    own.create("t", "app:1")
    own.ok("image", "prune", "-y", "-q")
    own.ok("restart", "-q", "s")
    assert own.sh("s", "cat /version").stdout == b"old"
    assert own.sh("t", "cat /version").stdout == b"new"
    own.ok("rm", "-f", "-q", "s")
    own.ok("image", "prune", "-y", "-q")
    assert len(cached(own, "layers")) == 2, "base and new"


def test_a_foreign_platform_is_told(own, tmp_path):
    layout = Layout(tmp_path / "l")
    foreign = "arm64" if imagekit.MACHINE == "amd64" else "amd64"
    layout.tag(layout.image([shell_tar()], {}, arch=foreign), "x")
    own.ok("load", "-q", "-i", layout.path, "-t", "foreign:1", "--platform", f"linux/{foreign}")
    refused(own("run", "--pull", "never", "foreign:1", "--", "true"), f"for linux/{foreign}",
            f"not for linux/{imagekit.MACHINE}")  # fmt: skip
    p = own("run", "--pull", "never", "--platform", f"linux/{foreign}", "foreign:1", "--", "true")
    assert f"warn: programs for linux/{foreign} do not run here".encode() in p.stderr


# --- space ---------------------------------------------------------------------------------------


def test_a_second_image_adds_its_own_layers_only(own, images):
    big = Tar().add("big", random.Random(1).randbytes(8 << 20)).bytes()
    images("one:1", [shell_tar(), big, layer(name="one")])
    before, files = usage(own), set(cached(own, "layers"))
    images("two:1", [shell_tar(), big, layer(name="two")])
    assert len(set(cached(own, "layers")) - files) == 1
    assert usage(own) - before < 256 << 10, "one small layer, merged metadata, documents"
    one, two = listed(own)["one:1"], listed(own)["two:1"]
    assert one["size_bytes"] > 8 << 20 and two["size_bytes"] > 8 << 20
    own.ok("image", "rm", "-q", "one:1")
    assert own.ok("run", "-q", "two:1", "--", "sh", "-c", "cat /name; wc -c < /big") == f"two{8 << 20}\n"


def test_the_same_image_twice_changes_nothing(own, images):
    images("one:1", [shell_tar(), layer(name="one")])
    before = {p: (own.home / "cache" / p).stat().st_ino for p in cached(own, "layers", "disks", "docs")}
    images("also:1", [shell_tar(), layer(name="one")])
    assert {p: (own.home / "cache" / p).stat().st_ino for p in cached(own, "layers", "disks", "docs")} == before


def test_prune_frees_and_reports(own, images):
    refused(own("image", "prune"), "error: non-interactive terminal; use --yes to prune cached images")
    images("used:1", [shell_tar(), layer(name="used")])
    images("unused:1", [shell_tar(), Tar().add("big", random.Random(1).randbytes(4 << 20)).bytes()])
    own.create("s", "used:1")
    own.ok("run", "-q", "--", "true")  # the built-in image is in the cache now
    before = usage(own)
    p = own("image", "prune", "-y", check=0)
    assert re.fullmatch(r"   ✓ Pruned +1 image, (\d+(\.\d)?) MiB freed\n", p.stderr.decode()), p.stderr
    assert before - usage(own) > 4 << 20 and list(listed(own)) == ["used:1"]
    p = own("image", "prune", "-y", check=0)
    assert p.stderr.decode().strip().endswith("0 images, 0 B freed")
    assert own("image", "prune", "-y", "-q", check=0).stderr == b""
    own.ok("restart", "-q", "s")
    assert own.sh("s", "cat /name").stdout == b"used"
    own.ok("rm", "-f", "-q", "s")
    own.ok("image", "prune", "-y", "-q")
    assert cached(own, "layers", "disks", "docs", "images", "refs", "index", "partial", "tmp") == []


def test_nothing_is_pruned_while_a_sandbox_cannot_be_read(own, images):
    """Nobody knows which image it needs; what it has written would be lost with it."""
    images("base:1", [shell_tar(), layer(name="base")])
    own.create("s", "base:1")
    own.ok("stop", "-t", "0", "-q", "s")
    spec = own.home / "sandboxes" / "s" / "spec.json"
    text = spec.read_bytes()
    spec.write_bytes(b"garbage")
    before = cached(own, "layers", "disks", "docs", "images", "refs")
    p = own("image", "prune", "-y")
    assert p.returncode == 1 and "error: cannot tell what is in use" in p.stderr.decode()
    assert "msb rm --force NAME" in p.stderr.decode()
    assert cached(own, "layers", "disks", "docs", "images", "refs") == before
    own("image", "rm", "-q", "base:1", check=0)  # the name goes, the files stay
    assert cached(own, "layers", "disks", "docs", "images") == [p for p in before if not p.startswith("refs")]
    spec.write_bytes(text)
    own.ok("start", "-q", "s")
    assert own.sh("s", "cat /name").stdout == b"base"


def test_json_on_a_terminal_does_not_act(own, images):
    """C1 controls and marks that reorder text come out as escapes; pipes get the text as it is."""
    evil = "\u009b2J \u202egnp \u00e9"
    images("a:1", [shell_tar()], Labels={"l": evil}, Env=["E=" + evil])
    argv = ("image", "inspect", "a:1", "--format", "json")
    piped = own.ok(*argv)
    master, slave = pty.openpty()
    p = own.popen(*argv, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while chunk := os.read(master, 65536):
            shown += chunk
    os.close(master)
    assert p.wait(timeout=30) == 0
    assert shown.isascii() and b"\\u009B" in shown.replace(b"\\u009b", b"\\u009B")
    assert json.loads(shown) == json.loads(piped) and json.loads(piped)["config"]["labels"]["l"] == evil


def test_prune_asks_on_a_terminal(own, images):
    images("unused:1", [shell_tar()])
    for answer, left in ((b"n\n", 1), (b"\n", 1), (b"y\n", 0)):
        master, slave = pty.openpty()
        p = own.popen("image", "prune", stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        shown = b""
        while b"[y/N]" not in shown:
            shown += os.read(master, 1024)
        os.write(master, answer)
        assert p.wait(timeout=30) == 0
        os.close(master)
        assert len(listed(own)) == left


# --- removing ------------------------------------------------------------------------------------


def test_remove(own, images):
    images("a:1", [shell_tar(), layer(name="a")])
    images("b:1", [shell_tar(), layer(name="b")])
    p = own("image", "rm", "a:1", "none:1", "Bad", "b:1")
    assert p.returncode == 1 and p.stdout == b""
    lines = p.stderr.decode().splitlines()
    assert [line for line in lines if line.startswith("   ✓ Removed")] == ["   ✓ Removed      a:1", "   ✓ Removed      b:1"]
    assert len([line for line in lines if line.startswith("error: ")]) == 2
    assert cached(own, "layers", "disks", "docs", "images", "refs") == []
    refused(own("rmi", "none:1"), "image not found: none:1")
    refused(own("image", "rm"), "<REFERENCES>...", code=2)


def test_remove_respects_sandboxes(own, images):
    digest = images("a:1", [shell_tar(), layer(name="a")])
    own.create("s1", "a:1")
    own.ok("stop", "-q", "s1")
    own.create("s2", f"a@{digest}")
    refused(own("image", "rm", "a:1"), "image 'a:1' is used by sandboxes s", "s1", "s2", "--force")
    images("other:1", [shell_tar(), layer(name="a")])
    own.ok("load", "-q", "-i", own.home.parent / "layout1", "-t", "b:1")
    own.ok("image", "rm", "-q", "b:1")  # not the last name
    own.ok("rmi", "-f", "-q", "a:1")
    assert "a:1" not in listed(own)
    own.ok("start", "-q", "s1")
    assert own.sh("s1", "cat /name").stdout == b"a", "it has what it was made from"
    own.ok("rm", "-f", "-q", "s1", "s2")
    own.ok("image", "prune", "-y", "-q")
    assert cached(own, "layers") == []


def test_an_image_that_is_gone(own, images):
    digest = images("a:1", [shell_tar()])
    own.create("s", "a:1")
    own.ok("stop", "-q", "s")
    for p in (own.home / "cache" / "layers").iterdir():
        p.unlink()
    refused(own("start", "s"), "image 'a:1' of sandbox 's' is gone", f"msb pull a@{digest}",
            "msb create --replace -n s a:1")  # fmt: skip
    assert listed(own) == {}, "what is not whole is not there"
    refused(own("run", "--pull", "never", "a:1", "--", "true"), "image not found: a:1")
    own.ok("load", "-q", "-i", own.home.parent / "layout1", "-t", "a:1")
    own.ok("start", "-q", "s")
    assert own.sh("s", "echo back").stdout == b"back\n"


def test_a_spec_without_a_digest(own):
    own.create("s")
    own.ok("stop", "-q", "s")
    spec = own.home / "sandboxes" / "s" / "spec.json"
    j = json.loads(spec.read_text())
    del j["manifest_digest"]
    spec.write_text(json.dumps(j))
    refused(own("start", "s"), "does not name its image", "msb create --replace -n s msb/base")


# --- several at once, and sudden death -----------------------------------------------------------


def test_prune_while_sandboxes_are_made(own, images):
    """A sandbox that is being made keeps what it found, whatever is pruned meanwhile."""
    images("a:1", [shell_tar(), layer(name="a")])
    archive = own.home.parent / "layout1"
    stop = threading.Event()
    failures = []

    def prune():
        while not stop.is_set():
            p = own("image", "prune", "-y", "-q")
            if p.returncode:
                failures.append(p)

    t = threading.Thread(target=prune)
    t.start()
    try:
        for i in range(12):
            own.ok("load", "-q", "-i", archive, "-t", "a:1")
            p = own("create", "-q", "--pull", "never", "-n", f"s{i}", "a:1")
            if p.returncode:  # pruned before it was looked up: then it was not there, no more
                assert b"image not found: a:1" in p.stderr, p.stderr
                continue
            own.ok("restart", "-q", "-t", "0", f"s{i}")
            assert own.sh(f"s{i}", "cat /name").stdout == b"a"
            own.ok("rm", "-f", "-q", f"s{i}")
    finally:
        stop.set()
        t.join()
    assert failures == []


def test_prune_beside_running_commands(own, images):
    """Waiting for a command does not keep others from removing images."""
    images("a:1", [shell_tar(), layer(name="a")])
    images("b:1", [shell_tar(), layer(name="b")])
    jobs = [own.popen("run", "-q", *name, "a:1", "--", "sh", "-c", "echo up; read x; cat /name", stdin=subprocess.PIPE,
                      stdout=subprocess.PIPE) for name in ([], ["-n", "named"])]  # fmt: skip
    for p in jobs:
        assert p.stdout.readline() == b"up\n"
    own.ok("image", "prune", "-y", "-q", timeout=8)
    assert list(listed(own)) == ["a:1"]
    for p in jobs:
        assert p.communicate(b"go on\n", timeout=30)[0] == b"a"


@pytest.mark.parametrize("how", ["load", "prune"])
def test_killed_at_any_moment(own, tmp_path, how):
    """SIGKILL leaves garbage at most: the next load makes the image whole, a prune takes all away."""
    tars = [shell_tar()] + [Tar().add(f"f{i}", random.Random(i).randbytes(200_000)).bytes() for i in range(12)]
    layout = Layout(tmp_path / "l")
    layout.tag(layout.image(tars, {}), "x")
    load = ("load", "-q", "-i", layout.path, "-t", "a:1")
    t0 = time.monotonic()
    own.ok(*load)
    took = time.monotonic() - t0

    def kept():  # without what a killed command had not put in place yet, which is prune's
        return [f for f in cached(own, "layers", "disks", "docs", "images", "refs") if ".tmp-" not in f]

    expected = kept()
    rng = random.Random(7)
    for _ in range(12):
        if how == "load":
            own.ok("image", "prune", "-y", "-q")
        p = own.popen(*(load if how == "load" else ("image", "prune", "-y", "-q")),
                      stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        time.sleep(rng.uniform(0, took if how == "load" else took / 10))
        p.send_signal(signal.SIGKILL)
        p.wait()
        for image in listed(own).values():
            assert image["layer_count"] == 13
            own.ok("run", "-q", "--pull", "never", "a:1", "--", "test", "-s", "/f11")
        own.ok(*load)
        assert kept() == expected
    assert own.ok("run", "-q", "a:1", "--", "sh", "-c", "cat /f* | wc -c") == f"{12 * 200_000}\n"
    own.ok("image", "prune", "-y", "-q")
    assert cached(own, "layers", "disks", "docs", "images", "refs", "tmp", "partial") == []


def test_loads_at_once_share_the_work(own, tmp_path):
    layout = Layout(tmp_path / "l")
    layout.tag(layout.image([shell_tar(), Tar().add("f", random.Random(1).randbytes(3 << 20)).bytes()], {}), "x")
    jobs = [own.popen("load", "-q", "-i", layout.path, "-t", f"a:{i}", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for i in range(6)]
    for p in jobs:
        assert finish(p) == (0, b"", b"")
    assert len(listed(own)) == 6 and len(cached(own, "layers")) == 2 and len(cached(own, "disks")) == 1
    assert cached(own, "tmp") == []


def test_damage_is_repaired(own, images):
    images("a:1", [shell_tar(), layer(name="a")])
    load = ("load", "-q", "-i", own.home.parent / "layout1", "-t", "a:1")
    for sub in ("layers", "disks", "docs", "images", "refs"):
        for p in (own.home / "cache" / sub).iterdir():
            p.chmod(0o600)
            p.write_bytes(b"damaged")
        refused(own("run", "--pull", "never", "a:1", "--", "true"), "image not found: a:1")
        own.ok(*load)
        assert own.ok("run", "-q", "--pull", "never", "a:1", "--", "cat", "/name") == "a", sub


# --- pulled --------------------------------------------------------------------------------------


def test_run_pulls_what_is_missing(own, registry):
    name = registry.push(imagekit.busybox(), "store/busybox:1")
    refused(own("run", "--pull", "never", name, "--", "true"), "image not found")
    assert own.ok("run", "-q", name, "--", "sh", "-c", "echo $GREETING; id -un; pwd") == "hello world\nwww\n/home/www\n"
    assert list(listed(own)) == [name]
    registry.push(imagekit.alpine(), "store/busybox:1")
    assert own("run", "-q", name, "--", "test", "-e", "/etc/alpine-release").returncode == 1, "if missing"
    assert own("run", "-q", "--pull", "always", name, "--", "test", "-e", "/etc/alpine-release").returncode == 0
    own.create("s", "--pull", "always", name)
    assert json.loads(own.ok("inspect", "s", "--format", "json"))["config"]["pull_policy"] == "Always"


def test_a_pull_that_is_killed_goes_on(own, registry):
    image = imagekit.layers(30)
    name = registry.push(image, "store/layers:1")
    rng = random.Random(3)
    for _ in range(6):
        p = own.popen("pull", "-q", name, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.01, 0.3))
        p.send_signal(signal.SIGKILL)
        p.wait()
        for found in listed(own).values():
            assert found["layer_count"] == 30
    own.ok("pull", "-q", name)
    assert own.ok("run", "-q", "--pull", "never", name, "--", "cat", "/current") == "29\n"
    own.ok("image", "rm", "-q", name)
    own.ok("image", "prune", "-y", "-q")
    assert cached(own, "layers", "disks", "docs", "images", "refs", "tmp", "partial") == []
