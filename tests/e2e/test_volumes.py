"""Named volumes: made, mounted, kept, removed."""
import json
import os
import re
import subprocess

import pytest

from guest import sh


def test_a_volume_outlives_sandboxes(msb):
    assert msb.ok("volume", "create", "data") == "data\n"
    assert msb.ok("volume", "create", "-q", "--name", "other", "--size", "64M") == ""
    msb.ok("run", "-q", "-v", "data:/data", "--", "sh", "-c", "echo kept >/data/f; chown 5 /data/f")
    out = msb.ok("run", "-q", "--mount-named", "data:/d:ro", "--", "sh", "-c",
                 "cat /d/f; stat -c %u /d/f; touch /d/x || true")  # fmt: skip
    assert out == "kept\n5\n"
    listed = json.loads(msb.ok("volume", "ls", "--format", "json"))
    assert [v["name"] for v in listed] == ["data", "other"]
    assert listed[0]["kind"] == "dir" and listed[0]["quota_mib"] is None
    assert listed[0]["used_bytes"] > 0
    assert listed[1]["quota_mib"] == 64 and listed[1]["capacity_bytes"] == 64 << 20
    assert json.loads(msb.ok("volume", "inspect", "data", "--format", "json"))["name"] == "data"
    assert "Quota:          64 MiB" in msb.ok("volume", "inspect", "other")
    assert msb.ok("volumes", "list", "-q").split() == ["data", "other"]
    assert "NAME" in msb.ok("vol", "ls")
    msb.ok("volume", "rm", "data", "other")
    assert json.loads(msb.ok("volume", "ls", "--format", "json")) == []
    assert list((msb.home / "volumes").iterdir()) == []


def test_made_when_missing_and_kept_while_used(msb):
    msb.create("b", "-v", "fresh:/data")
    sh(msb, "b", "echo 1 >/data/f")
    (mount,) = json.loads(msb.ok("inspect", "b", "--format", "json"))["config"]["mounts"]
    assert mount["type"] == "Named" and mount["name"] == "fresh"
    p = msb("volume", "rm", "fresh")
    assert p.returncode == 1 and b"is mounted by sandbox 'b'" in p.stderr
    spec = msb.home / "sandboxes" / "b" / "spec.json"
    text = spec.read_bytes()
    spec.write_bytes(b"garbage")  # what it mounts is not known: anything
    p = msb("volume", "rm", "fresh")
    assert p.returncode == 1 and b"cannot tell what is in use" in p.stderr
    spec.write_bytes(text)
    msb.ok("stop", "-q", "b")
    assert msb("volume", "rm", "fresh").returncode == 1
    msb.ok("start", "-q", "b")
    assert sh(msb, "b", "cat /data/f") == "1\n"
    msb.ok("rm", "-f", "-q", "b")
    msb.ok("volume", "rm", "-q", "fresh")


def test_two_sandboxes_one_volume(msb):
    for name in ("a", "b"):
        msb.create(name, "-v", "both:/v:cache=none")
    sh(msb, "a", "echo from a >/v/f")
    assert sh(msb, "b", "cat /v/f") == "from a\n"


def test_the_size_holds(msb):
    msb.ok("volume", "create", "small", "--size", "8M")
    p = msb("run", "-q", "-v", "small:/v", "--", "sh", "-c", "dd if=/dev/zero of=/v/f bs=1M count=32")
    assert p.returncode != 0 and b"quota" in p.stderr


@pytest.fixture
def deep(msb):
    """A volume for what Python could not remove by itself if msb does not."""
    msb.ok("volume", "create", "deep", "--size", "16M")
    yield msb
    subprocess.run(["rm", "-rf", msb.home / "volumes" / "deep"], check=True)


def test_a_guest_that_digs(deep):
    """Directories deeper than there are descriptors: what is there counts, and all of it can be removed."""
    msb = deep
    dig = "cd /v; i=0; while [ $i -lt 1500 ]; do mkdir d && cd -P d || exit 1; i=$((i+1)); done"
    msb.ok("run", "-q", "-v", "deep:/v", "--", "sh", "-c", dig + "; head -c 6291456 /dev/zero >f", timeout=120)
    # What it hid before is not forgotten by the next start.
    p = msb("run", "-q", "-v", "deep:/v", "--", "sh", "-c", "dd if=/dev/zero of=/v/g bs=1M count=12")
    assert p.returncode != 0 and b"quota" in p.stderr
    few = ["sh", "-c", "ulimit -n 256; exec \"$@\"", "sh"]
    shown, gone = (subprocess.run([*few, *msb.command(["volume", *args])], env=msb.env, stdin=subprocess.DEVNULL,
                                  capture_output=True, timeout=60, check=False)
                   for args in (["inspect", "deep", "--format", "json"], ["rm", "-q", "deep"]))
    assert shown.returncode == 0 and json.loads(shown.stdout)["used_bytes"] >= 6 << 20, shown
    assert gone.returncode == 0, gone.stderr
    assert list((msb.home / "volumes").iterdir()) == []


@pytest.mark.parametrize("args,message", [
    (["create", "a/b"], "volume name must start with"),
    (["create", "x", "--size", "0"], "invalid value '0' for '--size"),
    (["create", "x", "--kind", "disk"], "a disk volume requires --size"),
    (["inspect", "none"], "volume not found: none"),
    (["rm", "none"], "volume not found: none"),
])  # fmt: skip
def test_bad_volumes(msb, args, message):
    p = msb("volume", *args)
    assert p.returncode == 1 and message.encode() in p.stderr
    assert msb.leftovers() == []


def test_a_volume_has_one_name(msb):
    for args, why in (["create"], b"no name given"), (["create", "x", "--name", "y"], b"two names given"):
        p = msb("volume", *args)
        assert p.returncode == 2 and why in p.stderr, p.stderr
    assert msb.leftovers() == []


def test_sizes_are_as_small_as_they_are(msb):
    msb.ok("run", "-q", "-v", "v:/v", "--", "sh", "-c", "echo 12345 >/v/f; sync")
    assert re.search(r"dir +[\d.]+ (B|KiB) ", msb.ok("volume", "ls"))
    assert re.search(r"Used: +[\d.]+ (B|KiB)\n", msb.ok("volume", "inspect", "v"))


def test_created_once(msb):
    msb.ok("volume", "create", "v")
    p = msb("volume", "create", "v")
    assert p.returncode == 1 and p.stderr == b"error: volume already exists: v\n"


def test_what_a_killed_writer_left_is_removed(msb):
    """A record under its temporary name: by the next listing, or the next creation."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    for look in (["volume", "ls"], ["volume", "create", "-q", "half"]):
        half = msb.home / "volumes" / "half"
        half.mkdir(parents=True, exist_ok=True)
        left = half / f".volume.json.tmp-{dead.pid}"
        left.write_text("{")
        busy = half / f".volume.json.tmp-{os.getpid()}"  # another process at work on it
        busy.write_text("{")
        msb.ok(*look)
        assert not left.exists() and busy.exists()
        busy.unlink()
    msb.ok("volume", "rm", "-q", "half")
    secrets = msb.home / "secrets"
    for look in (["secret", "ls"], ["secret", "set", "-q", "OTHER"], ["secret", "rm", "-q", "OTHER"]):
        secrets.mkdir(mode=0o700, exist_ok=True)
        left = secrets / f".TOKEN.tmp-{dead.pid}"
        left.write_text("a value")
        msb.ok(*look, input=b"value")
        assert not left.exists(), look
